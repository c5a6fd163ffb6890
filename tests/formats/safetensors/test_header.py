"""Headers as the safetensors library spells them, and any others: the same tensors and errors."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import embmap
from embmap.io import safetensors

NAMES = st.text(st.sampled_from('ab."\\{}[],:\n\x7fü '), max_size=5) | st.just("__metadata__")
ENTRIES = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from(["F32", "BF16", "F4", "I8", "X"]),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    max_size=6,
)
METADATA = st.none() | st.dictionaries(NAMES, NAMES, max_size=2)
BITS = {"F32": 32, "BF16": 16, "F4": 4, "I8": 8, "X": 8}


def header(entries, metadata):
    """The text of a header, and how many bytes of data it describes."""
    parts, position = [], 0
    if metadata is not None:
        parts.append(f'"__metadata__":{json.dumps(metadata, separators=(",", ":"))}')
    for name, kind, shape in entries:
        size = BITS[kind]
        for n in shape:
            size *= n
        entry = {"dtype": kind, "shape": shape, "data_offsets": [position, position + size // 8]}
        parts.append(f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}")
        position += size // 8
    return f"{{{','.join(parts)}}}", position


def answer(path):
    """What opening a file gives: its tensors and metadata, or the error."""
    try:
        with embmap.open(path, format="safetensors") as file:
            return file.info()["chunks"], file.metadata
    except embmap.EmbmapError as error:
        return type(error), str(error)


def judge(path, text, nbytes):
    data = text.encode()
    path.write_bytes(len(data).to_bytes(8, "little") + data + bytes(nbytes))
    found = answer(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safetensors, "parse_plain", lambda raw, offset: None)
        assert answer(path) == found
    return found


@given(ENTRIES, METADATA)
def test_every_header_has_the_same_outcome_both_ways(tmp_path_factory, entries, metadata):
    path = tmp_path_factory.mktemp("safetensors") / "a"
    judge(path, *header(entries, metadata))


PLAIN, NBYTES = header(
    [("a.weight", "F32", [2, 3]), ("b", "BF16", [4]), ("c", "I8", [])], {"format": "pt"}
)


@given(st.integers(0, len(PLAIN) - 1), st.integers(0, 3), st.text('0123,:{}[]" aF', max_size=3))
def test_every_change_has_the_same_outcome_both_ways(tmp_path_factory, start, n, text):
    path = tmp_path_factory.mktemp("safetensors") / "a"
    judge(path, PLAIN[:start] + text + PLAIN[start + n :], NBYTES)


@pytest.mark.parametrize(
    ("old", "new", "is_plain"),
    [
        ("", "", True),
        ("}}", "}}  ", True),
        ('"a.weight"', ' "a.weight"', False),
        ('"c"', '"a.weight"', False),
        ("[2,3]", "[02,3]", False),
        ("24", "2_4", False),
        ('"pt"', "null", False),
        ('"pt"', '"p\\"t"', False),
    ],
)
def test_which_headers_are_plain(old, new, is_plain):
    raw = PLAIN.replace(old, new, 1).encode()
    assert (safetensors.parse_plain(raw, 0) is not None) == is_plain


def test_what_the_library_and_embmap_write_is_plain(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    import numpy as np

    arrays = {f"layer.{i}.weight": np.ones((i + 1, 2), np.float16) for i in range(30)}
    numpy.save_file(arrays, tmp_path / "a.safetensors", {"format": "np"})
    embmap.convert(tmp_path / "a.safetensors", tmp_path / "b.npy", tensor="layer.3.weight")
    embmap.convert(tmp_path / "b.npy", tmp_path / "b.safetensors")
    for name in ("a", "b"):
        data = (tmp_path / f"{name}.safetensors").read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        assert safetensors.parse_plain(data[8:end], end) is not None
