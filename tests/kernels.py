"""Whether compiled kernels can be tested here."""

import importlib.util

import pytest

HAS_NUMBA = importlib.util.find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
