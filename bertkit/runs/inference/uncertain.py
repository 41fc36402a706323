"""Which rows to label next: those that a model is least certain of, and that differ from each other.

Zhdanov (2019, "Diverse mini-batch Active Learning") keeps ten times the requested number of rows, by the margin between the two
most likely classes (Scheffer et al., 2001), and makes a diverse choice from these. Here the choice is made by the greedy
k-center of Sener and Savarese (2018), with distances weighted by uncertainty. Nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KEPT = 10  # times the requested number of rows


def least_certain(certainty: Sequence[float], count: int) -> list[int]:
    """The places of the at most KEPT times `count` lowest values, the lowest first; on ties, the earlier."""
    return np.argsort(np.asarray(certainty, dtype=np.float64), kind="stable")[: KEPT * count].tolist()


def spread(vectors: NDArray[np.float32], certainty: Sequence[float], count: int) -> list[int]:
    """At most `count` rows of (rows, size) vectors: the least certain one, then repeatedly the one with the largest product of
    its distance to the chosen rows (between normalized vectors) and 1 - its certainty. certainty: from 0 to 1.
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
