"""Label Studio's JSON export: a list of tasks, each with its text and its annotations: spans, or classes.

Offsets count characters: https://github.com/HumanSignal/label-studio, web/libs/editor/src/utils/selection-tools.js. Earlier
versions counted UTF-16 units (its issue 1347); the text that a span repeats tells which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bertkit.errors import DataError, plural
from bertkit.readers import Examples, Remarks, columns_of
from bertkit.readers.content import Content
from bertkit.readers.parsers.jsonl import parse_jsonl
from bertkit.readers.utf16 import from_utf16

_OF_THE_TASK = {"id", "data", "predictions", "meta"}  # of one that nobody has annotated
_HINT = 'expected tasks with "data" and "annotations", as Label Studio exports them in its format JSON'


def looks_like_label_studio(content: Content) -> bool:
    """Whether a file begins with a list of tasks, annotated or not; tasks of the export JSON_MIN are plain objects."""
    start = content.beginning
    parts = (r"\s*\[\s*\{", r'.*?"annotations"\s*:\s*\[', r'.*?"data"\s*:\s*\{')
    if all(re.match(part, start, re.DOTALL) for part in parts):
        return True
    try:
        first, _ = json.JSONDecoder().raw_decode(start.lstrip().removeprefix("[").lstrip())
    except ValueError:  # one that the beginning cuts
        return re.match(r'\s*\[\s*\{\s*("id"\s*:\s*\d+\s*,\s*)?"data"\s*:\s*\{', start) is not None
    return isinstance(first, dict) and isinstance(first.get("data"), dict) and first.keys() <= _OF_THE_TASK


def parse_label_studio(content: Content, *, labelled: bool = True) -> Iterator[Examples]:
    """One row per task: `text`, the rest of its data, `entities`, a list of {start, end, text, labels}, and `label`, a list of
    classes, if any task has one. Both are None for a task without annotations.

    If a task has several annotations, the one marked as ground truth counts, else the first; tasks that annotators skipped are
    left out; a remark counts both. labelled: whether to read annotations; otherwise every task is a row, with its `id`. Raises
    DataError, with file and line, for anything that is not a task, and if all are skipped.
    """
    for block in parse_jsonl(content):  # one, as the file is a list
        if not labelled:
            yield _bare(block)
            continue
        several = skipped = 0
        rows: list[dict[str, Any]] = []
        kept = []
        nothing = [None] * len(block)
        data = block.columns.get("data", nothing)
        for row, given in enumerate(block.columns.get("annotations", nothing)):
            where = block.where(row)
            annotations = [each for each in _list(given or [], where) if not each.get("was_cancelled")]
            if given and not annotations:
                skipped += 1
                continue
            several += len(annotations) > 1
            annotations.sort(key=lambda each: not each.get("ground_truth"))
            text, others = _text_of(data[row], where)
            values = [_values(each, where) for each in annotations[:1]]
            entities = [[_entity(value, text) for value in each if "start" in value] for each in values]
            classes = [[name for value in each for name in _choices(value, where)] for each in values]
            marked = {"entities": next(iter(entities), None), "label": next(iter(classes), None)}
            rows.append({**others, "text": text, **marked})
            kept.append(block.lines[row])
        if not rows:
            what = f"annotators skipped {'all ' if skipped > 1 else ''}{plural(skipped, 'task')}"
            raise DataError(what, where=content.source)
        columns = columns_of(rows)
        if not any(columns.get("label", ())):
            columns.pop("label", None)
        notes = []
        if skipped:
            notes.append(f"ignored {plural(skipped, 'task')} that annotators skipped")
        if several:
            notes.append(f"{plural(several, 'task')} with several annotations: the ground truth is read, else the first")
        yield replace(block, columns=columns, lines=kept, remarks=Remarks(tuple(notes)))


def _bare(block: Examples) -> Examples:
    """The texts of tasks, and their numbers, without annotations."""
    rows = []
    for row, given in enumerate(block.columns.get("data", [None] * len(block))):
        text, others = _text_of(given, block.where(row))
        number = {"id": block.columns["id"][row]} if "id" in block.columns else {}
        rows.append({**number, **others, "text": text})
    return replace(block, columns=columns_of(rows))


def _list(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise DataError("this is not a Label Studio task", where=where, hint=_HINT)
    return value


def _text_of(data: Any, where: str) -> tuple[str, dict[str, Any]]:
    """The text of a task, under `text` or its only value that is text; and the rest of its data."""
    data = data if isinstance(data, dict) else {}
    texts = {name: value for name, value in data.items() if isinstance(value, str)}
    if "text" not in texts and len(texts) != 1:
        what = f"the task's data has {', '.join(texts) or 'no text'}; expected one text"
        raise DataError(what, where=where, hint="rename the field with the text to `text`")
    own = "text" if "text" in texts else next(iter(texts))
    return texts[own], {name: value for name, value in data.items() if name != own}


def _values(annotation: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The values of an annotation's results; relations of spans have none."""
    results = _list(annotation.get("result"), where)
    return [value for each in results if isinstance(value := each.get("value"), dict)]


def _choices(value: dict[str, Any], where: str) -> list[str]:
    names = value.get("choices", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"the choices are {names!r}; expected a list of texts", where=where, hint=_HINT)
    return names


def _entity(value: dict[str, Any], text: str) -> dict[str, Any]:
    """A span with offsets in characters; converted only if the text that it repeats fits only UTF-16 units."""
    span = {name: each for name, each in value.items() if name in ("start", "end", "text", "labels")}
    match span:
        case {"start": int(start), "end": int(end), "text": str(quoted)}:
            for first, last in ((start, end), (from_utf16(text, start), from_utf16(text, end))):
                if None not in (first, last) and _plain(quoted) == _plain(covered := text[first:last]):
                    return span | {"start": first, "end": last, "text": covered}
    return span


def _plain(text: str) -> str:
    r"""A text for comparison: Label Studio writes ends of lines as \n, in two characters."""
    return re.sub(r"\\n|[\r\n]", "\n", text)
