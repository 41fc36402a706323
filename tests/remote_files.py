"""Remote files: in fsspec's memory, in a store that fails on demand, and behind a web server."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import fsspec
from fsspec import AbstractFileSystem


def put(path: Path, folder: str = "store") -> str:
    """The URL of a copy of a file in memory."""
    url = f"memory://{folder}/{path.name}"
    fsspec.filesystem("memory").pipe_file(url, path.read_bytes())
    return url


class Store(AbstractFileSystem):
    """store://NAME: the bytes in `files`, each with the ETag in `etags`; what `errors` holds for a verb and name is raised."""

    protocol = "store"
    cachable = False
    files: ClassVar[dict[str, bytes]] = {}
    etags: ClassVar[dict[str, str]] = {}
    errors: ClassVar[dict[tuple[str, str], Exception]] = {}  # (info|open|read, name)
    asked = 0  # bytes that were read of all files

    def ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:
        found = [self.info(name) for name in self.files if name.startswith(path)]
        return found if detail else [each["name"] for each in found]

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        self.fail("info", name)
        if name not in self.files:
            raise FileNotFoundError(name)
        return {"name": name, "size": len(self.files[name]), "type": "file", "ETag": self.etags.get(name)}

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        self.fail("open", path)
        if path not in self.files:
            raise FileNotFoundError(path)
        store, data = self, io.BytesIO(self.files[path])

        class File(io.BytesIO):
            size = len(store.files[path])

            def read(self, length: int | None = -1, /) -> bytes:
                if data.tell():
                    store.fail("read", path)  # not at the first bytes
                read = data.read(length)
                Store.asked += len(read)
                return read

            def seek(self, offset: int, whence: int = 0, /) -> int:
                return data.seek(offset, whence)

            def tell(self) -> int:
                return data.tell()

        return File()

    def fail(self, verb: str, name: str) -> None:
        if error := self.errors.get((verb, name)):
            raise error

    @classmethod
    def clear(cls) -> None:
        cls.asked = 0
        for each in (cls.files, cls.etags, cls.errors):
            each.clear()


fsspec.register_implementation("store", Store, clobber=True)


@contextmanager
def web(pages: dict[str, bytes | int], etags: dict[str, str], *, ranges: bool = True) -> Iterator[str]:
    """The address of a server: each path gives bytes, or a status of failure. Paths below /page/ are web pages. ranges: whether
    it gives parts of files."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = pages.get(self.path, 404)
            body = found if isinstance(found, bytes) else b""
            begin, end = 0, len(body)
            in_part = ranges and "Range" in self.headers
            if in_part:
                first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                begin, end = int(first), min(len(body), int(last) + 1)
            status = found if isinstance(found, int) else 206 if in_part else 200
            self.send_response(status)
            self.send_header("Content-Length", str(end - begin))
            if ranges:
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(body)}")
            if self.path.startswith("/page/"):
                self.send_header("Content-Type", "text/html; charset=utf-8")
            if self.path in etags:
                self.send_header("ETag", etags[self.path])
            self.end_headers()
            if self.command == "GET":
                with suppress(OSError):  # the client has enough
                    self.wfile.write(body[begin:end])

        do_HEAD = do_GET

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
