"""Metrics over a whole split at once: one function each, with scikit-learn and scipy, and no network.

Each takes predictions and references of equal shape (N,) and gives a number, or None where it is not defined.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bertkit.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

Metric = Callable[["NDArray[Any]", "NDArray[Any]"], "float | None"]


def accuracy(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """The share of predictions that are right."""
    from sklearn.metrics import accuracy_score

    return _score(lambda: accuracy_score(references, predictions), predictions, references)


def f1(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """F1 of class 1 against all others, as GLUE scores MRPC and QQP; 0 where that class occurs on neither side."""
    from sklearn.metrics import f1_score

    return _score(lambda: f1_score(references == 1, predictions == 1, zero_division=0), predictions, references)


def macro_f1(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """The mean of each class's F1, over the classes in the predictions or references."""
    from sklearn.metrics import f1_score

    return _score(lambda: f1_score(references, predictions, average="macro", zero_division=0), predictions, references)


def matthews_correlation(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """Matthews' correlation coefficient, for any number of classes; 0 where one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    return _score(lambda: matthews_corrcoef(references, predictions), predictions, references)


def pearson(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """Pearson's correlation; None where one side is constant."""
    from scipy.stats import pearsonr

    if len(references) < 2:
        return None
    return _score(lambda: pearsonr(predictions, references).statistic, predictions, references)


def spearmanr(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """Spearman's rank correlation, ties by their mean rank; None where one side is constant."""
    from scipy import stats

    if len(references) < 2:
        return None
    return _score(lambda: stats.spearmanr(predictions, references).statistic, predictions, references)


def mean_squared_error(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """The mean of the squared differences."""
    from sklearn import metrics

    return _score(lambda: metrics.mean_squared_error(references, predictions), predictions, references)


METRICS: dict[str, Metric] = {
    metric.__name__: metric for metric in (accuracy, f1, macro_f1, matthews_correlation, pearson, spearmanr, mean_squared_error)
}


LOWER_IS_BETTER = ("mean_squared_error",)


def find_metric(name: str) -> Metric:
    """The metric of a name. Raises UsageError."""
    if name not in METRICS:
        raise UsageError(f"no metric {name!r}", hint=did_you_mean(name, METRICS))
    return METRICS[name]


def _score(compute: Callable[[], float], predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """What `compute` gives, or None where there are no rows, a value is not finite, or the result is not defined."""
    import numpy as np

    assert predictions.shape == references.shape, f"{predictions.shape} predictions, {references.shape} references"
    if not len(references) or not all(np.isfinite(a).all() for a in (predictions, references) if a.dtype.kind == "f"):
        return None
    with warnings.catch_warnings():
        # scipy and scikit-learn warn of constant input and of a single class; the result says as much.
        warnings.simplefilter("ignore")
        value = float(compute())
    return value if np.isfinite(value) else None
