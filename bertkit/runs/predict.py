"""Evaluating and predicting with a run folder, or with any Hugging Face model of a family."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from bertkit import progress
from bertkit.errors import ModelError, UsageError
from bertkit.model.config import FAMILY_KEY, BertConfig
from bertkit.model.devices import start_accelerator, working_dtype
from bertkit.model.directory import load_weights
from bertkit.model.pretrained import Pretrained, check_max_length, check_segments, open_pretrained
from bertkit.readers import Examples
from bertkit.runs.directory import read_recipe, read_run_file, refuse_folder_of_runs
from bertkit.runs.evaluate import Scored, Split, hash_of_rows, predict_split, read_split, score_splits
from bertkit.tasks import FAMILIES
from bertkit.tasks.recipe import Recipe, load_recipe, override

_FINETUNE = "fine-tune it first: bertkit finetune RECIPE --model ..."


@dataclass(frozen=True)
class Opened:
    """What is evaluated: a model with the recipe it is used by, the name of the model it was trained from, and run.json."""

    pretrained: Pretrained
    recipe: Recipe
    trained_from: str
    written: Recipe | None  # the recipe as its file has it, where that is still there
    run: Mapping[str, Any] = field(default_factory=dict)  # empty for a model without one


def open_target(name: str, recipe_name: str | None, typed: Mapping[str, Any], *, to_predict: bool = False) -> Opened:
    """A run folder with its own recipe, or a model with the recipe given; `typed` options override either.

    to_predict: a model without a recipe is used by its family. The model's labels are matched to the recipe's by name. Raises
    UsageError, ModelError.
    """
    folder = Path(name)
    values = read_run_file(folder) if folder.is_dir() else None
    refuse_folder_of_runs(folder)
    if values is not None and not (folder / "config.json").is_file():
        raise ModelError("the run has no model yet", where=name, hint="wait for its first evaluation, or repeat its command")
    pretrained = open_pretrained(name)
    if recipe_name is None and values is None and to_predict:
        recipe_name = _family_of(pretrained.config)
    if recipe_name is not None:
        recipe, trained_from = load_recipe(recipe_name), values["model"]["name"] if values else name
    elif values is not None:
        recipe, trained_from = read_recipe(values, folder), values["model"]["name"]
    else:
        raise UsageError(f"{name} is a model and no run of bertkit", hint="say what it does with --recipe NAME")
    written = _as_written(recipe_name or (values or {})["recipe"]["name"])
    recipe = override(recipe.as_trained(pretrained.config), typed).with_data_typed(typed, written)
    check_max_length(recipe.training.max_length, pretrained.config)
    if not recipe.has_head(pretrained.config):
        found = recipe.describe_head(pretrained.config)
        raise ModelError(f"the model is a {found}; {recipe.family} needs {recipe.needed_head}", where=name, hint=_FINETUNE)
    return Opened(pretrained, recipe.with_model_labels(pretrained.config, name), trained_from, written, values or {})


def _as_written(name: str) -> Recipe | None:
    """The recipe of a name, without what a run made of it; None where its file is gone."""
    try:
        return load_recipe(name)
    except UsageError:
        return None


def build(target: Opened, accelerator: Any) -> nn.Module:
    """The target's module with its weights, on its device and in its working dtype."""
    config: BertConfig = target.recipe.model_config(target.pretrained.config)
    module = target.recipe.build_model(config)
    if fresh := load_weights(module, target.pretrained.folder):
        what = f"the model has no trained head: {', '.join(fresh)} are not in its file"
        raise ModelError(what, where=str(target.pretrained.folder), hint=_FINETUNE)
    return module.to(accelerator.device, working_dtype(target.recipe.training.precision, accelerator.device))


def _family_of(config: BertConfig) -> str | None:
    """The task family of a model by its class; that of text classification where the class is not said."""
    architectures = config.extra.get("architectures") or ["BertForSequenceClassification"]
    of_class = next((family for family, cls in FAMILIES.items() if cls.hf_class in architectures), "text-classification")
    return config.extra.get(FAMILY_KEY, of_class)


def evaluate_target(target: Opened, splits: tuple[str, ...] | None = None) -> tuple[Scored, dict[str, Examples]]:
    """The scores and predictions of every split, and its examples."""
    recipe = target.recipe.settled()
    accelerator = start_accelerator(recipe.training.device)
    examples = {split: recipe.load(split) for split in splits or recipe.eval_splits}
    data = {split: read_split(recipe, split, rows, target.pretrained.tokenizer) for split, rows in examples.items()}
    for name, split in data.items():
        check_segments(split.features, target.pretrained.config)
        _warn_of_other_rows(target, recipe, name, split.examples)
    scored = score_splits(recipe, build(target, accelerator), data, accelerator)
    accelerator.wait_for_everyone()
    return scored, examples


def _warn_of_other_rows(target: Opened, recipe: Recipe, name: str, examples: Examples) -> None:
    """Where a split has changed since the run was trained: of what is held out, rows may have been trained on."""
    before = target.run.get("data", {}).get(name, {})
    same_source = before.get("source") == examples.source and "rows_sha256" in before
    if same_source and before["rows_sha256"] != hash_of_rows(recipe, examples):
        progress.warn(f"{name}: the rows are others than when the run was trained; it may have been trained on some of these")


def predict_file(target: Opened, file: str, typed: Collection[str] = ()) -> tuple[Examples, list[dict[str, Any]]]:
    """One prediction for each row of a file, in order; "-" is the standard input. typed: the options that a user gave."""
    recipe = override(target.recipe, {"test": file}).with_data_typed({"test", *typed}, target.written)
    recipe = replace(recipe, **{name: None for name in recipe.not_for_input if name not in typed})  # type: ignore[arg-type]
    examples = recipe.load("test", to_predict=True)
    return examples, predict_rows(target, recipe, examples)


def predict_rows(target: Opened, recipe: Recipe, examples: Examples) -> list[dict[str, Any]]:
    """One prediction for each of the examples, with or without labels. recipe: the target's, or like it."""
    accelerator = start_accelerator(recipe.training.device)
    features, remarks = recipe.encode(examples, target.pretrained.tokenizer, recipe.training.max_length, labelled=False)
    check_segments(features, target.pretrained.config)
    if empty := sum(not any(text.strip() for text in its) for its in recipe.texts_of(examples)):
        remarks = (*remarks, f"{empty} without text")
    if remarks:
        progress.note(f"{len(examples)} rows, {', '.join(remarks)}")
    data = Split(examples, features)
    found = predict_split(recipe, build(target, accelerator), data, accelerator, description="predict")
    accelerator.wait_for_everyone()
    return recipe.decode(found.outputs, features, examples)
