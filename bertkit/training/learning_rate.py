"""The learning rate of an optimizer step."""

from __future__ import annotations

import math

from bertkit.config import TrainConfig


def learning_rate_at(step: int, *, peak: float, warmup_steps: int, total_steps: int, schedule: str = "linear") -> float:
    """The learning rate of optimizer step `step` (from 0): a linear rise to `peak`, then a linear or cosine fall to 0, or none
    ("constant").

    As in BERT's own code the first step of a warm-up has rate 0 (Devlin et al., 2019, appendix A.2).
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    left = max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
    return peak * (0.5 - 0.5 * math.cos(math.pi * left) if schedule == "cosine" else left)


def learning_rate_of(step: int, config: TrainConfig, total_steps: int) -> float:
    """The learning rate that a run's settings give a step."""
    return learning_rate_at(
        step,
        peak=config.learning_rate,
        warmup_steps=math.ceil(config.warmup_ratio * total_steps),
        total_steps=total_steps,
        schedule=config.schedule,
    )
