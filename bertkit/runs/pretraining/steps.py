"""How many steps there are in some epochs, and how many fit into some hours."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from bertkit import progress
from bertkit.config import PretrainConfig
from bertkit.corpus.corpora import Corpus
from bertkit.corpus.mixing import Mix
from bertkit.corpus.sampling import COUNTED, WINDOW
from bertkit.errors import UsageError
from bertkit.model.batch import Batch
from bertkit.model.devices import sum_over_processes, value_of_main_process
from bertkit.runs.pretraining.course import EVALUATIONS
from bertkit.runs.pretraining.sequences import HeldOutSequences
from bertkit.training.loop import train

if TYPE_CHECKING:
    from accelerate import Accelerator

REHEARSED = 50  # maximum number of steps to time
REHEARSAL = 0.02  # maximum share of the hours to spend on timing


def mean_batch_size(config: PretrainConfig) -> float:
    """The mean number of sequences in a step of the run."""
    first, share = config.ramp()
    return config.batch_size - (config.batch_size - first) * share / 2


def steps_of_epochs(config: PretrainConfig, corpora: Sequence[Corpus], mix: Mix) -> int:
    """The steps of --num-epochs epochs of a mix of corpora."""
    count, exact = mix.epoch_length([corpus.meta["train"]["tokens"] for corpus in corpora])
    if not exact:
        progress.note(f"an epoch has about {count} sequences, estimated from {COUNTED * WINDOW} shards of a corpus")
    return max(1, math.ceil(config.num_epochs * count / mean_batch_size(config)))


def steps_of_hours(
    config: PretrainConfig,
    start: float,
    module: nn.Module,
    batches_of: Callable[..., list[Batch]],
    mixes: Sequence[Mix],
    validation: HeldOutSequences | None,
    accelerator: Accelerator,
) -> int:
    """The steps that fit into --hours since `start`, found by timing some steps of each phase."""
    assert config.hours is not None
    progress.note(f"timing steps to plan for {config.hours:g} hours")

    def seconds_a_step(mix: Mix) -> float:
        return rehearse(module, lambda step: batches_of(mix, mix.numbers_at(step)), config, accelerator)

    seconds = [seconds_a_step(mix) for mix in mixes]
    left = value_of_main_process(start + 3600 * config.hours - time.perf_counter(), accelerator)
    own = 0 if validation is None else len(validation.features)
    held_out = int(sum_over_processes(torch.tensor(own, dtype=torch.float64), accelerator))
    return steps_in(config, left, seconds, held_out)


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
        return value_of_main_process(np.diff(ends).mean(), accelerator)

    seconds = seconds_per_step(5)
    affordable = int(REHEARSAL * 3600 * config.hours / seconds)
    return seconds_per_step(min(REHEARSED, affordable)) if affordable > 5 else seconds


def steps_in(config: PretrainConfig, seconds: float, seconds_per_step: Sequence[float], held_out: int) -> int:
    """How many steps fit into `seconds`, with evaluations of `held_out` sequences. seconds_per_step: of each phase, for full
    batches.

    Evaluating a batch, which is only its forward pass, counts as a third of a step. Raises UsageError if no step fits.
    """
    evaluation = held_out / config.batch_size * seconds_per_step[-1] / 3
    step = sum(share * each for (_, share), each in zip(config.lengths(), seconds_per_step, strict=True))
    step *= mean_batch_size(config) / config.batch_size
    if config.eval_steps is None:
        seconds -= EVALUATIONS * evaluation
    else:
        step += evaluation / config.eval_steps
    if seconds < step:
        what = f"--hours is {config.hours:g}, too short for one step of {step:.1f} seconds"
        raise UsageError(what, hint="give more hours, or a smaller --batch-size")
    return int(seconds / step)
