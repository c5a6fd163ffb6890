"""Optional libraries of tests: skipped with a reason, unless EMBMAP_REQUIRE lists them."""

import importlib
import os

import pytest

REQUIRED = os.environ.get("EMBMAP_REQUIRE", "").split(",")


def require(name):
    """Return a library; without it skip the tests, or fail if EMBMAP_REQUIRE lists its name."""
    if name in REQUIRED:
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed")
