"""The recipe of multiple choice: which columns hold the text, the question, the choices and the right one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from bertkit.config import DATA, USE, option
from bertkit.errors import DataError, plural
from bertkit.metrics.classification import accuracy, refuse_others
from bertkit.readers import FIX_ROW, Examples, Remarks
from bertkit.readers.columns import guess_column, require_column
from bertkit.readers.formats import CHOICES, Format
from bertkit.tasks.labels import is_missing, label_name, refuse_missing
from bertkit.tasks.pooling import PoolingRecipe
from bertkit.tasks.recipe import Columns, guessed

_LISTS = ("choices", "choice", "endings", "options", "candidates")  # usual names of a column with a list of them
_NUMBERED = re.compile(r"(ending|choice|option|answer|candidate|alternative|solution|sol)[ _-]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(PoolingRecipe):
    """A recipe of this family; see Recipe for where its data comes from.

    Choices are numbered from 0 by their place in the data, empty ones included. labels_are: "numbers" of choices or their
    "texts", as in training data.
    """

    family: ClassVar[str] = "multiple-choice"
    formats: ClassVar[tuple[Format, ...]] = CHOICES

    text: str | None = option(None, "column of the text (of a pair: the first one)", used=USE)
    question: str | None = option(None, "column of the question, or of the beginning of every choice", used=USE)
    choices: tuple[str, ...] | None = option(None, "columns of the choices, or the one column with a list of them", used=USE)
    label: str | None = option(None, "column of the label", used=DATA)
    labels_are: str | None = None

    def resolved(self) -> Self:
        recipe = super().resolved()
        refuse_others(recipe.metrics, (accuracy,), "choices")
        return replace(recipe, metrics=recipe.metrics or (accuracy,))

    def find_columns(self, rows: Examples) -> Columns:
        named = self._columns(rows, labelled=True)
        kind, ambiguous = self.labels_are, False
        if kind is None:
            kind, ambiguous = _kind_of_labels(rows.columns[named["label"]], _choices(rows, named["choices"]))
        warning = f"the labels in column {named['label']!r} could be numbers of choices or their texts; read as texts"
        warnings = (f"{warning} ({rows.source})",) if ambiguous else ()
        return Columns({**named, "labels_are": kind}, Remarks(guessed(self, named), warnings))

    def columns_read(self, rows: Examples, *, labelled: bool) -> set[str]:
        named = self._columns(rows, labelled=labelled)
        return {named["text"], named["question"], *named["choices"], named["label"]}

    def split_by(self, rows: Examples) -> tuple[tuple[str, ...], list[tuple[Any, ...]] | None]:
        named = self._columns(rows, labelled=True)
        labels = rows.columns[named["label"]]
        numbered = all(is_missing(value) or _number(value) is not None for value in labels)
        # A text that all rows share, such as an instruction, does not distinguish them.
        inputs = [named[role] for role in ("text", "question") if named[role]]
        texts = [name for name in inputs if len(set(map(str, rows.columns[name]))) > 1]
        kept_together = tuple(texts[:1]) or named["choices"]
        return kept_together, [(label,) for label in labels] if numbered else None  # texts of choices are no classes

    def standardize(self, rows: Examples, *, labelled: bool) -> Examples:
        """Columns `text`, `question` if there is one, `choices`, `places`, and `label`.

        choices: the texts of each row's choices, two or more, without empty ones. places: their numbers in the data. label: the
        number of the right choice.
        """
        named = self._columns(rows, labelled=labelled)
        columns: dict[str, list[Any]] = {}
        for role in ("text", "question"):
            if (name := named[role]) is not None:
                may_be_empty = not labelled or role == "question"
                joined = replace(rows, columns={name: list(map(_joined, rows.columns[name]))})
                columns[role] = joined.texts(name, may_be_empty=may_be_empty, may_be_number=True)
        given = _choices(rows, named["choices"])
        texts = [{place: text for place, choice in enumerate(own) if (text := _text(choice)).strip()} for own in given]
        columns["places"], columns["choices"] = [list(own) for own in texts], [list(own.values()) for own in texts]
        for row, own in enumerate(texts):
            if len(own) < 2:
                what = f"found {plural(len(own), 'choice')}; expected two or more"
                raise DataError(what, where=rows.where(row), hint=FIX_ROW)
        if labelled:
            columns["label"] = _labels(rows, named["label"], given, self.labels_are)
        return replace(rows, columns=columns, label_names={})

    def _columns(self, rows: Examples, *, labelled: bool) -> dict[str, Any]:
        """The columns by role: those that the recipe names, else guessed if the names are unambiguous."""
        names = list(rows.columns)
        text, question = self.text or guess_column(names, "context"), self.question
        if self.text is None and question is None:
            # If only the text is named, there is no question.
            question = guess_column(names, "question")
            text, question = (question, None) if text is None else (text, question)
        choices = self.choices or _guess_choices(names)
        label = (self.label or guess_column(names, "answer")) if labelled else None
        named = {"text": text, "question": question, "choices": choices, "label": label}
        for role, name in named.items():
            for column in (name,) if isinstance(name, str) else name or ():
                require_column(rows, column, option=f"--{role}")
            if name is None and role != "question" and (role != "label" or labelled):
                which, hint = f"column is the {role}", f"name it: --{role} NAME"
                if role == "choices":
                    which, hint = "columns are the choices", "name them: --choices A,B,..."
                what = f"it is not clear which {which}; columns: {', '.join(names[:12])}"
                raise DataError(what, where=rows.source, hint=hint)
        return named

    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        inputs = [examples.columns[name] for name in ("text", "question") if name in examples.columns]
        return [(*row[:-1], *row[-1]) for row in zip(*inputs, examples.columns["choices"], strict=True)]

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        return [(str(label),) for label in examples.columns["label"]] if "label" in examples.columns else [()] * len(examples)


# --- columns ---------------------------------------------------------------------------------------------------------------


def _guess_choices(names: Iterable[str]) -> tuple[str, ...] | None:
    """Columns such as ending0, ending1 by their numbers, or one column with a list; None if ambiguous."""
    numbered: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        if match := _NUMBERED.fullmatch(name.strip()):
            numbered[match[1].casefold()].append((int(match[2]), name))
    groups = [group for group in numbered.values() if len(group) > 1]
    if len(groups) == 1:
        return tuple(name for _, name in sorted(groups[0]))
    lists = [name for name in names if name.strip().casefold() in _LISTS]
    return (lists[0],) if len(lists) == 1 and not groups else None


def _joined(value: Any) -> Any:
    """A list of texts joined to one text of several lines; other values unchanged."""
    return "\n".join(value) if isinstance(value, list) and all(isinstance(line, str) for line in value) else value


def _choices(rows: Examples, columns: Sequence[str]) -> list[list[str | float | None]]:
    """The choices of each row, unchanged: texts, numbers or None. Raises DataError with the row for others."""
    values = [rows.columns[name] for name in columns]
    choices = values[0] if len(columns) == 1 else list(map(list, zip(*values, strict=True)))
    for row, given in enumerate(choices):
        if not isinstance(given, list):
            what = f"column {columns[0]!r} holds {'nothing' if given is None else repr(given)}; expected a list of choices"
            raise DataError(what, where=rows.where(row), hint="in a table each choice has its own column: --choices A,B,...")
        for number, choice in enumerate(given):
            if not isinstance(choice, (str, int, float, type(None))) or isinstance(choice, bool):
                name = columns[number] if len(columns) > 1 else columns[0]
                what = f"a choice in column {name!r} is {choice!r}; expected text"
                raise DataError(what, where=rows.where(row), hint=FIX_ROW)
    return choices


def _text(choice: str | float | None) -> str:
    return "" if choice is None else str(choice)


# --- labels ----------------------------------------------------------------------------------------------------------------


def _kind_of_labels(labels: Sequence[Any], choices: Sequence[Sequence[Any]]) -> tuple[Literal["numbers", "texts"], bool]:
    """Whether labels are numbers of choices or their texts, and whether they could be either.

    Labels that are all whole numbers are texts only if each of them equals a choice: CODAH has choices such as "2".
    """
    repeated = [_repeated(label, own) for label, own in zip(labels, choices, strict=True)]
    numbers = [_number(label) for label in labels]
    if None in numbers:
        return "texts", False
    if None in repeated:
        return "numbers", False
    return "texts", numbers != repeated and all(number in range(len(own)) for number, own in zip(numbers, choices, strict=True))


def _labels(rows: Examples, column: str, choices: Sequence[Sequence[Any]], kind: str | None) -> list[int]:
    """The number of each row's right choice, from 0: the label is that number or the text of the choice.

    kind: which of the two; None: decided by these labels. Raises DataError with the row for a missing or unknown label.
    """
    labels = rows.columns[column]
    matches = [_repeated(label, own) for label, own in zip(labels, choices, strict=True)]
    missing = [row for row, label in enumerate(labels) if matches[row] is None and is_missing(label)]
    refuse_missing(missing, rows, column)
    if (kind or _kind_of_labels(labels, choices)[0]) == "numbers":
        matches = [None] * len(labels)
    return [
        _place(label, own, rows.where(row)) if match is None else match
        for row, (label, own, match) in enumerate(zip(labels, choices, matches, strict=True))
    ]


def _repeated(label: Any, choices: Sequence[Any]) -> int | None:
    """The number of the first choice that equals a label, both being texts or both numbers."""
    text = _text(label).strip()
    same = (isinstance(label, str) == isinstance(choice, str) and text == str(choice).strip() for choice in choices)
    return next((number for number, equal in enumerate(same) if equal), None) if text else None


def _place(label: Any, choices: Sequence[Any], where: str) -> int:
    """A label as the number of a choice, from 0."""
    number = _number(label)
    if number is None:
        known = ", ".join(map(str, choices))
        what = f"the label {label!r} is none of the choices: {known if len(known) <= 80 else known[:77] + '...'}"
        raise DataError(what, where=where, hint="a label is the number of the right choice, from 0, or its text")
    if not 0 <= number < len(choices):
        what = f"label {number} is out of range; expected 0 to {len(choices) - 1}, for {len(choices)} choices"
        raise DataError(what, where=where, hint="labels count from 0: subtract 1 from each if yours begin at 1")
    if not _text(choices[number]).strip():
        raise DataError(f"label {number} points at an empty choice", where=where, hint=FIX_ROW)
    return number


def _number(label: Any) -> int | None:
    """A whole number, maybe written as text; None for others."""
    name = "" if isinstance(label, bool) else label_name(label).strip()
    return int(float(name)) if re.fullmatch(r"-?[0-9]+(\.0+)?", name) else None  # 1.0, as tables with gaps write it
