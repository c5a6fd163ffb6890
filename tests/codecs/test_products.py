"""Products whose bits do not depend on how many rows are multiplied at once."""

import numpy as np
import pytest

from embmap.codecs.products import multiply_each

SHAPES = [(1, 1), (3, 5), (64, 64), (100, 100), (101, 97), (300, 300), (768, 768), (7, 1700)]
SHAPES += [(33, 2500), (5, 9000), (0, 4)]


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("m", [0, 1, 2, 9])
def test_a_row_has_the_same_bits_alone_and_among_others(n, k, m):
    rng = np.random.default_rng(n + k)
    left, right = (rng.standard_normal((rows, k)).astype("f4") for rows in (m, n))
    found = multiply_each(left, right)
    assert (found.shape, found.dtype) == ((m, n), np.float32)
    np.testing.assert_allclose(found, left.astype("f8") @ right.T.astype("f8"), atol=1e-3)
    for i in range(m):
        assert multiply_each(left[i : i + 1], right).tobytes() == found[i].tobytes()
    assert multiply_each(left[1:], right).tobytes() == found[1:].tobytes()
