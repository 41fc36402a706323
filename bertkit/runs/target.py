"""Opens a run folder, or any Hugging Face model of a task family, with its task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from bertkit import progress
from bertkit.errors import DataError, UsageError
from bertkit.model.config import BLOCK_KEY
from bertkit.model.devices import Processes
from bertkit.model.pretrained import Pretrained, open_pretrained, refuse_too_long
from bertkit.readers import Examples, Remarks
from bertkit.readers.content import STDIN
from bertkit.readers.remote import is_url
from bertkit.runs.remarks import report_remarks
from bertkit.runs.run_file import (
    is_recipe_of,
    read_recipe,
    read_run_file,
    refuse_folder_of_runs,
    refuse_without_model,
    unfinished_warning,
)
from bertkit.tasks.catalog import load_builtin, load_recipe
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task


@dataclass(frozen=True)
class Opened:
    """A model with its task. written: the recipe without a run's changes, if known.

    others: runs of the same task, to average probabilities with.
    """

    pretrained: Pretrained
    task: Task
    written: Recipe | None
    run: Mapping[str, Any] = field(default_factory=dict)  # run.json; empty for other models
    others: tuple[Opened, ...] = ()

    @property
    def trained_from(self) -> str:
        """The name of the run's base model; for a model that is not a run, its own name."""
        return self.run["model"]["name"] if self.run else self.pretrained.name

    def with_recipe(self, recipe: Recipe) -> Opened:
        """The same model, reading other data."""
        return replace(self, task=replace(self.task, recipe=recipe))

    def resolved(self) -> Opened:
        """The same model with its recipe resolved; see `Recipe.resolved`."""
        return self.with_recipe(self.task.recipe.resolved())

    def for_file(self, file: str, overrides: Collection[str] = ()) -> Opened:
        """The same model for a file to predict. overrides: the names of the options that the user gave."""
        return self.with_recipe(self.task.recipe.with_file(file, overrides, self.written)).resolved()

    def read(self, splits: Iterable[str]) -> dict[str, Examples]:
        """The rows of splits of its recipe, which is resolved. Raises UsageError, DataError."""
        try:
            return read_splits(self.task.recipe, splits).rows
        except DataError as error:
            own = self.run.get("recipe", {})
            option = next((name for name in ("validation", "test", "data", "train") if own.get(name) == error.where), None)
            if error.where is None or option is None or is_url(error.where) or Path(error.where).exists():
                raise
            share = own.get("validation") if option in ("train", "data") else None
            held_out = f" --validation {share}" if share else ""
            hint = f"{self.pretrained.folder} used it: put it back, or give `bertkit eval` a copy: --{option} COPY{held_out}"
            raise DataError(error.what, where=error.where, hint=hint) from None

    def refuse_other_folds(self, splits: Collection[str]) -> None:
        """Raise UsageError for splits that the mean of several folds would be scored on, though most folds trained on them."""
        train_split = self.task.recipe.train_split
        held_out = {each.task.recipe.held_out_share for each in (self, *self.others)}
        if len(held_out) > 1 and (seen := [split for split in splits if split in (train_split, "validation")]):
            hint = "leave out --ensemble, or give other rows: --split test, or a file"
            raise UsageError(f"the runs are folds: each row of {seen[0]} was training data of at least one of them", hint=hint)


def open_target(
    name: str,
    recipe_name: str | None,
    overrides: Mapping[str, Any],
    *,
    to_predict: bool = False,
    others: Sequence[str] = (),
    quiet: bool = False,
) -> Opened:
    """Open a run folder with its own recipe, or a model with the given one; overrides take precedence over both.

    to_predict: prefer the task in config.json to that in run.json. others: runs to average probabilities with. quiet: do not
    print remarks on the task. Code that a run refers to is never executed. Raises UsageError, ModelError.
    """
    opened, *more = (_open(each, recipe_name, overrides, to_predict) for each in (name, *others))
    if not quiet:
        report_remarks(opened.task.remarks)
    return replace(opened, task=opened.task.averaged_with([each.task for each in more]), others=tuple(more)) if more else opened


def refuse_shared_pipes(files: Iterable[str | None], processes: Processes) -> None:
    """Raise UsageError if several processes would read standard input, or another pipe, of which each would get a part."""
    pipe = next((file for file in files if file is not None and (file == STDIN or Path(file).is_fifo())), None)
    if pipe is not None and processes.num_processes > 1:
        what = (
            f"only one process can read {'standard input' if pipe == STDIN else pipe}; {processes.num_processes} were launched"
        )
        raise UsageError(what, hint="save it to a file first, or run the command without a launcher")


def open_model_or_run(name: str) -> Pretrained:
    """As `open_pretrained`. Raises ModelError that says so for a run without a model yet."""
    refuse_without_model(Path(name))
    return open_pretrained(name)


def open_to_train(name: str) -> Pretrained:
    """As `open_model_or_run`, for training to start from, with a warning about a run whose own training has not ended."""
    folder = Path(name)
    run = read_run_file(folder) if folder.is_dir() else None
    if run is not None and (warning := unfinished_warning(name, run)):
        progress.warn_once(warning)
    return open_model_or_run(name)


def columns_note(name: str, run: Mapping[str, Any]) -> Remarks:
    """A note for other files than the run's own, if it was trained with --columns, which are not kept for them."""
    if not (columns := run.get("recipe", {}).get("columns")):
        return Remarks()
    hint = f"for others like them, add --columns {quote(','.join(columns))}"
    return Remarks((f"{name} was trained on files without a header: {hint}",))


def _open(name: str, recipe_name: str | None, overrides: Mapping[str, Any], to_predict: bool) -> Opened:
    folder = Path(name)
    run = read_run_file(folder) if folder.is_dir() else None
    refuse_folder_of_runs(folder)
    pretrained = open_model_or_run(name)
    recipe, written, remarks = None, None, Remarks()
    if recipe_name is not None:
        recipe = written = load_recipe(recipe_name)
        if run is not None and is_recipe_of(run, recipe_name):
            recipe = read_recipe(run, folder, own=written)
        elif run is not None and (of_run := str(run["recipe"].get("name"))).endswith(".py"):
            what = f"{name} was trained with {of_run}, not {recipe_name}: the run's data and options are not used"
            remarks += Remarks((what,))
    elif run is not None:
        written = load_builtin(str(run["recipe"].get("name")))
        if not to_predict or BLOCK_KEY not in pretrained.config.extra:
            recipe = read_recipe(run, folder)
    elif not to_predict:
        raise UsageError(f"{name} is not a bertkit run and has no recipe", hint="give its recipe: --recipe NAME")
    if recipe is not None:
        recipe = recipe.overridden(overrides).with_other_data(overrides, written)
        task = Task.restore(pretrained.config, recipe, where=name)
        if run is not None and recipe.columns is None:
            remarks += columns_note(name, run)
    else:
        task = Task.restore(pretrained.config, None, overrides, where=name)
    if run is not None:
        remarks += Remarks.of(warning=unfinished_warning(name, run))
    task = replace(task, remarks=task.remarks + remarks)
    refuse_too_long(task.recipe.training.max_length, pretrained.config)
    return Opened(pretrained, task, written, run or {})
