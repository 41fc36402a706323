"""Details of a classifier's scores: each class, confusions, calibration, and whether its labels seem to be in another order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertkit.report import Matrix, Table

_MOST_ROWS = 30  # of a table of classes; with more classes, it shows the worst
_MOST_COLUMNS = 12  # of a confusion matrix; with more classes, the most frequent confusions are listed instead
_MOST_ORDERED = 1000  # labels: the time grows with the cube of their number
_BINS = 15  # of confidence, as in Guo et al. (2017)
_FAR_BETTER = 0.2  # warn if another order of the labels would gain this much accuracy


def describe_classes(
    labels: Sequence[str], predicted: NDArray[Any], references: NDArray[Any], *, of: str = "class", unit: str = "rows"
) -> Table:
    """Precision, recall, F1 and rows of each class. predicted, references: (E,) numbers of classes, or (E, C) of 0 and 1. of,
    unit: the words for a class and for rows.
    """
    if references.ndim == 1:
        sides = (references[references == predicted], predicted, references)
        right, given, rows = (np.bincount(numbers, minlength=len(labels)) for numbers in sides)
    else:
        right, given, rows = ((marks > 0).sum(axis=0) for marks in (references * predicted, predicted, references))
    scores = (right / np.maximum(given, 1), right / np.maximum(rows, 1), 2 * right / np.maximum(given + rows, 1))
    table = [list(row) for row in zip(labels, *(column.tolist() for column in (*scores, rows, given)), strict=True)]
    return lowest_f1_first(of, ["label", "precision", "recall", "f1", unit, "predicted"], table)


def lowest_f1_first(of: str, columns: list[str], rows: list[list[Any]]) -> Table:
    """A table by class. With many classes it shows those with the lowest F1 (fourth column); classes without rows (fifth column
    is 0) come last.
    """
    title = f"by {of}"
    if len(rows) > _MOST_ROWS:
        without = sum(row[4] == 0 for row in rows)
        last = f", the {without} without {columns[4]} last" if without else ""
        title += f": the {_MOST_ROWS} of {len(rows)} with the lowest F1{last}"
        rows = sorted(rows, key=lambda row: (row[4] == 0, row[3]))[:_MOST_ROWS]
    return Table(title, columns, rows)


def describe_confusions(
    labels: Sequence[str], predicted: NDArray[np.int64], references: NDArray[np.int64], *, of: str = "class", unit: str = "rows"
) -> Table:
    """The confusion matrix, or with many classes the most common confusions. of, unit: as in `describe_classes`."""
    if len(labels) <= _MOST_COLUMNS:
        counts = confusion(len(labels), predicted, references)
        rows = [[label, *counts[at].tolist()] for at, label in enumerate(labels)]
        return Matrix(f"confusion matrix (rows: true {of}, columns: predicted {of})", ["", *labels], rows)
    wrong = references != predicted  # the matrix of thousands of classes would be mostly zeros
    pairs, times = np.unique(np.stack([references[wrong], predicted[wrong]]), axis=1, return_counts=True)
    commonest = np.argsort(-times, kind="stable")[:10].tolist()
    rows = [[labels[pairs[0, at]], labels[pairs[1, at]], int(times[at])] for at in commonest]
    return Table("most common confusions", ["true", "predicted", unit], rows)


def describe_calibration(probability: NDArray[np.float64], right: NDArray[np.bool_]) -> Table:
    """Accuracy beside mean confidence; right, probability: (E,) of each prediction."""
    row = [float(right.mean()), float(probability.mean()), calibration_error(probability, right)]
    return Table("calibration", ["accuracy", "mean probability", "expected calibration error"], [row])


def never_predicted(labels: Sequence[str], predicted: NDArray[np.int64], references: NDArray[np.int64]) -> list[str]:
    """The labels that occur in the references but never in the predictions."""
    return [labels[number] for number in np.setdiff1d(references, predicted).tolist()]


def calibration_error(probability: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Expected calibration error (Guo et al., 2017): the mean gap between probability and accuracy over bins of equal width."""
    _, confidence, accuracy = _sums_by_bin(probability, right)
    return float(np.abs(confidence - accuracy).sum() / len(probability))


def describe_reliability(probability: NDArray[np.float64], right: NDArray[np.bool_]) -> Table:
    """Mean confidence and accuracy in each non-empty bin of `calibration_error`; right, probability: (N,) of each decision."""
    counts, *sums = _sums_by_bin(probability, right)
    rows = [
        [f"{at / _BINS:.2f} to {(at + 1) / _BINS:.2f}", int(counts[at]), *(float(each[at] / counts[at]) for each in sums)]
        for at in np.flatnonzero(counts)
    ]
    title = f"reliability: expected calibration error {calibration_error(probability, right):.4f}"
    return Table(title, ["probability", "decisions", "mean probability", "accuracy"], rows)


def _sums_by_bin(probability: NDArray[np.float64], right: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
    """For each bin of confidence, the number of decisions, the sum of their probabilities, and the number of right ones."""
    bins = np.minimum((probability * _BINS).astype(np.int64), _BINS - 1)
    sums = (np.bincount(bins, weights, _BINS) for weights in (np.ones(len(bins)), probability, right.astype(np.float64)))
    return [each.astype(np.float64) for each in sums]


def confusion(count: int, predicted: NDArray[np.int64], references: NDArray[np.int64]) -> NDArray[np.int64]:
    """(C, C): the number of rows by true and predicted class."""
    return np.bincount(references * count + predicted, minlength=count * count).reshape(count, count)


def label_order_warning(
    names: Sequence[str], predicted: ArrayLike, references: ArrayLike, outputs: Sequence[str]
) -> str | None:
    """A warning if another order of the labels would score far better, as for a model that numbers them differently.

    None for more labels than can be ordered in a second or two. predicted, references: (E,) numbers of names. outputs: the
    names in the order of the model's outputs.
    """
    from scipy.optimize import linear_sum_assignment

    different = len(np.unique(np.asarray(predicted)))
    if different < 2 or len(names) > _MOST_ORDERED:  # a constant prediction does not favour any order
        return None
    counts = confusion(len(names), np.asarray(predicted), np.asarray(references))
    rows = counts.sum()
    true, taken = linear_sum_assignment(counts, maximize=True)
    now, best = np.trace(counts) / rows, counts[true, taken].sum() / rows
    if best - now < max(_FAR_BETTER, 4 / rows**0.5):
        return None
    meant = dict(zip(taken.tolist(), true.tolist(), strict=True))
    renamed = {at: names[meant[names.index(name)]] for at, name in enumerate(outputs)}
    return (
        f"the model's labels may be in another order: accuracy {now:.3f} as they are named, {best:.3f} "
        f'with "id2label": {json.dumps(renamed, ensure_ascii=False)} in its config.json'
    )
