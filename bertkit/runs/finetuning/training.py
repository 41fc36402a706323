"""Trains a model with a task's head and saves it in a run folder, or times its first steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from bertkit import progress
from bertkit.config import TrainConfig
from bertkit.errors import UserError, plural
from bertkit.metrics.classification import can_be_resampled
from bertkit.model.batch import Batch
from bertkit.model.config import BertConfig
from bertkit.model.directory import read_config, read_state_dict, save_model
from bertkit.model.layerwise import freeze
from bertkit.model.precision import Precision, matrix_rate, resolve_precision
from bertkit.model.pretrained import Pretrained, start_from
from bertkit.readers import Examples, Remarks
from bertkit.report import Report, show
from bertkit.runs.directory import RunFolder
from bertkit.runs.dry_run import measure
from bertkit.runs.encoded import Split
from bertkit.runs.evaluation.evaluate import score_intervals
from bertkit.runs.finetuning.baselines import Baselines, fit_baselines
from bertkit.runs.inference.task_predictor import predict_with_progress
from bertkit.runs.publishing.card import model_card
from bertkit.runs.scoring import CONSTANT, Scored, published_scores, score_splits, scores_table
from bertkit.runs.target import open_target
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task
from bertkit.training.batching import Sampler, training_batches
from bertkit.training.loop import train
from bertkit.training.metrics_log import MetricsLog
from bertkit.training.state import TrainState, worth
from bertkit.training.tracking import tracked
from bertkit.training.vocabulary import UsedVocabulary
from bertkit.training.writer import WriteModel

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class PreparedFinetuning:
    """Everything needed to train a model for a task.

    config: includes the resolved precision. num_parameters: of the whole model, including embeddings that training leaves out.
    held_out: the splits to evaluate. examples: of every split, for the baselines; empty for none.
    """

    task: Task
    config: TrainConfig
    precision: Precision
    pretrained: Pretrained
    model_config: BertConfig
    module: nn.Module
    num_parameters: int
    vocabulary: UsedVocabulary
    held_out: dict[str, Split]
    examples: Mapping[str, Examples]
    batches: Callable[[int], list[Batch]]
    steps_per_epoch: int
    steps: int
    accelerator: Accelerator


def total_steps(config: TrainConfig, sampler: Sampler) -> int:
    """The number of optimizer steps in the whole run."""
    return config.max_steps or max(1, math.ceil(config.num_epochs * sampler.steps_per_epoch))


def prepare_training(
    task: Task,
    splits: dict[str, Split],
    pretrained: Pretrained,
    accelerator: Accelerator,
    *,
    baselines: bool,
    recorded: str | None = None,
    resuming: bool = False,
) -> PreparedFinetuning:
    """Build the model and its batches, and print notes about the training. Empties `splits`: the training has its own copy.

    baselines: whether to keep the examples for them. recorded: the dtype of the run to resume. resuming: whether the weights
    of a checkpoint will replace the model's.
    """
    config, model_config = task.recipe.training, task.configure(pretrained.config)
    module = task.build(model_config)
    start_from(pretrained, module, model_config, config, fresh_head=task.fresh_head, resuming=resuming)
    num_parameters = sum(p.numel() for p in module.parameters())
    examples = {name: split.examples for name, split in splits.items()} if baselines else {}
    vocabulary = UsedVocabulary([split.features for split in splits.values()], module, config)
    held_out = {name: replace(split, features=vocabulary.narrow(split.features)) for name, split in splits.items()}
    splits.clear()
    freeze(module, config)
    features = held_out.pop(task.recipe.train_split).features
    if held_out:
        tuned_on, split = next(iter(held_out.items()))
        for remark in task.remarks_on_tuning(task.truth(split.examples)):
            progress.note(f"{tuned_on}: {remark}")
    sampler = Sampler(len(features), config.batch_size, config.seed)
    steps = total_steps(config, sampler)
    precision = resolve_precision(config.precision, model_config, accelerator, training=True, recorded=recorded)
    if line := str(precision):
        progress.note(line)
    progress.note(
        f"{plural(len(features), 'feature')} / batch_size {config.batch_size} = "
        f"{plural(sampler.steps_per_epoch, 'step')} per epoch; "
        f"{steps} in total; {plural(accelerator.num_processes, 'process', 'processes')} on {accelerator.device.type}, "
        f"{precision.recorded}"
    )
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    return PreparedFinetuning(
        task=task,
        config=replace(config, precision=precision.name),
        precision=precision,
        pretrained=pretrained,
        model_config=model_config,
        module=module,
        num_parameters=num_parameters,
        vocabulary=vocabulary,
        held_out=held_out,
        examples=examples,
        batches=training_batches(features, sampler, config.micro_batch_tokens, **place),
        steps_per_epoch=sampler.steps_per_epoch,
        steps=steps,
        accelerator=accelerator,
    )


def time_first_steps(training: PreparedFinetuning) -> dict[str, Any]:
    """Time the first steps, and show how long the whole run would take."""
    steps = training.steps
    sampled = [sum(len(batch.input_ids) for batch in training.batches(step)) for step in range(min(steps, 50))]
    tokens = steps * float(np.mean(sampled)) * training.accelerator.num_processes
    parts = training.module, training.batches, training.config, training.accelerator
    return measure(*parts, steps=steps, tokens=tokens, parameters=training.num_parameters)


def train_into(
    run: RunFolder,
    training: PreparedFinetuning,
    values: dict[str, Any],
    on_evaluation: Callable[[float | None], object],
    *,
    is_part: bool,
) -> dict[str, Any]:
    """Train, save to the run folder, and show the scores. Returns the final contents of run.json.

    values: the initial contents of run.json.
    """
    task, vocabulary, accelerator = training.task, training.vocabulary, training.accelerator
    folder, recipe = run.output.path, task.recipe
    evaluations = _Evaluations(task, training.held_out, accelerator, on_evaluation)
    if run.resume_from is not None:
        evaluations.tuned = Task.restore(read_config(run.resume_from), recipe, where=str(run.resume_from))
    architecture = task.architecture(training.model_config)

    def model_at(step: int) -> WriteModel:
        tuned_config = evaluations.tuned.configure(training.pretrained.config)  # the next evaluation may tune before it is used

        def write(folder: Path, state_dict: dict[str, Tensor]) -> None:
            save_model(
                folder,
                state_dict=vocabulary.widen(state_dict, step=step, total_steps=training.steps),
                config=tuned_config,
                tokenizer=training.pretrained.tokenizer,
                architecture=architecture,
            )

        return write

    def finish() -> str:
        scored = evaluations.best
        wanted = not is_part and can_be_resampled(recipe.metrics)
        if wanted and scored is not None and scored.scores == values["best"]["scores"]:  # else: the best was before a resume
            values["intervals"] = score_intervals(scored)
        values["task"] = Task.restore(read_config(folder), recipe, where=str(folder)).to_json()  # at the best step
        return model_card(values, training.pretrained.name, architecture)

    with run.open(values, accelerator), tracked(accelerator, recipe.training.track, folder, values["training"]):
        state = train(
            training.module,
            training.batches,
            training.config,
            accelerator,
            total_steps=training.steps,
            run_dir=folder,
            save_model=model_at,
            read_model=lambda folder: vocabulary.narrow_weights(read_state_dict(folder)),
            evaluate=evaluations if training.held_out else None,  # without, the last step counts as the best
            eval_every=training.config.eval_steps or training.steps_per_epoch,
            resume_from=run.resume_from,
            matrix_rate=matrix_rate(training.precision, training.model_config, accelerator),
        )
        to_beat = None
        try:  # only now, so that the first step does not wait for them
            to_beat = baselines_of(training)
        except UserError as error:  # the run is trained, and finishes anyway
            progress.warn(f"no baselines to compare with: {error}")
        if to_beat is not None:
            values["baselines"] = to_beat.first_scores()
        run.end(values, state, accelerator, finish)
    if state.best_scores:
        show(Report([scores_table(state, str(folder), published_scores(recipe, training.pretrained.name))]))
    if to_beat is not None:
        best = open_target(str(folder), None, {}, to_predict=True)
        show(to_beat.compare(predict_with_progress(best, replace(to_beat.examples, remarks=Remarks()))))
    _warn_of_training(state, MetricsLog(folder).read(), recipe, training.config)
    if architecture == "BertModel":
        progress.note("transformers does not know this head: it opens the folder only as an encoder")
    if not is_part:
        progress.note(f"the best model is in {folder}; next: bertkit predict {quote(str(folder))} FILE")
    return values


class _Evaluations:
    """Scores a module during training. tuned: the task with the last evaluation's thresholds. best: the best scores so far."""

    def __init__(
        self,
        task: Task,
        splits: Mapping[str, Split],
        accelerator: Accelerator,
        on_evaluation: Callable[[float | None], object],
    ) -> None:
        self.task, self.splits, self.accelerator, self.on_evaluation = task, splits, accelerator, on_evaluation
        self.tuned = task
        self.best: Scored | None = None

    def __call__(self, trained: nn.Module) -> tuple[dict[str, float | None], float | None]:
        scored = score_splits(self.task, [trained], self.splits, self.accelerator, tune=True)
        self.tuned = scored.task
        if self.best is None or worth(scored.objective, scored.scores) > worth(self.best.objective, self.best.scores):
            self.best = scored
        self.on_evaluation(scored.objective)
        return scored.scores, scored.objective


def baselines_of(training: PreparedFinetuning) -> Baselines | None:
    """The baselines on the first evaluated split; None without examples, or without such a split."""
    task, examples = training.task, training.examples
    if not examples or not task.recipe.eval_splits:
        return None
    evaluated = task.recipe.eval_splits[0]
    rows = examples[task.recipe.train_split], examples[evaluated]
    return fit_baselines(task, *rows, evaluated, training.pretrained, training.accelerator)


def _warn_of_training(state: TrainState, events: Sequence[Mapping[str, Any]], recipe: Recipe, config: TrainConfig) -> None:
    """Report a run that ended too early or learned nothing. events: of metrics.jsonl."""
    for name in state.best_scores:
        if name.endswith(CONSTANT):
            split = name.removesuffix(f"/{CONSTANT}")
            progress.warn(f"{split}: the model makes the same prediction for every row; train longer, or vary --learning-rate")
    loss = next((name for name in state.last_scores if name.endswith("/loss")), None)
    losses = [event[loss] for event in events if loss is not None and loss in event]
    is_perfect = state.best_objective == (1 if recipe.greater_is_better else 0)
    if state.best_step == state.step and len(losses) > 1 and losses[-1] == min(losses) and not is_perfect:
        improving = "still improving: the last evaluation has the best score and the lowest loss"
        progress.note(f"{improving}; {config.longer} may help")
