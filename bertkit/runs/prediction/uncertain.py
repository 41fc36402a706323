"""Which rows to label next: those that a model is least certain of, and that differ from each other.

Zhdanov (2019, "Diverse mini-batch Active Learning") keeps ten times the requested number of rows, by the margin between the two
most likely classes (Scheffer et al., 2001), and makes a diverse choice from these. Here the choice is made by the greedy
k-center of Sener and Savarese (2018), with distances weighted by uncertainty. Nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.errors import plural
from bertkit.readers import is_blank
from bertkit.runs.inference.predictor import Predictor
from bertkit.runs.prediction.window import Window
from bertkit.tasks.output import OutputLayout

KEPT = 10  # times the requested number of rows


class Chooser:
    """Chooses rows for `predict --uncertain`, window by window. Memory grows with the requested number of rows."""

    def __init__(self, predictor: Predictor, layout: OutputLayout) -> None:
        self.predictor, self.layout = predictor, layout
        self.count = layout.uncertain or 0
        self.kept: Window | None = None
        self.empty = 0  # rows without text, which nobody can label

    def add(self, window: Window) -> None:
        """Keep the least certain rows of all windows so far."""
        filled = window.select([row for row, texts in enumerate(self._texts_of(window)) if not all(map(is_blank, texts))])
        self.empty += len(window.predictions) - len(filled.predictions)
        if self.kept is not None and self.kept.predictions:
            if not filled.predictions:  # a window whose rows were all skipped has no standard columns to join
                return
            filled = self.kept.joined(filled)
        self.kept = filled.select(least_certain(self._certainty(filled), self.count))

    def choose(self) -> Window:
        """The chosen rows, in the order in which to label them. At least one window must have been added."""
        assert self.kept is not None
        if self.empty:
            progress.note(f"skipped {plural(self.empty, 'row')} without text")
        chosen = self.kept
        if chosen.predictions:
            vectors = np.asarray(self.predictor.embed(self._texts_of(chosen)))
            chosen = chosen.select(spread(vectors, self._certainty(chosen), self.count))
        if (found := len(chosen.predictions)) < self.count:
            progress.note(f"only {plural(found, 'row')} to choose from; --uncertain asks for {self.count}")
        return chosen

    def _texts_of(self, window: Window) -> list[tuple[str, ...]]:
        assert self.predictor.task is not None
        return [*self.predictor.task.recipe.texts_of(window.examples)] if window.predictions else []

    def _certainty(self, window: Window) -> list[float]:
        return [self.predictor.presentation.detail(each, self.layout)["certainty"] for each in window.predictions]


def least_certain(certainty: Sequence[float], count: int) -> list[int]:
    """The indices of the at most KEPT * count lowest values, the lowest value first; ties keep their order."""
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
