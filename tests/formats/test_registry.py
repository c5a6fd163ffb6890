"""Every format keeps the promises of its class, and a new one needs nothing but its class."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

import embmap
from embmap import conversion
from embmap.embedding_file import EmbeddingFile
from embmap.formats.format import FileFormat, Writer
from embmap.formats.registry import FORMATS, get_file_formats, get_written_formats, recognize
from embmap.io.atomic_write import replacing
from embmap.io.backends import open_mapped
from embmap.io.mapping import BytesFile
from embmap.vectors.dense import dense_matrix
from embmap.words.given import words_of
from embmap.words.records import Records

WORDS = ["one", "two", "three"]
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4) + 1


@pytest.fixture
def written(tmp_path):
    """Write the vectors in a format; several of them, if the format holds time steps."""

    def write(name, target, **options):
        if name == "parquet":
            pytest.importorskip("pyarrow")
        source = tmp_path / "source.vec"
        keys, head = (range(3), "3 4 2 3 1 5 < >") if name == "floret" else (WORDS, "3 4")
        lines = [f"{key} {' '.join(map(str, row))}" for key, row in zip(keys, VECTORS, strict=True)]
        source.write_text("\n".join([head, *lines, ""]))
        inputs = [source, source] if FORMATS[name].writer.over_time else source
        return embmap.convert(inputs, target, **options)

    return write


@pytest.mark.parametrize("name", get_written_formats())
def test_what_a_format_writes_it_recognizes_and_reads(written, tmp_path, name):
    format = FORMATS[name]
    report = written(name, tmp_path / "a", output_format=name, normalize=False)
    assert recognize(open_mapped(tmp_path / "a")) is format
    assert (report.words_path is not None) == format.writer.words_beside
    options = {"timestep": -1} if format.writer.over_time else {}
    if name == "floret":  # it holds no words
        embmap.convert(tmp_path / "a", tmp_path / "b.floret")
        assert (tmp_path / "b.floret").read_bytes() == (tmp_path / "a").read_bytes()
        return
    back = embmap.convert(tmp_path / "a", tmp_path / "b.txt", **options)
    assert (back.input_format, back.n_words, back.dim) == (name, 3, 4)
    words = [line.split()[0] for line in (tmp_path / "b.txt").read_text().splitlines()]
    assert words == WORDS


@pytest.mark.parametrize(
    "name", [name for name, each in get_file_formats().items() if each.writer is not None]
)
def test_a_format_that_is_opened_takes_its_dialects_and_no_other(written, tmp_path, name):
    format = FORMATS[name]
    written(name, tmp_path / "a", output_format=name)
    with embmap.open(tmp_path / "a") as file:
        assert (file.format, file.layout in format.dialects) == (name, True)
        dialect = file.layout
    embmap.open(tmp_path / "a", format=name, layout=dialect).close()
    with pytest.raises(ValueError, match=f"must be one of {', '.join(format.dialects)}, not 'x'"):
        embmap.open(tmp_path / "a", format=name, layout="x")


@pytest.mark.parametrize(
    ("name", "extension"),
    [(name, each) for name, format in FORMATS.items() for each in format.extensions],
)
def test_an_extension_chooses_the_format(written, tmp_path, name, extension):
    assert written(name, tmp_path / f"a{extension.upper()}").output_format == name


def test_names_and_extensions_belong_to_one_format():
    names = [name for each in FORMATS.values() for name in (each.name, *each.aliases)]
    extensions = [extension for each in FORMATS.values() for extension in each.extensions]
    assert len(set(names)) == len(names)
    assert len(set(extensions)) == len(extensions)
    written = get_written_formats().values()
    assert [each.name for each in written if not each.extensions] == ["fasttext"]  # .bin is taken
    assert list(FORMATS) == [each.name for each in FORMATS.values()]


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.magic])
def test_a_magic_is_enough_to_recognize_a_format(name):
    assert recognize(BytesFile(FORMATS[name].magic + bytes(99))) is FORMATS[name]


@pytest.mark.parametrize("name", get_written_formats())
def test_a_dtype_that_a_format_does_not_hold_is_refused(written, tmp_path, name):
    with pytest.raises(ValueError, match=f"dtype must be {FORMATS[name].writer.dtypes[0]}"):
        written(name, tmp_path / "a", output_format=name, dtype="int32")


def test_formats_are_listed_wherever_users_choose_one():
    assert set(conversion.INPUT_FORMATS) == set(FORMATS)
    assert set(conversion.OUTPUT_FORMATS) == set(get_written_formats())
    parameters = embmap.convert.__doc__
    for format in FORMATS.values():
        for name in (format.name, *format.aliases):
            assert f'"{name}"' in parameters
    for name in get_file_formats():
        assert f'"{name}"' in embmap.open.__doc__


def test_the_page_about_conversion_has_every_format_and_extension():
    page = Path(__file__).parents[2] / "docs" / "convert.md"
    table = page.read_text("utf-8").partition("| format |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    listed = {tuple(re.findall("`(.+?)`", cell)) for row in rows for cell in row[:1]}
    assert {(each.name, *each.aliases) for each in FORMATS.values()} == listed
    for names, extensions in rows:
        format = FORMATS[re.findall("`(.+?)`", names)[0]]
        assert tuple(re.findall("`(.+?)`", extensions)) == format.extensions


def test_the_server_describes_the_formats_that_are_opened():
    pytest.importorskip("starlette")
    from embmap.serve.openapi import description
    from embmap.serve.settings import Limits

    listed = description(Limits())["paths"]["/v1/models"]["get"]["responses"]["200"]["content"]
    model = listed["application/json"]["schema"]["properties"]["models"]["items"]
    assert model["properties"]["format"]["enum"] == list(get_file_formats())


class ToyFile(EmbeddingFile):
    format = "toy"

    def __init__(self, data, dialect=None, index="auto", vocab=None):
        n, dim = struct.unpack("<II", data.read(4, 8))
        start = 12 + 4 * n * dim
        words = words_of(data, Records(start, data.nbytes, n, "toy"), vocab, n, "toy", index)
        super().__init__(data, "only", words, dense_matrix(data, 12, (n, dim), "<f4"))

    def _verify_data(self, report, progress):
        report.checked.append("nothing")


class ToyWriter(Writer):
    def refuse(self, word):
        return "is too long" if len(word) > 4 else None

    def write(self, output):
        with replacing(output.path) as out:
            out.write(b"TOY!" + struct.pack("<II", *output.vectors.shape))
            output.write_rows(out)
            for word in output.words.encoded():
                out.write(struct.pack("<I", len(word)) + word)


class ToyFormat(FileFormat):
    name = "toy"
    title = "toy"
    aliases = ("plaything",)
    extensions = (".toy",)
    dialects = ("only",)
    magic = b"TOY!"
    file_class = ToyFile
    writer = ToyWriter()


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(FORMATS, "toy", ToyFormat())


@pytest.mark.usefixtures("toy")
def test_a_new_format_is_opened_and_converted(written, tmp_path):
    path = tmp_path / "a.toy"
    with pytest.raises(embmap.FormatError, match="'three' is too long"):
        written("toy", path)
    report = written("toy", path, lossy=True)
    assert (report.output_format, report.n_words, report.n_dropped) == ("toy", 2, 1)
    with embmap.open(path) as file:
        assert (file.format, file.layout, file.vocab[:]) == ("toy", "only", WORDS[:2])
        assert file["two"].tolist() == VECTORS[1].tolist()
        assert file.most_similar("one", 1)[0].word == "two"
        assert file.info()["chunks"] == []  # which `embmap ls` lists
    with pytest.raises(ValueError, match="layout must be one of only, not 'x'"):
        embmap.open(path, layout="x")
    back = embmap.convert(path, tmp_path / "b.npy", input_format="plaything")
    assert (back.input_format, back.n_words) == ("toy", 2)
    assert np.load(tmp_path / "b.npy").tolist() == VECTORS[:2].tolist()


@pytest.mark.usefixtures("toy")
def test_a_new_format_is_listed():
    assert "toy" in conversion.INPUT_FORMATS
    assert "toy" in conversion.OUTPUT_FORMATS
    with pytest.raises(ValueError, match=r"format must be one of .*toy, not 'x'"):
        embmap.open("a", format="x")


def test_without_its_class_the_format_is_unknown(tmp_path):
    (tmp_path / "a.toy").write_bytes(b"TOY!" + struct.pack("<II", 0, 1))
    with pytest.raises(embmap.FormatError, match="not a file of a known format"):
        embmap.open(tmp_path / "a.toy")


@pytest.mark.parametrize(
    ("name", "data", "kind", "target"),
    [
        ("glove.txt", b"a 1 2\nb 3 4\n", "GloVe text", "glove.fifu"),
        ("two words.vec", b"2 2\na 1 2\nb 3 4\n", "word2vec text", "'two words.fifu'"),
        ("a.kv", b"\x80\x04gensim", "gensim", "a.fifu"),
        ("a.npz", b"PK\x03\x04", "npz", "a.fifu"),
        ("a.parquet", b"PAR1", "Parquet", "a.fifu"),
        ("glove.txt.gz", b"\x1f\x8b\x08", "gzip", "glove.fifu"),
        ("glove.txt.xz", b"\xfd7zXZ\0", "xz", "glove.fifu"),
    ],
)
def test_opening_what_only_a_conversion_reads_suggests_it(
    tmp_path, monkeypatch, name, data, kind, target
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(embmap.UnsupportedError) as caught:
        embmap.open(name)
    message = caught.value.message
    assert message.startswith(f"{kind} files cannot be opened in place")
    assert message.endswith(f" {target}")
    assert "embmap convert " in message
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(embmap.UnsupportedError, match=str(tmp_path)):
        embmap.open(tmp_path / name)
