"""Multiple choice: which of several choices goes on from a text, or answers a question (Devlin et al., 2019, section 4.4)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from bertkit import progress
from bertkit.config import option
from bertkit.errors import DataError
from bertkit.features import Features, Ragged, offsets_of
from bertkit.metrics.classification import accuracy, measured, refuse_others
from bertkit.model.config import BertConfig
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.readers.columns import guess_column, require_column, text_of
from bertkit.readers.formats import CHOICES, read_file
from bertkit.tasks.labels import is_missing, label_name, refuse_missing
from bertkit.tasks.output import as_jsonl
from bertkit.tasks.pooling import PoolingTask
from bertkit.tasks.probabilities import softmax_of_groups
from bertkit.tasks.task import Encoding

if TYPE_CHECKING:
    from torch import nn

    from bertkit.text.tokenizer import Tokenizer

_LISTS = ("choices", "choice", "endings", "options", "candidates")  # usual names of a column with a list of them
_NUMBERED = re.compile(r"(ending|choice|option|answer|candidate|alternative|solution|sol)[ _-]?(\d+)", re.IGNORECASE)
_MEND = "mend or remove the row"


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(PoolingTask):
    """A recipe of this family; see Task for where its data comes from.

    The right choice is numbered from 0 by its place in the data, whether or not the choices before it are empty there.
    """

    family: ClassVar[str] = "multiple-choice"
    hf_class: ClassVar[str] = "BertForMultipleChoice"
    inputs: ClassVar[tuple[str, ...]] = ("text", "question", "choices")

    text: str | None = option(None, "column of the text (of a pair: the first one)")
    question: str | None = option(None, "column of the question, or of what begins every choice")
    choices: tuple[str, ...] | None = option(None, "columns of the choices, or the one column with a list of them")
    label: str | None = option(None, "column of the label")
    labels_are: str | None = None  # "numbers" of choices or their "texts", as training data has them

    def settled(self) -> Self:
        return super(MultipleChoice, replace(self, metrics=self.metrics or (accuracy,))).settled()

    def settled_to_train(self) -> Self:
        recipe = super().settled_to_train()
        refuse_others(recipe.metrics, (accuracy,), "choices")
        return recipe

    # --- data ---

    def read_file(self, path: str | Path, *, columns: tuple[str, ...] | None = None) -> Examples:
        return read_file(path, CHOICES, separator=self.separator, columns=columns or self.columns)

    def split_by(self, examples: Examples) -> tuple[tuple[str, ...], list[tuple[Any, ...]] | None]:
        found = self._found(examples)
        assert found.choices is not None
        assert found.label is not None
        numbered = all(is_missing(value) or _number(value) is not None for value in examples.columns[found.label])
        # What all rows share, an instruction, does not tell them apart.
        texts = (name for name in (found.text, found.question) if name and len(set(map(str, examples.columns[name]))) > 1)
        kept_together = next(((name,) for name in texts), found.choices)
        labels = examples.columns[found.label] if numbered else None  # the text of a choice is no class
        return kept_together, labels and [(label,) for label in labels]

    def load(self, split: str, *, to_predict: bool = False) -> Examples:
        """The examples of a split: columns `text`, `question` if there is one, `choices`, `places`, and `label`.

        choices: the texts of each row's choices, two or more. places: their numbers in the data, which pass over what is empty
        there. label: the number of the right one. to_predict: no label, and empty texts are kept. Raises DataError with the
        row.
        """
        examples = self.read(split)
        if len(examples) == 0:
            raise DataError(f"split {split!r} has no rows", where=examples.source)
        found = self._found(examples, to_predict=to_predict)
        columns: dict[str, list[Any]] = {}
        for role in ("text", "question"):
            if (name := getattr(found, role)) is not None:
                may_be_empty = to_predict or role == "question"
                columns[role] = [
                    text_of(_joined(value), examples, row, name, may_be_empty=may_be_empty, may_be_number=True)
                    for row, value in enumerate(examples.columns[name])
                ]
        given = _choices(examples, found.choices or ())
        texts = [["" if choice is None else str(choice) for choice in its] for its in given]
        columns["places"] = [[at for at, choice in enumerate(its) if choice.strip()] for its in texts]
        columns["choices"] = [[its[at] for at in places] for its, places in zip(texts, columns["places"], strict=True)]
        for row, its in enumerate(columns["choices"]):
            if len(its) < 2:
                count = f"{len(its)} choice{'s' * (len(its) != 1)}"
                raise DataError(f"found {count}; expected two or more", where=examples.where(row), hint=_MEND)
        if not to_predict:
            assert found.label is not None
            columns["label"] = _labels(examples, found.label, given, self.labels_are)
        return replace(examples, columns=columns, label_names={})

    def with_columns_found(self) -> Self:
        examples = self.read(self.train_split)
        found = self._found(examples)
        assert found.label is not None
        given = _choices(examples, found.choices or ())
        found = replace(found, labels_are=self.labels_are or _kind_of_labels(examples, found.label, given))
        roles = [role for role in ("text", "question", "choices", "label") if getattr(self, role) is None]
        names = {role: getattr(found, role) for role in roles if getattr(found, role) is not None}
        if names:
            shown = [f"{role} = {name if isinstance(name, str) else ','.join(name)}" for role, name in names.items()]
            progress.note(f"columns by their names: {', '.join(shown)}")
        return found

    def _found(self, examples: Examples, *, to_predict: bool = False) -> Self:
        """This recipe with its columns as the data has them: named, or guessed where the names leave no doubt."""
        names = list(examples.columns)
        text, question = self.text or guess_column(names, "context"), self.question
        if self.text is None and question is None:
            # A recipe or a user that names the text alone means no question.
            question = guess_column(names, "question")
            text, question = (question, None) if text is None else (text, question)
        choices = self.choices or _guess_choices(names)
        label = self.label or guess_column(names, "answer")
        named = {"text": text, "question": question, "choices": choices, "label": None if to_predict else label}
        for role, name in named.items():
            if name is not None:
                for column in (name,) if isinstance(name, str) else name:
                    require_column(examples, column, option=f"--{role}")
            elif role != "question" and not (role == "label" and to_predict):
                which, it = f"column is the {role}", f"it: --{role} NAME"
                if role == "choices":
                    which, it = "columns are the choices", "them: --choices A,B,..."
                what = f"no telling which {which}; columns: {', '.join(names[:12])}"
                raise DataError(what, where=examples.source, hint=f"name {it}")
        return replace(self, text=text, question=question, choices=choices, label=label)

    # --- features, model, predictions ---

    def encode(self, examples: Examples, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoding:
        """One feature an example, a sequence each choice: [CLS] text [SEP] question choice [SEP], reading [CLS]."""
        choices: list[list[str]] = examples.columns["choices"]
        sequences = offsets_of(np.fromiter(map(len, choices), dtype=np.int64, count=len(choices)))
        questions = examples.columns.get("question", [""] * len(choices))
        texts = chain.from_iterable([text] * len(its) for text, its in zip(examples.columns["text"], choices, strict=True))
        pairs = [f"{question} {choice}" for question, its in zip(questions, choices, strict=True) for choice in its]
        encoded = tokenizer.encode(list(texts), pairs, max_length=max_length)
        labels = {}
        if labelled:
            positions = [its.index(at) for at, its in zip(examples.columns["label"], examples.columns["places"], strict=True)]
            labels["labels"] = Ragged.column(positions)
        features = Features(
            input_ids=encoded.input_ids,
            token_type_ids=encoded.token_type_ids,
            examples=np.arange(len(choices)),
            sequences=sequences,
            rows=Ragged.column(np.zeros(sequences[-1])),
            labels=labels,
        )
        truncated = int(np.logical_or.reduceat(encoded.truncated, sequences[:-1]).sum())
        return Encoding(features, (f"{truncated} longer than {max_length} truncated",) if truncated else ())

    def build_model(self, config: BertConfig) -> nn.Module:
        from bertkit.model.heads import BertForMultipleChoice

        return BertForMultipleChoice(config)

    def decode(self, outputs: Mapping[str, Sequence[NDArray]], features: Features, examples: Examples) -> list[dict[str, Any]]:
        """One prediction an example: the number of the best choice in the data, its text and probability, and those of all."""
        logits = np.concatenate(outputs["logits"])[:, 0].astype(np.float64)  # (S,)
        probabilities = softmax_of_groups(logits, features.offsets)
        predictions = []
        for (start, end), places, texts in zip(
            pairwise(features.offsets), examples.columns["places"], examples.columns["choices"], strict=True
        ):
            best = int(logits[start:end].argmax())
            of_places = np.zeros(places[-1] + 1)  # 0 for a choice that is empty in the data
            of_places[places] = probabilities[start:end]
            predictions.append(
                {
                    "choice": places[best],
                    "answer": texts[best],
                    "probability": float(probabilities[start + best]),
                    "probabilities": of_places.tolist(),
                }
            )
        return predictions

    def outcomes(self, predictions: Sequence[Mapping[str, Any]]) -> set[Any]:
        return {prediction["choice"] for prediction in predictions}

    def score(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, float | None]:
        """Every metric of the recipe by its name, over numbers of choices."""
        return self.scorer(predictions, examples)(np.arange(len(examples)))

    def scorer(
        self, predictions: Sequence[Mapping[str, Any]], examples: Examples
    ) -> Callable[[NDArray[np.int64]], dict[str, float | None]]:
        predicted, gold = np.array([found["choice"] for found in predictions]), np.array(examples.columns["label"])
        return lambda rows: measured(self.metrics, predicted[rows], gold[rows])

    # --- what a user sees ---

    def describe_labels(self, features: Features, at: int) -> list[dict[int, str]]:
        start, end = features.offsets[at : at + 2]
        right = features.labels["labels"][at][0]
        return [{0: "right"} if choice == right else {} for choice in range(end - start)]

    def wrongness(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> NDArray[np.float64]:
        pairs = zip(predictions, examples.columns["label"], strict=True)
        return np.array([0.0 if found["choice"] == gold else 1.0 - found["probabilities"][gold] for found, gold in pairs])

    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        inputs = [examples.columns[name] for name in ("text", "question") if name in examples.columns]
        return [(*its[:-1], *its[-1]) for its in zip(*inputs, examples.columns["choices"], strict=True)]

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        return [(str(label),) for label in examples.columns["label"]] if "label" in examples.columns else [()] * len(examples)

    def gold(self, examples: Examples) -> list[str]:
        rows = zip(examples.columns["choices"], examples.columns["places"], examples.columns["label"], strict=True)
        return [choices[places.index(label)] for choices, places, label in rows]

    def rows(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[dict[str, Any]]:
        inputs = {name: examples.columns[name] for name in ("text", "question") if name in examples.columns}
        return [{**{name: values[at] for name, values in inputs.items()}, **found} for at, found in enumerate(predictions)]

    def files(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, str]:
        rows = zip(self.rows(predictions, examples), examples.columns["label"], strict=True)
        return {"predictions.jsonl": as_jsonl([{**row, "gold": label} for row, label in rows])}

    def show(self, prediction: Mapping[str, Any], examples: Examples, at: int) -> Text:
        """The text and question, and a line each choice with its probability, the best one marked."""
        inputs = [examples.columns[name][at] for name in ("text", "question") if name in examples.columns]
        shown = plain("\n".join(text for text in inputs if text))
        for place, choice in zip(examples.columns["places"][at], examples.columns["choices"][at], strict=True):
            best = place == prediction["choice"]
            line = f"{'->' if best else '  '} {prediction['probabilities'][place]:4.0%}  {choice}"
            shown.append("\n").append(plain(line).plain, style="bold green" if best else "")
        return shown.append("\n")


# --- columns ---------------------------------------------------------------------------------------------------------------


def _guess_choices(names: Iterable[str]) -> tuple[str, ...] | None:
    """Columns such as ending0, ending1 in the order of their numbers, or the one column with a list; None where in doubt."""
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
    """A list of texts is one text of several lines."""
    return "\n".join(value) if isinstance(value, list) and all(isinstance(line, str) for line in value) else value


def _choices(examples: Examples, columns: Sequence[str]) -> list[list[str | float | None]]:
    """The choices of each row as they stand there: texts, numbers, or nothing."""
    if len(columns) > 1:
        rows: Iterable[Any] = map(list, zip(*(examples.columns[name] for name in columns), strict=True))
    else:
        rows = examples.columns[columns[0]]
    found = []
    for row, given in enumerate(rows):
        if not isinstance(given, list):
            what = f"column {columns[0]!r} holds {'nothing' if given is None else repr(given)}; expected a list of choices"
            raise DataError(what, where=examples.where(row), hint="in a table each choice has its column: --choices A,B,...")
        for at, choice in enumerate(given):
            if not isinstance(choice, (str, int, float, type(None))) or isinstance(choice, bool):
                name = columns[at] if len(columns) > 1 else columns[0]
                what = f"a choice in column {name!r} is {choice!r}; expected text"
                raise DataError(what, where=examples.where(row), hint=_MEND)
        found.append(given)
    return found


# --- labels ----------------------------------------------------------------------------------------------------------------


def _kind_of_labels(examples: Examples, column: str, choices: Sequence[Sequence[Any]]) -> str:
    """Whether labels are "numbers" of choices or their "texts".

    Labels that are all whole numbers are texts only if every one repeats a choice: CODAH has choices such as "2".
    """
    values = examples.columns[column]
    repeated = [_repeated(value, its) for value, its in zip(values, choices, strict=True)]
    numbers = [_number(value) for value in values]
    if None in numbers:
        return "texts"
    if None in repeated:
        return "numbers"
    if numbers != repeated and all(said in range(len(its)) for said, its in zip(numbers, choices, strict=True)):
        what = f"the labels in column {column!r} could be numbers of choices or their texts; taken as texts"
        progress.warn(f"{what} ({examples.source})")
    return "texts"


def _labels(examples: Examples, column: str, choices: Sequence[Sequence[Any]], kind: str | None) -> list[int]:
    """The number of each row's right choice, which a label is, from 0, or whose text it repeats.

    kind: which of the two; None: by these labels alone. Raises DataError with the row for a label that is missing or no choice.
    """
    values = examples.columns[column]
    repeated = [_repeated(value, its) for value, its in zip(values, choices, strict=True)]
    missing = [row for row, (value, at) in enumerate(zip(values, repeated, strict=True)) if at is None and is_missing(value)]
    refuse_missing(missing, examples, column)
    if (kind or _kind_of_labels(examples, column, choices)) == "numbers":
        repeated = [None] * len(values)
    return [
        _place(value, its, examples.where(row)) if at is None else at
        for row, (value, its, at) in enumerate(zip(values, choices, repeated, strict=True))
    ]


def _repeated(value: Any, choices: Sequence[Any]) -> int | None:
    """The number of the first choice that equals a label: both texts, or both numbers."""
    label = str(value).strip()
    same = (isinstance(value, str) == isinstance(choice, str) and label == str(choice).strip() for choice in choices)
    return None if value is None or not label else next((number for number, equal in enumerate(same) if equal), None)


def _place(value: Any, choices: Sequence[Any], where: str) -> int:
    """A label as the number of a choice, from 0."""
    number = _number(value)
    if number is None:
        shown = ", ".join(map(str, choices))
        what = f"the label {value!r} is none of the choices: {shown if len(shown) <= 80 else shown[:77] + '...'}"
        raise DataError(what, where=where, hint="a label is the number of the right choice, from 0, or its text")
    if not 0 <= number < len(choices):
        what = f"label {number} is out of range; expected 0 to {len(choices) - 1}, for {len(choices)} choices"
        raise DataError(what, where=where, hint="labels count from 0: take 1 off each where yours begin at 1")
    if choices[number] is None or not str(choices[number]).strip():
        raise DataError(f"label {number} points at a choice that is empty", where=where, hint=_MEND)
    return number


def _number(value: Any) -> int | None:
    """A whole number, also written as text."""
    if isinstance(value, bool):
        return None
    name = label_name(value).strip()
    return int(float(name)) if re.fullmatch(r"-?[0-9]+(\.0+)?", name) else None  # 1.0, as tables with gaps write it
