"""`bertkit check --learning-curve`: scores by the share of the training rows, and the score to expect from twice the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import progress
from bertkit.errors import UsageError, plural
from bertkit.files import write_json
from bertkit.metrics import bootstrap
from bertkit.metrics.bootstrap import Scorer
from bertkit.metrics.learning_curve import describe_curve
from bertkit.model.devices import start_accelerator
from bertkit.report import Finding, Report, Table
from bertkit.runs.evaluation.evaluate import evaluate_target
from bertkit.runs.finetuning.series import finetune_series
from bertkit.runs.request import Request
from bertkit.runs.series import SEEDS
from bertkit.runs.target import open_target
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import read_splits, usable_rows

RUNS, FOUND = "shares", "learning_curve.json"


def parse_shares(text: str) -> list[float]:
    """The percentages in "25,50,100", in ascending order. Raises UsageError unless there are two or more, in (0, 100]."""
    try:
        shares = sorted({float(each.strip().removesuffix("%")) for each in text.split(",")})
    except ValueError:
        shares = []
    if len(shares) < 2 or not all(0 < share <= 100 for share in shares):
        what = f"--learning-curve is {text!r}; expected two or more percentages of the training rows"
        raise UsageError(what, hint="as in --learning-curve 25,50,100")
    return shares


def refuse_unevaluated(recipe: Recipe) -> None:
    """Raise UsageError for a recipe without rows to evaluate on. recipe: resolved."""
    if not recipe.eval_splits:
        raise UsageError("a learning curve needs rows to evaluate on", hint="give --validation FILE, or a share such as 10%")


def measure_learning_curve(request: Request, output_dir: Path, shares: Sequence[float], *, seeds: int) -> dict[str, Any]:
    """Train on each share of the rows with each seed, unless that is done, and fit the curve of the first score.

    A share has the same rows for all seeds, and larger shares contain them. request: its recipe is resolved, and its head
    fresh. Returns the content of learning_curve.json: see `describe_curve`. Raises what fine-tuning raises.
    """
    recipe, name = request.recipe, request.name
    split = recipe.eval_splits[0]
    count = len(usable_rows(recipe, read_splits(recipe, [recipe.train_split]).rows[recipe.train_split]))
    sizes = [max(1, round(count * share / 100)) for share in shares]
    scorers: list[list[Scorer]] = []  # by size and seed
    for share, size in zip(shares, sizes, strict=True):
        progress.note(f"{share:g}% of the training rows: {size}")
        folder = output_dir / RUNS / f"{share:g}"
        some = request.with_recipe(replace(recipe, max_train_samples=size))
        finetune_series(SEEDS, some, folder, count=seeds, is_part=True)
        scorers.append([])
        for run in SEEDS.runs_in(folder):
            target = open_target(str(run), name if name.endswith(".py") else None, {})
            evaluated = evaluate_target(target, (split,), checked=True)  # check shows the remarks
            scorers[-1].append(evaluated.of(split).scorer())
    rows = len(evaluated.splits[split].examples)
    metric = next(iter(scorers[0][0](np.arange(rows))))
    found = {"metric": metric, "split": split, "rows": rows, "seeds": seeds, "model": request.model}
    draws = progress.with_bar(bootstrap.resampled(rows), "resample", bootstrap.RESAMPLES)
    found |= describe_curve(sizes, scorers, rows, draws, greater_is_better=recipe.greater_is_better)
    if start_accelerator(recipe.training.device).is_main_process:
        write_json(output_dir / FOUND, found)
    return found


def report_learning_curve(found: Mapping[str, Any]) -> Report:
    """A table of the points and the expected score. found: from `measure_learning_curve`, or learning_curve.json."""
    rows = [[each["rows"], each["score"], progress.format_interval(each["interval"])] for each in found["points"]]
    if twice := found.get("twice"):
        rows.append([f"{twice['rows']}, expected", twice["score"], progress.format_interval(twice["interval"])])
        bounds = progress.format_interval(twice["gain_interval"], "+.4f")
        gain = f"{twice['gain']:+.4f}" + (f" ({bounds})" if bounds else "")
        what = f"doubling the rows is expected to change {found['metric']} by {gain}, if the curve continues"
    else:
        what = f"cannot estimate the gain from doubling the rows: {found['not_shown']}"
    title = f"{found['metric']} on {found['rows']} rows of {found['split']}, mean of {plural(found['seeds'], 'seed')}"
    table = Table(title, ["training rows", found["metric"], "95% interval"], [[str(size), *more] for size, *more in rows])
    return Report([table, Finding("note", what)], found)
