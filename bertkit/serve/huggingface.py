"""Hugging Face's form of requests, {"inputs": ..., "parameters": {...}}, and of answers, by family."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from statistics import fmean
from typing import Any

from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples
from bertkit.readers.columns import names_in
from bertkit.runs.inference.language_model import filled_text
from bertkit.runs.inference.predictor import Predictor, Row
from bertkit.tasks.block import are_texts
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.token_classification.tags import spans_of

MOST_FILLS = 100  # tokens of a mask that a request may ask for, and that are computed
MOST_CHARACTERS = 2**24  # of the filled texts in an answer

# --- answers: one row's, from its prediction and the request's parameters ----------------------------------------------------


def _labels(model: Predictor, examples: Examples, row: int, found: Prediction, **parameters: Any) -> list[dict[str, Any]]:
    labels = model.task.labels if model.task is not None else ()
    if not labels:  # a number
        return [{"label": "LABEL_0", "score": found.value}]
    return _ranked(labels, found.probabilities.tolist(), **parameters)


def _choices(model: Predictor, examples: Examples, row: int, found: Prediction, **parameters: Any) -> list[dict[str, Any]]:
    scores = [found.probabilities[place] for place in examples.columns["places"][row]]
    return _ranked(examples.columns["choices"][row], scores, **parameters)


def _ranked(labels: Sequence[str], scores: Sequence[float], top_k: int | None = None, **others: Any) -> list[dict[str, Any]]:
    ranked = sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])
    return [{"label": label, "score": score} for label, score in ranked[:top_k]]


def _entities(
    model: Predictor,
    examples: Examples,
    row: int,
    found: Prediction,
    aggregation_strategy: str = "simple",
    ignore_labels: Sequence[str] = ("O",),
) -> list[dict[str, Any]]:
    shown = model.presentation.row(found, examples, row)
    text, places, tags = shown["text"], shown["offsets"], shown["tags"]
    groups: list[tuple[int, str]] = [(0, tag) for tag in tags]  # of each word: equal neighbours are one
    if aggregation_strategy == "none":
        groups = [*enumerate(tags)]
    elif "entities" in shown:  # the tags follow a scheme
        groups = [(0, "O")] * len(tags)
        for number, (first, end, kind) in enumerate(spans_of(tags)):
            groups[first:end] = [(number, kind)] * (end - first)
    name = "entity" if aggregation_strategy == "none" else "entity_group"
    entities = []
    for (_, label), group in groupby(range(len(tags)), groups.__getitem__):
        words = [*group]
        start, end = places[words[0]][0], places[words[-1]][1]
        if label not in ignore_labels:
            score = fmean(found.probabilities[word] for word in words)
            entities.append({name: label, "score": score, "word": text[start:end], "start": start, "end": end})
    return entities


def _answers(
    model: Predictor,
    examples: Examples,
    row: int,
    found: Prediction,
    top_k: int = 1,
    handle_impossible_answer: bool = True,
) -> Any:
    none_wins = found.details["start"] is None  # the model's own decision comes first
    ranked = sorted(found.details["nbest"], key=lambda each: (each["start"] is None) != none_wins)
    answers = [
        {"answer": each["text"], "score": each["probability"], "start": each["start"] or 0, "end": each["end"] or 0}
        for each in ranked
        if handle_impossible_answer or each["start"] is not None
    ]
    answers = answers or [{"answer": "", "score": 0.0, "start": 0, "end": 0}]  # of an empty context
    return answers[0] if top_k == 1 else answers[:top_k]


def _fills(model: Predictor, examples: Examples, row: int, found: Prediction, top_k: int = 5, **targets: Any) -> Any:
    text, tokenizer = examples.columns["text"][row], model.pretrained.tokenizer
    mask = tokenizer.mask_token
    if not (masks := found.details["fills"]):
        raise DataError(f"no {mask} in the text, or none in its first {model.max_length} tokens")
    times = sum(len(fills[:top_k]) for fills in masks)
    if times * len(text) > MOST_CHARACTERS:
        what = f"the answer would repeat the text of {len(text)} characters {times} times, once for each fill of each {mask}"
        raise DataError(what, hint="send a shorter text, or ask for fewer fills")
    answers = [
        [
            {
                "score": fill["probability"],
                "token": tokenizer.vocab[fill["token"]],
                "token_str": fill["token"],
                "sequence": filled_text(text, [*[[{"token": mask}]] * place, [fill]], mask),
            }
            for fill in fills[:top_k]
        ]
        for place, fills in enumerate(masks)
    ]
    return answers[0] if len(answers) == 1 else answers


# --- the tables --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """The requests and answers of a family. task: its name at Hugging Face. parameters: the ones that are supported. listed:
    whether a single row's answer is a list, as `InferenceClient.text_classification` expects.
    """

    task: str
    answer: Callable[..., Any]
    parameters: tuple[str, ...]
    listed: bool = False


_FORMS = {
    form.task: form
    for form in (
        Form("text-classification", _labels, ("top_k", "function_to_apply"), listed=True),
        Form("multiple-choice", _choices, ("top_k",), listed=True),
        Form("token-classification", _entities, ("aggregation_strategy", "ignore_labels")),
        Form("question-answering", _answers, ("top_k", "handle_impossible_answer")),
        Form("fill-mask", _fills, ("top_k", "targets")),
    )
}
_EXAMPLES: dict[str, Any] = {
    "text": "I was charged twice for the same lamp.",
    "text_pair": "Where is my parcel?",
    "question": "Who drew the lamp?",
    "context": "The lamp was drawn by Sara Lindqvist in Turku.",
    "choices": ["Sara", "nobody"],
}
# By parameter: a check of its value, and the values in words.
_PARAMETERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "top_k": (lambda value: type(value) is int and value > 0, "a whole number from 1"),
    "function_to_apply": (lambda value: isinstance(value, str), "a function name"),  # which one is served depends on the model
    "aggregation_strategy": (lambda value: value in ("none", "simple", "first"), "none, simple or first"),
    "ignore_labels": (are_texts, "a list of labels"),
    "handle_impossible_answer": (lambda value: isinstance(value, bool), "true or false"),
    "targets": (lambda value: are_texts(value) and 0 < len(value) <= MOST_FILLS, f"a list of 1 to {MOST_FILLS} tokens"),
}


@dataclass(frozen=True)
class Served:
    """A model with the name under which it is served."""

    name: str
    predictor: Predictor

    @cached_property
    def form(self) -> Form:
        """The form of its family."""
        return _FORMS["fill-mask" if self.predictor.task is None else self.predictor.task.family]

    @cached_property
    def columns(self) -> dict[str, str | tuple[str, ...]]:
        """The columns of a row by role, as named in training; several if each choice has its own column."""
        return {"text": "text"} if self.predictor.task is None else self.predictor.task.input_columns

    @property
    def labels(self) -> list[str]:
        """Its labels in the model's order; empty for a family without labels."""
        return [] if self.predictor.task is None else [*self.predictor.task.labels]

    @property
    def needs_pairs(self) -> bool:
        """Whether it was trained on pairs of texts; models of other tools do not say so."""
        return self.predictor.task is not None and self.predictor.task.needs_pairs

    @property
    def multi_label(self) -> bool:
        """Whether a text may have several labels, each with a probability of its own."""
        return self.predictor.task is not None and self.predictor.task.function_to_apply == "sigmoid"

    @property
    def mask_token(self) -> str | None:
        """The token that it fills in; None for a model of another task."""
        return self.predictor.pretrained.tokenizer.mask_token if self.predictor.task is None else None

    @property
    def explains(self) -> bool:
        """Whether it can explain why a text has its label."""
        return self.form.task == "text-classification" and self.predictor.precision.name != "int8"

    def parameters(self, given: Any) -> dict[str, Any]:
        """The given parameters that are not null. Raises UsageError for one that is not served, and for a wrong value."""
        if not isinstance(given, dict | None):
            raise UsageError(f"parameters is {reprlib.repr(given)}; expected an object")
        found = {name: value for name, value in (given or {}).items() if value is not None}
        if found.get("truncation") is True:  # as it always is
            del found["truncation"]
        for name, value in found.items():
            if name not in self.form.parameters:
                served = ", ".join(self.form.parameters)
                raise UsageError(f"the parameter {name!r} is not supported for {self.form.task}; expected {served}")
            fits, expected = _PARAMETERS[name]
            if not fits(value):
                raise UsageError(f"{name} is {reprlib.repr(value)}; expected {expected}")
        if "targets" in self.form.parameters and found.get("top_k", 0) > MOST_FILLS:
            raise UsageError(f"top_k is {found['top_k']}; expected at most {MOST_FILLS}")
        if self.predictor.task is not None and "function_to_apply" in found:
            applied = self.predictor.task.function_to_apply
            if found["function_to_apply"] != applied:
                raise UsageError(f"function_to_apply is {found['function_to_apply']!r}; expected {applied}, as in training")
        vocab = self.predictor.pretrained.tokenizer.vocab
        if unknown := [token for token in found.get("targets", ()) if token not in vocab]:
            raise UsageError(f"the target {unknown[0]!r} is not in the model's vocabulary")
        return found

    @property
    def example(self) -> Any:
        """An example input of the model's kind."""
        if self.mask_token is not None:
            return f"The {self.mask_token} is closed."
        row = {role: _EXAMPLES[role] for role in self.columns if role in _EXAMPLES}
        return row if self.needs_pairs or not self.reads_strings else row["text"]

    @property
    def reads_strings(self) -> bool:
        """Whether a row may be a single string, its text."""
        return not {"context", "choices"} & {*self.columns}

    @cached_property
    def expected(self) -> str:
        """What a row is, in words."""
        names = ", ".join(f'"{role}"' for role in self.columns)
        row = f"an object with {names}"
        return f"a string, or {row}" if self.reads_strings else row

    def unread(self, row: Mapping[str, Any]) -> list[str]:
        """The columns of a row that the model does not read."""
        names = {*chain.from_iterable(names_in([name]) if isinstance(name, str) else name for name in self.columns.values())}
        return [name for name in row if name not in self.columns and name not in names]

    def rows(self, inputs: Any, known: Iterable[Served] = (), *, pairs: bool = False) -> tuple[list[Row], bool]:
        """The rows of a request, and whether it is a single row rather than a list.

        known: models to suggest for a row of another task. pairs: a list of texts is a pair, as in
        text-embeddings-inference; otherwise each is a row. Raises DataError.
        """
        is_row = not isinstance(inputs, list) or (pairs and are_texts(inputs))
        if inputs in ([], None):
            raise DataError('the request has no inputs; expected {"inputs": ...} with at least one row')
        if is_row:
            return [self._row(inputs, "inputs", known)], True
        return [self._row(each, f"inputs[{place}]", known) for place, each in enumerate(inputs)], False

    def _row(self, given: Any, where: str, known: Iterable[Served]) -> Row:
        """A row under the column names of training, from roles such as text and text_pair. where: its place in the request."""
        if isinstance(given, list) and len(given) <= 2 and self.form.task == "text-classification":
            if len(given) == 2 and "text_pair" not in self.columns:
                what = f"{where} is a pair; {self.name!r} reads single texts"
                raise DataError(f'{what}, several of them as [["one"], ["another"]]')
            if len(given) == 1 and self.needs_pairs:
                raise DataError(f"{where} is a single text; {self.name!r} reads pairs")
            given = dict(zip(("text", "text_pair"), given, strict=False))
        if (isinstance(given, str) and self.reads_strings) or ("tokens" in self.columns and are_texts(given)):
            return given
        if not isinstance(given, dict):
            raise DataError(f"{where} is {reprlib.repr(given)}; expected {self.expected}")
        if unread := self.unread(given):
            what = f"{where} has {unread[0]!r}; {self.name!r} is for {self.form.task}, and reads {', '.join(self.columns)}"
            other = next((each for each in known if each.form != self.form and not each.unread(given)), None)
            raise DataError(what + (f"; for {other.form.task}: POST /models/{other.name}" if other is not None else ""))
        if {"text", "tokens"} <= {role for role, name in self.columns.items() if {role, name} & {*given}}:
            raise DataError(f"{where} has both a text and tokens; expected one of them")
        row: dict[str, Any] = {}
        taken: set[str] = set()
        for role, value in given.items():
            name: Any = self.columns.get(role, role)
            columns = names_in([name]) if isinstance(name, str) else {*name}
            if twice := columns & taken:
                raise DataError(f"{where} gives {min(twice)!r} twice: by this name, and as one of {', '.join(self.columns)}")
            taken |= columns
            if isinstance(name, str):
                row[name] = value
            elif isinstance(value, list) and len(value) <= len(name):
                row |= dict.fromkeys(name) | dict(zip(name, value, strict=False))
            else:
                raise DataError(f"{where}: {role} is {value!r}; expected a list of at most {len(name)} texts")
        return row

    def answers(self, examples: Examples, predictions: Sequence[Prediction], parameters: Mapping[str, Any]) -> list[Any]:
        """One answer for each row. Raises DataError for a row without an answer."""
        rows = enumerate(predictions)
        return [self.form.answer(self.predictor, examples, row, each, **parameters) for row, each in rows]
