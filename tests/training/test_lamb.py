"""LAMB by hand, and against the formula of You et al. (2020), algorithm 2, in numpy and float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shapes import CONFIG, SHAPES, TRAINING, training_run
from torch import Tensor, nn

from bertkit.config import TrainConfig, filled
from bertkit.model.bert import initialize
from bertkit.model.heads import BertForSequenceClassification
from bertkit.training.lamb import Lamb, trust_ratio
from bertkit.training.optimizer import Optimizer
from bertkit.training.vocabulary import UsedVocabulary

SENTENCE = SHAPES["sentence"]
LAMB = filled(
    TrainConfig(
        optimizer="lamb", weight_decay=0.2, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-5, max_grad_norm=0.0, seed=1
    )
)


def test_lamb_by_hand() -> None:
    """The moments' ratio is the gradient's sign: u = (1, -1) + 0.5 (6, 8) = (4, 3) of norm 5, and (6, 8) has norm 10.

    The bias has neither decay nor a ratio: its update is 1.
    """
    module = nn.Linear(2, 1).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[6.0, 8.0]]))
        module.bias.fill_(3.0)
    config = dataclasses.replace(LAMB, weight_decay=0.5, adam_epsilon=0.0)
    optimizer = Optimizer(module, config, dtype=torch.float64)
    module.weight.grad, module.bias.grad = torch.tensor([[0.3, -40.0]]).double(), torch.tensor([7.0]).double()
    assert optimizer.step(0.25).item() == pytest.approx((0.3**2 + 40**2 + 7**2) ** 0.5)
    np.testing.assert_allclose(module.weight.detach(), [[6 - 0.25 * 2 * 4, 8 - 0.25 * 2 * 3]], rtol=1e-12)
    np.testing.assert_allclose(module.bias.detach(), [3 - 0.25], rtol=1e-12)


class Reference:
    """Algorithm 2 with phi(z) = z, m and v from 0; biases and LayerNorm by Adam alone (google-research/albert)."""

    def __init__(self, values: dict[str, NDArray], config: TrainConfig) -> None:
        self.values, self.config, self.t = values, config, 0
        self.m, self.v = ({name: np.zeros_like(value) for name, value in values.items()} for _ in range(2))

    def step(self, gradients: dict[str, NDArray], rates: dict[str, float]) -> None:
        c, self.t = self.config, self.t + 1
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
        clip = min(1.0, c.max_grad_norm / (norm + 1e-6)) if c.max_grad_norm else 1.0
        for name, x in self.values.items():
            g = clip * gradients[name]
            self.m[name] = c.adam_beta1 * self.m[name] + (1 - c.adam_beta1) * g
            self.v[name] = c.adam_beta2 * self.v[name] + (1 - c.adam_beta2) * g**2
            m, v = self.m[name], self.v[name]
            if c.adam_bias_correction:
                m, v = m / (1 - c.adam_beta1**self.t), v / (1 - c.adam_beta2**self.t)
            r = m / (np.sqrt(v) + c.adam_epsilon)
            if name.endswith(".bias") or "LayerNorm" in name:
                self.values[name] = x - rates[name] * r
                continue
            u = r + c.weight_decay * x
            self.values[name] = x - rates[name] * np.linalg.norm(x) / np.linalg.norm(u) * u


def depth_below_the_head(name: str) -> int:
    part = name.split(".")
    above = CONFIG.num_hidden_layers + 1
    return above if part[1] == "embeddings" else above - 1 - int(part[3]) if part[1] == "encoder" else 0


@pytest.mark.parametrize(
    ("changes", "dtype", "tolerance"),
    [
        ({}, torch.float64, 1e-10),
        ({"max_grad_norm": 0.5, "adam_bias_correction": False}, torch.float64, 1e-10),
        ({"max_grad_norm": 0.5, "layerwise_lr_decay": 0.7, "weight_decay": 0.0}, torch.float64, 1e-10),
        ({"max_grad_norm": 0.5}, torch.float32, 1e-4),
        ({"max_grad_norm": 0.5}, torch.bfloat16, 1e-4),
    ],
)
def test_equals_the_papers_formula(changes: dict[str, float | bool], dtype: torch.dtype, tolerance: float) -> None:
    config = dataclasses.replace(LAMB, **changes)
    module = BertForSequenceClassification(CONFIG)
    initialize(module, CONFIG, seed=0)
    module.to(torch.promote_types(dtype, torch.float32))
    named = dict(module.named_parameters())
    reference = Reference({name: p.detach().double().numpy().copy() for name, p in named.items()}, config)
    start = {name: value.copy() for name, value in reference.values.items()}
    optimizer = Optimizer(module, config, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for step in range(8):
        for parameter in named.values():
            values = torch.randn(parameter.shape, generator=generator) * (0.001 if step % 2 else 1.0)  # clipped in turn
            parameter.grad = values.to(parameter.dtype)
        gradients = {name: p.grad.double().numpy() for name, p in named.items()}
        rate = 1e-2 * (step + 1)
        optimizer.step(rate)
        reference.step(gradients, {name: rate * config.layerwise_lr_decay ** depth_below_the_head(name) for name in named})
        if step == 3:  # a checkpoint in between changes nothing
            weights, state = (
                {name: t.detach().clone() for name, t in of().items()} for of in (optimizer.weights, optimizer.state)
            )
            optimizer = Optimizer(module.to(torch.promote_types(dtype, torch.float32)), config, dtype=dtype)
            optimizer.restore(weights, state)
    for name, expected in reference.values.items():
        found, moved = optimizer.masters[name].detach().double().numpy(), np.linalg.norm(expected - start[name])
        assert np.linalg.norm(found - expected) <= tolerance * moved, name
        assert torch.equal(named[name], optimizer.masters[name].to(dtype)), name


@pytest.mark.parametrize(
    ("master", "update", "expected"),
    [([3, 4], [0, 10], 0.5), ([0, 0], [1, 1], 1.0), ([3, 4], [0, 0], 1.0), ([0, 0], [0, 0], 1.0)],
)
def test_trust_ratio_of_a_zero_norm_is_one(master: list[float], update: list[float], expected: float) -> None:
    assert trust_ratio(torch.tensor([master]).float(), torch.tensor([update]).float()).item() == expected


def test_tensors_of_zero_move_and_stay_finite() -> None:
    module = nn.Linear(3, 2)
    nn.init.zeros_(module.weight)
    optimizer = Optimizer(module, LAMB)
    module.weight.grad, module.bias.grad = torch.ones(2, 3), torch.zeros(2)
    optimizer.step(0.1)
    torch.testing.assert_close(module.weight.detach(), torch.full((2, 3), -0.1), rtol=1e-4, atol=0)
    assert torch.isfinite(module.bias).all()


# --- rows of tokens that the data lacks --------------------------------------------------------------------------------

WORDS = "bert.embeddings.word_embeddings.weight"


def trained_embeddings(folder: Path, optimizer: str, *, narrowed: bool) -> Tensor:
    """All rows of the word embeddings after six steps on texts of few tokens."""
    config = dataclasses.replace(TRAINING, optimizer=optimizer, weight_decay=0.5, learning_rate=2e-2)
    input_ids = SENTENCE.features.input_ids
    few = dataclasses.replace(input_ids, values=input_ids.values // 3)
    features, module = dataclasses.replace(SENTENCE.features, input_ids=few), SENTENCE.build()
    vocabulary = UsedVocabulary([features], module, config) if narrowed else None
    shape = dataclasses.replace(SENTENCE, features=vocabulary.narrow(features) if vocabulary else features)
    trained = training_run(shape, config, 6, folder, module=module).parameters
    return (vocabulary.widen(trained, step=6, total_steps=6) if vocabulary else trained)[WORDS]


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_unused_rows_end_as_if_they_had_been_trained(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained_embeddings(tmp_path / "whole", optimizer, narrowed=False)
    narrowed = trained_embeddings(tmp_path / "narrowed", optimizer, narrowed=True)
    torch.testing.assert_close(narrowed, whole, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(Lamb, "elementwise", True)  # without the unused rows in its norm LAMB moves every row otherwise
    if optimizer == "lamb":
        without = trained_embeddings(tmp_path / "without", optimizer, narrowed=True)
        assert (without - whole)[1:].norm(dim=1).min() > 1e-4  # row 0, the padding's, stays 0
