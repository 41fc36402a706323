"""Find the columns of a text, of its pair and of their label, and give them standard names."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.readers.columns import guess_column, require_column, text_of
from bertkit.tasks.labels import check_labels, class_name
from bertkit.tasks.text_classification.label_sets import find_separator, marked_sets, split_sets

TEXTS = ("text", "text_pair")


class TextColumns(NamedTuple):
    """The columns that a recipe names; None: guess them by their names. label: also A,B,...: columns of 0 and 1."""

    text: str | None
    text_pair: str | None
    label: str | None
    multi_label: bool
    separator: str | None  # between several labels in a cell
    labels: tuple[str, ...] | None  # in the order of their numbers, if known

    def find(self, examples: Examples) -> dict[str, str]:
        """The columns in the data by role, named by the recipe or guessed if their names are unambiguous."""
        names = list(examples.columns)
        columns: dict[str, str] = {}
        for role in (*TEXTS, "label"):
            wanted = getattr(self, role)
            if wanted in names:
                columns[role] = wanted
            elif wanted is None and (guess := guess_column(names, role)) is not None:
                columns[role] = guess
        if self.text is not None and self.text_pair is None:
            columns.pop("text_pair", None)  # if only one text is named, there is no pair
        return columns

    def require_texts(self, examples: Examples, columns: dict[str, str]) -> None:
        """Raise DataError if a text has no column."""
        for role in TEXTS:
            if role not in columns and (role == "text" or self.text_pair is not None):
                name = getattr(self, role)
                if name is None:
                    what = f"it is not clear which column is the text; columns: {', '.join(examples.columns)}"
                    hint = f"name it: --text {next(iter(examples.columns))}; for files without a header --columns label,text"
                    raise DataError(what, where=examples.source, hint=hint)
                require_column(examples, name, option="--" + role.replace("_", "-"))

    def require_label(self, examples: Examples, columns: dict[str, str]) -> None:
        """Raise DataError if the label has no column."""
        if "label" in columns:
            return
        if self.label is None:
            what = f"it is not clear which column is the label; columns: {', '.join(examples.columns)}"
            raise DataError(what, where=examples.source, hint="name it: --label NAME")
        for name in self._marks() or (self.label,):
            require_column(examples, name, option="--label")

    def standard(self, examples: Examples, columns: dict[str, str], *, empty_texts: bool) -> Examples:
        """The columns `text`, `text_pair` and `label`, if present; several labels are tuples of names, or None.

        label_names: those that the source declares, or the names of columns of 0 and 1. Raises DataError with the row for bad
        texts and labels.
        """
        self.require_texts(examples, columns)
        standard = {role: examples.columns[name] for role, name in columns.items()}
        for role in TEXTS:
            if role in standard:
                standard[role] = [
                    text_of(value, examples, row, columns[role], may_be_empty=empty_texts, may_be_number=True)
                    for row, value in enumerate(standard[role])
                ]
        names = examples.label_names.get(columns.get("label", ""))
        if self.multi_label:
            if "label" in columns:
                separator = self.separator or find_separator(examples, columns["label"])
                standard["label"] = split_sets(examples, columns["label"], separator, names, self.labels)
            elif (marks := self._marks()) and set(marks) <= set(examples.columns):
                standard["label"], names = marked_sets(examples, marks), marks
        elif names is not None:
            check_labels(examples, columns["label"])
            numbers = enumerate(standard["label"])
            standard["label"] = [class_name(value, names, examples.where(row)) for row, value in numbers]
        return replace(examples, columns=standard, label_names={"label": names} if names else {}, own_names=columns)

    def _marks(self) -> tuple[str, ...]:
        """The columns of 0 and 1 that --label names; empty if it names one column."""
        names = tuple(name.strip() for name in (self.label or "").split(","))
        return names if self.multi_label and len(names) > 1 else ()
