"""Learning curves: error = a + b * rows^-c (Hestness et al., 2017, "Deep Learning Scaling is Predictable, Empirically")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.metrics.bootstrap import Scorer, score_interval

EXPONENTS = np.linspace(0.05, 2, 79)  # of c; Hestness et al. find 0.07 to 0.35, and at most 0.5 is expected in theory
FEWEST = 3  # sizes, for three unknowns


def extrapolate(sizes: Sequence[int], errors: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """(B,) the errors expected at `rows` rows, by curves fitted to (B, S) errors at S sizes: least squares, a and b >= 0."""
    best, expected = np.full(len(errors), np.inf), np.zeros(len(errors))
    centred = errors - errors.mean(axis=1, keepdims=True)
    for exponent in EXPONENTS:
        x = (np.asarray(sizes) / rows) ** -exponent
        slope = centred @ (x - x.mean()) / ((x - x.mean()) ** 2).sum()
        floor = errors.mean(axis=1) - slope * x.mean()
        slope = np.where(floor < 0, errors @ x / (x @ x), slope)
        floor = np.where(slope < 0, errors.mean(axis=1), np.maximum(floor, 0))
        slope = np.maximum(slope, 0)
        loss = ((floor[:, None] + slope[:, None] * x - errors) ** 2).sum(axis=1)
        expected = np.where(loss < best, floor + slope, expected)  # x is 1 there
        best = np.minimum(best, loss)
    return expected


def describe_curve(
    sizes: Sequence[int],
    scorers: Sequence[Sequence[Scorer]],
    rows: int,
    draws_of_rows: Iterable[NDArray[np.int64]],
    *,
    greater_is_better: bool = True,
) -> dict[str, Any]:
    """`points`: the first score at each size, with its interval; and `twice`: the score expected at twice the last size, and
    the gain, each with its interval, or `not_shown`: why there is no estimate.

    scorers: by size and seed, all on the same `rows` rows. draws_of_rows: from `resampled`, the same for all sizes; each draw
    also resamples the seeds of each size.
    """
    rng = np.random.default_rng(0)
    drawn = (_mean_scores(scorers, each, rng) for each in draws_of_rows)
    scores = np.array([_mean_scores(scorers, np.arange(rows), None), *drawn])
    if np.isnan(scores[0]).any():
        return {"points": [], "not_shown": "the score is undefined"}
    scores = scores[~np.isnan(scores).any(axis=1)]  # one may be undefined on some draws
    found: dict[str, Any] = {"points": [{"rows": n, **_described(of_size)} for n, of_size in zip(sizes, scores.T, strict=True)]}
    errors = 1 - scores if greater_is_better else scores
    fallen = score_interval((errors[1:, 0] - errors[1:, -1]).tolist())
    if len(sizes) < FEWEST:
        found["not_shown"] = f"a curve needs {FEWEST} shares or more"
    elif (errors < 0).any():
        found["not_shown"] = "only a score whose best value is 1, or 0 if lower is better, can be extrapolated"
    elif fallen is None or fallen[0] <= 0:
        found["not_shown"] = "the score does not clearly improve with more rows"
    else:
        now, twice = (extrapolate(sizes, errors, many * sizes[-1]) for many in (1, 2))
        gain = _described(now - twice if greater_is_better else twice - now)
        found["twice"] = {
            "rows": 2 * sizes[-1],
            **_described(1 - twice if greater_is_better else twice),
            "gain": gain["score"],
            "gain_interval": gain["interval"],
        }
    return found


def _described(scores: NDArray[np.float64]) -> dict[str, Any]:
    """A score, the first of `scores`, and its 95% interval from the draws after it, if it has a width."""
    return {"score": float(scores[0]), "interval": score_interval(scores[1:].tolist())}


def _mean_scores(
    scorers: Sequence[Sequence[Scorer]], rows: NDArray[np.int64], rng: np.random.Generator | None
) -> NDArray[np.float64]:
    """(S,) the first score on some rows, for each size: the mean over its seeds, or over as many drawn from them by `rng`."""
    means = []
    for of_size in scorers:
        seeds = range(len(of_size)) if rng is None else rng.integers(0, len(of_size), len(of_size))
        scores = {seed: next(iter(of_size[seed](rows).values())) for seed in set(seeds)}
        means.append(np.mean([np.nan if scores[seed] is None else scores[seed] for seed in seeds]))
    return np.array(means)
