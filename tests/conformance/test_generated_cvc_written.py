"""The reference decoder reads the CVC files that embmap writes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from tests.conformance.generated_cvc import (
    ABOUT,
    COLUMNS,
    SPECIAL,
    WITHOUT_COLUMNS,
    each_way,
    reads_like_the_reference,
    reference_halves,
    same,
    values,
    vectors,
)
from tests.reference import cvc as reference

# ------------------------------------------------------------------------------ what embmap writes


@each_way
def test_what_is_written_is_what_the_reference_reads(path, backend, way):
    version, compression = WITHOUT_COLUMNS[way]
    for n, dim, chunk_rows in ((23, 5, 10), (23, 5, 100), (1, 1, 1), (8, 3, 4), (0, 4, 10)):
        rows = vectors(n, dim)
        about = {"sections": [{"start": 0, "stop": n, "metadata": {"ü": 1}}], "metadata": ABOUT}
        embmap.cvc.write(
            path, rows, compression=compression, layout=version, chunk_rows=chunk_rows, **about
        )
        decoded = reads_like_the_reference(path, backend)
        assert decoded.version == version
        assert decoded.metadata == ABOUT
        assert decoded.sections == [(0, n, {"ü": 1})]
        sizes = [min(chunk_rows, n - start) for start in range(0, n, chunk_rows)]
        assert [chunk.rows for chunk in decoded.chunks] == sizes
        for chunk in decoded.chunks:
            part = rows[chunk.start : chunk.start + chunk.rows]
            assert chunk.compressions == [compression]
            assert chunk.payload == reference.stored_as(compression, part)[1]
            found = decoded.columns["vectors"].rows[chunk.start : chunk.start + chunk.rows]
            if compression == "lossless":
                same(found, part)
            if compression == "int8":
                step = (float(part.max()) - float(part.min())) / 255
                assert np.abs(found - part).max() <= step * 0.501


def test_chunks_of_all_kinds_are_written(path, backend):
    kinds = ["lossless", "int8", "fp16"]
    rows = vectors(28, 3)
    embmap.cvc.write(
        path, rows, layout="1.0", chunk_rows=10, compression=lambda number, _: kinds[number]
    )
    decoded = reads_like_the_reference(path, backend)
    assert [chunk.compressions for chunk in decoded.chunks] == [[kind] for kind in kinds]
    same(decoded.columns["vectors"].rows[:10], rows[:10])


@pytest.mark.parametrize("n", [0, 1, 25, 5000])
def test_chunks_are_written_on_pages(path, backend, n):
    rows = vectors(n, 3)
    embmap.cvc.write(path, rows, layout="1.0", chunk_rows=20, mmap_optimized=True, metadata=ABOUT)
    assert len(path.read_bytes()) < 8192 + 4096 * (1 + n / 20) + n * 5
    decoded = reads_like_the_reference(path, backend)
    same(decoded.columns["vectors"].rows, reference_halves(rows))
    with embmap.open(path, backend=backend) as f:
        assert all(part["offset"] % 4096 == 8 for part in f.info()["chunks"])


def test_special_numbers_are_written(path, backend):
    rows = SPECIAL.reshape(2, 4)
    for compression, version in (("fp16", "0.1"), ("fp16", "1.0"), ("lossless", "1.0")):
        embmap.cvc.write(path, rows, compression=compression, layout=version)
        found = reads_like_the_reference(path, backend).columns["vectors"].rows
        same(found, rows if compression == "lossless" else reference_halves(rows))


HALF_TIES = st.integers(0, 0x7BFF).map(
    lambda bits: (reference.half(bits) + reference.half(min(bits + 1, 0x7BFF))) / np.float32(2)
)


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(HALF_TIES | st.floats(-65504, 65504, width=32), min_size=1, max_size=30))
def test_halves_are_written_rounded_to_even(tmp_path_factory, numbers):
    path = tmp_path_factory.getbasetemp() / "halves.cvc"
    rows = np.array(numbers, np.float32).reshape(-1, 1)
    embmap.cvc.write(path, rows, compression="fp16")
    (chunk,) = reference.decode(path.read_bytes()).chunks
    assert chunk.payload == reference.stored_as("fp16", rows)[1]


@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(
        st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=30
    )
)
def test_codes_are_written_within_half_a_step(tmp_path_factory, numbers):
    path = tmp_path_factory.getbasetemp() / "codes.cvc"
    rows = np.array(numbers, np.float32).reshape(-1, 1)
    embmap.cvc.write(path, rows, compression="int8", layout="1.0")
    decoded = reference.decode(path.read_bytes())
    found = decoded.columns["vectors"].rows.astype(float)
    low, high = float(rows.min()), float(rows.max())
    step = (high - low) / 255
    # Half a step, and what the float32 roundings of the step, the code and the sum lose.
    lost = (high - low) * 2.0**-22 + max(abs(low), abs(high)) * 2.0**-22 + 2.0**-140
    assert np.abs(found - rows).max() <= step / 2 + lost
    assert found.min() == low


def test_columns_written_are_what_the_reference_reads(path, backend):
    names = {"text": "fp16", "image": "int8", "raw": "none", "half": "none", "i32": "none"}
    names |= {"doc id": "none", "i8": "none", "ü": "none"}
    for n, chunk_rows in ((23, 10), (23, 23), (1, 5)):
        columns = {name: values(COLUMNS[name][0], (n, COLUMNS[name][2])) for name in names}
        sections = [{"start": 0, "stop": n, "metadata": {"a": [1]}}]
        embmap.cvc.write_columns(
            path,
            columns,
            compression=names,
            chunk_rows=chunk_rows,
            sections=sections,
            metadata=ABOUT,
        )
        decoded = reads_like_the_reference(path, backend)
        assert decoded.version == "2.0"
        assert decoded.sections == [(0, n, {"a": [1]})]
        assert decoded.metadata == ABOUT
        assert list(decoded.columns) == list(names)
        for name, compression in names.items():
            column = decoded.columns[name]
            assert (column.dtype, column.compression) == (COLUMNS[name][0], compression)
            if compression == "none":
                same(column.rows, columns[name])
            if compression == "fp16":
                same(column.rows, reference_halves(columns[name]))
        image = columns["image"]
        assert np.abs(decoded.columns["image"].rows - image).max() < np.ptp(image) / 255
