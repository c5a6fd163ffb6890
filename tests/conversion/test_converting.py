"""embmap.convert: every pair of formats, what is kept, and the choices that callers have."""

import pickle
import tracemalloc

import numpy as np
import pytest

import embmap
from embmap.finalfusion import Quantized
from embmap.subwords import FloretIndexer
from tests.conversion.sources import (
    INPUTS,
    OUTPUTS,
    RNG,
    VECTORS,
    WORDS,
    make,
    rows,
    write_text,
    write_word2vec,
    write_words,
)


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
    for out in ("o.fifu", "o.npy", "o.weights"):
        report = embmap.convert(path, tmp_path / out)
        assert (report.n_words, report.n_duplicates) == (3, 3)
    found, values = rows(tmp_path / "o.weights")
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
        with pytest.raises(ValueError, match=r"x, y|choose one with tensor"):
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
    with pytest.raises(ValueError, match="timestep must be at least -3 and below 3, not 7"):
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
        ("a.npy", "o.vec", {}, "name them with vocab"),
        ("a.npy", "o.npy", {"words": ["a"]}, "name them with vocab"),
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


@pytest.mark.slow
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
