"""Writes results into pages of the docs, between marks."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PAGE", "write"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def write(name: str, text: str, path: Path = PAGE) -> None:
    """Replace the text between the marks `name` of a page, or add it at the end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    section = f"{begin}\n{text}\n{end}\n"
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    before, found, rest = page.partition(begin)
    if found:
        _, closed, after = rest.partition(end + "\n")
        if not closed:
            raise SystemExit(f"{path} has {begin} but no {end}")
        page = before + section + after
    else:
        page = f"{page.rstrip()}\n\n{section}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(page, encoding="utf-8")
    print(f"wrote {path}")
