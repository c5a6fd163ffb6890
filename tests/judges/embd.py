"""Small EMBD files, and what embmap must make of them however they are damaged.

The rule, for any bytes at all (`judge` holds embmap to it):

- Opening or reading raises an :class:`embmap.EmbmapError` or gives an answer; no other exception,
  and no more memory than a small file takes.
- Where the reference decoder reads the bytes, embmap opens them, every answer is the decoder's, and
  ``verify()`` finds an error exactly where the decoder found a problem.
- Where the decoder refuses them, embmap refuses to open them or, where the tokens are what is
  wrong, which opening does not walk, refuses to read these; then ``verify()`` finds an error.
"""

import functools
import json
import struct
import zlib

import numpy as np

import embmap
from tests.judges.damage import (
    NOT_OPENED,
    REFUSED,
    Damages,
    Verdict,
    attempt,
    compared,
    crash,
    loaded,
)
from tests.reference import embd as reference

WORDS = "embeddings.word_embeddings.weight"
TOKENS = ["[PAD]", "ab", "", "ü🙂"]
LOOKUPS = [*TOKENS, "b", "aba"]


def tensor(dtype, shape):
    raw = np.arange(1, 1 + np.prod(shape)).reshape(shape)
    return dtype, shape, raw.astype(reference.numpy_dtype(dtype))


def content(layout):
    """The content of a small file."""
    other = "float32" if layout == "flat" else "bfloat16"
    tensors = {
        WORDS: tensor("float32", (4, 2)),
        "b": tensor(other, (1, 2, 3)),
        "e": tensor("float32", (0, 2)),
    }
    made = reference.Decoded(layout, tensors, [token.encode() for token in TOKENS])
    if layout == "spec":
        made.metadata = {"model_name": "m", "ü": ""}
        made.special_tokens = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 1}
    return made


# A file with checksums hides what a damaged header does: the checksum refuses it. The one without
# shows it, and so does the one that gets new checksums after each damage.
SMALL = {
    "spec": reference.encode(content("spec")),
    "spec without checksums": reference.encode(content("spec"), align=1, checksums=False),
    "flat": reference.encode(content("flat"), "flat"),
}


def with_new_checksums(data):
    """The bytes of a spec file, its three checksums made to hold."""
    data = bytearray(data)
    struct.pack_into("<I", data, 56, zlib.crc32(data[:56]))
    (data_offset,) = struct.unpack_from("<I", data, 36)
    (data_size,) = struct.unpack_from("<Q", data, 40)
    footer = len(data) - reference.FOOTER
    struct.pack_into("<I", data, footer, zlib.crc32(data[data_offset:][:data_size]))
    struct.pack_into("<I", data, footer + 4, zlib.crc32(data[:footer]))
    return bytes(data)


def bits(array):
    """Shape and bits of an array."""
    return array if isinstance(array, str) else (array.shape, array.tobytes())


def answers(f):
    """Everything that can be asked of an open file, by part: values, or REFUSED."""
    found = {
        "layout": f.layout,
        "names": attempt(lambda: list(f.tensors)),
        "metadata": attempt(lambda: f.metadata),
        "special": attempt(lambda: f.special_tokens),
        "tokens": attempt(lambda: list(f.vocab or [])),
        "n tokens": attempt(lambda: len(f.vocab or [])),
    }
    for name in f.tensors:
        found["tensor", name] = bits(attempt(functools.partial(f.tensor, name)))
        found["float32", name] = attempt(lambda name=name: f.tensor(name, "float32").shape)
    if found["n tokens"] <= 100:
        for row in range(found["n tokens"]):
            found["token", row] = attempt(lambda row=row: f.vocab[row])
    rows = attempt(lambda: f.find(LOOKUPS).tolist())
    for i, word in enumerate(LOOKUPS):
        found["row", word] = rows if rows is REFUSED else rows[i]
        found["present", word] = attempt(functools.partial(f.__contains__, word))
        if f.vectors is not None:
            found["vector", word] = bits_or_none(attempt(functools.partial(f.get, word)))
    if f.vectors is not None:
        found["matrix"] = bits(attempt(lambda: np.asarray(f.vectors)))
    found["sound"] = attempt(lambda: f.verify().ok)
    json.dumps(f.info())
    repr(f)
    return found


def bits_or_none(array):
    return None if array is None else bits(array)


def text(token):
    """A token as it is read."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return REFUSED


def expected_answers(decoded):
    """The same from the reference decoder."""
    tokens = [text(token) for token in decoded.tokens]
    expected = {
        "layout": decoded.layout,
        "names": list(decoded.tensors),
        "metadata": decoded.metadata,
        "special": decoded.special_tokens,
        "tokens": REFUSED if REFUSED in tokens else tokens,
        "n tokens": len(tokens),
        "sound": not decoded.problems,
    }
    for name, (_, shape, raw) in decoded.tensors.items():
        expected["tensor", name] = (shape, raw.tobytes())
        expected["float32", name] = shape
    expected |= {("token", row): token for row, token in enumerate(tokens)}
    dtype, shape, raw = decoded.tensors.get(WORDS, (None, (), None))
    # Tokens without vectors are of some other tensor, or of none: only embmap decides.
    with_vectors = len(shape) == 2 and shape[0] >= len(tokens)
    if with_vectors:
        if dtype == "bfloat16":
            raw = (raw.astype("<u4") << 16).view("<f4")
        expected["matrix"] = bits(raw)
    for word in LOOKUPS:
        row = tokens.index(word) if word in tokens else -1
        expected["row", word] = row
        expected["present", word] = row >= 0
        if with_vectors:
            expected["vector", word] = bits(raw[row]) if row >= 0 else None
    return expected


def judge(path, backend, data):
    """Judge what embmap makes of the bytes in a file."""
    try:
        decoded = reference.decode(data)
    except reference.InvalidFile:
        decoded = None
    try:
        with np.errstate(all="ignore"):
            try:
                f = loaded(lambda: embmap.open(path, backend=backend))
            except embmap.EmbmapError as error:
                problem = "" if decoded is None else f"refused, though it is sound: {error}"
                return Verdict(NOT_OPENED, problem)
            with f:
                found = answers(f)
    except Exception as error:  # the point of all this
        return crash(error)
    return compared(found, None if decoded is None else expected_answers(decoded))


class Damaged(Damages):
    """An EMBD file that is damaged again and again."""

    def judge(self, what, data, backend="mmap"):
        """Judge bytes."""
        self.n += 1
        self.path.write_bytes(data)
        self.note(f"{what}, {backend}", judge(self.path, backend, data).problem)
