"""The recipe of text classification: the columns of the texts and labels, and the kind of target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from shlex import quote
from typing import Any, ClassVar, Self

from bertkit.config import DATA, MEASURE, USE, option
from bertkit.errors import DataError, UsageError, flag_of, plural
from bertkit.metrics.classification import (
    CLASS_METRICS,
    MULTI_LABEL_METRICS,
    REGRESSION_METRICS,
    accuracy,
    macro_f1,
    micro_f1,
    pearson,
    refuse_others,
    spearmanr,
)
from bertkit.readers import Examples, Remarks
from bertkit.readers.columns import (
    columns_named,
    data_hint,
    guess_column,
    guessed,
    header_hint,
    listed_columns,
    require_column,
    require_columns,
    similar_name,
)
from bertkit.tasks.class_loss import ClassLossRecipe
from bertkit.tasks.labels import (
    class_name,
    is_missing,
    is_nested,
    label_name,
    number_of,
    refuse_many_labels,
    refuse_nested_labels,
    refuse_no_classes,
)
from bertkit.tasks.pooling import PoolingRecipe
from bertkit.tasks.recipe import Columns
from bertkit.tasks.text_classification.label_sets import (
    NamesOfRow,
    empty_marks_warning,
    guess_separator,
    marked_sets,
    split_sets,
)
from bertkit.text.truncation import TRUNCATIONS

INPUTS = ("text", "text_pair")  # roles of columns
ROLES = (*INPUTS, "label")

_USUAL = "text and label"  # names that need no option


@dataclass(frozen=True, kw_only=True)
class TextClassification(PoolingRecipe, ClassLossRecipe):
    """A recipe of this family; see Recipe for where its data comes from.

    labels: names in the order of the data's numbers; default: those in the training data, in alphabetical order.
    """

    family: ClassVar[str] = "text-classification"
    in_order: ClassVar[tuple[str, ...]] = INPUTS

    text: str | None = option(
        None, "column of the text, or of a pair's first text; A,B,... joins several columns", unit="column", commands=USE
    )
    text_pair: str | None = option(
        None, "column of a pair's second text; A,B,... joins several columns", unit="column", commands=USE
    )
    label: str | None = option(
        None,
        "column of the label; with --multi-label also several columns of 0 and 1, as in toxic,rude",
        unit="column",
        commands=DATA,
    )
    labels: tuple[str, ...] | None = option(
        None,
        "names of the labels in the order of their numbers, such as 'no,\"yes, but\"'; default: from the data",
        commands=DATA,
    )
    regression: bool = option(False, "predict a number instead of a class", commands=DATA)
    classes: bool = option(False, "treat labels that are decimals, or many different numbers, as classes", commands=MEASURE)
    multi_label: bool = option(
        False,
        "a text may have several labels or none: given as a list, as names in one cell, or as columns of 0 and 1",
        commands=DATA,
    )
    label_separator: str | None = option(
        None,
        "separator of several labels in a cell; default: the first of | ; , that occurs in any cell",
        commands=DATA,
        needs="multi_label",
    )
    truncate: str = option(
        "head",
        "what to keep of a text over --max-length: head, tail, head+tail (a quarter from the head, the rest from the tail), "
        "or windows: all of it, averaging logits over windows",
        choices=TRUNCATIONS,
        commands=USE,
    )

    @property
    def truncates(self) -> bool:
        return self.truncate != "windows"

    @property
    def other_loss(self) -> str | None:
        other = "--regression" if self.regression else "--multi-label" if self.multi_label else None
        return other and f"for one class per text, which {other} does not predict"

    def resolved(self) -> Self:
        recipe = super().resolved()
        if recipe.regression and recipe.multi_label:
            raise UsageError("--regression and --multi-label cannot be combined", hint="leave out one of the two")
        if recipe.regression and recipe.labels:
            raise UsageError("--regression predicts a number, which has no --labels", hint="leave out one of the two")
        if recipe.classes and (recipe.regression or recipe.multi_label):
            what = f"--classes is for one class per text, and {'--regression' if recipe.regression else '--multi-label'} is not"
            raise UsageError(what, hint="leave out one of the two")
        if recipe.regression:
            refuse_others(recipe.metrics, REGRESSION_METRICS, "numbers (--regression)")
            return replace(recipe, metrics=recipe.metrics or (pearson, spearmanr))
        if recipe.multi_label:
            refuse_others(recipe.metrics, MULTI_LABEL_METRICS, "several labels per text (--multi-label)")
            return replace(recipe, metrics=recipe.metrics or (micro_f1, macro_f1, accuracy))
        refuse_others(recipe.metrics, CLASS_METRICS, "classes")
        return replace(recipe, metrics=recipe.metrics or (accuracy,))

    def find_columns(self, rows: Examples) -> Columns:
        roles = self._columns_by_role(rows)
        named = {role: roles.get(role, getattr(self, role)) for role in ROLES}
        remarks, separator = Remarks(guessed(self, named)), self.label_separator
        if self.multi_label and separator is None and "label" in roles:
            separator, more = guess_separator(rows, roles["label"])
            remarks += more
        if self._marks and set(self._marks) <= set(rows.columns):
            remarks += empty_marks_warning(rows, self._marks)
        return Columns({**named, "label_separator": separator}, remarks)

    def columns_read(self, rows: Examples, *, labelled: bool) -> set[str]:
        columns = self._columns_by_role(rows)
        self._require_texts(rows, columns)
        texts = {*chain.from_iterable(_parts(rows, columns).values())}
        if not labelled:
            return texts
        self._require_label(rows, columns)
        return {*texts, *columns.values(), *self._marks}

    def refuse_unlikely_labels(self, rows: Examples) -> None:
        """Refuses numbers, and labels that hardly repeat: few rows might not show that they are no classes."""
        columns = self._columns_by_role(rows)
        label = columns.get("label", "")
        if label not in rows.columns or self.regression or self.multi_label or self.classes or self.labels:
            return
        if label not in rows.label_names:
            rows = self._unlisted(rows, columns)
            refuse_no_classes(rows, label)
            refuse_many_labels(rows, label)

    def split_by(self, rows: Examples) -> tuple[tuple[str, ...], list[tuple[Any, ...]] | None]:
        columns = self._columns_by_role(rows)
        rows = self._unlisted(rows, columns)
        self._require_texts(rows, columns)
        self._require_label(rows, columns)
        texts = tuple(chain.from_iterable(_parts(rows, columns).values()))
        if self.regression:
            return texts, None
        if self.multi_label:
            return texts, [names or () for names in self._label_sets(rows, columns)[0] or ()]
        refuse_nested_labels(rows, columns["label"])
        return texts, _shared((label,) for label in rows.columns[columns["label"]])

    def _standardize(self, rows: Examples, *, labelled: bool) -> Examples:
        """The columns `text`, `text_pair` and `label`, if the data has them; several labels are tuples of names, or None.

        label_names: those that the source declares, or the names of columns of 0 and 1. For prediction, labels that cannot be
        read are left out, and single texts may come from a file of plain lines.
        """
        columns = self._columns_by_role(rows)
        if list(rows.columns) == ["text"] and self.label is None and labelled:
            self._require_label(rows, {})
        if not labelled and self.text_pair is None and list(rows.columns) == ["text"]:
            columns = {"text": "text"}
        self._require_texts(rows, columns)
        rows = self._unlisted(rows, columns)
        parts, as_read = _parts(rows, columns), rows
        for role, of_text in parts.items():
            rows = rows.with_joined_texts(columns[role], of_text)
        empty = not labelled or self.is_prepared
        standard: dict[str, Sequence[Any]] = {
            role: rows.texts(columns[role], may_be_empty=empty, may_be_number=True) for role in parts
        }
        labels, names = None, None
        with nullcontext() if labelled else suppress(DataError):
            labels, names = (self._label_sets if self.multi_label else _classes)(rows, columns)
        if labels is not None:
            standard["label"] = labels
        if labelled:
            self._require_label(as_read, columns)
            if self.multi_label and labels is not None and (bare := labels.count(())):
                note = f"{bare} of {plural(len(labels), 'row')} {'has' if bare == 1 else 'have'} no label"
                rows = rows.with_remarks(Remarks((note,)))
        return replace(rows, columns=standard, label_names={"label": names} if names else {}, own_names=columns)

    def _unlisted(self, rows: Examples, columns: dict[str, str]) -> Examples:
        """The rows, with lists of a single class, as annotation tools write them, replaced by the class."""
        labels = rows.columns.get(columns.get("label", ""))
        if self.multi_label or not isinstance(labels, list) or not any(type(label) is list for label in labels):
            return rows
        single = [next(iter(label), None) if isinstance(label, list) and len(label) < 2 else label for label in labels]
        return replace(rows, columns=rows.columns | {columns["label"]: single})

    def row_of(self, row: Any) -> Mapping[str, Any]:
        """As in every family. Raises ValueError for a pair too, if training named the column of a single text."""
        if self.text is not None and self.text_pair is None and isinstance(row, (list, tuple)) and len(row) == 2:
            raise ValueError(f"the row is {row!r}; expected a dict of columns or a single text, as in column {self.text!r}")
        return super().row_of(row)

    def refused(self, rows: Examples, *, labelled: bool) -> dict[int, str]:
        found = super().refused(rows, labelled=labelled)
        kept = [row for row in range(len(rows)) if row not in found]
        if labelled and kept and self.on_error == "skip":
            labels = self._standardize(rows.select(kept), labelled=True).columns["label"]
            for row, label in zip(kept, labels, strict=True):
                if not self._is_label(label):
                    wrong = "not a finite number" if self.regression else "not one label"
                    why = "there is no label" if is_missing(label) else f"the label {label!r} is {wrong}"
                    found[row] = f"{why} ({rows.where(row)})"
        return dict(sorted(found.items()))

    def _is_label(self, value: Any) -> bool:
        if self.multi_label:
            return value is not None
        if self.regression:
            return not math.isnan(number_of(value))
        return not is_missing(value, self.labels or ()) and not is_nested(value)

    def _columns_by_role(self, rows: Examples) -> dict[str, str]:
        """The data's columns by role, named by the recipe or guessed if their names are unambiguous."""
        names = list(rows.columns)
        columns: dict[str, str] = {}
        for role in ROLES:
            wanted = getattr(self, role)
            if wanted in names or (role in INPUTS and wanted is not None and columns_named(wanted, names)):
                columns[role] = wanted
            elif wanted is None and (guess := guess_column(names, role)) is not None:
                columns[role] = guess
        if self.text is not None and self.text_pair is None:
            columns.pop("text_pair", None)  # if only one text is named, there is no pair
        return columns

    def _require_texts(self, rows: Examples, columns: dict[str, str]) -> None:
        """Raise DataError if a text has no column."""
        if not rows.columns:
            raise DataError("the rows have no columns", where=rows.source)
        pair = [name for name in (self.text, self.text_pair) if name is not None]
        names = [*rows.columns]
        if len(pair) == 2 >= len(names) and columns.keys().isdisjoint(INPUTS) and not similar_name(pair[0], names):
            what = f"no columns {pair[0]!r} and {pair[1]!r} for the two texts of a pair; columns: {listed_columns(names)}"
            hint = f"name them: --text NAME --text-pair NAME; if the file has no header: --columns {quote(','.join(pair))}"
            raise DataError(what, where=rows.source, hint=hint)
        for role in INPUTS:
            if role not in columns and (role == "text" or self.text_pair is not None):
                name = getattr(self, role)
                if name is None:
                    what = f"it is not clear which column is the text; columns: {listed_columns(names)}"
                    some = {name: [*filter(None, islice(rows.columns[name], 100))] for name in names}
                    longest = max(names, key=lambda name: sum(map(len, map(str, some[name]))))
                    hint = f"name it, such as --text {quote(longest)}; {header_hint(names, _USUAL)}"
                    if any(isinstance(value, (list, dict)) for value in rows.columns[longest]):
                        hint = f"column {longest!r} holds lists: name the family, such as bertkit check token-classification"
                    if of_data := data_hint(names, _USUAL):
                        hint = f"{of_data}; else name the text: --text NAME"
                    raise DataError(what, where=rows.source, hint=hint)
                require_columns(rows, name, option=flag_of(role))

    def _require_label(self, rows: Examples, columns: dict[str, str]) -> None:
        """Raise DataError if the label has no column, or one that is part of a text. rows: before columns are joined."""
        if "label" in columns:
            if columns["label"] in chain.from_iterable(_parts(rows, columns).values()):
                what = f"column {columns['label']!r} is named as a text and as the label"
                raise DataError(what, where=rows.source, hint="name two columns: --text NAME --label NAME")
            return
        if self.label is None:
            what = f"it is not clear which column is the label; columns: {listed_columns(rows.columns)}"
            hint = "name it: --label NAME"
            if [*rows.columns] == ["text"]:
                what = "the rows are lines of plain text, without labels"
                hint = "if they begin with their labels: --separator ' '; text without labels is for bertkit corpus build"
            raise DataError(what, where=rows.source, hint=hint)
        if not self.multi_label and len(several := columns_named(self.label, rows.columns)) > 1:
            what = f"--label {self.label} names {len(several)} columns; expected one"
            hint = "if they are columns of 0 and 1, one per label: add --multi-label"
            raise DataError(what, where=rows.source, hint=hint)
        for name in self._marks or (self.label,):
            require_column(rows, name, option="--label")

    @property
    def _marks(self) -> tuple[str, ...]:
        """The columns of 0 and 1 that --label names; empty if it names one column."""
        names = tuple(name.strip() for name in (self.label or "").split(","))
        return names if self.multi_label and len(names) > 1 else ()

    def _label_sets(
        self, rows: Examples, columns: dict[str, str]
    ) -> tuple[Sequence[NamesOfRow | None] | None, tuple[str, ...] | None]:
        """The labels of each row, None if they have no column; and the names of all labels, if the source declares them."""
        if column := columns.get("label"):
            names = rows.label_names.get(column)
            separator = self.label_separator or guess_separator(rows, column)[0]
            return split_sets(rows, column, separator, names, self.labels), names
        if self._marks and set(self._marks) <= set(rows.columns):
            return marked_sets(rows, self._marks), self._marks
        return None, None

    @property
    def predicts_numbers(self) -> bool:
        return self.regression

    def texts_of(self, examples: Examples) -> Iterable[tuple[str, ...]]:
        return zip(*examples.given(INPUTS).values(), strict=True)

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        values = examples.columns.get("label", [None] * len(examples))
        if self.multi_label:
            return [tuple(sorted(names or ())) for names in values]  # sets, whatever the order in the data
        if self.regression:
            return [() if value is None or value == "" else (label_name(value),) for value in values]
        labels = self.labels or ()
        by_number = bool(labels) and not any(label_name(value) in labels for value in values)
        return _shared(() if is_missing(value, labels) else (_named(label_name(value), labels, by_number),) for value in values)


def _parts(rows: Examples, columns: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """The columns that make up each text. columns: by role, as a recipe names them."""
    names = [*rows.columns]
    return {role: columns_named(columns[role], names) for role in INPUTS if role in columns}


def _classes(rows: Examples, columns: dict[str, str]) -> tuple[Sequence[Any] | None, tuple[str, ...] | None]:
    """The label of each row, None if there is no such column; and the names of all classes, if the source declares them."""
    if (column := columns.get("label")) is None:
        return None, None
    values, names = rows.columns[column], rows.label_names.get(column)
    if names is None:
        return values, None
    refuse_nested_labels(rows, column)
    return [class_name(value, names, rows.where(row)) for row, value in enumerate(values)], names


def _shared(labels: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The labels of rows, with equal ones as one object: a list of millions then takes a tenth of the memory."""
    known: dict[Any, tuple[Any, ...]] = {}
    return [known.setdefault((row, *map(type, row)), row) for row in labels]  # 1 and True are equal, but different names


def _named(label: str, labels: tuple[str, ...], by_number: bool) -> str:
    """The name of a label; by_number: the data may use its number."""
    return labels[int(label)] if by_number and label.isdecimal() and int(label) < len(labels) else label
