"""The targets of text classification: one class, several labels, or a number. C outputs of the model, E examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertkit.features import Ragged
from bertkit.metrics.confident_learning import Judged
from bertkit.model.config import BertConfig
from bertkit.readers import Examples
from bertkit.report import Finding, Table
from bertkit.tasks.baselines import MAJORITY, MEAN, most_frequent
from bertkit.tasks.class_report import describe_calibration, describe_classes, describe_confusions, label_order_warning
from bertkit.tasks.labels import label_ids, scores_of
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.probabilities import sigmoid, softmax
from bertkit.tasks.text_classification.label_sets import label_sets

COLUMN = "label"  # of examples under their standard names
HALF = 0.5  # the default threshold of a label
ENOUGH = 10  # rows with a label, and as many without it, needed to tune its threshold; with fewer it would be chance


@dataclass(frozen=True)
class Target(ABC):
    """Turns labels into targets for the loss, and logits into predictions and arrays for metrics.

    labels: in the order of the model's outputs; empty if these are not classes.
    """

    problem_type: ClassVar[str]
    function_to_apply: ClassVar[str]  # the function that turns logits into predictions: softmax, sigmoid or none
    columns: ClassVar[tuple[str, ...]]  # of `row`
    labels: tuple[str, ...] = ()

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    @property
    def order(self) -> tuple[str, ...]:
        """The labels in the order of `as_array` and tables."""
        return self.labels

    def configure(self, config: BertConfig) -> BertConfig:
        """The architecture with labels and problem_type."""
        return replace(config, id2label=dict(enumerate(self.labels or ("LABEL_0",))), problem_type=self.problem_type)

    def probabilities(self, prediction: Prediction) -> dict[str, float]:
        """The probability of every label."""
        return dict(zip(self.labels, prediction.probabilities.tolist(), strict=True)) if self.labels else {}

    @abstractmethod
    def read(self, examples: Examples) -> list[Any]:
        """The label of each row by name. Raises DataError with the row for a missing or unknown one."""

    @abstractmethod
    def encode(self, labels: Sequence[Any]) -> Ragged:
        """The targets of the loss, a row per example."""

    @abstractmethod
    def decode(self, logits: NDArray[np.float64]) -> list[Prediction]:
        """A prediction per row of (E, C) logits."""

    @abstractmethod
    def average(self, predictions: Sequence[Prediction]) -> Prediction:
        """The prediction from the mean of several predictions' probabilities, or numbers, for the same row."""

    @abstractmethod
    def as_array(self, labels: Sequence[Any]) -> NDArray[Any]:
        """(E, ...) labels as numbers for metrics."""

    def arrays(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """`as_array` of what is predicted, and of what is true."""
        return self.as_array([prediction.value for prediction in predictions]), self.as_array(truth)

    def decide(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        """The predictions, decided by thresholds if there are any."""
        return list(predictions)

    def best_thresholds(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> dict[str, float] | None:
        """The threshold for each label that gives the best F1 on these rows; None for targets without thresholds."""
        return None

    def too_few(self, truth: Sequence[Any]) -> list[str]:
        """The labels with too few of these rows to tune their thresholds."""
        return []

    def tables(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> list[Table | Finding]:
        """What a report of these predictions shows besides scores."""
        return [describe_classes(self.order, *self.arrays(predictions, truth))]

    def constant(self, truth: Sequence[Any]) -> tuple[str, Prediction]:
        """The baseline that predicts the same for every row: its name, and the prediction."""
        return MAJORITY, Prediction(most_frequent(truth))

    def label_order_warning(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> str | None:
        """A warning if other labels for the same outputs would score much better."""
        return None

    def confidences(
        self, predictions: Sequence[Prediction], truth: Sequence[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
        """As in `Task`, for targets with more than one decision in a row; None for others."""
        return None

    @abstractmethod
    def from_array(self, values: NDArray[Any]) -> list[Any]:
        """The inverse of `as_array`: the labels for these numbers."""

    def judge(self, labels: Sequence[Any], probabilities: NDArray[np.float64]) -> dict[str, Judged]:
        """The labels with their (E, C) probabilities, by what they label; several labels are judged one by one."""
        raise NotImplementedError(self.problem_type)

    @abstractmethod
    def error(self, prediction: Prediction, truth: Any) -> float:
        """How wrong a prediction is; 0 if it is right."""

    def certainty(self, prediction: Prediction) -> float:
        """How far the decision is from another one, from 0 to 1: the margin between the two most likely classes."""
        second, first = np.sort(prediction.probabilities)[-2:]
        return float(first - second)

    @abstractmethod
    def describe(self, targets: NDArray[Any]) -> str:
        """A feature's targets in words."""

    @abstractmethod
    def format(self, prediction: Prediction) -> str:
        """A prediction, formatted for display."""

    @abstractmethod
    def row(self, prediction: Prediction) -> dict[str, Any]:
        """A prediction as the fields of an output row."""

    def format_truth(self, truth: Any) -> str:
        """A label, formatted for display."""
        return f"{truth}"

    def as_field(self, truth: Any) -> Any:
        """A label as a field of an output row."""
        return truth


@dataclass(frozen=True)
class Number(Target):
    """Regression: one output, trained on its squared error."""

    problem_type: ClassVar[str] = "regression"
    function_to_apply: ClassVar[str] = "none"
    columns: ClassVar[tuple[str, ...]] = ("prediction",)

    def read(self, examples: Examples) -> list[Any]:
        return scores_of(examples, COLUMN).tolist()

    def encode(self, labels: Sequence[Any]) -> Ragged:
        return Ragged.column(labels, np.float32)

    def decode(self, logits: NDArray[np.float64]) -> list[Prediction]:
        return [Prediction(value) for value in logits[:, 0].tolist()]

    def average(self, predictions: Sequence[Prediction]) -> Prediction:
        return Prediction(float(np.mean([each.value for each in predictions])))

    def as_array(self, labels: Sequence[Any]) -> NDArray[Any]:
        return np.array(labels, dtype=np.float64)

    def tables(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> list[Table | Finding]:
        return []

    def constant(self, truth: Sequence[Any]) -> tuple[str, Prediction]:
        return MEAN, Prediction(float(np.mean(self.as_array(truth))))

    def from_array(self, values: NDArray[Any]) -> list[Any]:
        return values.tolist()

    def error(self, prediction: Prediction, truth: Any) -> float:
        return abs(prediction.value - truth)

    def describe(self, targets: NDArray[Any]) -> str:
        return f"{targets[0]:g}"

    def format(self, prediction: Prediction) -> str:
        return f"{prediction.value:.2f}"

    def row(self, prediction: Prediction) -> dict[str, Any]:
        return {"prediction": prediction.value}


@dataclass(frozen=True)
class OneOf(Target):
    """One class of several. numbered: the classes in the order of the numbers that the data may use; None: it uses names.

    positive: the class that f1 counts; with two classes, it is number 1 for metrics.
    """

    problem_type: ClassVar[str] = "single_label_classification"
    function_to_apply: ClassVar[str] = "softmax"
    columns: ClassVar[tuple[str, ...]] = ("label", "probability")
    numbered: tuple[str, ...] | None = None
    positive: str | None = None

    def read(self, examples: Examples) -> list[Any]:
        order = self.numbered or self.labels
        return [order[number] for number in label_ids(examples, COLUMN, order, by_number=self.numbered is not None)]

    def encode(self, labels: Sequence[Any]) -> Ragged:
        return Ragged.column([self.numbers[label] for label in labels])

    def decode(self, logits: NDArray[np.float64]) -> list[Prediction]:
        probabilities = softmax(logits)
        return [
            Prediction(self.labels[best], float(row[best]), row)
            for best, row in zip(logits.argmax(axis=1).tolist(), probabilities, strict=True)
        ]

    def average(self, predictions: Sequence[Prediction]) -> Prediction:
        row = np.mean([each.probabilities for each in predictions], axis=0)
        return Prediction(self.labels[row.argmax()], float(row.max()), row)

    def as_array(self, labels: Sequence[Any]) -> NDArray[Any]:
        number = {label: number for number, label in enumerate(self.order)}
        return np.array([number[label] for label in labels])

    def tables(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> list[Table | Finding]:
        predicted, references = self.arrays(predictions, truth)
        confusions = describe_confusions(self.order, predicted, references)
        probability = np.array([prediction.probability for prediction in predictions])
        return [*super().tables(predictions, truth), confusions, describe_calibration(probability, predicted == references)]

    def label_order_warning(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> str | None:
        return label_order_warning(self.order, *self.arrays(predictions, truth), self.labels)

    def from_array(self, values: NDArray[Any]) -> list[Any]:
        return [self.order[number] for number in values.tolist()]

    def judge(self, labels: Sequence[Any], probabilities: NDArray[np.float64]) -> dict[str, Judged]:
        return {"label": Judged.of(self.labels, [[label] for label in labels], probabilities)}

    @property
    def order(self) -> tuple[str, ...]:
        """The order of the data, if known."""
        if self.positive is not None and len(self.labels) == 2:
            return (*(label for label in self.labels if label != self.positive), self.positive)
        return self.numbered or self.labels

    def error(self, prediction: Prediction, truth: Any) -> float:
        return 0.0 if prediction.value == truth else 1.0 - float(prediction.probabilities[self.labels.index(truth)])

    def describe(self, targets: NDArray[Any]) -> str:
        return self.labels[targets[0]]

    def format(self, prediction: Prediction) -> str:
        return f"{prediction.value} {prediction.probability:.0%}"

    def row(self, prediction: Prediction) -> dict[str, Any]:
        return {"label": prediction.value, "probability": prediction.probability}


@dataclass(frozen=True)
class AnyOf(Target):
    """Any number of labels, including none; a label is predicted if its probability reaches its threshold."""

    problem_type: ClassVar[str] = "multi_label_classification"
    function_to_apply: ClassVar[str] = "sigmoid"
    columns: ClassVar[tuple[str, ...]] = ("labels", "probabilities")
    thresholds: Mapping[str, float] | None = None

    @property
    def _thresholds(self) -> NDArray[np.float64]:
        """(C,) in the labels' order."""
        return np.array([(self.thresholds or {}).get(label, HALF) for label in self.labels])

    def read(self, examples: Examples) -> list[Any]:
        return label_sets(examples, COLUMN, self.labels)

    def encode(self, labels: Sequence[Any]) -> Ragged:
        targets = self.as_array(labels).astype(np.float32)
        return Ragged(targets.ravel(), np.arange(len(targets) + 1) * len(self.labels))

    def decode(self, logits: NDArray[np.float64]) -> list[Prediction]:
        return self.decide([Prediction(None, None, row) for row in sigmoid(logits)])

    def average(self, predictions: Sequence[Prediction]) -> Prediction:
        (decided,) = self.decide([Prediction(None, None, np.mean([each.probabilities for each in predictions], axis=0))])
        return decided

    def decide(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        """The predictions, with the labels whose probabilities reach their thresholds as values."""
        thresholds = self._thresholds
        return [
            each._replace(value=[self.labels[number] for number in np.flatnonzero(each.probabilities >= thresholds)])
            for each in predictions
        ]

    def as_array(self, labels: Sequence[Any]) -> NDArray[Any]:
        marks = np.zeros((len(labels), len(self.labels)), dtype=np.int64)
        for row, names in enumerate(labels):
            marks[row, [self.numbers[name] for name in names]] = 1
        return marks

    def from_array(self, values: NDArray[Any]) -> list[Any]:
        return [[self.labels[number] for number in np.flatnonzero(row)] for row in values]

    def error(self, prediction: Prediction, truth: Any) -> float:
        if set(prediction.value) == set(truth):
            return 0.0
        return float(np.abs(prediction.probabilities - self.as_array([truth])[0]).sum())

    def describe(self, targets: NDArray[Any]) -> str:
        return ", ".join(self.labels[number] for number in np.flatnonzero(targets)) or "none"

    def format(self, prediction: Prediction) -> str:
        probabilities = self.probabilities(prediction)
        return ", ".join(f"{name} {probabilities[name]:.0%}" for name in prediction.value) or "none"

    def certainty(self, prediction: Prediction) -> float:
        """The smallest distance of a label's probability from its threshold."""
        return float(np.abs(prediction.probabilities - self._thresholds).min())

    def row(self, prediction: Prediction) -> dict[str, Any]:
        return {"labels": prediction.value, "probabilities": self.probabilities(prediction)}

    def format_truth(self, truth: Any) -> str:
        return ", ".join(truth) or "none"

    def as_field(self, truth: Any) -> Any:
        return list(truth)

    def constant(self, truth: Sequence[Any]) -> tuple[str, Prediction]:
        return MAJORITY, Prediction(list(most_frequent(truth)))

    def confidences(
        self, predictions: Sequence[Prediction], truth: Sequence[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The probability of each label, and whether the row has it."""
        probabilities = np.concatenate([prediction.probabilities for prediction in predictions])
        return probabilities, self.as_array(truth).ravel() == 1

    def judge(self, labels: Sequence[Any], probabilities: NDArray[np.float64]) -> dict[str, Judged]:
        names = [(f"not {label}", label) for label in self.labels]
        return {
            pair[1]: Judged.of(pair, [[pair[mark]] for mark in marks], np.stack([1 - column, column], axis=1))
            for pair, marks, column in zip(names, self.as_array(labels).T, probabilities.T, strict=True)
        }

    def best_thresholds(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> dict[str, float]:
        """As in `Target`; 1/2 for labels with too few rows."""
        probabilities, references = np.stack([each.probabilities for each in predictions]), self.as_array(truth)
        few = self.too_few(truth)
        return {
            label: HALF if label in few else best_f1_threshold(probabilities[:, number], references[:, number])
            for number, label in enumerate(self.labels)
        }

    def too_few(self, truth: Sequence[Any]) -> list[str]:
        """The labels that fewer than ENOUGH of these rows have, or that fewer than ENOUGH lack."""
        counts = self.as_array(truth).sum(axis=0).tolist()
        return [label for label, count in zip(self.labels, counts, strict=True) if min(count, len(truth) - count) < ENOUGH]


def best_f1_threshold(probabilities: NDArray[np.float64], references: NDArray[np.int64]) -> float:
    """The threshold with the best F1: halfway between two probabilities, the one nearest to 1/2 if there are several; 1/2 if no
    reference is 1.
    """
    if not references.any():
        return HALF
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    true = np.cumsum(references[order])
    f1 = 2 * true / (np.arange(1, len(references) + 1) + references.sum())
    last_of_equals = np.append(ranked[1:] != ranked[:-1], True)
    thresholds = (ranked + np.append(ranked[1:], 0.0)) / 2
    best = np.flatnonzero(last_of_equals & (f1 >= f1[last_of_equals].max() - 1e-12))
    return float(thresholds[best[np.abs(thresholds[best] - HALF).argmin()]])
