"""The command line as a program of its own: pipes, encodings, a missing extra."""

import io
import json
import os
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
