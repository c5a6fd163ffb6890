"""What tests share: the conformance folder, back ends, kernels and the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from embmap.codecs import kernels
from tests.kernels import HAS_NUMBA

_NEARBY = Path(__file__).resolve().parent.parent.parent / "shared" / "conformance"
CONFORMANCE = Path(os.environ.get("EMBMAP_CONFORMANCE") or _NEARBY)
ABSENT = f"there is no conformance folder {CONFORMANCE} (EMBMAP_CONFORMANCE names another)"


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "conformance_files(*patterns, where=None): run the test with each file of the conformance "
        "folder that matches (and for which where(path) holds), as `conformance_file`",
    )
    config.addinivalue_line(
        "markers",
        "slow: starts processes, servers, browsers or other libraries, measures memory, or damages "
        "files a thousand times; `make test-quick` leaves it out",
    )


def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("conformance_files")
    if marker is None or "conformance_file" not in metafunc.fixturenames:
        return
    where = marker.kwargs.get("where") or (lambda path: True)
    files = sorted(path for pattern in marker.args for path in CONFORMANCE.glob(pattern))
    files = list(filter(where, files))
    if files:
        metafunc.parametrize("conformance_file", files, ids=lambda path: path.name)
    else:
        absent = pytest.param(None, id="absent", marks=pytest.mark.skip(reason=ABSENT))
        metafunc.parametrize("conformance_file", [absent])


@pytest.fixture(scope="session")
def conformance():
    """The conformance folder."""
    if not CONFORMANCE.is_dir():
        pytest.skip(ABSENT)
    return CONFORMANCE


@pytest.fixture(params=["mmap", "read"])
def backend(request):
    """Name of a back end; the test runs with each."""
    return request.param


@pytest.fixture(params=["numpy", "numba"])
def kernel(request, monkeypatch):
    """Name of a kind of kernel; the test runs with each."""
    if request.param == "numba" and not HAS_NUMBA:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(kernels, "CHOICE", request.param)
    return request.param


@pytest.fixture
def best_kernel(monkeypatch):
    """Run the test with the fastest kind of kernel that is installed."""
    monkeypatch.setattr(kernels, "CHOICE", "numba" if HAS_NUMBA else "numpy")


@pytest.fixture
def command(capsys, monkeypatch):
    """Call the command line; the call returns its exit status, its output and its messages."""
    pytest.importorskip("typer", reason="typer is not installed")
    pytest.importorskip("rich", reason="rich is not installed")
    from embmap.cli import run

    monkeypatch.setattr("warnings.showwarning", lambda *_, **__: None)

    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


# The same examples every time and no deadline: a test that fails by chance does not show what a
# change broke.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
