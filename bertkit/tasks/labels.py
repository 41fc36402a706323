"""Class labels: names in the data to numbers in the model, and never by accident."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.errors import DataError, ModelError, UsageError, did_you_mean
from bertkit.model.config import BertConfig
from bertkit.readers import Examples

_MOST_CLASSES = 20  # above this, labels that hardly repeat are taken for text or numbers rather than classes


_MINUS_ONE = "-1 stands for no label; where it is a class, name them all: --labels=-1,0,1"


def is_missing(value: Any) -> bool:
    """Whether a label is absent: GLUE writes -1 for it, Hugging Face data sets -1 or None, pandas NaN."""
    if isinstance(value, float):
        return math.isnan(value) or value == -1
    return value is None or value == "" or (not isinstance(value, bool) and str(value) == "-1")


def label_name(value: Any) -> str:
    """The name of a label as it stands in the data: 1, 1.0 and "1" are one name."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def class_name(value: Any, names: Sequence[str], where: str) -> str | None:
    """The name of a class by its number, as the source declares them; None for -1. Raises DataError for what is none."""
    if value is None or value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(names):
        what = f"class {value!r} is out of range; the data declares {len(names)}: {', '.join(names[:12])}"
        raise DataError(what, where=where, hint="mend or remove the row")
    return names[value]


def check_labels(examples: Examples, column: str) -> None:
    """Raise DataError with the row for a label that is no text, number or truth value."""
    for row, value in enumerate(examples.columns[column]):
        if isinstance(value, (list, dict)):
            hint = "give every row one label, as text or as a number; several are --multi-label"
            raise DataError(
                f"the label in column {examples.own_name(column)!r} is {value!r}; expected one label",
                where=examples.where(row),
                hint=hint,
            )


def derive_labels(examples: Examples, column: str) -> tuple[str, ...]:
    """The label names of the training data: numbers in numeric order, names in alphabetical order."""
    check_labels(examples, column)
    values = examples.columns[column]
    first: dict[str, int] = {}
    for row, value in enumerate(values):
        if not is_missing(value):
            first.setdefault(label_name(value), row)
    kinds = {
        bool if isinstance(v, bool) else float if isinstance(v, (int, float)) else type(v): row
        for row, v in enumerate(values)
        if v is not None and v == v  # no NaN
    }
    if len(kinds) > 1:
        places = " and ".join(f"{values[row]!r} ({examples.where(row)})" for row in sorted(kinds.values())[:2])
        raise DataError(
            f"column {examples.own_name(column)!r} mixes types of label: {places}",
            hint="write every label as text, or every one as a number",
        )
    names = list(first)
    if not names:
        raise DataError(
            f"no row has a label in column {examples.own_name(column)!r}",
            where=examples.source,
            hint="train on rows that have labels",
        )
    if len(names) == 1:
        what = f"every row has the label {names[0]!r}; expected two or more labels"
        raise DataError(what, where=examples.source, hint=_MINUS_ONE if any(str(value) == "-1" for value in values) else None)
    if len(names) > _MOST_CLASSES and len(names) > len(examples) / 2:
        own = examples.own_name(column)
        what = f"column {own!r} has {len(names)} different values in {len(examples)} rows, too many for classes"
        raise DataError(what, where=examples.source, hint="choose another column with --label, or --regression for numbers")
    whole = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=int) if whole else sorted(names))


def spelt_alike(names: Iterable[str]) -> list[list[str]]:
    """Names that differ in case or white space alone, together."""
    spelt: dict[str, list[str]] = defaultdict(list)
    for name in names:
        spelt[" ".join(name.casefold().split())].append(name)
    return [sorted(its) for its in spelt.values() if len(its) > 1]


def refuse_missing(missing: Sequence[int], examples: Examples, column: str) -> None:
    """Raise DataError where rows lack a label: all of them, as in a test split, or some."""
    if len(missing) == len(examples):
        what = f"no row has a label in column {examples.own_name(column)!r}: this is a test split without labels"
        raise DataError(what, where=examples.source, hint="evaluate on a split with labels; `bertkit predict` needs none")
    if missing:
        what = (
            f"{len(missing)} of {len(examples)} rows have no label in column {examples.own_name(column)!r}; the first is here"
        )
        hint = "remove these rows or give them a label"
        if str(examples.columns[column][missing[0]]) in ("-1", "-1.0"):
            hint += f"; {_MINUS_ONE}"
        raise DataError(what, where=examples.where(missing[0]), hint=hint)


def label_ids(examples: Examples, column: str, labels: Sequence[str], *, by_number: bool = True) -> NDArray[np.int64]:
    """The number of each row's label: by its name, or with by_number and numbers that are no names, by number.

    Raises DataError with the row for a label that is missing, unknown or out of range.
    """
    check_labels(examples, column)
    values = examples.columns[column]
    missing = [row for row, value in enumerate(values) if is_missing(value) and label_name(value) not in labels]
    refuse_missing(missing, examples, column)
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
    """The error of a label that is none of the labels."""
    shown = ", ".join(labels[:12]) + (" ..." if len(labels) > 12 else "")
    if by_number and re.fullmatch("-?[0-9]+", name):
        what = f"label {name} is out of range; expected 0 to {len(labels) - 1} ({shown})"
        return DataError(what, where=where, hint="labels count from 0; --labels names them in the order of their numbers")
    spelt = {label.casefold(): label for label in labels}.get(name.casefold())
    hint = f"did you mean {spelt}?" if spelt else did_you_mean(name, labels)
    return DataError(f"unknown label {name!r}; expected one of {shown}", where=where, hint=f"{hint} (--labels sets the names)")


def refuse_other_spellings(unknown: Iterable[str], known: Iterable[str], what: str, place: Callable[[str], str]) -> None:
    """Raise DataError for an unknown name that is a known one but for capitals; place: where it stands."""
    spelt = {name.casefold(): name for name in known}
    for name in unknown:
        if own := spelt.get(name.casefold()):
            raise DataError(f"the {what} {name!r} is spelt {own!r} in training", where=place(name), hint="spell it alike")


def class_weights(given: tuple[str, ...], ids: NDArray[np.int64], labels: Sequence[str]) -> tuple[str, ...]:
    """What each class counts for: as given, or of "balanced" rows / (classes * rows of the class), as scikit-learn has it.

    ids: the training rows' classes. Raises UsageError for anything but a number of at least 0 for each label.
    """
    if given == ("balanced",):
        counts = np.bincount(ids, minlength=len(labels))
        return tuple(repr(float(weight)) for weight in len(ids) / (len(labels) * np.maximum(counts, 1)))
    numbers = [float(weight) for weight in given if re.fullmatch(r"\d+(\.\d*)?|\.\d+", weight)]
    if len(numbers) != len(given) or len(given) != len(labels) or not any(numbers):
        what = f"--class-weights is {','.join(given)}; expected balanced, or {len(labels)} numbers for {', '.join(labels[:12])}"
        raise UsageError(what)
    return given


def scores_of(examples: Examples, column: str) -> NDArray[np.float64]:
    """The numbers to regress to. Raises DataError with the row for one that is missing, not a number or not finite."""
    values = examples.columns[column]
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            numbers[row] = float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            numbers[row] = np.nan
        if not abs(numbers[row]) <= np.finfo(np.float32).max:  # what the loss is computed in
            what = f"{value!r} in column {examples.own_name(column)!r} is not a finite number, as regression needs"
            raise DataError(what, where=examples.where(row), hint="mend the row, or leave out --regression for classes")
    return numbers


# --- a model's labels --------------------------------------------------------------------------------------------------

FRESH_HEAD = "bertkit finetune --fresh-head puts a new head on the encoder"
_RENAME = f"write the data's names into id2label of its config.json, in the model's order; or {FRESH_HEAD}"


def check_model_labels(labels: Sequence[str], config: BertConfig, where: str) -> None:
    """Raise ModelError where a trained model's labels are others than the data's, whatever their order."""
    if config.num_labels != len(labels):
        what = f"the model has {config.num_labels} labels and the data {len(labels)}: {', '.join(labels[:12])}"
        raise ModelError(what, where=where, hint=FRESH_HEAD)
    if config.label_names and sorted(map(str.casefold, config.label_names)) != sorted(map(str.casefold, labels)):
        what = f"the model's labels are {', '.join(config.label_names[:12])}; the data's are {', '.join(labels[:12])}"
        raise ModelError(what, where=where, hint=_RENAME)


def in_the_models_order(labels: tuple[str, ...], config: BertConfig) -> tuple[str, ...]:
    """The labels, in their own spelling, in the order in which the model has them; as they come where it does not say."""
    names = config.label_names
    if names is None:
        if config.num_labels == len(labels):
            progress.warn(f"the model does not name its labels; taken in this order: {', '.join(labels)}")
        return labels
    if set(names) == set(labels):
        return names
    own = {label.casefold(): label for label in labels}
    if set(own) == {name.casefold() for name in names} and len(own) == len(labels) == len(names):
        return tuple(own[name.casefold()] for name in names)
    return labels
