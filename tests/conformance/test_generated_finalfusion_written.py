"""embmap writes finalfusion files byte for byte as the reference does."""

import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from embmap.subwords import BucketIndexer, ExplicitIndexer, FastTextIndexer, FloretIndexer
from tests.reference import finalfusion as reference

try:
    import tomli_w
except ImportError:  # fewer kinds of metadata then
    tomli_w = None

from tests.conformance.generated_finalfusion import (
    DIALECTS,
    DTYPES,
    KINDS,
    STORAGES,
    UNICODE_WORDS,
    UNKNOWN,
    content,
    same_vectors,
    same_words,
)

pytestmark = pytest.mark.slow

# What embmap writes


def indexer(made):
    """The indexer of embmap that says what the content says."""
    if made.vocab_kind == "bucket":
        return BucketIndexer(made.min_n, made.max_n, made.exponent)
    if made.vocab_kind == "fasttext":
        return FastTextIndexer(made.min_n, made.max_n, made.n_buckets)
    if made.vocab_kind == "floret":
        brackets = {"bow": made.bow, "eow": made.eow}
        sizes = (made.min_n, made.max_n, made.n_buckets, made.n_hashes, made.seed)
        return FloretIndexer(*sizes, **brackets)
    if made.vocab_kind == "explicit":
        texts = [text for text, _ in made.ngrams]
        rows = [row for _, row in made.ngrams]
        return ExplicitIndexer.of(texts, rows, min_n=made.min_n, max_n=made.max_n)
    return None


def quantized(made):
    if made.storage_kind != "quantized":
        return None
    return embmap.finalfusion.Quantized(made.codes, made.codebooks, made.projection, made.pq_norms)


def written(path, made, words=None, vectors=None):
    """Let embmap write the content and return the bytes."""
    result = embmap.finalfusion.write(
        path,
        (None if made.vocab_kind == "floret" else made.words) if words is None else words,
        made.matrix if vectors is None else vectors,
        norms=made.norms,
        metadata=made.metadata,
        subwords=indexer(made),
        quantized=quantized(made),
    )
    assert result == path
    return path.read_bytes()


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_written_bytes_are_those_of_the_reference(tmp_path, kind, storage, norms, metadata):
    made = content(kind, storage, norms, metadata, words=UNICODE_WORDS)
    assert written(tmp_path / "file.fifu", made) == reference.encode(made)


@pytest.mark.parametrize("dtype", DTYPES)
def test_written_bytes_of_every_type_are_those_of_the_reference(tmp_path, dtype):
    made = content("bucket", dtype=dtype)
    assert written(tmp_path / "file.fifu", made) == reference.encode(made)
    made.matrix = made.matrix.astype(made.matrix.dtype.newbyteorder(">"))
    assert written(tmp_path / "big-endian.fifu", made) == reference.encode(made)


def test_words_and_vectors_may_come_bit_by_bit(tmp_path):
    made = content("fasttext")
    words = (word for word in made.words)
    blocks = (made.matrix[start : start + 3] for start in range(0, len(made.matrix), 3))
    assert written(tmp_path / "file.fifu", made, words, blocks) == reference.encode(made)
    rows = made.matrix.tolist()
    rows = [np.array(row, np.float32) for row in rows]
    assert written(tmp_path / "rows.fifu", made, iter(made.words), rows) == reference.encode(made)


@pytest.mark.parametrize(("layout", "kind"), DIALECTS)
@pytest.mark.parametrize("storage", STORAGES)
def test_an_open_file_is_rewritten_byte_for_byte(tmp_path, backend, kind, storage, layout):
    made = content(kind, storage, words=UNICODE_WORDS, layout=layout)
    path = tmp_path / "file.fifu"
    path.write_bytes(reference.encode(made, layout))
    with embmap.open(path, backend=backend) as f:
        vectors = f.vectors
        codes = None
        if made.storage_kind == "quantized":
            codes = embmap.finalfusion.Quantized(
                vectors.codes, vectors.codebooks, vectors.projection, vectors.norms
            )
            vectors = None
        embmap.finalfusion.write(
            tmp_path / "again.fifu",
            f.vocab,
            vectors,
            norms=f.norms,
            metadata=f.metadata_toml,
            subwords=f.subwords,
            quantized=codes,
        )
    assert (tmp_path / "again.fifu").read_bytes() == reference.encode(made)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TOML = st.dictionaries(
    TEXT,
    st.recursive(
        TEXT
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


@st.composite
def contents(draw):
    """Anything that a finalfusion file can hold."""
    kind = draw(st.sampled_from(KINDS))
    words = [] if kind == "floret" else draw(st.lists(TEXT, unique=True, max_size=8))
    made = reference.Decoded(vocab_kind=kind, words=words)
    if kind != "simple":
        made.min_n = draw(st.integers(1, 5))
        made.max_n = made.min_n + draw(st.integers(0, 4))
        made.bow, made.eow = "<", ">"
    if kind == "bucket":
        made.exponent = draw(st.integers(0, 4))
        made.n_buckets = 2**made.exponent
    elif kind == "fasttext":
        made.n_buckets = draw(st.integers(1, 12))
    elif kind == "floret":
        made.n_buckets = draw(st.integers(1, 12))
        made.n_hashes = draw(st.integers(1, 4))
        made.seed = draw(st.integers(0, 2**32 - 1))
        made.bow, made.eow = draw(TEXT), draw(TEXT)
    elif kind == "explicit":
        texts = draw(st.lists(TEXT, unique=True, max_size=8))
        rows = [draw(st.integers(0, 7)) for _ in texts]
        number = {row: i for i, row in enumerate(sorted(set(rows)))}
        made.ngrams = [(text, number[row]) for text, row in zip(texts, rows, strict=True)]
        made.n_buckets = len(number)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def any_bits(dtype, *shape):
        n = int(np.prod(shape))
        return np.frombuffer(rng.bytes(n * np.dtype(dtype).itemsize), dtype).reshape(shape)

    rows = len(words) + (made.n_buckets or 0)
    made.storage_kind = draw(st.sampled_from(["ndarray", "quantized"]))
    if made.storage_kind == "ndarray":
        columns = draw(st.integers(1, 5))
        made.matrix = any_bits(draw(st.sampled_from(DTYPES)), rows, columns)
    else:
        q, width, k = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 256))
        made.codes = rng.integers(0, k, (rows, q), dtype=np.uint8)
        made.codebooks = rng.normal(size=(q, k, width)).astype("<f4")
        if draw(st.booleans()):
            made.projection = rng.normal(size=(q * width, q * width)).astype("<f4")
        if draw(st.booleans()):
            made.pq_norms = rng.uniform(0, 2, rows).astype("<f4")
    if draw(st.booleans()):
        made.norms = any_bits("<f4", len(words))
    texts = st.sampled_from(['title = "ü"\n', "[nested]\nx = [1.5, true]\n", "# nothing\n"])
    made.metadata = draw(st.none() | (TOML.map(tomli_w.dumps) if tomli_w else texts))
    return made


FIELDS = ["words", "vocab_kind", "min_n", "max_n", "exponent", "n_buckets", "n_hashes", "seed"]
FIELDS += ["bow", "eow", "ngrams", "storage_kind", "metadata"]
ARRAYS = ["codes", "codebooks", "projection", "pq_norms", "norms"]


@settings(deadline=None, max_examples=100)
@given(made=contents())
def test_what_is_written_is_what_the_reference_reads(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("written") / "file.fifu"
    data = written(path, made)
    assert data == reference.encode(made)

    decoded = reference.decode(data)
    assert decoded.layout == "reference"
    for name in FIELDS:
        assert getattr(decoded, name) == getattr(made, name), name
    stored = ARRAYS if made.storage_kind == "quantized" else [*ARRAYS, "matrix"]
    for name in stored:
        found, expected = getattr(decoded, name), getattr(made, name)
        assert (found is None) == (expected is None), name
        if expected is not None:
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
            assert found.tobytes() == expected.tobytes(), name

    with embmap.open(path) as f:
        same_words(f, decoded)
        same_vectors(f, decoded)
        assert f.metadata_toml == made.metadata
        for word in [*UNKNOWN, *made.words]:
            assert f.subword_rows(word).tolist() == reference.subword_rows(decoded, word)


@pytest.mark.skipif(tomli_w is None, reason="tomli-w is not installed")
@settings(deadline=None, max_examples=30)
@given(metadata=TOML)
def test_metadata_given_as_values_are_read_as_values(tmp_path_factory, metadata):
    path = tmp_path_factory.mktemp("written") / "file.fifu"
    embmap.finalfusion.write(path, ["a"], np.zeros((1, 2), np.float32), metadata=metadata)
    assert tomllib.loads(reference.decode(path.read_bytes()).metadata) == metadata
    with embmap.open(path) as f:
        assert f.metadata == metadata
