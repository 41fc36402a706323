"""Offsets in a text in UTF-16 code units, as JavaScript counts them: an emoji is two units, but one character in Python."""

from __future__ import annotations


def to_utf16(text: str, place: int) -> int:
    """The offset in UTF-16 units of a character of the text, or of its end."""
    return len(text[:place].encode("utf-16-le", "surrogatepass")) // 2


def from_utf16(text: str, place: int) -> int | None:
    """The character at an offset in UTF-16 units; None for one inside a character. An offset outside the text stays outside."""
    units = text.encode("utf-16-le", "surrogatepass")
    if not 0 <= 2 * place <= len(units):
        return place if place < 0 else place - len(units) // 2 + len(text)
    try:
        return len(units[: 2 * place].decode("utf-16-le"))
    except UnicodeDecodeError:
        return None
