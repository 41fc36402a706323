"""What a data file holds: bytes, unpacked, and UTF-8 text, read in blocks of lines; faults are named by line.

A line ends at LF or CR LF and nowhere else: str.splitlines also cuts at form feeds and at U+2028, which texts do hold.
"""

from __future__ import annotations

import codecs
import difflib
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, cast

from bertkit.errors import DataError

BLOCK = 2**20  # bytes read and decoded at once
# The bytes that a packed file begins with: its format, and what unpacks it.
_PACKED: dict[bytes, tuple[str, Callable[..., Any]]] = {b"\x1f\x8b": ("gzip", gzip.open), b"\xfd7zXZ\x00": ("xz", lzma.open)}
# Those of formats that are not text: what the file is, and what to do.
_BINARY = {
    b"PAR1": ("a Parquet file", "name it .parquet"),
    b"ARROW1": ("an Arrow file", "name it .arrow"),
    b"PK\x03\x04": ("a ZIP archive", "unpack it; if it is an Excel workbook, name it .xlsx"),
    b"\xd0\xcf\x11\xe0": ("a file of an older Office", "save it as .xlsx or CSV"),
    b"%PDF": ("a PDF", "export its text"),
    b"BZh": ("a bzip2 file", "unpack it with bunzip2"),
    b"\x28\xb5\x2f\xfd": ("a zstd file", "unpack it with unzstd"),
    b"\x89PNG": ("an image", "is it the right file?"),
    b"\xff\xd8\xff": ("an image", "is it the right file?"),
    b"GIF8": ("an image", "is it the right file?"),
}
_LINE_FEED = b"\n"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class Content:
    """The bytes of one file, unpacked, to be read once: whole, or in blocks that each end with a line.

    source: its name in errors. stored: the bytes as they are stored, perhaps packed. Reading raises DataError for what cannot
    be unpacked or, as text, is not UTF-8.
    """

    def __init__(self, source: str, stored: io.BufferedReader[Any]) -> None:
        self.source = source
        self._stored = stored
        blocks = self._read()
        self.first_block = next(blocks, b"")
        self._blocks = chain([self.first_block], blocks)

    @property
    def extension(self) -> str:
        return extension(self.source)

    @property
    def position(self) -> int:
        """How many of the bytes as stored are read; 0 where the source does not tell."""
        return self._stored.tell() if self._stored.seekable() else 0

    @cached_property
    def beginning(self) -> str:
        """The text of the first block, without what is not UTF-8; "" where that is binary. By it formats are recognized."""
        if b"\0" in self.first_block:
            return ""
        return self.first_block.removeprefix(codecs.BOM_UTF8).decode("utf-8", "ignore")

    @property
    def first_line(self) -> str:
        """The first line that is not empty."""
        return self.beginning.lstrip("\r\n").partition("\n")[0]

    def data(self) -> bytes:
        return b"".join(self._blocks)

    def text(self) -> str:
        return decode(self.data(), self.source)

    def texts(self) -> Iterator[str]:
        """The text of each block."""
        line = 1
        for block in self._blocks:
            yield decode(block, self.source, first_line=line)
            line += block.count(_LINE_FEED)

    def lines(self) -> Iterator[str]:
        """The lines without their ends."""
        return chain.from_iterable(map(split_lines, self.texts()))

    def _read(self) -> Iterator[bytes]:
        start = self._stored.peek(6)
        kind, unpack = next((packed for magic, packed in _PACKED.items() if start.startswith(magic)), ("", None))
        unpacked = unpack(self._stored) if unpack else self._stored
        try:
            while block := unpacked.read(BLOCK):
                yield block + unpacked.readline()
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            if not kind:
                raise DataError(f"the file cannot be read: {error}", where=self.source) from None
            hint = "the file is cut off or damaged: copy or download it again"
            raise DataError(f"the {kind} file cannot be unpacked: {error}", where=self.source, hint=hint) from None


@contextmanager
def open_content(path: str | Path) -> Iterator[Content]:
    """The content of a file, or of the standard input for "-". Raises DataError for one that is missing or cannot be opened."""
    source = source_name(path)
    stored = io.BufferedReader(cast("io.RawIOBase", sys.stdin.buffer)) if source == "stdin" else _open(Path(path))
    try:
        yield Content(source, stored)
    finally:
        if source == "stdin":
            stored.detach()  # else it would close the standard input
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
        raise DataError(f"the file cannot be read: {error.strerror}", where=str(path)) from None


def read_text(path: str | Path) -> str:
    """The whole text of a file, or of the standard input for "-". Raises as `open_content` and `Content` do."""
    with open_content(path) as content:
        return content.text()


def split_lines(text: str) -> list[str]:
    """The lines of a file without their ends."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def extension(name: str) -> str:
    """The extension of a file's name in small letters, looking through .gz and .xz: ".csv" for "A.CSV.gz"."""
    return Path(unpacked_name(name)).suffix.lower()


def unpacked_name(name: str) -> str:
    """A file's name without .gz or .xz: "A.CSV" for "A.CSV.gz"."""
    return name[:-3] if name.lower().endswith((".gz", ".xz")) else name


def source_name(path: str | Path) -> str:
    """How errors name a file; "-" is the standard input."""
    return "stdin" if str(path) == "-" else str(path)


def nearest_files(path: Path) -> str | None:
    """A hint at the names most like `path` in its folder, or at the nearest folder that does exist."""
    folder = path.parent
    if not folder.is_dir():
        while not folder.is_dir():
            folder = folder.parent
        return f"there is no folder {path.parent}; {folder} exists"
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(str(folder / name) for name in near)}?"
    return f"{folder} holds {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" if names else f"{folder} is empty"


def decode(data: bytes, source: str, *, first_line: int = 1) -> str:
    """UTF-8 bytes as text without a byte-order mark. first_line: their first line's number in the source. Raises DataError."""
    text = data.removeprefix(codecs.BOM_UTF8) if first_line == 1 else data
    nul = data.find(b"\0")
    if nul < 0:
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            refused = error
    for magic, (kind, hint) in _BINARY.items():
        if first_line == 1 and data.startswith(magic):
            raise DataError(f"this is {kind}; expected text", where=source, hint=hint)
    if encoding := _two_byte_encoding(data):
        start = " ".join(f"0x{byte:02x}" for byte in data[:2])
        what = f"the file looks like {encoding} (it starts with the bytes {start}); expected UTF-8"
        raise DataError(what, where=f"{source}:{first_line}", hint=_iconv(encoding, source))
    if _is_binary(data):
        hint = "is it the right file? Parquet, Arrow and Excel files are known by their endings"
        raise DataError("the file is binary; expected text", where=source, hint=hint)
    if nul >= 0:
        hint = f"is this a text file? remove such bytes with: tr -d '\\000' < {source} > clean.txt"
        where = _line(source, data, nul, first_line)
        raise DataError(f"a NUL byte, {_place(data, nul)}; expected text", where=where, hint=hint)
    raise _not_utf8(data, refused.start + len(data) - len(text), refused.reason, source, first_line)


def _two_byte_encoding(data: bytes) -> str | None:
    """UTF-16 or UTF-32, by the mark at the beginning, or by NUL bytes in every other place."""
    if marked := next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), None):
        return marked
    even, odd = data[:2000:2].count(0), data[1:2000:2].count(0)
    if even + odd <= len(data[:2000]) // 5 or max(even, odd) < 10 * min(even, odd):
        return None
    return "UTF-16LE" if odd > even else "UTF-16BE"


def _is_binary(data: bytes) -> bool:
    """Whether bytes that are not UTF-8 are no text of another encoding either: control characters are many."""
    start = data[:4000]
    return start.count(0) > len(start) // 5 or len(re.findall(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]", start)) > len(start) // 50


def _not_utf8(data: bytes, offset: int, reason: str, source: str, first_line: int) -> DataError:
    what, where = f"byte 0x{data[offset]:02x}, {_place(data, offset)}, is not UTF-8", _line(source, data, offset, first_line)
    if reason == "unexpected end of data":
        return DataError(f"{what}: the file ends inside a character", where=where, hint="is the file cut off?")
    if not data[:offset].removeprefix(codecs.BOM_UTF8).isascii():
        hint = f"text before it is UTF-8, so one line is damaged; drop such bytes with: iconv -c -f UTF-8 -t UTF-8 {source}"
        return DataError(what, where=where, hint=hint)
    encoding = _guess_encoding(data)
    return DataError(f"{what}; the file looks like {encoding}", where=where, hint=_iconv(encoding, source))


def _guess_encoding(data: bytes) -> str:
    """What text is in that is not UTF-8: GBK writes its characters in runs of bytes above 0x7f, Latin-1 in single ones."""
    runs = re.findall(rb"[\x80-\xff]+", data)
    if sum(map(len, runs)) > 1.5 * len(runs):
        with suppress(UnicodeDecodeError):  # then one of the Latin encodings
            data.decode("gb18030")
            return "GB18030"
    return "WINDOWS-1252" if re.search(rb"[\x80-\x9f]", data) else "Latin-1"


def _iconv(encoding: str, source: str) -> str:
    return f"convert it: iconv -f {encoding.replace('Latin-1', 'ISO-8859-1')} -t UTF-8 {source} > utf8.txt"


def _place(data: bytes, offset: int) -> str:
    return f"byte {offset - data.rfind(_LINE_FEED, 0, offset)} of its line"


def _line(source: str, data: bytes, offset: int, first_line: int) -> str:
    return f"{source}:{data.count(_LINE_FEED, 0, offset) + first_line}"
