"""What `bertkit check` can be given: a recipe, a run, a data folder, a file or its URL."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, UsageError
from bertkit.readers.content import nearest_files
from bertkit.readers.parsers.parallel import is_parallel
from bertkit.readers.remote import is_url
from bertkit.runs.run_file import read_recipe, read_run_file, refuse_folder_of_runs
from bertkit.tasks import TextClassification
from bertkit.tasks.catalog import load_builtin, load_recipe
from bertkit.tasks.family import guess_family
from bertkit.tasks.recipe import Recipe


def open_data(
    target: str, recipe_name: str | None, overrides: Mapping[str, Any]
) -> tuple[Recipe, tuple[str, ...], dict[str, Any] | None]:
    """The recipe of a target, the splits to check (training first), and the run.json of a run, else None.

    target: a run folder, a data folder or file, a file's URL, or a recipe's name. recipe_name: for a data folder or file, by
    default the family that it looks like; for a run, the file of its own recipe. Raises UsageError, DataError.
    """
    path = Path(target)
    values = read_run_file(path) if path.is_dir() else None
    if values is not None:
        own = load_recipe(recipe_name) if recipe_name is not None else load_builtin(str(values["recipe"].get("name")))
        recipe = read_recipe(values, path, own=own).overridden(overrides).with_other_data(overrides, own).resolved()
        return recipe, _splits_of(recipe), values
    refuse_folder_of_runs(path)
    is_file = is_url(target) or path.is_file() or is_parallel(path)
    if (is_file and path.suffix != ".py") or path.is_dir():
        option, what = ("train", "training files") if is_file else ("data", "data folders")
        if option in overrides:
            raise UsageError(f"--{option} and {target} are both {what}", hint="leave out one of the two")
        recipe = load_recipe(recipe_name or _family_of(target, overrides)).overridden({option: target, **overrides}).resolved()
        if is_file:
            return recipe, ("train", *(split for split in ("validation", "test") if split in overrides)), None
        return *_of_folder(recipe, path), None
    if path.suffix not in ("", ".py"):
        raise DataError("no such file", where=target, hint=nearest_files(path))
    if recipe_name is not None:
        raise UsageError(f"--recipe is for a file or folder; {target} is already a recipe", hint="leave out one of the two")
    recipe = load_recipe(target).overridden(overrides).resolved()
    if recipe.folder.files and recipe.train_split not in recipe.folder.files:  # an evaluation-only set
        recipe = replace(recipe, train_split=recipe.eval_splits[0])
    return recipe, _splits_of(recipe), None


def _of_folder(recipe: Recipe, folder: Path) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe with the splits that a data folder has. Raises DataError for none."""
    holds_out = recipe.held_out_share is not None and recipe.has_split(recipe.train_split)
    if not holds_out:
        recipe = replace(recipe, validation=None, held_out=None)
    splits = [split for split in (*recipe.splits, "test") if (holds_out and split == "validation") or recipe.has_split(split)]
    if not splits:
        what = "the folder is not a corpus or a run, and has no file named after a split"
        raise DataError(what, where=str(folder), hint=f"check one of its files; {nearest_files(folder / 'train')}")
    eval_splits = tuple(split for split in recipe.eval_splits if split in splits)
    return replace(recipe, train_split=splits[0], eval_splits=eval_splits), tuple(dict.fromkeys(splits))


def _splits_of(recipe: Recipe) -> tuple[str, ...]:
    """The splits of a recipe, and the test split if the user names one or the folder has one."""
    return tuple(dict.fromkeys((*recipe.splits, *(["test"] if recipe.test or recipe.has_split("test") else []))))


def _family_of(file: str, overrides: Mapping[str, Any]) -> str:
    """The family that the data looks like; if in doubt, text classification, whose errors say what is missing."""
    with suppress(DataError):  # raised again, and reported, when the split is read
        return guess_family(file, overrides).family or TextClassification.family
    return TextClassification.family
