"""Every EMBD file of the conformance folder, and files made here, give their known answers.

Both back ends, and tokens found with and without an index file. The files made here come from the
reference encoder and cover the same ground without the folder.
"""

import json
import sys

import numpy as np
import pytest

import embmap
from tests.reference import embd as reference

WORDS = "embeddings.word_embeddings.weight"
# These open: what is wrong with them shows when it is read, and to verify().
FOUND_LATER = ("data_bitflip", "token_not_utf8", "name_hash_wrong")
EVERY_FILE = pytest.mark.conformance_files("embd/*.weights")
WITH_ANSWERS = pytest.mark.conformance_files(
    "embd/*.weights", where=lambda path: path.with_suffix(".json").exists()
)
REFUSED = pytest.mark.conformance_files(
    "embd/bad/*.weights", where=lambda path: path.stem not in FOUND_LATER
)


def known_answers(path):
    """What the folder says about a file, as the reference decoder would."""
    answers = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    expected = reference.Decoded(layout=answers["layout"])
    with np.load(path.with_suffix(".npz")) as arrays:
        for i, (name, dtype, shape) in enumerate(answers["tensors"]):
            expected.tensors[name] = (dtype, tuple(shape), arrays[f"t{i}"])
    expected.tokens = [token.encode() for token in answers["vocab"] or []]
    expected.special_tokens = answers["special_tokens"] or {}
    expected.metadata = answers["metadata"] or {}
    return expected


def same_bits(found, dtype, shape, raw):
    """Whether an array holds a tensor bit for bit, under a dtype that says so."""
    assert found.shape == shape
    if dtype == "bfloat16":
        assert str(found.dtype) in ("bfloat16", "uint16")
    else:
        assert found.dtype == reference.numpy_dtype(dtype)
    assert found.tobytes() == raw.tobytes()


def as_float32(dtype, raw):
    """The values of a tensor, one after the other from its bits."""
    if dtype != "bfloat16":
        return raw.astype(np.float32)
    return (raw.astype(np.uint32) << 16).view(np.float32)


def says(f, expected):
    """Check that an open file contains all that is expected, and nothing else."""
    assert (f.format, f.layout) == ("embd", expected.layout)
    assert list(f.tensors) == list(expected.tensors)
    assert len(f.tensors) == len(expected.tensors)
    for name, (dtype, shape, raw) in expected.tensors.items():
        assert name in f.tensors
        for array in (f.tensors[name], f.tensor(name)):
            same_bits(array, dtype, shape, raw)
            assert not array.flags.writeable
        converted = f.tensor(name, dtype="float32")
        assert converted.dtype == np.float32
        np.testing.assert_array_equal(converted, as_float32(dtype, raw), strict=True)
    assert "no such tensor" not in f.tensors
    with pytest.raises(KeyError):
        f.tensors["no such tensor"]
    with pytest.raises(KeyError):
        f.tensor("no such tensor")
    assert f.metadata == expected.metadata
    assert f.special_tokens == expected.special_tokens
    words_are_rows(f, expected)


def words_are_rows(f, expected):
    """Check the tokens of an open file and, where it has vectors, their rows."""
    tokens = [token.decode() for token in expected.tokens]
    assert (f.vocab is not None) == bool(tokens)
    assert list(f.vocab or []) == tokens
    assert f.find(tokens).tolist() == [tokens.index(token) for token in tokens]
    if f.vectors is None:
        assert WORDS not in expected.tensors
        return
    if WORDS not in expected.tensors:
        return
    dtype, shape, raw = expected.tensors[WORDS]
    rows = as_float32(dtype, raw) if dtype == "bfloat16" else raw
    assert f.shape == f.vectors.shape == shape
    np.testing.assert_array_equal(np.asarray(f.vectors), rows, strict=True)
    assert f.vectors.zero_copy == (f.info()["backend"] == "mmap" and dtype != "bfloat16")
    for token in tokens:
        np.testing.assert_array_equal(f[token], rows[tokens.index(token)], strict=True)
    if f.vectors.zero_copy and tokens:
        assert not f[tokens[0]].flags.writeable
    np.testing.assert_array_equal(f[tokens], rows[[tokens.index(token) for token in tokens]])


@WITH_ANSWERS
def test_files_say_what_the_folder_knows_of_them(opened, conformance_file):
    says(opened, known_answers(conformance_file))


@EVERY_FILE
def test_files_say_what_the_reference_decoder_reads(opened, conformance_file):
    says(opened, reference.decode(conformance_file.read_bytes()))


@WITH_ANSWERS
def test_sound_files_are_verified_without_an_error(opened):
    report = opened.verify()
    assert report.ok, report.problems


@WITH_ANSWERS
def test_the_reference_decoder_gives_the_same_answers(conformance_file):
    decoded = reference.decode(conformance_file.read_bytes())
    expected = known_answers(conformance_file)
    assert decoded.layout == expected.layout
    assert list(decoded.tensors) == list(expected.tensors)
    for name, (dtype, shape, raw) in expected.tensors.items():
        assert decoded.tensors[name][:2] == (dtype, shape)
        assert decoded.tensors[name][2].tobytes() == raw.tobytes()
    assert decoded.tokens == expected.tokens
    assert decoded.special_tokens == expected.special_tokens
    assert decoded.metadata == expected.metadata
    assert decoded.problems == []


@pytest.mark.parametrize(
    ("name", "checked"), [("spec_no_checksums", False), ("spec_aligned", True), ("flat", False)]
)
def test_a_file_without_checksums_is_reported_as_unverified(conformance, name, checked):
    with embmap.open(conformance / "embd" / f"{name}.weights") as f:
        report = f.verify()
    assert report.ok
    assert ("checksums" in report.checked) == checked


def test_missing_metadata_keys_are_a_warning(conformance):
    with embmap.open(conformance / "embd" / "spec_metadata_utf8_missing_key.weights") as f:
        report = f.verify()
    assert report.ok
    warned = [problem for problem in report.problems if "created_at" in problem.message]
    assert [problem.severity for problem in warned] == ["warning"]


def test_a_file_of_both_layouts_is_spec(conformance, backend):
    path = conformance / "embd" / "polyglot_is_spec.weights"
    with embmap.open(path, backend=backend) as f:
        assert f.layout == "spec"
    with embmap.open(path, backend=backend, layout="flat") as f:
        assert f.layout == "flat"


# Bad files


@REFUSED
def test_bad_files_are_refused_when_opened(conformance_file, backend):
    with pytest.raises(embmap.FormatError):
        embmap.open(conformance_file, backend=backend)
    with pytest.raises(reference.InvalidFile):
        reference.decode(conformance_file.read_bytes())


def test_truncated_files_say_by_how_much(conformance, backend):
    for name, nbytes in (("truncated_half", 1688), ("truncated_16", 3360)):
        with pytest.raises(embmap.TruncatedError, match=rf"{nbytes} bytes, expected 3376"):
            embmap.open(conformance / "embd" / "bad" / f"{name}.weights", backend=backend)


@pytest.mark.parametrize("name", ["version2", "compressed_flag", "unknown_flag"])
def test_what_is_of_another_version_is_not_called_corrupt(conformance, backend, name):
    with pytest.raises(embmap.UnsupportedError):
        embmap.open(conformance / "embd" / "bad" / f"{name}.weights", backend=backend)


@pytest.mark.parametrize("name", FOUND_LATER)
def test_what_opening_leaves_unread_is_found_by_verify(conformance, backend, name):
    with embmap.open(conformance / "embd" / "bad" / f"{name}.weights", backend=backend) as f:
        report = f.verify()
        assert not report.ok
        assert report.problems


def test_a_token_that_is_not_utf8_is_refused_when_read(conformance, backend):
    path = conformance / "embd" / "bad" / "token_not_utf8.weights"
    decoded = reference.decode(path.read_bytes())
    with embmap.open(path, backend=backend) as f:
        assert decoded.tokens[0] == b"\xffPAD]"
        with pytest.raises(embmap.FormatError):
            f.vocab[0]
        with pytest.raises(embmap.FormatError):
            list(f.vocab)
        for row, token in list(enumerate(decoded.tokens))[1:]:
            assert f.vocab[row] == token.decode()
            np.testing.assert_array_equal(f[token.decode()], f.vectors[row])


def test_a_tensor_whose_name_has_a_wrong_hash_is_found_by_name(conformance, backend):
    path = conformance / "embd" / "bad" / "name_hash_wrong.weights"
    decoded = reference.decode(path.read_bytes())
    with embmap.open(path, backend=backend) as f:
        for name, (dtype, shape, raw) in decoded.tensors.items():
            same_bits(f.tensors[name], dtype, shape, raw)


# Files made here


def tensor(dtype, shape, seed=0):
    """A tensor of any type with every bit in use."""
    rng = np.random.default_rng(seed)
    if dtype in ("float32", "float16"):
        return dtype, shape, rng.normal(size=shape).astype(reference.numpy_dtype(dtype))
    if dtype == "bfloat16":  # bits of numbers, so that they equal themselves
        bits = rng.normal(size=shape).astype("<f4").view("<u4") >> 16
        return dtype, shape, bits.astype("<u2")
    kind = reference.numpy_dtype(dtype)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return dtype, shape, rng.integers(low, high, shape, dtype=kind.newbyteorder("="), endpoint=True)


TOKENS = ["[PAD]", "", "##ing", "déjà", "日本", "🙂", "a\0", "\0", "x" * 300]
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def content(layout="spec", tensors=None, tokens=TOKENS, metadata=None, **special):
    """The content of a file: by default a word embedding, other tensors, tokens and metadata."""
    if tensors is None:
        tensors = {WORDS: tensor("float32", (len(tokens), 3)), "b": tensor("float32", (3,), 1)}
    made = reference.Decoded(layout, tensors, [token.encode() for token in tokens])
    if layout == "spec":
        made.metadata = reference.REQUIRED_METADATA if metadata is None else metadata
        made.special_tokens = (SPECIAL | special) if tokens else {}
    return made


def made_files():
    """Content, and how to encode it, by what is special about it."""
    shapes = [(5,), (2, 3), (2, 3, 4), (1, 2, 1, 3)]
    dtypes = {dtype: tensor(dtype, shapes[i % 4], i) for i, dtype in enumerate(reference.DTYPES)}
    dims = {f"d{len(shape)}": tensor("float32", shape) for shape in shapes}
    empty = {
        "first": tensor("float32", (0,)),
        "e1": tensor("float32", (2, 0)),
        "full": tensor("float32", (3,)),
        "e2": tensor("float32", (1, 0, 2, 5)),
        "last": tensor("float32", (0, 7)),
    }
    colliding = {name: tensor("float32", (2, 2), i) for i, name in enumerate(COLLIDING)}
    unicode = {"größe": tensor("float32", (1,)), "日本.🙂": tensor("float32", (2,))}
    wide = {WORDS: tensor("float32", (len(TOKENS) + 4, 3))}
    odd = {"odd": tensor("uint8", (3,)), WORDS: tensor("float32", (len(TOKENS), 3))}
    for_words = [
        ("bfloat16 words", "bfloat16"),
        ("float16 words", "float16"),
        ("int8 words", "int8"),
    ]
    metadata = reference.REQUIRED_METADATA | {"größe": "Ü", "": "", "long": "y" * 65535}
    spec = {
        "plain": content(),
        "dtypes": content(tensors=dtypes, tokens=[]),
        "unnamed words": content(tensors={"": tensor("float32", (9, 2))}),
        "odd bytes": content(tensors=odd),
        "metadata": content(metadata=metadata),
        "no metadata": content(metadata={}),
        "special ids": content(pad=3, mask=2**32 - 1),
        **{
            name: content(tensors={WORDS: tensor(dtype, (len(TOKENS), 3))})
            for name, dtype in for_words
        },
    }
    both = {
        "dims": {"tensors": dims, "tokens": []},
        "empty tensors": {"tensors": empty},
        "nothing": {"tensors": {}, "tokens": []},
        "no tensors": {"tensors": {}},
        "no vocabulary": {"tensors": dims, "tokens": []},
        "one empty token": {"tokens": [""]},
        "colliding names": {"tensors": colliding, "tokens": []},
        "unicode names": {"tensors": unicode, "tokens": []},
        "more rows than tokens": {"tensors": wide},
    }
    files = {}
    for name, made in (spec | {name: content(**parts) for name, parts in both.items()}).items():
        files[name] = (made, {})
        files[f"{name}, unaligned"] = (made, {"align": 1})
        files[f"{name}, no checksums"] = (made, {"align": 8, "checksums": False})
    for name, parts in ({"plain": {}} | both).items():
        files[f"flat {name}"] = (content("flat", **parts), {"layout": "flat"})
    return files


COLLIDING = ("costarring", "liquid")
MADE = made_files()
each_made_file = pytest.mark.parametrize("name", MADE)


def test_the_hash_of_names_is_that_of_the_text():
    assert reference.fnv1a(b"a") == 0xE40C292C
    assert reference.fnv1a(b"foobar") == 0xBF9CF968
    assert reference.fnv1a(WORDS.encode()) == 0xDB668D90
    assert len({reference.fnv1a(name.encode()) for name in COLLIDING}) == 1


@each_made_file
def test_made_files_say_what_they_were_made_of(tmp_path, backend, name):
    made, options = MADE[name]
    path = tmp_path / "file.weights"
    path.write_bytes(reference.encode(made, **options))
    with embmap.open(path, backend=backend) as f:
        says(f, made)
        report = f.verify()
        assert report.ok, report.problems
        if not f.vocab:
            return
        f.build_index()
        says(f, made)
    with embmap.open(path, backend=backend, index="require") as f:
        says(f, made)


@each_made_file
def test_what_is_written_is_what_the_reference_decoder_reads(tmp_path, name):
    made, options = MADE[name]
    path = tmp_path / "file.weights"
    arguments = {"layout": made.layout}
    if made.layout == "spec":
        arguments |= options
        arguments["metadata"] = made.metadata
        arguments["special_tokens"] = made.special_tokens or None
    if made.tokens:
        arguments["vocab"] = [token.decode() for token in made.tokens]
    arrays = {name: as_written(dtype, raw) for name, (dtype, _, raw) in made.tensors.items()}
    no_such_token = any(number >= len(made.tokens) for number in made.special_tokens.values())
    if made.layout == "spec" and (not made.metadata or no_such_token):
        # Such files are read, but not written.
        with pytest.raises(ValueError, match="special token" if made.metadata else "model_name"):
            embmap.embd.write(path, arrays, **arguments)
        assert list(tmp_path.iterdir()) == []
        return
    embmap.embd.write(path, arrays, **arguments)
    decoded = reference.decode(path.read_bytes())
    assert decoded.layout == made.layout
    assert list(decoded.tensors) == list(made.tensors)
    for tensor_name, (dtype, shape, raw) in made.tensors.items():
        assert decoded.tensors[tensor_name][:2] == (dtype, shape)
        assert decoded.tensors[tensor_name][2].tobytes() == raw.tobytes()
    assert decoded.tokens == made.tokens
    assert decoded.metadata == made.metadata
    assert decoded.special_tokens == made.special_tokens
    assert decoded.problems == []
    if made.layout == "spec":
        checksums, aligned = options.get("checksums", True), options.get("align", 64) == 64
        assert bool(decoded.flags & reference.CHECKSUM_ENABLED) == checksums
        assert bool(decoded.flags & reference.TENSORS_ALIGNED) == aligned
    with embmap.open(path) as f:
        says(f, made)
        assert f.verify().ok


def as_written(dtype, raw):
    """An array as the writer takes it."""
    if dtype != "bfloat16":
        return raw
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="what writes bfloat16")
    return raw.view(ml_dtypes.bfloat16)


def test_the_reference_encoder_and_decoder_agree():
    for made, options in MADE.values():
        decoded = reference.decode(reference.encode(made, **options))
        assert decoded.problems == []
        assert list(decoded.tensors) == list(made.tensors)
        assert decoded.tokens == made.tokens
        assert decoded.metadata == made.metadata
        assert decoded.special_tokens == made.special_tokens


def test_bfloat16_is_uint16_without_ml_dtypes(tmp_path, backend, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    path = tmp_path / "file.weights"
    _, _, raw = words = tensor("bfloat16", (len(TOKENS), 3))
    path.write_bytes(reference.encode(content(tensors={WORDS: words})))
    with embmap.open(path, backend=backend) as f:
        np.testing.assert_array_equal(f.tensors[WORDS], raw, strict=True)
        values = f.tensor(WORDS, dtype="float32")
        np.testing.assert_array_equal(values, as_float32("bfloat16", raw), strict=True)
        np.testing.assert_array_equal(f["日本"], values[4], strict=True)


def test_bfloat16_is_that_of_ml_dtypes(tmp_path, backend):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "file.weights"
    made = content(tensors={"t": tensor("bfloat16", (5,))}, tokens=[])
    path.write_bytes(reference.encode(made))
    with embmap.open(path, backend=backend) as f:
        assert f.tensors["t"].dtype == ml_dtypes.bfloat16
        values = f.tensor("t", dtype="float64")
        np.testing.assert_array_equal(values, f.tensors["t"].astype(np.float64), strict=True)


@pytest.mark.parametrize("key", reference.REQUIRED_METADATA)
def test_the_writer_insists_on_the_required_metadata(tmp_path, key):
    path = tmp_path / "file.weights"
    metadata = dict(reference.REQUIRED_METADATA)
    del metadata[key]
    with pytest.raises((embmap.EmbmapError, ValueError), match=key):
        embmap.embd.write(path, {"t": np.zeros(2, np.float32)}, metadata=metadata)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.arange(24, dtype=">f4").reshape(4, 6), id="big-endian"),
        pytest.param(np.arange(24, dtype="<f4").reshape(4, 6).T, id="transposed"),
        pytest.param(np.arange(24, dtype="<f4").reshape(4, 6)[::-2, ::3], id="strided"),
        pytest.param(np.arange(24, dtype="<i2")[::5], id="strided vector"),
        pytest.param(np.broadcast_to(np.float32(3), (3, 2)), id="broadcast"),
        pytest.param(np.array([[1, 2], [3, 4]], dtype=">u2"), id="big-endian short"),
    ],
)
def test_arrays_of_any_order_are_written_row_by_row(tmp_path, array):
    path = tmp_path / "file.weights"
    embmap.embd.write(path, {"t": array}, metadata=reference.REQUIRED_METADATA)
    _, shape, raw = reference.decode(path.read_bytes()).tensors["t"]
    assert shape == array.shape
    np.testing.assert_array_equal(raw, array)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param({"tensors": {"t": np.float32(1)}}, ValueError, id="no dimensions"),
        pytest.param({"tensors": {"t": np.zeros((1,) * 5, "f4")}}, ValueError, id="five"),
        pytest.param({"tensors": {"t": np.zeros(2)}}, ValueError, id="float64"),
        pytest.param({"tensors": {"t": np.array(["a"])}}, ValueError, id="text"),
        pytest.param({"tensors": {"n" * 65536: np.zeros(1, "f4")}}, ValueError, id="long name"),
        pytest.param({"vocab": ["t" * 65536]}, ValueError, id="long token"),
        pytest.param({"vocab": ["\ud800"]}, ValueError, id="surrogate"),
        pytest.param({"vocab": [b"bytes"]}, TypeError, id="bytes"),
        pytest.param({"align": 0}, ValueError, id="no alignment"),
        pytest.param({"align": 48}, ValueError, id="odd alignment"),
        pytest.param({"layout": "blocks"}, ValueError, id="layout"),
        pytest.param({"layout": "flat"}, ValueError, id="flat with metadata"),
        pytest.param(
            {"layout": "flat", "metadata": None, "tensors": {"t": np.zeros(2, "f2")}},
            ValueError,
            id="flat float16",
        ),
        pytest.param({"vocab": ["a"], "special_tokens": {"pad": 0}}, ValueError, id="one id"),
    ],
)
def test_what_cannot_be_written_leaves_the_old_file(tmp_path, arguments, error):
    path = tmp_path / "file.weights"
    path.write_bytes(b"old")
    given = {"tensors": {"t": np.zeros(2, "f4")}, "metadata": reference.REQUIRED_METADATA}
    with pytest.raises(error):
        embmap.embd.write(path, **(given | arguments))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ml_dtypes", ["as installed", "absent"])
def test_the_tensors_of_a_file_are_written_as_they_are(tmp_path, backend, monkeypatch, ml_dtypes):
    if ml_dtypes == "absent":
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    made, _ = MADE["dtypes"]
    first, second = tmp_path / "first.weights", tmp_path / "second.weights"
    first.write_bytes(reference.encode(made))
    with embmap.open(first, backend=backend) as f:
        embmap.embd.write(second, f.tensors, metadata=f.metadata)
    assert second.read_bytes() == first.read_bytes()
