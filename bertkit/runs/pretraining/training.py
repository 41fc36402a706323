"""Pre-trains a model and saves it in a run folder, or times its first steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from bertkit import progress
from bertkit.config import PretrainConfig
from bertkit.corpus.mixing import Mix
from bertkit.corpus.objectives import Objective
from bertkit.model.batch import Batch
from bertkit.model.config import BertConfig
from bertkit.model.directory import save_model
from bertkit.model.precision import Precision, matrix_rate
from bertkit.report import Report, show
from bertkit.runs.directory import RunFolder
from bertkit.runs.dry_run import measure
from bertkit.runs.pretraining.course import EVALUATIONS, Course
from bertkit.runs.pretraining.held_out import score_language_model
from bertkit.runs.pretraining.sequences import HeldOutSequences
from bertkit.runs.publishing.card import pretraining_card
from bertkit.runs.scoring import refuse_not_finite, scores_table
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.loop import train
from bertkit.training.tracking import tracked

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class PreparedPretraining:
    """Everything needed to pre-train a model.

    config: includes the resolved precision. mixes: the corpora in each phase of the course. batches_of: makes micro-batches
    from a mix and sequence numbers. validation: the held-out sequences. to_beat: the loss on them of a model that only knows
    token frequencies.
    """

    objective: Objective
    config: PretrainConfig
    precision: Precision
    model_config: BertConfig
    module: nn.Module
    tokenizer: Tokenizer
    mixes: Sequence[Mix]
    course: Course
    batches_of: Callable[..., list[Batch]]
    validation: HeldOutSequences | None
    to_beat: float | None
    accelerator: Accelerator

    def batches(self, step: int) -> list[Batch]:
        course = self.course
        mix = self.mixes[course.phase_at(step)]
        return self.batches_of(mix, course.numbers_at(step), masked=course.mlm_probability_at(step))

    def position_at(self, step: int) -> list[int]:
        """The phase, and how far each of its corpora has been read."""
        phase = self.course.phase_at(step)
        return [phase, *self.mixes[phase].mark_at(self.course.sequences_before(step))]

    def evaluate(self, trained: nn.Module) -> tuple[dict[str, float | None], float | None]:
        """Scores on the held-out sequences, and the objective to maximize: the negative loss. Raises like refuse_not_finite."""
        assert self.validation is not None
        scores = score_language_model(trained, self.validation, self.config.micro_batch_tokens, self.accelerator)
        loss = scores[f"{self.objective.token_term}_loss"]
        refuse_not_finite(loss, "the held-out documents")
        return {f"validation/{name}": value for name, value in scores.items()}, -loss

    def save(self, folder: Path, state_dict: dict[str, Tensor]) -> None:
        architecture = self.objective.head.__name__
        save_model(folder, state_dict=state_dict, config=self.model_config, tokenizer=self.tokenizer, architecture=architecture)


def time_first_steps(training: PreparedPretraining, whole: Sequence[float]) -> dict[str, Any]:
    """Time the first steps, and show how long the whole run would take. whole: steps per phase, if all batches were full."""
    mixes = zip(whole, training.mixes, strict=True)
    tokens = sum(steps * float(mix.lengths(mix.numbers_at(0)).sum()) for steps, mix in mixes)
    parameters = sum(parameter.numel() for parameter in training.module.parameters())
    parts = training.module, training.batches, training.config, training.accelerator
    return measure(*parts, steps=training.course.steps, tokens=tokens, parameters=parameters)


def train_into(run: RunFolder, training: PreparedPretraining, values: dict[str, Any]) -> dict[str, Any]:
    """Train, save to the run folder, and show the scores. Returns the final contents of run.json.

    values: the initial contents of run.json.
    """
    config, steps, accelerator, folder = training.config, training.course.steps, training.accelerator, run.output.path
    with run.open(values, accelerator), tracked(accelerator, config.track, folder, values["training"]):
        state = train(
            training.module,
            training.batches,
            config,
            accelerator,
            total_steps=steps,
            run_dir=folder,
            save_model=lambda step: training.save,
            evaluate=training.evaluate if training.validation is not None else None,
            eval_every=config.eval_steps or math.ceil(steps / EVALUATIONS),
            resume_from=run.resume_from,
            best_since=training.course.since,
            position=training.position_at,
            matrix_rate=matrix_rate(training.precision, training.model_config, accelerator),
            average_from=steps - round(config.average_ratio * steps),
        )
        run.end(values, state, accelerator, partial(pretraining_card, values))
    if state.best_scores:
        show(Report([scores_table(state, str(folder))]))
        _warn_of_loss(state.best_scores[f"validation/{training.objective.token_term}_loss"], training.to_beat)
    progress.note(f"the model is in {folder}; next: bertkit finetune RECIPE --model {quote(str(folder))} --output-dir ...")
    return values


def _warn_of_loss(loss: float | None, to_beat: float | None) -> None:
    if to_beat is not None and loss is not None and loss >= to_beat:
        what = f"the model is no better than a unigram baseline: its loss is {loss:.2f}, the baseline's {to_beat:.2f}"
        progress.warn(f"{what}; train for more steps: --max-steps or --num-epochs, or a smaller --batch-size")
