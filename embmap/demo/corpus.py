"""The demonstration's text: the docstrings of the standard library of the running Python.

Source files are parsed, not imported, so reading the corpus has no side effects. Only modules that
are compiled into the interpreter are imported. The order depends only on the Python installation,
so one interpreter always gives the same corpus.
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

# Tests and bundled applications do not describe the library. Installed packages would make the
# corpus depend on more than the version of Python.
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
# apostrophes: `utf-8`, `file_name` and `don't` are words; `8` and `2nd` are not.
_WORD = re.compile(r"(?<![^\W_])[^\W\d_][^\W_]*(?:['_-][^\W_]+)*")
_DOCTEST = re.compile(r"^[ \t]*>>>.*(?:\n[ \t]*\S.*)*", re.MULTILINE)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the standard library, each text once.

    Modules written in Python come first, in the order of their paths; files that cannot be read or
    parsed are left out. Modules compiled into the interpreter follow, in alphabetical order.
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

    A word starts with a letter and may contain digits, and single hyphens, underscores and
    apostrophes. The possessive ``'s``, numbers, punctuation and interactive examples (from a
    ``>>>`` line to the next blank line) are dropped.

    Examples
    --------
    >>> tokenize("Don't read the file's 2nd UTF-8 block.")
    ["don't", 'read', 'the', 'file', 'utf-8', 'block']
    """
    plain = _DOCTEST.sub("", text).replace("\u2019", "'").lower()
    # In the pattern, [^\W\d_] also matches numeric characters that are not digits, such as ½.
    return [word.removesuffix("'s") for word in _WORD.findall(plain) if word[0].isalpha()]


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the Python files under a folder, in the order of their names."""
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
    """Return the syntax tree of a source file, or None if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            # The reader cannot mend an invalid escape in the standard library.
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
        # Constants have the docstring of their class, and members written in Python may have been
        # added by the running program.
        if inspect.isclass(member) or inspect.isbuiltin(member):
            owners.append(member)
            if inspect.isclass(member):
                owners.extend(attribute for _, attribute in sorted(vars(member).items()))
    for owner in owners:
        text = getattr(owner, "__doc__", None)
        if isinstance(text, str) and text.strip():
            yield inspect.cleandoc(text)
