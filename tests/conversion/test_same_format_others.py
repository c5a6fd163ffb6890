"""finalfusion, safetensors, npy, word2vec and text converted to themselves lose nothing."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

import embmap
from embmap.finalfusion import Quantized
from embmap.formats.finalfusion.writer import write_parts
from embmap.subwords import ExplicitIndexer
from tests.conversion.sources import (
    OUTPUTS,
    RNG,
    VECTORS,
    WORDS,
    rows,
    write_text,
    write_word2vec,
    write_words,
)

FILES = pytest.mark.conformance_files("finalfusion/*.fifu")


def array(values):
    return None if values is None else (str(values.dtype), np.asarray(values).tobytes())


def fields(path):
    """All that a finalfusion file holds."""
    with embmap.open(path) as f:
        vectors, subwords, info = f.vectors, f.subwords, f.info()
        held = {
            "words": None if f.vocab is None else list(f.vocab),
            "metadata": f.metadata_toml,
            "norms": array(f.norms),
            "rows": None if vectors is None else (vectors.shape, array(np.asarray(vectors))),
            "vocabulary": info.get("vocabulary"),
            "chunks": [chunk["name"] for chunk in info["chunks"]],
        }
        for name in ("codes", "codebooks", "projection", "norms"):
            held[f"stored {name}"] = array(getattr(vectors, name, None))
        for name in ("kind", "min_n", "max_n", "n_buckets", "n_hashes", "seed", "bow", "eow"):
            held[name] = getattr(subwords, name, None)
        if isinstance(subwords, ExplicitIndexer):
            held["n-grams"] = list(subwords.vocabulary)
            buckets, counts = subwords.buckets(held["n-grams"])
            held["rows of n-grams"] = buckets.tolist(), counts.tolist()
        return held


@FILES
def test_every_finalfusion_file_is_kept_whole(tmp_path, conformance_file):
    report = embmap.convert(conformance_file, tmp_path / "o.fifu")
    assert fields(tmp_path / "o.fifu") == fields(conformance_file)
    assert (report.left_out, report.n_duplicates, report.n_dropped) == ((), 0, 0)


# What finalfusion-python writes for a vocabulary, a matrix, norms or metadata of their own.
ALL = {"words": WORDS, "vectors": VECTORS, "norms": VECTORS[:, 0].astype("f8"), "toml": b"a = 1\n"}
NONE = dict.fromkeys((*ALL, "subwords", "quantized"))


@pytest.mark.parametrize("parts", [*([name] for name in ALL), ["words", "toml"], list(ALL)])
def test_a_finalfusion_file_of_some_parts_is_kept(tmp_path, parts):
    held = NONE | {name: ALL[name] for name in parts}
    write_parts(tmp_path / "a.fifu", held.pop("words"), held.pop("vectors"), **held)
    report = embmap.convert(tmp_path / "a.fifu", tmp_path / "b.fifu")
    assert (tmp_path / "b.fifu").read_bytes() == (tmp_path / "a.fifu").read_bytes()
    assert report.left_out == ()
    with embmap.open(tmp_path / "b.fifu") as file:
        assert file.verify().ok
    if "vectors" in parts:
        embmap.convert(tmp_path / "a.fifu", tmp_path / "b.npy")
        assert np.load(tmp_path / "b.npy").tolist() == VECTORS.tolist()
        return
    with pytest.raises(ValueError, match="no vectors; finalfusion or EMBD files can hold its"):
        embmap.convert(tmp_path / "a.fifu", tmp_path / "b.npy")
    if "words" in parts:
        embmap.convert(tmp_path / "a.fifu", tmp_path / "b.weights")
        with embmap.open(tmp_path / "b.weights") as file:
            assert (list(file.vocab), file.vectors) == (WORDS, None)
            assert file.metadata.get("a") == ("1" if "toml" in parts else None)


@pytest.mark.parametrize("extension", [".bin", ".vec", ".txt"])
def test_repeated_words_stay_in_formats_that_have_them(tmp_path, extension):
    words = ["a", "b", "a", "c", "b"]
    path = tmp_path / f"a{extension}"
    if extension == ".bin":
        write_word2vec(path, words)
    else:
        write_text(path, words, head=extension == ".vec")
    report = embmap.convert(path, tmp_path / f"b{extension}")
    assert (report.n_words, report.n_duplicates, report.left_out) == (5, 0, ())
    assert rows(tmp_path / f"b{extension}")[1].tolist() == VECTORS[[0, 1, 3]].tolist()
    if extension != ".vec":
        assert (tmp_path / f"b{extension}").read_bytes() == path.read_bytes()
    report = embmap.convert(path, tmp_path / "c.fifu")
    assert (report.n_words, report.n_duplicates, report.left_out) == (3, 2, ("repeated words",))


def test_a_finalfusion_file_keeps_every_field(tmp_path):
    indexer = ExplicitIndexer.of(["<a", "東", "x>"], [1, 0, 1], min_n=1, max_n=2)
    codes = RNG.integers(0, 4, (7, 2)).astype(np.uint8)
    quantized = Quantized(
        codes,
        RNG.standard_normal((2, 4, 3)).astype("f4"),
        RNG.standard_normal((6, 6)).astype("f4"),
        RNG.random(7).astype("f4"),
    )
    norms = RNG.random(5).astype("f4")
    toml = 'title = "x"  # kept to the letter\n'
    path = embmap.finalfusion.write(
        tmp_path / "a.fifu",
        WORDS,
        None,
        norms=norms,
        metadata=toml,
        subwords=indexer,
        quantized=quantized,
    )
    embmap.convert(path, tmp_path / "b.fifu")
    assert (tmp_path / "b.fifu").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "f8"])
def test_numbers_of_any_dtype_are_kept(tmp_path, dtype):
    values = (RNG.standard_normal((5, 3)) * 100).astype(dtype) if dtype != "i8" else None
    if values is None:
        values = RNG.integers(-(2**62), 2**62, (5, 3))
    np.save(tmp_path / "a.npy", values)
    embmap.convert(tmp_path / "a.npy", tmp_path / "b.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), values, strict=True)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, values)
    report = embmap.convert(path, tmp_path / "b.fifu")
    assert (tmp_path / "b.fifu").read_bytes() == path.read_bytes()
    assert report.dtype == values.dtype.name
    assert embmap.convert(path, tmp_path / "c.npy").dtype in ("float32", "float64")


def test_chunks_of_unknown_types_are_named(tmp_path):
    path = embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, VECTORS)
    data = bytearray(path.read_bytes() + struct.pack("<IQ4s", 77, 4, b"data"))
    path.write_bytes(data)
    report = embmap.convert(path, tmp_path / "b.fifu")
    assert report.left_out == ("unknown chunks",)
    assert rows(tmp_path / "b.fifu")[0] == WORDS


def write_safetensors(path, tensors, metadata=None):
    """Write raw tensors: (dtype in the file, shape, bytes) by name."""
    header = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, (kind, shape, data) in tensors.items():
        offsets = [position, position + len(data)]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        position = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


MODEL = {
    "words": ("BF16", [5, 2], bytes(range(20))),
    "mask": ("BOOL", [3], b"\0\1\0"),
    "small": ("F8_E4M3", [2, 1], b"\1\2"),
    "ids": ("I64", [2], bytes(16)),
    "empty": ("F32", [0], b""),
}


@pytest.mark.parametrize("names", [list(MODEL), ["words", "mask"], ["small"], ["ids"], []])
def test_a_safetensors_file_is_kept_whole(tmp_path, names):
    tensors = {name: MODEL[name] for name in names}
    path = write_safetensors(tmp_path / "a.safetensors", tensors, {"x": "ü"})
    report = embmap.convert(path, tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()
    assert report.left_out == ()


def test_a_safetensors_file_says_what_a_selection_leaves_out(tmp_path):
    tensors = {name: MODEL[name] for name in ("words", "mask")}
    path = write_safetensors(tmp_path / "a.safetensors", tensors)
    write_words(tmp_path / "a.safetensors.words.txt", WORDS)
    report = embmap.convert(path, tmp_path / "b.safetensors")
    assert report.left_out == ()
    assert report.words_path.read_text("utf-8").split("\n")[:-1] == WORDS
    for options in ({"words": WORDS[1:3]}, {"limit": 2}, {"tensor": "words"}):
        report = embmap.convert(path, tmp_path / "b.safetensors", **options)
        assert report.left_out == ("other tensors",)
    assert embmap.convert(path, tmp_path / "b.npy").left_out == ("other tensors",)


MATRICES = {
    "places": RNG.standard_normal((3, 2)).astype(np.float32),
    "words": RNG.standard_normal((5, 4)).astype(np.float32),
    "half": RNG.standard_normal((5, 2)).astype(np.float16),
    "bias": RNG.standard_normal(5).astype(np.float32),
}


def matrices(path, words=WORDS):
    """A safetensors file of several matrices, only some of which have a row for each word."""
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    library.save_file(MATRICES, path, {"k": "v"})
    if words is not None:
        write_words(path.with_name(f"{path.name}.words.txt"), words)
    return path, library.load_file


@pytest.mark.parametrize("words", [None, WORDS, [*WORDS[:4], WORDS[0]], WORDS[:3]])
def test_several_matrices_are_kept_with_the_words_beside_them(tmp_path, words):
    path, load = matrices(tmp_path / "a.safetensors", words)
    out = tmp_path / "b.safetensors"
    report = embmap.convert(path, out)
    assert (report.left_out, report.n_duplicates) == ((), 0)
    for name, values in load(out).items():
        np.testing.assert_array_equal(values, MATRICES[name], strict=True)
    if words is None:
        assert report.words_path is None
        report = embmap.convert(path, out, vocab=tuple(WORDS))
        words = WORDS
    assert report.n_words == len(words)
    assert report.words_path.read_text("utf-8").split("\n")[:-1] == words
    again = embmap.convert(out, tmp_path / "c.safetensors")  # the digests match
    assert again.words_path.read_bytes() == report.words_path.read_bytes()
    assert load(tmp_path / "c.safetensors").keys() == MATRICES.keys()


def test_words_that_fit_no_matrix_are_refused(tmp_path):
    path, _ = matrices(tmp_path / "a.safetensors", WORDS[:4])
    with pytest.raises(embmap.FormatError, match="4 lines"):
        embmap.convert(path, tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()


@pytest.mark.parametrize("beside", [None, WORDS])
@pytest.mark.parametrize(
    "options", [{"normalize": True}, {"dtype": "float64"}, {"limit": 2}, {"words": WORDS[1:3]}]
)
def test_of_several_matrices_one_is_to_be_chosen_before_rows_change(tmp_path, options, beside):
    path, load = matrices(tmp_path / "a.safetensors", beside)
    if "words" in options and beside is None:
        options = {**options, "vocab": WORDS}
    with pytest.raises(ValueError, match=r"choose (it|one) with tensor: \w+, \w+, \w+$"):
        embmap.convert(path, tmp_path / "b.safetensors", **options)
    assert not (tmp_path / "b.safetensors").exists()
    report = embmap.convert(path, tmp_path / "b.safetensors", tensor="words", **options)
    assert report.left_out == ("other tensors",)
    (found,) = load(tmp_path / "b.safetensors").values()
    assert found.shape == (report.n_words, 4)


@pytest.mark.parametrize("name", OUTPUTS)
def test_one_of_several_matrices_goes_to_every_format_and_back(tmp_path, name):
    path, load = matrices(tmp_path / "a.safetensors")
    out = tmp_path / f"b{OUTPUTS[name]}"
    options = {"normalize": False} if name == "finalfusion" else {}
    if name == "cvc":
        options["compression"] = "lossless"
    report = embmap.convert(path, out, tensor="words", **options)
    assert "other tensors" in report.left_out
    embmap.convert(out, tmp_path / "back.safetensors")
    back = tmp_path / "back.safetensors"
    assert Path(f"{back}.words.txt").read_text("utf-8").split("\n")[:-1] == WORDS
    (found,) = load(back).values()
    np.testing.assert_array_equal(found, MATRICES["words"], strict=True)


def test_the_safetensors_library_reads_every_tensor(tmp_path):
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    tensors = {
        "a": RNG.standard_normal((5, 3)).astype(np.float16),
        "b": RNG.standard_normal((5, 3)),
        "c": np.arange(4, dtype=np.int64).reshape(2, 1, 2),
    }
    library.save_file(tensors, tmp_path / "a.safetensors", {"k": "v"})
    embmap.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    found = library.load_file(tmp_path / "b.safetensors")
    assert sorted(found) == sorted(tensors)
    for name, values in tensors.items():
        np.testing.assert_array_equal(found[name], values, strict=True)


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors", "a.bin", "a.vec", "a.txt"])
def test_a_file_with_words_is_the_same_again(tmp_path, name):
    write_text(tmp_path / "source.vec")
    embmap.convert(tmp_path / "source.vec", tmp_path / name)
    (tmp_path / "again").mkdir()
    report = embmap.convert(tmp_path / name, tmp_path / "again" / name)
    assert report.left_out == ()
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    assert rows(tmp_path / "again" / name)[0] == WORDS


def test_word2vec_of_the_original_without_newlines_keeps_words_and_bits(tmp_path):
    write_word2vec(tmp_path / "a.bin", WORDS, VECTORS)
    embmap.convert(tmp_path / "a.bin", tmp_path / "b.bin")
    words, vectors = rows(tmp_path / "b.bin")
    assert words == WORDS
    assert vectors.tobytes() == VECTORS.tobytes()


EMBEDDED = "model.embed_tokens.weight"
KEPT = {
    EMBEDDED: ("F16", [5, 2], bytes(range(20))),
    "bits": ("BF16", [2], b"\1\2\3\4"),
    "ids": ("I64", [2], np.array([7, -8], "<i8").tobytes()),
    "small": ("I8", [1, 3], b"\1\2\3"),
    "rows": ("F32", [5], np.arange(5, dtype="<f4").tobytes()),
}
LOST = {
    "double": ("F64", [1], bytes(8)),
    "large": ("I64", [1], np.array([2**40], "<i8").tobytes()),
    "scalar": ("F32", [], bytes(4)),
    "mask": ("BOOL", [3], b"\0\1\0"),
}


@pytest.mark.parametrize("lost", [[], *([name] for name in LOST)])
def test_a_safetensors_file_becomes_an_embd_file_with_all_its_tensors(tmp_path, lost):
    tensors = KEPT | {name: LOST[name] for name in lost}
    path = write_safetensors(tmp_path / "a.safetensors", tensors, {"format": "pt"})
    write_words(tmp_path / "a.safetensors.words.txt", WORDS)
    report = embmap.convert(path, tmp_path / "b.weights")
    assert report.left_out == (("other tensors",) if lost else ())
    with embmap.open(path) as source, embmap.open(tmp_path / "b.weights") as file:
        assert list(file.tensors) == list(KEPT)
        for name in KEPT:
            expected = source.tensors[name]
            expected = expected.astype("i4") if name == "ids" else expected
            np.testing.assert_array_equal(file.tensors[name], expected, strict=True)
        assert file[WORDS[3]].tolist() == source[3].tolist()
        assert file.metadata["format"] == "pt"
        assert file.verify().ok


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"words": WORDS[1:3]}, [EMBEDDED, "bits", "ids", "small"]),
        ({"dtype": "float32"}, list(KEPT)),
        ({"dim": 1}, list(KEPT)),
        ({"output_layout": "flat"}, [EMBEDDED, "bits", "rows"]),
        ({"tensor": EMBEDDED}, ["embeddings.word_embeddings.weight"]),
        ({"limit": 2}, ["embeddings.word_embeddings.weight"]),
    ],
)
def test_what_an_embd_file_keeps_of_a_safetensors_file(tmp_path, options, names):
    path = write_safetensors(tmp_path / "a.safetensors", KEPT)
    write_words(tmp_path / "a.safetensors.words.txt", WORDS)
    report = embmap.convert(path, tmp_path / "b.weights", **options)
    assert report.left_out == (() if names == list(KEPT) else ("other tensors",))
    words = options.get("words", WORDS[: options.get("limit")])
    with embmap.open(path) as source, embmap.open(tmp_path / "b.weights") as file:
        assert (list(file.tensors), list(file)) == (names, words)
        rows = [WORDS.index(word) for word in words]
        expected = np.asarray(source.vectors)[rows, : options.get("dim")]
        np.testing.assert_array_equal(file.batch(words), expected)


def test_tensors_without_vectors_become_an_embd_file(tmp_path):
    tensors = {"a": ("F32", [5, 2], bytes(40)), "b": ("F32", [2, 5], bytes(40))}
    path = write_safetensors(tmp_path / "a.safetensors", tensors)
    assert embmap.convert(path, tmp_path / "b.weights").left_out == ()
    with embmap.open(tmp_path / "b.weights") as file:
        assert {name: each.shape for name, each in file.tensors.items()} == {
            "a": (5, 2),
            "b": (2, 5),
        }
    for options in ({"dim": 1}, {"dtype": "float16"}, {"limit": 1}):
        with pytest.raises(ValueError, match="tensor: a, b"):
            embmap.convert(path, tmp_path / "b.weights", **options)
