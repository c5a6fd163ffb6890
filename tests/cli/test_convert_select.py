"""The commands that convert."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.conversion.sources import VECTORS, WORDS, write_text, write_words


def test_the_command_converts(command, tmp_path):
    write_text(tmp_path / "a.vec", [*WORDS, "a"], VECTORS[[0, 1, 2, 3, 4, 0]])
    status, out, err = command("convert", tmp_path / "a.vec", tmp_path / "b.fifu")
    assert status == 0
    assert out == f"{tmp_path / 'b.fifu'}: finalfusion, 5 x 6 float32, rows of unit length\n"
    assert err.startswith("embmap: 1 repeated words")
    status, out, _ = command("convert", tmp_path / "b.fifu", tmp_path / "c.npy", "--json")
    report = json.loads(out)
    assert report["n_words"] == 5
    assert report["left_out"] == ["norms"]
    assert report["words_path"] == str(tmp_path / "c.npy.words.txt")
    status, out, err = command("convert", tmp_path / "b.fifu", tmp_path / "d.npy", "--unnormalize")
    assert (status, err) == (0, "")
    np.testing.assert_allclose(np.load(tmp_path / "d.npy"), VECTORS, rtol=1e-6)


def test_the_command_selects(command, tmp_path):
    write_text(tmp_path / "a.vec")
    write_words(tmp_path / "w.txt", ["a", "東京", "none"])
    status, _, err = command(
        "select", tmp_path / "a.vec", tmp_path / "b.txt", "--words", tmp_path / "w.txt"
    )
    assert (status, err) == (0, "embmap: 1 of the words asked for are not in the input\n")
    lines = (tmp_path / "b.txt").read_text("utf-8").splitlines()
    assert [line.split()[0] for line in lines] == ["東京", "a"]


def test_the_command_makes_time_steps(command, tmp_path):
    for name in "ab":
        write_text(tmp_path / f"{name}.vec")
    files = [tmp_path / "a.vec", tmp_path / "b.vec", tmp_path / "o.dwe"]
    assert command("convert", *files)[0] == 0
    assert command("convert", files[2], tmp_path / "o.npy", "--time", "1")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), VECTORS, atol=0.02)


def test_bad_conversions_exit_with_2_and_one_line(command, tmp_path):
    write_text(tmp_path / "a.vec")
    (tmp_path / "bad.vec").write_text("2 2\na 1 2\nb 1 x\n")
    (tmp_path / "noise").write_bytes(bytes(range(1, 256)))
    for arguments in (
        [tmp_path / "a.vec"],
        [tmp_path / "a.vec", tmp_path / "a.vec"],
        [tmp_path / "a.vec", tmp_path / "a.xyz"],
        [tmp_path / "bad.vec", tmp_path / "a.npy"],
        [tmp_path / "noise", tmp_path / "a.npy"],
        [tmp_path / "none", tmp_path / "a.npy"],
        [tmp_path / "a.vec", tmp_path / "a.npy", "--dtype", "float17"],
    ):
        status, out, err = command("convert", *arguments)
        assert (status, out) == (2, ""), arguments
        assert err.startswith("embmap: ")
        assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.vec", "bad.vec", "noise"]


def test_the_examples_in_the_docs_run(tmp_path, monkeypatch, capsys):
    cli = pytest.importorskip("embmap.cli")
    text = (Path(__file__).parents[2] / "docs" / "convert.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "glove.txt", ["the", "of", "and", "zürich"], VECTORS[:4, :3], head=False)
    write_words(tmp_path / "few.txt", ["zürich", "of"])
    with zipfile.ZipFile(tmp_path / "glove.6B.zip", "w") as archive:
        archive.write(tmp_path / "glove.txt", "glove.6B.50d.txt")
        archive.write(tmp_path / "glove.txt", "glove.6B.100d.txt")
    n_run = 0
    for example in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in example.split("$ embmap ")[1:]:
            command, _, promised = part.partition("\n")
            assert cli.run(command.split()) == 0, command
            printed = capsys.readouterr()
            assert printed.out + printed.err == promised, command
            n_run += 1
    assert n_run == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "a.vec b.npy --output-layout flat",
            "--output-layout is for EMBD or CVC or DWE files, not",
        ),
        ("a.vec b.npy --bits 9", "--bits is for DWE"),
        (
            "a.vec b.weights --output-layout stream",
            "--output-layout must be one of spec, flat, not",
        ),
        ("a.vec b.xyz", "no format has the extension '.xyz'; name one with --to: finalfusion"),
        ("a.vec b.npy --from nope", "--from must be one of finalfusion, embd"),
        ("a.npy b.vec", "the input has no words; name them with --vocab: a file with one word"),
        ("a.vec b.npy --dim 9", "--dim must be at most 3, the length of the vectors, not 9"),
        ("a.vec b.npy --dtype bfloat16", "--dtype must be float32 or float16 or float64, not bfl"),
        ("a.vec", "Missing argument 'OUT'"),
        ("--to npy a.vec", "Missing argument 'OUT'"),
        ("", "Missing argument 'IN'"),
    ],
)
def test_messages_name_the_options(tmp_path, monkeypatch, capsys, arguments, message):
    cli = pytest.importorskip("embmap.cli")
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "a.vec", ["one", "two"], VECTORS[:2, :3])
    np.save(tmp_path / "a.npy", VECTORS)
    assert cli.run(["convert", *arguments.split()]) == 2
    assert message in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.npy", "a.vec"]
