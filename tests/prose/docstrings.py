"""Public names have whole numpydoc docstrings; internal ones have no sections.

A name is public if a face exports it, or if it is a public member of a class that a face exports.
"""

import ast
import inspect
import re
import sys
from contextlib import suppress
from dataclasses import is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from numpydoc.validate import validate

import embmap

__all__ = ["FACES", "check_internal", "check_public", "public_names"]

FACES = [
    "embmap",
    "embmap.client",
    "embmap.conversion",
    "embmap.cvc",
    "embmap.dwe",
    "embmap.embd",
    "embmap.finalfusion",
    "embmap.subwords",
]
# Faces that import a library of an extra; they are checked where it is installed.
OF_EXTRAS = ["embmap.arrow", "embmap.spacy", "embmap.torch"]
CHECKS = {
    "GL03",
    "GL07",
    "PR01",
    "PR02",
    "PR03",
    "PR06",
    "PR07",
    "PR10",
    "RT01",
    "RT05",
    "YD01",
    "SS03",
    "SS04",
}
SECTIONS = {"Parameters", "Returns", "Yields", "Raises"}
ROOT = Path(embmap.__file__).parent
# Parameters that a method takes because its base does, and ignores.
_ONLY_IGNORED = re.compile(r"\{('\*{0,2}_+'(, )?)+\}")


def faces():
    """The faces that can be imported."""
    yield from map(import_module, FACES)
    for name in OF_EXTRAS:
        with suppress(ImportError):
            yield import_module(name)


def public_names():
    """The full names of public functions and classes and of what these classes define."""
    found = set()
    for face in faces():
        for each in (getattr(face, name) for name in face.__all__):
            if inspect.isclass(each):
                for owner in each.__mro__:
                    if owner.__module__.split(".")[0] == "embmap":
                        found.update(_members(owner))
            elif inspect.isfunction(each):
                found.add(f"{each.__module__}.{each.__qualname__}")
    return found


def _members(owner):
    name = f"{owner.__module__}.{owner.__qualname__}"
    yield name
    for member, value in vars(owner).items():
        plain = getattr(value, "__func__", value)
        shown = not member.startswith("_") or (member[:2] == "__" and member != "__init__")
        if shown and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield f"{name}.{member}"


def check_public():
    """What numpydoc finds wrong with public names, a sentence each."""
    for name in sorted(public_names()):
        last = name.rpartition(".")[2]
        if last.startswith("__"):
            continue
        for code, problem in validate(name)["errors"]:
            if code == "PR01" and (_is_documented_elsewhere(name) or _ONLY_IGNORED.search(problem)):
                continue
            if code in CHECKS:
                yield f"{name}: {code} {problem}"


def _is_documented_elsewhere(name):
    """Whether a class takes the parameters of its base, or its attributes as parameters."""
    module, _, last = name.rpartition(".")
    each = getattr(sys.modules.get(module), last, None)
    return inspect.isclass(each) and (is_dataclass(each) or "__init__" not in vars(each))


def check_internal(root=ROOT):
    """Which internal functions and methods have sections in their docstrings, a sentence each."""
    public = public_names()
    absent = tuple(set(OF_EXTRAS) - {face.__name__ for face in faces()})
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if module.startswith(absent):
            continue
        for name, node in definitions(ast.parse(path.read_text("utf-8")), module):
            text = ast.get_docstring(node) or ""
            if name not in public and SECTIONS & sections(text):
                yield f"{path}:{node.lineno}: {name} is internal: a few sentences, no sections"


def definitions(node, name):
    """The functions and classes in a piece of source, with their full names."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{name}.{each.name}", each
            yield from definitions(each, f"{name}.{each.name}")
        elif isinstance(each, ast.If | ast.Try | ast.With):
            yield from definitions(each, name)


def sections(text):
    """The headings in a docstring."""
    lines = text.splitlines()
    return {line for line, under in pairwise(lines) if line and under == "-" * len(line)}
