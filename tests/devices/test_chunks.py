"""``embmap.cvc.load``: a whole CVC file as an array, and its chunks one after the other."""

import sys

import numpy as np
import pytest

import embmap
from embmap.cvc import load, load_chunks, write, write_columns

ROWS = np.random.default_rng(5).standard_normal((60, 6)).astype(np.float32)


@pytest.fixture(params=["fp16", "int8", "lossless"])
def path(request, tmp_path):
    return write(tmp_path / "a.cvc", ROWS, compression=request.param, chunk_rows=25, layout="1.0")


@pytest.mark.parametrize("check", [True, False])
def test_the_rows_are_those_of_the_open_file(path, check):
    with embmap.open(path) as file:
        expected = np.asarray(file.vectors)
    found = load(path, check=check)
    assert found.flags.writeable
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()
    chunks = list(load_chunks(path, check=check))
    assert [len(chunk) for chunk in chunks] == [25, 25, 10]
    assert np.concatenate(chunks).tobytes() == expected.tobytes()


def test_columns_are_loaded_by_name(tmp_path):
    columns = {"a": ROWS, "b": np.arange(120, dtype=np.int32).reshape(60, 2)}
    path = write_columns(tmp_path / "a.cvc", columns, chunk_rows=25)
    with embmap.open(path) as file:
        for name in columns:
            found = load(path, column=name)
            assert found.dtype == file.columns[name].dtype
            assert np.array_equal(found, np.asarray(file.columns[name]))
    with pytest.raises(ValueError, match="column must be one of a, b, not None"):
        load(path)
    with pytest.raises(KeyError):
        load(path, column="c")


def test_damage_is_noticed_unless_checks_are_left_out(tmp_path):
    path = write(tmp_path / "a.cvc", ROWS, compression="int8", chunk_rows=25, layout="1.0")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(embmap.ChecksumError, match="chunk 2"):
        load(path)
    chunks = load_chunks(path)
    assert len(next(chunks)) == len(next(chunks)) == 25
    with pytest.raises(embmap.ChecksumError, match="chunk 2"):
        next(chunks)
    assert load(path, check=False).shape == ROWS.shape


def test_arguments_that_do_not_fit_are_refused_at_once(path, tmp_path, monkeypatch):
    for function in (load, load_chunks):
        with pytest.raises(ValueError, match="framework must be one of numpy, torch, cupy"):
            function(path, framework="jax")
        with pytest.raises(ValueError, match="device must be 'cpu' for numpy"):
            function(path, device="cuda")
        with pytest.raises(FileNotFoundError):
            function(tmp_path / "none.cvc")
    (tmp_path / "bad.cvc").write_bytes(b"nonsense")
    with pytest.raises(embmap.FormatError):
        load(tmp_path / "bad.cvc")
    for name in ("torch", "embmap.devices.uploading"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"embmap\[torch\]"):
        load(path, framework="torch")


def test_a_file_without_rows_has_none_to_load(tmp_path):
    path = write(tmp_path / "a.cvc", ROWS[:0], compression="fp16", layout="1.0")
    assert load(path).shape == (0, 6)


def test_chunks_say_what_their_codes_mean(tmp_path):
    path = write(tmp_path / "a.cvc", ROWS, compression="int8", chunk_rows=25, layout="1.0")
    with embmap.open(path) as file:
        for chunk in file.chunks:
            (parameters,) = chunk.parameters.values()
            codes = chunk.raw.reshape(chunk.rows, 6).astype(np.float32)
            decoded = codes * np.float32(parameters["scale"]) + np.float32(parameters["min"])
            assert np.array_equal(decoded, chunk.decode())
    path = write(tmp_path / "b.cvc", ROWS, compression="fp16", layout="1.0")
    with embmap.open(path) as file:
        assert file.chunks[0].parameters == {}
