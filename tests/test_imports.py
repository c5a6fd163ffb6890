"""What is imported when: nothing with embmap itself, and one format with a file."""

import subprocess
import sys

import pytest

import embmap

LOADED = "; import sys; print(*sorted(name for name in sys.modules))"
# What takes milliseconds, and what only some calls need.
HEAVY = {"asyncio", "dataclasses", "http", "json", "numba", "numpy", "tempfile", "tomllib"}


def loaded(program):
    """The modules that a program loads."""
    command = [sys.executable, "-c", program + LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture
def weights(tmp_path):
    (tmp_path / "a.vec").write_text("2 2\na 1 2\nb 3 4\n")
    embmap.convert(tmp_path / "a.vec", tmp_path / "a.weights")
    return tmp_path / "a.weights"


def test_importing_embmap_imports_nothing_else():
    new = loaded("import embmap") - loaded("import typing, importlib")
    assert new == {"embmap"}
    assert not loaded("import embmap") & HEAVY


def test_an_error_is_caught_without_what_opens_files():
    ours = {name for name in loaded("import embmap; embmap.FormatError") if "embmap" in name}
    assert ours == {"embmap", "embmap.errors"}


def test_opening_imports_one_format_and_no_conversion(weights):
    modules = loaded(f"import embmap; embmap.open({str(weights)!r})['b']")
    formats = {name.split(".")[2] for name in modules if name.startswith("embmap.formats.")}
    assert formats == {"embd", "format", "registry", "tensors"}
    unneeded = ("embmap.conversion", "embmap.search.similarity", "embmap.io.atomic_write")
    assert not modules & (HEAVY - {"dataclasses", "numpy"}).union(unneeded)


def test_every_public_name_is_found_and_listed():
    assert set(embmap.__all__) <= set(dir(embmap))
    for name in embmap.__all__:
        assert getattr(embmap, name) is getattr(embmap, name)
    with pytest.raises(AttributeError, match="no attribute 'clsoe'"):
        _ = embmap.clsoe
