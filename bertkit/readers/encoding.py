"""Text in other encodings, converted to UTF-8 for all readers; and a guess at the encoding of bytes."""

from __future__ import annotations

import codecs
import io
import re
from contextlib import suppress
from typing import Any

from bertkit.errors import UsageError

_CHUNK = 2**16
_BROKEN = "bertkit.broken"  # the name of an error handler of codecs
_BYTE_ORDER_MARKS = {  # those of UTF-32 begin with those of UTF-16
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "UTF-16"),
}


class Recoded(io.RawIOBase):
    """The bytes of a text in `encoding`, converted to UTF-8. source: its name in errors. begin: bytes already read
    from `stored`.

    Invalid bytes become 0xff, which UTF-8 never has, so the decoder can name the line. Raises UsageError for an unknown
    encoding, and for one that would garble UTF-8.
    """

    def __init__(self, source: str, begin: bytes, stored: Any, encoding: str) -> None:
        try:
            "".encode(encoding)  # refuses codecs of bytes, such as hex
            self._decoder = codecs.getincrementaldecoder(encoding)(_BROKEN)
            codecs.getincrementaldecoder(encoding)(_BROKEN).decode(b"\xff\xfe", False)  # refuses codecs of names, such as idna
        except (LookupError, UnicodeError):
            hint = "for example latin-1, windows-1252, utf-16, gb18030, big5, shift_jis, koi8-r"
            raise UsageError(f"--encoding is {encoding!r}, which Python does not know", hint=hint) from None
        if garbles_utf8(encoding, begin):
            hint = "leave out --encoding; files in another encoding need a command of their own"
            raise UsageError(f"{source} is text in UTF-8, which --encoding {encoding} would garble", hint=hint)
        self._source, self._begin, self._stored, self._encoding = source, begin, stored, encoding
        self._left = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and not self._ended:
            data, self._begin = self._begin or self._stored.read(_CHUNK), b""
            self._ended = not data
            try:
                self._left = self._decoder.decode(data, self._ended).encode("utf-8", _BROKEN)
            except UnicodeError:  # UTF-16 or UTF-32 without a byte-order mark
                name = self._encoding.lower().replace("_", "-")
                hint = f"give its byte order: --encoding {name}-le or {name}-be; or is it UTF-8?"
                what = f"the text lacks the byte-order mark of {self._encoding}"
                raise UsageError(what, where=self._source, hint=hint) from None
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def _mark_broken(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeDecodeError):
        return "\udcff", error.end
    assert isinstance(error, UnicodeEncodeError)
    return b"\xff" * (error.end - error.start), error.end


codecs.register_error(_BROKEN, _mark_broken)


def two_byte_encoding(data: bytes) -> str | None:
    """UTF-16 or UTF-32, by the mark at the beginning, or by NUL bytes in every other place."""
    if marked := next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), None):
        return marked
    even, odd = data[:2000:2].count(0), data[1:2000:2].count(0)
    if even + odd <= len(data[:2000]) // 5 or max(even, odd) < 10 * min(even, odd):
        return None
    return "UTF-16LE" if odd > even else "UTF-16BE"


def garbles_utf8(encoding: str, data: bytes) -> bool:
    """Whether an encoding of one byte a character, such as latin-1, would read each letter of UTF-8 as several. Others refuse
    UTF-8 sooner or later.

    data: a file's first bytes, which may end inside a character. Eight letters are not valid UTF-8 by chance.
    """
    if len(bytes(range(128, 256)).decode(encoding, "ignore")) <= 64:  # two bytes or more a character
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return len(re.findall(rb"[\xc0-\xff]", data)) >= 8


def guess_encoding(data: bytes) -> str:
    """The encoding of text that is not UTF-8: GBK writes runs of bytes above 0x7f, Latin encodings single ones in words."""
    runs = re.findall(rb"[\x80-\xff]+", data)
    in_words = re.findall(rb"(?<=[A-Za-z])[\x80-\xff]{1,2}(?=[a-z])", data)  # "Gr\xfc\xdfe"
    if sum(map(len, runs)) > 1.5 * len(runs) and 2 * len(in_words) < len(runs):
        with suppress(UnicodeDecodeError):  # then one of the Latin encodings
            data.decode("gb18030")
            return "GB18030"
    return "Windows-1252"  # which has all printable characters of Latin-1
