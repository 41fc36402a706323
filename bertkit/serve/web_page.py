"""The page at `/` to try the models: plain files that load nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Response

_FOLDER = Path(__file__).parent / "static"
_TYPES = {"index.html": "text/html", "style.css": "text/css", "script.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add GET / and the files that it loads. They need no token: they contain nothing about models or texts."""
    for name, kind in _TYPES.items():
        path = "/" if name == "index.html" else f"/{name}"
        app.get(path, include_in_schema=False)(_sender((_FOLDER / name).read_bytes(), kind))


def _sender(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return send
