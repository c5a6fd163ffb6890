"""The README's and the docstrings' promises: snippets run, public names are documented."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import embmap

ROOT = Path(__file__).parents[1]


def snippets():
    text = (ROOT / "README.md").read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_readmes_snippets_run_and_say_what_they_return(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    n_checked = 0
    for snippet in snippets():
        lines = snippet.splitlines()
        for statement in ast.parse(snippet).body:
            code = ast.unparse(statement)
            promised = re.search(r"# => (.*)", lines[statement.lineno - 1])
            if promised:
                assert repr(eval(code, names)) == promised[1], code
                n_checked += 1
            else:
                exec(code, names)
    assert n_checked >= 8
    assert capsys.readouterr().out == "0 (3, 4)\n"


def modules():
    """Every module as a parameter; one that needs an extra which is not here is skipped."""
    found = [pytest.param(embmap, id="embmap")]
    for info in pkgutil.walk_packages(embmap.__path__, "embmap."):
        if info.name.startswith(("embmap.__main__", "embmap.cli", "embmap.codecs.jit")):
            continue  # need an extra
        if info.name == "embmap.demo.tour":
            continue
        try:
            found.append(pytest.param(importlib.import_module(info.name), id=info.name))
        except ImportError as error:
            if (error.name or "").startswith("embmap"):
                raise
            absent = pytest.mark.skip(reason=f"{info.name}: {error}")
            found.append(pytest.param(None, id=info.name, marks=absent))
    return found


@pytest.mark.parametrize("module", modules())
def test_doctests_hold(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("module", modules())
def test_all_names_exist_and_are_documented(module):
    assert module.__doc__
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            assert inspect.getdoc(thing), name


def test_links_between_documents_lead_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text("utf-8")):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"
