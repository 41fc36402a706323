"""Tables of classes against scikit-learn: the confusion matrix and the reliability of probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix

from bertkit.report import Matrix
from bertkit.tasks.class_report import calibration_error, describe_confusions, describe_reliability


@pytest.mark.parametrize("classes", [2, 5, 12])
def test_the_confusion_matrix_is_scikit_learns(classes: int) -> None:
    rng = np.random.default_rng(classes)
    gold, found = rng.integers(0, classes, 300), rng.integers(0, classes, 300)
    names = [f"class {number}" for number in range(classes)]
    table = describe_confusions(names, found, gold)
    assert isinstance(table, Matrix)
    assert table.columns == ["", *names]
    assert [row[0] for row in table.rows] == names
    assert [row[1:] for row in table.rows] == confusion_matrix(gold, found).tolist()
    assert type(table._replace(title="dev: confusions")) is Matrix


@pytest.mark.parametrize("rows", [1, 7, 2000])
def test_reliability_is_scikit_learns(rows: int) -> None:
    rng = np.random.default_rng(rows)
    probability = rng.uniform(0.2, 1.0, rows)
    right = rng.random(rows) < probability**2
    table = describe_reliability(probability, right)
    accuracy, confidence = calibration_curve(right, probability, n_bins=15)
    assert [row[3] for row in table.rows] == pytest.approx(accuracy)
    assert [row[2] for row in table.rows] == pytest.approx(confidence)
    assert sum(row[1] for row in table.rows) == rows
    for named, _, mean, _ in table.rows:
        low, high = map(float, named.split(" to "))
        assert low - 0.005 <= mean <= high + 0.005
    assert table.title == f"reliability: expected calibration error {calibration_error(probability, right):.4f}"


def test_a_probability_of_one_is_in_the_last_bin() -> None:
    table = describe_reliability(np.array([1.0, 0.0, 1.0]), np.array([True, False, False]))
    assert table.rows == [["0.00 to 0.07", 1, 0.0, 0.0], ["0.93 to 1.00", 2, 1.0, 0.5]]
