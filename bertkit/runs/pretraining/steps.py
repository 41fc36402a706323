"""How many steps there are in some epochs, and how many fit into some hours."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from bertkit import progress
from bertkit.config import PretrainConfig
from bertkit.corpus.corpora import Corpus
from bertkit.corpus.mixing import Mix
from bertkit.corpus.sampling import COUNTED, WINDOW
from bertkit.model.batch import Batch
from bertkit.model.devices import of_all_processes, of_main_process
from bertkit.runs.pretraining.course import mean_batch_size, steps_in
from bertkit.runs.pretraining.rehearsal import rehearse
from bertkit.runs.pretraining.sequences import HeldOutSequences

if TYPE_CHECKING:
    from accelerate import Accelerator


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
    left = of_main_process(start + 3600 * config.hours - time.perf_counter(), accelerator)
    own = 0 if validation is None else len(validation.features)
    held_out = int(of_all_processes(torch.tensor(own, dtype=torch.float64), accelerator))
    return steps_in(config, left, seconds, held_out)
