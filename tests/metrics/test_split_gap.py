"""The gap between two splits: its interval is that of a mean over all runs."""

from __future__ import annotations

import pytest

from bertkit.metrics.split_gap import compare_splits, draws_of

pytestmark = pytest.mark.all_draws


def test_the_gaps_interval_is_that_of_a_mean_over_all_runs() -> None:
    """Of 16 runs with gaps of 1 and -1 in turn the mean has a standard error of 1/4, whatever rows are drawn."""
    runs = [[lambda rows, gap=gap: {"accuracy": gap}, lambda rows: {"accuracy": 0.0}] for gap in (1.0, -1.0) * 8]
    found = compare_splits(runs, [5, 7], draws_of(16, [5, 7]))["accuracy"]
    assert (found["dev"], found["held_out"], found["difference"]) == (0, 0, 0)
    assert found["interval"] == pytest.approx((-0.5, 0.5), abs=0.13)  # by steps of 1/8
