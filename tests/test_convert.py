"""embmap.convert: every pair of formats, what is kept, and the choices that callers have."""

import json
import pickle
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import embmap
from embmap.finalfusion import Quantized
from embmap.subwords import BucketIndexer, ExplicitIndexer, FastTextIndexer, FloretIndexer

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
    elif name == "safetensors":
        saved = pytest.importorskip("safetensors.numpy")
        saved.save_file({"emb": VECTORS, "bias": VECTORS[0]}, path)
        return path, {"vocab": vocab}
    elif name == "gensim":
        models = pytest.importorskip("gensim.models")
        vectors = models.KeyedVectors(VECTORS.shape[1])
        vectors.add_vectors(WORDS, VECTORS)
        vectors.save(str(path))
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
    "safetensors": ".safetensors",
}


@pytest.mark.parametrize("target", OUTPUTS)
@pytest.mark.parametrize("source", INPUTS)
def test_every_input_becomes_every_output(tmp_path, source, target):
    if (source, target) == ("embd", "finalfusion"):  # whose metadata become TOML
        pytest.importorskip("tomli_w", reason="tomli-w is not installed")
    path, options = make(source, tmp_path)
    out = tmp_path / f"output{OUTPUTS[target]}"
    tolerance = 2e-3 if source == "dwe" else 2e-6
    tolerance = max(tolerance, 2e-3 if target == "cvc" else 0)
    report = embmap.convert(path, out, **options)
    assert (report.input_format, report.output_format) == (source, target)
    assert (report.n_words, report.dim, report.n_duplicates) == (5, 6, 0)
    words, vectors = rows(out, normalize=False)
    assert words == WORDS
    np.testing.assert_allclose(vectors, VECTORS, atol=tolerance)
    if source != "dwe" and target not in ("cvc", "finalfusion"):
        assert vectors.tobytes() == VECTORS.tobytes()


@pytest.mark.parametrize("name", ["word2vec-text", "glove", "embd", "npy", "cvc", "safetensors"])
def test_words_with_spaces_go_through_what_can_hold_them(tmp_path, name):
    words = ["New York", "a  b", " lead", ". . .", "x", ""]
    vectors = RNG.standard_normal((6, 3)).astype(np.float32)
    first = embmap.finalfusion.write(tmp_path / "a.fifu", words, vectors)
    out = tmp_path / f"b{OUTPUTS[name]}"
    embmap.convert(first, out)
    found, values = rows(out)
    assert found == words
    np.testing.assert_allclose(values, vectors, atol=2e-3 if name == "cvc" else 0)


def test_a_word_that_the_output_cannot_hold_is_an_error_or_left_out(tmp_path):
    words = ["a", "New York", "b\nc"]
    path = embmap.finalfusion.write(tmp_path / "a.fifu", words, np.eye(3, dtype="f4"))
    with pytest.raises(embmap.FormatError, match=r"word 1.*'New York' holds a space") as caught:
        embmap.convert(path, tmp_path / "b.bin")
    assert path.read_bytes()[caught.value.offset :].startswith(b"New York")
    assert not (tmp_path / "b.bin").exists()
    assert embmap.convert(path, tmp_path / "b.bin", lossy=True).n_dropped == 1
    with pytest.raises(embmap.FormatError, match=r"word 2.*newline"):
        embmap.convert(path, tmp_path / "b.vec")
    assert embmap.convert(path, tmp_path / "b.vec", lossy=True).n_dropped == 1
    with pytest.raises(embmap.FormatError, match=r"word 2.*end of a line"):
        embmap.convert(path, tmp_path / "b.npy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.fifu", "b.bin", "b.vec"]


@pytest.mark.parametrize("name", ["word2vec", "word2vec-text", "glove"])
def test_of_words_that_repeat_the_first_is_taken(tmp_path, name):
    words = ["a", "b", "a", "c", "b", "a"]
    vectors = np.arange(12, dtype=np.float32).reshape(6, 2) + 1
    path = tmp_path / "in"
    if name == "word2vec":
        write_word2vec(path, words, vectors)
    else:
        write_text(path, words, vectors, head=name == "word2vec-text")
    for out in ("o.fifu", "o.npy", "o.bin"):
        report = embmap.convert(path, tmp_path / out)
        assert (report.n_words, report.n_duplicates) == (3, 3)
    found, values = rows(tmp_path / "o.bin")
    assert found == ["a", "b", "c"]
    assert values.tolist() == vectors[[0, 1, 3]].tolist()


def test_limit_and_words_choose(tmp_path):
    write_text(tmp_path / "a.vec")
    report = embmap.convert(tmp_path / "a.vec", tmp_path / "b.npy", limit=2)
    assert report.n_words == 2
    assert rows(tmp_path / "b.npy")[0] == WORDS[:2]
    write_words(tmp_path / "w.txt", ["a", "none", "zürich"])
    report = embmap.convert(tmp_path / "a.vec", tmp_path / "c.npy", words=tmp_path / "w.txt")
    assert (report.n_words, report.n_missing) == (2, 1)
    words, vectors = rows(tmp_path / "c.npy")
    assert words == ["zürich", "a"]
    assert vectors.tolist() == VECTORS[[1, 4]].tolist()
    report = embmap.convert(tmp_path / "a.vec", tmp_path / "d.npy", words=["a"], limit=2)
    assert (report.n_words, report.n_missing) == (0, 1)
    assert embmap.convert(tmp_path / "a.vec", tmp_path / "d.fifu", limit=0).n_words == 0


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_can_be_limited_and_selected(tmp_path, name):
    if name == "embd":
        pytest.importorskip("tomli_w", reason="tomli-w is not installed")
    path, options = make(name, tmp_path)
    out = tmp_path / "o.fifu"
    assert embmap.convert(path, out, limit=3, **options).n_words == 3
    with embmap.open(out) as file:
        assert list(file) == WORDS[:3]
    options["normalize"] = True
    assert embmap.convert(path, out, words=["東京", "berlin"], **options).n_words == 2
    with embmap.open(out) as file:
        assert list(file) == ["berlin", "東京"]
        expected = VECTORS[2] / np.linalg.norm(VECTORS[2])
        np.testing.assert_allclose(file["東京"], expected, atol=2e-3)


def test_finalfusion_files_get_unit_rows_and_norms(tmp_path):
    write_text(tmp_path / "a.vec")
    report = embmap.convert(tmp_path / "a.vec", tmp_path / "a.fifu")
    assert report.lengths == "unit"
    with embmap.open(tmp_path / "a.fifu") as file:
        np.testing.assert_allclose(np.linalg.norm(file.vectors, axis=1), 1, rtol=1e-6)
        np.testing.assert_allclose(file.norms, np.linalg.norm(VECTORS, axis=1), rtol=1e-6)
    report = embmap.convert(tmp_path / "a.fifu", tmp_path / "b.npy")
    assert (report.lengths, report.left_out) == ("stored", ("norms",))
    np.testing.assert_allclose(np.linalg.norm(rows(tmp_path / "b.npy")[1], axis=1), 1, rtol=1e-6)
    report = embmap.convert(tmp_path / "a.fifu", tmp_path / "c.npy", normalize=False)
    assert (report.lengths, report.left_out) == ("original", ())
    np.testing.assert_allclose(rows(tmp_path / "c.npy")[1], VECTORS, rtol=1e-6)
    embmap.convert(tmp_path / "a.vec", tmp_path / "d.npy", normalize=True)
    np.testing.assert_allclose(np.linalg.norm(rows(tmp_path / "d.npy")[1], axis=1), 1, rtol=1e-6)
    embmap.convert(tmp_path / "a.vec", tmp_path / "e.fifu", normalize=False)
    with embmap.open(tmp_path / "e.fifu") as file:
        assert file.norms is None
        assert np.asarray(file.vectors).tobytes() == VECTORS.tobytes()
    embmap.convert(tmp_path / "a.fifu", tmp_path / "f.fifu", words=["a", "東京"])
    with embmap.open(tmp_path / "f.fifu") as file:
        np.testing.assert_allclose(file.norms, np.linalg.norm(VECTORS[[2, 4]], axis=1), rtol=1e-6)


def test_rows_of_zeros_stay_zeros(tmp_path):
    write_text(tmp_path / "a.vec", ["a", "b"], np.array([[0, 0], [3, 4]], "f4"))
    embmap.convert(tmp_path / "a.vec", tmp_path / "a.fifu")
    with embmap.open(tmp_path / "a.fifu") as file:
        assert file.norms.tolist() == [0, 5]
        assert file["a"].tolist() == [0, 0]


INDEXERS = {
    "bucket": BucketIndexer(3, 4, 4),
    "fasttext": FastTextIndexer(2, 4, 11),
    "explicit": ExplicitIndexer.of(["<be", "ber", "üri"], min_n=3, max_n=3),
}


@pytest.mark.parametrize("kind", INDEXERS)
def test_subwords_are_kept_and_left_out(tmp_path, kind):
    indexer = INDEXERS[kind]
    matrix = RNG.standard_normal((5 + indexer.n_buckets, 4)).astype("f4")
    path = embmap.finalfusion.write(
        tmp_path / "a.fifu", WORDS, matrix, subwords=indexer, norms=np.arange(5), metadata='t = "x"'
    )
    embmap.convert(path, tmp_path / "b.fifu", words=WORDS[1:])
    with embmap.open(path) as before, embmap.open(tmp_path / "b.fifu") as after:
        assert list(after) == WORDS[1:]
        assert after.subwords.kind == kind
        assert after.metadata == {"t": "x"}
        assert after.norms.tolist() == [1, 2, 3, 4]
        for word in ("東京", "berber", "bürin"):
            np.testing.assert_array_equal(after[word], before[word])
    report = embmap.convert(path, tmp_path / "c.fifu", subwords="none")
    assert report.left_out == ("subwords",)
    with embmap.open(tmp_path / "c.fifu") as file:
        assert file.subwords is None
        assert file.shape == (5, 4)
    assert set(embmap.convert(path, tmp_path / "c.vec").left_out) == {
        "norms",
        "subwords",
        "metadata",
    }


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("kind", ["bucket", "fasttext"])
def test_buckets_become_explicit_ngrams(tmp_path, kind, quantized):
    indexer = INDEXERS[kind]
    n = 5 + indexer.n_buckets
    storage = {"vectors": RNG.standard_normal((n, 4)).astype("f4")}
    if quantized:
        books = RNG.standard_normal((2, 5, 2)).astype("f4")
        codes = RNG.integers(0, 5, (n, 2), np.uint8)
        storage = {"vectors": None, "quantized": Quantized(codes, books, np.eye(4), np.ones(n))}
    path = embmap.finalfusion.write(
        tmp_path / "a.fifu", WORDS, subwords=indexer, metadata='t = "x"', **storage
    )
    embmap.convert(path, tmp_path / "b.fifu", subwords="explicit")
    with embmap.open(path) as before, embmap.open(tmp_path / "b.fifu") as after:
        assert after.subwords.kind == "explicit"
        assert after.metadata == {"t": "x"}
        assert after.info()["storage"]["kind"] == ("quantized" if quantized else "ndarray")
        assert list(after) == WORDS
        for word in WORDS:
            np.testing.assert_array_equal(after[word], before[word])
            np.testing.assert_array_equal(
                after.vectors[after.subword_rows(word)], before.vectors[before.subword_rows(word)]
            )
        assert after.verify().ok


def test_explicit_ngrams_are_those_of_finalfusion_python(tmp_path):
    peer = pytest.importorskip("finalfusion")
    indexer = INDEXERS["bucket"]
    matrix = RNG.standard_normal((5 + indexer.n_buckets, 4)).astype("f4")
    path = embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, matrix, subwords=indexer)
    embmap.convert(path, tmp_path / "b.fifu", subwords="explicit")
    theirs = peer.load_finalfusion(str(path)).bucket_to_explicit()
    ours = peer.load_finalfusion(str(tmp_path / "b.fifu"))
    assert set(ours.vocab.subword_indexer.ngrams) == set(theirs.vocab.subword_indexer.ngrams)
    for word in ("berliner", "zür"):
        np.testing.assert_allclose(ours[word], theirs[word], rtol=1e-6)


def test_quantized_vectors_stay_quantized_or_are_decoded(tmp_path):
    books = RNG.standard_normal((2, 5, 3)).astype("f4")
    codes = RNG.integers(0, 5, (5, 2), np.uint8)
    quantized = Quantized(codes, books, None, np.arange(5))
    path = embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, None, quantized=quantized)
    embmap.convert(path, tmp_path / "b.fifu", words=["a", "東京"])
    with embmap.open(tmp_path / "b.fifu") as file, embmap.open(path) as before:
        assert np.asarray(file.vectors.codes).tolist() == codes[[2, 4]].tolist()
        np.testing.assert_array_equal(file["東京"], before["東京"])
    report = embmap.convert(path, tmp_path / "c.fifu", dtype="float32")
    assert report.left_out == ("quantization",)
    with embmap.open(tmp_path / "c.fifu") as file, embmap.open(path) as before:
        np.testing.assert_array_equal(np.asarray(file.vectors), np.asarray(before.vectors))


def test_metadata_are_kept_or_given(tmp_path):
    path = embmap.finalfusion.write(
        tmp_path / "a.fifu", WORDS, VECTORS, metadata='title = "x"\n[deep]\nn = 1\n'
    )
    for name in ("b.weights", "b.cvc", "b.safetensors"):
        embmap.convert(path, tmp_path / name)
    with embmap.open(tmp_path / "b.weights") as file:
        assert file.metadata["title"] == "x"
        assert file.metadata["deep"] == '{"n": 1}'
        assert file.metadata["embedding_dim"] == "6"
    with embmap.open(tmp_path / "b.cvc") as file:
        assert file.metadata == {"title": "x", "deep": {"n": 1}}
    (tmp_path / "m.toml").write_text('title = "y"')
    embmap.convert(tmp_path / "b.cvc", tmp_path / "c.fifu", metadata=tmp_path / "m.toml")
    with embmap.open(tmp_path / "c.fifu") as file:
        assert file.metadata == {"title": "y"}
    (tmp_path / "m.toml").write_text("title")
    with pytest.raises(ValueError, match="TOML"):
        embmap.convert(tmp_path / "b.cvc", tmp_path / "d.fifu", metadata=tmp_path / "m.toml")
    assert not (tmp_path / "d.fifu").exists()


def test_dtypes(tmp_path):
    write_text(tmp_path / "a.vec")
    for name, dtype in [("a.npy", "float16"), ("b.npy", "float64"), ("a.safetensors", "float16")]:
        assert embmap.convert(tmp_path / "a.vec", tmp_path / name, dtype=dtype).dtype == dtype
        np.testing.assert_allclose(rows(tmp_path / name)[1], VECTORS, atol=2e-3)
    assert embmap.convert(tmp_path / "a.safetensors", tmp_path / "c.npy").dtype == "float16"
    with pytest.raises(ValueError, match="float32, not float16"):
        embmap.convert(tmp_path / "a.vec", tmp_path / "a.bin", dtype="float16")
    write_text(tmp_path / "big.vec", ["a"], np.array([[1e5, 1]], "f4"))
    with pytest.raises(ValueError, match="float16 cannot"):
        embmap.convert(tmp_path / "big.vec", tmp_path / "d.npy", dtype="float16")
    assert not (tmp_path / "d.npy").exists()
    (tmp_path / "wide.vec").write_text("1 2\na 0.1234567890123 1e-300\n")
    embmap.convert(tmp_path / "wide.vec", tmp_path / "e.npy", dtype="float64")
    assert np.load(tmp_path / "e.npy").tolist() == [[0.1234567890123, 1e-300]]


def test_cvc_compressions(tmp_path):
    write_text(tmp_path / "a.vec")
    for compression in ("int8", "lossless"):
        out = tmp_path / f"{compression}.cvc"
        embmap.convert(tmp_path / "a.vec", out, compression=compression)
        with embmap.open(out) as file:
            assert file.chunks[0].compression == compression
    np.testing.assert_array_equal(rows(tmp_path / "lossless.cvc")[1], VECTORS)
    with pytest.raises(ValueError, match="CVC"):
        embmap.convert(tmp_path / "a.vec", tmp_path / "a.npy", compression="int8")


def test_tensors_arrays_and_columns_are_chosen_by_name(tmp_path):
    other = VECTORS[::-1].copy()
    embmap.embd.write(tmp_path / "a.weights", {"x": VECTORS, "y": other}, vocab=WORDS)
    np.savez(tmp_path / "a.npz", x=VECTORS, y=other)
    embmap.cvc.write_columns(tmp_path / "a.cvc", {"x": VECTORS, "y": other})
    for name in ("a.weights", "a.npz", "a.cvc"):
        embmap.convert(tmp_path / name, tmp_path / "o.npy", tensor="y")
        assert np.load(tmp_path / "o.npy").tobytes() == other.tobytes()
        with pytest.raises(ValueError, match=r"x, y|choose a tensor"):
            embmap.convert(tmp_path / name, tmp_path / "o.npy")
        with pytest.raises(ValueError, match=r"'z'|x, y"):
            embmap.convert(tmp_path / name, tmp_path / "o.npy", tensor="z")


def test_time_steps(tmp_path):
    for t, order in enumerate([[0, 1, 2, 3], [3, 1, 0, 2, 4], [4, 2, 1, 0]]):
        write_text(tmp_path / f"{t}.vec", [WORDS[i] for i in order], VECTORS[order] * (t + 1))
    inputs = [tmp_path / f"{t}.vec" for t in range(3)]
    out = tmp_path / "o.dwe"
    report = embmap.convert(inputs, out, bits=11)
    assert (report.n_words, report.n_dropped) == (3, 1)
    assert report.words_path.read_text("utf-8").split() == WORDS[:3]
    with embmap.open(out, vocab=report.words_path) as file:
        expected = VECTORS[:3, None] * np.array([1, 2, 3])[None, :, None]
        np.testing.assert_allclose(file[range(3)], expected, atol=6e-3)
    words, vectors = rows(out, timestep=-1)
    assert words == WORDS[:3]
    np.testing.assert_allclose(vectors, VECTORS[:3] * 3, atol=6e-3)
    with pytest.raises(ValueError, match="3 time steps"):
        embmap.convert(out, tmp_path / "x.npy")
    with pytest.raises(ValueError, match="two time steps"):
        embmap.convert(inputs[0], tmp_path / "x.dwe")
    with pytest.raises(ValueError, match="several inputs"):
        embmap.convert(inputs, tmp_path / "x.fifu")
    with pytest.raises(ValueError, match="no time steps"):
        embmap.convert(inputs[0], tmp_path / "x.npy", timestep=0)
    with pytest.raises(ValueError, match="timestep 7 of 3"):
        embmap.convert(out, tmp_path / "x.npy", timestep=7)


def test_floret_tables_become_finalfusion_files(tmp_path):
    table = RNG.standard_normal((8, 3)).astype("f4")
    lines = ["8 3 2 3 2 2166136261 < >\n"]
    lines += [f"{i} {' '.join(map(str, row))} \n" for i, row in enumerate(table)]
    path = tmp_path / "a.floret"
    path.write_text("".join(lines))
    report = embmap.convert(path, tmp_path / "a.fifu")
    assert report.input_format == "floret"
    indexer = FloretIndexer(2, 3, 8, 2)
    embmap.finalfusion.write(tmp_path / "b.fifu", None, table, subwords=indexer)
    assert (tmp_path / "a.fifu").read_bytes() == (tmp_path / "b.fifu").read_bytes()
    with pytest.raises(ValueError, match="floret table holds no words"):
        embmap.convert(path, tmp_path / "a.vec")
    path.write_text("".join([*lines[:3], lines[4], lines[3], *lines[5:]]))
    with pytest.raises(embmap.FormatError, match="numbered"):
        embmap.convert(path, tmp_path / "c.fifu")


def test_what_is_read_is_not_written(tmp_path):
    write_text(tmp_path / "a.vec")
    before = (tmp_path / "a.vec").read_bytes()
    with pytest.raises(ValueError, match="is read"):
        embmap.convert(tmp_path / "a.vec", tmp_path / "a.vec")
    np.save(tmp_path / "a.npy", VECTORS)
    write_words(tmp_path / "b.npy.words.txt")
    vocab = tmp_path / "b.npy.words.txt"
    with pytest.raises(ValueError, match="is read"):
        embmap.convert(tmp_path / "a.npy", tmp_path / "b.npy", vocab=vocab)
    assert (tmp_path / "a.vec").read_bytes() == before


def test_arguments_that_do_not_fit_are_refused(tmp_path):
    write_text(tmp_path / "a.vec")
    np.save(tmp_path / "a.npy", VECTORS)
    for source, target, options, message in [
        ("a.vec", "o.xyz", {}, "extension '.xyz'"),
        ("a.vec", "o", {"output_format": "hdf5"}, "output_format must be"),
        ("a.vec", "o.npy", {"input_format": "hdf5"}, "input_format must be"),
        ("a.vec", "o.npy", {"limit": -1}, "limit"),
        ("a.vec", "o.npy", {"subwords": "some"}, "subwords"),
        ("a.vec", "o.npy", {"vocab": WORDS}, "words of its own"),
        ("a.npy", "o.vec", {}, "give it a vocab"),
        ("a.npy", "o.npy", {"words": ["a"]}, "give it a vocab"),
        ("a.vec", "o.npy", {"tensor": "x"}, "no tensors to choose from"),
        ("a.vec", "o.npy", {"layout": "x"}, "no layout to choose"),
        ("a.npy", "o.npy", {"vocab": ["a"]}, "1 words were given for 5 rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            embmap.convert(tmp_path / source, tmp_path / target, **options)
    with pytest.raises(FileNotFoundError):
        embmap.convert(tmp_path / "none", tmp_path / "o.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "a.vec"]


def test_aliases_and_reports(tmp_path):
    write_text(tmp_path / "a.vec")
    report = embmap.convert(tmp_path / "a.vec", tmp_path / "b", output_format="text")
    assert report.output_format == "glove"
    report = embmap.convert(
        tmp_path / "b", tmp_path / "c", input_format="text", output_format="textdims"
    )
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a.vec").read_bytes()
    assert pickle.loads(pickle.dumps(report)) == report


def test_memory_is_bounded_by_words(tmp_path):
    n, dim = 8000, 500
    vectors = RNG.standard_normal((n, dim)).astype("f4")  # 16 MB
    words = [f"w{i}" for i in range(n)]
    write_word2vec(tmp_path / "a.bin", words, vectors)
    embmap.convert(tmp_path / "a.bin", tmp_path / "b.fifu", limit=1)  # imports
    for source, target in [
        ("a.bin", "a.fifu"),
        ("a.fifu", "b.bin"),
        ("a.fifu", "b.npy"),
        ("a.fifu", "b.safetensors"),
        ("a.fifu", "b.weights"),
    ]:
        tracemalloc.start()
        embmap.convert(tmp_path / source, tmp_path / target)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < vectors.nbytes / 2, (source, target, peak)


def test_progress_is_reported(tmp_path):
    write_text(tmp_path / "a.vec")
    steps = []
    embmap.convert(tmp_path / "a.vec", tmp_path / "a.fifu", progress=lambda *s: steps.append(s))
    assert ("converting rows", 5, 5) in steps
    assert any(what == "finding words" and done == total for what, done, total in steps)


@pytest.fixture
def command(capsys):
    pytest.importorskip("typer", reason="typer is not installed")
    run = pytest.importorskip("embmap.cli").run

    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def test_the_command_converts(command, tmp_path):
    write_text(tmp_path / "a.vec", [*WORDS, "a"], VECTORS[[0, 1, 2, 3, 4, 0]])
    status, out, err = command("convert", tmp_path / "a.vec", tmp_path / "b.fifu")
    assert status == 0
    assert out == f"{tmp_path / 'b.fifu'}: finalfusion, 5 x 6 float32, rows of unit length\n"
    assert err.startswith("embmap: 1 repeated words")
    status, out, _ = command("convert", tmp_path / "b.fifu", tmp_path / "c.npy", "--json")
    report = json.loads(out)
    assert report["n_words"] == 5
    assert report["left_out"] == ["norms"]
    assert report["words_path"] == str(tmp_path / "c.npy.words.txt")
    status, out, err = command("convert", tmp_path / "b.fifu", tmp_path / "d.npy", "--unnormalize")
    assert (status, err) == (0, "")
    np.testing.assert_allclose(np.load(tmp_path / "d.npy"), VECTORS, rtol=1e-6)


def test_the_command_selects(command, tmp_path):
    write_text(tmp_path / "a.vec")
    write_words(tmp_path / "w.txt", ["a", "東京", "none"])
    status, _, err = command(
        "select", tmp_path / "a.vec", tmp_path / "b.txt", "--words", tmp_path / "w.txt"
    )
    assert (status, err) == (0, "embmap: 1 of the words asked for are not in the input\n")
    lines = (tmp_path / "b.txt").read_text("utf-8").splitlines()
    assert [line.split()[0] for line in lines] == ["東京", "a"]


def test_the_command_makes_time_steps(command, tmp_path):
    for name in "ab":
        write_text(tmp_path / f"{name}.vec")
    files = [tmp_path / "a.vec", tmp_path / "b.vec", tmp_path / "o.dwe"]
    assert command("convert", *files)[0] == 0
    assert command("convert", files[2], tmp_path / "o.npy", "--time", "1")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), VECTORS, atol=0.02)


def test_bad_conversions_exit_with_2_and_one_line(command, tmp_path):
    write_text(tmp_path / "a.vec")
    (tmp_path / "bad.vec").write_text("2 2\na 1 2\nb 1 x\n")
    (tmp_path / "noise").write_bytes(bytes(range(1, 256)))
    for arguments in (
        [tmp_path / "a.vec"],
        [tmp_path / "a.vec", tmp_path / "a.vec"],
        [tmp_path / "a.vec", tmp_path / "a.xyz"],
        [tmp_path / "bad.vec", tmp_path / "a.npy"],
        [tmp_path / "noise", tmp_path / "a.npy"],
        [tmp_path / "none", tmp_path / "a.npy"],
        [tmp_path / "a.vec", tmp_path / "a.npy", "--dtype", "float17"],
    ):
        status, out, err = command("convert", *arguments)
        assert (status, out) == (2, ""), arguments
        assert err.startswith("embmap: ")
        assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.vec", "bad.vec", "noise"]


def test_the_examples_in_the_docs_run(tmp_path, monkeypatch, capsys):
    cli = pytest.importorskip("embmap.cli")
    text = (Path(__file__).parents[1] / "docs" / "convert.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "glove.txt", ["the", "of", "and", "zürich"], VECTORS[:4, :3], head=False)
    write_words(tmp_path / "few.txt", ["zürich", "of"])
    n_run = 0
    for example in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in example.split("$ embmap ")[1:]:
            command, _, promised = part.partition("\n")
            assert cli.run(command.split()) == 0, command
            printed = capsys.readouterr()
            assert printed.out + printed.err == promised, command
            n_run += 1
    assert n_run == 6


def test_layouts_are_chosen(tmp_path):
    write_text(tmp_path / "a.vec")
    embmap.convert(tmp_path / "a.vec", tmp_path / "a.weights", output_layout="flat")
    inputs = [tmp_path / "a.vec", tmp_path / "a.weights"]
    embmap.convert(inputs, tmp_path / "a.dwe", output_layout="stream")
    embmap.convert(tmp_path / "a.vec", tmp_path / "a.cvc", output_layout="1.0")
    for name, layout in [("a.weights", "flat"), ("a.dwe", "stream"), ("a.cvc", "1.0")]:
        with embmap.open(tmp_path / name) as file:
            assert file.layout == layout
            assert file.shape[-2:] == (5, 6) or file.shape == (5, 2, 6)
    embmap.convert(tmp_path / "a.weights", tmp_path / "b.npy", layout="flat")
    with pytest.raises(embmap.FormatError):
        embmap.convert(tmp_path / "a.weights", tmp_path / "c.npy", layout="spec")


@pytest.mark.parametrize("opq", [False, True])
def test_finalfusion_files_are_quantized_on_the_way(tmp_path, opq):
    random = np.random.default_rng(0)
    words = [f"word{i}" for i in range(700)]
    indexer = embmap.subwords.BucketIndexer(3, 4, 6)
    # Few different rows: 256 centroids hold them all, so nothing is lost but rounding.
    rows = random.standard_normal((40, 8)).astype(np.float32)
    vectors = rows[random.integers(0, 40, 700 + indexer.n_buckets)]
    source = embmap.finalfusion.write(tmp_path / "a.fifu", words, vectors, subwords=indexer)
    target = tmp_path / "b.fifu"
    report = embmap.convert(source, target, quantize=4, opq=opq, words=words[100:])
    assert report.n_words == 600
    with embmap.open(source) as before, embmap.open(target) as after:
        assert after.info()["storage"]["kind"] == "quantized"
        assert list(after) == words[100:]
        assert after.vectors.shape == (600 + indexer.n_buckets, 8)
        assert np.allclose(after["word650"], before["word650"], atol=1e-4)
        assert np.allclose(after["unheard"], before["unheard"], atol=1e-4)
        assert after.verify().ok


def test_quantizing_is_for_finalfusion_files_alone(tmp_path):
    source = embmap.finalfusion.write(tmp_path / "a.fifu", ["a"], np.ones((1, 4), np.float32))
    for options, message in (
        ({"quantize": 2}, "for finalfusion files"),
        ({"opq": True}, "for finalfusion files"),
    ):
        with pytest.raises(ValueError, match=message):
            embmap.convert(source, tmp_path / "b.txt", **options)
    with pytest.raises(ValueError, match="goes with quantize"):
        embmap.convert(source, tmp_path / "b.fifu", opq=True)
    with pytest.raises(ValueError, match="equal parts"):
        embmap.convert(source, tmp_path / "b.fifu", quantize=3)
    assert [item.name for item in tmp_path.iterdir()] == ["a.fifu"]
