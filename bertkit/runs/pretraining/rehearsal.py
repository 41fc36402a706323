"""Measures how long a step takes, by training a copy of the model for some steps, to plan for --hours."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from bertkit.config import PretrainConfig
from bertkit.model.batch import Batch
from bertkit.model.devices import of_main_process
from bertkit.training.loop import train

if TYPE_CHECKING:
    from accelerate import Accelerator

REHEARSED = 50  # maximum number of steps to time
REHEARSAL = 0.02  # maximum share of the hours to spend on timing


def rehearse(
    module: nn.Module, batches: Callable[[int], list[Batch]], config: PretrainConfig, accelerator: Accelerator
) -> float:
    """Seconds per step, by the main process's clock. Trains a copy: the module is unchanged."""
    assert config.hours is not None
    ends: list[float] = []

    def ended(trained: nn.Module) -> tuple[dict[str, float | None], float]:
        ends.append(time.perf_counter())
        return {}, len(ends)  # better each time, so that it is not stopped early

    def seconds_per_step(steps: int) -> float:
        ends.clear()
        with TemporaryDirectory() as folder:
            run = partial(train, total_steps=steps, run_dir=Path(folder), evaluate=ended, eval_every=1)
            run(copy.deepcopy(module), batches, config, accelerator)
        return of_main_process(np.diff(ends).mean(), accelerator)

    seconds = seconds_per_step(5)
    affordable = int(REHEARSAL * 3600 * config.hours / seconds)
    return seconds_per_step(min(REHEARSED, affordable)) if affordable > 5 else seconds
