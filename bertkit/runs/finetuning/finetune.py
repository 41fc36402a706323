"""Fine-tune a model on a recipe into a run folder, or try it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bertkit import progress
from bertkit.config import filled
from bertkit.metrics.classification import load_metrics
from bertkit.model.devices import refuse_differences, start_accelerator
from bertkit.model.precision import refuse_int8
from bertkit.model.pretrained import Pretrained, refuse_too_long, refuse_too_many_segments
from bertkit.readers import Examples
from bertkit.readers.formats import kind_of_split
from bertkit.readers.splitting import why_another_share
from bertkit.report import Report, show
from bertkit.runs.directory import SAME, RunFolder
from bertkit.runs.encoded import Split, encode_split
from bertkit.runs.finetuning.baselines import refuse_failing_metrics
from bertkit.runs.finetuning.training import baselines_of, prepare_training, time_first_steps, train_into
from bertkit.runs.remarks import report_remarks
from bertkit.runs.request import Request
from bertkit.runs.run_file import describe_run
from bertkit.runs.target import open_to_train
from bertkit.tasks.defaults import choose_settings
from bertkit.tasks.leaks import leaks
from bertkit.tasks.preview import preview
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import to_json
from bertkit.tasks.splits import Splits, read_splits
from bertkit.tasks.task import Task
from bertkit.training.loop import refuse_unsupported
from bertkit.training.tracking import refuse_unusable_trackers

if TYPE_CHECKING:
    from accelerate import Accelerator

_ROWS_ASTRAY, _SHARE_ASTRAY = 2, 0.25  # how far the number of held-out rows may be from the requested one without a warning


class Given(NamedTuple):
    """What the caller has already read, chosen, shown or tried. chosen: the settings that were not set."""

    data: Splits | None = None
    chosen: Mapping[str, Any] | None = None
    remarks_shown: bool = False
    metrics_tried: bool = False


_NOTHING = Given()


class _Fitted(NamedTuple):
    """A task with all its settings, and its rows. recipe: resolved, with the settings that were given. chosen: the others.
    described: the splits, for run.json.
    """

    recipe: Recipe
    task: Task
    chosen: Mapping[str, Any]
    pretrained: Pretrained
    splits: dict[str, Split]
    described: dict[str, dict[str, Any]]


def finetune(
    request: Request,
    output_dir: Path,
    *,
    resume: str = "auto",
    overwrite: bool = False,
    baselines: bool = False,
    is_part: bool = False,
    given: Given = _NOTHING,
    on_evaluation: Callable[[float | None], object] = lambda objective: None,
) -> dict[str, Any]:
    """Train a model on a recipe's data into the run folder output_dir. Returns the final content of run.json.

    Data, model and settings are checked before the first step. baselines: compare with baselines. is_part: the run is part of
    another command, such as a trial of tune: no intervals for the model card, and no hint at the next command. on_evaluation:
    called after each evaluation with the score that decides which step is best (higher is better); an exception from it ends
    the run, which stays unfinished.
    """
    accelerator = _start(request.recipe)
    run = RunFolder.prepare(output_dir, resume=resume, overwrite=overwrite, reads=request.reads)
    run.refuse_other_folders(accelerator)
    before = run.unfinished or {}  # run.json of the run to resume
    fitted = _fit(request, accelerator, given, before)
    training = prepare_training(
        fitted.task,
        fitted.splits,
        fitted.pretrained,
        accelerator,
        baselines=baselines,
        recorded=before.get("dtype"),
        resuming=run.resume_from is not None,
    )
    values = describe_run(
        recipe=to_json(fitted.recipe, name=request.name),
        training=fitted.task.recipe.training,
        model={"name": request.model, "fresh_head": fitted.task.fresh_head, **fitted.pretrained.fingerprint()},
        data=fitted.described,
        asked={name: value for name, value in asdict(fitted.recipe.training).items() if value is not None},
        chosen=fitted.chosen or before.get("chosen"),
        baselines=before.get("baselines"),
        task=fitted.task.to_json(),
        dtype=training.precision.recorded,
        rates=training.precision.rates or before.get("rates"),
        num_processes=accelerator.num_processes,
        num_threads=torch.get_num_threads(),
        total_steps=training.steps,
    )
    return train_into(run, training, values, on_evaluation, is_part=is_part)


def try_finetuning(
    request: Request, *, num_examples: int = 3, baselines: bool = False, given: Given = _NOTHING
) -> dict[str, Any]:
    """Show some examples, time the first steps, and write nothing. Returns what was measured, with the baselines' scores."""
    accelerator = _start(request.recipe)
    fitted = _fit(request, accelerator, given, before={})
    _show_examples(fitted, num_examples)
    training = prepare_training(fitted.task, fitted.splits, fitted.pretrained, accelerator, baselines=baselines)
    if (to_beat := baselines_of(training)) is None:
        return time_first_steps(training)
    show(to_beat.report())
    return time_first_steps(training) | {"baselines": to_beat.first_scores()}


def _show_examples(fitted: _Fitted, count: int) -> None:
    rows = fitted.splits[fitted.recipe.train_split]
    show(preview(fitted.task, rows.examples, rows.features, fitted.pretrained.tokenizer, count=count))


def _start(recipe: Recipe) -> Accelerator:
    """The accelerator for a recipe. Raises UsageError for a precision or option that it does not support."""
    refuse_int8(recipe.training.precision, "training")
    accelerator = start_accelerator(recipe.training.device)
    refuse_unsupported(recipe.training, accelerator.device)
    return accelerator


def _fit(request: Request, accelerator: Accelerator, given: Given, before: Mapping[str, Any]) -> _Fitted:
    """Read and check everything that a run needs, and show what is noticed. before: run.json of the run to resume, or empty."""
    recipe, pretrained = request.recipe, open_to_train(request.model)
    eval_splits, recipe = recipe.eval_splits, recipe.resolved()
    wanted = [split for split in eval_splits if not recipe.validation or kind_of_split(split) != "validation"]
    missing = [split for split in wanted if split not in recipe.eval_splits]
    if recipe.data is not None and missing:
        progress.note(f"{recipe.data} has no files for some splits, which are not evaluated: {', '.join(missing)}")
    refuse_unusable_trackers(recipe.training.track)
    if note := load_metrics(recipe.metrics):
        progress.note(note)
    if recipe.training.max_length is not None:
        refuse_too_long(recipe.training.max_length, pretrained.config)

    data = given.data or read_splits(recipe)
    task, chosen = _task_of(request, recipe, data, pretrained, before, given.chosen)
    if not given.remarks_shown:
        report_remarks(task.remarks)
    _report_held_out(task, data.rows)
    splits = _encoded(task, data.rows, pretrained, checked=given.remarks_shown)
    if not given.remarks_shown:
        show(Report([*leaks(task.recipe, recipe.train_split, {name: split.examples for name, split in splits.items()})]))
    if recipe.eval_splits and not given.metrics_tried:
        refuse_failing_metrics(task, *(splits[name].examples for name in (recipe.train_split, recipe.eval_splits[0])))
    described = {name: split.describe(task) for name, split in splits.items()}
    same = {f"data.{name}.{key}": value for name, of in described.items() for key, value in of.items() if key != "source"}
    refuse_differences(same, accelerator, hint=SAME)
    return _Fitted(recipe, task, chosen, pretrained, splits, described)


def _task_of(
    request: Request,
    recipe: Recipe,
    data: Splits,
    pretrained: Pretrained,
    before: Mapping[str, Any],
    chosen: Mapping[str, Any] | None,
) -> tuple[Task, Mapping[str, Any]]:
    """The task with all its settings, and those that were not set but chosen. recipe: resolved. before: run.json of the run to
    resume, or empty. chosen: these settings, if already chosen.
    """
    earlier = _resolved_earlier(before) if before else {}
    if chosen is None or earlier:
        chosen = choose_settings(recipe, data.rows[recipe.train_split], pretrained, earlier=earlier)
    config = filled(recipe.training, earlier, chosen)
    refuse_too_long(config.max_length, pretrained.config)
    task = request.fit(replace(recipe, training=config), data, pretrained)
    if chosen:
        settings = [f"{name} {value}" for name, value in chosen.items() if name != "by"]
        progress.note(f"chosen for {chosen['by']}: {', '.join(settings)}")
    return task, chosen


def _encoded(task: Task, rows: Mapping[str, Examples], pretrained: Pretrained, *, checked: bool) -> dict[str, Split]:
    """Each split with its features; for training, only those that have something to learn."""
    splits = {name: encode_split(task, name, split, pretrained.tokenizer, checked=checked) for name, split in rows.items()}
    training = splits[task.recipe.train_split]
    splits[task.recipe.train_split] = replace(training, features=training.features.with_targets())
    for split in splits.values():
        refuse_too_many_segments(split.features, pretrained.config)
    return splits


def _resolved_earlier(unfinished: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the unfinished run that were defaults or chosen; the user must repeat those that were given."""
    return {name: value for name, value in unfinished["training"].items() if name not in unfinished.get("asked", {})}


def _report_held_out(task: Task, rows: Mapping[str, Examples]) -> None:
    """Warn if the held-out share is far from the requested one, and say why; note the labels it lacks."""
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
    if recipe.predicts_numbers:
        return
    labels, held_out_labels = (
        {name for names in recipe.labels_of(task.reader.standardize(part, labelled=True)) for name in names}
        for part in (training, held_out)
    )
    if missing := sorted(labels - held_out_labels):
        progress.note(f"held out: {Task.families[recipe.family].no_row_has(missing)}")
