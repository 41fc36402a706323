"""The labelled rows of a recipe's split, under its family's standard column names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLUMNS = {
    "text-classification": ("text", "text_pair", "label"),
    "token-classification": ("tokens", "tags"),
    "question-answering": ("id", "question", "context", "answers"),
}


def read_columns(
    task: str, folder: str, data: str | None, split: str | None = None, rows: int | None = None
) -> tuple[Any, dict[str, list[Any]]]:
    """The task that was fitted to the training rows, and the columns of the first so many rows of a split.

    data: what holds `folder`; without it the rows come from the hub. split: default the one of training.
    """
    from bertkit.tasks import Task
    from bertkit.tasks.catalog import load_recipe
    from bertkit.tasks.splits import read_splits

    recipe = load_recipe(task).overridden({"data": str(Path(data) / folder)} if data else {}).resolved()
    split = split or recipe.train_split
    read = read_splits(recipe, dict.fromkeys((recipe.train_split, split))).rows
    fitted = Task.fit(recipe, read[recipe.train_split])
    examples = fitted.examples(read[split], labelled=True)
    examples = examples.select(range(len(examples))[:rows])
    return fitted, {name: [*examples.columns[name]] for name in COLUMNS[recipe.family] if name in examples.columns}
