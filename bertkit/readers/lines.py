"""Plain text, a row a line; and how every text file becomes text: UTF-8, packed or not, with its faults named by line.

A line ends at LF or CR LF and nowhere else: str.splitlines also cuts at form feeds and at U+2028, which texts do hold.
"""

from __future__ import annotations

import codecs
import difflib
import gzip
import lzma
import re
import sys
import zlib
from contextlib import suppress
from pathlib import Path

from bertkit.errors import DataError
from bertkit.readers import Examples

# The bytes that a packed file begins with: its format, and what unpacks it.
_PACKED = {b"\x1f\x8b": ("gzip", gzip.decompress), b"\xfd7zXZ\x00": ("xz", lzma.decompress)}
_LINE_FEED = b"\n"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def parse_lines(text: str, source: str) -> Examples:
    """A row a line, in the column `text`; an empty line too. Raises DataError where there is none."""
    lines = split_lines(text)
    if not lines:
        raise DataError("the file is empty", where=source)
    return Examples(columns={"text": lines}, source=source, lines=range(1, len(lines) + 1))


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


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, or of the standard input for "-", unpacked, and without its byte-order mark.

    Raises DataError for a file that is missing, cannot be opened, or is not UTF-8 text.
    """
    source = source_name(path)
    if source == "stdin":
        data = sys.stdin.buffer.read()
    else:
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            raise DataError("no such file", where=source, hint=nearest_files(Path(path))) from None
        except IsADirectoryError:
            hint = nearest_files(Path(path) / Path(path).name)
            raise DataError("this is a folder; expected a file", where=source, hint=hint) from None
        except OSError as error:
            raise DataError(f"the file cannot be read: {error.strerror}", where=source) from None
    for magic, (kind, unpack) in _PACKED.items():
        if data.startswith(magic):
            try:
                data = unpack(data)
            except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                hint = "the file is cut off or damaged: copy or download it again"
                raise DataError(f"the {kind} file cannot be unpacked: {error}", where=source, hint=hint) from None
            break
    return decode(data, source)


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
    """UTF-8 bytes, of which the first stand in that line of the source, as text without a byte-order mark. Raises DataError."""
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), None)
    if encoding is None and data[:2000].count(0) > len(data[:2000]) // 5:
        encoding = "UTF-16LE" if data[1:2000:2].count(0) > data[:2000:2].count(0) else "UTF-16BE"
    if encoding:
        start = " ".join(f"0x{byte:02x}" for byte in data[:2])
        what = f"the file looks like {encoding} (it starts with the bytes {start}); expected UTF-8"
        raise DataError(what, where=f"{source}:{first_line}", hint=_iconv(encoding, source))
    if (at := data.find(b"\0")) >= 0:
        hint = f"is this a text file? remove such bytes with: tr -d '\\000' < {source} > clean.txt"
        raise DataError(f"a NUL byte, {_place(data, at)}; expected text", where=_line(source, data, at, first_line), hint=hint)
    text = data.removeprefix(codecs.BOM_UTF8)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start + len(data) - len(text)
        what = f"byte 0x{data[at]:02x}, {_place(data, at)}, is not UTF-8"
        where = _line(source, data, at, first_line)
        if error.reason == "unexpected end of data":
            raise DataError(f"{what}: the file ends inside a character", where=where, hint="is the file cut off?") from None
        if not text[: error.start].isascii():
            hint = f"text before it is UTF-8, so one line is damaged; drop such bytes with: iconv -c -f UTF-8 -t UTF-8 {source}"
            raise DataError(what, where=where, hint=hint) from None
        encoding = _guess_encoding(data)
        raise DataError(f"{what}; the file looks like {encoding}", where=where, hint=_iconv(encoding, source)) from None


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


def _place(data: bytes, at: int) -> str:
    return f"byte {at - data.rfind(_LINE_FEED, 0, at)} of its line"


def _line(source: str, data: bytes, at: int, first_line: int) -> str:
    return f"{source}:{data.count(_LINE_FEED, 0, at) + first_line}"
