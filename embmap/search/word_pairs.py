"""Evaluation on word pairs: how cosines agree with the similarity that people saw."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from embmap.search.queries import QueryError

__all__ = ["Correlation", "correlate", "read_word_pairs"]


class Correlation(NamedTuple):
    """How cosines agree with given similarities of word pairs.

    Attributes
    ----------
    pearson : float
        Pearson's correlation coefficient; NaN if all cosines or all similarities are equal.
    spearman : float
        Spearman's rank correlation coefficient; equal values share the mean of their ranks.
    oov_ratio : float
        The share of pairs, from 0 to 1, that were skipped because a word is not in the vocabulary.
    n_pairs : int
        The number of pairs that were compared.
    """

    pearson: float
    spearman: float
    oov_ratio: float
    n_pairs: int


def read_word_pairs(path: str | os.PathLike[str]) -> Iterator[tuple[str, str, float]]:
    """Yield the two words and the similarity on each line of a text file.

    Fields are separated by tabs or commas. Empty lines, lines that begin with "#", and headings in
    the first line are skipped.
    """
    try:
        text = Path(os.fsdecode(path)).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise QueryError(f"{path}, byte {error.start}: not UTF-8") from None
    is_first = True
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("\t" if "\t" in line else ",")]
        try:
            first, second, score = fields
            yield first, second, _as_number(score)
        except ValueError:
            if not is_first:
                raise QueryError(
                    f"{path}, line {number}: must be two words and a number, not {line.strip()!r}"
                ) from None
        is_first = False


def _as_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def correlate(
    expected: npt.NDArray[np.float64], found: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Return Pearson's and Spearman's coefficients of two finite arrays (n,)."""
    return _pearson(expected, found), _pearson(_ranks(expected), _ranks(found))


def _pearson(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    if not (x.min() < x.max() and y.min() < y.max()):
        return math.nan
    x, y = x / np.abs(x).max(), y / np.abs(y).max()  # whose squares do not overflow
    x, y = x - x.mean(), y - y.mean()
    lengths = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return min(max(float(x @ y) / lengths, -1.0), 1.0)


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the ranks of values, from 1; equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks
