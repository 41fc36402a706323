"""What a text is classified by: one class, several labels at once, or a number. C outputs of the model, E examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.features import Ragged
from bertkit.model.config import THRESHOLDS_KEY, BertConfig
from bertkit.readers import Examples
from bertkit.tasks.labels import label_ids, scores_of
from bertkit.tasks.probabilities import sigmoid, softmax
from bertkit.tasks.text_classification.label_sets import label_sets

COLUMN = "label"  # of examples under their standard names
HALF = 0.5  # the threshold of a label that has none of its own

Predictions = Sequence[Mapping[str, Any]]


class Target(ABC):
    """From labels in the data to targets of the loss, and from logits to predictions and what metrics compare."""

    @abstractmethod
    def of(self, examples: Examples) -> Ragged:
        """The targets of the loss, a row each example. Raises DataError with the row for a label that is none."""

    @abstractmethod
    def configured(self, config: BertConfig) -> BertConfig:
        """The architecture with labels and problem_type."""

    @abstractmethod
    def decode(self, logits: NDArray[np.float64]) -> list[dict[str, Any]]:
        """A prediction each row of (E, C) logits."""

    @abstractmethod
    def predicted(self, predictions: Predictions) -> NDArray[Any]:
        """(E, ...) what metrics are given of predictions."""

    @abstractmethod
    def gold(self, examples: Examples) -> NDArray[Any]:
        """(E, ...) what metrics are given of the data."""

    @abstractmethod
    def outcome(self, prediction: Mapping[str, Any]) -> Any:
        """What is predicted, to tell predictions apart."""

    @abstractmethod
    def describe(self, targets: NDArray[Any]) -> str:
        """A feature's targets in words."""

    @abstractmethod
    def said(self, prediction: Mapping[str, Any]) -> str:
        """A prediction for a person."""

    @abstractmethod
    def row(self, prediction: Mapping[str, Any]) -> dict[str, Any]:
        """What is written of a prediction."""

    @abstractmethod
    def truths(self, examples: Examples) -> list[Any]:
        """What each row should be called, as it is written."""

    @abstractmethod
    def wrongness(self, predictions: Predictions, examples: Examples) -> NDArray[np.float64]:
        """(E,) how wrong each prediction is; 0 where it is right."""

    def probabilities(self, prediction: Mapping[str, Any]) -> dict[str, float]:
        """The probability of every label."""
        return {}


@dataclass(frozen=True)
class Number(Target):
    """Regression: one output, compared by its square error."""

    def of(self, examples: Examples) -> Ragged:
        return Ragged.column(scores_of(examples, COLUMN), np.float32)

    def configured(self, config: BertConfig) -> BertConfig:
        return replace(config, id2label={0: "LABEL_0"}, problem_type="regression")

    def decode(self, logits: NDArray[np.float64]) -> list[dict[str, Any]]:
        return [{"prediction": value} for value in logits[:, 0].tolist()]

    def predicted(self, predictions: Predictions) -> NDArray[Any]:
        return np.array([found["prediction"] for found in predictions])

    def gold(self, examples: Examples) -> NDArray[Any]:
        return scores_of(examples, COLUMN)

    def outcome(self, prediction: Mapping[str, Any]) -> Any:
        return prediction["prediction"]

    def describe(self, targets: NDArray[Any]) -> str:
        return f"{targets[0]:g}"

    def said(self, prediction: Mapping[str, Any]) -> str:
        return f"{prediction['prediction']:.2f}"

    def row(self, prediction: Mapping[str, Any]) -> dict[str, Any]:
        return dict(prediction)

    def truths(self, examples: Examples) -> list[Any]:
        return self.gold(examples).tolist()

    def wrongness(self, predictions: Predictions, examples: Examples) -> NDArray[np.float64]:
        return np.abs(self.predicted(predictions) - self.gold(examples))


@dataclass(frozen=True)
class _Labelled(Target):
    """labels: in the order of their numbers in the data. outputs: the same in the order of the model's."""

    labels: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def in_outputs(self) -> NDArray[np.int64]:
        """(C,) the output of each label."""
        return np.array([self.outputs.index(label) for label in self.labels])

    def probabilities(self, prediction: Mapping[str, Any]) -> dict[str, float]:
        return dict(zip(self.outputs, prediction["probabilities"].tolist(), strict=True))


@dataclass(frozen=True)
class OneOf(_Labelled):
    """One class of several. by_number: whether the data may give a label's number instead of its name."""

    by_number: bool = True

    def of(self, examples: Examples) -> Ragged:
        return Ragged.column(self.in_outputs[self.gold(examples)])

    def configured(self, config: BertConfig) -> BertConfig:
        return replace(config, id2label=dict(enumerate(self.outputs)), problem_type="single_label_classification")

    def decode(self, logits: NDArray[np.float64]) -> list[dict[str, Any]]:
        probabilities = softmax(logits)
        return [
            {"label": self.outputs[best], "probability": float(row[best]), "probabilities": row}
            for best, row in zip(logits.argmax(axis=1).tolist(), probabilities, strict=True)
        ]

    def predicted(self, predictions: Predictions) -> NDArray[Any]:
        number = {name: at for at, name in enumerate(self.labels)}  # in the data's order: f1 is that of class 1
        return np.array([number[found["label"]] for found in predictions])

    def gold(self, examples: Examples) -> NDArray[Any]:
        return label_ids(examples, COLUMN, self.labels, by_number=self.by_number)

    def outcome(self, prediction: Mapping[str, Any]) -> Any:
        return prediction["label"]

    def describe(self, targets: NDArray[Any]) -> str:
        return self.outputs[targets[0]]

    def said(self, prediction: Mapping[str, Any]) -> str:
        return f"{prediction['label']} {prediction['probability']:.0%}"

    def row(self, prediction: Mapping[str, Any]) -> dict[str, Any]:
        return {name: prediction[name] for name in ("label", "probability")}

    def truths(self, examples: Examples) -> list[Any]:
        return [self.labels[number] for number in self.gold(examples)]

    def wrongness(self, predictions: Predictions, examples: Examples) -> NDArray[np.float64]:
        gold = self.gold(examples)
        of_gold = _stacked(predictions)[np.arange(len(gold)), self.in_outputs[gold]]
        return np.where(self.predicted(predictions) == gold, 0.0, 1.0 - of_gold)


@dataclass(frozen=True)
class AnyOf(_Labelled):
    """Any number of labels, none of them among it; one is predicted where its probability reaches its threshold."""

    thresholds: tuple[float, ...] | None = None  # in the order of labels

    def of(self, examples: Examples) -> Ragged:
        gold = self.gold(examples)
        targets = np.zeros_like(gold, dtype=np.float32)
        targets[:, self.in_outputs] = gold
        return Ragged(targets.ravel(), np.arange(len(gold) + 1) * len(self.outputs))

    def configured(self, config: BertConfig) -> BertConfig:
        own = {} if self.thresholds is None else {THRESHOLDS_KEY: dict(zip(self.labels, self.thresholds, strict=True))}
        return replace(
            config,
            id2label=dict(enumerate(self.outputs)),
            problem_type="multi_label_classification",
            extra=config.extra | own,
        )

    def decode(self, logits: NDArray[np.float64]) -> list[dict[str, Any]]:
        probabilities = sigmoid(logits)
        return [
            {"labels": [self.outputs[at] for at in np.flatnonzero(reached)], "probabilities": row}
            for reached, row in zip(self._reached(probabilities), probabilities, strict=True)
        ]

    def _reached(self, probabilities: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(..., C) whether each output's probability reaches its threshold."""
        thresholds = np.full(len(self.outputs), HALF)
        thresholds[self.in_outputs] = self.thresholds or HALF
        return probabilities >= thresholds

    def predicted(self, predictions: Predictions) -> NDArray[Any]:
        # by these thresholds, whatever those were by which the predictions were made
        return self._reached(_stacked(predictions))[:, self.in_outputs].astype(np.int64)

    def gold(self, examples: Examples) -> NDArray[Any]:
        return label_sets(examples, COLUMN, self.labels)

    def outcome(self, prediction: Mapping[str, Any]) -> Any:
        return tuple(self._reached(prediction["probabilities"]).tolist())

    def describe(self, targets: NDArray[Any]) -> str:
        return ", ".join(self.outputs[at] for at in np.flatnonzero(targets)) or "none"

    def said(self, prediction: Mapping[str, Any]) -> str:
        of = self.probabilities(prediction)
        return ", ".join(f"{name} {of[name]:.0%}" for name in prediction["labels"]) or "none"

    def row(self, prediction: Mapping[str, Any]) -> dict[str, Any]:
        return {"labels": prediction["labels"], "probabilities": self.probabilities(prediction)}

    def truths(self, examples: Examples) -> list[Any]:
        return [[self.labels[at] for at in np.flatnonzero(row)] for row in self.gold(examples)]

    def wrongness(self, predictions: Predictions, examples: Examples) -> NDArray[np.float64]:
        gold = self.gold(examples)
        distance = np.abs(_stacked(predictions)[:, self.in_outputs] - gold).sum(axis=1)
        return np.where((self.predicted(predictions) == gold).all(axis=1), 0.0, distance)

    def tuned(self, predictions: Predictions, examples: Examples) -> AnyOf:
        """This with the threshold of each label that has the best F1 on these rows."""
        of_label = _stacked(predictions)[:, self.in_outputs].T
        pairs = zip(of_label, self.gold(examples).T, strict=True)
        return replace(self, thresholds=tuple(best_threshold(*pair) for pair in pairs))


def _stacked(predictions: Predictions) -> NDArray[np.float64]:
    """(E, C) the probabilities, in the order of the outputs."""
    return np.stack([found["probabilities"] for found in predictions])


def best_threshold(probabilities: NDArray[np.float64], gold: NDArray[np.int64]) -> float:
    """The threshold at which "at least so much" has the best F1; in the middle of the gap that it lies in, of several the
    nearest to 1/2. 1/2 where nothing is gold.
    """
    if not gold.any():
        return HALF
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    true = np.cumsum(gold[order])
    f1 = 2 * true / (np.arange(1, len(gold) + 1) + gold.sum())
    last_of_equals = np.append(ranked[1:] != ranked[:-1], True)
    thresholds = (ranked + np.append(ranked[1:], 0.0)) / 2
    best = np.flatnonzero(last_of_equals & (f1 >= f1[last_of_equals].max() - 1e-12))
    return float(thresholds[best[np.abs(thresholds[best] - HALF).argmin()]])
