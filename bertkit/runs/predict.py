"""Evaluate a run folder, or any Hugging Face model of a family, and predict files and splits with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bertkit import progress
from bertkit.errors import DataError, UsageError, listed, plural
from bertkit.metrics.classification import check_metrics
from bertkit.model.devices import start_accelerator
from bertkit.model.pretrained import check_segments
from bertkit.readers import Examples, is_blank
from bertkit.runs.evaluate import Scored, Split, encode_split, hash_of_rows, report_remarks
from bertkit.runs.predictor import TaskPredictor
from bertkit.runs.target import Opened
from bertkit.tasks.recipe import Recipe, unread_columns
from bertkit.tasks.saved import refuse_code
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Prediction, Task


def evaluate_target(target: Opened, splits: tuple[str, ...] | None = None) -> tuple[Scored, dict[str, Examples]]:
    """The scores and predictions of every split, and the examples."""
    task = replace(target.task, recipe=target.task.recipe.resolved())
    refuse_code(task.recipe)
    if note := check_metrics(task.recipe.metrics):
        progress.note(note)
    _refuse_other_folds(target, splits or task.recipe.eval_splits)
    accelerator = start_accelerator(task.recipe.training.device)
    rows = read_splits(task.recipe, splits or task.recipe.eval_splits).rows
    data = {split: encode_split(task, split, examples, target.pretrained.tokenizer) for split, examples in rows.items()}
    for name, split in data.items():
        check_segments(split.features, target.pretrained.config)
        _warn_if_changed(target, task, name, split.examples)
    scored = TaskPredictor(replace(target, task=task), accelerator).score(data)
    accelerator.wait_for_everyone()
    return scored, {name: split.examples for name, split in data.items()}


def _refuse_other_folds(target: Opened, splits: Collection[str]) -> None:
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


def predict_file(target: Opened, file: str, overrides: Collection[str] = ()) -> tuple[Examples, list[Prediction]]:
    """One prediction per row of a file, in order; "-" is stdin. overrides: the names of the options that the user gave."""
    recipe = target.task.recipe.with_file(file, overrides, target.written).resolved()
    rows = recipe.read_file(file)
    if not len(rows):
        raise DataError("the file holds no rows", where=rows.source)
    return _predict_rows(target, recipe, rows)


def predict_split_of(target: Opened, split: str) -> tuple[Examples, list[Prediction]]:
    """The examples of a split of the target's data, which needs no labels, and one prediction per example."""
    recipe = target.task.recipe.resolved()
    _refuse_other_folds(target, [split])
    return _predict_rows(target, recipe, read_splits(recipe, [split]).rows[split])


def _predict_rows(target: Opened, recipe: Recipe, rows: Examples) -> tuple[Examples, list[Prediction]]:
    task = replace(target.task, recipe=recipe)
    examples = task.examples(rows, labelled=False)
    if left_out := unread_columns(recipe, rows, labelled=False):
        progress.note(f"{plural(len(left_out), 'column')} not in the output: {listed(left_out, 12)}")
    return examples, predict_examples(target, task, examples)


def predict_examples(target: Opened, task: Task, examples: Examples) -> list[Prediction]:
    """One prediction per example. task: the target's, perhaps with another recipe."""
    accelerator = start_accelerator(task.recipe.training.device)
    report_remarks(examples.remarks)
    predictor = TaskPredictor(replace(target, task=task), accelerator)
    features, remarks = task.encode(examples, target.pretrained.tokenizer, labelled=False)
    if empty := sum(all(map(is_blank, texts)) for texts in task.recipe.texts_of(examples)):
        remarks = (*remarks, f"{empty} without text")
    if remarks:
        progress.note(f"{plural(len(examples), 'row')}, {', '.join(remarks)}")
    predictions = predictor.decode(Split(examples, features), description="predict")
    accelerator.wait_for_everyone()
    for remark in task.remarks_on(predictions):
        progress.note(remark)
    return predictions
