"""Small CVC files, and what embmap must make of them however they are damaged.

The rule, for any bytes at all (`judge` holds embmap to it):

- Opening or reading raises an :class:`embmap.EmbmapError` or gives an answer; no other exception,
  no warning, and no more memory than a small file takes.
- Where the reference decoder reads the bytes, embmap opens them, every answer is the decoder's, and
  ``verify()`` finds an error exactly where the decoder found a problem. A whole chunk whose
  checksum does not hold is refused, its single rows are not. A row whose codes no dictionary has
  is refused, and so may the file be that it is in.
- Where the decoder refuses them, embmap refuses to open them or, where the inside of a lossless
  payload or one of several columns is what is wrong, refuses to read that; then ``verify()`` finds
  an error.
"""

import json
import struct
import tracemalloc
import zlib

import numpy as np

import embmap
from tests.judges.damage import (
    NOT_OPENED,
    READ,
    REFUSED,
    Damages,
    Verdict,
    attempt,
    bits,
    compared,
    crash,
    loaded,
)
from tests.reference import cvc as reference

PAGE = 4096
SECTIONS = [
    {"start_index": 0, "end_index": 2, "num_vectors": 2, "metadata": {"s": "a"}},
    {"start_index": 2, "end_index": 3, "num_vectors": 1, "metadata": {"s": "b"}},
]
ROWS = np.array([[1, 2], [-3, 0.5], [np.pi, -1e-6]], np.float32)
COLUMNS = {"t": ("float32", "int8", 2), "h": ("float16", "none", 1), "ü": ("int64", "none", 1)}
SMALL = {
    "0.1 mixed": reference.matrix(
        "0.1", [("fp16", ROWS), ("int8", ROWS[:2]), ("fp16", ROWS[:0])], sections=SECTIONS, x=1
    ),
    "1.0 lossless": reference.matrix(
        "1.0", [("lossless", ROWS), ("lossless", ROWS[:1])], default="lossless", x=1
    ),
    "1.0 on pages": reference.matrix(
        "1.0", [("fp16", ROWS), ("lossless", ROWS[1:])], mmap_optimized=True
    ),
    "2.0": reference.columnar(
        COLUMNS,
        [
            {"t": ROWS, "h": [1, np.nan, -0.0], "ü": [-1, 2**62, 0]},
            {"ü": [7], "t": ROWS[:1], "h": [np.inf]},
        ],
        sections=SECTIONS,
    ),
}


def header_of(data):
    """Where the text of a header starts, and the text."""
    at = 12 if struct.unpack_from("<I", data, 4)[0] in (1, 2) else 8
    return at, data[at : at + struct.unpack_from("<I", data, at - 4)[0]]


def with_header(name, header):
    """A small file with another header, its length mended; pages stay where they are."""
    data = SMALL[name]
    at, old = header_of(data)
    text = header if isinstance(header, bytes) else reference.json_of(header)
    out = data[: at - 4] + struct.pack("<I", len(text)) + text
    if name == "1.0 on pages":
        return out + bytes(max(PAGE - len(out), 0)) + data[PAGE:]
    return out + data[at + len(old) :]


def answers(f):
    """Everything that can be asked of an open file, by part: values, or REFUSED."""
    found = {
        "version": f.layout,
        "n": len(f),
        "columns": [(name, matrix.shape, matrix.dtype.str) for name, matrix in f.columns.items()],
        "sections": repr([(part.start, part.stop, part.metadata) for part in f.sections]),
        "section": attempt(lambda: f.section(s="a").tolist()),
        "metadata": repr(f.metadata),
        "chunks": [(chunk.rows, repr(chunk.metadata)) for chunk in f.chunks],
    }
    for name in f.columns.unreadable:
        found["column", name] = attempt(lambda name=name: f.columns[name])
    for name, matrix in f.columns.items():
        found["matrix", name] = attempt(lambda m=matrix: bits(np.asarray(m)))
        backwards = np.arange(len(matrix))[::-1] if len(matrix) < 100 else []
        found["gather", name] = attempt(lambda m=matrix, rows=backwards: bits(m.take(rows)))
        for row in backwards:
            found["row", name, row] = attempt(lambda m=matrix, row=row: bits(m[row]))
        for i, chunk in enumerate(f.chunks[:100]):
            found["chunk", i, name] = attempt(
                lambda chunk=chunk, name=name: bits(chunk.decode(column=name))
            )
    for i, chunk in enumerate(f.chunks[:100]):
        found["raw", i] = attempt(lambda chunk=chunk: chunk.raw.tobytes())
    found["sound"] = attempt(lambda: f.verify().ok)
    json.dumps(f.info())
    repr(f)
    return found


def expected_answers(decoded):
    """The same from the reference decoder."""
    expected = {
        "version": decoded.version,
        "n": decoded.n,
        "sections": repr(decoded.sections),
        "section": decoded.section(s="a"),
        "metadata": repr(decoded.metadata),
        "chunks": [(chunk.rows, repr(chunk.metadata)) for chunk in decoded.chunks],
        "sound": not decoded.problems,
        "columns": [
            (name, column.rows.shape, column.rows.dtype.str)
            for name, column in decoded.columns.items()
        ],
    }
    intact = all(chunk.intact for chunk in decoded.chunks if chunk.rows)
    for name, column in decoded.columns.items():
        whole = intact and not column.unreadable
        expected["matrix", name] = bits(column.rows) if whole else REFUSED
        if decoded.n < 100:
            backwards = bits(column.rows[::-1])
            expected["gather", name] = REFUSED if column.unreadable else backwards
            for row in range(decoded.n):
                readable = row not in column.unreadable
                expected["row", name, row] = bits(column.rows[row]) if readable else REFUSED
        for i, chunk in enumerate(decoded.chunks[:100]):
            rows = range(chunk.start, chunk.start + chunk.rows)
            whole = chunk.intact and column.unreadable.isdisjoint(rows)
            part = bits(column.rows[chunk.start : chunk.start + chunk.rows])
            expected["chunk", i, name] = part if whole else REFUSED
    for i, chunk in enumerate(decoded.chunks[:100]):
        expected["raw", i] = chunk.payload
    return expected


def decode(data):
    """What the reference decoder says; None where it refuses."""
    try:
        return reference.decode(data)
    except reference.InvalidFile:
        return None


def judge(path, backend, data, decoded):
    """Judge what embmap makes of the bytes in a file."""
    try:
        try:
            f = loaded(lambda: embmap.open(path, backend=backend))
        except embmap.EmbmapError as error:
            if decoded is None or any(column.unreadable for column in decoded.columns.values()):
                return Verdict(NOT_OPENED)
            return Verdict(NOT_OPENED, f"refused, though it is sound: {error}")
        with f:
            # No payload holds more than two numbers a byte, and more would fill the memory here.
            shapes = [(len(f), 1), *(matrix.shape for matrix in f.columns.values())]
            if any(rows * columns > 2 * len(data) for rows, columns in shapes):
                return Verdict(READ, f"opened with shapes {shapes}, of {len(data)} bytes")
            found = answers(f)
    except Exception as error:  # the point of all this
        return crash(error)
    return compared(found, None if decoded is None else expected_answers(decoded))


def with_new_checksums(data, records):
    """The bytes of a file, the checksums of its chunks made to hold."""
    data = bytearray(data)
    for start, nbytes in records:
        struct.pack_into("<I", data, start + 4, zlib.crc32(data[start + 8 :][:nbytes]))
    return bytes(data)


class Damaged(Damages):
    """A CVC file that is damaged again and again."""

    n_read = 0  # damages that the reference decoder reads

    def judge(self, what, data, *backends, memory=None):
        """Judge bytes, and where a limit is given the memory it takes."""
        decoded = decode(data)
        self.n += 1
        self.n_read += decoded is not None
        self.path.write_bytes(data)
        for backend in backends or ("mmap", "read"):
            if memory is not None:
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
            verdict = judge(self.path, backend, data, decoded)
            if memory is not None:
                used = tracemalloc.get_traced_memory()[1] - before
                if used > memory:
                    self.note(f"{what}, {backend}", f"{used} bytes of memory")
            self.note(f"{what}, {backend}", verdict.problem)
