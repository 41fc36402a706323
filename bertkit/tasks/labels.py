"""Class labels: from names or numbers in the data to the outputs of the model, strictly."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, ModelError, UsageError, excerpt, listed, plural
from bertkit.model.config import BertConfig
from bertkit.readers import FIX_ROW, Examples
from bertkit.tasks.list_cells import holds_spans, looks_like_labels

_MOST_CLASSES = 20  # above this, numbers, or labels that hardly repeat, count as classes only if the user says so
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_COUNTED = re.compile(r"[\W_]*\d+")  # what numbered names, such as class_1 and class_2, differ in
_MISSPELT = 0.85  # similarity above which one label may be meant to be another
_THOUSANDS = re.compile(r"\s*[-+]?\d{1,3}(,\d{3})+(\.\d+|,\d{3})\s*", re.ASCII)
_MAY_BE_THOUSANDS = re.compile(r"\s*[-+]?[1-9]\d{0,2},\d{3}\s*", re.ASCII)
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*", re.ASCII)
_MARKS = re.compile(r"\s*[01]\s*(?:(?:[|;]\s*[01]\s*)+|(?:,\s*[01]\s*){2,})")  # such as 0|1; but 0,1 may be a number
_MINUS_ONE = "-1 means no label; if it is a class, name all classes: --labels=-1,0,1"


def is_missing(value: Any, named: Collection[str] = ()) -> bool:
    """Whether a label is absent: GLUE writes -1 for it, Hugging Face data sets -1 or None, pandas NaN.

    named: the known labels; -1 is a label if the user named it.
    """
    if isinstance(value, float):
        absent = math.isnan(value) or value == -1
    else:
        absent = value is None or value == "" or (not isinstance(value, bool) and str(value) == "-1")
    return absent and label_name(value) not in named


def label_name(value: Any) -> str:
    """The name of a label in the data: 1, 1.0 and "1" have the same name."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def mark_of(value: Any) -> bool | None:
    """Whether a cell says yes (1, true, yes) or no (0, false, no, nothing); None if it says neither."""
    mark = "" if value is None or value != value else label_name(value).strip().lower()
    return True if mark in ("1", "1.0", "true", "yes") else False if mark in ("0", "0.0", "false", "no", "") else None


def class_name(value: Any, names: Sequence[str], where: str) -> str | None:
    """The name of a class by its number, among the names that the source declares; None for -1. Otherwise raises DataError."""
    if value is None or value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(names):
        what = f"class {value!r} is out of range; the data declares {len(names)}: {listed(names, 12)}"
        raise DataError(what, where=where, hint=FIX_ROW)
    return names[value]


def is_nested(value: Any) -> bool:
    """Whether a label is a list or an object, or a cell that holds one."""
    is_written = isinstance(value, str) and value[:1] in ("[", "(", "{") and (looks_like_labels(value) or holds_spans(value))
    return is_written or isinstance(value, (list, dict))


def refuse_nested_labels(examples: Examples, column: str) -> None:
    """Raise DataError with the row for a label that is not text, a number or a boolean, or that is a list in a cell."""
    for row, value in enumerate(examples.columns[column]):
        if is_nested(value):
            what = f"the label in column {examples.own_name(column)!r} is {excerpt(repr(value), 80)}; expected one label"
            hint = "give every row one label, as text or as a number; for several labels use --multi-label"
            if holds_spans(value):
                own = quote(examples.own_name(column))
                hint = f"if these are entities in the text: bertkit finetune token-classification --entities {own}"
            raise DataError(what, where=examples.where(row), hint=hint)


def refuse_no_classes(examples: Examples, column: str) -> None:
    """Raise DataError for labels that look like no classes: lists, numbers to predict, or marks of several labels."""
    refuse_nested_labels(examples, column)
    _refuse_numbers(examples, column)
    _refuse_marks(examples, column)


def _refuse_numbers(examples: Examples, column: str) -> None:
    """Raise DataError for labels that look like numbers to predict: decimals, or many different numbers."""
    names: dict[str, int] = {}  # of numbers, with their first row
    others, count = array("q"), 0
    for row, value in enumerate(examples.columns[column]):
        if is_missing(value):
            continue
        count += 1
        name = label_name(value)
        if name in names or _NUMBER.fullmatch(name) or _DECIMAL_COMMA.fullmatch(name):
            names.setdefault(name, row)
        else:
            others.append(row)
    own, hint = examples.own_name(column), "add --regression to predict a number, or --classes if each number is a class"
    decimals = [name for name in names if "," in name or not float(name).is_integer()]
    if others:
        if 4 * len(others) <= count and (decimals or len(names) > _MOST_CLASSES):
            found = _cells(examples, column, others)
            what = f"the labels in column {own!r} are numbers, except for {plural(len(others), 'cell')}: {found}"
            hint = "correct them and add --regression to predict a number, or --classes if each value is a class"
            raise DataError(what, where=examples.where(others[0]), hint=hint)
        return
    if decimals:
        first = min(decimals, key=names.__getitem__)
        what = f"the label in column {own!r} is the decimal {first}"
        if "," in first:
            what = f"the label in column {own!r} is {first!r}, a number with a comma"
            hint = f"to predict numbers, {_without_commas(first)}, and add --regression; add --classes if each is a class, or "
            hint += "--multi-label if each part is a label"
        raise DataError(what, where=examples.where(names[first]), hint=hint)
    if len(names) > _MOST_CLASSES:
        raise DataError(f"the labels in column {own!r} are {len(names)} different numbers", where=examples.source, hint=hint)


def _without_commas(number: str) -> str:
    """How to write a number that has commas: as decimal commas, or between thousands."""
    number = number.strip()
    decimal, whole = f"write {number.replace(',', '.')} for {number}", f"write {number.replace(',', '')} for {number}"
    if _THOUSANDS.fullmatch(number):
        return whole
    return f"{whole}, or {number.replace(',', '.')} if the comma is decimal" if _MAY_BE_THOUSANDS.fullmatch(number) else decimal


def _refuse_marks(examples: Examples, column: str) -> None:
    """Raise DataError for cells that all hold a 0 or 1 for each of several labels, such as 0|1|0."""
    cells = {row: value for row, value in enumerate(examples.columns[column]) if not is_missing(value)}
    if cells and all(isinstance(cell, str) and _MARKS.fullmatch(cell) for cell in cells.values()):
        row, first = next(iter(cells.items()))
        what = f"the labels in column {examples.own_name(column)!r} are a 0 or 1 for each of several labels, such as {first!r}"
        hint = "name these labels in order: --multi-label --labels first,second,...; or add --classes if each cell is a class"
        raise DataError(what, where=examples.where(row), hint=hint)


def refuse_many_labels(examples: Examples, column: str) -> None:
    """Raise DataError for labels that hardly repeat, as ids or texts do not."""
    names = {label_name(value) for value in examples.columns[column] if not is_missing(value)}
    if len(names) > _MOST_CLASSES and len(names) > len(examples) / 2:
        own = examples.own_name(column)
        what = f"column {own!r} has {len(names)} distinct values in {len(examples)} rows, too many for classes"
        hint = "choose another column with --label, or add --classes if it is the right one"
        raise DataError(what, where=examples.source, hint=hint)


def _cells(examples: Examples, column: str, rows: Sequence[int]) -> str:
    """The first values of a column in these rows, each with its line."""
    return listed([f"{reprlib.repr(examples.columns[column][row])} (line {examples.lines[row]})" for row in rows], 3)


def derive_labels(examples: Examples, column: str, *, are_classes: bool = False) -> tuple[str, ...]:
    """The label names of the training data: numbers in numeric order, other names in alphabetical order.

    are_classes: whether this is known. Raises DataError for what does not look like classes.
    """
    if are_classes:
        refuse_nested_labels(examples, column)
    else:
        refuse_no_classes(examples, column)
    values = examples.columns[column]
    own = examples.own_name(column)
    kinds = {
        bool if isinstance(v, bool) else float if isinstance(v, (int, float)) else type(v): row
        for row, v in enumerate(values)
        if v is not None and v == v  # no NaN
    }
    if len(kinds) > 1:
        places = " and ".join(f"{values[row]!r} ({examples.where(row)})" for row in sorted(kinds.values())[:2])
        what = f"column {own!r} mixes types of labels: {places}"
        raise DataError(what, hint="write every label as text, or every one as a number")
    names = {label_name(value) for value in values if not is_missing(value)}
    if not names:
        raise no_labels(examples, column)
    if len(names) == 1:
        what = f"every row has the label {next(iter(names))!r}; expected two or more labels"
        raise DataError(what, where=examples.source, hint=_MINUS_ONE if any(str(value) == "-1" for value in values) else None)
    are_numbers = all(re.fullmatch("-?[0-9]{1,100}", name) for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if are_numbers else None))  # 01 and 1: in the same order


def no_labels(examples: Examples, column: str) -> DataError:
    """The error for training rows without any label."""
    what = f"no row has a label in column {examples.own_name(column)!r}"
    return DataError(what, where=examples.source, hint="is this the label column? --label NAME chooses another one")


def refuse_repeated(labels: Sequence[str]) -> None:
    """Raise UsageError for --labels with a name that occurs twice."""
    if len(set(labels)) != len(labels):
        raise UsageError(f"--labels names a label twice: {', '.join(labels)}")


def spelling_warnings(names: Iterable[str]) -> tuple[str, ...]:
    """Warnings about names that differ only in case, white space or the form of a number, or are only white space."""
    groups: dict[str | Decimal, list[str]] = defaultdict(list)
    for name in names:
        groups[_plain(name)].append(name)
    blank = [f"the label {name!r} is only white space; if it means no label, leave it empty" for name in groups.pop("", [])]
    alike = "labels that differ only in case, white space or the form of a number are learned separately"
    groups_of_many = (sorted(group) for group in groups.values() if len(group) > 1)
    return (*blank, *(f"{alike}: {', '.join(map(repr, group))}; use one spelling" for group in groups_of_many))


def _plain(name: str) -> str | Decimal:
    """What names that differ only in spelling have in common; exact numbers are compared as numbers."""
    plain = " ".join(name.casefold().split())
    try:
        return Decimal(plain) if _NUMBER.fullmatch(plain) else plain
    except InvalidOperation:  # the exponent of what may be a hexadecimal id
        return plain


def refuse_missing(missing: Sequence[int], examples: Examples, column: str, *, are_classes: bool = False) -> None:
    """Raise DataError if rows lack a label: all of them, as in a test split, or some. are_classes: -1 could be a class."""
    own = examples.own_name(column)
    if len(missing) == len(examples) > 1:
        what = f"no row has a label in column {own!r}: this is a test split without labels"
        raise DataError(what, where=examples.source, hint="evaluate on a split with labels; `bertkit predict` needs none")
    if missing:
        what = f"{len(missing)} of {len(examples)} rows without a label in column {own!r}; this is the first"
        if len(examples) == 1:  # such as one that --on-error skip looks at by itself
            what = f"there is no label in column {own!r}"
        hint = "give these rows a label, remove them, or skip them with --on-error skip"
        if are_classes and str(examples.columns[column][missing[0]]) in ("-1", "-1.0"):
            hint += f"; {_MINUS_ONE}"
        raise DataError(what, where=examples.where(missing[0]), hint=hint)


def label_ids(examples: Examples, column: str, labels: Sequence[str], *, by_number: bool = True) -> NDArray[np.int64]:
    """The number of each row's label, which the data gives by name or, with by_number and if no name is a number, by number.

    Raises DataError with the row for a label that is missing, unknown or out of range.
    """
    refuse_nested_labels(examples, column)
    values = examples.columns[column]
    missing = [row for row, value in enumerate(values) if is_missing(value, labels)]
    refuse_missing(missing, examples, column, are_classes=True)
    numbers = {name: number for number, name in enumerate(labels)}
    by_number = by_number and not any(_is_number(name) for name in labels)
    ids = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        name = label_name(value)
        number = numbers.get(name)
        if number is None and by_number and _is_number(name) and int(name) < len(labels):
            number = int(name)
        if number is None:
            raise unknown_label(name, labels, examples.where(row), by_number=by_number)
        ids[row] = number
    return ids


def _is_number(name: str) -> bool:
    return re.fullmatch("[0-9]+", name) is not None


def unknown_label(name: str, labels: Sequence[str], where: str, *, by_number: bool) -> DataError:
    """The error for a label that is not among the labels."""
    expected = listed(_distinct(labels), 12)
    if by_number and re.fullmatch("-?[0-9]+", name):
        what = f"label {name} is out of range; expected 0 to {len(labels) - 1} ({expected})"
        return DataError(what, where=where, hint="labels count from 0; --labels names them in the order of their numbers")
    alike = {label.casefold(): label for label in labels}.get(name.casefold()) or misspelt(name, labels)
    guess = f"did you mean {alike}? " if alike else ""
    what = f"unknown label {name!r}; expected one of {expected}"
    hint = "correct or remove the row; if the label is right, name all labels when you train: --labels A,B,..."
    if "," in name and all(part.strip() in labels for part in name.split(",")):
        one = quote('"' + name.replace('"', '""') + '",B,...')
        hint = f"if these are several labels, add --multi-label; if it is one, put it in double quotes: --labels {one}"
    if all(re.fullmatch("LABEL_[0-9]+", label) for label in labels):
        hint = "the model does not name its labels: give them in its order, --labels A,B,..."
    return DataError(what, where=where, hint=f"{guess}{hint}")


def _distinct(labels: Sequence[str]) -> Sequence[str]:
    """Labels for a list in a message: in quotes if commas between them could be parts of one."""
    return [*map(repr, labels)] if any("," in label for label in labels) else labels


def misspelt(name: str, labels: Iterable[str]) -> str | None:
    """The label that a name may misspell. Names that differ only in case, a number or a prefix (illegal) do not count."""
    spellings = {label.casefold(): label for label in labels}
    for found in difflib.get_close_matches(name.casefold(), spellings, n=1, cutoff=_MISSPELT):
        prefixed = name.casefold().endswith(found) or found.endswith(name.casefold())  # or the same
        if not prefixed and _COUNTED.sub("", spellings[found]) != _COUNTED.sub("", name):
            return spellings[found]
    return None


def refuse_other_spellings(unknown: Iterable[str], known: Iterable[str], what: str, place: Callable[[str], str]) -> None:
    """Raise DataError for an unknown name that differs from a known one only in case; place: gives the row of a name."""
    spellings = {name.casefold(): name for name in known}
    for name in unknown:
        if own := spellings.get(name.casefold()):
            raise DataError(f"the {what} {name!r} is spelled {own!r} in training", where=place(name), hint="use one spelling")


def number_of(value: Any) -> float:
    """The number in a cell; NaN if it is missing, not a number, or not finite in float32, the dtype of losses."""
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if abs(number) <= np.finfo(np.float32).max else math.nan


def scores_of(examples: Examples, column: str) -> NDArray[np.float64]:
    """The numbers to regress to. Raises DataError with the row for one that is missing, not a number or not finite."""
    values = examples.columns[column]
    numbers = np.array([number_of(value) for value in values], dtype=np.float64)
    refused = np.flatnonzero(np.isnan(numbers)).tolist()
    if refused:
        what = f"{values[refused[0]]!r} in column {examples.own_name(column)!r} is not a finite number, as regression needs"
        if len(refused) > 1:
            found = _cells(examples, column, refused)
            what = (
                f"{len(refused)} of {len(values)} rows have no finite number in column {examples.own_name(column)!r}: {found}"
            )
        them = "it" if len(refused) == 1 else "them"
        hint = f"correct {them}, or skip such rows with --on-error skip; for classes leave out --regression"
        cells = [str(values[row]) for row in refused]
        thousands = [cell for cell in cells if _THOUSANDS.fullmatch(cell)]
        commas = thousands or [cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell)]
        if thousands or len(commas) == len(refused) or (commas and len(refused) < len(values)):
            hint = _without_commas(commas[0])
        elif 1 < len(refused) == len(values):
            hint = "is this the right column? --label NAME names another one"
        raise DataError(what, where=examples.where(refused[0]), hint=hint)
    return numbers


def refuse_one_number(examples: Examples, column: str) -> None:
    """Raise DataError if several rows all have the same number, from which there is nothing to learn. NaN is `scores_of`'s."""
    values = examples.columns[column]
    numbers = {*map(number_of, values)}
    if len(numbers) == 1 < len(values) and not math.isnan(*numbers):
        what = f"every row has the number {values[0]} in column {examples.own_name(column)!r}; expected different numbers"
        raise DataError(what, where=examples.source, hint="is this the right column? --label NAME names another one")


# --- a model's labels ------------------------------------------------------------------------------------------------------

FRESH_HEAD = "bertkit finetune --fresh-head puts a new head on the encoder"
_RENAME = f"{FRESH_HEAD}; if only the names differ, write the data's into id2label of its config.json, in the model's order"


def labels_of_model(config: BertConfig) -> tuple[str, ...]:
    """The model's labels in the order of its outputs; LABEL_0, LABEL_1, ... if they have no names."""
    return tuple((config.id2label or {0: "LABEL_0", 1: "LABEL_1"}).values())


def renamed(values: Mapping[str, float], known: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """Change the keys of values, such as thresholds, from the model's labels to `labels`: the same ones, in the same order."""
    return {label: float(values[name]) for name, label in zip(known, labels, strict=True) if name in values}


def in_model_order(
    labels: tuple[str, ...], config: BertConfig, where: str = "the model", *, some: bool = False
) -> tuple[tuple[str, ...], str | None]:
    """The labels, spelled as given, in the model's order, or in their own if the model does not name its labels; and a warning
    in that case, or if the model has more. some: whether it may have more, which are kept. Raises ModelError for other labels.
    """
    names = config.label_names
    part = some and names is not None and len(labels) < len(names)
    if len(labels) != config.num_labels and not part:
        what = f"the model has {config.num_labels} labels and the data {len(labels)}: {listed(_distinct(labels), 12)}"
        raise ModelError(what, where=where, hint=FRESH_HEAD)
    if names is None:
        return labels, f"the model does not name its labels; assumed order: {', '.join(_distinct(labels))}"
    warning = f"the data has {len(labels)} of the model's {len(names)} labels; the model keeps the others" if part else None
    if set(labels) <= set(names):
        return names, warning
    known = {name.casefold() for name in names}
    unknown = [label for label in labels if label.casefold() not in known]
    if 0 < len(unknown) < len(labels):
        what = f"the model has no label {listed([*map(repr, unknown)], 12)}; its labels are {listed(_distinct(names), 12)}"
        hint = f"correct the data; or, if the model only names a label differently, its config.json; or {FRESH_HEAD}"
        raise ModelError(what, where=where, hint=hint)
    if unknown or len({label.casefold() for label in labels}) < len(labels):
        what = f"the model's labels are {listed(_distinct(names), 12)}; the data's are {listed(_distinct(labels), 12)}"
        raise ModelError(what, where=where, hint=FRESH_HEAD if part else _RENAME)
    spelled = {label.casefold(): label for label in labels if label not in names}
    return tuple(name if name in labels else spelled.pop(name.casefold(), name) for name in names), warning
