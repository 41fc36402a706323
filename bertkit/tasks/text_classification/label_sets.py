"""Several labels per row: a list of names, names in one cell, or a column of 0 and 1 for each label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from shlex import quote
from typing import Any

from bertkit.errors import DataError, plural
from bertkit.readers import FIX_ROW, Examples, Remarks
from bertkit.tasks.labels import class_name, is_missing, label_name, mark_of, no_labels, refuse_missing, unknown_label
from bertkit.tasks.list_cells import looks_like_labels, refuse_broken_list, value_in

SEPARATORS = ("|", ";", ",")
NamesOfRow = tuple[str, ...]


def guess_separator(examples: Examples, column: str) -> tuple[str | None, Remarks]:
    """The separator of names in a column's cells, the first of SEPARATORS that occurs in any cell; and what to say of it."""
    cells = _cells(examples, column)
    found = next((mark for mark in SEPARATORS if any(mark in cell for cell in cells)), None)
    if found is None:
        what = "no cell has a separator of labels, so each is one label; --label-separator names another one"
        return None, Remarks.of(note=what if any(cells) else None)
    note = f"labels in a cell are separated by {found!r} (change it with --label-separator)"
    others = [mark for mark in SEPARATORS if mark != found and any(mark in cell for cell in cells)]
    if not others:
        return found, Remarks.of(note=note)
    count = sum(any(mark in cell for mark in others) for cell in cells)
    what = f"{plural(count, 'cell')} of column {examples.own_name(column)!r} also {'has' if count == 1 else 'have'}"
    warning = f"{what} {' or '.join(map(repr, others))}, which stays in the names of labels"
    return found, Remarks.of(note=note, warning=warning)


def split_sets(
    examples: Examples, column: str, separator: str | None, names: Sequence[str] | None, labels: Sequence[str] | None = None
) -> list[NamesOfRow | None]:
    """The names of each row; None if missing (see `is_missing`), () for a row without labels, such as an empty text.

    separator: between names in a text. names: of numbered classes. labels: all labels, for lists with a 0 or 1 for each, or of
    their numbers. Raises DataError with the row for other values.
    """
    values = [_parsed(value, examples.where(row)) for row, value in enumerate(examples.columns[column])]
    values = _split_marks(values, separator, labels or ())
    if width := _places(values, names, labels, examples):
        labels = names or labels
        if labels is None or len(labels) != width:
            what = f"the lists in column {examples.own_name(column)!r} have a 0 or 1 for each of {width} labels"
            raise DataError(what, where=examples.source, hint=f"name these {width} labels in order: --labels first,second,...")
    if names is None and labels and not width and not any(map(str.isdecimal, labels)) and _are_numbers(values):
        names = labels
    sets: list[NamesOfRow | None] = []
    for row, value in enumerate(values):
        if value != "" and is_missing(value, labels or ()):
            sets.append(None)
            continue
        if width and isinstance(value, list):
            sets.append(tuple(name for name, mark in zip(labels or (), value, strict=True) if mark_of(mark)))
            continue
        parts = value.split(separator) if separator and isinstance(value, str) else [value]
        items = value if isinstance(value, list) else parts
        if any(isinstance(item, (list, dict, type(None))) for item in items):
            what = f"the labels in column {examples.own_name(column)!r} are {value!r}; expected a list of names"
            raise DataError(what, where=examples.where(row), hint=FIX_ROW)
        named = [
            class_name(item, names, examples.where(row)) if names is not None and not isinstance(item, str) else item
            for item in items
        ]
        stripped = [label_name(item).strip() for item in named if item is not None]
        sets.append(tuple(dict.fromkeys(name for name in stripped if name)))
    return sets


def _parts(cell: str, separator: str) -> list[str]:
    return [part.strip() for part in cell.split(separator)]


def _split_marks(values: list[Any], separator: str | None, labels: Sequence[str]) -> list[Any]:
    """Cells as lists, if most are marks such as 0|1|0."""
    cells = {row: value for row, value in enumerate(values) if str(value).strip() and not is_missing(value, labels)}
    texts = {row: value for row, value in cells.items() if separator and isinstance(value, str)}
    split = {row: _parts(text, separator or "") for row, text in texts.items()}
    marks = [items for items in split.values() if len(items) > 1 and {*items} <= {"0", "1"}]
    return [split.get(row, value) for row, value in enumerate(values)] if 2 * len(marks) > len(cells) else values


def _places(values: Sequence[Any], names: Sequence[str] | None, labels: Sequence[str] | None, examples: Examples) -> int:
    """The length of lists that have a 0 or 1 for each label; 0 if the lists are sets of names.

    They are sets if no item is repeated, or if most lists have only labels, all different. But if most are [0, 1] or [1, 0],
    they mark two labels: as sets, these rows would all be the same. Raises DataError with the row for a list unlike the others,
    if most are marks.
    """
    lists = {row: value for row, value in enumerate(values) if isinstance(value, list)}
    different = [items for items in lists.values() if items and not _has_repeated(items)]
    named = [items for items in different if all(label_name(item) in (labels or ()) for item in items)]
    if 2 * len(named) > len(lists):
        return 0
    marked = [items for items in lists.values() if _are_marks(items)]
    repeated = sum(map(_has_repeated, marked))
    widths = Counter(map(len, marked))
    are_pairs = names is None and len(labels or "ab") == 2 and 2 * widths[2] > len(lists)
    if are_pairs or 2 * repeated > len(lists):
        width = widths.most_common(1)[0][0]
        unlike = (row for row, items in lists.items() if len(items) != width or not _are_marks(items))
        if (bad := next(unlike, None)) is not None:
            what = f"the list is {lists[bad]!r}; expected a 0 or 1 for each of {width} labels, as in other rows"
            may_be_classes = labels is None and lists[bad] and all(label_name(item).isdecimal() for item in lists[bad])
            hint = f"{FIX_ROW}; if the numbers are classes, name them all: --labels 0,1,..." if may_be_classes else FIX_ROW
            raise DataError(what, where=examples.where(bad), hint=hint)
        return width
    return next(iter(widths)) if len(marked) == len(lists) and len(widths) == 1 and repeated else 0


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether lists hold numbers of classes: integers that cannot be marks, of which each row has as many, or some repeat."""
    lists = [value for value in values if isinstance(value, list)]
    lengths = {*map(len, lists)}
    may_be_marks = len(lengths) == 1 and lengths != {1} and all(map(_are_marks, lists))
    may_be_marks |= any(_are_marks(items) and _has_repeated(items) for items in lists)
    return any(type(item) is int for items in lists for item in items) and not may_be_marks


def _has_repeated(items: Sequence[Any]) -> bool:
    return len({*map(str, items)}) < len(items)


def _are_marks(items: Iterable[Any]) -> bool:
    return all(not is_missing(item) and mark_of(item) is not None for item in items)


def _cells(examples: Examples, column: str) -> list[str]:
    """The cells of a column that are texts, but no lists."""
    texts = (value for value in examples.columns[column] if isinstance(value, str))
    return [text for text in texts if value_in(text) is None and not looks_like_labels(text)]


def _parsed(value: Any, where: str) -> Any:
    """The list in a cell that is written as one; any other value unchanged. where: for the DataError about a broken one."""
    read = value_in(value) if isinstance(value, str) else value
    if isinstance(read, dict) and [*read] == ["choices"]:  # as Label Studio writes several
        return read["choices"]
    if isinstance(read, list):
        return read
    if isinstance(value, str):
        refuse_broken_list(value, where, "write the labels as JSON, or separated by |")
    return value


def empty_marks_warning(examples: Examples, columns: Sequence[str]) -> Remarks:
    """A warning if rows that have marks also have cells without one, which are read as 0."""
    rows = zip(*(map(is_missing, examples.columns[name]) for name in columns), strict=True)
    some = [row for row, missing in enumerate(rows) if any(missing) and not all(missing)]
    if not some:
        return Remarks()
    what = f"{plural(len(some), 'row')} {'has' if len(some) == 1 else 'have'} empty cells in the columns of labels"
    return Remarks.of(warning=f"{what}, which are read as 0 ({', '.join(examples.places(some))})")


def marked_sets(examples: Examples, columns: Sequence[str]) -> list[NamesOfRow | None]:
    """The names of the columns in which each row has a 1; None if all are missing (see `is_missing`).

    Raises DataError with the row for values other than 0 and 1.
    """
    rows: list[NamesOfRow | None] = []
    for row, values in enumerate(zip(*(examples.columns[name] for name in columns), strict=True)):
        if all(map(is_missing, values)):
            rows.append(None)
            continue
        marks = [mark_of(value) for value in values]
        for name, mark, value in zip(columns, marks, values, strict=True):
            if mark is None:
                what = f"column {name!r} holds {value!r}; expected 1 if the label applies, else 0"
                raise DataError(what, where=examples.where(row), hint=FIX_ROW)
        rows.append(tuple(name for name, mark in zip(columns, marks, strict=True) if mark))
    return rows


def derive_set_labels(examples: Examples, column: str) -> tuple[str, ...]:
    """All names of the training data in alphabetical order. Raises DataError if there are none."""
    names = {name for row in examples.columns[column] if row is not None for name in row}
    if not names:
        raise no_labels(examples, column)
    return tuple(sorted(names))


def label_sets(examples: Examples, column: str, labels: Sequence[str]) -> list[NamesOfRow]:
    """The labels of each row in the order of `labels`. Raises DataError with the row for missing and unknown ones."""
    sets = examples.columns[column]
    refuse_missing([row for row, names in enumerate(sets) if names is None], examples, column)
    for row, names in enumerate(sets):
        if unknown := next((name for name in names if name not in labels), None):
            error = unknown_label(unknown, labels, examples.where(row), by_number=False)
            if separator := next((mark for mark in SEPARATORS if all(part in labels for part in _parts(unknown, mark))), None):
                separately = f"in eval, this file's separator is named by --label-separator {quote(separator)}"
                error.hint = f"if these are several labels, separate them as in the training rows; {separately}"
            raise error
    return [tuple(label for label in labels if label in names) for names in sets]
