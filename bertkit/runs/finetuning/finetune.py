"""Fine-tune a model on a recipe into a run folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from bertkit import progress
from bertkit.config import TrainConfig, filled
from bertkit.errors import UserError, listed, plural, quoted
from bertkit.metrics.classification import METRICS, check_metrics
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.model.devices import refuse_differences, start_accelerator
from bertkit.model.directory import load_weights, read_config, read_state_dict, save_model
from bertkit.model.layerwise import freeze, reinitialize
from bertkit.model.precision import matrix_rate, refuse_int8, resolve_precision
from bertkit.model.pretrained import Pretrained, check_max_length, check_segments, open_pretrained
from bertkit.readers import Examples, Remarks
from bertkit.readers.remote import path_of
from bertkit.readers.splitting import why_another_share
from bertkit.report import show
from bertkit.runs.directory import SAME, RunFolder, scores_table
from bertkit.runs.dry_run import measure
from bertkit.runs.evaluate import CONSTANT, Scored, Split, encode_split, score_splits
from bertkit.runs.finetuning.baselines import Baselines, fit_baselines
from bertkit.runs.inference.predictor import predict_and_tell
from bertkit.runs.inference.scores import score_intervals
from bertkit.runs.publishing.card import model_card
from bertkit.runs.remarks import report_remarks
from bertkit.runs.run_file import describe_run
from bertkit.runs.target import open_target
from bertkit.tasks.defaults import choose_settings
from bertkit.tasks.preview import preview
from bertkit.tasks.recipe import Recipe, published_scores
from bertkit.tasks.saved import to_json
from bertkit.tasks.splits import Splits, read_splits
from bertkit.tasks.task import Task
from bertkit.training.batching import Sampler, training_batches
from bertkit.training.loop import TrainState, check_machine, train
from bertkit.training.metrics_log import MetricsLog
from bertkit.training.tracking import check_trackers, tracked
from bertkit.training.vocabulary import UsedVocabulary
from bertkit.training.writer import WriteModel

if TYPE_CHECKING:
    from accelerate import Accelerator

_ROWS_ASTRAY, _SHARE_ASTRAY = 2, 0.25  # by how much held-out rows may differ from what was asked for without a warning


def total_steps(config: TrainConfig, sampler: Sampler) -> int:
    """Optimizer steps of the whole run."""
    return config.max_steps or max(1, math.ceil(config.num_epochs * sampler.steps_per_epoch))


def input_paths(recipe: Recipe, name: str) -> list[Path]:
    """The files and folders of a recipe's data, and its own file."""
    paths = [recipe.data, recipe.train, recipe.validation, recipe.test, name if name.endswith(".py") else None]
    return [path_of(path) for path in paths if path]


def finetune(
    recipe: Recipe,
    *,
    name: str,
    model: str,
    output_dir: Path,
    resume: str = "auto",
    overwrite: bool = False,
    fresh_head: bool | None = False,
    dry_run: bool = False,
    num_examples: int = 3,
    checked: bool = False,
    data: Splits | None = None,
    chosen: Mapping[str, Any] | None = None,
    baselines: bool = False,
    is_part: bool = False,
    evaluated: Callable[[float | None], object] = lambda objective: None,
) -> dict[str, Any]:
    """Train `model` on the recipe's data into the run folder output_dir. Returns the final content of run.json.

    Data, model and settings are checked before the first step. fresh_head: replace the model's head; None: only if its size
    differs. dry_run: show num_examples examples, time the first steps, and write nothing. checked: remarks on the rows were
    shown before, and are not repeated. data, chosen: the recipe's splits, and the settings that nobody stated, where they are
    already read and chosen. baselines: compare with what it must beat. is_part: of what another command makes, such as a trial
    of tune: without intervals for a model card, and without a word on what comes next. evaluated: called after each evaluation
    with the score that decides which step is best, higher is better; what it raises ends the run, which stays unfinished.
    """
    refuse_int8(recipe.training.precision, "training")
    accelerator = start_accelerator(recipe.training.device)
    check_machine(recipe.training, accelerator.device)
    reads: list[str | Path] = [model, *input_paths(recipe, name)]
    run = None if dry_run else RunFolder.prepare(output_dir, resume=resume, overwrite=overwrite, reads=reads)
    if run is not None:
        run.refuse_other_folders(accelerator)
    pretrained = open_pretrained(model)
    eval_splits, recipe = recipe.eval_splits, recipe.resolved()
    if recipe.data is not None and (missing := [split for split in eval_splits if split not in recipe.eval_splits]):
        progress.note(f"{recipe.data} has no files for some splits, which are not evaluated: {', '.join(missing)}")
    check_trackers(recipe.training.track)
    if note := check_metrics(recipe.metrics):
        progress.note(note)
    if recipe.training.max_length is not None:
        check_max_length(recipe.training.max_length, pretrained.config)

    data = data or read_splits(recipe)
    before = (run and run.unfinished) or {}  # run.json of the run to resume
    task, chosen = _fitted(recipe, data, pretrained, before, chosen, fresh_head=fresh_head)
    config = task.recipe.training
    if not checked:
        report_remarks(task.remarks)
    _report_held_out(task, data.rows)
    splits = _encoded(task, data.rows, pretrained, checked=checked)
    described = {name: split.describe(task) for name, split in splits.items()}
    same = {f"data.{name}.{key}": value for name, of in described.items() for key, value in of.items() if key != "source"}
    refuse_differences(same, accelerator, hint=SAME)
    if dry_run:
        shown = splits[recipe.train_split]
        show(preview(task, shown.examples, shown.features, pretrained.tokenizer, count=num_examples))
    examples = {name: split.examples for name, split in splits.items()} if baselines else {}

    model_config = task.configure(pretrained.config)
    module = _build(task, model_config, pretrained)
    num_parameters = sum(p.numel() for p in module.parameters())  # before unused embeddings are set aside
    vocabulary = UsedVocabulary([split.features for split in splits.values()], module, config)
    splits = {name: replace(split, features=vocabulary.narrow(split.features)) for name, split in splits.items()}
    freeze(module, config)
    training = splits.pop(recipe.train_split)
    if splits:
        tuned_on, held_out = next(iter(splits.items()))
        for remark in task.remarks_on_tuning(task.truth(held_out.examples)):
            progress.note(f"{tuned_on}: {remark}")
    sampler = Sampler(len(training.features), config.batch_size, config.seed)
    steps = total_steps(config, sampler)
    precision = resolve_precision(config.precision, model_config, accelerator, training=True, recorded=before.get("dtype"))
    if line := str(precision):
        progress.note(line)
    in_precision = replace(config, precision=precision.name)
    progress.note(
        f"{plural(len(training.features), 'feature')} / batch_size {config.batch_size} = "
        f"{plural(sampler.steps_per_epoch, 'step')} per epoch; "
        f"{steps} in total; {plural(accelerator.num_processes, 'process', 'processes')} on {accelerator.device}, "
        f"{precision.recorded}"
    )
    batches = training_batches(
        training.features,
        sampler,
        config.micro_batch_tokens,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
    if run is None:
        if (to_beat := _baselines(task, examples, pretrained, accelerator)) is not None:
            show(to_beat.report())
        sampled = [sum(len(batch.input_ids) for batch in batches(step)) for step in range(min(steps, 50))]
        tokens = steps * float(np.mean(sampled)) * accelerator.num_processes
        return measure(module, batches, in_precision, accelerator, steps=steps, tokens=tokens, parameters=num_parameters)

    values = describe_run(
        recipe=to_json(recipe, name=name),
        training=config,
        model={"name": model, "fresh_head": task.fresh_head, **pretrained.fingerprint()},
        data=described,
        asked={name: value for name, value in asdict(recipe.training).items() if value is not None},
        chosen=chosen or before.get("chosen"),
        baselines=before.get("baselines"),
        task=task.to_json(),
        dtype=precision.recorded,
        rates=precision.rates or before.get("rates"),
        num_processes=accelerator.num_processes,
        total_steps=steps,
    )

    evaluations = _Evaluations(task, splits, accelerator, evaluated)
    if run.resume_from is not None:
        evaluations.tuned = Task.restore(read_config(run.resume_from), task.recipe, where=str(run.resume_from))
    architecture = task.architecture(model_config)

    def model_at(step: int) -> WriteModel:
        tuned_config = evaluations.tuned.configure(pretrained.config)  # the next evaluation, which may come first, tunes anew

        def write(folder: Path, state_dict: dict[str, Tensor]) -> None:
            save_model(
                folder,
                state_dict=vocabulary.widen(state_dict, step=step, total_steps=steps),
                config=tuned_config,
                tokenizer=pretrained.tokenizer,
                architecture=architecture,
            )

        return write

    def finish() -> str:
        wanted = not is_part and all(metric in METRICS.values() for metric in recipe.metrics)  # others may take long
        scored = evaluations.best
        if wanted and scored is not None and scored.scores == values["best"]["scores"]:  # else: before a resume
            values["intervals"] = score_intervals(scored)
        values["task"] = Task.restore(read_config(output_dir), task.recipe, where=str(output_dir)).to_json()  # of the best step
        return model_card(values, pretrained.name, architecture)

    with run.open(values, accelerator), tracked(accelerator, config.track, output_dir, values["training"]):
        state = train(
            module,
            batches,
            in_precision,
            accelerator,
            total_steps=steps,
            run_dir=output_dir,
            save_model=model_at,
            read_model=lambda folder: vocabulary.narrow_weights(read_state_dict(folder)),
            evaluate=evaluations,
            eval_every=config.eval_steps or sampler.steps_per_epoch,
            resume_from=run.resume_from,
            matrix_rate=matrix_rate(precision, model_config, accelerator),
        )
        to_beat = None
        try:  # now: nobody waits for them before the first step
            to_beat = _baselines(task, examples, pretrained, accelerator)
        except UserError as error:  # the run is trained, and ends
            progress.warn(f"no baselines to compare with: {error}")
        if to_beat is not None:
            values["baselines"] = to_beat.first_scores()
        run.end(values, state, accelerator, finish)
    if state.best_scores:
        progress.table(str(output_dir), *scores_table(state, published_scores(recipe, model)))
    if to_beat is not None:
        best = open_target(str(output_dir), None, {}, to_predict=True)
        show(to_beat.compare(predict_and_tell(best, replace(to_beat.examples, remarks=Remarks()))))
    _warn_of_training(state, MetricsLog(output_dir).read(), config)
    if architecture == "BertModel":
        progress.note("transformers does not know this head: it opens the folder only as an encoder")
    if not is_part:
        progress.note(f"the best model is in {output_dir}; next: bertkit predict {output_dir} FILE")
    return values


def _fitted(
    recipe: Recipe,
    data: Splits,
    pretrained: Pretrained,
    before: Mapping[str, Any],
    chosen: Mapping[str, Any] | None,
    *,
    fresh_head: bool | None,
) -> tuple[Task, Mapping[str, Any]]:
    """The task with all its settings, and those of them that nobody stated. before: run.json of the run to resume, or empty.

    chosen: the settings, where they are already chosen.
    """
    assert data.training is not None
    earlier = _resolved_earlier(before) if before else {}
    if chosen is None or earlier:
        chosen = choose_settings(recipe, data.rows[recipe.train_split], pretrained, earlier=earlier)
    config = filled(recipe.training, earlier, chosen)
    check_max_length(config.max_length, pretrained.config)
    recipe = replace(recipe, training=config)
    task = Task.fit(recipe, data.training, pretrained.config, fresh_head=fresh_head, where=str(pretrained.folder))
    if chosen:
        by, *settings = [f"{name} {value}" for name, value in chosen.items()]
        progress.note(f"chosen {by}: {', '.join(settings)}")
    return task, chosen


def _build(task: Task, model_config: BertConfig, pretrained: Pretrained) -> nn.Module:
    """The module with the model's weights, and fresh ones where it has none or they are reinitialized."""
    config = task.recipe.training
    module = task.build(model_config)
    initialize(module, model_config, seed=config.seed)
    if fresh := load_weights(module, pretrained.folder, fresh_head=task.fresh_head):
        progress.note(f"fresh weights (seed {config.seed}), not in the model: {', '.join(fresh)}")
    reinitialize(module, model_config, config)
    return module


class _Evaluations:
    """Scores a module while it trains. tuned: the task with the thresholds of the last evaluation. best: its best scores."""

    def __init__(
        self,
        task: Task,
        splits: Mapping[str, Split],
        accelerator: Accelerator,
        evaluated: Callable[[float | None], object],
    ) -> None:
        self.task, self.splits, self.accelerator, self.evaluated = task, splits, accelerator, evaluated
        self.tuned = task
        self.best: Scored | None = None

    def __call__(self, trained: nn.Module) -> tuple[dict[str, float | None], float | None]:
        scored = score_splits(self.task, [trained], self.splits, self.accelerator, tune=True)
        self.tuned = scored.task
        if self.best is None or _worth(scored) > _worth(self.best):
            self.best = scored
        self.evaluated(scored.objective)
        return scored.scores, scored.objective


def _worth(scored: Scored) -> float:
    return -math.inf if scored.objective is None else scored.objective


def _encoded(task: Task, rows: Mapping[str, Examples], pretrained: Pretrained, *, checked: bool) -> dict[str, Split]:
    """Each split with its features: of training those that have something to learn."""
    splits = {name: encode_split(task, name, split, pretrained.tokenizer, checked=checked) for name, split in rows.items()}
    training = splits[task.recipe.train_split]
    splits[task.recipe.train_split] = replace(training, features=training.features.with_targets())
    for split in splits.values():
        check_segments(split.features, pretrained.config)
    return splits


def _baselines(
    task: Task, examples: Mapping[str, Examples], pretrained: Pretrained, accelerator: Accelerator
) -> Baselines | None:
    """What the model must beat on the first evaluated split; None without examples, or without such a split."""
    if not examples or not task.recipe.eval_splits:
        return None
    evaluated = task.recipe.eval_splits[0]
    return fit_baselines(task, examples[task.recipe.train_split], examples[evaluated], evaluated, pretrained, accelerator)


def _resolved_earlier(unfinished: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the unfinished run that were defaults or chosen. The user must repeat those that were given."""
    return {name: value for name, value in unfinished["training"].items() if name not in unfinished.get("asked", {})}


def _report_held_out(task: Task, rows: Mapping[str, Examples]) -> None:
    """Warn if the held-out share is far from the requested one, and say why; note labels it lacks."""
    recipe = task.recipe
    requested = recipe.held_out_share
    if requested is None or "validation" not in rows:
        return
    training, held_out = rows[recipe.train_split], rows["validation"]
    if isinstance(requested, float) and recipe.max_train_samples is None:
        total = len(held_out) + len(training)
        if abs(len(held_out) - requested * total) > max(_ROWS_ASTRAY, _SHARE_ASTRAY * requested * total):
            labels_of = (recipe.split_by(part)[1] or [()] * len(part) for part in (training, held_out))
            why = why_another_share(requested, *labels_of)
            progress.warn(f"held out: {len(held_out) / total:.0%} of the rows instead of {requested:.0%}, because {why}")
    if getattr(recipe, "regression", False):
        return
    labels, held_out_labels = (
        {name for names in recipe.labels_of(recipe.standardize(part, labelled=True)) for name in names}
        for part in (training, held_out)
    )
    if missing := sorted(labels - held_out_labels):
        progress.note(f"held out: no row has {listed([*map(quoted, missing)], 12)}: the scores do not cover them")


def _warn_of_training(state: TrainState, events: Sequence[Mapping[str, Any]], config: TrainConfig) -> None:
    """Say where a run ends too early, or comes to nothing. events: of metrics.jsonl."""
    for name in state.best_scores:
        if name.endswith(CONSTANT):
            split = name.removesuffix(f"/{CONSTANT}")
            progress.warn(f"{split}: the model predicts the same for every row; train longer, or with a higher --learning-rate")
    loss = next((name for name in state.last_scores if name.endswith("/loss")), None)
    losses = [event[loss] for event in events if loss is not None and loss in event]
    if state.best_step == state.step and len(losses) > 1 and losses[-1] == min(losses):
        improving = "still improving: the last evaluation is the best, and its loss the lowest"
        progress.note(f"{improving}; {config.longer} may help")
