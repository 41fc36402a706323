"""Softmax in float64, over the same number of logits per row or over groups of any size; and the logistic function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

_TINY = 1e-300


def softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """(..., C) probabilities over the last axis; 0 where all its logits are -inf."""
    logits = np.asarray(logits, dtype=np.float64)
    highest = logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(logits - np.where(np.isfinite(highest), highest, 0))
    return exponentials / np.maximum(exponentials.sum(axis=-1, keepdims=True), _TINY)


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """(R, C) logarithms of the probabilities of each row."""
    logits = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def softmax_of_groups(logits: ArrayLike, offsets: NDArray[np.integer]) -> NDArray[np.float64]:
    """(S,) probabilities over each group: group i is logits[offsets[i] : offsets[i + 1]], one or more."""
    logits = np.asarray(logits, dtype=np.float64)
    begins, counts = offsets[:-1], np.diff(offsets)
    exponentials = np.exp(logits - np.repeat(np.maximum.reduceat(logits, begins), counts))
    return exponentials / np.repeat(np.add.reduceat(exponentials, begins), counts)


def sigmoid(logits: ArrayLike) -> NDArray[np.float64]:
    """The logistic function of each logit."""
    return np.exp(-np.logaddexp(0, -np.asarray(logits, dtype=np.float64)))


def mean_logits(logits: Sequence[NDArray[np.floating]]) -> NDArray[np.float64]:
    """The logarithm of the mean softmax of several logits."""
    with np.errstate(divide="ignore"):
        return np.log(np.mean([softmax(each) for each in logits], axis=0))
