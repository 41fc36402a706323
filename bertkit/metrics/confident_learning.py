"""Confident learning: which labels are probably wrong (Northcutt, Jiang and Chuang, 2021, "Confident Learning: Estimating
Uncertainty in Dataset Labels", JAIR 70).

A label is a probable error where the model is confident of another one: its probability reaches the mean probability that the
model gives that other label over the rows that have it. All probabilities are of models that were not trained on the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_EQUAL = 1e-6  # probabilities that differ by less are equal


class Judged(NamedTuple):
    """The labels of rows, and a model's probabilities for each.

    names: (C,) of the competing labels. rows: (D,) the row of each decision; places: (D,) its word in the row, from 0; 0 if a
    row has one decision. given: (D,) the label by name. probabilities: (D, C).
    """

    names: tuple[str, ...]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    given: Sequence[str]
    probabilities: NDArray[np.float64]

    @classmethod
    def of(cls, names: tuple[str, ...], given: Sequence[Sequence[str]], probabilities: NDArray[np.float64]) -> Judged:
        """given: the labels of each row: a single one, or one per word. probabilities: (D, C), over all rows in order."""
        rows = np.repeat(np.arange(len(given)), [len(labels) for labels in given])
        places = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(len(labels)) for labels in given)])
        return cls(names, rows, places, [name for labels in given for name in labels], probabilities)

    @classmethod
    def join(cls, parts: Sequence[Judged]) -> Judged:
        """The decisions of several models, each on its own rows; a label that a model does not know has probability 0."""
        names = tuple(dict.fromkeys(name for part in parts for name in (*part.names, *part.given)))
        number = {name: at for at, name in enumerate(names)}
        probabilities = [np.zeros((len(part.given), len(names))) for part in parts]
        for part, wide in zip(parts, probabilities, strict=True):
            wide[:, [number[name] for name in part.names]] = part.probabilities
        return cls(
            names,
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.places for part in parts]),
            [name for part in parts for name in part.given],
            np.concatenate(probabilities),
        )


@dataclass(frozen=True)
class ConfidentLearning:
    """given: (D,) numbers of labels. probabilities: (D, C), out of sample."""

    given: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    @classmethod
    def of(cls, judged: Judged) -> ConfidentLearning:
        number = {name: at for at, name in enumerate(judged.names)}
        return cls(np.array([number[name] for name in judged.given], dtype=np.int64), judged.probabilities)

    @cached_property
    def thresholds(self) -> NDArray[np.float64]:
        """(C,) the mean probability of a label where it is given; above 1 for one that never is (section 3.1, equation 2)."""
        sums = np.bincount(self.given, self.probability_of(self.given), minlength=self.probabilities.shape[1])
        counts = np.bincount(self.given, minlength=len(sums))
        return np.where(counts > 0, np.maximum(sums / np.maximum(counts, 1), 2 * _EQUAL), 2.0)

    @cached_property
    def _confident(self) -> NDArray[np.bool_]:
        """(D, C) whether the model is confident of each label."""
        return self.probabilities >= self.thresholds - _EQUAL

    @cached_property
    def suggested(self) -> NDArray[np.int64]:
        """(D,) the label that the model is confident of; the most probable one if there are several, or none."""
        one = self._confident.sum(axis=1) == 1
        return np.where(one, self._confident.argmax(axis=1), self.probabilities.argmax(axis=1))

    @cached_property
    def joint(self) -> NDArray[np.int64]:
        """(C, C) the confident joint: how often a label is given while the model is confident of another one (equation 1)."""
        counts = np.zeros((len(self.thresholds),) * 2, dtype=np.int64)
        sure = self._confident.any(axis=1)
        np.add.at(counts, (self.given[sure], self.suggested[sure]), 1)
        return counts

    @cached_property
    def are_errors(self) -> NDArray[np.bool_]:
        """(D,) off the diagonal of the joint, and the given label is not the most probable one."""
        doubted = self._confident.any(axis=1) & (self.suggested != self.given)
        return doubted & (self.probabilities.max(axis=1) > self.probability_of(self.given) + _EQUAL)

    @property
    def hits(self) -> tuple[int, int]:
        """How many given labels the model would predict, and how many always predicting the most frequent label would."""
        return int((self.probabilities.argmax(axis=1) == self.given).sum()), int(np.bincount(self.given).max())

    def probability_of(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """(D,) the probability of a label for each decision."""
        return np.take_along_axis(self.probabilities, labels[:, None], axis=1)[:, 0]

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """(D,) normalized margins: 0 if the model is sure of another label, 1 if it is sure of the given one."""
        others = self.probabilities.copy()
        np.put_along_axis(others, self.given[:, None], 0.0, axis=1)
        return (self.probability_of(self.given) - others.max(axis=1) + 1) / 2

    @property
    def expected_errors(self) -> float:
        """The expected number of wrong labels, by the joint, with rows scaled to the counts of given labels (equation 3)."""
        joint = self.joint.astype(np.float64)
        np.fill_diagonal(joint, np.maximum(joint.diagonal(), 1))
        counts = np.bincount(self.given, minlength=len(joint))
        return float((counts * (1 - joint.diagonal() / joint.sum(axis=1))).sum())


class Verdicts(NamedTuple):
    """(D,) each: the row and the place of a decision, its labels by name, and what `ConfidentLearning` finds."""

    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    given: NDArray[np.object_]
    suggested: NDArray[np.object_]
    are_errors: NDArray[np.bool_]
    scores: NDArray[np.float64]
    of_given: NDArray[np.float64]
    of_suggested: NDArray[np.float64]

    @classmethod
    def of(cls, judged: Judged, found: ConfidentLearning) -> Verdicts:
        """The verdicts on decisions. found: of the same decisions."""
        names = np.array(judged.names, dtype=object)
        by_name = names[found.given], names[found.suggested]
        of_both = (found.probability_of(numbers) for numbers in (found.given, found.suggested))
        return cls(judged.rows, judged.places, *by_name, found.are_errors, found.scores, *of_both)

    def ranked(self) -> Verdicts:
        """From the most to the least suspicious: first the errors, each part by its score."""
        order = np.lexsort((self.scores, ~self.are_errors))
        return Verdicts._make(values[order] for values in self)

    def worst(self) -> Verdicts:
        """The first verdict on each row, of ranked ones."""
        firsts = np.sort(np.unique(self.rows, return_index=True)[1])
        return Verdicts._make(values[firsts] for values in self)
