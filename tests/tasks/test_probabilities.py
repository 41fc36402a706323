"""Softmax against torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.tasks.probabilities import sigmoid, softmax, softmax_of_groups


@settings(max_examples=25)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 99))
def test_groups_and_rows_are_those_of_torch(counts: list[int], seed: int) -> None:
    logits = np.random.default_rng(seed).normal(scale=300, size=sum(counts)).astype(np.float32)  # beyond what exp can take
    offsets = np.cumsum([0, *counts])
    parts = [torch.softmax(torch.from_numpy(part).double(), -1).numpy() for part in np.split(logits, offsets[1:-1])]
    assert softmax_of_groups(logits, offsets) == pytest.approx(np.concatenate(parts))
    assert sigmoid(logits) == pytest.approx(torch.from_numpy(logits).double().sigmoid().numpy())
    for part, expected in zip(np.split(logits, offsets[1:-1]), parts, strict=True):
        found = softmax(np.stack([part, part[::-1]]))
        assert found == pytest.approx(np.stack([expected, expected[::-1]]))
        assert found.dtype == np.float64


def test_ruled_out_logits_have_no_probability() -> None:
    assert softmax([[0.0, -np.inf], [-np.inf, -np.inf]]).tolist() == [[1, 0], [0, 0]]
    assert softmax(np.zeros((0, 3))).shape == (0, 3)
