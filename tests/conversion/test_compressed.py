"""Compressed inputs are converted as streams; damage in them is an error."""

import bz2
import gzip
import io
import lzma
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

import embmap
from embmap.io.backends import open_mapped
from embmap.io.compressed import Decompressed
from tests.conversion.sources import VECTORS, WORDS, make, rows, write_text, write_word2vec

PACKERS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


def packed_zip(members, **options):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **({"compression": zipfile.ZIP_DEFLATED} | options)) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def text(folder, n=5, **options):
    path = folder / "plain"
    if n == len(WORDS):
        write_text(path, **options)
    else:
        vectors = np.random.default_rng(1).standard_normal((n, 3)).astype(np.float32)
        write_text(path, [f"w{i}" for i in range(n)], vectors, **options)
    return path.read_bytes()


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("head", [True, False])
def test_compressed_text_is_read(tmp_path, kind, head):
    path = tmp_path / "named-otherwise.txt"  # the bytes decide
    path.write_bytes(PACKERS[kind](text(tmp_path, head=head)))
    words, vectors = rows(path)
    assert (words, vectors.tolist()) == (WORDS, VECTORS.tolist())


@pytest.mark.parametrize("kind", PACKERS)
def test_large_text_in_several_members_is_the_same(tmp_path, kind):
    data = text(tmp_path, 60_000, head=False)
    assert len(data) > 1 << 20
    parts = [data[: len(data) // 3], b"", data[len(data) // 3 :]]
    padding = b"" if kind == "bzip2" else bytes(8)
    (tmp_path / "packed").write_bytes(b"".join(PACKERS[kind](part) + padding for part in parts))
    (words, vectors), (same_words, same) = rows(tmp_path / "packed"), rows(tmp_path / "plain")
    assert words == same_words
    assert vectors.tobytes() == same.tobytes()
    report = embmap.convert(
        tmp_path / "packed", tmp_path / "a.fifu", limit=50_000, words=words[::7]
    )
    assert report.n_words == len(words[:50_000:7])
    with embmap.open(tmp_path / "a.fifu") as file:
        np.testing.assert_allclose(file.unnormalized("w49000"), vectors[49_000], rtol=1e-6)


def test_no_spool_file_is_used_for_text(tmp_path, monkeypatch):
    def refuse(path):
        pytest.fail("a temporary file is opened")

    monkeypatch.setattr("embmap.conversion.inputs.spool_beside", refuse)
    (tmp_path / "a.gz").write_bytes(gzip.compress(text(tmp_path)))
    assert embmap.convert(tmp_path / "a.gz", tmp_path / "a.bin").n_words == len(WORDS)


@pytest.mark.parametrize("name", ["finalfusion", "embd", "word2vec", "gensim", "safetensors"])
def test_binary_formats_are_copied_out(tmp_path, name):
    path, options = make(name, tmp_path)
    data = path.read_bytes()
    path.write_bytes(gzip.compress(data))
    options |= {"tensor": "emb"} if name == "safetensors" else {}
    words, vectors = rows(path, **options)
    assert (words, vectors.tolist()) == (WORDS, VECTORS.tolist())
    assert {each.name for each in tmp_path.iterdir()} == {
        path.name,
        "vocab.txt",
        "read-back.npy",
        "read-back.npy.words.txt",
        "read-back.npy.words.json",
    }


def test_several_inputs_are_compressed(tmp_path):
    write_text(tmp_path / "a", WORDS, VECTORS)
    write_word2vec(tmp_path / "b", WORDS[::-1], VECTORS[::-1] / 2)
    for name in "ab":
        (tmp_path / name).write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    embmap.convert([tmp_path / "a", tmp_path / "b"], tmp_path / "c.dwe", bits=16)
    with embmap.open(tmp_path / "c.dwe", vocab=tmp_path / "c.dwe.words.txt") as file:
        np.testing.assert_allclose(file[WORDS[1]], [VECTORS[1], VECTORS[1] / 2], atol=1e-3)


# Zip archives


def test_the_only_member_of_an_archive_is_read(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(packed_zip({"folder/": "", "folder/a.txt": text(tmp_path), "__MACOSX/a": "x"}))
    assert rows(path)[0] == WORDS
    assert embmap.convert(path / "folder" / "a.txt", tmp_path / "a.bin").n_words == len(WORDS)


def test_a_member_is_named_like_a_file_in_a_folder(tmp_path):
    path = tmp_path / "glove.zip"
    path.write_bytes(
        packed_zip({"glove.3d.txt": text(tmp_path, 7), "glove.6d.txt": text(tmp_path)})
    )
    listed = f"2 files; name one: {path}/glove.3d.txt, {path}/glove.6d.txt"
    with pytest.raises(ValueError, match=listed):
        rows(path)
    with pytest.raises(ValueError, match=r"no file 'glove\.txt'; it has .*/glove\.3d\.txt, "):
        embmap.convert(path / "glove.txt", tmp_path / "a.npy")
    report = embmap.convert(path / "glove.6d.txt", tmp_path / "a.npy")
    assert report.words_path.read_text("utf-8").split() == WORDS
    assert np.load(tmp_path / "a.npy").tolist() == VECTORS.tolist()
    assert embmap.convert(path / "glove.3d.txt", tmp_path / "a.npy").n_words == 7
    with pytest.raises(ValueError, match=r"glove\.zip is read; name another file"):
        embmap.convert(path / "glove.3d.txt", path, output_format="npy")


def test_other_paths_below_a_file_do_not_exist(tmp_path):
    (tmp_path / "a.txt").write_bytes(text(tmp_path))
    with pytest.raises(OSError, match=r"Not a directory|No such file"):
        rows(tmp_path / "a.txt" / "b")


def test_archives_that_cannot_be_read_are_named(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(packed_zip({}))
    with pytest.raises(embmap.FormatError, match="the archive has no files"):
        rows(path)
    data = bytearray(packed_zip({"a.txt": text(tmp_path)}))
    data[6] |= 1  # the flag of encryption, in the member's head and in the directory
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(embmap.UnsupportedError, match=r"a\.txt is encrypted, which embmap"):
        rows(path)
    path.write_bytes(packed_zip({"a.txt": text(tmp_path)}, compression=zipfile.ZIP_LZMA))
    with pytest.raises(embmap.UnsupportedError, match="is compressed by method 14"):
        rows(path)
    data = bytearray(packed_zip({"a.txt": text(tmp_path)}, compression=zipfile.ZIP_STORED))
    data[data.index(b"berlin")] ^= 1
    path.write_bytes(data)
    with pytest.raises(embmap.FormatError, match="the zip data are damaged: Bad CRC-32"):
        rows(path)
    path.write_bytes(packed_zip({"a.txt": text(tmp_path)})[:-4])
    with pytest.raises(embmap.FormatError, match="the zip data are damaged"):
        rows(path)


# Damage


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("n", [5, 60_000])
def test_truncated_streams_are_errors(tmp_path, kind, n):
    whole = PACKERS[kind](text(tmp_path, n))
    path, out = tmp_path / "a", tmp_path / "out.npy"
    for nbytes in (len(whole) // 2, len(whole) - 9, len(whole) - 1):
        path.write_bytes(whole[:nbytes])
        with pytest.raises(embmap.TruncatedError, match=f"the {kind} data end early"):
            embmap.convert(path, out)
        assert not out.exists()


@pytest.mark.parametrize("kind", PACKERS)
def test_trailing_bytes_are_errors(tmp_path, kind):
    whole = PACKERS[kind](text(tmp_path))
    (tmp_path / "a").write_bytes(whole + b"more")
    message = f"bytes that are not {kind} data follow the compressed data"
    with pytest.raises(embmap.FormatError, match=message) as caught:
        rows(tmp_path / "a")
    assert caught.value.offset == len(whole)


@pytest.mark.parametrize("kind", PACKERS)
def test_any_flipped_byte_is_an_error_or_harmless(tmp_path, kind):
    whole = PACKERS[kind](text(tmp_path))
    path = tmp_path / "a"
    for offset in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x10
        path.write_bytes(damaged)
        try:
            words, vectors = rows(path)
        except embmap.EmbmapError:
            continue
        assert (words, vectors.tolist()) == (WORDS, VECTORS.tolist())  # a date or a name


def test_a_file_compressed_twice_is_named(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(bz2.compress(text(tmp_path))))
    with pytest.raises(embmap.UnsupportedError, match="twice, with gzip and in it with bzip2"):
        rows(tmp_path / "a")
    (tmp_path / "a").write_bytes(gzip.compress(b""))
    with pytest.raises(embmap.FormatError, match="the file is empty"):
        rows(tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"", "not a file of a known format"),
        (b"a 1 2\nb 3 4\n" * 100_000, "a line of more than 16777216 bytes"),
    ],
)
def test_a_bomb_takes_bounded_memory(tmp_path, start, message):
    with gzip.open(tmp_path / "bomb", "wb") as out:
        out.write(start)
        for _ in range(400):
            out.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(embmap.FormatError, match=message):
            embmap.convert(tmp_path / "bomb", tmp_path / "out.npy")
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


def test_xz_that_asks_for_much_memory_is_refused(tmp_path):
    data = bytearray(lzma.compress(text(tmp_path)))
    header = slice(12, 12 + 4 * (data[12] + 1) - 4)  # of the first block, before its checksum
    place = data.index(b"\x21\x01", header.start) + 2
    data[place] = 40  # a dictionary of 4 GiB
    data[header.stop : header.stop + 4] = zlib.crc32(data[header]).to_bytes(4, "little")
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(embmap.FormatError, match="the xz data are damaged: Memory usage limit"):
        rows(tmp_path / "a")


# The stream itself


def test_a_stream_gives_the_same_bytes_in_any_order(tmp_path):
    data = np.random.default_rng(3).integers(0, 50, 5 << 20, np.uint8).tobytes()
    (tmp_path / "a").write_bytes(gzip.compress(data, 1))
    stream = Decompressed(open_mapped(tmp_path / "a"), "gzip")
    assert not stream.ends
    for start, nbytes in [(0, 9), (3 << 20, 99), (3 << 20, 1 << 21), (100, 1 << 20), (5 << 20, 7)]:
        assert stream.read_at_most(start, nbytes) == data[start : start + nbytes]
    assert stream.ends
    assert stream.nbytes == len(data)
    assert stream.read(len(data) - 5, 5) == data[-5:]
    assert stream.array(2 << 20, "<u2", (3, 2)).tobytes() == data[2 << 20 : (2 << 20) + 12]
    with pytest.raises(embmap.TruncatedError):
        stream.read(len(data) - 5, 6)
    assert b"".join(stream.blocks()) == data
    stream.close()
