"""Damaged data raises no warning of numpy's: values pass through, or an error names them."""

import contextlib
import itertools
import json
import struct
import warnings

import numpy as np
import pytest

import embmap
from embmap.subwords import BucketIndexer, ExplicitIndexer, FastTextIndexer
from embmap.vectors.product import Quantized
from tests.judges.inputs import fasttext

N, DIM = 24, 4
WORDS = [f"wort{i}" for i in range(N)]
ASKED = ["wort0", "wort1", "wort2", "wort3", "wort9", "wort99", "<wortlaut>", "unbekannt"]
NGRAMS = ["<wo", "wor", "ort", "unb", "<un", "nt>"]
SCALE = 0.7361  # its bits occur nowhere else in a file
VALUES = {
    "infinite": [np.inf, -np.inf],
    "one infinite": [np.inf, 1],
    "not a number": [np.nan, 1],
    "huge": [1, 1],
    "huge and opposite": [1, -1],
    "tiny": [0, 0],
    "signaling": [np.nan, np.nan],
}


def damaged(kind, dtype=np.float32, n=N, dim=DIM):
    """Rows of which every other one is damaged."""
    rows = np.random.default_rng(5).standard_normal((n, dim)).astype(dtype)
    width = rows.dtype.itemsize
    pattern = np.resize(np.array(VALUES[kind], dtype), (len(rows[::2]), dim))
    if kind.startswith("huge"):
        pattern *= np.finfo(dtype).max
    if kind == "tiny":
        pattern += np.finfo(dtype).smallest_subnormal
    if kind == "signaling":
        bits = {2: 0x7C01, 4: 0x7F800001, 8: 0x7FF0000000000001}[width]
        pattern = np.full(pattern.shape, bits, f"u{width}").view(dtype)
    rows[::2] = pattern
    return rows


def plain(path, kind):
    rows = damaged(kind)
    embmap.finalfusion.write(path, WORDS, rows, norms=damaged(kind)[:, 0])


def double(path, kind):
    embmap.finalfusion.write(path, WORDS, damaged(kind, np.float64))


def subwords(path, kind, indexer, dtype=np.float32):
    rows = damaged(kind, dtype, N + indexer.n_buckets)
    embmap.finalfusion.write(path, WORDS, rows, subwords=indexer)


def quantized(path, kind, projected, scaled, composed):
    indexer = BucketIndexer(3, 5, 4) if composed else None
    n = N + (16 if composed else 0)
    codes = np.random.default_rng(5).integers(0, 8, (n, 2)).astype(np.uint8)
    codebooks = damaged(kind, n=16, dim=DIM // 2).reshape(2, 8, DIM // 2)
    projection = damaged(kind, n=DIM) if projected else None
    norms = damaged(kind, n=n)[:, 0] if scaled else None
    parts = Quantized(codes, codebooks, projection, norms)
    embmap.finalfusion.write(path, WORDS, None, quantized=parts, subwords=indexer)


def tensors(path, kind, dtype):
    embmap.embd.write(
        path, {"embeddings.word_embeddings.weight": damaged(kind, dtype)}, vocab=WORDS
    )


def chunks(path, kind, compression):
    dtype = np.float16 if compression == "fp16" else np.float32
    embmap.cvc.write(path, damaged(kind, dtype), compression=compression, layout="1.0")


def bytes_of_chunks(path, kind):
    """A file whose header gives scales and minimums that float32 cannot hold, or barely."""
    embmap.cvc.write(path, damaged("tiny"), compression="int8", layout="1.0", chunk_rows=7)
    raw = path.read_bytes()
    size = int.from_bytes(raw[8:12], "little")
    header = json.loads(raw[12 : 12 + size])
    numbers = {"infinite": 1e300, "huge": 3.4e38, "huge and opposite": -3.4e38}
    for chunk in header["chunks"]:
        chunk["scale"], chunk["min"] = numbers.get(kind, 1e-45), -numbers.get(kind, 0.0)
    text = json.dumps(header).encode()
    path.write_bytes(raw[:8] + len(text).to_bytes(4, "little") + text + raw[12 + size :])
    with embmap.open(path) as file:
        assert file.shape == (N, DIM)


def over_time(path, kind):
    steps = np.cumsum(np.random.default_rng(5).integers(-40, 40, (3, N, DIM)), axis=0)
    embmap.dwe.write(path, steps.astype(np.int16), scale=SCALE)
    raw, (scale, *_) = path.read_bytes(), damaged(kind)[0]
    assert raw.count(struct.pack("<f", SCALE)) == 1
    path.write_bytes(raw.replace(struct.pack("<f", SCALE), struct.pack("<f", scale)))


FILES = {
    "plain": plain,
    "double": double,
    "buckets": lambda path, kind: subwords(path, kind, BucketIndexer(3, 5, 4)),
    "fasttext": lambda path, kind: subwords(path, kind, FastTextIndexer(3, 5, 13)),
    "double fasttext": lambda path, kind: subwords(
        path, kind, FastTextIndexer(3, 5, 13), np.float64
    ),
    "explicit": lambda path, kind: subwords(
        path, kind, ExplicitIndexer.of(NGRAMS, min_n=3, max_n=3)
    ),
    **{
        f"quantized {choice}": lambda path, kind, choice=choice: quantized(path, kind, *choice)
        for choice in itertools.product((False, True), repeat=3)
    },
    **{
        name: lambda path, kind, dtype=dtype: tensors(path, kind, dtype)
        for name, dtype in {"embd f4": "f4", "embd f2": "f2"}.items()
    },
    "fp16": lambda path, kind: chunks(path, kind, "fp16"),
    "lossless": lambda path, kind: chunks(path, kind, "lossless"),
    "int8": bytes_of_chunks,
    "dwe": over_time,
}
WITHOUT_WORDS = ("fp16", "lossless", "int8", "dwe", "npy")


def model(path, kind):
    path.write_bytes(fasttext(WORDS, matrix=damaged(kind, n=N + 7, dim=3))[0])


def text(path, kind):
    rows = damaged(kind)
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(WORDS, rows, strict=True)]
    path.write_text("".join(lines) + "huge 1e400 -1e400 1e39 1\n")


def array(path, kind):
    with path.open("wb") as out:
        np.save(out, damaged(kind, np.float64))


INPUTS = {**FILES, "model": model, "text": text, "npy": array}
OUTPUTS = (".fifu", ".cvc", ".npy", ".weights", ".dwe", ".bin", ".vec", ".safetensors")
OPTIONS = (
    {},
    {"normalize": True},
    {"normalize": False},
    {"dtype": "float16"},
    {"dtype": "float64"},
    {"compression": "int8"},
    {"compression": "lossless"},
    {"quantize": 2},
    {"subwords": "explicit"},
)
TRIED = (embmap.EmbmapError, ValueError, KeyError)


def attempt(action, *arguments, **options):
    """Do something with damaged data; a clear error is as good as a result."""
    with contextlib.suppress(*TRIED):
        action(*arguments, **options)


def look_up(file):
    for word in ASKED:
        attempt(file.__getitem__, word)
        if hasattr(file, "unnormalized"):
            attempt(file.unnormalized, word)
            attempt(file.embedding_with_norm, word)
    for row in range(N):
        attempt(file.vectors.row, row)
    attempt(file.batch, ASKED)
    attempt(file.vectors.take, np.arange(N)[::-1])
    for dtype in (None, "f2", "f4", "f8"):
        attempt(np.asarray, file.vectors, dtype)


def search(file):
    queries = [*ASKED, 3, np.full(DIM, 3e38, np.float32)]
    for query, metric in itertools.product(queries, ("cosine", "dot", "euclidean")):
        attempt(file.most_similar, query, 5, metric=metric)
    attempt(file.most_similar, ASKED[:4], 5)
    for word, other in itertools.pairwise(ASKED):
        attempt(file.similarity, word, other)
        attempt(file.analogy, word, other, "wort5")


def follow(file):
    for word in ("wort0", "wort1"):
        attempt(file.similarity_over_time, [word], ["wort3"])
        attempt(file.most_related, word, 1)
        attempt(file.largest_changes, word)
        attempt(file.__getitem__, word)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.usefixtures("kernel")
def test_no_look_up_and_no_search_warns(tmp_path, name, kind):
    path = tmp_path / "a"
    FILES[name](path, kind)
    vocab = WORDS if name in WITHOUT_WORDS else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            file = embmap.open(path, vocab=vocab)
        except embmap.EmbmapError:
            return
        with file:
            assert file.verify().checked
            if name == "dwe":
                follow(file)
                file = file.at(1)
            look_up(file)
            search(file)


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", INPUTS)
def test_no_conversion_warns(tmp_path, name, kind):
    path = tmp_path / "a"
    INPUTS[name](path, kind)
    given = {"vocab": WORDS} if name in WITHOUT_WORDS else {}
    if name == "dwe":
        given["timestep"] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for extension, options in (
            *itertools.product(OUTPUTS, OPTIONS[:1]),
            *itertools.product(OUTPUTS[:3], OPTIONS[1:]),
        ):
            attempt(embmap.convert, path, tmp_path / f"b{extension}", **options, **given)
