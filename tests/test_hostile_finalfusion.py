"""Bad finalfusion files and indexes: a clear error or the right answer, and nothing else.

The rule, for any bytes at all (`judge` holds embmap to it):

- Opening or reading raises an :class:`embmap.EmbmapError` or gives an answer; no other exception.
- Where the reference decoder reads the bytes and embmap opens them, every answer is the decoder's.
- Where the decoder refuses them, embmap may not have noticed yet: it opens files without reading
  them, so words, n-grams, codes and metadata are checked when they are read. A part then raises, or
  is what it was before the damage, or is absent because no chunk says any more that it is one, or is
  what is left when the decoder lets pass just that: bytes that are not UTF-8 (a word that holds them
  is never found) and n-grams that do not fit the rows.
- ``verify()`` never raises; it finds an error where the decoder refuses the bytes or a word is
  repeated, and none elsewhere.
"""

import functools
import json
import math
import os
import struct
import tomllib

import numpy as np
import pytest

import embmap
from tests.reference import finalfusion as reference

# ------------------------------------------------------------------------------------ small files

WORDS = ["ab", "c", "ü🙂"]
LOOKUPS = [*WORDS, "b", "ü", "cab", "", "zzzz"]
METADATA = 'a = "ü"\nb = [1, 2]\n'


def content(kind="simple", storage="ndarray", norms=True, metadata=False, words=WORDS, **fields):
    """Make what a small file says."""
    made = reference.Decoded(vocab_kind=kind)
    n_words = len(words)
    if kind is not None:
        made.words = [] if kind == "floret" else list(words)
        n_words = len(made.words)
    if kind in ("bucket", "fasttext", "explicit", "floret"):
        made.min_n, made.max_n, made.bow, made.eow = 1, 3, "<", ">"
    if kind == "bucket":
        made.exponent, made.n_buckets = 2, 4
    elif kind == "fasttext":
        made.n_buckets = 3
    elif kind == "explicit":
        made.ngrams, made.n_buckets = [("<", 1), ("ab", 0), ("ü", 1), ("b>", 2)], 3
    elif kind == "floret":
        made.n_buckets, made.n_hashes, made.seed = 4, 2, 7
    for name, value in fields.items():
        setattr(made, name, value)
    rows = n_words + (made.n_buckets or 0)
    rng = np.random.default_rng(3)
    if storage == "ndarray":
        made.storage_kind = "ndarray"
        made.matrix = rng.normal(size=(rows, 2)).astype("<f4")
    elif storage is not None:
        made.storage_kind = "quantized"
        made.codes = rng.integers(0, 3, (rows, 2), dtype=np.uint8)
        made.codebooks = rng.normal(size=(2, 3, 1)).astype("<f4")
        if "projection" in storage:
            made.projection = rng.normal(size=(2, 2)).astype("<f4")
        if "norms" in storage:
            made.pq_norms = rng.uniform(0.5, 2, rows).astype("<f4")
    if norms:
        made.norms = rng.uniform(1, 3, n_words).astype("<f4")
    if metadata:
        made.metadata = METADATA
    return made


def small_files():
    encode = reference.encode
    by_position = [("<", 0), ("ab", 1), ("ü", 2)]
    wide = content("bucket", norms=False)
    wide.matrix = wide.matrix.astype("<f8")
    odd = ["", "\0", "a\0", "x" * 260, "a"]
    part = {"norms": False, "metadata": False}
    files = {
        "simple": encode(content(metadata=True)),
        "unlisted norms": encode(content(), list_norms=False),
        "odd words": encode(content(words=odd)),
        "no words": encode(content(words=[])),
        "bucket": encode(content("bucket", metadata=True)),
        "bucket f64": encode(wide),
        "fasttext": encode(content("fasttext")),
        "explicit": encode(content("explicit")),
        "explicit, wrong length": encode(content("explicit"), explicit_len_bug=True),
        "floret": encode(content("floret", norms=False)),
        "pq": encode(content(storage="pq", norms=False)),
        "pq projection": encode(content(storage="pq projection", norms=False)),
        "pq norms": encode(content("bucket", "pq norms", norms=False)),
        "pq both": encode(content("explicit", "pq projection norms")),
        "v0 bucket": encode(content("bucket"), "v0"),
        "v0 fasttext": encode(content("fasttext"), "v0"),
        "v0 explicit": encode(content("explicit", ngrams=by_position), "v0"),
        "draft": encode(content(metadata=True), "draft"),
        "draft bucket": encode(content("bucket"), "draft"),
        "draft pq": encode(content(storage="pq norms"), "draft"),
        "unknown chunk": encode(content(norms=False)) + struct.pack("<IQ", 77, 3) + b"???",
        "only metadata": encode(content(None, None, norms=False, metadata=True)),
    }
    for kind in ("simple", "bucket", "explicit", "floret"):
        files[f"bare {kind}"] = encode(content(kind, None, **part), bare=True)
    for storage in ("ndarray", "pq projection norms"):
        files[f"bare {storage}"] = encode(content(None, storage, **part), bare=True)
    files["bare norms"] = encode(content(None, None), bare=True)
    return files


SMALL = small_files()
each_small_file = pytest.mark.parametrize("name", SMALL)


# --------------------------------------------------------------------------------- what they answer

REFUSED = "refused"  # any EmbmapError
UNKNOWN = "unknown"  # UnknownWordError
ANYTHING = "anything"  # float32 cannot hold it


def attempt(read):
    """Read, or say how it was refused; any other exception is a failure of the test."""
    try:
        return read()
    except embmap.UnknownWordError:
        return UNKNOWN
    except embmap.EmbmapError:
        return REFUSED


def answers(f, lookups):
    """Everything an open file says: values, UNKNOWN or REFUSED by part."""
    found = {
        "words": attempt(lambda: None if f.vocab is None else list(f.vocab)),
        "matrix": attempt(lambda: None if f.vectors is None else np.asarray(f.vectors)),
        "norms": attempt(lambda: f.norms),
        "metadata": attempt(lambda: f.metadata_toml),
        "values": attempt(lambda: f.metadata),
    }
    rows = attempt(lambda: f.find(lookups).tolist())
    for i, word in enumerate(lookups):
        found["row", word] = rows if rows is REFUSED else rows[i]
        found["present", word] = attempt(functools.partial(f.__contains__, word))
        found["vector", word] = attempt(functools.partial(f.__getitem__, word))
    attempt(lambda: json.dumps(f.info()))
    repr(f)
    return found


def expected_answers(decoded, lookups):
    """The same from the reference decoder."""
    words, matrix = decoded.words, decoded.matrix
    expected = {
        "words": words,
        "matrix": matrix,
        "norms": decoded.norms,
        "metadata": decoded.metadata,
    }
    try:
        expected["values"] = tomllib.loads(decoded.metadata or "")
    except tomllib.TOMLDecodeError:
        expected["values"] = REFUSED
    for word in lookups:
        row = words.index(word) if words and word in words else -1
        expected["row", word] = row
        expected["present", word] = row >= 0
        if row >= 0 and matrix is not None:
            expected["vector", word] = matrix[row]
        else:
            expected["vector", word] = UNKNOWN if row < 0 else REFUSED
            if row < 0 and words is not None:
                expected["vector", word] = composed(decoded, word)
    return expected


def composed(decoded, word):
    rows = reference.subword_rows(decoded, word)
    if decoded.matrix is None and decoded.vocab_kind != "simple":
        return REFUSED
    if not rows:
        return UNKNOWN
    if max(rows) >= len(decoded.matrix):
        return REFUSED
    with np.errstate(all="ignore"):
        total = decoded.matrix[rows].astype(np.float64).sum(axis=0)
        length = math.sqrt(float(total @ total))
    if length and not 1e-15 < length < 1e15:
        return ANYTHING
    return total / length if length else total


def agrees(part, found, expected):
    """Whether an answer is the one expected."""
    if isinstance(expected, str) and expected is ANYTHING:
        return not isinstance(found, str)
    if not (isinstance(found, np.ndarray) and isinstance(expected, np.ndarray)):
        return type(found) is type(expected) and found == expected
    if found.shape != expected.shape:
        return False
    if found.dtype == expected.dtype and found.tobytes() == expected.tobytes():
        return True
    # Decoded or composed: the same but for rounding, where float32 can hold it.
    if part == "norms" or found.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):
        close = np.isclose(found, expected, rtol=1e-4, atol=1e-5)
        return bool(np.all(close | ~(np.abs(expected) < 1e15)))


@functools.cache
def decoded_or_none(data):
    try:
        return reference.decode(data)
    except reference.InvalidFile:
        return None


def tolerantly_decoded(data):
    """What the reference decoder makes of bytes if it lets pass what embmap checks when reading."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "_text", lambda raw: raw.decode("utf-8", "surrogateescape"))
        patch.setattr(reference, "_check_counts", lambda decoded: None)
        try:
            return reference.decode(data)
        except reference.InvalidFile:
            return None


def sound(decoded):
    """Whether nothing is wrong with a file that the reference decoder reads."""
    ngrams = [text for text, _ in decoded.ngrams]
    repeated = len(set(decoded.words or [])) < len(decoded.words or [])
    try:
        tomllib.loads(decoded.metadata or "")
    except tomllib.TOMLDecodeError:
        return False
    return not repeated and len(set(ngrams)) == len(ngrams)


def judge(path, backend, data, original, lookups=LOOKUPS):
    """Return what is wrong with what embmap makes of the bytes in a file; "" when nothing is.

    `data` are the bytes in the file, `original` those before they were damaged.
    """
    try:
        with np.errstate(all="ignore"):  # hostile floats overflow, that is their answer
            try:
                f = embmap.open(path, backend=backend)
            except embmap.EmbmapError:
                return ""
            with f:
                found = answers(f, lookups)
                report = f.verify()
    except Exception as error:  # the point of all this
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} from {place.filename}:{place.lineno}: {error}"
    decoded = decoded_or_none(data)
    if decoded is not None:
        expected = expected_answers(decoded, lookups)
        wrong = [part for part in expected if not agrees(part, found[part], expected[part])]
        if wrong:
            return f"{wrong[0]} is {found[wrong[0]]!r} and not {expected[wrong[0]]!r}"
        if report.ok != sound(decoded):
            return f"verify: {report.problems}"
        return ""
    candidates = [decoded_or_none(original), tolerantly_decoded(data)]
    candidates = [expected_answers(each, lookups) for each in candidates if each is not None]
    for part, answer in found.items():
        if answer is REFUSED or answer is None:
            continue
        if not any(agrees(part, answer, each[part]) for each in candidates):
            return f"{part} is {answer!r}, though the reference refuses the bytes"
    return "verify finds nothing wrong, but the reference does" if report.ok else ""


class Damaged:
    """A file that is damaged again and again, and all that went wrong with it."""

    def __init__(self, path, original):
        self.path = path
        self.original = original
        self.wrong = []
        self.n = 0
        path.write_bytes(original)

    def judge(self, what, data, backend="mmap", lookups=LOOKUPS):
        self.n += 1
        problem = judge(self.path, backend, data, self.original, lookups)
        if problem:
            self.wrong.append(f"{what}, {backend}: {problem}"[:300])

    def replaced(self, what, data, backend="mmap", lookups=LOOKUPS):
        """Judge other bytes in place of the whole."""
        self.path.write_bytes(data)
        self.judge(what, data, backend, lookups)

    def check(self):
        assert self.n
        shown = "\n".join(self.wrong[:12])
        assert not self.wrong, f"{len(self.wrong)} of {self.n} damages:\n{shown}"


@each_small_file
def test_undamaged_small_files_are_read(tmp_path, backend, name):
    damaged = Damaged(tmp_path / "file.fifu", SMALL[name])
    assert decoded_or_none(SMALL[name]) is not None
    damaged.judge("nothing", SMALL[name], backend)
    damaged.check()


# ------------------------------------------------------------------------------- damage everywhere


@each_small_file
def test_every_truncation_is_noticed(tmp_path, backend, name):
    data = SMALL[name]
    damaged = Damaged(tmp_path / "file.fifu", data)
    for nbytes in reversed(range(len(data))):
        os.truncate(damaged.path, nbytes)
        damaged.judge(f"cut to {nbytes}", data[:nbytes], backend)
    damaged.check()


@each_small_file
def test_every_flipped_byte_is_refused_or_read_as_the_reference_reads_it(tmp_path, name):
    data = SMALL[name]
    damaged = Damaged(tmp_path / "file.fifu", data)
    with open(damaged.path, "r+b", buffering=0) as handle:
        for position in range(len(data)):
            for pattern in (0x01, 0x80, 0xFF):
                flipped = bytearray(data)
                flipped[position] ^= pattern
                handle.seek(position)
                handle.write(flipped[position : position + 1])
                damaged.judge(f"byte {position} ^ {pattern:#x}", bytes(flipped))
            handle.seek(position)
            handle.write(data[position : position + 1])
    damaged.check()
