"""``embmap.torch.load_file``: the tensors of a file, equal to those that safetensors loads."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

import embmap
from tests.required import require

torch = require("torch")
from embmap.torch import load_file  # noqa: E402

safetensors_torch = require("safetensors.torch")

KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}
OF_EMBD = ("F32", "F16", "BF16", "I32", "I16", "I8", "U32", "U16", "U8")


def numbers(dtype, shape, seed=0):
    """A tensor of any bits, for bool of zeros and ones."""
    n = math.prod(shape) * dtype.itemsize
    if not n:
        return torch.empty(shape, dtype=dtype)
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, n, np.uint8)
    return torch.from_numpy(raw).view(dtype).reshape(shape)


def same(found, expected):
    """Whether dicts of tensors have the same keys, shapes, dtypes and bits."""
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype), name
        bits = (each.reshape(-1).view(torch.uint8) for each in (found[name], tensor))
        assert torch.equal(*bits), name


def of_one_kind(kind, folder):
    tensors = {
        "matrix": numbers(KINDS[kind], (6, 5)),
        "scalar": numbers(KINDS[kind], ()),
        "none": numbers(KINDS[kind], (0, 3)),
        "odd": numbers(KINDS[kind], (3, 1, 7)),
    }
    safetensors_torch.save_file(tensors, folder / "a.safetensors")
    return folder / "a.safetensors"


@pytest.mark.parametrize("kind", KINDS)
def test_safetensors_files_hold_what_safetensors_says(tmp_path, kind):
    path = of_one_kind(kind, tmp_path)
    expected = safetensors_torch.load_file(path)
    found = load_file(path)
    same({name: found[name] for name in expected}, expected)


@pytest.mark.parametrize("kind", OF_EMBD)
@pytest.mark.parametrize("align", [1, 64])
def test_embd_files_hold_the_same_tensors(tmp_path, kind, align):
    tensors = {"odd": numbers(torch.uint8, (3,)), "matrix": numbers(KINDS[kind], (6, 5))}
    source = tmp_path / "a.safetensors"
    safetensors_torch.save_file(tensors, source)
    path = embmap.embd.from_safetensors(source, align=align)
    expected = safetensors_torch.load_file(source)
    found = load_file(path)
    same({name: found[name] for name in expected}, expected)


def test_flat_embd_files_hold_the_same_tensors(tmp_path):
    tensors = {"a": numbers(torch.float32, (3, 2)).numpy(), "bc": np.ones(5, np.float32)}
    path = embmap.embd.write(tmp_path / "a.weights", tensors, vocab=["x", "yz"], layout="flat")
    same(load_file(path), {name: torch.from_numpy(each) for name, each in tensors.items()})


def test_numbers_of_four_bits_lie_two_in_an_element(tmp_path):
    write_header(tmp_path / "a.safetensors", "F4", [4, 8], 16)
    expected = safetensors_torch.load_file(tmp_path / "a.safetensors")
    same(load_file(tmp_path / "a.safetensors"), expected)
    write_header(tmp_path / "b.safetensors", "F4", [8, 3], 12)
    with pytest.raises(embmap.UnsupportedError, match="even in number"):
        load_file(tmp_path / "b.safetensors")


def write_header(path, kind, shape, nbytes):
    text = json.dumps({"t": {"dtype": kind, "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(range(nbytes)))


def test_numbers_of_six_bits_are_refused(tmp_path):
    write_header(tmp_path / "a.safetensors", "F6_E2M3", [4, 8], 24)
    with pytest.raises(embmap.UnsupportedError, match="no such dtype"):
        load_file(tmp_path / "a.safetensors")


def test_tensors_may_be_written_to_and_share_no_storage(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors_torch.save_file({"a": torch.ones(4), "b": torch.ones(4)}, path)
    before = path.read_bytes()
    found = load_file(path)
    found["a"].mul_(5)
    assert torch.equal(found["b"], torch.ones(4))
    assert found["a"].untyped_storage().nbytes() == 16
    assert torch.equal(load_file(path)["a"], torch.ones(4))
    assert path.read_bytes() == before


def test_a_model_takes_the_tensors_without_a_copy(tmp_path):
    model = torch.nn.Linear(3, 2)
    path = tmp_path / "a.safetensors"
    safetensors_torch.save_file(model.state_dict(), path)
    found = load_file(path)
    other = torch.nn.Linear(3, 2, device="meta")
    other.load_state_dict(found, assign=True)
    assert other.weight.data_ptr() == found["weight"].data_ptr()
    loss = other(torch.ones(1, 3)).sum()
    loss.backward()
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    assert torch.equal(other.weight, model.weight - 1)


def test_what_has_no_tensors_is_refused(path, tmp_path):
    with pytest.raises(embmap.UnsupportedError, match="no tensors with names"):
        load_file(path)
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(embmap.FormatError):
        load_file(tmp_path / "bad.safetensors")


def test_a_device_that_is_not_there_is_refused_before_the_file_is_opened(tmp_path):
    with pytest.raises(ValueError, match="device must be one that is there"):
        load_file(tmp_path / "none.safetensors", device="cuda:93")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_device_gets_the_same_tensors(tmp_path):
    path = of_one_kind("BF16", tmp_path)
    found = load_file(path, device="cuda")
    assert {each.device.type for each in found.values()} == {"cuda"}
    same({name: each.cpu() for name, each in found.items()}, load_file(path))


LARGER = """
import sys
from embmap.torch import load_file

tensors = load_file(sys.argv[1])
big = tensors["huge"]
big[5] += 1
assert big[5, 7] == 1 and big[-1].sum() == 0 and big.shape == (1 << 20, 1 << 18)
with open("/proc/self/status") as status:
    private = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
assert private < 600_000, private
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems promise no less memory")
def test_a_file_larger_than_memory_opens_as_tensors(tmp_path):
    path = tmp_path / "big.weights"
    name = b"huge"  # four bytes, after which the numbers are aligned
    head = b"EMBD" + np.array([1, 1, len(name)], "<u4").tobytes() + name
    head += np.array([2, 1 << 20, 1 << 18], "<u4").tobytes()
    with path.open("wb") as out:
        out.write(head)
        try:
            out.truncate(len(head) + (1 << 40) + 4)
        except OSError:
            pytest.skip("this file system has no files of a terabyte")
    ran = subprocess.run(
        [sys.executable, "-c", LARGER, path], capture_output=True, text=True, timeout=300
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")
