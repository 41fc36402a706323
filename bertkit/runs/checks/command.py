"""`bertkit check`: what it shows of labelled data, and of a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import progress
from bertkit.config import PretrainConfig
from bertkit.corpus.corpora import open_corpora
from bertkit.corpus.preview import LEGEND, count_targets, draw_sequences, show_share_read, warn_of_absent_entities
from bertkit.errors import DataError, MachineError, ModelError, UsageError
from bertkit.readers.remote import is_url
from bertkit.report import Report, Table, show
from bertkit.runs.checks.data import open_data
from bertkit.runs.checks.labelled import Checked, check_data
from bertkit.runs.checks.training import TrainingChecks
from bertkit.runs.finetuning.baselines import Baselines, baselines_of_data
from bertkit.runs.finetuning.finetune import Given, try_finetuning
from bertkit.runs.pretraining.sequences import sampler_of
from bertkit.runs.request import Request
from bertkit.runs.run_file import require_run
from bertkit.runs.target import open_model_or_run
from bertkit.tasks import Task
from bertkit.tasks.preview import preview
from bertkit.tasks.recipe import Recipe
from bertkit.text.tokenizer import Tokenizer


def check_labelled(
    target: str, model: str | None, recipe: str | None, overrides: Mapping[str, Any], count: int, training: TrainingChecks
) -> tuple[dict[str, Any], bool]:
    """Show what is in labelled data, what is wrong with it, and `count` examples. With a model and no errors, also time three
    steps or, if requested, train.

    target, recipe: as for `open_data`. Returns the findings for --json, and whether there are errors. Raises UserError.
    """
    opened, splits, is_run = open_data(target, recipe, overrides)
    training.refuse_unfit(opened)
    of_run = is_run and model is None and not training.requested
    if is_run:  # a run has learned its rows' labels; the model that it was trained from has not
        run = require_run(Path(target))
        model, recipe = model or run["model"]["name"], recipe or (run["recipe"]["name"] if training.requested else None)
    elif training.requested and model is None:
        raise UsageError("--model is missing", hint="give the model to train, a folder, a hub id, or minilm")
    try:
        pretrained = open_model_or_run(model) if model is not None else None
    except (MachineError, ModelError) as error:
        if not of_run:
            raise
        what = "using the run's own weights, which have already learned from these rows"
        progress.warn(f"{what}, because its base model does not open: {error}")
        model, pretrained = target, open_model_or_run(target)
    checked = check_data(opened, splits, pretrained)
    report = checked.report(target)
    found = report.json
    if pretrained is None:
        progress.note("without --model, lengths and unknown tokens are not checked, and no examples are shown")
        if (to_beat := _baselines(opened, checked)) is not None:
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
    elif model is not None and training.requested:
        is_data = is_url(target) or (Path(target).exists() and not target.endswith(".py"))
        name = recipe or (opened.family if is_data else target)
        name = str(Path(name).resolve()) if name.endswith(".py") else name
        request = Request(opened, name, model, fresh_head=True)
        found |= training.run(request, checked.splits[opened.train_split], count=count)
    elif model is not None:
        request = Request(opened, target, model, fresh_head=True)
        measured = try_finetuning(request, num_examples=count, baselines=True, given=Given(remarks_shown=True))
        if "baselines" in measured:
            found["baselines"] = measured.pop("baselines")
        found["measured"] = measured
    return found, checked.has_errors


def _baselines(recipe: Recipe, checked: Checked) -> Baselines | None:
    """What a model on this data has to beat; None if that cannot be told."""
    if checked.has_errors or not recipe.eval_splits:
        return None
    try:
        return baselines_of_data(recipe, recipe.eval_splits[0])
    except DataError as error:  # too few rows to hold some out
        progress.warn(f"finetune needs rows to evaluate on: {error.line}")
        return None


def check_corpus(corpus: Path, overrides: dict[str, Any], examples: int, *, drawn: bool) -> dict[str, Any]:
    """The counts of a corpus's first sequences and their targets. drawn: whether to show the first `examples` sequences."""
    config = PretrainConfig.of(overrides)
    (opened,) = open_corpora([corpus])
    sampler = sampler_of(opened, "train", Tokenizer.load(corpus), config, config.max_length)
    count, exact = sampler.epoch_length(opened.meta["train"]["tokens"])
    if drawn:  # JSON has the standard output to itself
        progress.show([LEGEND, *draw_sequences(sampler, examples)])
    features = sampler.sequences(np.arange(sampler.in_first_epoch(1000)))
    counts: dict[str, Any] = {
        "sequences per epoch" if exact else "sequences per epoch, about": count,
        "mean tokens per sequence": float(features.num_tokens.mean()),
    }
    counts |= count_targets(sampler, features)
    show(Report([Table(f"{corpus}: the first {len(features)} sequences", [*counts], [[*counts.values()]])]))
    show_share_read(sampler)
    warn_of_absent_entities([sampler])
    return counts
