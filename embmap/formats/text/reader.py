"""Reading vectors from text: word2vec's with a line of sizes, GloVe's without, floret's tables.

A first pass finds the words and the offsets of the numbers of each line; a second one parses the
numbers of many lines at once. Lines that are not plain, with two spaces or a number too many, are
parsed one by one, so that a word may hold spaces and an error names line, column and offset.
"""

from __future__ import annotations

import re
import warnings
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, TruncatedError
from embmap.io.mapping import ByteSource, expand_ranges
from embmap.progress import Progress
from embmap.vectors.streamed import Streamed
from embmap.words.table import WordTable

__all__ = ["TextHead", "TextMatrix", "read_floret_head", "read_head", "read_lines"]

_WINDOW = 1 << 22
_LONGEST = 1 << 24  # bytes of a line
_SAMPLE_LINES = 1000
_SAMPLE_NBYTES = 1 << 20
_NUMBER = re.compile(
    rb"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf(inity)?)", re.IGNORECASE
)
_NEWLINE, _RETURN, _SPACE, _TAB = b"\n\r \t"


@dataclass(frozen=True)
class TextHead:
    """Where the lines of numbers start, how many numbers a line has, and how many lines there are.

    A text that does not state `n` has None.
    """

    offset: int
    dim: int
    n: int | None


def read_head(source: ByteSource, format: str | None = None) -> TextHead | None:
    """Return the head of a text; None if it is not a text of vectors and `format` is not given."""
    lines = _sample(source)
    sizes = re.fullmatch(rb"\s*(\d{1,18})\s+(\d{1,9})\s*", lines[0]) if lines else None
    if sizes is not None and format != "glove":
        n, dim = int(sizes[1]), int(sizes[2])
        offset = len(lines[0])
        following = next((line for line in lines[1:] if line.strip()), b"")
        if format is not None or (n == 0 and not following) or _is_line(following, dim):
            return TextHead(offset, dim, n)
        return None  # numbers follow in binary
    if format == "word2vec-text":
        raise FormatError(
            "the first line of a word2vec text must state the number of words and the dimension",
            path=source.path,
            format=format,
            offset=0,
            found=lines[0][:40] if lines else b"",
        )
    widths = Counter(len(line.split()) - 1 for line in lines if line.strip())
    # A word with spaces makes its line longer: of equally frequent widths, take the smallest.
    dim = min(widths, key=lambda width: (-widths[width], width), default=0)
    if dim >= 1 and any(_is_line(line, dim) for line in lines if len(line.split()) == dim + 1):
        return TextHead(0, dim, None)
    if format is not None:
        raise FormatError(
            "no line of a word and numbers was found", path=source.path, format=format, offset=0
        )
    return None


def read_floret_head(source: ByteSource) -> tuple[TextHead, tuple[int, ...], str, str] | None:
    """Return the head, the sizes and the two brackets that the first line of a floret table states.

    The sizes are shortest and longest n-gram, hashes and seed.
    """
    head = source.read_at_most(0, 4096).partition(b"\n")
    parts = head[0].split()
    if not head[1] or len(parts) != 8 or not _FLORET_SIZES.fullmatch(b" ".join(parts[:6])):
        return None
    n_buckets, dim, *sizes = (int(part) for part in parts[:6])
    try:
        bow, eow = parts[6].decode(), parts[7].decode()
    except UnicodeDecodeError:
        return None
    return TextHead(len(head[0]) + 1, dim, n_buckets), tuple(sizes), bow, eow


# Buckets, dimension, and four more. The dimension has at most as many digits as in read_head.
_FLORET_SIZES = re.compile(rb"\d{1,18} \d{1,9}(?: \d{1,18}){4}")


def _sample(source: ByteSource) -> list[bytes]:
    """Return the first lines, with their line ends."""
    data = source.read_at_most(0, _SAMPLE_NBYTES)
    lines: list[bytes] = []
    start = 0
    while start < len(data) and len(lines) < _SAMPLE_LINES:
        end = data.find(b"\n", start) + 1
        if not end:
            if len(data) < _SAMPLE_NBYTES or not lines:
                lines.append(data[start:])
            break
        lines.append(data[start:end])
        start = end
    return lines


def _is_line(line: bytes, dim: int) -> bool:
    """Return whether a line ends in `dim` numbers."""
    parts = line.split()[-dim:] if dim else []
    return 1 <= dim == len(parts) and all(_NUMBER.fullmatch(part) for part in parts)


@dataclass(kw_only=True)
class _Lines:
    """The words that the first pass finds, and the offsets of the numbers of each line."""

    words: bytearray = field(default_factory=bytearray)
    ends: array[int] = field(default_factory=lambda: array("q"))
    places: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    stops: array[int] = field(default_factory=lambda: array("q"))


def read_lines(
    source: ByteSource,
    head: TextHead,
    format: str,
    *,
    limit: int | None = None,
    dtype: npt.DTypeLike = np.float32,
    progress: Progress | None = None,
) -> tuple[WordTable, TextMatrix]:
    """Find the words of a text and the offsets of its numbers."""
    found = _Lines()
    most = head.n if limit is None else limit
    position = head.offset
    size = _WINDOW
    while limit is None or len(found.ends) < limit:
        window = source.read_at_most(position, size)
        if not window:
            break
        used = window.rfind(b"\n") + 1
        if len(window) < size:
            used = len(window)
        elif not used:  # a line longer than the window
            size *= 2
            if size > _LONGEST:
                raise FormatError(
                    f"a line of more than {_LONGEST} bytes; this is not a text of vectors",
                    path=source.path,
                    format=format,
                    offset=position,
                )
            continue
        _scan(source, window[:used], position, dim=head.dim, format=format, found=found)
        position += used
        if most is not None and len(found.ends) > most and limit is None:
            break  # there are more lines than the head states
        if progress is not None:
            progress("finding words", position, source.nbytes if source.ends else 0)
    n = len(found.ends) if limit is None else min(limit, len(found.ends))
    if head.n is not None and len(found.ends) != head.n and (limit is None or n < limit):
        kind = TruncatedError if n < head.n else FormatError
        raise kind(
            f"the first line states {head.n} words, the file has "
            f"{n if n < head.n else 'more'}; correct it, or convert fewer with a limit",
            path=source.path,
            format=format,
            offset=position if n < head.n else int(found.places[head.n]),
        )
    ends, places, starts, stops = (
        np.array(values[:n], np.int64)
        for values in (found.ends, found.places, found.starts, found.stops)
    )
    words = WordTable(found.words, ends, source, format, offsets=places)
    matrix = TextMatrix(source, starts, stops, dim=head.dim, dtype=np.dtype(dtype), format=format)
    return words, matrix


def _scan(
    source: ByteSource, window: bytes, base: int, *, dim: int, format: str, found: _Lines
) -> None:
    """Find the lines of a window that ends at the end of a line."""
    data = np.frombuffer(window, np.uint8)
    stops = np.flatnonzero(data == _NEWLINE)
    if not stops.size or stops[-1] != data.size - 1:
        stops = np.append(stops, data.size)
    starts = np.concatenate(([0], stops[:-1] + 1))
    for ending in (_RETURN, _SPACE):  # CR LF; many writers put a space after the last number
        stops = stops - ((stops > starts) & (data[np.maximum(stops - 1, 0)] == ending))
    spaces = data == _SPACE
    spaces |= data == _TAB
    separators = np.flatnonzero(spaces)
    firsts, lasts = np.searchsorted(separators, (starts, stops))
    plain = lasts - firsts >= dim
    # Two separators in a row, or one at the end of a line, have no number between them.
    twos = separators[1:][np.diff(separators) == 1]
    plain &= np.searchsorted(twos, starts) == np.searchsorted(twos, stops + 1)
    plain &= (stops > starts) & ~spaces[np.maximum(stops - 1, 0)]
    cuts = np.zeros(starts.size, np.int64)
    cuts[plain] = separators[lasts[plain] - dim]
    for start, stop, cut, is_plain in zip(
        starts.tolist(), stops.tolist(), cuts.tolist(), plain.tolist(), strict=True
    ):
        if is_plain:
            word, begin = window[start:cut], cut + 1
        else:
            line = window[start:stop].rstrip()
            if not line:
                continue
            parts = line.rsplit(None, dim)
            if len(parts) == dim and line[:1].isspace():
                parts.insert(0, b"")  # an empty word before the first separator
            if len(parts) <= dim:
                raise _too_short(source, base + start, len(parts) - 1, dim=dim, format=format)
            word = parts[0]
            begin = start + len(word)
            stop = start + len(line)
        found.words += word
        found.ends.append(len(found.words))
        found.places.append(base + start)
        found.starts.append(base + begin)
        found.stops.append(base + stop)


def _too_short(source: ByteSource, offset: int, n: int, *, dim: int, format: str) -> FormatError:
    return FormatError(
        f"a line must have a word and {dim} numbers; this one has {n} after the word",
        path=source.path,
        format=format,
        offset=offset,
        field=f"line {_line_number(source, offset)}",
    )


def _line_number(source: ByteSource, offset: int) -> int:
    """Return the number of the line at an offset, from 1; reads everything before it."""
    newlines = 0
    for start in range(0, offset, _WINDOW):
        newlines += source.read(start, min(_WINDOW, offset - start)).count(b"\n")
    return newlines + 1


class TextMatrix(Streamed):
    """Numbers in lines of text, parsed when a caller asks for them."""

    def __init__(
        self,
        source: ByteSource,
        starts: npt.NDArray[np.int64],
        stops: npt.NDArray[np.int64],
        *,
        dim: int,
        dtype: np.dtype[Any],
        format: str,
    ) -> None:
        self.shape = (starts.size, dim)
        self.dtype = dtype
        self._source = source
        self._starts = starts
        self._stops = stops
        self._format = format

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        starts, stops = self._starts[start:stop], self._stops[start:stop]
        shape = (starts.size, self.shape[1])
        if not starts.size:
            return np.empty(shape, self.dtype)
        base = int(starts[0])
        text = np.frombuffer(bytearray(self._source.read(base, int(stops[-1]) - base)), np.uint8)
        # Words and line ends between the numbers become spaces.
        text[expand_ranges(stops[:-1] - base, starts[1:] - stops[:-1])] = _SPACE
        try:
            with warnings.catch_warnings():
                # numpy only warns about text that it does not parse to the end.
                warnings.simplefilter("error", DeprecationWarning)
                numbers = np.fromstring(text.tobytes(), self.dtype, sep=" ")
        except (DeprecationWarning, ValueError):
            numbers = np.empty(0, self.dtype)
        if numbers.size != shape[0] * shape[1]:
            numbers = np.concatenate([self._line(i) for i in range(start, stop)])
        return numbers.reshape(shape)

    def _line(self, row: int) -> npt.NDArray[Any]:
        """Parse one line number by number, so that an error names the text that is not one."""
        begin, end = int(self._starts[row]), int(self._stops[row])
        line = self._source.read(begin, end - begin)
        numbers = []
        for token in re.finditer(rb"\S+", line):
            if _NUMBER.fullmatch(token[0]) is None:
                raise self._not_a_number(begin + token.start(), token[0])
            numbers.append(float(token[0]))
        if len(numbers) != self.shape[1]:
            raise _too_short(
                self._source, begin, len(numbers), dim=self.shape[1], format=self._format
            )
        with np.errstate(over="ignore"):
            return np.array(numbers).astype(self.dtype)

    def _not_a_number(self, offset: int, token: bytes) -> FormatError:
        before = self._source.read(max(offset - _LONGEST, 0), min(offset, _LONGEST))
        column = len(before) - (before.rfind(b"\n") + 1)
        return FormatError(
            f"column {column + 1}: {token[:40]!r} is not a number",
            path=self._source.path,
            format=self._format,
            offset=offset,
            field=f"line {_line_number(self._source, offset)}",
        )
