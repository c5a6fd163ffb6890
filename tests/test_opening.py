"""What opening a file chooses, refuses and leaves behind."""

import contextlib
import gc
import os
import weakref

import numpy as np
import pytest

import embmap
from tests.judges import inputs


def finalfusion_file(path):
    indexer = embmap.subwords.BucketIndexer(3, 6, 4)
    return embmap.finalfusion.write(path, ["a", "b"], np.ones((18, 2), "f4"), subwords=indexer)


def written(path, data):
    path.write_bytes(data)
    return path


WRITERS = {
    "finalfusion": finalfusion_file,
    "embd": lambda path: embmap.embd.write(path, {"a": np.ones((3, 2), "f4")}),
    "cvc": lambda path: embmap.cvc.write(path, np.ones((3, 2), "f4")),
    "dwe blocks": lambda path: embmap.dwe.write(
        path, np.arange(8).reshape(2, 2, 2), scale=1, group=1, layout="blocks"
    ),
    "dwe stream": lambda path: embmap.dwe.write(
        path, np.arange(8).reshape(2, 2, 2), scale=1, group=1, layout="stream"
    ),
    "npy": lambda path: written(path, inputs.npy(np.ones((3, 2), "f4"))),
    "safetensors": lambda path: written(path, inputs.safetensors({"a": np.ones((3, 2), "f4")})),
    "word2vec": lambda path: written(path, inputs.word2vec()[0]),
    "fasttext": lambda path: written(path, inputs.fasttext()[0]),
}


class Local:
    """Something that the caller of embmap has in a variable."""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")
@pytest.mark.parametrize("kind", WRITERS)
def test_opening_keeps_neither_descriptors_nor_what_the_caller_has(tmp_path, kind, backend):
    path = WRITERS[kind](tmp_path / "a")
    data = path.read_bytes()

    def open_and_close():
        local = Local()
        with contextlib.suppress(embmap.EmbmapError), embmap.open(path, backend=backend):
            pass
        return weakref.ref(local)

    n_fields = 12  # 32-bit numbers at the start of the file, each of them wrong in turn
    variants = [data, data[: len(data) // 2], data[:16]]
    for i in range(n_fields):
        variants += [data[: 4 * i] + wrong + data[4 * i + 4 :] for wrong in (bytes(4), b"\xff" * 4)]
    open_and_close()
    gc.collect()
    gc.disable()
    try:
        for variant in variants:
            path.write_bytes(variant)
            before = len(os.listdir("/proc/self/fd"))
            assert open_and_close()() is None
            assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")
def test_a_closed_file_is_let_go_at_once(tmp_path):
    words = [f"word{i}" for i in range(100)]
    rows = np.ones((100, 2), np.float32)
    path = embmap.finalfusion.write(tmp_path / "a", words, rows, norms=np.ones(100))
    gc.collect()
    gc.disable()
    try:
        for build in (False, True):
            file = embmap.open(path)
            if build:
                file.build_index()
                file.close()
                file = embmap.open(path, index="require")
            assert file["word5"].sum() == 2
            assert "absent" not in file
            assert file.norms.sum() == 100
            file.close()
            with open("/proc/self/maps") as maps:
                assert str(tmp_path) not in maps.read()
    finally:
        gc.enable()
