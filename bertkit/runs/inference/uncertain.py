"""Which rows to label next: those that a model is least certain of, and that differ from each other.

Zhdanov (2019, "Diverse mini-batch Active Learning") keeps ten times as many rows as are asked for, by the margin of the two
likeliest classes (Scheffer et al., 2001), and spreads the choice over these. Here it is spread by the greedy k-center of Sener
and Savarese (2018), whose distances count more the less certain a row is. Nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KEPT = 10  # times as many rows as are asked for


def least_certain(certainty: Sequence[float], count: int) -> list[int]:
    """At most KEPT times `count` places of the lowest values, the lowest first; of equal ones the earlier."""
    return np.argsort(np.asarray(certainty, dtype=np.float64), kind="stable")[: KEPT * count].tolist()


def spread(vectors: NDArray[np.float32], certainty: Sequence[float], count: int) -> list[int]:
    """At most `count` rows of (rows, size) vectors: the least certain one, then always the one with the largest product of its
    distance to those chosen, between vectors of length 1, and of 1 - its certainty. certainty: from 0 to 1.
    """
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    weight = 1 - np.asarray(certainty, dtype=np.float64)
    worth, distance = weight.copy(), np.full(len(units), np.inf)
    chosen: list[int] = []
    for _ in range(min(count, len(units))):
        worth[chosen] = -1
        chosen.append(int(worth.argmax()))
        distance = np.minimum(distance, np.linalg.norm(units - units[chosen[-1]], axis=1))
        worth = weight * distance
    return chosen
