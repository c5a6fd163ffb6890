"""Small finalfusion files, and what embmap must make of them however they are damaged.

The rule, for any bytes at all (`judge` holds embmap to it):

- Opening or reading raises an :class:`embmap.EmbmapError` or gives an answer; no other exception.
- Where the reference decoder reads the bytes, every answer is the decoder's.
- Where the decoder refuses them, embmap may not have noticed yet: it opens files without reading
  them, so words, n-grams, codes and metadata are checked when they are read. A part then raises,
  or is what it was before the damage, or is absent because no chunk says any more that it is one,
  or is what is left when the decoder lets pass just that: bytes that are not UTF-8 (a word that
  holds them is never found) and n-grams that do not fit the rows.
- ``verify()`` finds an error where the decoder refuses the bytes, a word is repeated or a part is
  refused, and none elsewhere.
"""

import functools
import json
import math
import struct
import tomllib

import numpy as np
import pytest

import embmap
from tests.judges.damage import (
    NOT_OPENED,
    REFUSED,
    UNKNOWN,
    Damages,
    Verdict,
    attempt,
    crash,
    loaded,
    outcome_of,
)
from tests.reference import finalfusion as reference

WORDS = ["ab", "c", "ü🙂"]
LOOKUPS = [*WORDS, "b", "cab", ""]
METADATA = 'a = "ü"\nb = [1, 2]\n'


def content(kind="simple", storage="ndarray", norms=True, metadata=False, words=WORDS, **fields):
    """Make the content of a small file."""
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
MOST_LEVELS = 32  # of metadata
ANYTHING = "anything"  # float32 cannot hold it


def answers(f, lookups):
    """Everything that can be asked of an open file, by part: values, UNKNOWN or REFUSED."""
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
    for word in lookups[:3:2]:
        found["subwords", word] = attempt(lambda word=word: f.subword_rows(word).tolist())
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
    expected["values"] = values_of(decoded.metadata)
    for word in lookups[:3:2]:
        expected["subwords", word] = reference.subword_rows(decoded, word)
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


def values_of(metadata):
    """What metadata say; REFUSED where they are not TOML, or beyond the bounds of the format."""
    try:
        values = tomllib.loads(metadata or "")
    except (ValueError, RecursionError):
        return REFUSED
    level = [values]
    for _ in range(MOST_LEVELS):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]
        for item in level:
            if isinstance(item, float) and not math.isfinite(item):
                return REFUSED
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                return REFUSED
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return values
    return REFUSED


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


def decoded_or_none(data):
    """What the reference decoder reads, or None where it refuses the bytes."""
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
            pass
        # The words of an explicit vocabulary come before its n-grams and can be read without them.
        fields = reference._vocabulary_fields
        patch.setattr(reference, "_vocabulary_fields", functools.partial(only_words, fields))
        try:
            return reference.decode(data)
        except reference.InvalidFile:
            return None


def only_words(fields, data, at, kind, text_order):
    """Read a vocabulary; of a broken explicit one the words, as if there were no n-grams."""
    try:
        return fields(data, at, kind, text_order)
    except reference.InvalidFile:
        if kind != "explicit" or text_order:
            raise
    n_words, _, min_n, max_n = reference._unpack("<QQII", data, at)
    words, _ = reference._strings(data, at + 24, n_words)
    (stated,) = reference._unpack("<Q", data, at - 8)
    found = {"words": words, "min_n": min_n, "max_n": max_n, "bow": "<", "eow": ">"}
    return found | {"n_buckets": 0}, at + stated


def sound(decoded):
    """Whether nothing is wrong with a file that the reference decoder reads."""
    ngrams = [text for text, _ in decoded.ngrams]
    repeated = len(set(decoded.words or [])) < len(decoded.words or [])
    if values_of(decoded.metadata) is REFUSED:
        return False
    # The decoder compares these with the rows, and a file of only a vocabulary has no rows.
    if any(index >= len(ngrams) for _, index in decoded.ngrams):
        return False
    return not repeated and len(set(ngrams)) == len(ngrams)


def judge(path, backend, data, original, lookups=LOOKUPS):
    """Judge what embmap makes of the bytes in a file.

    `data` are the bytes in the file, `original` those before they were damaged in one place; None
    after several damages, which let parts be read that neither decoder has ever seen.
    """
    try:
        with np.errstate(all="ignore"):  # hostile floats overflow, that is their answer
            try:
                f = loaded(lambda: embmap.open(path, backend=backend))
            except embmap.EmbmapError:
                return Verdict(NOT_OPENED)
            with f:
                found = answers(f, lookups)
                is_sound = attempt(lambda: f.verify().ok)
                explicit = any(chunk.name == "explicit vocabulary" for chunk in f.chunks)
                chunks = [(chunk.id, chunk.name) for chunk in f.chunks]
    except Exception as error:  # the point of all this
        return crash(error)
    outcome = outcome_of(found)
    decoded = decoded_or_none(data)
    if decoded is not None:
        expected = expected_answers(decoded, lookups)
        wrong = [part for part in expected if not agrees(part, found[part], expected[part])]
        for part in wrong:
            if found[part] is not REFUSED and found[part] is not None:
                problem = f"{part} is {found[part]!r} and not {expected[part]!r}"
                return Verdict(outcome, problem)
        is_right = is_sound is (sound(decoded) and not wrong)
        return Verdict(outcome, "" if is_right else f"verify says {is_sound}, wrong are {wrong}")
    # The rows of subwords depend only on the head of the vocabulary, which may be sound.
    given = {
        part: answer
        for part, answer in found.items()
        if original is not None
        and answer is not REFUSED
        and answer is not None
        and (explicit or part[0] != "subwords")
        and not agrees(part, answer, answers_before(original, tuple(lookups))[part])
    }
    tolerant = tolerantly_decoded(data) if given else None
    expected = {} if tolerant is None else expected_answers(tolerant, lookups)
    for part, answer in given.items():
        if part not in expected or not agrees(part, answer, expected[part]):
            problem = f"{part} is {answer!r}, though the reference refuses the bytes"
            return Verdict(outcome, problem)
    # The decoder knows the draft's storage only after the draft's vocabularies; here any will do.
    vocabularies = [id for id, name in chunks if name.endswith("vocabulary")]
    hybrid = f.layout == "draft" and not {0, 3}.issuperset(vocabularies)
    wrong = is_sound is True and not hybrid
    problem = "verify finds nothing wrong, but the reference does" if wrong else ""
    return Verdict(outcome, problem)


@functools.cache
def answers_before(original, lookups):
    return expected_answers(reference.decode(original), lookups)


# Offset behind the head of a chunk and size of each count, in every dialect.
_SUBWORDS = [(0, 8), (8, 4), (12, 4), (16, 4), (0, 4), (4, 4), (12, 8), (20, 4)]
_QUANTIZED = [(0, 4), (4, 4), (8, 4), (12, 4), (16, 4), (20, 8), (28, 4), (32, 4)]
COUNTS = {
    0: [(0, 8), (8, 4)],
    1: [(0, 8), (8, 4), (12, 4), *_QUANTIZED],
    2: [(0, 8), (8, 4), (12, 4)],
    3: _SUBWORDS,
    4: _QUANTIZED,
    5: [],
    6: [(0, 8), (8, 4)],
    7: _SUBWORDS,
    8: [(0, 8), (8, 8), (16, 4), (20, 4), (0, 4), (4, 4), (8, 4), (24, 4)],
    9: [(0, 4), (4, 4), (8, 8), (16, 4), (20, 4), (24, 4), (29, 4)],
}


def chunks_of(data):
    """Identifier and offset of every chunk, by the lengths they state."""
    offset = 12 + 4 * struct.unpack_from("<I", data, 8)[0] if data[:4] == b"FiFu" else 0
    while offset + 12 <= len(data):
        id, nbytes = struct.unpack_from("<IQ", data, offset)
        yield id, offset
        offset += 12 + nbytes


def count_fields(data):
    """Offset and size of every count, size and identifier of a file."""
    fields = [(0, 4), (4, 4), (8, 4)]
    for id, offset in chunks_of(data):
        counts = [(offset + 12 + at, nbytes) for at, nbytes in COUNTS.get(id, [])]
        fields += [(offset, 4), (offset + 4, 8), *counts]
    return [(at, nbytes) for at, nbytes in fields if at + nbytes <= len(data)]


def with_field(data, offset, nbytes, value):
    return data[:offset] + value.to_bytes(nbytes, "little") + data[offset + nbytes :]


class Damaged(Damages):
    """A finalfusion file that is damaged again and again."""

    def __init__(self, path, original):
        super().__init__(path)
        self.original = original
        path.write_bytes(original)

    def judge(self, what, data, backend="mmap", lookups=LOOKUPS):
        """Judge the file, which holds these bytes."""
        self.n += 1
        verdict = judge(self.path, backend, data, self.original, lookups)
        self.note(f"{what}, {backend}", verdict.problem)

    def replaced(self, what, data, backend="mmap", lookups=LOOKUPS):
        """Judge other bytes in place of the whole."""
        self.path.write_bytes(data)
        self.judge(what, data, backend, lookups)
