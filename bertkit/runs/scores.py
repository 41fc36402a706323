"""What `bertkit eval` shows of a model: scores and their intervals, what they hide, what speaks against them, worst errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.text import Text

from bertkit import progress
from bertkit.metrics.bootstrap import intervals
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.runs.evaluate import Scored
from bertkit.tasks.task import Task


def show_scores(
    title: str,
    task: Task,
    scored: Scored,
    examples: Mapping[str, Examples],
    *,
    published: Mapping[str, float],
    published_by: str,
    resamples: int,
    errors: int,
) -> dict[str, Any]:
    """Show all of it; returns the scores and their 95% intervals, as --json writes them.

    examples: of each split. published: scores of others, by "split/metric"; published_by: of which model. resamples: draws of
    the bootstrap; 0 for no intervals. errors: how many of the worst to show of each split.
    """
    bounds: dict[str, list[float] | None] = {}
    for split, predictions in scored.predictions.items() if resamples else ():
        found = intervals(task.scorer(predictions, examples[split]), len(examples[split]), resamples=resamples)
        bounds |= {f"{split}/{name}": its and list(its) for name, its in found.items()}
    for split, predictions in scored.predictions.items():
        for table in task.report(predictions, examples[split]):
            progress.table(f"{split}: {table.title}", table.columns, table.rows)
        if errors:
            _show_errors(task, predictions, examples[split], errors, split)
    columns = [
        "score",
        "value",
        *(["95% interval"] if resamples else []),
        *([f"published, {published_by}"] if published else []),
    ]
    rows: list[list[Any]] = []
    for name, value in scored.scores.items():
        shown = [progress.between(bounds.get(name))] if resamples else []
        rows.append([name, value, *shown, *([published.get(name)] if published else [])])
    progress.table(title, columns, rows)
    if published:
        progress.note(f"published: {task.reference_source}")
    for split, predictions in scored.predictions.items():
        for doubt in task.doubts(predictions, examples[split]):
            progress.warn(f"{split}: {doubt}")
    return {**scored.scores, **({"intervals": bounds} if resamples else {})}


def _show_errors(task: Task, predictions: list[dict[str, Any]], examples: Examples, count: int, split: str) -> None:
    wrong = task.wrongness(predictions, examples)
    worst = [int(at) for at in np.argsort(-wrong, kind="stable")[:count] if wrong[at] > 0]
    progress.note(f"{split}: the worst {len(worst)} of {int((wrong > 0).sum())} errors")
    gold = task.gold(examples)
    for at in worst:
        place = Text(f"{examples.where(at)}: expected ", style="dim") + plain(gold[at]) + Text("; found ", style="dim")
        progress.console.print(place + task.show(predictions[at], examples, at))
