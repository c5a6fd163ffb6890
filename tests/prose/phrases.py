"""Phrases that are refused in docstrings, comments, messages and pages."""

import io
import re
import tokenize
from pathlib import Path

__all__ = ["PAGES", "check_phrases", "prose_of", "read_phrases"]

PHRASES = Path(__file__).with_name("phrases.txt")
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "embmap", "tests"]
SUFFIXES = {".py", ".md", ".html", ".js"}
_OWN = [Path(__file__).parent, Path(__file__).parent.with_name("test_prose.py")]
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def read_phrases():
    """The refused phrases: (pattern, what to write instead)."""
    lines = PHRASES.read_text("utf-8").splitlines()
    pairs = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in pairs]


def prose_of(path, text):
    """The pieces of a file that people read, each with the number of its first line."""
    if path.suffix != ".py":
        yield 1, _FENCED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
        return
    comment, first, last = [], 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            if comment and line != last + 1:
                yield first, "\n".join(comment)
                comment = []
            first, last = (line, line) if not comment else (first, line)
            comment.append(token.string)
        elif token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield line, token.string
    if comment:
        yield first, "\n".join(comment)


def check_phrases(paths, phrases):
    """Where refused phrases are, a sentence each."""
    for path in paths:
        for start, text in prose_of(path, path.read_text("utf-8")):
            # A phrase may go on in the next line, behind the mark of a comment.
            flat = re.sub(r"\n[ \t]*(#)?", lambda found: " " + " " * (len(found[0]) - 1), text)
            for pattern, instead in phrases:
                for found in pattern.finditer(re.sub(r" {2,}", " ", flat)):
                    yield f"{path}:{start}: “{found[0]}”: {instead}"


def pages(root):
    """Every file whose prose is checked."""
    for name in PAGES:
        path = root / name
        every = sorted(path.rglob("*")) if path.is_dir() else [path]
        for each in every:
            if each.suffix in SUFFIXES and each.is_file() and not {each, *each.parents} & {*_OWN}:
                yield each
