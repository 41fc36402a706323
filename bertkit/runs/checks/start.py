"""What the checks that train start from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bertkit.tasks.recipe import Recipe


class Start(NamedTuple):
    """recipe: resolved; name: what finetune calls it. output_dir: the folder for runs and results."""

    recipe: Recipe
    name: str
    model: str
    output_dir: Path
