"""The recipe of multiple choice: which columns hold the text, the question, the choices and the right one."""

from __future__ import annotations

import re
import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from bertkit.config import DATA, USE, option
from bertkit.errors import DataError, excerpt, plural
from bertkit.metrics.classification import accuracy, refuse_others
from bertkit.readers import FIX_ROW, Examples, Remarks
from bertkit.readers.columns import columns_named, guess_column, guessed, listed_columns, require_column, require_columns
from bertkit.readers.formats import CHOICES, Format
from bertkit.tasks.labels import is_missing, label_name, refuse_missing
from bertkit.tasks.pooling import PoolingRecipe
from bertkit.tasks.recipe import Columns

INPUTS = ("text", "question")  # roles of columns
_LISTS = ("choices", "choice", "endings", "options", "candidates")  # usual names of a column with a list of them
_NUMBERED = re.compile(r"(ending|choice|option|answer|candidate|alternative|solution|sol|)[ _-]?(\d+|[a-h])", re.IGNORECASE)
_LETTERS = string.ascii_uppercase


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(PoolingRecipe):
    """A recipe of this family; see Recipe for where its data comes from.

    Choices are numbered from 0 by their place in the data, empty ones included. labels_are: one of block.LABEL_KINDS, as in
    training data.
    """

    family: ClassVar[str] = "multiple-choice"
    formats: ClassVar[tuple[Format, ...]] = CHOICES
    has_classes: ClassVar[bool] = False  # positions among the choices are not learned

    text: str | None = option(None, "column of the text; A,B,... joins several columns", unit="column", commands=USE)
    question: str | None = option(
        None, "column of the question, or of the beginning of every choice", unit="column", commands=USE
    )
    choices: tuple[str, ...] | None = option(
        None, "columns of the choices, or the one column with a list of them", commands=USE
    )
    label: str | None = option(None, "column of the label", unit="column", commands=DATA)
    labels_are: str | None = None

    def resolved(self) -> Self:
        recipe = super().resolved()
        refuse_others(recipe.metrics, (accuracy,), "choices")
        return replace(recipe, metrics=recipe.metrics or (accuracy,))

    def find_columns(self, rows: Examples) -> Columns:
        named = self._columns(rows, labelled=True)
        kind, ambiguous = self.labels_are, False
        if kind is None:
            whole = rows.without(self.refused(rows, labelled=False))
            kind, ambiguous = _kind_of_labels(whole if len(whole) else rows, named["label"], named["choices"])
        notes = guessed(self, named)
        if kind == "numbers from 1" and self.labels_are is None:
            notes += (f"the labels in column {named['label']!r} count from 1: none is 0, and one is the last choice's number",)
        warning = f"the labels in column {named['label']!r} could be numbers of choices or their texts; read as texts"
        warnings = (f"{warning} ({rows.source})",) if ambiguous else ()
        return Columns({**named, "labels_are": kind}, Remarks(notes, warnings))

    def columns_read(self, rows: Examples, *, labelled: bool) -> set[str]:
        named = self._columns(rows, labelled=labelled)
        return {*columns_named(named["text"], rows.columns), named["question"], *named["choices"], named["label"]}

    def split_by(self, rows: Examples) -> tuple[tuple[str, ...], list[tuple[Any, ...]] | None]:
        named = self._columns(rows, labelled=True)
        labels = rows.columns[named["label"]]
        numbers = self.labels_are != "texts" and all(is_missing(value) or _number(value) is not None for value in labels)
        numbered = self.labels_are == "letters" or numbers
        # A text that all rows share, such as an instruction, does not distinguish them.
        inputs = [*columns_named(named["text"], rows.columns), *([named["question"]] if named["question"] else [])]
        texts = [name for name in inputs if len(set(map(str, rows.columns[name]))) > 1]
        kept_together = tuple(texts[:1]) or named["choices"]
        return kept_together, [(label,) for label in labels] if numbered else None  # texts of choices are not classes

    def _standardize(self, rows: Examples, *, labelled: bool) -> Examples:
        """Columns `text`, `question` if there is one, `choices`, `places`, and `label`.

        choices: the texts of each row's choices, two or more, without empty ones. places: their numbers in the data. label: the
        number of the right choice.
        """
        named = self._columns(rows, labelled=labelled)
        rows = rows.with_joined_texts(named["text"], columns_named(named["text"], rows.columns))
        columns: dict[str, Sequence[Any]] = {}
        for role in INPUTS:
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
            columns["label"] = _labels(rows, named["label"], named["choices"], self.labels_are)
        names = {role: str(named[role]) for role in INPUTS if named[role]}
        return replace(rows, columns=columns, label_names={}, own_names=names)

    def _columns(self, rows: Examples, *, labelled: bool) -> dict[str, Any]:
        """The columns by role: those that the recipe names, else guessed if the names are unambiguous."""
        names = list(rows.columns)
        text, question = self.text or guess_column(names, "context"), self.question
        if self.text is None and question is None:
            # If only the text is named, there is no question.
            question = guess_column(names, "question")
            text, question = (question, None) if text is None else (text, question)
        choices = self.choices or guess_choices(names)
        label = (self.label or guess_column(names, "answer")) if labelled else None
        named = {"text": text, "question": question, "choices": choices, "label": label}
        for role, name in named.items():
            if role == "text" and isinstance(name, str):
                require_columns(rows, name, option="--text")
            else:
                for column in (name,) if isinstance(name, str) else name or ():
                    require_column(rows, column, option=f"--{role}")
            if name is None and role != "question" and (role != "label" or labelled):
                which, hint = f"column is the {role}", f"name it: --{role} NAME"
                if role == "choices":
                    which, hint = "columns are the choices", "name them: --choices A,B,..."
                what = f"it is not clear which {which}; columns: {listed_columns(names)}"
                raise DataError(what, where=rows.source, hint=hint)
        return named

    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        inputs = examples.given(INPUTS).values()
        return [(*row[:-1], *row[-1]) for row in zip(*inputs, examples.columns["choices"], strict=True)]

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        return [(str(label),) for label in examples.columns["label"]] if "label" in examples.columns else [()] * len(examples)


# --- columns ---------------------------------------------------------------------------------------------------------------


def guess_choices(names: Iterable[str]) -> tuple[str, ...] | None:
    """Columns such as ending0, ending1 or answerA, answerB, in order; or one column with a list; None if ambiguous."""
    numbered: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for name in names:
        if (match := _NUMBERED.fullmatch(name.strip())) and (match[1] or match[2] in _LETTERS):  # A, B, C, but no bare numbers
            numbered[match[1].casefold()].append((len(match[2]), match[2], name))
    groups = [group for group in numbered.values() if len(group) > 1]
    if len(groups) == 1:
        return tuple(name for *_, name in sorted(groups[0]))
    lists = [name for name in names if name.strip().casefold() in _LISTS]
    return (lists[0],) if len(lists) == 1 and not groups else None


def _joined(value: Any) -> Any:
    """A list of texts joined to one text of several lines; other values unchanged."""
    return "\n".join(value) if isinstance(value, list) and all(isinstance(line, str) for line in value) else value


def _choices(rows: Examples, columns: Sequence[str]) -> list[list[str | float | None]]:
    """The choices of each row, unchanged: texts, numbers or None. Raises DataError with the row for others."""
    values = [rows.columns[name] for name in columns]
    choices = [_texts_in(value) for value in values[0]] if len(columns) == 1 else list(map(list, zip(*values, strict=True)))
    for row, given in enumerate(choices):
        if not isinstance(given, list):
            what = f"column {columns[0]!r} contains {'null' if given is None else repr(given)}; expected a list of choices"
            raise DataError(what, where=rows.where(row), hint="in a table each choice has its own column: --choices A,B,...")
        for number, choice in enumerate(given):
            if not isinstance(choice, (str, int, float, type(None))) or isinstance(choice, bool):
                name = columns[number] if len(columns) > 1 else columns[0]
                what = f"a choice in column {name!r} is {choice!r}; expected text"
                raise DataError(what, where=rows.where(row), hint=FIX_ROW)
    return choices


def _texts_in(value: Any) -> Any:
    """The texts of choices that have labels too: an object of two lists, or a list of objects."""
    if isinstance(value, dict) and isinstance(texts := value.get("text"), list):
        return texts
    return [choice["text"] for choice in value] if _are_objects(value) else value


def _labels_in(value: Any, count: int) -> list[str]:
    """The labels of a row's choices, if it has its own; by default A, B, C, ...; [] if its own do not fit."""
    own = value.get("label") if isinstance(value, dict) else None
    if _are_objects(value):
        own = [choice.get("label") for choice in value]
    if not isinstance(own, list) or not own or None in own:
        return [*_LETTERS[:count]]
    letters = [*map(_letter, own)]
    return letters if len(letters) == len(set(letters)) == count else []


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(choice, dict) and "text" in choice for choice in value)


def _text(choice: str | float | None) -> str:
    return "" if choice is None or choice != choice else str(choice)  # NaN is nothing


# --- labels ----------------------------------------------------------------------------------------------------------------


def _kind_of_labels(rows: Examples, column: str, names: Sequence[str]) -> tuple[str, bool]:
    """Which of block.LABEL_KINDS the labels are, and whether they could be the choices' texts or their numbers.

    Labels that are all whole numbers are texts only if each of them equals a choice: CODAH has choices such as "2". Raises
    DataError for numbers that could count from 0 or from 1.
    """
    choices, letters = _choices(rows, names), _letters(rows, names)
    labelled = [row for row, label in enumerate(rows.columns[column]) if not is_missing(label)]
    labels = {row: rows.columns[column][row] for row in labelled}
    repeated = {row: _repeated(label, choices[row]) for row, label in labels.items()}
    numbers = {row: _number(label) for row, label in labels.items()}
    of_data = len(names) == 1 and any(isinstance(value, dict) or _are_objects(value) for value in rows.columns[names[0]])
    fitting = {row: label for row, label in labels.items() if letters[row]}
    if of_data and (fitting or not labels) and all(_letter(label) in letters[row] for row, label in fitting.items()):
        return "letters", False
    if None in numbers.values():
        are_letters = None in repeated.values() and all(_letter(label) in [*_LETTERS] for label in labels.values())
        return ("letters" if are_letters else "texts"), False
    if None in repeated.values():
        return _count_from(rows, column, {row: number for row, number in numbers.items() if number is not None}, choices), False
    fits = all(number in range(len(choices[row])) for row, number in numbers.items())
    return "texts", fits and numbers != repeated


def _count_from(rows: Examples, column: str, numbers: Mapping[int, int], choices: Sequence[Sequence[Any]]) -> str:
    """Whether these numbers count from 0 or from 1: from 1 if none is 0 and one is a last choice's. Raises DataError."""
    each = [number for number in numbers.values() if number >= 0]  # one below is wrong however the others count
    if not each or min(each) < 1:
        return "numbers"
    if any(number == len(choices[row]) for row, number in numbers.items()):
        return "numbers from 1"  # also where another one is wrong: `_place` names it
    if all(number < len(choices[row]) for row, number in numbers.items()):
        what = f"the labels in column {column!r} are {min(each)} to {max(each)}, which could count from 0 or from 1"
        hint = "write letters (A, B, ...) or the texts of the choices; or add rows with the first and the last choice"
        raise DataError(what, where=rows.source, hint=hint)
    return "numbers"


def _letters(rows: Examples, names: Sequence[str]) -> list[list[str]]:
    """The letters of each row's choices."""
    counts = map(len, _choices(rows, names))
    values = rows.columns[names[0]] if len(names) == 1 else [None] * len(rows)
    return [_labels_in(value, count) for value, count in zip(values, counts, strict=True)]


def _letter(label: Any) -> str:
    return label_name(label).strip().upper()


def _labels(rows: Examples, column: str, names: Sequence[str], kind: str | None) -> list[int]:
    """The number of each row's right choice, from 0: the label is its number, its letter or its text.

    kind: of block.LABEL_KINDS; None: decided by these labels. Raises DataError with the row for a missing or unknown label.
    """
    labels, choices = rows.columns[column], _choices(rows, names)
    matches = [_repeated(label, own) for label, own in zip(labels, choices, strict=True)]
    missing = [row for row, label in enumerate(labels) if matches[row] is None and is_missing(label)]
    refuse_missing(missing, rows, column)
    kind = kind or _kind_of_labels(rows, column, names)[0]
    if kind == "letters":
        letters = zip(labels, _letters(rows, names), strict=True)
        places = [_place_of_letter(label, own, rows.where(row)) for row, (label, own) in enumerate(letters)]
    else:
        if kind == "numbers" and (last := _last_from_1(labels, choices)) is not None:
            what = (
                f"the labels in column {column!r} seem to count from 1: none is 0, and line {rows.lines[last]} has the last one"
            )
            hint = "the training labels count from 0: subtract 1 from each; or correct that label, if only it is wrong"
            raise DataError(what, where=rows.source, hint=hint)
        places = [
            _place(label, own, rows.where(row), kind) if match is None or kind != "texts" else match
            for row, (label, own, match) in enumerate(zip(labels, choices, matches, strict=True))
        ]
    for row, (label, own, place) in enumerate(zip(labels, choices, places, strict=True)):
        if not _text(own[place]).strip():
            raise DataError(f"label {label!r} points at an empty choice", where=rows.where(row), hint=FIX_ROW)
    return places


def _place_of_letter(label: Any, letters: Sequence[str], where: str) -> int:
    """A label as the number of a choice, from 0, by the choices' letters."""
    if not letters:
        what = "some choices have no label or the same one; expected a different label for each choice"
        raise DataError(what, where=where, hint=FIX_ROW)
    if (letter := _letter(label)) not in letters:
        what = f"the label {label!r} is not one of the choices' letters; expected {', '.join(letters)}"
        raise DataError(what, where=where, hint=FIX_ROW)
    return letters.index(letter)


def _repeated(label: Any, choices: Sequence[Any]) -> int | None:
    """The number of the first choice that equals a label; both must be texts, or both numbers."""
    text = _text(label).strip()
    same = (isinstance(label, str) == isinstance(choice, str) and text == str(choice).strip() for choice in choices)
    return next((number for number, equal in enumerate(same) if equal), None) if text else None


def _last_from_1(labels: Sequence[Any], choices: Sequence[Sequence[Any]]) -> int | None:
    """The first row with the number of its last choice, if all labels could be numbers from 1; a single row does not tell."""
    numbers = [_number(label) or 0 for label in labels]
    fit = len(labels) > 1 and all(1 <= number <= len(own) for number, own in zip(numbers, choices, strict=True))
    lasts = (row for row, number in enumerate(numbers) if number == len(choices[row]))
    return next(lasts, None) if fit else None


def _place(label: Any, choices: Sequence[Any], where: str, kind: str) -> int:
    """A label as the number of a choice, from 0. kind: of block.LABEL_KINDS."""
    number, first = _number(label), int(kind == "numbers from 1")
    if number is None:
        known = ", ".join(map(str, choices))
        what = f"the label {label!r} is not one of the choices: {excerpt(known, 80)}"
        hint = "a label is the number, letter or text of the right choice, of the same kind in all rows"
        if kind != "texts":
            what, hint = f"the label is {label!r}; expected a number, as in training", f"write {first} for the first choice"
        raise DataError(what, where=where, hint=hint)
    place = number - first
    if not 0 <= place < len(choices):
        what = f"label {number} is out of range; expected {first} to {len(choices) - 1 + first}, for {len(choices)} choices"
        raise DataError(what, where=where, hint=f"the training labels count from {first}; {FIX_ROW}")
    return place


def _number(label: Any) -> int | None:
    """An integer, possibly written as text; None for anything else."""
    name = "" if isinstance(label, bool) else label_name(label).strip()
    return int(float(name)) if re.fullmatch(r"-?[0-9]{1,9}(\.0+)?", name) else None  # 1.0, as in tables with gaps
