"""The command ``embmap``: a thin layer over the public face.

Exit status 0; 1 when a word is unknown or a check found a problem; 2 for a bad file or bad usage;
143 after SIGTERM.
An error is one line on stderr.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import typer

import embmap
from embmap.cli import conversion, files, measuring, over_time, search, serving
from embmap.cli.output import complain

__all__ = ["run"]


class _Terminated(BaseException):
    """SIGTERM, as an exception that nothing on the way takes for an error."""


_app = files.app
_app.add_typer(over_time.app)
_app.add_typer(conversion.app)
_app.add_typer(search.app)
_app.add_typer(measuring.app)
_app.add_typer(serving.app)


def run(arguments: Sequence[str]) -> int:
    """Run a command."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show is escaped
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(_app)
    try:
        with _unwound_by_sigterm():
            status = command.main(list(arguments), prog_name="embmap", standalone_mode=False)
            sys.stdout.flush()
    except (embmap.EmbmapError, ImportError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be said on it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}")
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted")
    except _Terminated:
        complain("terminated")
        return 128 + signal.SIGTERM
    except Exception as error:
        message = getattr(error, "format_message", None)  # click's, or typer's own copy of click
        if message is None:
            if isinstance(error, ValueError):  # an argument that the library refuses
                return _fail(str(error))
            raise
        return _fail(f"{message()} (embmap --help)")
    return status if isinstance(status, int) else 0


@contextlib.contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end what is being done as an error would: temporary files go."""
    by_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not by_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would disturb the cleaning up
    raise _Terminated


def _fail(message: str) -> int:
    complain(message)
    return 2


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    complain(f"warning: {message}")
