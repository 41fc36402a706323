"""Files given by URL, such as s3://bucket/rows.csv, read with fsspec: finding them, their versions and their bytes.

fsspec is imported when needed. The user must install a protocol's package, such as s3fs.
"""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.errors import DataError, MachineError, UsageError, UserError

# Two letters at least: C://texts is a path of Windows. A path may have a colon, but not this.
_URL = re.compile(r"[A-Za-z][\w+.:-]+://")
_CACHE = "simplecache"  # fsspec's own: a copy on disk while the command runs
# Keys of a file's version in the various protocols; hashes of the content come before times.
_VERSIONS = (
    *("ETag", "etag", "generation", "md5Hash", "content_md5", "Content-MD5", "md5", "blob_id", "oid", "sha", "hex"),
    *("LastModified", "Last-Modified", "last_modified", "updated", "mtime", "modify", "modified", "created"),
)
_BLOCK = 2**16  # bytes asked of fsspec at once, which itself reads ahead


class RemoteFile(NamedTuple):
    """size: in bytes; 0 if unknown. version: changes when the content does; "" if the protocol has none."""

    url: str
    size: int
    version: str


class Listing(NamedTuple):
    """The files that a URL names: one file, those that match a pattern, or all below a folder, sorted by path."""

    files: list[RemoteFile]
    is_folder: bool = False


def is_url(name: str | Path) -> bool:
    """Whether a name is a URL. A Path never is: it would have lost a slash."""
    return isinstance(name, str) and _URL.match(name) is not None


def path_of(name: str) -> Path:
    """The path of a local file, also for a file:// URL; for other URLs, a path that does not exist."""
    return Path(re.sub(r"^(file|local)://", "", name))


def without_query(name: str) -> str:
    """A name without the query of a web URL, such as ?download=true."""
    is_web = name.removeprefix(f"{_CACHE}::").startswith(("http://", "https://"))
    return re.split("[?#]", name, maxsplit=1)[0] if is_web else name


def file_name(name: str) -> str:
    """The last part of a path or URL, without the query, which may contain a token."""
    path = re.split("[?#]", name, maxsplit=1)[0] if is_url(name) else name
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def look_up(url: str) -> Listing:
    """The files that a URL names; none if nothing matches a pattern. Raises DataError for a missing file, and the errors of
    `open_url`.
    """
    with _explained(url):
        system, path = _system(url)
        try:
            named = system.info(path)
        except FileNotFoundError:
            if not glob.has_magic(without_query(url)):
                raise
            found = system.glob(path, detail=True)
            hidden = "/." in path  # as in a shell, hidden files need an explicit pattern
            files = _files(url, path, {name: info for name, info in found.items() if hidden or "/." not in name})
            return Listing(sorted(files))
        if named["type"] == "directory":
            files = _files(url, path, system.find(path, detail=True))
            return Listing(sorted(files, key=lambda file: file.url.split("/")), is_folder=True)
        _refuse_web_page(url, named)
        return Listing([_file(url, named)])


def _answered(system: Any, path: str) -> Mapping[str, Any]:
    """A web server's information on a file; empty if it answers only this request with an error."""
    with suppress(Exception):
        return system.info(path)
    return {}


def _refuse_web_page(url: str, info: Mapping[str, Any]) -> None:
    """Raise DataError if a server sends a page, such as a folder listing or a login, instead of data."""
    is_page = str(info.get("mimetype", "")) in ("text/html", "application/xhtml+xml")
    if is_page and not without_query(url).endswith((".html", ".htm", ".xhtml")):
        hint = "name the files themselves; if the page is the data, its name must end in .html"
        raise DataError("the server answers with a web page; expected a file of data", where=url, hint=hint)


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. Raises UsageError for chained protocols, except a cache before one."""
    from fsspec.core import url_to_fs

    # A URL may come from someone else's run.json, and some chained protocols execute templates.
    if (chained := url.rpartition("::")[0]) not in ("", _CACHE):
        what = f"the URL is chained with {chained}::; expected one protocol, or {_CACHE}:: and one"
        raise UsageError(what, where=url, hint="name the file itself, or copy it here")
    return url_to_fs(url)


def _files(url: str, path: str, found: Mapping[str, Any]) -> list[RemoteFile]:
    """The files that a file system has found, under names that begin like the URL. path: of the URL in that system."""
    url = url.rstrip("/")
    same = sum(1 for _ in takewhile(lambda ends: ends[0] == ends[1], zip(reversed(url), reversed(path))))
    begin, own = url[: len(url) - same], path[: len(path) - same]  # of abfs://c@account/a and c/a: abfs://c@account and c
    return [_file(begin + name.removeprefix(own), info) for name, info in found.items() if info["type"] != "directory"]


def _file(url: str, info: Mapping[str, Any]) -> RemoteFile:
    version = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    return RemoteFile(url, info.get("size") or 0, version)


def open_url(url: str) -> io.BufferedReader[Any]:
    """The bytes of a file, a few megabytes of which are in memory at a time; `raw` has its `size`.

    Opening and reading raise DataError for a file that is missing or denied, UsageError for an unknown protocol, MachineError
    if its package is missing or the network fails.
    """
    return io.BufferedReader(_Bytes(url), _BLOCK)


class _Bytes(io.RawIOBase):
    """An fsspec file as a Python file. size: in bytes, None if unknown."""

    def __init__(self, url: str) -> None:
        self.name = url
        with _explained(url):
            system, path = _system(url)
            _refuse_web_page(url, _answered(system, path) if "http" in url.partition("://")[0] else {})
            try:
                self._file = system.open(path, "rb")
            except FileNotFoundError:
                if system.isdir(path):
                    raise IsADirectoryError from None
                raise
        self.size: int | None = getattr(self._file, "size", None)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.size is not None  # without it fsspec streams, though it may say that it could seek

    def readinto(self, buffer: Any) -> int:
        with _explained(self.name):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _explained(self.name):
            self._file.seek(offset, whence)
            return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Convert any error of a protocol to one of ours; only fsspec may be called inside."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise _explain(error, url) from None


def _explain(error: BaseException, url: str) -> UserError:
    protocol = url.partition("://")[0]
    if isinstance(error, ImportError):
        return _package_missing(error, url, protocol)
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        known = "s3://, gs://, abfs://, hf://, https:// and the other protocols of fsspec"
        return UsageError(f"the protocol {protocol}:// is not known", where=url, hint=f"known: {known}")
    if protocol.startswith("http"):  # fsspec reports every HTTP failure as a missing file; the cause says why
        while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
            error = error.__cause__
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, IsADirectoryError):
        hint = f"for the files in it: '{url.rstrip('/')}/*'"
        return DataError("this is a folder; expected a file", where=url, hint=hint)
    if isinstance(error, FileNotFoundError) or status == 404:
        return DataError("no such file", where=url, hint="check the spelling, and that this machine has access to the file")
    if isinstance(error, PermissionError) or status in (401, 403):
        hint = f"give this machine {protocol}:// credentials that can read it, or copy the file here"
        return DataError("access to the file is denied", where=url, hint=hint)
    if "range requests" in str(error):
        what = "the server sends only whole files, but files of more than 5 MB are read in parts"
        return MachineError(what, where=url, hint=f"write {_CACHE}::{url}, which copies it first, or copy it here")
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    hint = "check the network, the address and the credentials, and repeat the command; or copy the file here"
    return MachineError(f"cannot read the file: {reason}", where=url, hint=hint)


def _package_missing(error: ImportError, url: str, protocol: str) -> MachineError:
    from fsspec.registry import known_implementations

    known = known_implementations.get(protocol.rpartition("::")[2], {})
    package = known.get("class", "").partition(".")[0]
    message = known.get("err") or str(error)
    if package in ("", "fsspec"):  # implemented in fsspec itself: only its message names the missing package
        return MachineError(f"{protocol}:// needs a package that is not installed", where=url, hint=message)
    hint = f"python -m pip install {package.replace('_', '-')}"
    return MachineError(f"{protocol}:// needs the package {package}, which is not installed", where=url, hint=hint)
