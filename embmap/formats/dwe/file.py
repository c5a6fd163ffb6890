"""An open DWE file: word vectors over time, decoded group by group."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, SupportsIndex, cast, overload

import numpy as np
import numpy.typing as npt

from embmap.codecs.ans import LOWEST
from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError, UnknownWordError
from embmap.formats.dwe.groups import Groups
from embmap.formats.dwe.layout import FORMAT, entries_of, parse
from embmap.formats.dwe.queries import dot_products, greatest, greatest_changes, scaled
from embmap.formats.dwe.timestep import Timestep, Trajectories
from embmap.formats.dwe.timestep_file import TimestepFile, open_step, verify_groups
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.report import Report
from embmap.search.queries import Neighbor
from embmap.vectors.matrix import out_of_range
from embmap.words.given import Words as GivenWords
from embmap.words.given import words_of
from embmap.words.index_source import IndexChoice
from embmap.words.time_labels import TimeLabel, TimeStep, check_labels, find_step

__all__ = ["DweFile", "TimestepFile"]

Word = str | SupportsIndex
Words = list[str] | list[int] | list[str | int] | tuple[Word, ...]
_PRODUCTS = 1 << 24  # dot products that are kept at once


class DweFile(EmbeddingFile):
    """A DWE file: integer word vectors at T time steps, and a factor that scales them.

    Its vectors are trajectories: ``f[word]`` and ``f[row]`` have the shape (T, K), ``f.batch`` and
    ``f[[word, ...]]`` the shape (n, T, K). :meth:`at` returns a time step as a file whose vectors
    have the shape (K,). Searches use the last time step. Words are decoded in whole groups, which
    are checked to their ends and cached; see :attr:`cache_nbytes`.

    Parameters
    ----------
    file : ByteSource
        The bytes of the file.
    dialect : {"blocks", "stream"}, optional
        How to read it; by default the bytes decide.
    index : str or path-like
        Which index over `vocab` to use; see :func:`embmap.open`.
    vocab : path-like or sequence of str, optional
        A word for each row, and perhaps a label for each time step; see :func:`embmap.open`. DWE
        files have no words of their own.

    Raises
    ------
    FormatError
        If it is not a valid DWE file.
    StaleIndexError
        If an index is required and does not match.
    ValueError
        If `vocab` does not have as many words as the file has rows, or not as many labels as it
        has time steps.
    """

    format: ClassVar[str] = FORMAT
    _parts = ("_groups", "_latest")

    def __init__(
        self,
        file: ByteSource,
        dialect: str | None = None,
        index: IndexChoice = "auto",
        vocab: GivenWords | None = None,
    ) -> None:
        offsets = self._offsets = parse(file, dialect)
        words = words_of(file, None, vocab, offsets.n_words, FORMAT, index)
        self._labels = () if words is None else words.labels
        check_labels(self._labels, offsets.n_steps)
        self._groups = Groups(file, offsets)
        self._scale = np.float32(offsets.scale)
        self._latest: TimestepFile | None = None
        super().__init__(file, offsets.dialect, words, Trajectories(self._groups, self._scale))

    # What the file is

    @property
    def num_timesteps(self) -> int:
        """Number of time steps."""
        return self._offsets.n_steps

    @property
    def timestep_labels(self) -> tuple[TimeLabel, ...]:  # noqa: D102  documented in Embeddings
        return self._labels

    @property
    def scale(self) -> float:
        """Factor from integers to numbers; exactly a float32."""
        return float(self._scale)

    @property
    def cache_nbytes(self) -> int:
        """Size of the cache of decoded groups in bytes, which can be set; 0 turns it off."""
        return self._groups.cache.nbytes

    @cache_nbytes.setter
    def cache_nbytes(self, nbytes: int) -> None:
        self._check_open()
        nbytes = operator.index(nbytes)
        if nbytes < 0:
            raise ValueError(f"cache_nbytes must be at least 0, not {nbytes}")
        self._groups.cache.resize(nbytes)

    # Words over time

    def at(self, t: TimeStep | None = None) -> TimestepFile:
        """Return a time step as a file: the words, their vectors at that step, and searches.

        Parameters
        ----------
        t : int or str, optional
            The time step: its number, where negative numbers count from the end, or its label, such
            as the year 1900. Text of an integer is the integer. The last step by default.

        Returns
        -------
        TimestepFile
            Its vectors have the shape (V, K), float32. It stays open when this file is closed.

        Raises
        ------
        IndexError
            If the time step does not exist.
        ValueError
            If `t` is the number of one time step and the label of another. The message gives a
            number that means only the one.
        """
        return cast(TimestepFile, super().at(t))

    def _at_step(self, t: int) -> TimestepFile:
        latest = self._latest
        if latest is None or latest.closed or latest.t != t:
            # The step is kept for the next search, which needs the lengths of its vectors again.
            step = Timestep(self._groups, t, self._scale)
            latest = TimestepFile(self._file, self.layout, self._vocabulary, step)
            latest.label = self._labels[t] if self._labels else None
            if self._reopen is not None:
                latest._reopen_with(partial(open_step, self._reopen, t))
            self._latest = latest
        return latest

    def similarity_over_time(
        self, words1: Iterable[Word], words2: Iterable[Word]
    ) -> npt.NDArray[np.float32]:
        """Return the dot products of pairs of words at all time steps.

        Parameters
        ----------
        words1, words2 : iterable of str or int
            Words or rows; both must have the same number.

        Returns
        -------
        numpy.ndarray
            Shape (n, T), float32: dot products of the integers in int32, times the square of the
            scale.

        Raises
        ------
        UnknownWordError
            If a word is not in the vocabulary.
        IndexError
            If a row does not exist.
        ValueError
            If the numbers of words differ.
        FormatError
            If a group cannot be decoded.
        """
        first, second = self._numbers(words1), self._numbers(words2)
        if first.size != second.size:
            raise ValueError(f"words2 must have {first.size} words, not {second.size}")
        rows, place = np.unique(np.concatenate((first, second)), return_inverse=True)
        values = self._groups.trajectories(rows)
        products = dot_products(values[place[: first.size]], values[place[first.size :]])
        return self._scores(products)

    @overload
    def most_related(self, word: Words, t: TimeStep, n: int = ...) -> list[list[Neighbor]]: ...

    @overload
    def most_related(self, word: Word, t: TimeStep, n: int = ...) -> list[Neighbor]: ...

    def most_related(
        self, word: Word | Words, t: TimeStep, n: int = 10
    ) -> list[Neighbor] | list[list[Neighbor]]:
        """Return the words with the greatest dot products with a word at a time step.

        Parameters
        ----------
        word : str, int, or list or tuple of them
            The word or its row, or several, for which the time step is decoded once.
        t : int or str
            The time step, by its number or its label as in :meth:`at`.
        n : int
            Number of words.

        Returns
        -------
        list of Neighbor, or list of lists
            (row, word, dot product), by falling dot product, then rising row; without the word
            itself. For several words, a list for each.

        Raises
        ------
        UnknownWordError
            If a word is not in the vocabulary.
        IndexError
            If the row or the time step does not exist.
        ValueError
            If there are fewer than `n` other words, or if `t` is the number of one time step and
            the label of another.
        FormatError
            If a group cannot be decoded.
        """
        single = not isinstance(word, list | tuple)
        rows = self._numbers(cast("Words", [word] if single else word))
        self._check_enough(n)
        step = find_step(t, self.num_timesteps, self._labels)
        found = []
        at_once = max(_PRODUCTS // len(self), 1)
        for start in range(0, rows.size, at_once):
            some = rows[start : start + at_once]
            for products, row in zip(self._products(some, step), some.tolist(), strict=True):
                nearest = greatest(products, n, row)
                found.append(self._neighbors(nearest, self._scores(products[nearest])))
        return found[0] if single else found

    def largest_changes(
        self, word: Word, n: int = 10, min_increasing: int = 0, min_decreasing: int = 0
    ) -> list[Neighbor]:
        """Return the words whose dot product with a word changed most from first to last time step.

        Parameters
        ----------
        word : str or int
            The word or its row.
        n : int
            Number of words.
        min_increasing, min_decreasing : int
            Minimum number of words whose dot product increased, and whose dot product decreased.

        Returns
        -------
        list of Neighbor
            (row, word, change), by falling size of the change, which may be negative.

        Raises
        ------
        UnknownWordError
            If a word is not in the vocabulary.
        IndexError
            If a row does not exist.
        ValueError
            If there are fewer than `n` other words, or the two minimums exceed `n`.
        FormatError
            If a group cannot be decoded.
        """
        rows = self._numbers([word])
        self._check_enough(n)
        if min_increasing < 0 or min_decreasing < 0 or min_increasing + min_decreasing > n:
            raise ValueError(
                "min_increasing and min_decreasing must be at least 0 and together at most "
                f"n = {n}, not {min_increasing} and {min_decreasing}"
            )
        (first,), (last,) = (self._products(rows, t) for t in (0, self.num_timesteps - 1))
        changes = last.astype(np.int64) - first
        chosen = greatest_changes(changes, n, min_increasing, min_decreasing, int(rows[0]))
        return self._neighbors(chosen, self._scores(changes[chosen]))

    def _products(self, rows: npt.NDArray[np.int64], t: int) -> npt.NDArray[np.int32]:
        """Return the dot products of n words with all words at a time step: (n, V) int32."""
        step = Timestep(self._groups, t)
        products = np.empty((rows.size, len(self)), np.int32)
        at_once = self._groups.groups_at_once(t) * self._offsets.group
        first = int(rows[0]) // at_once * at_once
        starts, targets = list(range(0, len(self), at_once)), None
        if (rows // at_once * at_once == first).all():
            starts.insert(0, starts.pop(first // at_once))  # the block that contains the words
        else:
            targets = step.take(rows)
        for start in starts:
            block = step[start : start + at_once]
            targets = block[rows - first] if targets is None else targets
            for out, target in zip(products, targets, strict=True):
                out[start : start + len(block)] = dot_products(block, target)
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
            raise ValueError(f"n must be 0 to {len(self) - 1}, the number of other words, not {n}")

    def _numbers(self, words: Iterable[Word]) -> npt.NDArray[np.int64]:
        """Return the rows of words and rows: (n,) int64."""
        self._check_open()
        if isinstance(words, str | bytes):
            raise TypeError(f"words must be a list of words, not {type(words).__name__}")
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
            The keys of :meth:`EmbeddingFile.info`, and version, scale, group, and a chunk for each
            time step.
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
                **({"label": self._labels[t]} if self._labels else {}),
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
        """Return the offset and the size of each time step's data, in bytes."""
        offsets = self._offsets
        steps = np.arange(offsets.n_steps)[:, np.newaxis]
        groups = np.arange(offsets.n_groups if self.layout == "blocks" else 1)
        try:
            entries = entries_of(self._file, offsets, steps, groups)
        except FormatError:  # verify reports damaged entries
            return [(offset, 0) for offset in offsets.model_offsets]
        # Data end where the next data or model starts. A block starts with its state.
        starts = entries.positions - (2 if self.layout == "blocks" else 0)
        known = np.append(np.unique(starts), offsets.data_halfwords)
        if self.layout == "blocks":
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
            end = verify_groups(self._groups, t, report)
            if end is None:
                continue
            ends[t] = end
            if progress is not None:
                progress("decoding timesteps", t + 1, self.num_timesteps)
        if self.layout == "stream" and len(ends) == self.num_timesteps:
            self._verify_seams(ends, report)

    def _verify_seams(self, ends: dict[int, tuple[int, int]], report: Report) -> None:
        """Warn about time steps that do not end where another starts, the only sign of damage."""
        steps = np.arange(self.num_timesteps)[:, np.newaxis]
        entries = entries_of(self._file, self._offsets, steps, np.zeros(1, np.int64))
        begins = set(zip(entries.positions.tolist(), entries.states.tolist(), strict=True))
        n = self._offsets.data_halfwords
        begins |= {(n, LOWEST), (n - 1, LOWEST)}  # the end, with or without padding
        for t, end in ends.items():
            if end not in begins:
                offset = self._offsets.data_offset + 2 * end[0]
                report.warning(f"timestep {t} does not end where another starts", offset)


def _in_range(i: SupportsIndex, n: int, what: str) -> int:
    if isinstance(i, bool | np.bool_):
        raise IndexError(f"{what} must be an integer, not {i}")
    number = operator.index(i)
    if not -n <= number < n:
        raise out_of_range(what, number, n)
    return number % n
