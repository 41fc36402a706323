"""What to fine-tune: a recipe, and the model to start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.model.pretrained import Pretrained
from bertkit.readers import Examples
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import to_json
from bertkit.tasks.splits import Splits, input_paths
from bertkit.tasks.task import Task


def recorded_name(recipe: str) -> str:
    """How run.json names a recipe: by its name, or by the absolute path of its file."""
    return str(Path(recipe).resolve()) if recipe.endswith(".py") else recipe


@dataclass(frozen=True)
class Request:
    """A recipe with its settings, and a model. name: of the recipe, in run.json. model: a folder, a hub id or minilm.

    fresh_head: replace the model's head; None: only if its size differs.
    """

    recipe: Recipe
    name: str
    model: str
    fresh_head: bool | None = False

    def with_recipe(self, recipe: Recipe) -> Request:
        """The same request with other settings or rows."""
        return replace(self, recipe=recipe)

    @property
    def reads(self) -> list[str | Path]:
        """The model's folder or name, and the files and folders of the data and of the recipe's code."""
        return [Path(self.model).expanduser(), *input_paths(self.recipe, self.name)]

    def fit(self, recipe: Recipe, data: Splits, pretrained: Pretrained) -> Task:
        """The task of this request. recipe: its recipe, resolved, perhaps with other settings or rows. Raises UserError."""
        assert data.training is not None
        where = str(pretrained.folder)
        return Task.fit(recipe, data.training, pretrained.config, fresh_head=self.fresh_head, where=where)

    def fit_and_read(self, recipe: Recipe, data: Splits, pretrained: Pretrained) -> tuple[Task, dict[str, Examples]]:
        """The task, and the rows of each split as it reads them. recipe: as in `fit`. Raises DataError for rows that training
        would refuse.
        """
        task = self.fit(recipe, data, pretrained)
        return task, {split: task.examples(rows, labelled=True) for split, rows in data.rows.items()}

    def plan(self, training: Mapping[str, Any], weights: str) -> dict[str, Any]:
        """What the runs of one folder have in common. training: the settings of the training. weights: the model's hash."""
        return {
            "recipe": to_json(self.recipe.resolved(), name=self.name),
            "training": {**training},
            "model": {"name": self.model, "fresh_head": self.fresh_head, "sha256": weights},
        }
