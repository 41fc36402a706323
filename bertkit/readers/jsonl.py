"""JSON: one object a line, or one list of objects; numbers, strings and switches as JSON gives them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import Examples, batched
from bertkit.readers.content import Content
from bertkit.readers.json_text import broken_json, check_characters, kind_of

_HINT = "expected one object a line, or one list of objects"
_SPACE = re.compile(r"[ \t\r\n]*")


def parse_jsonl(content: Content) -> Iterator[Examples]:
    """The objects of a file as rows. A block's columns are the keys that any of its rows has; a row without one holds None.

    Raises DataError, with file and line, for what is not JSON or not an object.
    """
    source = content.source
    listed = content.beginning.lstrip().startswith("[")
    rows = _listed(content.text(), source) if listed else _line_by_line(content)
    empty = True
    for block in batched(rows):
        empty = False
        for line, row, text in block:
            if not isinstance(row, dict):
                raise DataError(f"found {kind_of(row)}; expected an object", where=f"{source}:{line}", hint=_HINT)
            check_characters(text, [(row, "an object", f"{source}:{line}")])
        lines, objects, _ = zip(*block, strict=True)
        columns = {name: [row.get(name) for row in objects] for name in dict.fromkeys(chain.from_iterable(objects))}
        yield Examples(columns=columns, source=source, lines=lines)
    if empty:
        raise DataError("the list is empty" if listed else "the file is empty", where=source)


def _line_by_line(content: Content) -> Iterator[tuple[int, Any, str]]:
    """Each value, with its line and its text."""
    for number, line in enumerate(content.lines(), start=1):
        if line.strip():
            try:
                yield number, json.loads(line), line
            except (ValueError, RecursionError) as error:
                raise broken_json(error, line, f"{content.source}:{number}", _HINT) from None


def _listed(text: str, source: str) -> Iterator[tuple[int, Any, str]]:
    """The items of a list, each with the line at which it begins and its text; read one by one, for json.loads drops places."""
    text = text.rstrip(" \t\r\n")
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    position = _skip(text, _skip(text, 0) + 1)
    mark = "," if text[position : position + 1] != "]" else "]"
    if mark == "]":
        position = _skip(text, position + 1)
    while mark == ",":
        line, counted, begin = line + text.count("\n", counted, position), position, position
        try:
            row, position = decoder.raw_decode(text, position)
            item = text[begin:position]
            position = _skip(text, position)
            mark = text[position : position + 1]
            if mark not in ("]", ","):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, position)
        except (ValueError, RecursionError) as error:
            raise broken_json(error, text, f"{source}:{getattr(error, 'lineno', line)}", _HINT) from None
        yield line, row, item
        position = _skip(text, position + 1)
    if position < len(text):
        extra = json.JSONDecodeError("Extra data", text, position)
        raise broken_json(extra, text, f"{source}:{extra.lineno}", _HINT)


def _skip(text: str, position: int) -> int:
    """The next place that is not white space."""
    space = _SPACE.match(text, position)
    return space.end() if space else position
