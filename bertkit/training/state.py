"""A training run's progress, as checkpoints hold it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bertkit.errors import ModelError
from bertkit.training.checkpoint import START_OVER, TRAINING
from bertkit.training.writer import PROGRESS

_LOSS = re.compile(r"(?!threshold_)([a-z]+_)?loss")


@dataclass
class TrainState:
    """The steps done and their time, including before a restart; the best evaluation so far and the number of evaluations
    since; and the mark that `position` of `train` gave for the step."""

    step: int = 0
    seconds: float = 0.0
    evaluations_since_best: int = 0
    best_step: int | None = None
    best_objective: float | None = None
    best_scores: dict[str, float | None] = dataclasses.field(default_factory=dict)
    last_scores: dict[str, float | None] = dataclasses.field(default_factory=dict)
    position: list[int] | None = None

    def record(self, scores: dict[str, float | None], objective: float | None) -> None:
        """Record an evaluation. The best is chosen by `worth`; on a tie, the earlier one."""
        self.last_scores = scores
        self.evaluations_since_best += 1
        if self.best_step is not None and worth(objective, scores) <= worth(self.best_objective, self.best_scores):
            return
        self.best_step, self.best_objective, self.best_scores = self.step, objective, scores
        self.evaluations_since_best = 0


def is_loss(score: str) -> bool:
    """Whether a score is a loss, by its name, "split/loss" or "split/term_loss"; labels and types may end in "loss" too."""
    return _LOSS.fullmatch(score.rpartition("/")[2]) is not None


def worth(objective: float | None, scores: Mapping[str, float | None]) -> tuple[float, float]:
    """The key by which the best evaluation is chosen: the objective, then the negated loss on the first split, because scores
    on few rows often tie. An undefined objective is worse than any other.
    """
    split = next(iter(scores), "").rpartition("/")[0]
    terms = [value for name, value in scores.items() if name.rpartition("/")[0] == split and is_loss(name)]
    loss = math.fsum(math.inf if value is None else value for value in terms) if terms else math.inf
    return -math.inf if objective is None else objective, -loss


def read_progress(checkpoint: Path) -> TrainState:
    """The progress that a checkpoint holds. Raises ModelError where it is not readable."""
    path = checkpoint / TRAINING / PROGRESS
    try:
        return TrainState(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        raise ModelError("the checkpoint has no readable progress.json", where=str(path), hint=START_OVER) from None
