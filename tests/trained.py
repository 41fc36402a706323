"""Fine-tuning by its function: what several tests train on a file of their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from bertkit.runs.finetune import finetune
from bertkit.runs.series import FOLDS, SEEDS, finetune_series
from bertkit.tasks.catalog import load_recipe


def train(
    output_dir: Path,
    model: Path | str,
    file: Path,
    *,
    seeds: int | None = None,
    folds: int | None = None,
    overwrite: bool = False,
    baselines: bool = False,
    **options: Any,
) -> Path:
    """Fine-tune on a file that is the validation split too: a step, unless the options say otherwise. Returns output_dir."""
    data = {"train": str(file), "validation": str(file)}
    how = {"max_length": 16, "device": "cpu", "precision": "fp32"} | ({} if "num_epochs" in options else {"max_steps": 1})
    recipe = load_recipe("text-classification").overridden(data | how | options)
    series = FOLDS if folds else SEEDS
    run = partial(finetune_series, series, count=count) if (count := seeds or folds) else finetune
    run(recipe, name="text-classification", model=str(model), output_dir=output_dir, overwrite=overwrite, baselines=baselines)
    return output_dir
