"""All tensors at once or one by one: the same answers and the same errors, whatever the bytes."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embmap
from embmap.formats.embd import tensor_table
from embmap.formats.embd.tensor_table import DescribedTensors
from tests.judges.embd import SMALL, with_new_checksums
from tests.reference import embd as reference


def made(layout, shapes):
    """A file of tensors of these shapes, with names of many lengths."""
    tensors = {}
    for number, shape in enumerate(shapes):
        array = np.full(shape, number, np.float32)
        tensors["ü" * (number % 3) + "n" * (7 * number % 40) + str(number)] = array
    content = reference.Decoded(
        layout, {name: ("float32", each.shape, each) for name, each in tensors.items()}
    )
    return reference.encode(content, layout)


def answer(path, backend="mmap"):
    """What opening a file gives: its tensors, or the error."""
    try:
        with embmap.open(path, backend=backend) as file:
            return [(chunk, file.tensors[chunk["name"]].tobytes()) for chunk in list_chunks(file)]
    except embmap.EmbmapError as error:
        return type(error), str(error)


def list_chunks(file):
    return file.info()["chunks"]


def answer_one_by_one(path, backend="mmap"):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DescribedTensors, "_look_sound", lambda self: False)
        patch.setattr(tensor_table, "_HEADS", {})  # no length of a name is expected
        return answer(path, backend)


SHAPES = st.lists(
    st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple), min_size=0, max_size=12
)


@given(SHAPES, st.sampled_from(["spec", "flat"]))
def test_tensors_of_any_shape_are_the_same_both_ways(tmp_path_factory, shapes, layout):
    path = tmp_path_factory.mktemp("embd") / "a"
    path.write_bytes(made(layout, shapes))
    found = answer(path)
    assert [chunk["shape"] for chunk, _ in found] == [list(shape) for shape in shapes]
    assert found == answer_one_by_one(path)


@given(
    st.sampled_from(sorted(SMALL)),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["<B", "<H", "<I", "<Q"]),
    st.sampled_from([0, 1, 2, 4, 5, 9, 2**31, 2**32 - 1, 2**63, 2**64 - 1]),
    st.sampled_from(["mmap", "read"]),
)
def test_changed_fields_have_the_same_outcome_both_ways(
    tmp_path_factory, name, place, field, value, backend
):
    data = bytearray(SMALL[name])
    nbytes = struct.calcsize(field)
    start = int(place * (len(data) - nbytes))
    struct.pack_into(field, data, start, value % 256**nbytes)
    path = tmp_path_factory.mktemp("embd") / "a"
    path.write_bytes(with_new_checksums(data) if name == "spec" else data)
    assert answer(path, backend) == answer_one_by_one(path, backend)


@pytest.mark.parametrize("layout", ["spec", "flat"])
def test_more_tensors_than_a_block_holds(tmp_path, backend, layout):
    """Small tensors, large ones that are stepped over, and long names, in a large file."""
    rng = np.random.default_rng(0)
    sizes = [*rng.integers(1, 99, 2000).tolist(), *[20_000] * 9, 1, 2]
    tensors = {
        f"{number}{'n' * (2000 if number % 500 == 7 else number % 50)}": np.full(
            size, number, np.float32
        )
        for number, size in enumerate(sizes)
    }
    path = embmap.embd.write(tmp_path / "a", tensors, vocab=["a"], layout=layout)
    with embmap.open(path, backend=backend) as file:
        assert list(file.tensors) == list(tensors)
        for name, expected in tensors.items():
            np.testing.assert_array_equal(file.tensors[name], expected, strict=True)
        assert file.vocab[:] == ["a"]
    data = path.read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    with pytest.raises(embmap.FormatError):
        embmap.open(tmp_path / "cut", backend=backend)


def test_tensors_in_any_order_may_not_overlap(tmp_path):
    """The index of a spec file lists tensors in any order of their data."""
    tensors = {name: np.full(16, i, np.float32) for i, name in enumerate("abc")}
    path = embmap.embd.write(tmp_path / "a", tensors)
    data = bytearray(path.read_bytes())
    (index,) = struct.unpack_from("<I", data, 28)
    first, second = data[index : index + 32], data[index + 32 : index + 64]
    data[index + 24 : index + 32], data[index + 56 : index + 64] = second[24:], first[24:]
    path.write_bytes(with_new_checksums(data))
    with embmap.open(path) as file:
        assert [file.tensors[name][0] for name in "abc"] == [1, 0, 2]
    data[index + 24 : index + 32] = struct.pack("<Q", 60)
    path.write_bytes(with_new_checksums(data))
    with pytest.raises(embmap.FormatError, match="'b' and 'a' overlap"):
        embmap.open(path)
