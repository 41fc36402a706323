"""Evaluate a run folder, or any Hugging Face model of a family, and predict rows with it, window by window."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from bertkit import progress
from bertkit.errors import UsageError, plural
from bertkit.metrics.classification import check_metrics
from bertkit.model.devices import start_accelerator
from bertkit.model.pretrained import check_segments
from bertkit.progress import Rate
from bertkit.readers import Examples
from bertkit.runs.evaluate import Scored, encode_split, hash_of_rows, report_remarks
from bertkit.runs.predictor import Predictor, TaskPredictor
from bertkit.runs.target import Opened
from bertkit.tasks.presentation import Count, Prediction, told
from bertkit.tasks.saved import refuse_code
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task


def evaluate_target(target: Opened, splits: tuple[str, ...] | None = None) -> tuple[Scored, dict[str, Examples]]:
    """The scores and predictions of every split, and the examples."""
    task = replace(target.task, recipe=target.task.recipe.resolved())
    refuse_code(task.recipe)
    if note := check_metrics(task.recipe.metrics):
        progress.note(note)
    refuse_other_folds(target, splits or task.recipe.eval_splits)
    accelerator = start_accelerator(task.recipe.training.device)
    rows = read_splits(task.recipe, splits or task.recipe.eval_splits).rows
    data = {split: encode_split(task, split, examples, target.pretrained.tokenizer) for split, examples in rows.items()}
    for name, split in data.items():
        check_segments(split.features, target.pretrained.config)
        _warn_if_changed(target, task, name, split.examples)
    scored = TaskPredictor(replace(target, task=task), accelerator).score(data)
    accelerator.wait_for_everyone()
    return scored, {name: split.examples for name, split in data.items()}


def refuse_other_folds(target: Opened, splits: Collection[str]) -> None:
    """Raise UsageError for rows that the mean of several folds would be scored on, although most folds were trained on them."""
    recipe = target.task.recipe
    held_out = {each.task.recipe.held_out_share for each in (target, *target.others)}
    if len(held_out) > 1 and (seen := [split for split in splits if split in (recipe.train_split, "validation")]):
        hint = "give other rows: --split test, or --validation FILE"
        raise UsageError(f"the runs are folds, which were trained on rows of {seen[0]}", hint=hint)


def _warn_if_changed(target: Opened, task: Task, name: str, examples: Examples) -> None:
    """Warn if a split has changed since training: held-out rows may then have been training rows."""
    before = target.run.get("data", {}).get(name, {})
    same_source = before.get("source") == examples.source and "rows_sha256" in before
    if same_source and before["rows_sha256"] != hash_of_rows(task, examples):
        progress.warn(f"{name}: the rows have changed since training; the model may have been trained on some of them")


# --- predicting ------------------------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """Rows as they are read, the same under a task's names, and a prediction for each. counts: what to tell of them.
    numbers: of the rows in their source, from 0.
    """

    rows: Examples
    examples: Examples
    predictions: list[Prediction]
    counts: tuple[Count, ...]
    numbers: Sequence[int]


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
    return Window(rows, examples, predictions, (*counts, *predictor.presents.counts_of(predictions)), numbers)


def predict_examples(target: Opened, task: Task, examples: Examples) -> list[Prediction]:
    """One prediction per example. task: the target's, perhaps with another recipe."""
    accelerator = start_accelerator(task.recipe.training.device)
    report_remarks(examples.remarks)
    predictor = TaskPredictor(replace(target, task=task), accelerator)
    split, counts = predictor.encode(examples)
    tell(len(examples), counts)
    with progress.bar("predict", len(split.features)) as bar:
        predictions = predictor.decode(split, bar)
    accelerator.wait_for_everyone()
    return predictions


def of_files(target: Opened, files: Sequence[str], overrides: Collection[str]) -> TaskPredictor:
    """A predictor for files. overrides: the names of the options that the user gave."""
    recipe = target.task.recipe.with_file(files[0], overrides, target.written).resolved()
    task = replace(target.task, recipe=recipe)
    return TaskPredictor(replace(target, task=task), start_accelerator(recipe.training.device))


class _Part:
    """The bar of one window, whose features become its rows. total: how often it advances by one feature."""

    def __init__(self, rate: Rate, rows: Examples, total: int) -> None:
        self.rate, self.rows, self.total, self.done, self.before = rate, rows, total, 0, rate.share

    def advance(self, amount: int = 1, **values: str) -> None:
        amount = min(amount, self.total - self.done)  # several processes may count some features twice
        self.done += amount
        share = None
        if self.rows.done is not None and self.before is not None:
            share = self.before + (self.rows.done - self.before) * self.done / self.total
        self.rate.move(len(self.rows) * amount / self.total, share)


def tell(rows: int, counts: Iterable[Count]) -> None:
    """Print how many rows there were, if there is something to tell of them."""
    if words := told(counts):
        progress.note(f"{plural(rows, 'row')}, {', '.join(words)}")
