"""Unpack zstd with the zstandard package; Python's standard library has it only since 3.14."""

from __future__ import annotations

import io
from typing import Any

from bertkit.errors import MachineError

INSTALL = "python -m pip install zstandard"
_CHUNK = 2**16


class ZstdFile(io.RawIOBase):
    """The bytes of one or more zstd frames. Raises MachineError without the package, OSError and EOFError for broken ones."""

    def __init__(self, stored: io.BufferedReader[Any]) -> None:
        try:
            import zstandard
        except ImportError:
            hint = f"{INSTALL}, or unpack the file with unzstd"
            what, where = "a zstd file needs the package zstandard, which is not installed", getattr(stored, "name", None)
            raise MachineError(what, where=str(where) if where else None, hint=hint) from None
        self._library, self._stored = zstandard, stored
        self._frame: Any = None
        self._unread = self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            data = self._unread or self._stored.read(_CHUNK)
            if not data:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("it ends too early")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._left = self._frame.decompress(data)
            except self._library.ZstdError as error:
                raise OSError(str(error)) from None
            self._unread = self._frame.unused_data if self._frame.eof else b""
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count
