"""Label Studio's JSON export: a list of tasks, each with its text and the spans that annotators marked in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bertkit.errors import DataError, plural
from bertkit.readers import Examples, Remarks
from bertkit.readers.content import Content
from bertkit.readers.jsonl import parse_jsonl

_HINT = 'expected tasks with "data" and "annotations", as Label Studio exports them in its format JSON'


def looks_like_label_studio(content: Content) -> bool:
    """Whether a file begins with a list of tasks; tasks of the export JSON_MIN are plain objects."""
    start = content.beginning
    parts = (r"\s*\[\s*\{", r'.*?"annotations"\s*:\s*\[', r'.*?"data"\s*:\s*\{')
    return all(re.match(part, start, re.DOTALL) for part in parts)


def parse_label_studio(content: Content) -> Iterator[Examples]:
    """A row each task: `text`, and `entities`, a list of {start, end, label, text}, None of a task without annotations.

    Of several annotations of a task the one marked as ground truth counts, else the first; tasks that annotators skipped are
    left out; a remark counts both. Raises DataError, with file and line, for what is no task.
    """
    for block in parse_jsonl(content):
        several = skipped = 0
        texts, entities, kept = [], [], []
        nothing = [None] * len(block)
        data = block.columns.get("data", nothing)
        for row, given in enumerate(block.columns.get("annotations", nothing)):
            where = block.where(row)
            annotations = [each for each in _list(given, where) if not each.get("was_cancelled")]
            if given and not annotations:
                skipped += 1
                continue
            several += len(annotations) > 1
            annotations.sort(key=lambda each: not each.get("ground_truth"))
            texts.append(_text_of(data[row], where))
            results = [_list(each.get("result"), where) for each in annotations[:1]]
            entities.append([_entity(each) for each in results[0] if _marks(each)] if results else None)
            kept.append(block.lines[row])
        notes = []
        if skipped:
            notes.append(f"{plural(skipped, 'task')} left out that annotators skipped")
        if several:
            notes.append(f"{plural(several, 'task')} with several annotations: the ground truth is read, else the first")
        yield replace(block, columns={"text": texts, "entities": entities}, lines=kept, remarks=Remarks(tuple(notes)))


def _list(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise DataError("this is no task of Label Studio", where=where, hint=_HINT)
    return value


def _text_of(data: Any, where: str) -> str:
    """The text of a task: `text`, else its only value that is text."""
    texts = {name: value for name, value in data.items() if isinstance(value, str)} if isinstance(data, dict) else {}
    if "text" not in texts and len(texts) != 1:
        what = f"the task's data has {', '.join(texts) or 'no text'}; expected one text"
        raise DataError(what, where=where, hint="call the text `text`")
    return texts["text"] if "text" in texts else next(iter(texts.values()))


def _marks(result: dict[str, Any]) -> bool:
    """Whether a result is a span, not a relation of spans or a class of the text."""
    return isinstance(value := result.get("value"), dict) and "start" in value


def _entity(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result["value"].items() if name in ("start", "end", "text", "labels")}
