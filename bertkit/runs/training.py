"""Training into a run folder: what fine-tuning and pre-training share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from bertkit import manifest
from bertkit.config import TrainConfig
from bertkit.model.batch import Batch
from bertkit.model.directory import read_state_dict
from bertkit.runs.directory import RunFolder, describe_end, end_run
from bertkit.training.checkpoint import drop_training_state
from bertkit.training.loop import TrainState, train
from bertkit.training.tracking import tracked
from bertkit.training.writer import WriteModel

if TYPE_CHECKING:
    from accelerate import Accelerator


def train_run(
    run: RunFolder,
    values: dict[str, Any],
    module: nn.Module,
    batches: Callable[[int], list[Batch]],
    config: TrainConfig,
    accelerator: Accelerator,
    *,
    save_model: Callable[[int], WriteModel],
    read_model: Callable[[Path], dict[str, Tensor]] = read_state_dict,
    evaluate: Callable[[nn.Module], tuple[dict[str, float | None], float | None]] | None,
    eval_every: int,
    finish: Callable[[], str],
    position: Callable[[int], list[int]] | None = None,
    matrix_rate: float | None = None,
) -> TrainState:
    """Train in a run folder, from its checkpoint if it resumes; then write the model card and the final run.json.

    values: the content of run.json. finish: completes it, once the training has ended, and returns the model card. The others
    are as in `train`.
    """
    folder = run.output.path
    with run.open(values, accelerator), tracked(accelerator, config.track, folder, values["training"]):
        state = train(
            module,
            batches,
            config,
            accelerator,
            total_steps=values["total_steps"],
            run_dir=folder,
            save_model=save_model,
            read_model=read_model,
            evaluate=evaluate,
            eval_every=eval_every,
            resume_from=run.resume_from,
            position=position,
            matrix_rate=matrix_rate,
        )
        manifest.finish()
        values |= describe_end(state)
        if accelerator.is_main_process:
            end_run(folder, values, card=finish())
            if not config.keep_training_state:
                drop_training_state(folder)
        accelerator.wait_for_everyone()
    return state
