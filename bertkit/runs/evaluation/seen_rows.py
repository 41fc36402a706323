"""Whether a model is scored on rows that it was trained on, by the hashes and sources in its run.json."""

from __future__ import annotations

from dataclasses import replace

from bertkit import progress
from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.runs.encoded import hash_of_rows
from bertkit.runs.target import Opened
from bertkit.tasks.splits import SET_ASIDE, read_splits
from bertkit.tasks.task import Task


def warn_if_seen(target: Opened, task: Task, split: str, examples: Examples, as_read: Examples) -> None:
    """Warn if a model, or one of those that are averaged with it, was trained on a split's rows, or may have been.

    examples: the rows. as_read: the same before they are standardized.
    """
    found = (_how_seen(each, task, split, examples, as_read) for each in (target, *target.others))
    if what := next(filter(None, found), ""):
        progress.warn(f"{split}: {what}")


def _how_seen(target: Opened, task: Task, split: str, examples: Examples, as_read: Examples) -> str:
    """Which of these rows the model was trained on, or may have been, in words; "" for none, as far as its run.json tells."""
    if not (data := target.run.get("data", {})):
        return ""  # a plain model: nobody knows
    rows, model, recipe = hash_of_rows(task.recipe, examples), target.pretrained.folder, task.recipe
    trained_on = data.get(recipe.train_split, {}).get("rows_sha256")
    recorded = {each.get("rows_sha256") for each in data.values()}
    of_source = [each for each in data.values() if each.get("source") == examples.source]
    if rows == trained_on:
        return f"{model} was trained on these rows; the scores do not show how well it does on new ones"
    if recorded & {rows, None} or split == SET_ASIDE:  # which is never trained on
        return ""
    if _hash_of_training_part(target, task, as_read) == trained_on:
        return f"{model} was trained on some of these rows: {examples.source} is its training data, or a copy"
    if of_source:
        return f"{model} used other rows of {examples.source}, and may have been trained on some of these"
    if split == "validation" and recipe.held_out_share is not None:
        copied = f"if {examples.source} is a copy of its training data, it was trained on some of them"
        return f"{model} did not hold out these rows; {copied}"
    return ""


def _hash_of_training_part(target: Opened, task: Task, rows: Examples) -> str:
    """The hash of what the run would train on if these were its training data; "" if that cannot be held out of them."""
    run = target.run["recipe"]
    given = {name: run.get(name) for name in ("set_aside", "max_train_samples")}
    share = run.get("validation") or run.get("held_out")
    own = replace(task.recipe, data=None, train=rows.source, validation=share, split_seed=run.get("split_seed", 0), **given)
    own = replace(own, train_split="train")
    try:
        part = read_splits(own, ["train"], read={rows.source: rows}).rows["train"]
        return hash_of_rows(own, task.examples(part, labelled=True))
    except DataError:
        return ""
