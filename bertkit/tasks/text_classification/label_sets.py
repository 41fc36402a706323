"""Several labels a row: a list of names, names in one cell, or a column of 0 and 1 each; to names and back to a matrix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.tasks.labels import class_name, label_name, refuse_missing, unknown_label

SEPARATORS = ("|", ";", ",")
NamesOfRow = tuple[str, ...]
_YES, _NO = {"1", "true", "yes"}, {"0", "false", "no", ""}


def find_separator(examples: Examples, column: str) -> str | None:
    """What parts names in the cells of a column: the first of SEPARATORS that stands in any; None where none does."""
    cells = [value for value in examples.columns[column] if isinstance(value, str) and _as_list(value) is None]
    return next((mark for mark in SEPARATORS if any(mark in cell for cell in cells)), None)


def split_sets(
    examples: Examples, column: str, separator: str | None, names: Sequence[str] | None, labels: Sequence[str] | None = None
) -> list[NamesOfRow | None]:
    """The names of each row; None for a row that says nothing, () for one that has none.

    separator: what parts them in text. names: of numbered classes. labels: all there are, for lists of 0 and 1 with a place
    each. Raises DataError with the row for what holds no names.
    """
    if width := _places(examples.columns[column], names, labels):
        labels = names or labels
        if labels is None or len(labels) != width:
            what = f"the lists in column {examples.own_name(column)!r} are of 0 and 1, a place for each of {width} labels"
            raise DataError(what, where=examples.source, hint=f"name these {width} in their order: --labels first,second,...")
        return [its and tuple(name for name, mark in zip(labels, its, strict=True) if mark) for its in examples.columns[column]]
    found: list[NamesOfRow | None] = []
    for row, value in enumerate(examples.columns[column]):
        if value is None:
            found.append(None)
            continue
        items = value if isinstance(value, list) else _parts(value, separator)
        if any(isinstance(item, (list, dict, type(None))) for item in items):
            what = f"the labels in column {examples.own_name(column)!r} are {value!r}; expected a list of names"
            raise DataError(what, where=examples.where(row), hint="mend or remove the row")
        named = [
            class_name(item, names, examples.where(row)) if names is not None and not isinstance(item, str) else item
            for item in items
        ]
        its = [label_name(item).strip() for item in named if item is not None]
        found.append(tuple(dict.fromkeys(name for name in its if name)))
    return found


def _places(values: Sequence[Any], names: Sequence[str] | None, labels: Sequence[str] | None) -> int:
    """How many labels lists of 0 and 1 have a place for; 0 where they are sets, in which nothing stands twice, or 0 or 1 are
    labels. [0, 1] and [1, 0] alone are places of two: as sets of names they would say the same of every row.
    """
    if labels and {"0", "1"} & {*labels}:
        return 0
    may_be_two = names is None and len(labels or "ab") == 2
    lists = [value for value in values if isinstance(value, list)]
    marks = all(isinstance(item, (int, float)) and item in (0, 1) for its in lists for item in its)
    widths = {len(its) for its in lists}
    twice = any(len(set(its)) < len(its) for its in lists)
    return widths.pop() if marks and (twice or (widths == {2} and may_be_two)) and len(widths) == 1 else 0


def _as_list(cell: str) -> list[Any] | None:
    """The list that a cell of a table holds as JSON, as `bertkit predict` writes it; None where it is none."""
    try:
        found = json.loads(cell) if cell.lstrip().startswith("[") else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _parts(value: Any, separator: str | None) -> list[Any]:
    if isinstance(value, str) and (items := _as_list(value)) is not None:
        return items
    return value.split(separator) if isinstance(value, str) and separator else [value]


def marked_sets(examples: Examples, columns: Sequence[str]) -> list[NamesOfRow | None]:
    """The names of the columns in which each row has a 1. Raises DataError with the row for what is neither 0 nor 1."""
    rows = []
    for row, values in enumerate(zip(*(examples.columns[name] for name in columns), strict=True)):
        marks = [label_name(value).strip().lower() if value is not None else "" for value in values]
        for name, mark, value in zip(columns, marks, values, strict=True):
            if mark not in _YES | _NO:
                what = f"column {name!r} holds {value!r}; expected 1 where the label applies, and else 0"
                raise DataError(what, where=examples.where(row), hint="mend or remove the row")
        missing = all(value is None or value == "" for value in values)
        rows.append(None if missing else tuple(name for name, mark in zip(columns, marks, strict=True) if mark in _YES))
    return rows


def derive_set_labels(examples: Examples, column: str) -> tuple[str, ...]:
    """All names of the training data in alphabetical order. Raises DataError where there are none."""
    names = {name for its in examples.columns[column] if its is not None for name in its}
    if not names:
        raise DataError(
            f"no row has a label in column {examples.own_name(column)!r}",
            where=examples.source,
            hint="train on rows that have labels",
        )
    return tuple(sorted(names))


def label_sets(examples: Examples, column: str, labels: Sequence[str]) -> NDArray[np.int64]:
    """(E, C) 1 where a row has a label. Raises DataError with the row for labels that are missing or unknown."""
    sets = examples.columns[column]
    refuse_missing([row for row, its in enumerate(sets) if its is None], examples, column)
    number = {name: at for at, name in enumerate(labels)}
    found = np.zeros((len(sets), len(labels)), dtype=np.int64)
    for row, its in enumerate(sets):
        for name in its:
            if name not in number:
                raise unknown_label(name, labels, examples.where(row), by_number=False)
            found[row, number[name]] = 1
    return found
