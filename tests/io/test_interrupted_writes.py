"""An interrupt at any line of what replaces files leaves old or new files and no temporary one."""

import gc
import sys

import pytest

from embmap.io import atomic_write
from embmap.io.atomic_write import Together, replacing


class Interrupt:
    """Raises KeyboardInterrupt at one of the lines that a module runs."""

    def __init__(self, n_lines):
        self.n_lines = n_lines

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename == atomic_write.__file__:
            self.n_lines -= 1
            if self.n_lines == 0:
                raise KeyboardInterrupt
        return self


def interrupted(work, n_lines):
    """Whether work met an interrupt at a line, or was done before."""
    tracing = sys.gettrace()
    sys.settrace(Interrupt(n_lines))
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(tracing)
    return False


def write_one(folder):
    with replacing(folder / "one") as out:
        out.write(b"new")


def write_pair(folder):
    with Together() as together:
        for name in ("one", "two"):
            with together.file(folder / name).open() as out:
                out.write(b"new")


# A file whose opening is interrupted is closed by Python, which warns of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("named", [False, True], ids=["named later", "named at once"])
@pytest.mark.parametrize("write", [write_one, write_pair])
def test_no_temporary_file_is_left_wherever_the_interrupt_comes(
    tmp_path, monkeypatch, write, named
):
    if named:
        monkeypatch.setattr(atomic_write, "_names_later", lambda folder: False)
    n_lines = 1
    while True:
        for name in ("one", "two"):
            (tmp_path / name).write_bytes(b"old")
        ended_early = interrupted(lambda: write(tmp_path), n_lines)
        if len(list(tmp_path.iterdir())) > 2:
            gc.collect()  # frames in which the interrupt came may refer to each other
        files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert set(files) == {"one", "two"}, f"at line {n_lines}: {sorted(files)}"
        assert set(files.values()) <= {b"old", b"new"}
        if not ended_early:
            break
        n_lines += 1
    assert n_lines > 50
    assert files["one"] == b"new"
