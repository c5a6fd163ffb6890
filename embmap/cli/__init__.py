"""The command ``embmap``: a thin layer over the public face.

The exit status is 0 on success, 1 if a word or row is unknown or a check found a problem, 2 for a
bad file or bad usage, and 143 after SIGTERM. An error is one line on stderr.
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
from importlib import import_module
from typing import Annotated, Any

import typer

import embmap
from embmap.cli.options import name_option
from embmap.cli.printing import complain

__all__ = ["COMMANDS", "run"]

# The functions of these modules are the commands, in the order of the help.
COMMANDS = {
    "info_ls_verify": ("info", "ls", "verify"),
    "get_vectors": ("get",),
    "index_words": ("index",),
    "similar_analogy_accuracy": ("similar", "analogy", "accuracy"),
    "outlier_rank_correlation": ("outlier", "rank", "correlation"),
    "trajectory_related_changes": ("trajectory", "related", "changes"),
    "convert_select": ("convert", "select"),
    "append_rows": ("append",),
    "serve_files": ("serve",),
    "bench_file": ("bench",),
    "demo_tour": ("demo",),
}


class _Terminated(BaseException):
    """SIGTERM. Not an Exception, so that no code on the way handles it as an error."""


def run(arguments: Sequence[str]) -> int:
    """Run a command and return the exit status."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(_app(arguments[0] if arguments else ""))
    try:
        with _raising_on_sigterm():
            status = command.main(list(arguments), prog_name="embmap", standalone_mode=False)
            sys.stdout.flush()
    except (embmap.EmbmapError, ImportError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader of our output has gone. Python flushes stdout at exit, which must not fail.
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
            if isinstance(error, embmap.errors.ArgumentError):
                return _fail(error.rename(name_option))
            if isinstance(error, ValueError):  # an argument that the library refuses
                return _fail(str(error))
            raise
        context = getattr(error, "ctx", None)
        asked = "embmap" if context is None else context.command_path
        if getattr(getattr(error, "param", None), "nargs", 1) == -1:
            _blame_last(error, arguments[1:])
        return _fail(f"{message()} (see {asked} --help)")
    return status if isinstance(status, int) else 0


def _app(asked: str) -> typer.Typer:
    """Return the command line with the command that is asked for, or with all of them.

    Only the module of that command is imported: the others cost a tenth of a second.
    """
    known = any(asked in names for names in COMMANDS.values())
    app = typer.Typer(
        help="Work with embedding files without reading them whole.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=not known,
    )
    app.callback(invoke_without_command=True)(_root)
    for module, names in COMMANDS.items():
        if asked in names or not known:
            commands = import_module(f"embmap.cli.{module}")
            for name in names:
                app.command()(getattr(commands, name))
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"embmap {embmap.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@contextlib.contextmanager
def _raising_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command as an error would, so that temporary files are removed."""
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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not stop the cleaning up
    raise _Terminated


def _blame_last(error: Any, arguments: Sequence[str]) -> None:
    """Let an error about a missing list of arguments name the argument after the list.

    The parser gives that one the only value, which a user meant for the list.
    """
    given, _, _ = error.ctx.command.make_parser(error.ctx).parse_args(list(arguments))
    last = error.ctx.command.params[error.ctx.command.params.index(error.param) + 1]
    if last.param_type_name == "argument" and given.get(last.name):
        error.param = last


def _fail(message: str) -> int:
    complain(message)
    return 2


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    complain(f"warning: {message}")
