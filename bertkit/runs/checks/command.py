"""`bertkit check` of labelled data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.errors import DataError, MachineError, ModelError, UsageError
from bertkit.readers.remote import is_url
from bertkit.report import Finding, show
from bertkit.runs.checks.data import open_data
from bertkit.runs.checks.labelled import Checked, check_data
from bertkit.runs.checks.training import TrainingChecks
from bertkit.runs.finetuning.baselines import Baselines, baselines_of_data
from bertkit.runs.finetuning.finetune import Given, try_finetuning
from bertkit.runs.request import Request, recorded_name
from bertkit.runs.target import open_model_or_run
from bertkit.tasks import Task
from bertkit.tasks.preview import preview
from bertkit.tasks.recipe import Recipe


def check_labelled(
    target: str, model: str | None, recipe: str | None, overrides: Mapping[str, Any], count: int, training: TrainingChecks
) -> tuple[dict[str, Any], bool]:
    """Show what is in labelled data, what is wrong with it, and `count` examples. With a model and no errors, also time three
    steps or, if requested, train.

    target, recipe: as for `open_data`. Returns the findings for --json, and whether there are errors. Raises UserError.
    """
    opened, splits, run = open_data(target, recipe, overrides)
    training.refuse_unfit(opened)
    of_run = run is not None and model is None and not training.requested
    if run is not None:  # a run has learned its rows' labels; the model that it was trained from has not
        model, recipe = model or run["model"]["name"], recipe or (run["recipe"]["name"] if training.requested else None)
    elif training.requested and model is None:
        raise UsageError("--model is missing", hint="give the model to train: --model with a folder, a hub id, or minilm")
    try:
        pretrained = open_model_or_run(model) if model is not None else None
    except (MachineError, ModelError) as error:
        if not of_run:
            raise
        what = "using the run's own weights, which have already learned from these rows"
        progress.warn(f"{what}, because its base model does not open: {error}")
        model, pretrained = target, open_model_or_run(target)
    checked = check_data(opened, splits, pretrained)
    to_beat = None
    if pretrained is None:
        progress.note("without --model, lengths and unknown tokens are not checked, and no examples are shown")
        to_beat = _baselines(opened, checked)
    report = checked.report(target)
    found = report.json
    if to_beat is not None:
        show(to_beat.report())
        found["baselines"] = to_beat.first_scores()
    show(report)
    if pretrained is not None and checked.has_errors:
        if (rows := next(iter(checked.splits.values()), None)) is not None:  # None if no split could be read
            task = Task.unfitted(opened)
            features = task.encode(rows, pretrained.tokenizer, labelled=False).features
            show(preview(task, rows, features, pretrained.tokenizer, count=count))
        if training.requested:
            progress.warn(
                "nothing was trained, because the data has errors; --on-error skip leaves out rows that cannot be read"
            )
    elif model is not None:
        is_data = is_url(target) or (Path(target).exists() and not target.endswith(".py"))
        name = recorded_name(recipe or (opened.family if is_data else target))
        request = Request(opened, name, model, fresh_head=True)
        if training.requested:
            found |= training.run(request, checked.splits[opened.train_split], count=count)
        else:
            measured = try_finetuning(request, num_examples=count, baselines=True, given=Given(remarks_shown=True))
            if "baselines" in measured:
                found["baselines"] = measured.pop("baselines")
            found["measured"] = measured
    return found, checked.has_errors


def _baselines(recipe: Recipe, checked: Checked) -> Baselines | None:
    """What a model on this data has to beat; None if that cannot be told, with a finding if rows to evaluate on are missing, or
    if one of them does not go with the training rows."""
    if checked.has_errors or not recipe.eval_splits:
        return None
    try:
        return baselines_of_data(recipe, recipe.eval_splits[0])
    except DataError as error:
        places = (error.where,) if error.where else ()
        if {*places} <= {rows.source for rows in checked.splits.values()}:  # too few rows to hold some out
            found = Finding("warning", f"finetune needs rows to evaluate on: {error.what}", places, error.hint)
        else:
            found = Finding("error", error.what, places, error.hint)
        checked.findings.append(found)
        return None
