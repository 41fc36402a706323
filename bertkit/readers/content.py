"""The content of a data file: unpacked bytes, and text as UTF-8, read in blocks of lines; errors name the line.

A line ends at LF or CR LF, or at CR in a file that begins without LF (of an old Macintosh), and nowhere else: str.splitlines
also cuts at form feeds and at U+2028, which texts do hold.
"""

from __future__ import annotations

import bz2
import codecs
import difflib
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from bertkit.errors import DataError, listed
from bertkit.readers.encoding import Recoded, guess_encoding, two_byte_encoding
from bertkit.readers.faults import Faults
from bertkit.readers.remote import is_url, open_url, without_query
from bertkit.readers.zstd import ZstdFile

MAX_FILE_SIZE = 16.0  # gigabytes that a compressed file may unpack to, unless --max-file-size says otherwise
BLOCK = 2**16  # bytes read and decoded at once: small enough for a processor's cache
_CHUNK = 2**22  # bytes of a file that is read whole

# The bytes that a compressed file begins with: its format, and what unpacks it.
_COMPRESSED: dict[bytes, tuple[str, Callable[..., Any]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"\xfd7zXZ\x00": ("xz", lzma.open),
    b"BZh": ("bzip2", bz2.open),
    b"\x28\xb5\x2f\xfd": ("zstd", lambda stored: io.BufferedReader(ZstdFile(stored))),
}
STDIN = "-"  # the path of standard input
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")  # their endings
# The first bytes of documents: what the file is, and what to do. Unlike those in _BINARY, such a file may be all ASCII.
_DOCUMENTS = {
    b"%PDF": ("a PDF", "export its text, or leave the file out"),
    b"{\\rtf": ("an RTF document", "save it as plain text"),
}
_BINARY = {
    b"PAR1": ("a Parquet file", "name it .parquet"),
    b"ARROW1": ("an Arrow file", "name it .arrow"),
    b"PK\x03\x04": ("a ZIP archive", "unpack it; if it is an Excel workbook, name it .xlsx"),
    b"\xd0\xcf\x11\xe0": ("an old Office file", "save it as .xlsx or CSV"),
    **_DOCUMENTS,
    **dict.fromkeys((b"\x89PNG", b"\xff\xd8\xff", b"GIF8"), ("an image", "is it the right file?")),
}
_LINE_FEED = b"\n"


class Content:
    """The bytes of one file, unpacked, to be read once: whole, or in blocks that each end with a line.

    source: its name in errors. stored: the bytes as they are stored, perhaps compressed. encoding: of a text that is not UTF-8;
    formats that are not text are read as they are. max_file_size: gigabytes that they may unpack to. faults: takes lines that
    are not text; by default it raises. Reading raises DataError for what cannot be unpacked.
    """

    def __init__(
        self,
        source: str,
        stored: io.BufferedReader[Any],
        *,
        encoding: str | None = None,
        max_file_size: float | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.source = source
        self.faults = faults or Faults()
        self.broken: set[int] = set()  # the numbers of lines to leave out, as they are not text
        self.column_names: frozenset[str] = frozenset()  # by which a header is recognized
        self.max_file_size = MAX_FILE_SIZE if max_file_size is None else max_file_size
        self._left = int(self.max_file_size * 10**9)  # bytes that may still be unpacked
        self._stored, self._encoding = stored, encoding
        start = stored.peek(6)
        self._compression, opened = next((each for magic, each in _COMPRESSED.items() if start.startswith(magic)), ("", None))
        self._plain = opened(stored) if opened else stored
        self.start = self._read(BLOCK)  # bytes by which formats are recognized
        # A byte-order mark of UTF-8 says more than an option for all files.
        if encoding is not None and not self.start.startswith((*_BINARY, codecs.BOM_UTF8)):
            self._plain = io.BufferedReader(Recoded(source, self.start, self._plain, encoding))
            self.start = self._read(BLOCK)

    @property
    def extension(self) -> str:
        return extension(self.source)

    @property
    def position(self) -> int:
        """The number of stored bytes read so far; 0 if the source does not tell."""
        return self._stored.tell() if self._stored.seekable() else 0

    @property
    def share(self) -> float | None:
        """The share of the stored bytes read so far; None if the source does not tell, like standard input."""
        size = getattr(self._stored.raw, "size", None)  # of a remote file
        try:
            if size is None:
                size = os.fstat(self._stored.fileno()).st_size if self._stored.seekable() else 0
        except OSError:
            return None
        return min(1.0, self.position / size) if size else None

    def file(self) -> BinaryIO:
        """The bytes as a seekable file; if compressed or from a pipe, completely in memory."""
        if self._compression or not self._stored.seekable():
            return io.BytesIO(self.data())
        self._stored.seek(0)
        return cast("BinaryIO", self._stored)

    @cached_property
    def beginning(self) -> str:
        """The text of `start`, up to the end of a line and without invalid UTF-8; "" if it is binary."""
        start = self.start.removeprefix(codecs.BOM_UTF8)
        if len(self.start) >= BLOCK:
            start = start[: start.rfind(_LINE_FEED) + 1] or start
        return "" if b"\0" in start else start.decode("utf-8", "ignore")

    @property
    def first_line(self) -> str:
        """The first line that is not empty."""
        return self.beginning.lstrip("\r\n").partition("\n")[0]

    @property
    def lone_header(self) -> str | None:
        """The first line if it is one of `column_names` alone, in whatever case, and others follow."""
        first, _, rest = self.beginning.partition("\n")
        name = first.strip().strip('"')
        return name if name.casefold() in map(str.casefold, self.column_names) and rest.strip() else None

    def data(self) -> bytes:
        return b"".join([self.start, *iter(partial(self._read, _CHUNK), b"")])

    def text(self) -> str:
        return self._decode(self.data())

    def texts(self) -> Iterator[tuple[int, str]]:
        """For each block the number of its first line, from 1, and its text; `broken` has the numbers of lines to leave out."""
        number = 1
        for block in self._blocks():
            try:
                yield number, self._decode(block, number)
            except DataError as error:
                yield number, "".join(f"{line}\n" for line in self._mended(block, number, error))
            number += block.count(_LINE_FEED)

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """For each block the number of its first line, from 1, and its lines without their ends."""
        for number, text in self.texts():
            yield number, split_lines(text)

    def _mended(self, block: bytes, first: int, error: DataError) -> Iterator[str]:
        """The lines of a block in which some are not text, as `error` says."""
        is_other_kind = error.where == self.source or two_byte_encoding(self.start)  # the whole file, not some lines
        if self.faults.policy == "fail" or is_other_kind:
            raise error
        for number, row in enumerate(block.removesuffix(_LINE_FEED).split(_LINE_FEED), start=first):
            try:
                line = self._decode(row, number)
            except DataError as refused:
                self.faults.take(DataError(refused.what, where=f"{self.source}:{number}", hint=refused.hint))
                if self.faults.policy == "skip":
                    self.broken.add(number)
                line = row.decode("utf-8", "replace").replace("\0", "\ufffd")
            yield line.removesuffix("\r")

    def _decode(self, data: bytes, first_line: int = 1) -> str:
        return decode(data, self.source, first_line=first_line, encoding=self._encoding)

    def _blocks(self) -> Iterator[bytes]:
        if b"\r" in self.start[:-1] and _LINE_FEED not in self.start:
            yield from self._old_blocks()
            return
        block = self.start
        while block:
            yield block + self._read(line=True)
            block = self._read(BLOCK)

    def _old_blocks(self) -> Iterator[bytes]:
        """Blocks of lines that end with CR, which here is LF."""
        block = self.start
        while block:
            while not block.endswith(b"\r") and (byte := self._read(1)):
                block += byte
            yield block.replace(b"\r", _LINE_FEED)
            block = self._read(BLOCK)

    def _read(self, size: int = -1, *, line: bool = False) -> bytes:
        """The next bytes, or the rest of a line."""
        most = self._left + 1 if self._compression else -1  # of a line
        try:
            read = self._plain.readline(most) if line else self._plain.read(size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            if not self._compression:
                raise DataError(f"cannot read the file: {error}", where=self.source) from None
            hint = "the file is cut off or damaged: copy or download it again"
            raise DataError(f"cannot unpack the {self._compression} file: {error}", where=self.source, hint=hint) from None
        if self._compression:
            self._left -= len(read)
            if self._left < 0:
                raise too_large(f"the {self._compression} file", self.source, self.max_file_size)
        return read


def too_large(what: str, source: str, limit: float) -> DataError:
    """The error for a file that unpacks to more than `limit` gigabytes."""
    hint = "if it is meant to be that large, raise --max-file-size"
    return DataError(f"{what} unpacks to more than {limit:g} GB", where=source, hint=hint)


@contextmanager
def open_content(
    path: str | Path, *, encoding: str | None = None, max_file_size: float | None = None, faults: Faults | None = None
) -> Iterator[Content]:
    """The content of a file, given by path or URL, or of standard input for "-". encoding, max_file_size, faults: as in
    Content.

    Raises DataError for a file that is missing or cannot be opened, UsageError for an unknown encoding, and the errors of
    `open_url`.
    """
    source, is_stdin = source_name(path), str(path) == STDIN
    if is_stdin:
        stored = io.BufferedReader(cast("io.RawIOBase", sys.stdin.buffer))
    else:
        stored = open_url(source) if is_url(path) else _open(Path(path))
    try:
        yield Content(source, stored, encoding=encoding, max_file_size=max_file_size, faults=faults)
    finally:
        if is_stdin:
            stored.detach()  # else it would close standard input
        else:
            stored.close()


def _open(path: Path) -> io.BufferedReader[Any]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise DataError("no such file", where=str(path), hint=nearest_files(path)) from None
    except IsADirectoryError:
        raise DataError("this is a folder; expected a file", where=str(path), hint=nearest_files(path / path.name)) from None
    except OSError as error:
        raise DataError(f"cannot read the file: {error.strerror}", where=str(path)) from None


def read_text(path: str | Path, *, encoding: str | None = None, max_file_size: float | None = None) -> str:
    """The whole text of a file, or of standard input for "-". The arguments, and what is raised: as in `open_content`."""
    with open_content(path, encoding=encoding, max_file_size=max_file_size) as content:
        return content.text()


def typed_separator(text: str) -> str:
    """The separator that a user typed: a shell passes '\\t' on as a backslash and a t."""
    return "\t" if text == "\\t" else text


def split_lines(text: str) -> list[str]:
    """The lines of a file without their ends."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def extension(name: str) -> str:
    """The lower-case extension of a file's name, ignoring those in COMPRESSED: ".csv" for "A.CSV.gz"."""
    return Path(plain_name(name)).suffix.lower()


def plain_name(name: str) -> str:
    """A file's name without a compression's ending: "A.CSV" for "A.CSV.gz"."""
    name = without_query(name)
    ending = next((ending for ending in COMPRESSED if name.lower().endswith(ending)), "")
    return name.removesuffix(name[-len(ending) :]) if ending else name


def source_name(path: str | Path) -> str:
    """How errors name a file; "-" is standard input."""
    return "stdin" if str(path) == STDIN else str(path)


def nearest_files(path: Path) -> str | None:
    """A hint with the names in its folder most similar to `path`, or the nearest folder that exists."""
    folder = path.parent
    if not folder.is_dir():
        while not folder.is_dir():
            folder = folder.parent
        return f"there is no folder {path.parent}; {folder} exists"
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(str(folder / name) for name in near)}?"
    return f"{folder} holds {listed(names, 6)}" if names else f"{folder} is empty"


def decode(data: bytes, source: str, *, first_line: int = 1, encoding: str | None = None) -> str:
    """UTF-8 bytes as text without a byte-order mark. first_line: the number of their first line. encoding: the file's original
    encoding, if another one. Raises DataError.
    """
    if first_line == 1 and data.startswith((*_DOCUMENTS,)):
        _refuse_other_kind(data, source)
    text = data.removeprefix(codecs.BOM_UTF8) if first_line == 1 else data
    nul = data.find(b"\0")
    if nul < 0:
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            refused = error
    offset = nul if nul >= 0 else refused.start + len(data) - len(text)
    where = f"{source}:{data.count(_LINE_FEED, 0, offset) + first_line}"
    if encoding is not None:
        raise DataError(f"the line is not text in {encoding}", where=where, hint="is --encoding right? the default is UTF-8")
    if first_line == 1:
        _refuse_other_kind(data, source)
    what = f"byte {offset - data.rfind(_LINE_FEED, 0, offset)} of the line"
    if nul >= 0:
        raise DataError(f"{what} is NUL; expected text", where=where, hint="is this a text file, and undamaged?")
    what += f", 0x{data[offset]:02x}, is not UTF-8"
    if refused.reason == "unexpected end of data":
        raise DataError(f"{what}: the file ends inside a character", where=where, hint="is the file cut off?")
    if not data[:offset].removeprefix(codecs.BOM_UTF8).isascii():
        hint = "the text before it is UTF-8, so only a part is damaged: correct this line"
        raise DataError(what, where=where, hint=hint)
    found = guess_encoding(data)
    raise DataError(f"{what}; the file looks like {found}", where=where, hint=_encoding_hint(found))


def _refuse_other_kind(data: bytes, source: str) -> None:
    """Raise DataError if the beginning of a file shows that the whole file is not UTF-8 text."""
    for magic, (kind, hint) in _BINARY.items():
        if data.startswith(magic):
            raise DataError(f"this is {kind}; expected text", where=source, hint=hint)
    if found := two_byte_encoding(data):
        start = " ".join(f"0x{byte:02x}" for byte in data[:2])
        what = f"the file looks like {found} (it starts with the bytes {start}); expected UTF-8"
        raise DataError(what, where=f"{source}:1", hint=_encoding_hint(found))
    if _is_binary(data):
        hint = "is this the right file? Parquet, Arrow and Excel files are recognized by their endings"
        raise DataError("the file is binary; expected text", where=source, hint=hint)


def _is_binary(data: bytes) -> bool:
    """Whether bytes that are not UTF-8 are not text in another encoding either, because they have many control characters."""
    start = data[:4000]
    return start.count(0) > len(start) // 5 or len(re.findall(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]", start)) > len(start) // 50


def _encoding_hint(encoding: str) -> str:
    return f"if so, add --encoding {encoding.lower()}"
