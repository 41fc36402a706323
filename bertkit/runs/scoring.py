"""The scores of encoded splits, and the table of a run's scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from bertkit import progress
from bertkit.errors import UsageError
from bertkit.model.devices import Processes
from bertkit.report import Table
from bertkit.runs.encoded import Split
from bertkit.runs.forward import outputs_of_each
from bertkit.tasks.counts import lines_of
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task
from bertkit.training.state import TrainState

CONSTANT = "constant_predictions"  # a score of 1, present only if a model predicts the same for every row


class Scored(NamedTuple):
    """scores: every metric, as "split/metric". predictions, truth: one per row, by split. objective: the score that selects the
    best step (higher is better). task: with tuned thresholds.
    """

    scores: dict[str, float | None]
    predictions: dict[str, list[Prediction]]
    truth: dict[str, Sequence[Any]]
    objective: float | None
    task: Task


def score_splits(
    task: Task, modules: Sequence[nn.Module], splits: Mapping[str, Split], processes: Processes, *, tune: bool = False
) -> Scored:
    """Every metric of every split; the first metric is the objective. modules: see `outputs_of_each`. tune: choose thresholds
    on the first split.

    Raises UsageError for a loss that is not finite.
    """
    scores: dict[str, float | None] = {}
    predictions: dict[str, list[Prediction]] = {}
    truth: dict[str, Sequence[Any]] = {}
    for number, (split, data) in enumerate(splits.items()):
        with progress.bar(f"evaluate {split}", len(modules) * len(data.features)) as bar:
            one, *others = outputs_of_each(modules, data.features, task.recipe.training.micro_batch_tokens, processes, bar=bar)
        decoded = task.decode(one.outputs, data.features, data.examples, [each.outputs for each in others])
        losses = {} if others else one.losses
        truth_of = task.truth(data.examples)
        thresholds = {}
        if tune and number == 0:
            task = task.tuned(decoded, truth_of)
            decoded, thresholds = task.decide(decoded), task.thresholds_tuned()
        for name, value in (task.score(decoded, truth_of) | thresholds).items():
            scores[f"{split}/{name}"] = value
        for remark in lines_of(task.counts_of(decoded)):
            progress.note(remark)
        if len(decoded) > 1 and task.distinct(decoded) == 1:
            scores[f"{split}/{CONSTANT}"] = 1.0
        for term, loss in losses.items():
            refuse_not_finite(loss, split)
            scores[f"{split}/{'loss' if term == 'labels' else term + '_loss'}"] = loss
        predictions[split], truth[split] = decoded, truth_of
    first = next(iter(scores.values()), None)
    objective = first if first is None or task.recipe.greater_is_better else -first
    return Scored(scores, predictions, truth, objective, task)


def refuse_not_finite(loss: float, split: str) -> None:
    """Raise UsageError for a loss that is not finite, because the model is then useless."""
    if not math.isfinite(loss):
        hint = "train with a lower --learning-rate, a higher --warmup-ratio, or --precision fp32"
        raise UsageError(f"the loss on {split} is {loss}", hint=hint)


def published_scores(recipe: Recipe, model: str) -> dict[str, float]:
    """The recipe's reference scores for this model (a hub id or folder) as shares of 1, by "split/metric"."""
    return {name: percent / 100 for name, percent in recipe.reference.get(Path(model).name, {}).items()}


def scores_table(state: TrainState, title: str, published: Mapping[str, float] | None = None) -> Table:
    """The best, the last and, if any, the published scores of a run."""
    columns = ["score", f"best (step {state.best_step})", f"last (step {state.step})", *(["published"] if published else [])]
    rows = [
        [name, value, state.last_scores.get(name), *([published.get(name)] if published else [])]
        for name, value in state.best_scores.items()
    ]
    return Table(title, columns, rows)
