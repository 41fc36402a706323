"""Metrics over a whole split at once: one function each, with scikit-learn and scipy, and no network.

Each takes predictions and references of equal shape (N,) and returns a number, or None if it is undefined.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from bertkit.errors import MachineError, UsageError, UserError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

Metric = Callable[["NDArray[Any]", "NDArray[Any]"], "float | None"]


def _scored(compute: Metric) -> Metric:
    """The metric as a float; None if there are no rows, a value is not finite, or the result is undefined."""

    @wraps(compute)
    def metric(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
        import numpy as np

        assert predictions.shape == references.shape, f"{predictions.shape} predictions, {references.shape} references"
        if not len(references) or not all(np.isfinite(a).all() for a in (predictions, references) if a.dtype.kind == "f"):
            return None
        with warnings.catch_warnings():
            # scipy and scikit-learn warn of constant input and of a single class; the result shows it.
            warnings.simplefilter("ignore")
            value = compute(predictions, references)
        return float(value) if value is not None and np.isfinite(value) else None

    return metric


@_scored
def accuracy(predictions: NDArray[Any], references: NDArray[Any]) -> float:
    """The share of correct predictions; for (N, C) as in `micro_f1`, of rows with all C correct."""
    return (predictions == references).reshape(len(references), -1).all(axis=1).mean()


@_scored
def f1(predictions: NDArray[Any], references: NDArray[Any]) -> float:
    """F1 of class 1 against all others, as GLUE scores MRPC and QQP; 0 if that class occurs on neither side."""
    return _f1_of_columns((predictions == 1)[:, None], (references == 1)[:, None])[0]


@_scored
def macro_f1(predictions: NDArray[Any], references: NDArray[Any]) -> float:
    """The mean F1 over the classes in predictions or references; for (N, C) as in `micro_f1`, over all C."""
    import numpy as np

    if references.ndim == 1:
        classes = np.union1d(predictions, references)
        predictions, references = predictions[:, None] == classes, references[:, None] == classes  # (N, C)
    return _f1_of_columns(predictions, references).mean()


@_scored
def micro_f1(predictions: NDArray[Any], references: NDArray[Any]) -> float:
    """F1 of the labels of all rows together; with one class per row, the accuracy. Also for (N, C), 1 if a row has a label."""
    if references.ndim == 1:
        return (predictions == references).mean()
    return _f1_of_columns(predictions.reshape(-1, 1), references.reshape(-1, 1))[0]


def _f1_of_columns(predictions: NDArray[Any], references: NDArray[Any]) -> NDArray[Any]:
    """(C,) F1 of the ones in each column of (N, C), 0 if there are none; for one column scikit-learn counts zeros too."""
    import numpy as np

    right, marked = (predictions & references).sum(axis=0), predictions.sum(axis=0) + references.sum(axis=0)
    return 2 * right / np.maximum(marked, 1)


@_scored
def matthews_correlation(predictions: NDArray[Any], references: NDArray[Any]) -> float:
    """Matthews' correlation coefficient, for any number of classes; 0 if one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    return matthews_corrcoef(references, predictions)


@_scored
def pearson(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """Pearson's correlation; None if one side is constant."""
    from scipy import stats

    return stats.pearsonr(predictions, references).statistic if len(references) > 1 else None


@_scored
def spearmanr(predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    """Spearman's rank correlation, ties by their mean rank; None if one side is constant."""
    from scipy import stats

    return stats.spearmanr(predictions, references).statistic if len(references) > 1 else None


@_scored
def mean_squared_error(predictions: NDArray[Any], references: NDArray[Any]) -> float:
    """The mean of the squared differences."""
    from sklearn import metrics

    return metrics.mean_squared_error(references, predictions)


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (accuracy, f1, macro_f1, micro_f1, matthews_correlation, pearson, spearmanr, mean_squared_error)
}


def can_be_resampled(metrics: Iterable[Metric]) -> bool:
    """Whether all metrics are those above: others may take long, or fail on some draws of the rows."""
    return all(metric in METRICS.values() for metric in metrics)


# Names in the evaluate library and scikit-learn too; a user's function can set greater_is_better = False.
LOWER_IS_BETTER = {
    *("mean_squared_error", "mse", "rmse", "mean_absolute_error", "mae", "mean_absolute_percentage_error", "mape", "smape"),
    *("mase", "max_error", "brier_score", "log_loss", "hamming_loss", "zero_one_loss", "perplexity", "wer", "cer", "ter"),
}
CLASS_METRICS = (accuracy, f1, macro_f1, micro_f1, matthews_correlation)
REGRESSION_METRICS = (pearson, spearmanr, mean_squared_error)
MULTI_LABEL_METRICS = (micro_f1, macro_f1, accuracy)
TAG_METRICS = (accuracy, macro_f1, micro_f1, matthews_correlation)


EVALUATE = "evaluate:"  # prefix of metrics of the evaluate library


def find_metric(name: str) -> Metric:
    """A metric by its name; evaluate:NAME is one of the evaluate library or a script of that form. Raises UsageError."""
    if name.startswith(EVALUATE):
        return OfEvaluate(name)
    if name not in METRICS:
        hint = f"{did_you_mean(name, METRICS)} (those of the evaluate library are {EVALUATE}NAME)"
        raise UsageError(f"no metric {name!r}", hint=hint)
    return METRICS[name]


def greater_is_better(metric: Metric) -> bool:
    """Whether a higher score is better."""
    name = metric.__name__.removeprefix(EVALUATE).rpartition("/")[2]
    return getattr(metric, "greater_is_better", name not in LOWER_IS_BETTER)


_SHARES = re.compile(r"(\w+_)?(accuracy|f1|exact|exact_match|precision|recall)(_(?!thresh$).+)?")
_CORRELATIONS = ("matthews_correlation", "pearson", "spearmanr")


def range_of(score: str) -> tuple[float, float]:
    """The minimum and maximum possible values of one of our scores. score: its name, "split/metric"."""
    name = score.rpartition("/")[2]
    if _SHARES.fullmatch(name):
        return 0.0, 1.0
    if name in _CORRELATIONS:
        return -1.0, 1.0
    if name.endswith("perplexity"):
        return 1.0, math.inf
    return 0.0 if name in LOWER_IS_BETTER or name.endswith("loss") else -math.inf, math.inf


def refuse_others(metrics: Sequence[Metric], fitting: Sequence[Metric], what: str) -> None:
    """Raise UsageError for a metric of METRICS that does not fit; what: the kind of prediction."""
    if other := next((metric for metric in metrics if metric in METRICS.values() and metric not in fitting), None):
        hint = f"expected --metric {' or '.join(metric.__name__ for metric in fitting)}"
        hint += "; to predict numbers, add --regression" if fitting is CLASS_METRICS else ""
        raise UsageError(f"the metric {other.__name__} does not score {what}", hint=hint)


def load_metrics(metrics: Sequence[Metric]) -> str | None:
    """Load metrics of the evaluate library; returns a note if one decides the best step. Raises MachineError, UsageError."""
    for metric in metrics:
        if isinstance(metric, OfEvaluate):
            _load(metric.name)
    if metrics and isinstance(metrics[0], OfEvaluate) and greater_is_better(metrics[0]):
        return f"the best step is the one with the highest {metrics[0].__name__}: if lower is better, name another metric first"
    return None


def metric_path(name: str) -> str:
    """The name of a metric, valid from any folder: for a script, its absolute path."""
    script = Path(name.removeprefix(EVALUATE))
    return f"{EVALUATE}{script.resolve()}" if name.startswith(EVALUATE) and script.suffix == ".py" else name


def source_hash(metric: Metric) -> str | None:
    """sha256 of the code of a user's metric, with functions of its module that it calls, or of its script; None for ours."""
    if metric in METRICS.values():
        return None
    if isinstance(metric, OfEvaluate):
        script = Path(metric.name.removeprefix(EVALUATE))
        return sha256(script.read_bytes()).hexdigest() if script.suffix == ".py" and script.is_file() else None
    functions, sources = [inspect.unwrap(metric)], {}
    while functions:
        function = functions.pop()
        if isinstance(function, FunctionType) and function not in sources:
            with suppress(OSError, TypeError):
                sources[function] = inspect.getsource(function)
                beside = (function.__globals__.get(name) for name in function.__code__.co_names)
                functions += [each for each in beside if getattr(each, "__module__", None) == function.__module__]
    return sha256("".join(sorted(sources.values())).encode()).hexdigest() if sources else None


def measured(metrics: Sequence[Metric], predictions: NDArray[Any], references: NDArray[Any]) -> dict[str, float | None]:
    """The score of each metric by its name; None if it is not finite. Raises UsageError if a user's metric fails."""
    return {metric.__name__: _measured(metric, predictions, references) for metric in metrics}


def _measured(metric: Metric, predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
    try:
        value = metric(predictions, references)
        number = None if value is None else float(value)
    except UserError:
        raise
    except Exception as error:
        hint = "it gets two arrays of equal shape and returns a number, or None if it is undefined"
        raise UsageError(f"the metric {metric.__name__} fails: {_one_line(error)}", hint=hint) from None
    return number if number is not None and math.isfinite(number) else None


@dataclass(frozen=True)
class OfEvaluate:
    """The first of the scores that a metric of the evaluate library, or a script of that form, computes."""

    name: str  # evaluate:NAME, or evaluate:PATH of a script

    @property
    def __name__(self) -> str:
        return EVALUATE + Path(self.name.removeprefix(EVALUATE)).stem if self.name.endswith(".py") else self.name

    def __call__(self, predictions: NDArray[Any], references: NDArray[Any]) -> float | None:
        found = _load(self.name).compute(predictions=predictions.tolist(), references=references.tolist())
        return next(iter(found.values()))


@cache
def _load(name: str) -> Any:
    import evaluate
    from huggingface_hub import constants

    evaluate.config.HF_EVALUATE_OFFLINE |= constants.HF_HUB_OFFLINE  # the library heeds only a variable of its own
    module = name.removeprefix(EVALUATE)
    if not module.startswith((".", os.sep)) and not module.endswith(".py") and Path(module).exists():
        what = f"the metric {name} is one of the evaluate library, but the folder {module} would be executed in its place"
        raise UsageError(what, hint=f"to execute it, name it {EVALUATE}./{module}; or run the command in another folder")
    try:
        return evaluate.load(module)
    except Exception as error:  # the library and its scripts can raise anything
        what = f"the metric {name} cannot be loaded: {_one_line(error)}"
        raise MachineError(what, hint="without a network give the path of its script: evaluate:./my_metric.py") from None


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
