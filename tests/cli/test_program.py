"""The command line as a program of its own: pipes, encodings, a missing extra."""

import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import embmap

pytestmark = pytest.mark.slow

pytest.importorskip("typer", reason="typer is not installed")
pytest.importorskip("rich", reason="rich is not installed")


def program(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "embmap", *map(str, arguments)],
        capture_output=True,
        check=False,
        **options,
    )


def test_the_module_runs_as_a_program(path):
    done = program("get", path, "one", "--format", "npy")
    assert np.load(io.BytesIO(done.stdout)).tolist() == [[1, 0.5]]
    done = program("get", path, "drei")
    assert (done.returncode, done.stdout) == (1, b"")
    path.with_name("a.fifu.embx").write_bytes(b"damaged")
    done = program("get", path, "one")
    assert done.returncode == 0
    assert done.stderr.startswith(b"embmap: warning: index ignored")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_a_reader_that_goes_away_is_no_traceback(path, tmp_path):
    vectors = np.ones((3000, 100), np.float32)
    big = embmap.finalfusion.write(tmp_path / "b", map(str, range(3000)), vectors)
    rows = [argument for i in range(3000) for argument in ("--row", str(i))]
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "embmap", "get", str(big), *rows],
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    os.read(reader, 10)
    os.close(reader)
    assert process.communicate()[1] == b""


def test_words_that_the_terminal_cannot_show_are_escaped(path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = program("get", path, "zwölf", env=environment)
    assert done.stdout == b"zw\\xf6lf 7.0 8.0\n"
    done = program("get", path, "zwölf", "--format", "json", env=environment)
    assert json.loads(done.stdout)[0]["word"] == "zwölf"


def test_without_typer_the_program_names_the_extra(path):
    blocked = (
        "import sys; sys.modules['typer'] = None; import embmap.__main__ as m; sys.exit(m.main())"
    )
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"pip install embmap[cli]" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("embmap con", ["convert"]),
        ("embmap ", ["info", "convert", "serve"]),
        ("embmap convert --out", ["--output-layout"]),
        ("embmap convert a --from f", ["finalfusion", "fasttext", "floret"]),
        ("embmap convert a --to g", ["gensim", "glove"]),
        ("embmap convert a --output-layout s", ["spec", "stream"]),
        ("embmap convert a --output-layout f", ["flat"]),  # "first" is only read
        ("embmap convert a --compression ", ["fp16", "int8", "lossless"]),
        ("embmap convert a --dtype b", ["bfloat16"]),
        ("embmap get a --layout sp", ["spec"]),
        ("embmap similar a b --metric e", ["euclidean"]),
        ("embmap info a --backend m", ["mmap"]),
    ],
)
def test_bash_completes_commands_options_and_choices(line, expected):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = program(env={**os.environ, **words, "_EMBMAP_COMPLETE": "complete_bash"})
    assert (done.returncode, done.stderr) == (0, b"")
    found = done.stdout.decode().split()
    assert found == expected if len(line) > len("embmap ") else set(expected) < set(found)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_script_for_bash_completes_in_bash(tmp_path):
    (tmp_path / "embmap").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m embmap "$@"\n')
    (tmp_path / "embmap").chmod(0o755)
    ask = "COMP_WORDS=(embmap convert --to saf); COMP_CWORD=3; _embmap_completion embmap"
    script = 'source "$HOME/.bash_completions/embmap.sh"; ' + ask + '; echo "${COMPREPLY[@]}"'
    home = {
        **os.environ,
        "HOME": str(tmp_path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    home["PATH"] = f"{tmp_path}:{home['PATH']}"
    assert program("--install-completion", "bash", env=home).returncode == 0
    done = subprocess.run(["bash", "-c", script], env=home, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["safetensors"]
