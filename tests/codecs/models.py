"""Symbols and models of entropy coding, for tests of what codes with them."""

import numpy as np
from hypothesis import strategies as st

from embmap.codecs.entropy_model import EntropyModel

EXTREMES = [-32768, -32767, -2, -1, 0, 1, 2, 3, 32766, 32767]
SYMBOLS = st.lists(
    st.integers(-4, 4) | st.sampled_from(EXTREMES) | st.integers(-32768, 32767),
    min_size=1,
    max_size=200,
)


def random_model(rng, n):
    """A model of n symbols, as the reference has it."""
    symbols = rng.choice(65536, n, replace=False) - 32768
    cuts = np.sort(rng.choice(4095, n - 1, replace=False)) + 1
    frequencies = np.diff(np.concatenate(([0], cuts, [4096])))
    return dict(zip(symbols.tolist(), frequencies.tolist(), strict=True))


def as_arrays(model):
    """The same as embmap has it."""
    return EntropyModel(np.array(list(model), np.int16), np.array(list(model.values()), np.int64))
