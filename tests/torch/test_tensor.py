"""``embmap.torch.tensor`` and DLPack: rows and words as tensors."""

import numpy as np
import pytest

import embmap
from embmap.finalfusion import quantize
from tests.required import require

torch = require("torch")
from embmap.torch import tensor  # noqa: E402

HISTORY = np.cumsum(np.ones((3, 60, 4)), axis=0).astype(np.int16)


def same(found, expected):
    """Whether a tensor has the shape, dtype and bits of an array."""
    assert found.device.type == "cpu"
    array = found.numpy()
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.tobytes() == expected.tobytes()


def make_word_embedding(tmp_path, rows, words, dtype):
    if dtype == "bfloat16":
        source = embmap.embd.write(tmp_path / "a.weights", {"wte.weight": rows}, vocab=words)
        return embmap.convert(source, tmp_path / "b.weights", dtype="bfloat16").path
    tensors = {"wte.weight": rows.astype(dtype)}
    return embmap.embd.write(tmp_path / "b.weights", tensors, vocab=words)


@pytest.mark.parametrize("give", [torch.from_dlpack, torch.as_tensor, tensor])
def test_the_vectors_of_a_mapped_file_are_not_copied(path, rows, give):
    with embmap.open(path) as file:
        found = give(file.vectors)
        same(found, rows)
        found += 1
        same(give(file.vectors), rows)
    same(found, rows + 1)


@pytest.mark.parametrize("backend", ["mmap", "read"])
@pytest.mark.parametrize("asked_of", ["file", "vectors"])
def test_rows_are_asked_for_as_arrays_are(path, rows, backend, asked_of):
    with embmap.open(path, backend=backend) as file:
        source = file if asked_of == "file" else file.vectors
        same(tensor(source), rows)
        for key in (slice(3, 9), slice(None, None, -2), slice(9, 3)):
            same(tensor(source, key), rows[key])
        for key in ([5, -1, 5], [], [0], np.arange(60) % 2 == 0, range(4)):
            array = np.array(key, None if len(key) else int)
            same(tensor(source, key), rows[array])
            same(tensor(source, torch.from_numpy(array)), rows[array])
        for one in (4, -1, np.int64(4), torch.tensor(4)):
            same(tensor(source, one), rows[int(one)])


def test_what_is_returned_may_be_written_to(path, rows, words):
    with embmap.open(path) as file:
        for asked in (None, slice(0, 60), list(range(60)), words, 3, "w3"):
            tensor(file, asked).zero_()
            same(tensor(file), rows)


def test_words_are_looked_up(path, rows, words):
    with embmap.open(path) as file:
        same(tensor(file, "w7"), rows[7])
        same(tensor(file, ["w7", "w1"]), rows[[7, 1]])
        same(tensor(file, ("w7",)), rows[[7]])
        same(tensor(file, np.array(["w7", "w1"])), rows[[7, 1]])
        with pytest.raises(embmap.UnknownWordError, match="unknown"):
            tensor(file, ["w1", "unknown"])
        found = tensor(file, ["w1", "unknown"], missing="zero")
        same(found, np.stack([rows[1], np.zeros(8, np.float32)]))
        assert tensor(file, ["unknown"], missing="nan").isnan().all()
        with pytest.raises(ValueError, match="missing must be"):
            tensor(file, ["w1"], missing="ignore")
        with pytest.raises(TypeError, match="a matrix has no words"):
            tensor(file.vectors, "w1")


def test_unknown_words_are_composed(tmp_path, rows, words):
    indexer = embmap.subwords.BucketIndexer(3, 4, 2)
    vectors = np.concatenate((rows, np.ones((4, 8), np.float32)))
    path = embmap.finalfusion.write(tmp_path / "s.fifu", words, vectors, subwords=indexer)
    with embmap.open(path) as file:
        same(tensor(file, ["w1", "never"]), file.batch(["w1", "never"]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_numbers_are_converted(path, rows, dtype):
    expected = torch.from_numpy(rows).to(dtype)
    with embmap.open(path) as file:
        for found in (
            tensor(file, dtype=dtype),
            tensor(file, slice(0, 60), dtype=dtype),
            tensor(file, np.arange(60), dtype=dtype),
        ):
            assert found.dtype == dtype
            assert torch.equal(found, expected)


def halves():
    """Rows of every half-precision pattern."""
    return np.arange(65536, dtype=np.uint16)[:65520].reshape(60, -1).view(np.float16)


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_fp16_chunks_hand_out_the_stored_halves(tmp_path, words, backend):
    stored = halves()
    path = embmap.cvc.write(
        tmp_path / "a.cvc", stored, compression="fp16", chunk_rows=25, layout="1.0"
    )
    with embmap.open(path, vocab=words, backend=backend) as file:
        picked = np.array([59, 0, 26, 26, 7])
        for found, expected in (
            (tensor(file, dtype=torch.float16), stored),
            (tensor(file, slice(20, 51), dtype=torch.float16), stored[20:51]),
            (tensor(file, picked, dtype=torch.float16), stored[picked]),
            (tensor(file, [words[i] for i in picked], dtype=torch.float16), stored[picked]),
            (tensor(file, 30, dtype=torch.float16), stored[30]),
        ):
            same(found, expected)
        out = torch.empty((5, stored.shape[1]), dtype=torch.float16)
        assert tensor(file, picked, out=out, dtype=torch.float16) is out
        same(out, stored[picked])
        wide = tensor(file, picked)
        same(wide, file.vectors.take(picked))


def test_stored_halves_are_compared_with_their_checksum(tmp_path, chunked):
    path = chunked("fp16").path
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    with embmap.open(path) as file, pytest.raises(embmap.ChecksumError):
        tensor(file, dtype=torch.float16)


@pytest.mark.parametrize("compression", ["int8", "lossless"])
def test_other_chunks_are_decoded(chunked, compression):
    with chunked(compression) as file:
        expected = np.asarray(file.vectors)
        same(tensor(file), expected)
        same(tensor(file, [30, 2]), expected[[30, 2]])
        halves = tensor(file, [30, 2], dtype=torch.float16)
        assert torch.equal(halves, torch.from_numpy(expected[[30, 2]]).to(torch.float16))


def test_bfloat16_is_handed_out_as_it_is_stored(tmp_path, rows, words):
    path = make_word_embedding(tmp_path, rows, words, "bfloat16")
    expected = torch.from_numpy(rows).to(torch.bfloat16)
    with embmap.open(path) as file:
        for asked in (None, slice(2, 9), [4, -1], ["w4", "w59"]):
            key = [4, -1] if asked == ["w4", "w59"] else asked
            found = tensor(file, asked, dtype=torch.bfloat16)
            assert torch.equal(found, expected if key is None else expected[key])
            assert tensor(file, asked).dtype == torch.float32
        out = torch.empty((2, 8), dtype=torch.bfloat16)
        tensor(file, [4, -1], dtype=torch.bfloat16, out=out)
        assert torch.equal(out, expected[[4, -1]])
        found = tensor(file, dtype=torch.bfloat16)
        found.zero_()
        assert torch.equal(tensor(file, dtype=torch.bfloat16), expected)


def test_quantized_vectors_trajectories_and_integers(tmp_path, rows, words):
    codes = quantize(rows, 4, k=8, iterations=2)
    path = embmap.finalfusion.write(tmp_path / "pq.fifu", words, None, quantized=codes)
    with embmap.open(path) as file:
        same(tensor(file, [3, 1]), file[[3, 1]])
        same(tensor(file.vectors.codes), np.asarray(file.vectors.codes))
    walks = embmap.open(embmap.dwe.write(tmp_path / "a.dwe", HISTORY, scale=0.5), vocab=words)
    same(tensor(walks, ["w3", "w1"]), walks.batch(["w3", "w1"]))
    same(tensor(walks), np.asarray(walks.vectors))
    same(tensor(walks.at(1).vectors.quantized, [5]), HISTORY[1, [5]])


def test_out_is_filled(path, rows):
    with embmap.open(path) as file:
        out = torch.empty((2, 8))
        for asked in ([5, 1], slice(5, 7), ["w5", "w1"]):
            assert tensor(file, asked, out=out) is out
            same(out, np.array(file[asked]))
        wide = torch.zeros((4, 8))
        tensor(file, [5, 1], out=wide[::2])
        same(wide[::2].contiguous(), rows[[5, 1]])
        leaf = torch.zeros((2, 8), requires_grad=True)
        tensor(file, [5, 1], out=leaf)
        same(leaf.detach(), rows[[5, 1]])
        half = torch.empty((2, 8), dtype=torch.float16)
        tensor(file, [5, 1], out=half, dtype=torch.float16)
        same(half, rows[[5, 1]].astype(np.float16))


def test_arguments_that_do_not_fit_are_refused(path):
    with embmap.open(path) as file:
        with pytest.raises(ValueError, match="out must"):
            tensor(file, [1, 2], out=torch.empty((3, 8)))
        with pytest.raises(ValueError, match="out must have the shape"):
            tensor(file, slice(2), out=torch.empty((3, 8)))
        with pytest.raises(ValueError, match="out must have the dtype"):
            tensor(file, [1, 2], out=torch.empty((2, 8), dtype=torch.float64))
        with pytest.raises(ValueError, match="out must be on the device"):
            tensor(file, [1, 2], out=torch.empty((2, 8)), device="meta")
        for wrong in ([60], [-61], 60, -61):
            with pytest.raises(IndexError, match="row must be"):
                tensor(file, wrong)
        with pytest.raises(IndexError):
            tensor(file, [0.5])
        with pytest.raises(TypeError, match="dtype must be"):
            tensor(file, dtype="float16")
        with pytest.raises(TypeError, match="source must be"):
            tensor(path)
        for device in ("nonsense", "cuda:93", 93):
            with pytest.raises(ValueError, match="device must be one that is there"):
                tensor(file, [1], device=device)
    with pytest.raises(embmap.ClosedError):
        tensor(file, [1])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_device_gets_the_same_numbers(path, rows, non_blocking):
    with embmap.open(path) as file:
        for asked in (None, slice(2, 9), [5, -1], ["w5", "w59"]):
            found = tensor(file, asked, device="cuda", non_blocking=non_blocking)
            torch.cuda.synchronize()
            assert found.device.type == "cuda"
            same(found.cpu(), np.array(rows if asked is None else file[asked]))
        out = torch.empty((2, 8), device="cuda")
        assert tensor(file, [5, -1], out=out) is out
        same(out.cpu(), rows[[5, -1]])
