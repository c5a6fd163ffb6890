"""Checksums of parts against the checksum of the whole."""

import zlib

import numpy as np
import pytest

from embmap.codecs.checksums import combine_crc32


@pytest.mark.parametrize("n", [0, 1, 2, 7, 255, 256, 4097, 100_000])
def test_the_checksum_of_two_parts_is_the_checksum_of_the_whole(n):
    data = np.random.default_rng(n).bytes(n)
    for cut in {0, 1, n // 3, n // 2, max(n - 1, 0), n}:
        first, second = data[:cut], data[cut:]
        assert combine_crc32(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(data)
