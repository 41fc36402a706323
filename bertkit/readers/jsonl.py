"""JSON: one object a line, or one list of objects; numbers, strings and switches as JSON gives them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.readers.lines import read_text, source_name, split_lines

_HINT = "expected one object a line, or one list of objects"
_SPACE = re.compile(r"[ \t\r\n]*")


def read_jsonl(path: str | Path) -> Examples:
    """The objects of a file as rows. A column is each key that any row has; a row without it holds None there.

    Raises DataError, with file and line, for what is not JSON or not an object.
    """
    return parse_jsonl(read_text(path), source_name(path))


def parse_jsonl(text: str, source: str) -> Examples:
    """As `read_jsonl`, of text read already."""
    rows, lines = _listed(text, source) if text.lstrip().startswith("[") else _line_by_line(text, source)
    if not rows:
        raise DataError("the file is empty" if not text.strip() else "the list is empty", where=source)
    escapes = "\\ud" in text or "\\uD" in text
    for row, line in zip(rows, lines, strict=True):
        if not isinstance(row, dict):
            found = {list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(type(row), "a number")
            raise DataError(f"found {found}; expected an object", where=f"{source}:{line}", hint=_HINT)
        if escapes and not _is_text(row):
            raise DataError("half of a surrogate pair; expected a whole character", where=f"{source}:{line}")
    names = dict.fromkeys(name for row in rows for name in row)
    return Examples(columns={name: [row.get(name) for row in rows] for name in names}, source=source, lines=lines)


def _is_text(row: dict[str, Any]) -> bool:
    """Whether all strings are Unicode: JSON can escape half a character, which no tokenizer takes."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _line_by_line(text: str, source: str) -> tuple[list[Any], list[int]]:
    rows, lines = [], []
    for number, line in enumerate(split_lines(text), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise _broken(error, line, f"{source}:{number}") from None
            lines.append(number)
    return rows, lines


def _listed(text: str, source: str) -> tuple[list[Any], list[int]]:
    """The items of a list, each with the line at which it begins; read item by item, for json.loads drops the places."""
    text = text.rstrip(" \t\r\n")
    decoder = json.JSONDecoder()
    rows: list[Any] = []
    lines: list[int] = []
    line, counted = 1, 0
    at = _skip(text, _skip(text, 0) + 1)
    mark = "," if text[at : at + 1] != "]" else "]"
    if mark == "]":
        at = _skip(text, at + 1)
    while mark == ",":
        line, counted = line + text.count("\n", counted, at), at
        try:
            row, at = decoder.raw_decode(text, at)
            at = _skip(text, at)
            mark = text[at : at + 1]
            if mark not in ("]", ","):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
        except (ValueError, RecursionError) as error:
            raise _broken(error, text, f"{source}:{getattr(error, 'lineno', line)}") from None
        rows.append(row)
        lines.append(line)
        at = _skip(text, at + 1)
    if at < len(text):
        extra = json.JSONDecodeError("Extra data", text, at)
        raise _broken(extra, text, f"{source}:{extra.lineno}")
    return rows, lines


def _skip(text: str, at: int) -> int:
    """The next place that is not white space."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _broken(error: Exception, text: str, where: str) -> DataError:
    if not isinstance(error, json.JSONDecodeError):
        return DataError(f"JSON that cannot be read: {error}", where=where)
    cut_off = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
    what = "the JSON ends too early" if cut_off else "this is not JSON"
    return DataError(f"{what}: {error.msg} at character {error.colno}", where=where, hint=_HINT)
