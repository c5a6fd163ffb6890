"""The demonstration's text: the docstrings of the standard library of the running Python.

Source files are parsed, never imported, so reading the corpus has no side effects; only the
modules that are compiled into the interpreter are asked for their docstrings directly. The order
depends on nothing but the Python installation, so one interpreter always gives the same corpus.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

__all__ = ["docstrings", "documents", "tokenize"]

# Tests and bundled applications describe themselves rather than the library, and installed
# packages would make the corpus depend on more than the version of Python.
_SKIPPED = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "idlelib",
        "lib2to3",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    }
)

# A letter, then letters and digits, in parts joined by single hyphens, underscores or
# apostrophes: `utf-8`, `file_name` and `don't` are one word, `8` and `2nd` are none.
_WORD = re.compile(r"(?<![^\W_])[^\W\d_][^\W_]*(?:['_-][^\W_]+)*")
_DOCTEST = re.compile(r"^[ \t]*>>>.*(?:\n[ \t]*\S.*)*", re.MULTILINE)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the standard library, each text once.

    The modules written in Python come first, in the order of their paths and from the top of each
    file to its end; files that cannot be read or parsed are left out. The built-in functions and
    classes and the modules compiled into the interpreter follow, in alphabetical order.
    """
    root = Path(sysconfig.get_path("stdlib"))
    trees = filter(None, map(_parse, _sources(root)))
    first = next(trees, None)
    if first is None:
        raise RuntimeError(f"no standard library source found in {root}")
    seen: set[str] = set()
    written = map(_source_docstrings, chain([first], trees))
    compiled = map(_compiled_docstrings, sorted(sys.builtin_module_names))
    for text in chain.from_iterable(chain(written, compiled)):
        if text not in seen:
            seen.add(text)
            yield text


def documents() -> Iterator[list[str]]:
    """Yield the words of each docstring, without its interactive examples."""
    for text in docstrings():
        words = tokenize(text)
        if words:
            yield words


def tokenize(text: str) -> list[str]:
    """Split a text into lower-cased words.

    A word starts with a letter and may hold digits, and single hyphens, underscores and
    apostrophes inside; the possessive ``'s`` is cut off. Numbers, punctuation and interactive
    examples (from a ``>>>`` line to the next blank line) are dropped.

    Examples
    --------
    >>> tokenize("Don't read the file's 2nd UTF-8 block.")
    ["don't", 'read', 'the', 'file', 'utf-8', 'block']
    """
    plain = _DOCTEST.sub("", text).replace("\u2019", "'").lower()
    # The pattern alone would let words start with what is neither a letter nor a digit, as a half.
    return [word.removesuffix("'s") for word in _WORD.findall(plain) if word[0].isalpha()]


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the Python files under a folder; files and folders in the order of their names."""
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name in _SKIPPED or entry.name.startswith("."):
            continue
        if entry.suffix == ".py":
            yield entry
        elif entry.is_dir() and not entry.is_symlink():
            yield from _sources(entry)


def _parse(path: Path) -> ast.Module | None:
    """Return the syntax tree of a source file, or None if there is none to be had."""
    try:
        with warnings.catch_warnings():
            # An invalid escape in somebody else's file is no concern of the reader's.
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _source_docstrings(node: ast.AST) -> Iterator[str]:
    """Yield the docstrings in a syntax tree from the top of the file to its end."""
    if isinstance(node, _DOCUMENTED):
        text = ast.get_docstring(node)
        if text:
            yield text
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield from _source_docstrings(child)


def _compiled_docstrings(name: str) -> Iterator[str]:
    """Yield the docstrings of a compiled-in module, its functions, classes and methods."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return
    owners: list[object] = [module]
    for _, member in sorted(vars(module).items()):
        # Constants carry their class's docstring, and what is written in Python may have been
        # put there by the running program.
        if inspect.isclass(member) or inspect.isbuiltin(member):
            owners.append(member)
            if inspect.isclass(member):
                owners.extend(attribute for _, attribute in sorted(vars(member).items()))
    for owner in owners:
        text = getattr(owner, "__doc__", None)
        if isinstance(text, str) and text.strip():
            yield inspect.cleandoc(text)
