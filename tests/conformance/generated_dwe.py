"""What tests of made DWE files share: files to read, and the comparison with the reference."""

import json
import struct

import numpy as np
import pytest

import embmap
from tests.reference import dwe as reference

each_layout = pytest.mark.parametrize("layout", reference.LAYOUTS)


def steps(*shape, spread=20, seed=1):
    """Integers (T, V, K) that differ little from one time step to the next."""
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.integers(-spread, spread + 1, shape), axis=0).astype(np.int16)


def written(path, *arguments, **options):
    """A file from the reference encoder."""
    path.write_bytes(reference.encode(*arguments, **options))
    return path


def same(found, expected, what=""):
    """Check that two arrays are equal to the bit, any NaN for any NaN."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    np.testing.assert_array_equal(found, expected, str(what))
    if found.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        signs = np.signbit(found[numbers]), np.signbit(expected[numbers])
        np.testing.assert_array_equal(*signs, str(what))


def scaled(integers, scale):
    """Numbers that integers mean, in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return integers.astype(np.float32) * np.float32(scale)


def rows_are(matrix, expected):
    """Check every way to rows of a matrix."""
    n = len(expected)
    assert (matrix.shape, matrix.dtype) == (expected.shape, expected.dtype)
    assert not matrix.zero_copy
    same(np.asarray(matrix), expected)
    rng = np.random.default_rng(n)
    picked = rng.permutation(n)[:6].tolist()
    for i in picked:
        same(matrix[i], expected[i], i)
        same(matrix[i - n], expected[i], i)
        same(matrix[i : i + 1], expected[i : i + 1], i)
    for start, stop, step in ((1, n - 1, 1), (n // 3, n // 2, 1), (0, n, 3), (n, 0, -2), (n, n, 1)):
        same(matrix[start:stop:step], expected[start:stop:step], (start, stop, step))
    for start in range(n):
        assert matrix[start:start].shape == (0, *expected.shape[1:])
    twice = np.array(picked + [i - n for i in picked[:3]], np.int64)
    same(matrix[twice], expected[twice])
    same(matrix[np.arange(n) % 2 == 0], expected[::2])
    same(matrix[[]], expected[:0])
    out = np.full((twice.size, *expected.shape[1:]), 7, expected.dtype)
    assert matrix.take(twice, out) is out
    same(out, expected[twice])
    assert [start for start, _ in matrix.blocks(4)] == list(range(0, n, 4))
    same(np.concatenate([block for _, block in matrix.blocks(4)]), expected)
    for beyond in (n, -n - 1):
        with pytest.raises(IndexError):
            matrix[beyond]
        with pytest.raises(IndexError):
            matrix[[0, beyond]]


def trajectories_are(f, over_time):
    """Check every way to trajectories: shape (V, T, K)."""
    n = len(over_time)
    same(f[range(n)], over_time)
    same(f[:], over_time)
    rng = np.random.default_rng(n)
    picked = rng.permutation(n)[:5].tolist()
    for i in picked:
        same(f[i], over_time[i], i)
        same(f[np.int32(i)], over_time[i], i)
        same(f[i - n], over_time[i], i)
    twice = picked + [i - n for i in picked[:3]]
    for key in (twice, np.array(twice), np.array(twice, np.int8)):
        same(f[key], over_time[twice])
    for start, stop, step in ((1, n - 1, 1), (n // 3, n // 2, 1), (n, 0, -2), (2, 2, 1)):
        same(f[start:stop:step], over_time[start:stop:step])
    for nothing in ([], np.empty(0, np.int64)):
        same(f[nothing], over_time[:0])
    for beyond in (n, -n - 1):
        for read in (lambda i: f[i], lambda i: f[[0, i]], lambda i: f[np.array([i])]):
            with pytest.raises(IndexError, match="row"):
                read(beyond)


def queries_are(f, integers, scale):
    """Check the answers about some words."""
    n_steps, n, _ = integers.shape
    square = scaled(np.float32(scale), scale)
    first, second = [0, n - 1, n // 2], [n - 1, n - 1, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = reference.similarity(integers, scale, first, second)
    same(f.similarity_over_time(first, second), expected)
    for word, t in ((0, 0), (n - 1, n_steps - 1), (n // 2, n_steps // 2)):
        products = reference.dot_products(integers, t, word)
        for many in sorted({0, n // 2, n - 1}):
            found = f.most_related(word, t, many)
            assert [each.row for each in found] == reference.most_related(integers, t, word, many)
            scores = scaled(products[[each.row for each in found]], square)
            same(np.array([each.score for each in found], np.float32), scores)
        from_the_end = f.most_related(word - n, t - n_steps, n - 1)
        assert [each.row for each in from_the_end] == [each.row for each in found]
        last = reference.dot_products(integers, -1, word).astype(np.int64)
        changes = last - reference.dot_products(integers, 0, word)
        for many, *least in ((0, 0, 0), (n - 1, 0, 0), (n - 1, n // 3, n // 2), (n // 2, 1, 0)):
            if sum(least) > many:
                continue
            found = f.largest_changes(word, many, *least)
            rows = [each.row for each in found]
            assert rows == reference.largest_changes(integers, word, many, *least)
            scores = scaled(changes[rows], square)
            same(np.array([each.score for each in found], np.float32), scores)


def reads_like_the_reference(path, backend, data=None):
    """Compare an open file with the reference decoder; return what the decoder read."""
    if data is not None:
        path.write_bytes(data)
    decoded = reference.decode(path.read_bytes())
    integers, scale = decoded.quantized, decoded.scale
    n_steps, n, dim = integers.shape
    numbers = scaled(integers, scale)
    with embmap.open(path, backend=backend) as f:
        assert (f.format, f.layout, f.shape) == ("dwe", decoded.layout, (n, n_steps, dim))
        assert (len(f), f.dim, f.num_timesteps, f.dtype) == (n, dim, n_steps, np.float32)
        same(np.float32(f.scale), scale)
        rows_are(f.at(n_steps // 3).vectors, numbers[n_steps // 3])
        rows_are(f.at(-1 - n_steps // 2).vectors.quantized, integers[-1 - n_steps // 2])
        for t in range(n_steps):
            same(np.asarray(f.at(t).vectors.quantized), integers[t], t)
            same(np.asarray(f.at(t - n_steps).vectors), numbers[t], t)
        over_time = np.ascontiguousarray(numbers.swapaxes(0, 1))
        rows_are(f.vectors, over_time)
        trajectories_are(f, over_time)
        queries_are(f, integers, scale)
        report = f.verify()
        assert report.ok == (not decoded.problems)
        assert bool(report.problems) == bool(decoded.problems)
        info = json.loads(json.dumps(f.info(), allow_nan=False))
        assert info["shape"] == [n, n_steps, dim]
        assert (info["group"], info["version"]) == (decoded.group, f"1.{decoded.minor}")
    return decoded


def shared_chunk(values, shape, group):
    """A file of blocks in which all groups of all time steps are one chunk: two words u32 each."""
    n_steps, n_words, dim = shape
    assert values.shape == (group, dim)
    symbols = values.ravel().tolist()
    model = reference.best_model(symbols)
    encoder = reference.Encoder()
    encoder.push(symbols, model)
    state = [encoder.state >> 16, encoder.state & 0xFFFF]
    chunk = np.array([*state, *encoder.halfwords[::-1]], "<u2")
    head = np.array(reference.write_model(model), "<u2")
    head, chunk = (np.append(part, [0] * (part.size % 2)).astype("<u2") for part in (head, chunk))
    n_groups = n_words // group
    address = 10 + n_steps
    meta_size = address + head.size // 2 + n_groups
    size = meta_size + chunk.size // 2
    return b"".join(
        [
            struct.pack("<4s8If", b"\0dwe", 1, 0, size, meta_size, n_steps, n_words, dim, group, 1),
            struct.pack("<I", address) * n_steps,
            head.tobytes(),
            struct.pack("<I", meta_size) * n_groups,
            chunk.tobytes(),
        ]
    )
