"""CVC files of the conformance folder, bit for bit."""

import numpy as np
import pytest

import embmap


def same_bits(found, expected):
    """Whether two arrays are equal to the bit, any NaN for any NaN."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype.kind != "f":
        return np.array_equal(found, expected)
    bits = f"u{found.itemsize}"
    equal = np.ascontiguousarray(found).view(bits) == np.ascontiguousarray(expected).view(bits)
    return bool((equal | (np.isnan(found) & np.isnan(expected))).all())


def answers(path):
    """The arrays beside a file, each with what it is of: columns and sections."""
    for beside in sorted(path.parent.glob(f"{path.stem}.*npy")):
        keys = [key for key in beside.stem[len(path.stem) + 1 :].split(".") if key]
        yield keys, np.load(beside)


@pytest.mark.conformance_files("cvc/v0/*.cvc", "cvc/v1/*.cvc", "cvc/v2/*.cvc", "cvc/handmade/*.cvc")
@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_every_file_gives_its_arrays(conformance_file, backend):
    with embmap.open(conformance_file, backend=backend) as file:
        assert file.format == "cvc"
        assert file.layout == {"v0": "0.1", "v1": "1.0", "v2": "2.0"}.get(
            conformance_file.parent.name, file.layout
        )
        assert file.verify().ok
        for keys, expected in answers(conformance_file):
            matrix, rows = file.vectors, None
            for key in keys:
                if "=" in key:
                    rows = file.section(**dict([key.split("=", 1)]))
                elif key in file.columns:
                    matrix = file.columns[key]
            found = np.asarray(matrix) if rows is None else matrix.take(rows)
            if expected.ndim == 1:  # the reference drops a second dimension of one
                found = found[:, 0]
            if expected.dtype != found.dtype:  # and hands integers out as float32
                assert "i" in keys or "true" not in keys
                continue
            assert same_bits(found, expected), keys


@pytest.mark.conformance_files("cvc/v0/*.cvc", "cvc/v1/*.cvc", "cvc/v2/*.cvc", "cvc/handmade/*.cvc")
@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_any_rows_are_those_of_the_whole(conformance_file, backend):
    with embmap.open(conformance_file, backend=backend) as file:
        for matrix in file.columns.values():
            whole = np.asarray(matrix)
            n = len(whole)
            rows = np.random.default_rng(0).integers(0, n, 40) if n else np.empty(0, int)
            assert same_bits(matrix.take(rows), whole[rows])
            for row in rows[:8].tolist():
                assert same_bits(matrix[row], whole[row])
            for start, stop in ((0, n), (1, n // 2), (n // 3, n // 3 + 5)):
                assert same_bits(matrix[start:stop], whole[start:stop])
            joined = [block for _, block in matrix.blocks(7)]
            assert not joined or same_bits(np.concatenate(joined), whole)
            matrix.prefetch(rows)


@pytest.mark.conformance_files("cvc/bad/*.cvc")
@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_every_bad_file_is_refused(conformance_file, backend):
    if conformance_file.stem not in ("crc_wrong", "payload_bitflip"):
        with pytest.raises(embmap.FormatError) as caught:
            embmap.open(conformance_file, backend=backend)
        assert str(conformance_file) in str(caught.value)
        return
    with embmap.open(conformance_file, backend=backend) as file:
        assert not file.verify().ok
        with pytest.raises(embmap.ChecksumError, match="chunk"):
            np.asarray(file.vectors)
        assert file[0].shape == (file.dim,)
