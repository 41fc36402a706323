"""The rows of a recipe's split under their standard columns, and the task that is fitted to them."""

from __future__ import annotations

from dataclasses import replace

from bertkit.config import filled
from bertkit.readers import Examples
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task


def load(recipe: Recipe, split: str = "train", *, labelled: bool = True) -> Examples:
    """A split as `standardize` gives it."""
    recipe = recipe.resolved()
    return recipe.standardize(read_splits(recipe, [split]).rows[split], labelled=labelled)


def fit(recipe: Recipe, split: str = "train") -> Task:
    """The task that is fitted to a split without a model."""
    recipe = recipe.resolved()
    recipe = replace(recipe, training=filled(recipe.training))
    return Task.fit(recipe, read_splits(recipe, [split]).rows[split])
