"""Evaluate and predict with a run folder, or with any Hugging Face model of a family."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from bertkit import progress
from bertkit.errors import DataError, ModelError, UsageError, listed, plural
from bertkit.metrics.classification import check_metrics
from bertkit.model.config import BLOCK_KEY
from bertkit.model.devices import start_accelerator
from bertkit.model.directory import load_weights
from bertkit.model.precision import resolve_precision
from bertkit.model.pretrained import Pretrained, check_max_length, check_segments, open_pretrained
from bertkit.readers import Examples
from bertkit.runs.directory import is_recipe_of, read_recipe, read_run_file, refuse_folder_of_runs
from bertkit.runs.evaluate import Scored, Split, decode_split, encode_split, hash_of_rows, report_remarks, score_splits
from bertkit.tasks.catalog import load_builtin, load_recipe
from bertkit.tasks.recipe import Recipe, unread_columns
from bertkit.tasks.saved import refuse_code
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import FINETUNE, Prediction, Task


@dataclass(frozen=True)
class Opened:
    """A model with its task. trained_from: the name of its base model. written: the recipe before its run, if known.

    others: runs of the same task, whose probabilities are averaged with this one's.
    """

    pretrained: Pretrained
    task: Task
    trained_from: str
    written: Recipe | None
    run: Mapping[str, Any] = field(default_factory=dict)  # run.json; empty for other models
    others: tuple[Opened, ...] = ()


def open_target(
    name: str,
    recipe_name: str | None,
    overrides: Mapping[str, Any],
    *,
    to_predict: bool = False,
    others: Sequence[str] = (),
) -> Opened:
    """Open a run folder with its own recipe, or a model with the given one; overrides win over both.

    to_predict: the task is restored from config.json alone. others: runs whose probabilities are averaged with this one's.
    Code that a run refers to is never executed. Raises UsageError, ModelError.
    """
    opened = _open(name, recipe_name, overrides, to_predict)
    more = tuple(_open(other, recipe_name, overrides, to_predict) for other in others)
    report_remarks(opened.task.remarks)
    return replace(opened, task=opened.task.joined([each.task for each in more]), others=more) if more else opened


def _open(name: str, recipe_name: str | None, overrides: Mapping[str, Any], to_predict: bool) -> Opened:
    folder = Path(name)
    run = read_run_file(folder) if folder.is_dir() else None
    refuse_folder_of_runs(folder)
    if run is not None and not (folder / "config.json").is_file():
        raise ModelError("the run has no model yet", where=name, hint="wait for its first evaluation, or repeat its command")
    pretrained = open_pretrained(name)
    trained_from = run["model"]["name"] if run else name
    recipe = written = None
    if recipe_name is not None:
        recipe = written = load_recipe(recipe_name)
        if run is not None and is_recipe_of(run, recipe_name):
            recipe = read_recipe(run, folder, own=written)
    elif run is not None:
        written = load_builtin(str(run["recipe"].get("name")))
        if not to_predict or BLOCK_KEY not in pretrained.config.extra:
            recipe = read_recipe(run, folder)
    elif not to_predict:
        raise UsageError(f"{name} is not a bertkit run and has no recipe", hint="give its recipe: --recipe NAME")
    if recipe is not None:
        recipe = recipe.overridden(overrides).with_other_data(overrides, written)
        task = Task.restore(pretrained.config, recipe, where=name)
    else:
        task = Task.restore(pretrained.config, None, overrides, where=name)
    check_max_length(task.recipe.training.max_length, pretrained.config)
    return Opened(pretrained, task, trained_from, written, run or {})


def build(target: Opened, accelerator: Any) -> nn.Module:
    """The target's module with its weights, on the device and in the working dtype."""
    module = target.task.build(target.task.configure(target.pretrained.config))
    if fresh := load_weights(module, target.pretrained.folder):
        what = f"the model has no trained head; missing: {listed(fresh)}"
        raise ModelError(what, where=str(target.pretrained.folder), hint=FINETUNE)
    asked = target.task.recipe.training.precision
    return module.to(accelerator.device, resolve_precision(asked, target.pretrained.config, accelerator, training=False).dtype)


def _modules(target: Opened, accelerator: Any) -> list[nn.Module]:
    return [build(each, accelerator) for each in (target, *target.others)]


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
    scored = score_splits(task, _modules(target, accelerator), data, accelerator)
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
    if left_out := unread_columns(recipe, rows):
        progress.note(f"{plural(len(left_out), 'column')} not in the output: {listed(left_out, 12)}")
    return examples, predict_examples(target, task, examples)


def predict_examples(target: Opened, task: Task, examples: Examples) -> list[Prediction]:
    """One prediction per example. task: the target's, perhaps with another recipe."""
    accelerator = start_accelerator(task.recipe.training.device)
    report_remarks(examples.remarks)
    features, remarks = task.encode(examples, target.pretrained.tokenizer, labelled=False)
    check_segments(features, target.pretrained.config)
    if empty := sum(not any(text.strip() for text in texts) for texts in task.recipe.texts_of(examples)):
        remarks = (*remarks, f"{empty} without text")
    if remarks:
        progress.note(f"{plural(len(examples), 'row')}, {', '.join(remarks)}")
    split = Split(examples, features)
    predictions, _ = decode_split(task, _modules(target, accelerator), split, accelerator, description="predict")
    accelerator.wait_for_everyone()
    for remark in task.remarks_on(predictions):
        progress.note(remark)
    return predictions
