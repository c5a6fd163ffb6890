"""An open DWE file: words that move over time, decoded group by group from compressed data."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from embmap.codecs.ans import LOWEST
from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError, UnknownWordError
from embmap.formats.dwe.groups import Groups
from embmap.formats.dwe.layout import FORMAT, entries_of, parse
from embmap.formats.dwe.queries import dot_products, greatest, greatest_changes, scaled
from embmap.formats.dwe.timestep import Timestep, Trajectories
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.report import Report
from embmap.search.similarity import Neighbor
from embmap.words.given import Words, words_of
from embmap.words.index_source import IndexChoice

__all__ = ["DweFile", "TimestepFile"]

Word = str | SupportsIndex
_SHOWN = 10  # problems of a time step that are reported one by one


class DweFile(EmbeddingFile):
    """A DWE file: integer word vectors at T time steps, and a scale that makes them numbers.

    Its vectors are trajectories: ``f[word]`` and ``f[row]`` have the shape (T, K), ``f.batch`` and
    ``f[[word, ...]]`` the shape (n, T, K). :meth:`at` returns a time step as a file of vectors of
    shape (K,). Searches go through the last time step. Whole groups are decoded and checked to
    their ends; some of them are kept, see :attr:`cache_nbytes`.

    Parameters
    ----------
    file : ByteSource
        The open file.
    layout : str, optional
        Read it as "blocks" or "stream".
    index : str or path-like
        Where an index over `vocab` comes from; see :func:`embmap.open`.
    vocab : path-like or sequence of str, optional
        A word for each row; the format carries none.

    Raises
    ------
    FormatError
        When it is no DWE file.
    StaleIndexError
        When an index is required and does not match.
    ValueError
        When `vocab` does not fit.
    """

    format: ClassVar[str] = FORMAT
    _parts = ("_groups", "_latest")

    def __init__(
        self,
        file: ByteSource,
        layout: str | None = None,
        index: IndexChoice = "auto",
        vocab: Words | None = None,
    ) -> None:
        offsets = self._offsets = parse(file, layout)
        words = words_of(file, None, vocab, offsets.n_words, FORMAT, index)
        self._groups = Groups(file, offsets)
        self._scale = np.float32(offsets.scale)
        self._latest: TimestepFile | None = None
        super().__init__(file, offsets.layout, words, Trajectories(self._groups, self._scale))

    # What the file is

    @property
    def num_timesteps(self) -> int:
        """Number of time steps."""
        return self._offsets.n_steps

    @property
    def scale(self) -> float:
        """What an integer is multiplied with; exactly a float32."""
        return float(self._scale)

    @property
    def cache_nbytes(self) -> int:
        """How many bytes of decoded groups are kept for later; may be set, 0 keeps none."""
        return self._groups.cache_nbytes

    @cache_nbytes.setter
    def cache_nbytes(self, nbytes: int) -> None:
        self._check_open()
        nbytes = operator.index(nbytes)
        if nbytes < 0:
            raise ValueError(f"cache_nbytes cannot be {nbytes}")
        self._groups.cache_nbytes = nbytes

    # Words over time

    def at(self, t: int | None = None) -> TimestepFile:
        """Return a time step as a file: its words, their vectors at that step, and search.

        Parameters
        ----------
        t : int, optional
            The time step; negative ones count from the end. The last one by default.

        Returns
        -------
        TimestepFile
            Vectors of shape (V, K), float32. It stays open when this file is closed.

        Raises
        ------
        IndexError
            For a time step that does not exist.
        """
        self._check_open()
        number = _in_range(-1 if t is None else t, self.num_timesteps, "timestep")
        latest = self._latest
        if latest is None or latest.closed or latest.t != number:
            # Kept, so that a search finds the lengths that the one before it measured.
            step = Timestep(self._groups, number, self._scale)
            latest = TimestepFile(self._file, self.layout, self._vocabulary, step)
            latest._reopen = (
                None if self._reopen is None else partial(_open_step, self._reopen, number)
            )
            self._latest = latest
        return latest

    def similarity_over_time(
        self, words1: Iterable[Word], words2: Iterable[Word]
    ) -> npt.NDArray[np.float32]:
        """Return the dot products of pairs of words at all time steps.

        Parameters
        ----------
        words1, words2 : iterable of str or int
            As many words or rows each.

        Returns
        -------
        numpy.ndarray
            Shape (n, T), float32: the dot product of the integers in int32, times the square of the
            scale.

        Raises
        ------
        UnknownWordError
            For a word that is not in the vocabulary.
        IndexError
            For a row that does not exist.
        ValueError
            When there are more of one than of the other.
        FormatError
            When a group cannot be decoded.
        """
        first, second = self._numbers(words1), self._numbers(words2)
        if first.size != second.size:
            raise ValueError(f"{first.size} words cannot be compared with {second.size}")
        rows, place = np.unique(np.concatenate((first, second)), return_inverse=True)
        values = self._groups.trajectories(rows)
        products = dot_products(values[place[: first.size]], values[place[first.size :]])
        return self._scores(products)

    def most_related(self, word: Word, t: int, n: int = 10) -> list[Neighbor]:
        """Return the words most similar to a word at a time step.

        Parameters
        ----------
        word : str or int
            The word or its row.
        t : int
            The time step; negative ones count from the end.
        n : int
            How many.

        Returns
        -------
        list of Neighbor
            By falling dot product, then rising row; without the word itself.

        Raises
        ------
        UnknownWordError
            For a word that is not in the vocabulary.
        IndexError
            For a row or a time step that does not exist.
        ValueError
            When there are fewer than `n` other words.
        FormatError
            When a group cannot be decoded.
        """
        (row,) = self._numbers([word]).tolist()
        self._check_enough(n)
        products = self._products(row, _in_range(t, self.num_timesteps, "timestep"))
        rows = greatest(products, n, row)
        return self._neighbors(rows, self._scores(products[rows]))

    def largest_changes(
        self, word: Word, n: int = 10, min_increasing: int = 0, min_decreasing: int = 0
    ) -> list[Neighbor]:
        """Return the words whose similarity to a word changed most from first to last time step.

        Parameters
        ----------
        word : str or int
            The word or its row.
        n : int
            How many.
        min_increasing, min_decreasing : int
            How many of them shall have come closer, and how many shall have gone away.

        Returns
        -------
        list of Neighbor
            By how much they changed; the score is the change, negative for those that went away.

        Raises
        ------
        UnknownWordError
            For a word that is not in the vocabulary.
        IndexError
            For a row that does not exist.
        ValueError
            When there are fewer than `n` other words, or the two minimums exceed `n`.
        FormatError
            When a group cannot be decoded.
        """
        (row,) = self._numbers([word]).tolist()
        self._check_enough(n)
        if min_increasing < 0 or min_decreasing < 0 or min_increasing + min_decreasing > n:
            raise ValueError(
                f"{n} words cannot be {min_increasing} increasing and {min_decreasing} decreasing"
            )
        first, last = self._products(row, 0), self._products(row, self.num_timesteps - 1)
        changes = last.astype(np.int64) - first
        rows = greatest_changes(changes, n, min_increasing, min_decreasing, row)
        return self._neighbors(rows, self._scores(changes[rows]))

    def _products(self, row: int, t: int) -> npt.NDArray[np.int32]:
        """Return the dot products of a word with all words at a time step: shape (V,)."""
        step = Timestep(self._groups, t)
        products = np.empty(len(self), np.int32)
        at_once = self._groups.groups_at_once(t) * self._offsets.group
        own = row - row % at_once  # this block first: the word is in it
        target = None
        for start in [own, *(each for each in range(0, len(self), at_once) if each != own)]:
            block = step[start : start + at_once]
            target = block[row - own] if target is None else target
            products[start : start + len(block)] = dot_products(block, target)
        return products

    def _scores(self, products: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore"):
            square = self._scale * self._scale
        return scaled(products.astype(np.float32), square)

    def _neighbors(
        self, rows: npt.NDArray[np.int64], scores: npt.NDArray[np.float32]
    ) -> list[Neighbor]:
        words = self._vocabulary
        return [
            Neighbor(row, None if words is None else words[row], score)
            for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def _check_enough(self, n: int) -> None:
        if not 0 <= n < len(self):
            raise ValueError(f"there are {len(self) - 1} other words, not {n}")

    def _numbers(self, words: Iterable[Word]) -> npt.NDArray[np.int64]:
        """Return the rows of words, or of rows."""
        self._check_open()
        if isinstance(words, str | bytes):
            raise TypeError("give a list of words")
        if isinstance(words, np.ndarray) and words.dtype == np.bool_:
            return cast(Trajectories, self._matrix).row_numbers(words)
        asked = words.tolist() if isinstance(words, np.ndarray) else list(words)
        rows = np.empty(len(asked), np.int64)
        names = {i: word for i, word in enumerate(asked) if isinstance(word, str)}
        if names:
            found = rows[list(names)] = self._words.find(names.values())
            if self._vocabulary is None:
                raise UnknownWordError(names[min(names)], path=self.path, wordless=True)
            if (found < 0).any():
                unknown = [word for word, row in zip(names.values(), found, strict=True) if row < 0]
                raise UnknownWordError(unknown[0], path=self.path, n_unknown=len(unknown))
        for i, word in enumerate(asked):
            if not isinstance(word, str):
                rows[i] = _in_range(cast(SupportsIndex, word), len(self), "row")
        return rows

    # The whole file

    def info(self) -> dict[str, Any]:
        """Return what is known about the file without reading its data.

        Returns
        -------
        dict
            As of :meth:`EmbeddingFile.info`, with scale, group, and a chunk for each time step.
        """
        info = super().info()
        offsets = self._offsets
        info |= {"version": f"1.{offsets.minor}", "scale": self.scale, "group": offsets.group}
        if not math.isfinite(self.scale):
            info["scale"] = None
        n = offsets.n_words * offsets.dim
        info["chunks"] = [
            {
                "name": f"timestep {t}",
                "symbols": n_symbols,
                "bits_per_symbol": round(8 * nbytes / n, 3),
                "offset": offset,
                "nbytes": nbytes,
            }
            for t, (n_symbols, (offset, nbytes)) in enumerate(
                zip(offsets.model_sizes, self._extents(), strict=True)
            )
        ]
        return info

    def _extents(self) -> list[tuple[int, int]]:
        """Return where the data of each time step begin, and how many bytes they take."""
        offsets = self._offsets
        steps = np.arange(offsets.n_steps)[:, np.newaxis]
        groups = np.arange(offsets.n_groups if offsets.layout == "blocks" else 1)
        try:
            entries = entries_of(self._file, offsets, steps, groups)
        except FormatError:  # damaged entries are for verify to tell about
            return [(offset, 0) for offset in offsets.model_offsets]
        # Whatever comes next ends them; of blocks, a state stands before the words.
        starts = entries.positions - (2 if offsets.layout == "blocks" else 0)
        known = np.append(np.unique(starts), offsets.data_words)
        if offsets.layout == "blocks":
            known = np.union1d(known, np.array(offsets.model_offsets) // 2)
        sizes = known[np.searchsorted(known, starts, "right").clip(max=known.size - 1)] - starts
        begins = offsets.data_offset + 2 * starts.reshape(offsets.n_steps, -1).min(axis=1)
        totals = 2 * sizes.reshape(offsets.n_steps, -1).sum(axis=1)
        return list(zip(begins.tolist(), totals.tolist(), strict=True))

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        report.checked += ["scale", "models", "groups"]
        if not math.isfinite(self.scale) or not self.scale:
            report.error(f"the scale factor is {self.scale}", 36)
        ends = {}
        for t in range(self.num_timesteps):
            end = _verify_groups(self._groups, t, report)
            if end is None:
                continue
            ends[t] = end
            if progress is not None:
                progress("decoding timesteps", t + 1, self.num_timesteps)
        if self.layout == "stream" and len(ends) == self.num_timesteps:
            self._verify_seams(ends, report)

    def _verify_seams(self, ends: dict[int, tuple[int, int]], report: Report) -> None:
        """Tell about time steps that do not end where another begins: nothing else shows damage."""
        steps = np.arange(self.num_timesteps)[:, np.newaxis]
        entries = entries_of(self._file, self._offsets, steps, np.zeros(1, np.int64))
        begins = set(zip(entries.positions.tolist(), entries.states.tolist(), strict=True))
        words = self._offsets.data_words
        begins |= {(words, LOWEST), (words - 1, LOWEST)}  # behind the last, and a word of padding
        for t, end in ends.items():
            if end not in begins:
                offset = self._offsets.data_offset + 2 * end[0]
                report.warning(f"timestep {t} does not end where another begins", offset)


class TimestepFile(EmbeddingFile):
    """One time step of a DWE file, as a file of its own: what :meth:`DweFile.at` returns."""

    format: ClassVar[str] = FORMAT
    _matrix: Timestep

    @property
    def t(self) -> int:
        """The time step, counted from 0."""
        return self._matrix.t

    @property
    def vectors(self) -> Timestep:
        """The vectors: shape (V, K), float32; ``.quantized`` is the int16 matrix behind them."""
        self._check_open()
        return self._matrix

    def _beside(self, suffix: str) -> Path:
        """Return the path of an index over this step, which that of another cannot stand for."""
        return super()._beside(f".{self.t}{suffix}")

    def __repr__(self) -> str:
        """Name the file, the time step and its sizes; reads nothing."""
        if self.closed:
            return super().__repr__()
        return f"{super().__repr__()[:-1]}, time step {self.t}>"

    def info(self) -> dict[str, Any]:
        """Return what is known about the time step without reading its data.

        Returns
        -------
        dict
            As of :meth:`EmbeddingFile.info`, with the number of the time step.
        """
        return super().info() | {"timestep": self.t}

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        report.checked.append("groups")
        _verify_groups(self._matrix.groups, self.t, report)
        if progress is not None:
            progress("decoding timesteps", 1, 1)


def _open_step(reopen: Callable[[], EmbeddingFile], t: int) -> EmbeddingFile:
    """Open a file again and return one of its time steps."""
    return reopen().at(t)


def _verify_groups(groups: Groups, t: int, report: Report) -> tuple[int, int] | None:
    """Decode a whole time step; return where its data end, unless it cannot be decoded."""
    found = report.attempt(groups.check, t)
    if found is None:
        return None
    problems, end = found
    for problem in problems[:_SHOWN]:
        report.error(str(problem), problem.offset)
    if len(problems) > _SHOWN:
        more = len(problems) - _SHOWN
        report.error(f"{more} more groups of timestep {t} are damaged", problems[-1].offset)
    return end


def _in_range(i: SupportsIndex, n: int, what: str) -> int:
    if isinstance(i, bool | np.bool_):
        raise IndexError(f"{what} {i}: truth values choose nothing by themselves")
    number = operator.index(i)
    if not -n <= number < n:
        raise IndexError(f"{what} {number} of {n}")
    return number % n
