"""Reads the columns of question answering: ids, texts, and answers in each of their usual forms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bertkit.errors import DataError, listed, plural
from bertkit.readers import FIX_ROW, SKIP_ROWS, Examples, Remarks
from bertkit.readers.columns import require_column
from bertkit.tasks.labels import is_missing, mark_of
from bertkit.tasks.list_cells import value_in

_FORMS = 'expected {"text": [...], "answer_start": [...]}, or a list of objects with text and answer_start, or of texts'
_ONE_FORM = (  # by whether most rows hold text
    f'write the text as a list: ["..."], or {SKIP_ROWS}',
    f'write a text, "" for no answer, or {SKIP_ROWS}',
)
_COLUMNS = {  # usual names, in upper or lower case
    "id": ("id",),
    "question": ("question",),
    "context": ("context", "paragraph", "passage"),
    "answers": ("answers", "answer", "answer_text"),
    "answer_start": ("answer_start",),
    "is_impossible": ("is_impossible",),
    "title": ("title",),
}
_WRITTEN = re.compile(r"""\{|\[\s*[\]{'"]""")  # how an object, or a list of texts or objects, begins in a cell
_UNKNOWN = object()  # in place of an answer_start that is not given
_ENOUGH = 100_000  # characters are enough to tell the language
_CHINESE = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"  # compiled on first use, as that takes milliseconds

Answers = list[tuple[str, int | None]]


def read_ids(examples: Examples) -> list[str]:
    """The id of each row, by default its number, with "_" behind it while another of these rows has that id."""
    given = _values(examples, "id", [None] * len(examples))
    taken = {str(value) for value in given if value not in (None, "")}

    def number(row: int) -> str:
        name = str(row)
        while name in taken:
            name += "_"
        return name

    numbered = enumerate(given, start=examples.first)
    return [number(row) if value in (None, "") else str(value) for row, value in numbered]


def repeated_ids(examples: Examples) -> Iterator[tuple[int, DataError]]:
    """The rows with the id of an earlier row, each with the error for it."""
    first: dict[str, int] = {}
    for row, name in enumerate(read_ids(examples)):
        if (earlier := first.setdefault(name, row)) != row:
            what = f"the id {name!r} occurs twice, first at {examples.where(earlier)}"
            hint = "predictions are written by id: give each question its own"
            yield row, DataError(what, where=examples.where(row), hint=hint)


def usual_column(names: Iterable[str], role: str) -> str | None:
    """The column of a role, a key of _COLUMNS, by its usual names: earlier ones take precedence, and the exact spelling."""
    names = [*names]
    by_name = {name.lower(): name for name in names} | {name: name for name in names}
    return next((by_name[usual] for usual in _COLUMNS[role] if usual in by_name), None)


def _values(examples: Examples, role: str, default: Sequence[Any] = ()) -> Sequence[Any]:
    """The values of the column with a role's usual name."""
    column = usual_column(examples.columns, role)
    return default if column is None else examples.columns[column]


def answers_column(examples: Examples, column: str | None) -> str:
    """The column of the answers: the named one, else that with a usual name."""
    return column or usual_column(examples.columns, "answers") or "answers"


def read_answers(examples: Examples, column: str | None) -> tuple[list[Answers], Remarks]:
    """The answers of each row as (text, first character in the context or None), and warnings about rows whose answers
    contradict is_impossible.

    A question that has no answer, or is marked is_impossible, has an empty list. column: as in `answers_column`. Raises
    DataError with the row for answers in another form.
    """
    answers = _all_answers(examples, answers_column(examples, column))
    ignored, absent = [], []
    for row, value in enumerate(_values(examples, "is_impossible")):
        if (mark := mark_of(value)) is None:
            what = f"column {usual_column(examples.columns, 'is_impossible')!r} holds {value!r}; expected true or false"
            raise DataError(what, where=examples.where(row), hint=FIX_ROW)
        if mark and answers[row]:
            ignored.append(row)
            answers[row] = []
        elif not mark and not answers[row] and not is_missing(value):
            absent.append(row)
    warnings = [
        f"{plural(len(rows), 'question')} {words} ({listed([*map(examples.where, rows)], 3)})"
        for rows, words in (
            (ignored, "marked is_impossible but with answers, which are ignored"),
            (absent, "not marked is_impossible but without answers, read as impossible"),
        )
        if rows
    ]
    return answers, Remarks(warnings=tuple(warnings))


def _all_answers(examples: Examples, name: str) -> list[Answers]:
    """The answers in the column, of impossible questions too."""
    starts = usual_column(examples.columns, "answer_start")
    others = replace(examples, columns={each: values for each, values in examples.columns.items() if each != starts})
    values = examples.columns[require_column(others, name, option="--answers")]
    cells = [value.strip() if isinstance(value, str) else None for value in values]
    written = [row for row, cell in enumerate(cells) if cell and _WRITTEN.match(cell)]
    num_texts = sum(map(bool, cells)) - len(written)
    num_lists = sum(isinstance(value, (list, dict)) for value in values) + len(written)
    are_texts = any(cell is not None for cell in cells) and num_texts >= num_lists
    for row, value in enumerate(values):
        if isinstance(value, (list, dict)) if are_texts else (cell := cells[row]) and not _WRITTEN.match(cell):
            usual = "text" if are_texts else "a list or object"
            what = f"column {name!r} holds {repr(value)[:60]}; expected {usual}, as in most rows"
            raise DataError(what, where=examples.where(row), hint=_ONE_FORM[are_texts])
    if not are_texts:
        lists = [[] if cell == "" or (written and value is None) else value for cell, value in zip(cells, values, strict=True)]
        for row in written:
            lists[row] = _in_cell(cells[row] or "", examples.where(row), name)
        return [_answers(value, examples.where(row), name) for row, value in enumerate(lists)]
    answers: list[Answers] = []
    if None in values:
        what = f"column {name!r} holds null; expected text"
        raise DataError(what, where=examples.where(values.index(None)), hint='for a question without an answer, write ""')
    for row, text in enumerate(examples.texts(name, may_be_empty=True)):
        start = None if starts is None or not text.strip() else _start(examples.columns[starts][row], examples.where(row))
        answers.append([(text, start)] if text.strip() else [])
    return answers


def _in_cell(cell: str, where: str, column: str) -> Any:
    """The list or object that a cell of a table holds. Raises DataError for one that cannot be read."""
    if (value := value_in(cell)) is None:
        what = f"column {column!r} holds {cell[:60]!r}; expected a list or an object that can be read, as in other rows"
        raise DataError(what, where=where, hint="correct the cell, or save the data as JSON lines or Parquet")
    return value


def _answers(value: Any, where: str, column: str) -> Answers:
    if isinstance(value, dict) and "text" in value:
        texts = _listed(value["text"])
        starts = _listed(value["answer_start"]) if "answer_start" in value else [_UNKNOWN] * len(texts)
        if len(texts) != len(starts):
            found = f"{plural(len(texts), 'text')} and {plural(len(starts), 'answer_start', 'answer_starts')}"
            what = f"column {column!r} holds {found}; expected an answer_start for each text"
            raise DataError(what, where=where, hint=FIX_ROW)
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(value, list) and all(isinstance(item, dict) and "text" in item for item in value):
        pairs = [(item["text"], item.get("answer_start", _UNKNOWN)) for item in value]
    elif isinstance(value, list) and all(isinstance(item, str) and item.strip() for item in value):
        return [(item, None) for item in value]
    else:
        content = "null" if value is None else repr(value)[:60]
        raise DataError(f"column {column!r} holds {content}; {_FORMS}", where=where, hint="use an empty list for no answer")
    if all(isinstance(text, str) and not text.strip() and start in (_UNKNOWN, -1) for text, start in pairs):
        return []  # some files mark a question without an answer by an empty one, at -1
    for text, _ in pairs:
        if not isinstance(text, str) or not text.strip():
            what = f"an answer is {text!r}; expected text" if not isinstance(text, str) else "an answer is empty"
            raise DataError(what, where=where, hint="use an empty list for a question without an answer")
    return [(text, None if start is _UNKNOWN else _start(start, where)) for text, start in pairs]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _start(value: Any, where: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+(\.0+)?\s*", value):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 159.0, as in tables with gaps
    if isinstance(value, bool) or not isinstance(value, int):
        what = f"answer_start is {value!r}; expected a whole number: the answer's first character in the context, from 0"
        raise DataError(what, where=where, hint=FIX_ROW)
    return value


def are_mostly_chinese(texts: Sequence[str]) -> bool:
    """Whether most letters of the first texts are Chinese or Japanese."""
    letters = chinese = 0
    for text in dict.fromkeys(texts):
        letters += sum(map(str.isalpha, text))
        chinese += len(re.findall(_CHINESE, text))
        if letters > _ENOUGH:
            break
    return 2 * chinese > letters
