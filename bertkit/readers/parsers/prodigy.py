"""Prodigy's JSONL, as its command db-out exports it: annotated tasks, each with an `answer` (https://prodi.gy/docs/api-interfaces).

Offsets count characters, as spaCy's do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bertkit.errors import DataError, plural
from bertkit.readers import Examples, Remarks
from bertkit.readers.content import Content
from bertkit.readers.parsers.jsonl import parse_jsonl

_ANSWERS = ("accept", "reject", "ignore")
_NAMES = {"spans": "entities", "accept": "label"}  # Prodigy's columns by ours
_OF_THE_TASK = {"answer", "tokens", "options", "config", "meta"}  # other keys of a task, besides names with _


def looks_like_prodigy(content: Content) -> bool:
    """Whether a file begins with a task that has an answer and other keys that only Prodigy writes."""
    marks = (
        rf'"answer"\s*:\s*"({"|".join(_ANSWERS)})"',
        r'"_(input_hash|task_hash|session_id|view_id)"|"(spans|options|accept)"\s*:',
    )
    return all(re.search(mark, content.first_line) for mark in marks)


def parse_prodigy(content: Content, *, keep_broken: bool = False, labelled: bool = True) -> Iterator[Examples]:
    """One row per accepted task: its text, its spans as `entities`, its classes as `label`, and other columns.

    A note counts the tasks that were rejected or ignored. labelled: whether to read answers; otherwise every task is a row.
    Raises DataError, with file and line, for any other answer.
    """
    left, has_spans = 0, '"spans"' in content.beginning
    last: Examples | None = None  # its note counts those of all blocks
    for block in parse_jsonl(content, keep_broken=keep_broken):
        if last is not None:
            yield last
        has_spans = has_spans or not {"spans", "tokens"}.isdisjoint(block.columns)
        last = _tasks(block, labelled=labelled, has_spans=has_spans)
        left += len(block) - len(last)
    if last is not None:
        note = (f"skipped {plural(left, 'task')} that annotators rejected or ignored",) if left else ()
        yield last.with_remarks(Remarks(note))


def _tasks(block: Examples, *, labelled: bool, has_spans: bool) -> Examples:
    """The rows of a block of tasks. labelled: only accepted ones, and broken ones, which are always kept. has_spans: whether
    tasks of the file have spans; those without any may leave them out, in whole blocks too.
    """
    answers = block.columns.get("answer") or [None] * len(block)
    broken = [all(values[row] is None for values in block.columns.values()) for row in range(len(block))]
    for row, answer in enumerate(answers):
        if labelled and answer not in _ANSWERS and not broken[row]:
            what = f"the answer is {answer!r}; expected {', '.join(_ANSWERS[:-1])} or {_ANSWERS[-1]}"
            raise DataError(what, where=block.where(row), hint="export the annotated tasks: prodigy db-out DATASET")
    rows = [row for row, answer in enumerate(answers) if not labelled or answer == "accept" or broken[row]]
    kept = block.select(rows)
    columns = {
        _NAMES.get(name, name): values
        for name, values in kept.columns.items()
        if name not in _OF_THE_TASK and not name.startswith("_")
    }
    if "entities" in columns or (labelled and has_spans and {"label", "accept", "options"}.isdisjoint(kept.columns)):
        spans = columns.get("entities") or [None] * len(rows)
        columns["entities"] = [[] if of is None and not broken[row] else of for row, of in zip(rows, spans, strict=True)]
    return replace(kept, columns=columns)
