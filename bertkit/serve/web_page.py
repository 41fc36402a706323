"""The pages of a server, one to try the models and one with its routes: they load nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

_FOLDER = Path(__file__).parent / "static"
_TYPES = {"index.html": "text/html", "style.css": "text/css", "script.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_NOTHING_FOREIGN = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def add_page(app: FastAPI) -> None:
    """Add GET / and the files that it loads. They need no token: they contain nothing about models or texts."""
    for name, kind in _TYPES.items():
        path = "/" if name == "index.html" else f"/{name}"
        app.get(path, include_in_schema=False)(_sender((_FOLDER / name).read_bytes(), kind))


def _sender(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return send


def docs_page(schema: Mapping[str, Any]) -> HTMLResponse:
    """The OpenAPI document, for people."""
    parts: list[str] = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>bertkit</title>',
        "<style>body{font:1em sans-serif;max-width:50em;margin:2em auto}pre{background:#eee;padding:1em}</style>",
        '<h1>bertkit</h1><p>For programs: <a href="openapi.json">openapi.json</a></p>',
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation['summary'])}</p>")
            if body := operation.get("requestBody"):
                example = body["content"]["application/json"]["schema"]["example"]
                parts.append(f"<pre>{escape(json.dumps(example, indent=2))}</pre>")
    return HTMLResponse("\n".join(parts), headers=_NOTHING_FOREIGN)
