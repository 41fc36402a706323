"""JSON: one object a line, or one list of objects; numbers, strings and switches as JSON gives them."""

from __future__ import annotations

import json
import re
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.readers.json_text import broken_json, check_characters
from bertkit.readers.lines import split_lines

_HINT = "expected one object a line, or one list of objects"
_SPACE = re.compile(r"[ \t\r\n]*")


def parse_jsonl(text: str, source: str) -> Examples:
    """The objects of a file's text as rows. A column is each key that any row has; a row without it holds None there.

    Raises DataError, with file and line, for what is not JSON or not an object.
    """
    rows, lines = _listed(text, source) if text.lstrip().startswith("[") else _line_by_line(text, source)
    if not rows:
        raise DataError("the file is empty" if not text.strip() else "the list is empty", where=source)
    for row, line in zip(rows, lines, strict=True):
        if not isinstance(row, dict):
            found = {list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(type(row), "a number")
            raise DataError(f"found {found}; expected an object", where=f"{source}:{line}", hint=_HINT)
    check_characters(text, ((row, "an object", f"{source}:{line}") for row, line in zip(rows, lines, strict=True)))
    names = dict.fromkeys(name for row in rows for name in row)
    return Examples(columns={name: [row.get(name) for row in rows] for name in names}, source=source, lines=lines)


def _line_by_line(text: str, source: str) -> tuple[list[Any], list[int]]:
    rows, lines = [], []
    for number, line in enumerate(split_lines(text), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise broken_json(error, line, f"{source}:{number}", _HINT) from None
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
            raise broken_json(error, text, f"{source}:{getattr(error, 'lineno', line)}", _HINT) from None
        rows.append(row)
        lines.append(line)
        at = _skip(text, at + 1)
    if at < len(text):
        extra = json.JSONDecodeError("Extra data", text, at)
        raise broken_json(extra, text, f"{source}:{extra.lineno}", _HINT)
    return rows, lines


def _skip(text: str, at: int) -> int:
    """The next place that is not white space."""
    space = _SPACE.match(text, at)
    return space.end() if space else at
