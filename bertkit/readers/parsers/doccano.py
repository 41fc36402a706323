"""doccano's JSONL: a text per line and its spans: [start, end, label] in `label` or, with relations, objects in `entities`.

doccano counts UTF-16 units (https://github.com/doccano/doccano/issues/2290), unless a project counts grapheme clusters, which
the file does not tell. Users write the same lines by hand and count characters: the ends of words tell which. Classes of texts
are lists of names in `label`, plain JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import FIX_ROW, Examples, Remarks
from bertkit.readers.content import Content
from bertkit.readers.parsers.jsonl import parse_jsonl
from bertkit.readers.utf16 import from_utf16

_SPANS = ("label", "labels", "entities")  # columns
_PLACES = ("start_offset", "end_offset")
_BOUND = re.compile(r"\b")
_READ = "read as doccano's export, offsets in "


def looks_like_doccano(content: Content) -> bool:
    """Whether a file with one object per line begins with lists of spans under doccano's names."""
    marks = r'"labels?"\s*:\s*\[\s*\[\s*\d+\s*,|"start_offset"\s*:'
    return content.first_line.lstrip().startswith("{") and re.search(marks, content.beginning) is not None


def parse_doccano(content: Content, *, keep_broken: bool = False, labelled: bool = True) -> Iterator[Examples]:
    """The rows as `parse_jsonl` gives them, with spans in characters.

    Offsets are in UTF-16 units if they then fit better to the bounds of words, in all rows together; a note tells which they
    are, where this makes a difference. Without a column `text`, or `data` as older versions call it, they stay as they are.
    keep_broken: also a row with an offset inside a character becomes None in every column; otherwise it raises DataError.
    labelled: whether to read spans; otherwise they stay as they are.
    """
    if not labelled:
        yield from parse_jsonl(content, keep_broken=keep_broken)
        return
    blocks = [*parse_jsonl(content, keep_broken=keep_broken)]
    places = [
        (text, place)
        for block in blocks
        for name in block.columns.keys() & {*_SPANS}
        for spans, text in zip(block.columns[name], _texts(block), strict=True)
        if isinstance(spans, list) and isinstance(text, str) and not text.isascii()
        for span in spans
        for place in _offsets(span)
        if from_utf16(text, place) != place
    ]
    in_units = sum(_fit(text, from_utf16(text, place)) - _fit(text, place) for text, place in places) > 0
    notes = (_READ + ("UTF-16 units" if in_units else "characters"),) if places else ()
    for block in blocks:
        if not in_units:
            yield replace(block, remarks=Remarks(notes))
            continue
        columns = {name: list(values) for name, values in block.columns.items()}
        for row, text in enumerate(_texts(block)):
            try:
                for name in columns.keys() & {*_SPANS}:
                    if isinstance(spans := columns[name][row], list) and isinstance(text, str):
                        columns[name][row] = [_in_characters(span, text, block.where(row)) for span in spans]
            except DataError:
                if not keep_broken:
                    raise
                for values in columns.values():
                    values[row] = None
        yield replace(block, columns={**columns}, remarks=Remarks(notes))


def _texts(block: Examples) -> Sequence[Any]:
    return block.columns.get("text") or block.columns.get("data") or [None] * len(block)


def _offsets(span: Any) -> list[int]:
    match span:
        case [int(start), int(end), *_] | {"start_offset": int(start), "end_offset": int(end)}:
            return [start, end]
    return []


def _fit(text: str, place: int | None) -> int:
    """1 where a word begins or ends, 0 elsewhere in the text, -1 inside a character and outside the text."""
    if place is None or not 0 <= place <= len(text):
        return -1
    return int(_BOUND.match(text, place) is not None)


def _in_characters(span: Any, text: str, where: str) -> Any:
    """A span with offsets in characters; anything else is unchanged."""
    place = partial(_character, span, text, where)
    match span:
        case [int(start), int(end), *rest]:
            return [place(start), place(end), *rest]
        case {"start_offset": int(), "end_offset": int()}:
            return span | {name: place(span[name]) for name in _PLACES}
    return span


def _character(span: Any, text: str, where: str, place: int) -> int:
    if (found := from_utf16(text, place)) is None:
        what = f"the span {span!r} cuts a character at {place}; expected offsets in UTF-16 units, as doccano counts them"
        raise DataError(what, where=where, hint=FIX_ROW)
    return found
