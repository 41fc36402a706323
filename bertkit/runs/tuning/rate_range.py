"""The learning-rate range test (Smith, 2017): a short run with a linearly rising rate shows at which rates the loss falls."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import UsageError
from bertkit.report import Finding, Report, Table, show
from bertkit.runs.finetuning.finetune import Given, finetune
from bertkit.runs.request import Request
from bertkit.runs.target import open_model_or_run
from bertkit.runs.tuning.trials import start_alone
from bertkit.tasks.defaults import choose_settings
from bertkit.tasks.splits import read_splits
from bertkit.training.metrics_log import MetricsLog

STEPS, WINDOW = 100, 10  # the steps of the run; how many of them to average the loss over
HIGHEST = 10  # the highest rate, in multiples of the model's default rate
FALLEN = 0.1  # the loss counts as falling after this share of its whole fall


class _Enough(Exception):
    """Ends the run at its first evaluation."""


def find_learning_rate(request: Request) -> Report:
    """Train STEPS steps with a rising learning rate, and show the loss by rate and a range to search; nothing is kept.

    Raises UsageError if a launcher has started several processes, or the loss is not finite within the first steps.
    """
    recipe = request.recipe
    start_alone(recipe.training.device)
    resolved = recipe.resolved()
    data = read_splits(resolved)
    nothing: dict[str, Any] = {"learning_rate": None}
    unstated = replace(resolved, training=replace(resolved.training, **nothing))
    usual = choose_settings(unstated, data.rows[resolved.train_split], open_model_or_run(request.model))["learning_rate"]
    # All steps warm up: a schedule has nothing to do, and warmup_stable_decay would be refused.
    recipe = replace(recipe, training=replace(recipe.training, schedule=None, decay_ratio=None))  # type: ignore[arg-type]
    rising = {
        "learning_rate": HIGHEST * usual,
        "warmup_ratio": 1.0,
        "max_steps": STEPS,
        "eval_steps": STEPS,
        "logging_steps": 1,
    }

    def end(objective: float | None) -> None:
        raise _Enough

    with tempfile.TemporaryDirectory() as folder:
        run, failure = Path(folder) / "run", None
        try:
            finetune(request.with_recipe(recipe.overridden(rising)), run, is_part=True, given=Given(data), on_evaluation=end)
        except _Enough:
            pass
        except UsageError as error:  # the loss is not finite at this rate
            failure = error
        events = [event for event in MetricsLog(run).read() if event.get("loss") is not None]
    if len(events) < 2 * WINDOW:
        assert failure is not None, "a run logs every step"
        raise failure
    report = report_range([event["learning_rate"] for event in events], [event["loss"] for event in events])
    show(report)
    return report


def report_range(rates: Sequence[float], losses: Sequence[float]) -> Report:
    """The averaged loss by rate, and the range from where it starts to fall to where it is lowest. rates, losses: by step."""
    averaged = np.convolve(losses, np.full(WINDOW, 1 / WINDOW), mode="valid")  # (steps - WINDOW + 1,)
    at = rates[WINDOW // 2 :]
    lowest = int(averaged.argmin())
    low = int((averaged <= averaged[0] - FALLEN * (averaged[0] - averaged[lowest])).argmax())
    rows = [[f"{at[step]:.1e}", float(averaged[step])] for step in range(0, len(averaged), WINDOW)]
    parts: list[Table | Finding] = [Table("learning-rate range test", ["learning rate", f"loss, mean of {WINDOW} steps"], rows)]
    bounds = (at[low], at[lowest]) if low < lowest else None
    if bounds is None:
        parts.append(Finding("warning", "the loss falls at none of these rates: no range is suggested"))
    else:
        parts.append(Finding("note", f"a range to search: --search learning-rate={at[low]:.1e}..{at[lowest]:.1e}:log"))
    return Report(parts, {"bounds": bounds})
