"""Estimates what training would take on this machine, by timing its first steps."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from bertkit.config import TrainConfig
from bertkit.model.batch import Batch
from bertkit.model.devices import peak_memory
from bertkit.report import Report, Table, show
from bertkit.training.loop import train
from bertkit.training.metrics_log import MetricsLog
from bertkit.training.optimizer import RULES

if TYPE_CHECKING:
    from accelerate import Accelerator

TIMED = 3  # steps


def measure(
    module: nn.Module,
    batches: Callable[[int], list[Batch]],
    config: TrainConfig,
    accelerator: Accelerator,
    *,
    steps: int,
    tokens: float,
    parameters: int,
) -> dict[str, Any]:
    """Train for a few steps, and show the time and memory that all `steps` would take. Returns {} except on the main process.

    config: includes the resolved precision. tokens: how many the whole run would read, over all processes. parameters: the
    number of the model's parameters.
    """
    with tempfile.TemporaryDirectory() as folder:
        logging = replace(config, logging_steps=1)
        train(module, batches, logging, accelerator, total_steps=min(TIMED, steps), run_dir=Path(folder))
        log = MetricsLog(Path(folder)).read()
    if not accelerator.is_main_process:  # only the main process has a log
        accelerator.wait_for_everyone()
        return {}
    tokens_per_second = float(np.median([event["tokens_per_second"] for event in log]))
    memory = peak_memory(accelerator.device)
    if accelerator.device.type == "cpu":  # a checkpoint is first copied, in float32
        copied = sum(p.numel() * (1 + p.requires_grad * len(RULES[config.optimizer].moments)) for p in module.parameters())
        memory += copied * 4 / 2**20
    measured = {
        "parameters": parameters,
        "peak memory, MiB": round(memory),
        "steps": steps,
        "tokens per second": round(tokens_per_second),
        "training, seconds": round(tokens / tokens_per_second),
    }
    show(Report([Table("dry run: nothing was written", [*measured], [[*measured.values()]])]))
    accelerator.wait_for_everyone()
    return measured
