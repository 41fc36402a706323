"""A window of rows with their predictions: what predict computes and writes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from bertkit import progress
from bertkit.progress import Rate
from bertkit.readers import Examples, Remarks, join_blocks
from bertkit.runs.inference.predictor import Predictor
from bertkit.tasks.counts import Count
from bertkit.tasks.presentation import Prediction


class Window(NamedTuple):
    """Rows as read, the same rows under a task's column names, and a prediction for each. counts: to report to the user.
    numbers: of the rows in their source, from 0.
    """

    rows: Examples
    examples: Examples
    predictions: list[Prediction]
    counts: tuple[Count, ...]
    numbers: Sequence[int]

    def select(self, rows: Sequence[int]) -> Window:
        """The given rows in the given order, numbered from 0 and without remarks."""
        read, examples = (replace(each.select(rows), first=0, remarks=Remarks()) for each in (self.rows, self.examples))
        return Window(read, examples, [self.predictions[row] for row in rows], (), [self.numbers[row] for row in rows])

    def joined(self, other: Window) -> Window:
        """These rows, followed by those of another window."""
        rows, examples = (join_blocks(pair) for pair in ((self.rows, other.rows), (self.examples, other.examples)))
        return Window(rows, examples, [*self.predictions, *other.predictions], (), [*self.numbers, *other.numbers])


def predict_window(predictor: Predictor, rows: Examples, rate: Rate | None = None) -> Window:
    """A prediction for each usable row of a window."""
    faults = predictor.refused(rows)
    numbers = [rows.first + row for row in range(len(rows)) if row not in faults]
    rows = rows.without(faults)
    if not numbers:
        return Window(rows, rows, [], (), numbers)
    examples = predictor.standard(rows)
    split, counts = predictor.encode(examples)
    bar = progress.NO_BAR if rate is None else _Part(rate, rows, len(split.features) * len(predictor.folders))
    predictions = predictor.decode(split, bar)
    return Window(rows, examples, predictions, (*counts, *predictor.presentation.counts_of(predictions)), numbers)


class _Part:
    """The progress bar for one window, which converts features to rows. total: the number of features to advance by."""

    def __init__(self, rate: Rate, rows: Examples, total: int) -> None:
        self.rate, self.rows, self.total, self.done, self.before = rate, rows, total, 0, rate.share

    def advance(self, amount: int = 1, **values: str) -> None:
        amount = min(amount, self.total - self.done)  # several processes may count some features twice
        self.done += amount
        share = None
        if self.rows.done is not None and self.before is not None:
            share = self.before + (self.rows.done - self.before) * self.done / self.total
        self.rate.move(len(self.rows) * amount / self.total, share)
