"""JSON: one object a line, or one list of objects; numbers, strings and booleans as JSON gives them."""

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

_MOST_CELLS = 4 * 10**6  # that a table of rows with different keys may have
_HINT = "expected one object a line, or one list of objects"
_SPACE = re.compile(r"[ \t\r\n]*")


def parse_jsonl(content: Content) -> Iterator[Examples]:
    """The objects of a file as rows. A block's columns are the keys that any of its rows has; a row without one holds None.

    Raises DataError, with file and line, for what is not JSON or not an object.
    """
    source = content.source
    listed = content.beginning.lstrip().startswith("[")
    empty, values, count = True, 0, 0
    seen: set[str] = set()
    for numbers, rows, text in _listed(content.text(), source) if listed else objects_by_line(content, _HINT):
        empty = False
        check_characters(text, ((row, "an object", f"{source}:{line}") for line, row in zip(numbers, rows, strict=True)))
        values, count = values + sum(map(len, rows)), count + len(rows)
        seen.update(chain.from_iterable(rows))
        if len(seen) * count > max(_MOST_CELLS, 20 * values):  # as a table they would fill the memory with nothing
            what = f"{count:,} rows have {len(seen):,} different keys; expected rows with the same keys"
            raise DataError(what, where=f"{source}:{numbers[-1]}", hint="put what differs under one key: it is ignored there")
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
    if not isinstance(row, dict):
        raise _no_object(row, where, hint)
    return row


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
        if not isinstance(row, dict):
            raise _no_object(row, f"{source}:{line}", _HINT)
        numbers.append(line)
        rows.append(row)
        position = _skip(text, position + 1)
    if position < len(text):
        extra = json.JSONDecodeError("Extra data", text, position)
        raise broken_json(extra, text, f"{source}:{extra.lineno}", _HINT)
    if rows:
        yield numbers, rows, text


def _no_object(row: Any, where: str, hint: str) -> DataError:
    return DataError(f"found {kind_of(row)}; expected an object", where=where, hint=hint)


def _skip(text: str, position: int) -> int:
    """The next position that is not white space."""
    space = _SPACE.match(text, position)
    return space.end() if space else position
