"""The gap between the scores of several runs on two splits, with its interval by a bootstrap over runs and rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.metrics import bootstrap
from bertkit.metrics.bootstrap import Scorer, difference, interval


class Draw(NamedTuple):
    """Runs, and rows of each split, drawn with replacement: as many as there are."""

    runs: NDArray[np.int64]
    rows: list[NDArray[np.int64]]


def draws_of(runs: int, counts: Sequence[int]) -> Iterator[Draw]:
    """bootstrap.RESAMPLES draws from this number of runs, and from `counts` rows by split."""
    rng = np.random.default_rng(0)
    for _ in range(bootstrap.RESAMPLES):
        drawn = rng.integers(0, runs, runs)
        yield Draw(drawn, [rng.integers(0, count, count) for count in counts])


def compare_splits(
    scorers: Sequence[Sequence[Scorer]], counts: Sequence[int], draws: Iterable[Draw]
) -> dict[str, dict[str, Any]]:
    """For each score: its mean over runs on two splits, `dev` and `held_out`, the difference, and its 95% interval.

    scorers: for each run, one per split. counts: of rows, by split. draws: from `draws_of`.
    """

    def means(runs: Iterable[int], rows: Sequence[NDArray[np.int64]]) -> list[dict[str, float | None]]:
        """The mean scores, by split."""
        scored = [[score(of_split) for score, of_split in zip(scorers[run], rows, strict=True)] for run in runs]
        return [{name: _mean([scores.get(name) for scores in of]) for name in of[0]} for of in zip(*scored, strict=True)]

    whole = means(range(len(scorers)), [np.arange(count) for count in counts])
    drawn = [means(draw.runs, draw.rows) for draw in draws]
    found = {}
    for name in whole[0]:
        dev, held_out = (scores.get(name) for scores in whole)
        differences = [difference(of_dev.get(name), of_held_out.get(name)) for of_dev, of_held_out in drawn]
        found[name] = {
            "dev": dev,
            "held_out": held_out,
            "difference": difference(dev, held_out),
            "interval": interval(differences),
        }
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
