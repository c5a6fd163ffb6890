"""The page at ``/`` and the files in ``embmap/serve/static`` that it loads."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from embmap.serve.problems import Problem

__all__ = ["Pages"]

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


class _Page(NamedTuple):
    content: bytes
    media_type: str
    tag: str


class Pages:
    """The files of the page, read once at the start. No other file is ever served."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._pages: dict[str, _Page] = {}
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and not path.name.startswith("."):
                content = path.read_bytes()
                kind = _TYPES.get(path.suffix.lower()) or mimetypes.guess_type(path.name)[0]
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                name = path.relative_to(folder).as_posix()
                self._pages[name] = _Page(content, kind or "application/octet-stream", tag)

    def response(self, request: Request) -> Response:
        """Return a file, or 304 if the browser has it."""
        page = self._pages.get(request.path_params.get("path", "index.html"))
        if page is None:
            raise Problem(404, "not_found", "no page or route has this path")
        headers = {"Cache-Control": "no-cache", "ETag": page.tag}
        known = request.headers.get("if-none-match", "")
        if page.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(page.content, media_type=page.media_type, headers=headers)
