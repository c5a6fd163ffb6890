"""Files that tests of the server share."""

import numpy as np
import pytest

import embmap
from tests.serve.faulty import MANY, RNG, VECTORS, WORDS


@pytest.fixture
def path(tmp_path):
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, VECTORS)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file whose vectors take some time to compare."""
    vectors = RNG.standard_normal((len(MANY), 64), np.float32)
    return embmap.finalfusion.write(tmp_path_factory.mktemp("large") / "a.fifu", MANY, vectors)
