"""Files that tests convert, and the words and vectors in them."""

import numpy as np
import pytest

import embmap
from tests.judges.inputs import fasttext

WORDS = ["berlin", "zürich", "東京", "🙂", "a"]
RNG = np.random.default_rng(0)
VECTORS = RNG.standard_normal((5, 6)).astype(np.float32)


def rows(path, **options):
    """The words and vectors of a file, read through the public face."""
    target = path.with_name("read-back.npy")
    report = embmap.convert(path, target, **options)
    words = None
    if report.words_path is not None:
        words = report.words_path.read_text("utf-8").removesuffix("\n").split("\n")
    return words, np.load(target)


def write_text(path, words=WORDS, vectors=VECTORS, head=True):
    lines = [
        f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, vectors, strict=True)
    ]
    if head:
        lines.insert(0, f"{len(words)} {vectors.shape[1]}\n")
    path.write_text("".join(lines), "utf-8", newline="")


def write_word2vec(path, words=WORDS, vectors=VECTORS, newline=b"\n"):
    parts = [b"%d %d\n" % vectors.shape]
    for word, row in zip(words, vectors, strict=True):
        parts.append(word.encode() + b" " + row.astype("<f4").tobytes() + newline)
    path.write_bytes(b"".join(parts))


def write_words(path, words=WORDS):
    path.write_text("".join(f"{word}\n" for word in words), "utf-8", newline="")


def make(name, folder):
    """An input of a format: its path and what convert needs to read it."""
    path = folder / f"input-{name}"
    vocab = folder / "vocab.txt"
    write_words(vocab)
    if name == "finalfusion":
        embmap.finalfusion.write(path, WORDS, VECTORS)
    elif name == "embd":
        tensors = {"embeddings.word_embeddings.weight": VECTORS}
        embmap.embd.write(path, tensors, vocab=WORDS)
    elif name == "cvc":
        embmap.cvc.write(path, VECTORS, compression="lossless", layout="1.0")
        return path, {"vocab": vocab}
    elif name == "dwe":
        quantized, scale = embmap.dwe.quantize(np.stack([VECTORS, VECTORS[::-1]]), 11)
        embmap.dwe.write(path, quantized, scale=scale)
        return path, {"vocab": vocab, "timestep": 0}
    elif name in ("word2vec-text", "glove"):
        write_text(path, head=name == "word2vec-text")
    elif name == "word2vec":
        write_word2vec(path)
    elif name == "npy":
        with path.open("wb") as handle:
            np.save(handle, VECTORS)
        return path, {"vocab": vocab}
    elif name == "npz":
        with path.open("wb") as handle:
            np.savez_compressed(handle, vectors=VECTORS, lengths=np.arange(5))
        return path, {"vocab": vocab}
    elif name == "parquet":
        pa = pytest.importorskip("pyarrow")
        columns = [range(5), WORDS, list(VECTORS)]
        types = {"n": pa.int64(), "word": pa.string(), "emb": pa.list_(pa.float32())}
        table = pa.table(columns, pa.schema(types.items()))
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    elif name == "safetensors":
        saved = pytest.importorskip("safetensors.numpy")
        saved.save_file({"emb": VECTORS, "bias": VECTORS[0]}, path)
        return path, {"vocab": vocab}
    elif name == "gensim":
        models = pytest.importorskip("gensim.models")
        vectors = models.KeyedVectors(VECTORS.shape[1])
        vectors.add_vectors(WORDS, VECTORS)
        vectors.save(str(path))
    elif name == "fasttext":
        path.write_bytes(fasttext(WORDS, labels=["__label__x"])[0])
    elif name == "floret":
        numbers = [f"{n} {' '.join(map(str, row))}\n" for n, row in enumerate(VECTORS)]
        path.write_text("5 6 2 4 2 7 < >\n" + "".join(numbers), "utf-8", newline="")
    return path, {}


INPUTS = (
    "finalfusion",
    "embd",
    "cvc",
    "dwe",
    "word2vec",
    "word2vec-text",
    "glove",
    "npy",
    "npz",
    "parquet",
    "safetensors",
    "gensim",
)
OUTPUTS = {
    "finalfusion": ".fifu",
    "embd": ".weights",
    "cvc": ".cvc",
    "word2vec": ".bin",
    "word2vec-text": ".vec",
    "glove": ".txt",
    "npy": ".npy",
    "parquet": ".parquet",
    "safetensors": ".safetensors",
    "gensim": ".kv",
}
