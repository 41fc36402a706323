"""The learning rate of a step by hand, and against transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bertkit.config import TrainConfig, filled
from bertkit.training.learning_rate import learning_rate_at, learning_rate_of


def test_learning_rate_by_hand() -> None:
    linear = [learning_rate_at(step, peak=1.0, warmup_steps=4, total_steps=12) for step in range(13)]
    np.testing.assert_allclose(linear, [0, 0.25, 0.5, 0.75, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0], rtol=1e-12)
    constant = [learning_rate_at(step, peak=2.0, warmup_steps=2, total_steps=5, schedule="constant") for step in range(5)]
    assert constant == [0.0, 1.0, 2.0, 2.0, 2.0]
    assert learning_rate_at(0, peak=3.0, warmup_steps=0, total_steps=1) == 3.0
    assert learning_rate_at(9, peak=3.0, warmup_steps=9, total_steps=9) == 0.0
    assert learning_rate_at(20, peak=3.0, warmup_steps=0, total_steps=9) == 0.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (0, 7), (3, 10), (10, 10), (1, 50)])
def test_learning_rate_equals_that_of_transformers(warmup: int, total: int, schedule: str) -> None:
    import transformers

    adamw = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.7)
    scheduler = getattr(transformers, f"get_{schedule}_schedule_with_warmup")(adamw, warmup, total)
    for step in range(total):
        found = learning_rate_at(step, peak=0.7, warmup_steps=warmup, total_steps=total, schedule=schedule)
        assert found == pytest.approx(scheduler.get_last_lr()[0])
        adamw.step()
        scheduler.step()


@pytest.mark.parametrize(("ratio", "steps"), [(0.0, 0), (0.06, 1), (0.1, 1), (0.11, 2), (1.0, 10)])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_warmup_ratio_is_rounded_up_to_steps(ratio: float, steps: int, schedule: str) -> None:
    config = filled(TrainConfig(learning_rate=0.5, warmup_ratio=ratio, schedule=schedule))
    for step in range(10):
        expected = learning_rate_at(step, peak=0.5, warmup_steps=steps, total_steps=10, schedule=schedule)
        assert learning_rate_of(step, config, 10) == expected
