"""The bootstrap: confidence intervals of scores (Efron and Tibshirani, 1993).

Rows are drawn with replacement, as many as there are; the interval is from the 2.5th to the 97.5th percentile of their scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000  # the ends of an interval are then accurate to about 1/30 of its width
FEWER = 300  # for tables of many intervals

Scorer = Callable[[NDArray[np.int64]], dict[str, float | None]]


def difference(score: float | None, other: float | None) -> float | None:
    """score - other; None if one of them is undefined."""
    return None if score is None or other is None else score - other


def resampled(count: int, resamples: int | None = None, rng: np.random.Generator | None = None) -> Iterator[NDArray[np.int64]]:
    """`resamples` draws of `count` rows, by default RESAMPLES. rng: default: a new one with seed 0, so that all scores see the
    same draws.
    """
    rng = rng or np.random.default_rng(0)
    return (rng.integers(0, count, count) for _ in range(RESAMPLES if resamples is None else resamples))


def intervals(scorer: Scorer, draws: Iterable[NDArray[np.int64]]) -> dict[str, tuple[float, float] | None]:
    """The 95% interval of each score, as `score_interval` gives it. draws: from `resampled`."""
    drawn = [scorer(rows) for rows in draws]
    names = dict.fromkeys(name for scores in drawn for name in scores)
    return {name: score_interval([scores.get(name) for scores in drawn]) for name in names}


def score_interval(values: Sequence[float | None]) -> tuple[float, float] | None:
    """`interval`; also None if it has no width, as for one row or when all rows are right: it then says nothing about the
    uncertainty.
    """
    bounds = interval(values)
    return None if bounds is None or bounds[0] == bounds[1] else bounds


def interval(values: Sequence[float | None]) -> tuple[float, float] | None:
    """The middle 95% of the defined values; None if there are none."""
    known = [value for value in values if value is not None and not np.isnan(value)]
    if not known:
        return None
    low, high = np.quantile(known, [0.025, 0.975]).tolist()
    return low, high
