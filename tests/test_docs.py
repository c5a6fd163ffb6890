"""The README's and the docstrings' promises: snippets run, public names are documented."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import warnings
from pathlib import Path

import pytest

import embmap
from tests.required import require

ROOT = Path(__file__).parents[1]


def snippets(page="README.md"):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def run(snippet, names):
    """Run a snippet, compare what it promises, and return how many promises it makes."""
    lines = snippet.splitlines()
    n_checked = 0
    for statement in ast.parse(snippet).body:
        code = ast.unparse(statement)
        promised = re.search(r"# => (.*)", lines[statement.lineno - 1])
        if promised:
            assert repr(eval(code, names)) == promised[1], code
            n_checked += 1
        else:
            exec(code, names)
    return n_checked


def test_the_readmes_snippets_run_and_say_what_they_return(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    assert sum(run(snippet, names) for snippet in snippets()) >= 8
    assert capsys.readouterr().out == "0 (3, 4)\n"


FIRST, *HAND_OFFS = snippets("docs/tensors.md")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(HAND_OFFS)))
def test_the_hand_offs_run_where_their_libraries_install(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippet = HAND_OFFS[number]
    needed = re.findall(r"^(?:import|from) (\w+)(?:\.(\w+))?", FIRST + snippet, re.MULTILINE)
    uses_torch = "torch." in snippet or any("torch" in each for each in needed)
    for library, _ in [*needed, *([("torch", "")] if uses_torch else [])]:
        require(library)
    names = {}
    run(FIRST, names)
    if uses_torch:
        exec("import torch; from embmap.torch import tensor", names)
        names["c"] = embmap.open("fruit.cvc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the libraries themselves
        assert run(snippet, names)


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
