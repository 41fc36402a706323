"""The bootstrap: what scores would have been on other rows of the same kind (Efron and Tibshirani, 1993).

Rows are drawn with replacement, as many as there are; the 2.5th and the 97.5th percentile of what they score are the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit import progress

RESAMPLES = 1000  # draws, which fix the ends of an interval to about a thirtieth of its width

Scorer = Callable[[NDArray[np.int64]], Mapping[str, float | None]]


def resampled(count: int, resamples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Drawn rows of `count`, so many times, with a progress bar."""
    with progress.bar("resample", resamples) as bar:
        for _ in range(resamples):
            yield rng.integers(0, count, count)
            bar.advance(1)


def intervals(scorer: Scorer, count: int, *, resamples: int, seed: int = 0) -> dict[str, tuple[float, float] | None]:
    """The 95% interval of each score of `count` rows; None for one that is defined on no draw."""
    drawn = [scorer(rows) for rows in resampled(count, resamples, np.random.default_rng(seed))]
    names = dict.fromkeys(name for scores in drawn for name in scores)
    return {name: interval([scores.get(name) for scores in drawn]) for name in names}


def interval(values: Sequence[float | None]) -> tuple[float, float] | None:
    """The middle 95% of the values that are defined; None where none is."""
    known = [value for value in values if value is not None and not np.isnan(value)]
    if not known:
        return None
    low, high = np.quantile(known, [0.025, 0.975]).tolist()
    return low, high
