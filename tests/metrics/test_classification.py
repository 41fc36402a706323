"""Metrics against cases worked by hand and formulas written out in numpy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from bertkit.errors import UsageError
from bertkit.metrics.classification import (
    METRICS,
    accuracy,
    f1,
    find_metric,
    greater_is_better,
    load_metrics,
    macro_f1,
    matthews_correlation,
    mean_squared_error,
    measured,
    pearson,
    spearmanr,
)
from bertkit.tasks import TextClassification


def arrays(*values):
    return tuple(np.array(v) for v in values)


# predictions, references: 3 true positives, 1 false positive, 2 false negatives, 4 true negatives of class 1
BINARY = arrays([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_by_hand():
    assert macro_f1(*arrays([2, 2, 2, 0], [0, 1, 2, 0])) == pytest.approx((2 / 3 + 0 + 2 / 4) / 3)
    assert (f1(*arrays([0, 0, 1, 2], [0, 0, 2, 1])), f1(*arrays([1, 2, 0], [1, 0, 2]))) == (0, 1)  # of class 1
    assert accuracy(*BINARY) == pytest.approx(0.7)
    assert f1(*BINARY) == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert macro_f1(*BINARY) == pytest.approx((6 / 9 + 8 / 11) / 2)
    assert matthews_correlation(*BINARY) == pytest.approx((3 * 4 - 1 * 2) / np.sqrt(4 * 5 * 5 * 6))
    assert mean_squared_error(*arrays([1.0, 2.0, 3.0], [1.0, 0.0, 4.5])) == pytest.approx((0 + 4 + 2.25) / 3)
    assert pearson(*arrays([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])) == pytest.approx(3 / np.sqrt(2 * 14 / 3))
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert spearmanr(*arrays([1.0, 5.0, 5.0, 9.0], [1.0, 2.0, 30.0, 400.0])) == pytest.approx(4.5 / np.sqrt(4.5 * 5))


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


def slips(predictions, references):
    return float((predictions != references).sum())


slips.greater_is_better = False


@pytest.mark.parametrize(
    ("metric", "better", "noted"),
    [
        (METRICS["accuracy"], True, False),
        (METRICS["mean_squared_error"], False, False),
        (slips, False, False),
        (lambda predictions, references: 0.0, True, False),
        (find_metric("evaluate:mae"), False, False),
        (find_metric("evaluate:some/brier_score"), False, False),
        (find_metric("evaluate:./wer.py"), False, False),
        (find_metric("evaluate:rouge"), True, True),  # of which lower might be better
    ],
)
def test_whether_a_higher_score_is_better(monkeypatch, metric, better, noted):
    assert greater_is_better(metric) is better
    assert TextClassification(metrics=(metric,)).greater_is_better is better
    monkeypatch.setattr("bertkit.metrics.classification._load", lambda name: None)
    note = load_metrics([metric])
    assert (note is not None and metric.__name__ in note) is noted


def test_metrics_by_name():
    assert all(find_metric(name) is metric and metric.__name__ == name for name, metric in METRICS.items())
    assert len(METRICS) == 8
    with pytest.raises(UsageError):
        find_metric("acuracy")


def test_a_metric_that_fails_or_is_not_finite():
    def failing(predictions, references):
        raise ValueError("no")

    with pytest.raises(UsageError) as raised:
        measured([failing], *BINARY)
    assert "failing" in raised.value.what
    assert measured([accuracy, slips, lambda p, r: np.inf], *BINARY) == {"accuracy": 0.7, "slips": 3.0, "<lambda>": None}
