"""Files whose vectors are handed to torch."""

import numpy as np
import pytest

import embmap

WORDS = [f"w{i}" for i in range(60)]
ROWS = np.random.default_rng(3).standard_normal((60, 8)).astype(np.float32)


def pytest_configure(config):
    config.addinivalue_line("markers", "cuda: needs a CUDA device")


@pytest.fixture
def words():
    return list(WORDS)


@pytest.fixture
def rows():
    return ROWS.copy()


@pytest.fixture
def path(tmp_path):
    """A finalfusion file of WORDS and ROWS."""
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, ROWS)


@pytest.fixture
def chunked(tmp_path):
    """A function that writes ROWS as a CVC file and opens it with WORDS."""

    def write(compression, rows=ROWS, **options):
        made = embmap.cvc.write(
            tmp_path / f"{compression}.cvc",
            rows,
            compression=compression,
            chunk_rows=25,
            layout="1.0",
        )
        return embmap.open(made, vocab=WORDS[: len(rows)], **options)

    return write
