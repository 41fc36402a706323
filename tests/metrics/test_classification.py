"""Metrics against cases worked by hand and formulas written out in numpy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from bertkit import progress
from bertkit.errors import UsageError
from bertkit.metrics.classification import (
    METRICS,
    accuracy,
    check_metrics,
    f1,
    find_metric,
    greater_is_better,
    macro_f1,
    matthews_correlation,
    mean_squared_error,
    pearson,
    spearmanr,
)
from bertkit.tasks import TextClassification


def arrays(*values):
    return tuple(np.array(v) for v in values)


# predictions, references: 3 true positives, 1 false positive, 2 false negatives, 4 true negatives of class 1
BINARY = arrays([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_by_hand():
    assert accuracy(*BINARY) == pytest.approx(0.7)
    assert f1(*BINARY) == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert macro_f1(*BINARY) == pytest.approx((6 / 9 + 8 / 11) / 2)
    assert matthews_correlation(*BINARY) == pytest.approx((3 * 4 - 1 * 2) / np.sqrt(4 * 5 * 5 * 6))
    assert mean_squared_error(*arrays([1.0, 2.0, 3.0], [1.0, 0.0, 4.5])) == pytest.approx((0 + 4 + 2.25) / 3)
    assert pearson(*arrays([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])) == pytest.approx(3 / np.sqrt(2 * 14 / 3))
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert spearmanr(*arrays([1.0, 5.0, 5.0, 9.0], [1.0, 2.0, 30.0, 400.0])) == pytest.approx(4.5 / np.sqrt(4.5 * 5))


def test_which_argument_is_the_reference():
    # F1 and Matthews are symmetric for two classes; the macro mean over a class that only one side has is too.
    predictions, references = arrays([2, 2, 2, 0], [0, 1, 2, 0])
    assert macro_f1(predictions, references) == pytest.approx((2 / 3 + 0 + 2 / 4) / 3)
    assert accuracy(predictions, references) == pytest.approx(0.5)


def test_f1_is_that_of_class_one():
    assert f1(*arrays([0, 0, 1, 2], [0, 0, 2, 1])) == 0
    assert f1(*arrays([1, 2, 0], [1, 0, 2])) == 1


def numpy_f1(predictions, references, positive):
    hits = np.sum((predictions == positive) & (references == positive))
    wrong = np.sum((predictions == positive) != (references == positive))
    return 0.0 if not hits else 2 * hits / (2 * hits + wrong)


def numpy_matthews(predictions, references):
    """Gorodkin's R_K of the confusion matrix (2004), which for two classes is Matthews' coefficient."""
    size = int(max(predictions.max(), references.max())) + 1
    matrix = np.zeros((size, size))
    np.add.at(matrix, (references, predictions), 1)
    total, right = matrix.sum(), np.trace(matrix)
    true, said = matrix.sum(1), matrix.sum(0)
    below = np.sqrt(total**2 - said @ said) * np.sqrt(total**2 - true @ true)
    return (right * total - true @ said) / below


def ranks(values):
    return np.array([np.mean(np.flatnonzero(np.sort(values) == v)) for v in values])


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_classes_against_numpy(classes, seed):
    rng = np.random.default_rng(seed)
    references = rng.integers(classes, size=200)
    predictions = np.where(rng.random(200) < 0.5, references, rng.integers(classes, size=200))
    assert accuracy(predictions, references) == pytest.approx(np.mean(predictions == references))
    assert f1(predictions, references) == pytest.approx(numpy_f1(predictions, references, 1))
    mean = np.mean([numpy_f1(predictions, references, c) for c in np.union1d(predictions, references)])
    assert macro_f1(predictions, references) == pytest.approx(mean)
    assert matthews_correlation(predictions, references) == pytest.approx(numpy_matthews(predictions, references))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(5))
def test_numbers_against_numpy(dtype, seed):
    rng = np.random.default_rng(seed)
    references = np.round(rng.random(100) * 5, 1).astype(dtype)
    predictions = np.round(references + rng.normal(size=100), 1).astype(dtype)
    tolerance = 1e-4 if dtype is np.float32 else 1e-9
    assert pearson(predictions, references) == pytest.approx(np.corrcoef(predictions, references)[0, 1], rel=tolerance)
    assert spearmanr(predictions, references) == pytest.approx(
        np.corrcoef(ranks(predictions), ranks(references))[0, 1], rel=tolerance
    )
    assert mean_squared_error(predictions, references) == pytest.approx(np.mean((predictions - references) ** 2), rel=tolerance)


def test_constants():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same, other = arrays([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
        for metric in (pearson, spearmanr):
            assert metric(same, other) is None
            assert metric(other, same) is None
            assert metric(same, same) is None
        ones, mixed = arrays([1, 1, 1], [0, 1, 1])
        assert matthews_correlation(ones, mixed) == matthews_correlation(mixed, ones) == matthews_correlation(ones, ones) == 0
        assert f1(*arrays([0, 0], [0, 0])) == 0
        assert macro_f1(ones, ones) == 1


@pytest.mark.parametrize("name", METRICS)
def test_never_nan(name):
    metric = METRICS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metric(*arrays([], [])) is None
        one = metric(*arrays([1], [1]))
        assert one is None or np.isfinite(one)
        assert type(metric(*BINARY)) is float
        if name in ("pearson", "spearmanr", "mean_squared_error"):
            for bad in (np.nan, np.inf):
                assert metric(*arrays([1.0, bad, 2.0], [1.0, 2.0, 3.0])) is None
                assert metric(*arrays([1.0, 2.0, 3.0], [1.0, bad, 2.0])) is None
    with pytest.raises(AssertionError):
        metric(*arrays([1, 0], [1, 0, 1]))


@pytest.mark.parametrize(
    ("name", "better"),
    [("accuracy", True), ("mean_squared_error", False), ("evaluate:mae", False), ("evaluate:some/brier_score", False)]
    + [("evaluate:./wer.py", False), ("evaluate:rouge", True)],
)
def test_whether_more_is_better(name, better):
    assert greater_is_better(find_metric(name)) is better


def test_a_metric_of_ones_own_says_what_is_better():
    def slips(predictions, references):
        return float((predictions != references).sum())

    assert greater_is_better(slips)
    slips.greater_is_better = False
    assert not TextClassification(metrics=(slips,)).greater_is_better


def test_a_metric_that_lower_might_be_better_of_is_said(monkeypatch):
    monkeypatch.setattr("bertkit.metrics.classification._load", lambda name: None)
    for name, said in (("evaluate:rouge", "the best step is that of the highest evaluate:rouge: "), ("evaluate:mae", "")):
        with progress.console.capture() as found:
            check_metrics([find_metric(name)])
        assert found.get().replace("\n", " ").startswith(said)
        assert bool(found.get()) is bool(said)


def test_metrics_by_name():
    assert all(find_metric(name) is metric and metric.__name__ == name for name, metric in METRICS.items())
    assert len(METRICS) == 8
    with pytest.raises(UsageError) as caught:
        find_metric("acuracy")
    assert caught.value.hint == "did you mean accuracy?; those of the evaluate library are evaluate:NAME"
