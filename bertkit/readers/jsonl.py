"""JSON: one object a line, or one list of objects; numbers, strings and booleans as JSON gives them.

[text, {...}], as spaCy has its training data, is the object with this text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.readers.content import Content
from bertkit.readers.json_text import broken_json, check_characters, kind_of

Block = tuple[list[int], list[dict[str, Any]], str]  # the line where each object begins; the objects; their escaped text

_HINT = "expected one object a line, or one list of objects"
_SPACE = re.compile(r"[ \t\r\n]*")


def parse_jsonl(content: Content) -> Iterator[Examples]:
    """The objects of a file as rows. A block's columns are the keys that any of its rows has; a row without one holds None.

    Raises DataError, with file and line, for what is not JSON or not an object.
    """
    source = content.source
    listed = re.match(r'\s*\[(?!\s*")', content.beginning) is not None  # a list that begins with a text is a pair, one a line
    empty = True
    for numbers, rows, text in _listed(content.text(), source) if listed else objects_by_line(content, _HINT):
        empty = False
        check_characters(text, ((row, "an object", f"{source}:{line}") for line, row in zip(numbers, rows, strict=True)))
        columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain.from_iterable(rows))}
        yield Examples(columns=columns, source=source, lines=numbers)
    if empty:
        raise DataError("the list is empty" if listed else "the file is empty", where=source)


def objects_by_line(content: Content, hint: str) -> Iterator[Block]:
    """The objects of a file that holds one a line. hint: what the file should hold. Raises DataError, with the line."""
    for first, lines in content.lines():
        numbers, rows = [], []
        for number, line in enumerate(lines, start=first):
            if line.strip():
                rows.append(object_of_line(line, f"{content.source}:{number}", hint))
                numbers.append(number)
        if rows:
            yield numbers, rows, "".join(line for line in lines if "\\u" in line)


def object_of_line(line: str, where: str, hint: str) -> dict[str, Any]:
    """The object that a line holds. Raises DataError."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise broken_json(error, line, where, hint) from None
    return _object(row, where, hint)


def _listed(text: str, source: str) -> Iterator[Block]:
    """The objects of a list, one block; read one by one, for json.loads does not tell their lines."""
    text = text.rstrip(" \t\r\n")
    decoder = json.JSONDecoder()
    numbers, rows = [], []
    line, counted = 1, 0
    position = _skip(text, _skip(text, 0) + 1)
    mark = "," if text[position : position + 1] != "]" else "]"
    if mark == "]":
        position = _skip(text, position + 1)
    while mark == ",":
        line, counted = line + text.count("\n", counted, position), position
        try:
            row, position = decoder.raw_decode(text, position)
            position = _skip(text, position)
            mark = text[position : position + 1]
            if mark not in ("]", ","):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, position)
        except (ValueError, RecursionError) as error:
            raise broken_json(error, text, f"{source}:{getattr(error, 'lineno', line)}", _HINT) from None
        numbers.append(line)
        rows.append(_object(row, f"{source}:{line}", _HINT))
        position = _skip(text, position + 1)
    if position < len(text):
        extra = json.JSONDecodeError("Extra data", text, position)
        raise broken_json(extra, text, f"{source}:{extra.lineno}", _HINT)
    if rows:
        yield numbers, rows, text


def _object(row: Any, where: str, hint: str) -> dict[str, Any]:
    match row:
        case dict():
            return row
        case [str(text), dict(annotations)]:
            return {"text": text, **annotations}
    raise DataError(f"found {kind_of(row)}; expected an object", where=where, hint=hint)


def _skip(text: str, position: int) -> int:
    """The next position that is not white space."""
    space = _SPACE.match(text, position)
    return space.end() if space else position
