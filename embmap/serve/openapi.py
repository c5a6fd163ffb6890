"""The description of the interface in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from embmap.client.interface import ARROW, JSON, MISSING, MISSING_HEADER, MODELS, NPY
from embmap.formats.registry import get_file_formats
from embmap.search.queries import METRICS
from embmap.serve.routes import COUNTS, DESCRIPTION, HEALTH, TASKS, paths_of
from embmap.serve.settings import Limits

__all__ = ["description"]

_STRING, _INTEGER, _BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_STEP = {"type": ["integer", "string"]}  # the number or the label of a time step
_NUMBERS = {"type": "array", "items": {"type": ["number", "null"]}}


def description(limits: Limits) -> dict[str, Any]:
    """Return the description of the interface."""
    paths: dict[str, Any] = {
        HEALTH: {"get": _operation("Whether the server runs", _object({"status": _STRING}))},
        COUNTS: {"get": _text("Counts for Prometheus")},
        DESCRIPTION: {"get": _operation("This description", {"type": "object"})},
        MODELS: {"get": _operation("The files", _models(), errors=("406", "408", "429", "503"))},
    }
    model = _parameter("name", "path", _STRING)
    in_path = _parameter("word", "path", {"type": "string", "minLength": 1})
    in_query = {**_parameter("word", "query", _STRING), "required": True}
    options = _options(limits)
    for name, task in TASKS.items():
        for path, has_word_in_path in paths_of(name):
            word = [in_path if has_word_in_path else in_query] if task.has_word else []
            parameters = [model, *word, *options[name].get("parameters", ())]
            operation = _operation(**{**options[name], "parameters": parameters})
            paths[path] = {task.method.lower(): operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "embmap", "version": "1", "description": "Embedding files over HTTP."},
        "paths": paths,
        "components": {
            "schemas": {"Error": _error()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _options(limits: Limits) -> dict[str, dict[str, Any]]:
    """Return the arguments of :func:`_operation` for each task."""
    n = {"type": "integer", "minimum": 1, "maximum": limits.neighbors, "default": 10}
    schemas: dict[str, dict[str, Any]] = {
        "n": n,
        "t": _STEP,
        "to": _STRING,
        "prefix": _STRING,
        "vectors": _BOOLEAN,
    }
    query = {name: _parameter(name, "query", schema) for name, schema in schemas.items()}
    facts = {"word": _STRING, "t": _INTEGER, "label": _STEP}
    neighbors = _closed({"neighbors": _list(_neighbor()), **facts}, ["neighbors"])
    words = {"a": _STRING, "b": _STRING, "c": _STRING}
    return {
        "vectors": {
            "summary": "The vector of a word; of a DWE file at a time step, by default the last",
            "answer": _object({"word": _STRING, "row": _nullable("integer"), "vector": _NUMBERS}),
            "parameters": [query["t"]],
            "binary": True,
        },
        "lookup": {
            "summary": "Vectors of words or rows",
            "answer": _looked_up(),
            "body": _lookup(limits),
            "binary": True,
        },
        "similar": {
            "summary": "The nearest words",
            "answer": neighbors,
            "body": _similar(n, limits),
        },
        "analogy": {
            "summary": "The words that are to c as b is to a",
            "answer": neighbors,
            "body": _closed({**words, "n": n, "t": _STEP}, list(words)),
        },
        "rank": {
            "summary": "The rank of a word among the neighbors of another, from 1",
            "answer": _object({"rank": _INTEGER}),
            "body": _closed({"word": _STRING, "other": _STRING, "t": _INTEGER}, ["word", "other"]),
        },
        "complete": {
            "summary": "Words that begin with a prefix",
            "answer": _object({"words": _list(_STRING), "whole": _BOOLEAN}),
            "parameters": [query["prefix"], query["n"]],
        },
        "trajectory": {
            "summary": "Cosines of a word's time steps with its first or with another word",
            "answer": _trajectory(),
            "parameters": [query["to"], query["vectors"]],
        },
        "related": {
            "summary": "The words most related to a word at a time step, by dot product",
            "answer": neighbors,
            "parameters": [query["t"], query["n"]],
        },
    }


def _operation(
    summary: str,
    answer: dict[str, Any],
    *,
    parameters: list[dict[str, Any]] | None = None,
    body: dict[str, Any] | None = None,
    binary: bool = False,
    errors: tuple[str, ...] = ("400", "404", "406", "408", "422", "429", "503"),
) -> dict[str, Any]:
    problem = {"description": "A problem", "content": {JSON: {"schema": _ref("Error")}}}
    found = {"description": summary, "content": {JSON: {"schema": answer}}}
    codes = [*errors, "401", "421", "431", *(("413", "415") if body else ())]
    problems = dict.fromkeys(codes, problem)
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": _vectors(answer) if binary else found, **problems},
    }
    if parameters:
        operation["parameters"] = parameters
    if body:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return operation


def _vectors(answer: dict[str, Any]) -> dict[str, Any]:
    binary: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
    return {
        "description": f"Vectors; in .npy, missing ones are zeros, which {MISSING_HEADER} lists",
        "headers": {MISSING_HEADER: {"schema": _STRING}},
        "content": {JSON: {"schema": answer}, NPY: binary, ARROW: binary},
    }


def _text(summary: str) -> dict[str, Any]:
    operation = _operation(summary, {}, errors=())
    operation["responses"]["200"]["content"] = {"text/plain": {"schema": _STRING}}
    return operation


def _lookup(limits: Limits) -> dict[str, Any]:
    options = {
        "missing": _choice(MISSING),
        "trajectories": {"type": "boolean", "default": False},
        "t": _STEP,
        "vectors": {"type": "boolean", "default": True},
    }
    words = {"type": "array", "items": _STRING, "maxItems": limits.words}
    rows = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0},
        "maxItems": limits.words,
    }
    both = {"required": ["t", "trajectories"], "properties": {"trajectories": {"const": True}}}
    return {
        "oneOf": [
            _closed({"words": words, **options}, ["words"]),
            _closed({"rows": rows, **options}, ["rows"]),
        ],
        "not": both,
    }


def _similar(n: dict[str, Any], limits: Limits) -> dict[str, Any]:
    vector = {"type": "array", "items": {"type": "number"}}
    row = {"type": "integer", "minimum": 0}
    item = {"anyOf": [_STRING, vector]}
    pair = {"type": "array", "prefixItems": [item, {"type": "number"}], "items": False}
    terms = {
        "type": "array",
        "items": {"anyOf": [_STRING, vector, {**pair, "minItems": 2}]},
        "minItems": 1,
        "maxItems": limits.words,
    }
    some = {"minItems": 1, "maxItems": limits.among}
    options = {
        "n": n,
        "metric": _choice(METRICS),
        "t": _STEP,
        "among": {
            "oneOf": [{**_list(_STRING), **some}, {**_list(row), **some}, {"type": "object"}]
        },
        "dim": {"type": "integer", "minimum": 1},
        "exclude": {**_list({"anyOf": [_STRING, row]}), "maxItems": limits.words},
        "approximate": {"type": "boolean", "default": False},
    }
    sums = _closed({"positive": terms, "negative": terms, **options}, [])
    return {
        "oneOf": [
            _closed({"word": _STRING, **options}, ["word"]),
            _closed({"vector": vector, **options}, ["vector"]),
            {**sums, "anyOf": [{"required": ["positive"]}, {"required": ["negative"]}]},
        ]
    }


def _looked_up() -> dict[str, Any]:
    vector = {"anyOf": [_NUMBERS, {"type": "array", "items": _NUMBERS}, {"type": "null"}]}
    facts = {"words": _list(_STRING), "rows": _list(_nullable("integer")), "vectors": _list(vector)}
    return _closed(facts, ["rows"])


def _trajectory() -> dict[str, Any]:
    facts = {
        "word": _STRING,
        "row": _INTEGER,
        "to": _nullable("string"),
        "values": _NUMBERS,
        "labels": _list(_STEP),
        "vectors": _list(_NUMBERS),
    }
    return _closed(facts, ["word", "row", "to", "values"])


def _models() -> dict[str, Any]:
    model = _closed(
        {
            "name": _STRING,
            "available": _BOOLEAN,
            "format": {"enum": list(get_file_formats())},
            "dim": _INTEGER,
            "dtype": _STRING,
            "count": _INTEGER,
            "rows": _INTEGER,
            "words": _BOOLEAN,
            "vectors": _BOOLEAN,
            "timesteps": _INTEGER,
            "labels": _list(_STEP),
        },
        ["name", "available"],
    )
    limits = {"type": "object", "additionalProperties": _INTEGER}
    return _object({"models": _list(model), "limits": limits})


def _neighbor() -> dict[str, Any]:
    return _object({"row": _INTEGER, "word": _nullable("string"), "score": _nullable("number")})


def _error() -> dict[str, Any]:
    error = _object({"code": _STRING, "message": _STRING, "word": _STRING, "n_unknown": _INTEGER})
    error["required"] = ["code", "message"]
    return _object({"error": error})


def _parameter(name: str, place: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return _closed(properties, list(properties))


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _choice(names: tuple[str, ...]) -> dict[str, Any]:
    return {"enum": list(names), "default": names[0]}


def _nullable(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
