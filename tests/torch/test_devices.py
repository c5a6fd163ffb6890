"""Decoding by operations of torch gives the bits that numpy gives, on the CPU and on devices."""

import numpy as np
import pytest

import embmap
from embmap.codecs import affine, half, planes
from embmap.cvc import load, load_chunks, write, write_columns
from embmap.devices.chunks import decode_there
from tests.required import require

torch = require("torch")
from embmap.devices import decoding  # noqa: E402
from embmap.devices.uploading import Upload  # noqa: E402

RNG = np.random.default_rng(11)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
        ],
    ),
]


@pytest.fixture(params=DEVICES)
def device(request):
    return torch.device(request.param)


def same(found, expected):
    """Whether a tensor has the shape, dtype and bits of an array."""
    array = found.cpu().numpy()
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.tobytes() == expected.tobytes()


def sent(array, device):
    return torch.from_numpy(array.view(np.uint8).reshape(-1).copy()).to(device)


def test_every_half_is_decoded_to_the_bit(device):
    stored = np.arange(65536, dtype=np.uint16)
    same(decoding.decode_half(sent(stored, device)), half.decode_half(stored))
    finite = stored[:1000]
    same(decoding.decode_half(sent(finite, device)), half.decode_half(finite))


@pytest.mark.parametrize("scale", [0.0123, -1e-3, 1e-45, 3e38, 1.1754944e-38])
@pytest.mark.parametrize("minimum", [-1.57, 0.0, 1e-40, -3e38, float(np.float32(1) / 3)])
def test_codes_are_decoded_with_two_roundings(device, scale, minimum):
    codes = np.arange(256, dtype=np.uint8)
    expected = affine.decode_affine(codes, scale, minimum)
    numbers = float(np.float32(scale)), float(np.float32(minimum))
    same(decoding.decode_affine(sent(codes, device), *numbers), expected)


def payload_of(values):
    encoder = planes.PlanesEncoder()
    encoder.see(values)
    return np.frombuffer(b"".join(encoder.encode(lambda: [values])), np.uint8)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1001])
@pytest.mark.parametrize("n_letters", [1, 2, 3, 5, 9, 17, 33, 65, 129, 256])
def test_planes_of_every_width_are_decoded(device, n, n_letters):
    values = RNG.integers(0, n_letters, (n, 4)).astype(np.uint8).view(np.float32).reshape(-1)
    payload = payload_of(values)
    layout = planes.parse_planes(payload)
    same(decoding.decode_planes(sent(payload, device), layout), values)


def test_a_code_outside_of_its_dictionary_is_refused(device):
    values = RNG.integers(0, 5, (40, 4)).astype(np.uint8).view(np.float32).reshape(-1)
    payload = payload_of(values).copy()
    layout = planes.parse_planes(payload)
    payload[layout.codes[2] + 3] = 0xFF  # codes of 7, of 5 letters
    for decode in (
        lambda: decoding.decode_planes(sent(payload, device), layout),
        lambda: planes.decode_planes(payload, layout, np.arange(40)),
    ):
        with pytest.raises(ValueError, match="plane 2 is not in its dictionary"):
            decode()


@pytest.mark.parametrize("n", [0, 1, 99, 100, 101, 1000])
def test_bytes_arrive_through_small_buffers(device, n):
    upload = Upload(device, buffer_nbytes=100)
    for _ in range(3):
        data = RNG.integers(0, 256, n).astype(np.uint8)
        same(upload.send(data), data)


def rows_of(kind):
    rows = RNG.standard_normal((60, 6)).astype(np.float32)
    if kind != "int8":
        rows[3] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-8]
    return rows


@pytest.mark.parametrize("kind", ["fp16", "int8", "lossless"])
def test_chunks_are_decoded_to_the_same_bits(tmp_path, device, kind):
    path = write(tmp_path / "a.cvc", rows_of(kind), compression=kind, chunk_rows=25, layout="1.0")
    with embmap.open(path) as file:
        expected = np.asarray(file.vectors)
        same(decode_there(file.vectors, range(3), device, buffer_nbytes=64), expected)
    for check in (True, False):
        same(load(path, device=device, framework="torch", check=check), expected)
        chunks = list(load_chunks(path, device=device, framework="torch", check=check))
        assert {chunk.device.type for chunk in chunks} == {device.type}
        same(torch.cat(chunks), expected)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i4", "i8", "i1", "u1"])
def test_columns_of_every_dtype(tmp_path, device, dtype):
    values = RNG.integers(0, 100, (60, 3)).astype(dtype)
    columns = {"a": values, "b": rows_of("fp16")}
    path = write_columns(tmp_path / "a.cvc", columns, chunk_rows=25, compression="none")
    with embmap.open(path) as file:
        for name, matrix in file.columns.items():
            expected = np.asarray(matrix)
            same(decode_there(matrix, range(3), device), expected)
            same(load(path, device=device, framework="torch", column=name), expected)


def test_a_damaged_chunk_is_named(tmp_path, device):
    rows = RNG.integers(0, 5, (60, 24)).astype(np.uint8).view(np.float32)
    path = write(tmp_path / "a.cvc", rows, compression="lossless", chunk_rows=25, layout="1.0")
    raw = bytearray(path.read_bytes())
    raw[-2] = 0xFF
    path.write_bytes(raw)
    with pytest.raises(embmap.ChecksumError, match="chunk 2"):
        load(path, device=device, framework="torch")
    with pytest.raises(embmap.FormatError, match="chunk 2 cannot be decoded"):
        load(path, device=device, framework="torch", check=False)
    with embmap.open(path) as file, pytest.raises(embmap.FormatError, match="chunk 2"):
        decode_there(file.vectors, range(3), device)


def test_what_is_not_there_is_refused(tmp_path):
    path = write(tmp_path / "a.cvc", rows_of("fp16"), compression="fp16", layout="1.0")
    with pytest.raises(ValueError, match="device must be one that is there"):
        load(path, device="cuda:93", framework="torch")
    try:
        import cupy  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="needs cupy"):
            load(path, framework="cupy")
    else:
        with pytest.raises(ValueError, match="device must be a CUDA device for cupy"):
            load(path, framework="cupy")
