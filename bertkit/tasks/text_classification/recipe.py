"""The recipe of text classification: which columns hold the texts, and what a text is classified by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from bertkit.config import DATA, MEASURE, USE, option
from bertkit.errors import UsageError
from bertkit.metrics.classification import (
    OF_NUMBERS,
    OF_SEVERAL_LABELS,
    accuracy,
    macro_f1,
    micro_f1,
    pearson,
    refuse_others,
    spearmanr,
)
from bertkit.readers import Examples, Remarks
from bertkit.tasks.labels import check_labels, is_missing, label_name
from bertkit.tasks.pooling import PoolingRecipe
from bertkit.tasks.recipe import Columns, guessed
from bertkit.tasks.text_classification.columns import TEXTS, TextColumns
from bertkit.tasks.text_classification.label_sets import find_separator
from bertkit.text.truncation import TRUNCATIONS


@dataclass(frozen=True, kw_only=True)
class TextClassification(PoolingRecipe):
    """A recipe of this family; see Recipe for where its data comes from.

    labels: names in the order of the data's numbers; default: those in the training data, in alphabetical order.
    """

    family: ClassVar[str] = "text-classification"

    text: str | None = option(None, "column of the text (of a pair: the first one)", used=USE)
    text_pair: str | None = option(None, "column of the second text of a pair", used=USE)
    label: str | None = option(None, "column of the label; with --multi-label also A,B,...: columns of 0 and 1", used=DATA)
    labels: tuple[str, ...] | None = option(
        None, "names of the labels in the order of their numbers; default: from the data", used=DATA
    )
    regression: bool = option(False, "predict a number instead of a class", used=DATA)
    multi_label: bool = option(
        False, "a text has any number of labels: a list, names separated by | ; or , or columns of 0 and 1", used=DATA
    )
    label_separator: str | None = option(
        None,
        "separator of several labels in a cell; default: the first of | ; , that occurs in any cell",
        used=DATA,
        needs="multi_label",
    )
    truncate: str = option(
        "head",
        "what to keep of a longer text: its head, its tail, head+tail (a quarter and the rest), or all of it in windows, over "
        "which logits are averaged",
        choices=TRUNCATIONS,
        used=USE,
    )
    class_weights: tuple[str, ...] | None = option(
        None,
        "weight of each class in the loss, in the order of the labels; or balanced: the rarer, the higher",
        used=MEASURE,
    )
    label_smoothing: float = option(
        0.0,
        "share of the target that is spread evenly over all classes in training (Szegedy et al., 2016)",
        minimum=0,
        maximum=1,
        used=MEASURE,
    )

    def resolved(self) -> Self:
        recipe = super().resolved()
        if recipe.regression and recipe.multi_label:
            raise UsageError("--regression predicts a number and --multi-label names", hint="leave out one of the two")
        if recipe.regression and recipe.labels:
            raise UsageError("--regression predicts a number, which --labels does not name", hint="leave out one of the two")
        other = "--regression" if recipe.regression else "--multi-label" if recipe.multi_label else None
        if other and (recipe.class_weights or recipe.label_smoothing):
            flag = "--class-weights" if recipe.class_weights else "--label-smoothing"
            what = f"{flag} is for one class a text, which {other} does not predict"
            raise UsageError(what, hint="leave out one of the two")
        if recipe.regression:
            refuse_others(recipe.metrics, OF_NUMBERS, "numbers (--regression)")
            return replace(recipe, metrics=recipe.metrics or (pearson, spearmanr))
        if recipe.multi_label:
            refuse_others(recipe.metrics, OF_SEVERAL_LABELS, "several labels a text (--multi-label)")
            return replace(recipe, metrics=recipe.metrics or (micro_f1, macro_f1, accuracy))
        return replace(recipe, metrics=recipe.metrics or (accuracy,))

    @property
    def _roles(self) -> TextColumns:
        return TextColumns(self.text, self.text_pair, self.label, bool(self.multi_label), self.label_separator, self.labels)

    def find_columns(self, rows: Examples) -> Columns:
        roles = self._roles.find(rows)
        named = {role: roles.get(role, getattr(self, role)) for role in ("text", "text_pair", "label")}
        notes, separator = guessed(self, named), self.label_separator
        if self.multi_label and separator is None and "label" in roles:
            separator = find_separator(rows, roles["label"])
            if separator is not None:
                notes += (f"labels in a cell are separated by {separator!r} (--label-separator says otherwise)",)
        return Columns({**named, "label_separator": separator}, Remarks(notes))

    def split_by(self, rows: Examples) -> tuple[tuple[str, ...], list[tuple[Any, ...]] | None]:
        columns = self._roles.find(rows)
        self._roles.require_texts(rows, columns)
        self._roles.require_label(rows, columns)
        texts = tuple(columns[role] for role in TEXTS if role in columns)
        if self.regression:
            return texts, None
        if self.multi_label:
            sets = self._roles.standard(rows, columns, empty_texts=True).columns["label"]
            return texts, [names or () for names in sets]
        check_labels(rows, columns["label"])
        return texts, [(label,) for label in rows.columns[columns["label"]]]

    def standardize(self, rows: Examples, *, labelled: bool) -> Examples:
        """The columns `text`, `text_pair` and `label`, if the data has them.

        To predict a single text, a file of plain lines is enough.
        """
        columns = self._roles.find(rows)
        if not labelled and self.text_pair is None and list(rows.columns) == ["text"]:
            columns = {"text": "text"}
        standard = self._roles.standard(rows, columns, empty_texts=not labelled or self.prepare is not None)
        if labelled:
            self._roles.require_label(rows, columns)
        return standard

    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        return list(zip(*(examples.columns[name] for name in TEXTS if name in examples.columns), strict=True))

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        values = examples.columns.get("label", [None] * len(examples))
        if self.multi_label:
            return [names or () for names in values]
        if self.regression:
            return [() if value is None or value == "" else (label_name(value),) for value in values]
        labels = self.labels or ()
        by_number = bool(labels) and not any(label_name(value) in labels for value in values)
        missing = [is_missing(value) and label_name(value) not in labels for value in values]
        return [() if none else (_named(label_name(v), labels, by_number),) for v, none in zip(values, missing, strict=True)]


def _named(label: str, labels: tuple[str, ...], by_number: bool) -> str:
    """The name of a label; by_number: the data may use its number."""
    return labels[int(label)] if by_number and label.isdecimal() and int(label) < len(labels) else label
