"""Learning curves: the curve is scipy's, its intervals hold what they promise, and noise is not drawn as a curve."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import curve_fit

from bertkit.metrics.bootstrap import resampled
from bertkit.metrics.learning_curve import describe_curve, extrapolate

pytestmark = pytest.mark.all_draws

SIZES = [250, 500, 1000]


@pytest.mark.parametrize(("a", "b", "c"), [(0.1, 2.0, 0.5), (0.05, 0.8, 0.2), (0.0, 3.0, 0.4), (0.2, 0.0, 1.0)])
def test_a_curve_is_continued(a: float, b: float, c: float) -> None:
    sizes = np.array([100, 200, 400, 800])
    found = extrapolate(sizes.tolist(), np.array([a + b * sizes**-c, a + b * sizes**-c + 0.1]), 1600)
    assert found == pytest.approx([a + b * 1600**-c, a + b * 1600**-c + 0.1], abs=2e-3)


def test_noisy_errors_are_fitted_as_scipy_fits_them() -> None:
    rng = np.random.default_rng(0)
    sizes = np.array([100, 200, 400, 800, 1600])
    errors = 0.1 + 2 * sizes**-0.5 + rng.normal(0, 0.002, (20, 5))

    def curve(n: np.ndarray, a: float, b: float, c: float) -> np.ndarray:
        return a + b * n**-c

    expected = [
        curve(3200, *curve_fit(curve, sizes, row, p0=(0.1, 2, 0.5), bounds=([0, 0, 0.05], [1, 99, 2]))[0]) for row in errors
    ]
    assert extrapolate(sizes.tolist(), errors, 3200) == pytest.approx(expected, abs=1e-3)


def right(errors: list[float], rows: int, seeds: int, rng: np.random.Generator) -> list[list[Callable]]:
    """Scorers of accuracy at each size, of models that are wrong so often, on rows some of which are harder than others."""
    hard = rng.random(rows)

    def scorer(error: float) -> Callable:
        is_right = np.where(rng.random(rows) < 0.5, hard, rng.random(rows)) >= error
        return lambda drawn: {"accuracy": float(is_right[drawn].mean()), "other": 0.5}

    return [[scorer(error) for _ in range(seeds)] for error in errors]


def described(errors: list[float], *, rows: int = 400, seeds: int = 3, seed: int = 0, **more: bool) -> dict:
    rng = np.random.default_rng(seed)
    return describe_curve(SIZES[: len(errors)], right(errors, rows, seeds, rng), rows, resampled(rows, 200, rng), **more)


def test_the_truth_is_within_the_interval_as_often_as_promised() -> None:
    curve = [0.1 + 2 * n**-0.5 for n in (*SIZES, 2000)]
    found = [described(curve[:3], seed=seed) for seed in range(40)]
    shown = [each["twice"] for each in found if "twice" in each]
    assert len(shown) > 30
    assert sum(low <= 1 - curve[3] <= high for low, high in (each["interval"] for each in shown)) >= 0.85 * len(shown)
    assert np.mean([each["score"] for each in shown]) == pytest.approx(1 - curve[3], abs=0.02)
    assert all(each["gain_interval"][0] <= each["gain"] for each in shown)
    assert {each["rows"] for each in shown} == {2000}


def test_points_have_the_mean_of_their_seeds() -> None:
    rng = np.random.default_rng(3)
    scorers = right([0.3, 0.2, 0.1], 300, 2, rng)
    points = describe_curve(SIZES, scorers, 300, resampled(300, 200, rng))["points"]
    means = [np.mean([one(np.arange(300))["accuracy"] for one in of_size]) for of_size in scorers]
    assert [each["score"] for each in points] == pytest.approx(means)
    for mean, each in zip(means, points):
        low, high = each["interval"]
        assert low < mean < high
        assert high - low == pytest.approx(2 * 1.96 * np.sqrt(mean * (1 - mean) / 300), rel=0.5)


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ([0.2, 0.2, 0.2], "does not clearly improve"),
        ([0.1, 0.2, 0.3], "does not clearly improve"),
        ([0.4, 0.2], "needs 3 shares"),
    ],
)
def test_what_cannot_be_said_is_not_shown(errors: list[float], reason: str) -> None:
    found = described(errors)
    assert reason in found["not_shown"]
    assert "twice" not in found
    assert len(found["points"]) == len(errors)


def test_a_score_without_a_best_value_of_1_is_not_continued() -> None:
    scorers = [[lambda rows, n=n: {"points": float(n + rows.mean())}] for n in (10, 20, 30)]
    assert "best value" in describe_curve(SIZES, scorers, 50, resampled(50, 20, np.random.default_rng(0)))["not_shown"]


def test_an_undefined_score_has_no_points() -> None:
    undefined = {"points": [], "not_shown": "the score is undefined"}
    scorers = [[lambda rows: {"pearson": None}]] * 3
    assert describe_curve(SIZES, scorers, 50, resampled(50, 20, np.random.default_rng(0))) == undefined
    scorers = [[lambda rows: {"pearson": None if len({*rows.tolist()}) == 50 else 0.5}]] * 3  # no draw has each row once
    assert describe_curve(SIZES, scorers, 50, resampled(50, 20, np.random.default_rng(0))) == undefined


def test_draws_without_a_score_are_left_out() -> None:
    scorers = [[lambda rows: {"f1": None if 0 in rows and len({*rows.tolist()}) < 50 else 0.5}]] * 3
    points = describe_curve(SIZES, scorers, 50, resampled(50, 50, np.random.default_rng(0)))["points"]
    assert [(point["score"], point["interval"]) for point in points] == [(0.5, None)] * 3, "an interval has a width"


def test_an_error_falls_where_lower_is_better() -> None:
    rng = np.random.default_rng(0)
    losses = [rng.normal(mean, 0.1, 400) for mean in (3.0, 2.0, 1.5)]
    scorers = [[lambda rows, each=each: {"mean_squared_error": float(each[rows].mean())}] for each in losses]
    found = describe_curve(SIZES, scorers, 400, resampled(400, 100, rng), greater_is_better=False)
    assert 1.0 < found["twice"]["score"] < 1.5
    assert found["twice"]["gain"] < 0
