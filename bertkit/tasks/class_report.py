"""What one score hides of a classifier: each class, what is taken for what, how far its probabilities can be believed, and
whether its labels are in another order than their names say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MOST_ROWS = 30  # of a table of classes; of more the worst are shown
_MOST_COLUMNS = 12  # of a confusion matrix; of more classes the commonest confusions are listed
_BINS = 15  # of confidence, as Guo et al. (2017) have them
_FAR_BETTER = 0.2  # of accuracy, which another order of the labels must add to be worth a word


class Table(NamedTuple):
    """A table for a person; cells that are floats are shown with four decimals."""

    title: str
    columns: list[str]
    rows: list[list[Any]]


def describe_classes(labels: Sequence[str], predicted: NDArray[Any], gold: NDArray[Any]) -> Table:
    """Precision, recall, F1 and rows of each class; (E,) numbers of classes, or (E, C) of 0 and 1."""
    from sklearn.metrics import precision_recall_fscore_support

    numbers = list(range(len(labels)))
    if gold.ndim == 1:
        gold, predicted = (classes[:, None] == np.array(numbers) for classes in (gold, predicted))
    each = [precision_recall_fscore_support(gold[:, at], predicted[:, at], labels=[1], zero_division=0) for at in numbers]
    precision, recall, f1, rows = np.array(each)[:, :, 0].T
    given = predicted.sum(axis=0)
    table: list[list[Any]] = [
        [label, float(precision[at]), float(recall[at]), float(f1[at]), int(rows[at]), int(given[at])]
        for at, label in enumerate(labels)
    ]
    title = "by class"
    if len(table) > _MOST_ROWS:
        table = sorted(table, key=lambda row: row[3])[:_MOST_ROWS]
        title = f"by class: the {_MOST_ROWS} of {len(labels)} with the lowest F1"
    return Table(title, ["label", "precision", "recall", "f1", "rows", "predicted"], table)


def describe_confusions(labels: Sequence[str], predicted: NDArray[np.int64], gold: NDArray[np.int64]) -> Table:
    """The confusion matrix, or of many classes the commonest confusions."""
    counts = confusion(len(labels), predicted, gold)
    if len(labels) <= _MOST_COLUMNS:
        rows = [[label, *counts[at].tolist()] for at, label in enumerate(labels)]
        return Table("confusion matrix: a row each true class, a column each predicted one", ["", *labels], rows)
    np.fill_diagonal(counts, 0)
    commonest = np.argsort(-counts, axis=None, kind="stable")[:10]
    pairs = zip(*np.unravel_index(commonest, counts.shape), strict=True)
    rows = [[labels[true], labels[taken], int(counts[true, taken])] for true, taken in pairs if counts[true, taken]]
    return Table("commonest confusions", ["true", "predicted", "rows"], rows)


def describe_calibration(probability: NDArray[np.float64], right: NDArray[np.bool_]) -> Table:
    """How often it is right beside how sure it is of its answers, (E,) each."""
    row = [float(right.mean()), float(probability.mean()), calibration_error(probability, right)]
    return Table("calibration", ["right", "mean probability", "expected calibration error"], [row])


def calibration_error(probability: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Expected calibration error (Guo et al., 2017): the mean distance of probability and accuracy over bins of equal width."""
    bins = np.minimum((probability * _BINS).astype(np.int64), _BINS - 1)
    distance = np.bincount(bins, probability, _BINS) - np.bincount(bins, right.astype(np.float64), _BINS)
    return float(np.abs(distance).sum() / len(probability))


def confusion(count: int, predicted: NDArray[np.int64], gold: NDArray[np.int64]) -> NDArray[np.int64]:
    """(C, C) rows by true class and predicted one."""
    return np.bincount(gold * count + predicted, minlength=count * count).reshape(count, count)


def doubt_order(names: Sequence[str], predicted: ArrayLike, gold: ArrayLike, outputs: Sequence[str]) -> list[str]:
    """A line where another order of the labels scores far better, as of a model that numbers them otherwise; else none.

    predicted, gold: (E,) numbers of names. outputs: which of the names the model's outputs have.
    """
    from scipy.optimize import linear_sum_assignment

    if len(np.unique(np.asarray(predicted))) < 2:  # a model that says one thing says it of no label in particular
        return []
    counts = confusion(len(names), np.asarray(predicted), np.asarray(gold))
    rows = counts.sum()
    true, taken = linear_sum_assignment(counts, maximize=True)
    now, best = np.trace(counts) / rows, counts[true, taken].sum() / rows
    if best - now < max(_FAR_BETTER, 4 / rows**0.5):
        return []
    meant = dict(zip(taken.tolist(), true.tolist(), strict=True))
    renamed = {at: names[meant[names.index(name)]] for at, name in enumerate(outputs)}
    return [
        f"the model's labels may be in another order: accuracy {now:.3f} as they are named, {best:.3f} "
        f'with "id2label": {json.dumps(renamed, ensure_ascii=False)} in its config.json'
    ]
