"""Each route is written once: the application, its description and the page know the same ones."""

import re
from pathlib import Path
from typing import get_args

import pytest

import embmap.serve
from embmap.client import interface
from embmap.search.queries import Metric

for module in ("starlette", "uvicorn", "orjson"):
    pytest.importorskip(module, reason="the extra serve is not installed")

PAGE = Path(embmap.serve.__file__).parent / "static" / "api.js"


def described():
    from embmap.serve.openapi import description
    from embmap.serve.settings import Limits

    return description(Limits())["paths"]


def test_the_description_has_every_route_and_no_other():
    from embmap.serve.application import application
    from embmap.serve.settings import ModelSource, Settings

    app = application(Settings(models=(ModelSource("a", "/a"),)))
    routes = {
        route.name: {method.lower() for method in route.methods} - {"head"}
        for route in app._app.routes
        if route.name not in ("/", "/static/{path}")
    }
    assert {path: set(methods) for path, methods in described().items()} == routes


def test_the_description_offers_the_choices_of_the_library():
    paths = described()
    body = paths["/v1/{name}/similar"]["post"]["requestBody"]["content"][interface.JSON]["schema"]
    lookup = paths["/v1/{name}/lookup"]["post"]["requestBody"]["content"][interface.JSON]["schema"]
    for variant in body["oneOf"]:
        assert variant["properties"]["metric"]["enum"] == list(get_args(Metric))
    for variant in lookup["oneOf"]:
        assert variant["properties"]["missing"]["enum"] == list(interface.MISSING)


def test_words_have_a_place_in_the_path_and_in_the_query():
    for path, methods in described().items():
        names = {
            (each["in"], each["name"]) for each in methods.get("get", {}).get("parameters", ())
        }
        if ("query", "word") in names:
            inner = described()[f"{path}/{{word}}"]["get"]["parameters"]
            assert {(each["in"], each["name"]) for each in inner} - {("path", "word")} == names - {
                ("query", "word")
            }


def test_the_page_asks_only_routes_that_there_are():
    text = PAGE.read_text("utf-8")
    asked = {(method, name) for method, name in re.findall(r'\b(get|post)\(file, "(\w+)"', text)}
    assert len(asked) >= 5
    for method, name in asked:
        assert method in described()[f"/v1/{{name}}/{name}"]
    assert f'request("{interface.MODELS.removeprefix("/")}")' in text
