"""Runs of strings in a file, and where each string starts.

:class:`Records` describes where a run is, and :func:`scan` finds the start of every string in it.
With length prefixes, the scan is vectorised. In an ordinary vocabulary only the upper bytes of the
prefixes are zero, so zeros show where records start. The scan verifies this guess: each record must
start where the previous one ends. Where the guess fails (a long word, a NUL, an empty word), the
scan steps over records one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, TruncatedError
from embmap.io.mapping import ByteSource

__all__ = ["Records", "scan"]

_WINDOW = 1 << 20
_SMALL_WINDOW = 1 << 12
_STEPS = 64
_LONGEST = 1 << 16  # bytes of a string; a search for its end that goes further is among numbers


@dataclass(frozen=True)
class Records:
    """Where a run of strings is in a file.

    Attributes
    ----------
    offset : int
        Where the first record starts, in bytes.
    limit : int
        Offset that no record may pass, in bytes.
    n : int
        How many records there are.
    format : str
        Name of the format, for errors.
    noun : str
        What errors call a string: "word", "n-gram", "token".
    prefix : int
        Size of the little-endian length before each string, in bytes: 2 or 4; 0 for lines of text.
    suffix : int
        Number of bytes after each string that belong to its record.
    exact : bool
        Whether the last record must end at `limit`.
    end : bytes
        The byte after each string, the first of its `suffix`, where a string ends only there: data
        of a fixed size follow. Otherwise empty.
    newlines : int or None
        How many newlines end each of these records: 0 or 1. The last record may lack it, and no
        string starts with one. None if newlines are bytes like others.
    """

    offset: int
    limit: int
    n: int
    format: str
    noun: str = "word"
    prefix: int = 4
    suffix: int = 0
    exact: bool = True
    end: bytes = b""
    newlines: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes from the first record to the limit."""
        return self.limit - self.offset

    def where(self, file: ByteSource, offset: int, record: int) -> dict[str, Any]:
        """Return the keywords of a FormatError about a record."""
        return {
            "path": file.path,
            "format": self.format,
            "offset": offset,
            "field": f"{self.noun} {record}",
        }


def scan(file: ByteSource, records: Records) -> npt.NDArray[Any]:
    """Return where each record starts, and where the last one ends: (n + 1,) uint32 or uint64.

    Offsets count from the first record. FormatError or TruncatedError is raised at damaged records.
    """
    file.check_whole()
    if records.n * (records.prefix + records.suffix) > records.nbytes:
        raise TruncatedError(
            f"{records.n} {records.noun}s cannot fit into {records.nbytes} bytes",
            **records.where(file, records.offset, 0),
        )
    file.check_range(records.offset, records.nbytes)
    dtype = np.uint32 if records.nbytes < 2**32 else np.uint64
    starts = np.empty(records.n + 1, dtype)
    if records.end:
        end = _scan_ended(file, records, starts)
    elif records.prefix:
        end = _scan_prefixed(file, records, starts)
    else:
        end = _scan_lines(file, records, starts)
    starts[records.n] = end
    if records.exact and records.offset + end != records.limit:
        raise FormatError(
            f"{records.n} {records.noun}s end here, but {records.nbytes - end} bytes follow",
            **records.where(file, records.offset + end, records.n),
        )
    return starts


def _scan_prefixed(file: ByteSource, records: Records, starts: npt.NDArray[Any]) -> int:
    """Fill `starts` and return where the last record ends, all counted from the first record."""
    found = position = 0
    size = _WINDOW
    while found < records.n:
        nbytes = min(size, records.nbytes - position)
        window = file.array(records.offset + position, np.uint8, nbytes)
        if records.suffix == 0:
            chain, step = _chain(window, records.prefix, records.n - found)
            starts[found : found + chain.size] = chain + position
            found += chain.size
            position += step
            if position > records.nbytes:
                raise _passes_limit(file, records, int(starts[found - 1]), found - 1)
            if step > size // 2 or found == records.n:
                size = min(2 * size, _WINDOW)
                continue
            # The chain broke. Windows stay small until it holds again. A vocabulary that breaks it
            # everywhere then costs no more than stepping does.
            size = _SMALL_WINDOW
            window = window[step:]
        found, position = _step(file, records, window, starts, found, position)
    return position


def _chain(window: npt.NDArray[np.uint8], prefix: int, n: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the verified chain of records at the start of a window.

    The chain has at most `n` records. The second value is where the next record starts; that
    may be outside the window.
    """
    zeros = np.flatnonzero(window == 0)
    zeros_per_record = prefix - 1
    zeros = zeros[: zeros.size - zeros.size % zeros_per_record].reshape(-1, zeros_per_record)[:n]
    starts = zeros[:, 0] - 1
    # A record that leaves the window is kept, because its length is in the window.
    follows = np.ones(starts.size, bool)
    for i in range(1, zeros_per_record):
        follows &= zeros[:, i] == starts + 1 + i
    ends = starts + prefix + window[starts]
    follows[:1] &= starts[:1] == 0
    follows[1:] &= starts[1:] == ends[:-1]
    length = starts.size if follows.all() else int(follows.argmin())
    return starts[:length], int(ends[length - 1]) if length else 0


def _step(
    file: ByteSource,
    records: Records,
    window: npt.NDArray[np.uint8],
    starts: npt.NDArray[Any],
    found: int,
    position: int,
) -> tuple[int, int]:
    """Step over records one by one; return how many have been found, and the next start."""
    # Without a suffix the vectorised chain is tried again after a few steps.
    last = records.n if records.suffix else min(records.n, found + _STEPS)
    data = window.tobytes() if records.suffix else window[: _STEPS * 512].tobytes()
    prefix, around = records.prefix, records.prefix + records.suffix
    base = position
    while found < last:
        head = data[position - base : position - base + prefix]
        if len(head) < prefix:
            if position + prefix > records.nbytes:
                raise _passes_limit(file, records, position, found)
            break  # the window ends
        end = position + around + int.from_bytes(head, "little")
        if end > records.nbytes:
            raise _passes_limit(file, records, position, found)
        starts[found] = position
        found += 1
        position = end
    return found, position


def _passes_limit(file: ByteSource, records: Records, start: int, record: int) -> TruncatedError:
    return TruncatedError(
        f"this {records.noun} would end after byte {records.limit}, the end of its section",
        **records.where(file, records.offset + start, record),
    )


def _check_crlf(
    file: ByteSource, records: Records, after: npt.NDArray[np.int64], found: int
) -> None:
    """Raise FormatError if a line of a text with CR LF line ends has no CR."""
    before = file.gather(records.offset + np.maximum(after - 2, 0), np.ones_like(after))
    wrong = np.flatnonzero(before != ord("\r"))
    if wrong.size:
        raise FormatError(
            "this line ends in LF, but the lines before it in CR LF; use one of them for all lines",
            **records.where(file, records.offset + int(after[wrong[0]]) - 1, found + int(wrong[0])),
        )


def _scan_lines(file: ByteSource, records: Records, starts: npt.NDArray[Any]) -> int:
    """Fill `starts` with the starts of lines; return where the last line and its newline end."""
    found = position = 0
    if records.n:
        starts[0] = 0
    n_newlines = 0
    while position < records.nbytes:
        nbytes = min(_WINDOW, records.nbytes - position)
        window = file.array(records.offset + position, np.uint8, nbytes)
        after = np.flatnonzero(window == ord("\n")) + (position + 1)
        if records.suffix == 2:
            _check_crlf(file, records, after, found)
        n_newlines += after.size
        kept = after[: max(records.n - 1 - found, 0)]
        starts[found + 1 : found + 1 + kept.size] = kept
        found += kept.size
        position += nbytes
    unfinished = records.nbytes > 0 and file.read(records.limit - 1, 1) != b"\n"
    n_lines = n_newlines + int(unfinished)
    if n_lines != records.n:
        raise FormatError(
            f"the text has {n_lines} lines, but {records.n} {records.noun}s are needed",
            **records.where(file, records.offset, min(n_lines, records.n)),
        )
    return records.nbytes + (records.suffix if unfinished else 0)


def _scan_ended(file: ByteSource, records: Records, starts: npt.NDArray[Any]) -> int:
    """Fill `starts` with the starts of strings that end at a certain byte, before data."""
    window, base, position = b"", 0, 0
    end, suffix, newlines = records.end, records.suffix, records.newlines or 0
    for number in range(records.n):
        found = window.find(end, position - base)
        if found < 0 or found - (position - base) > _LONGEST:
            base = max(position - newlines, 0)
            window = file.read(records.offset + base, min(_WINDOW, records.nbytes - base))
            found = window.find(end, position - base, position - base + _LONGEST + 1)
            if found < 0 and records.nbytes - position > _LONGEST:
                raise FormatError(
                    f"no {records.noun} of at most {_LONGEST} bytes was found",
                    **records.where(file, records.offset + position, number),
                )
        following = base + found + suffix
        lacking = following - records.nbytes
        if found < 0 or lacking > (newlines if number == records.n - 1 else 0):
            raise TruncatedError(
                f"the data end within this record, one of {records.n}",
                **records.where(file, records.offset + position, number),
            )
        if records.newlines is not None:
            first = position - base
            before = number > 0 and window[first - newlines : first] != b"\n" * newlines
            if before or window.startswith(b"\n", first):
                raise FormatError(
                    f"{newlines} newlines must come before this {records.noun}, as many as after "
                    "the first record",
                    **records.where(file, records.offset + position, number),
                )
        starts[number] = position
        position = following
    return position
