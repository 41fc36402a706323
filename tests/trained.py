"""Fine-tuning by its function: what several tests train on a file of their own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertkit.runs.finetuning.finetune import finetune
from bertkit.runs.finetuning.series import finetune_series
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.inference.windows import windows
from bertkit.runs.prediction.window import Window, predict_window
from bertkit.runs.request import Request
from bertkit.runs.series import FOLDS, SEEDS
from bertkit.runs.target import Opened
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.presentation import Prediction
from bertkit.training import loop


def train(
    output_dir: Path,
    model: Path | str,
    file: Path,
    *,
    seeds: int | None = None,
    folds: int | None = None,
    overwrite: bool = False,
    baselines: bool = False,
    family: str = "text-classification",
    **options: Any,
) -> Path:
    """Fine-tune on a file that is the validation split too: a step, unless the options say otherwise. Returns output_dir."""
    data = {"train": str(file), "validation": str(file)}
    how = {"max_length": 16, "device": "cpu", "precision": "fp32"} | ({} if "num_epochs" in options else {"max_steps": 1})
    recipe = load_recipe(family).overridden(data | how | options)
    series = FOLDS if folds else SEEDS
    run = partial(finetune_series, series, count=count) if (count := seeds or folds) else finetune
    run(Request(recipe, family, str(model)), output_dir, overwrite=overwrite, baselines=baselines)
    return output_dir


WORDS = "the movie book was good bad fine plays read one two".split()


def write_rows(path: Path, length: int) -> Path:
    """A CSV of 32 rows, good and bad in turn, whose texts have that many words drawn from WORDS."""
    rng = np.random.default_rng(0)
    lines = "".join(f"{('good', 'bad')[row % 2]},{' '.join(rng.choice(WORDS, length))}\n" for row in range(32))
    path.write_text("label,text\n" + lines, encoding="utf-8")
    return path


def windows_of(target: Opened, file: Path | str, overrides: Collection[str] = ()) -> list[Window]:
    """The windows of a file with their predictions. overrides: the names of the options that the user gave."""
    predictor = TaskPredictor(target.for_file(str(file), overrides))
    return [predict_window(predictor, rows) for rows in windows(predictor.read_blocks(str(file)))]


def predictions_of(target: Opened, file: Path | str, overrides: Collection[str] = ()) -> list[Prediction]:
    """One prediction per row of a file."""
    return [prediction for window in windows_of(target, file, overrides) for prediction in window.predictions]


def read_json(path: Path | str) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def before_step(
    step: int, micro_step: int = 0, *, seed: int | None = None, act: Callable[[], object] = _terminate
) -> Iterator[None]:
    """In this context, `act` is called before the forward pass of a micro-batch. seed: only in the run of this seed."""
    seed_dropout = loop.seed_dropout

    def acting(module: Any, own_seed: int, *place: int) -> None:
        if place[:2] == (step, micro_step) and seed in (None, own_seed):
            act()
        seed_dropout(module, own_seed, *place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "seed_dropout", acting)
        yield
