"""A small file for the commands."""

import numpy as np
import pytest

import embmap

WORDS = ["one", "two", "zwölf"]


@pytest.fixture
def path(tmp_path):
    vectors = np.array([[1, 0.5], [0.1, -3e-30], [7, 8]], np.float32)
    return embmap.finalfusion.write(
        tmp_path / "a.fifu", WORDS, vectors, norms=[1, 2, 3], metadata='title = "t"'
    )
