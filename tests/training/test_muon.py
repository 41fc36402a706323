"""Muon on the encoder's matrices against torch.optim.Muon, and AdamW on everything else against torch.optim.AdamW."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from shapes import CONFIG, decays_in_run_glue
from torch import Tensor, nn

from bertkit.config import PretrainConfig, filled
from bertkit.model.bert import initialize
from bertkit.model.language_model import BertForPreTraining
from bertkit.training.muon import orthogonalized
from bertkit.training.optimizer import Optimizer

SETTINGS = filled(PretrainConfig(optimizer="muon", weight_decay=0.2, adam_epsilon=1e-5, max_grad_norm=0.0))


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    module = BertForPreTraining(CONFIG)
    initialize(module, CONFIG, seed=0)
    return module.to(dtype)


def matrices(module: nn.Module) -> set[str]:
    """Queries, keys, values, outputs and the two of the feed-forward layer: six in each layer."""
    found = {name for name, p in module.named_parameters() if "encoder.layer." in name and p.ndim == 2}
    assert len(found) == 6 * CONFIG.num_hidden_layers
    return found


def gradients(step: int, module: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    scale = 0.01 if step % 2 else 3.0
    return {name: torch.randn(p.shape, generator=generator) * scale for name, p in module.named_parameters()}


def set_gradients(module: nn.Module, values: dict[str, Tensor]) -> None:
    for name, parameter in module.named_parameters():
        parameter.grad = values[name].to(parameter.dtype, copy=True)


def oracles(module: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    named, by_muon = dict(module.named_parameters()), matrices(module)
    muon = torch.optim.Muon(
        [named[name] for name in sorted(by_muon)], weight_decay=SETTINGS.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    groups = [
        {"params": [p], "weight_decay": SETTINGS.weight_decay if decays_in_run_glue(name) else 0.0}
        for name, p in named.items()
        if name not in by_muon
    ]
    return muon, torch.optim.AdamW(groups, eps=SETTINGS.adam_epsilon)


@pytest.mark.parametrize(("dtype", "clip"), [(torch.float32, 0.0), (torch.float32, 0.5), (torch.bfloat16, 0.0)])
def test_equals_those_of_torch(dtype: torch.dtype, clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch iterates in bf16 always, ours in the working dtype: in float32 it is torch's without that rounding."""
    if dtype == torch.float32:
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    ours, theirs = model(), model()
    start = {name: p.detach().clone() for name, p in theirs.named_parameters()}
    optimizer, both = Optimizer(ours, dataclasses.replace(SETTINGS, max_grad_norm=clip), dtype=dtype), oracles(theirs)
    for step in range(6):
        values = {name: value.to(dtype).float() for name, value in gradients(step, ours).items()}
        set_gradients(ours, values)
        set_gradients(theirs, values)
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)  # of both rules' together
        for oracle in both:
            for group in oracle.param_groups:
                group["lr"] = 1e-2 * (step + 1)
            oracle.step()
        optimizer.step(1e-2 * (step + 1))
    for name, expected in theirs.named_parameters():
        found, moved = optimizer.masters[name], (expected - start[name]).norm()
        assert (found - expected).norm() <= 1e-4 * moved, name
        assert torch.equal(ours.get_parameter(name), found.to(dtype)), name


def test_a_matrix_becomes_nearly_orthogonal() -> None:
    for shape in ((8, 8), (5, 12), (12, 5)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        found = orthogonalized(matrix, torch.float64)
        values = torch.linalg.svdvals(found)
        assert 0.5 < values.min() <= values.max() < 1.3
        turned = u.T @ found @ v.T
        torch.testing.assert_close(turned, torch.diag(turned.diagonal()), atol=1e-9, rtol=0)
    assert torch.equal(orthogonalized(torch.zeros(3, 4), torch.float32), torch.zeros(3, 4))


@pytest.mark.parametrize("size", [1e-2, 1e-9])
def test_fp16_steps_along_gradients_that_it_cannot_hold(size: float) -> None:
    """As float32 does with the same ones; fp16 rounds 1e-9 to 0."""
    modules = {dtype: model() for dtype in (torch.float32, torch.float16)}
    optimizers = {dtype: Optimizer(module, SETTINGS, dtype=dtype) for dtype, module in modules.items()}
    start = {name: p.detach().clone() for name, p in model().named_parameters()}
    for step in (0, 2, 4):
        for dtype, module in modules.items():
            scale = optimizers[dtype].loss_scale.scale if dtype == torch.float16 else 1.0
            set_gradients(module, {name: size * scale * value for name, value in gradients(step, module).items()})
            optimizers[dtype].step(1e-2)
    assert optimizers[torch.float16].updates == 3
    for name in matrices(modules[torch.float32]):
        expected, found = (optimizers[dtype].masters[name] for dtype in modules)
        assert (found - expected).norm() <= 0.05 * (expected - start[name]).norm(), name


def test_each_layers_matrices_learn_at_their_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """--layerwise-lr-decay, against torch's with a group for each layer."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    ours, theirs = model(), model()
    start, named = {name: p.detach().clone() for name, p in theirs.named_parameters()}, dict(theirs.named_parameters())
    layers = CONFIG.num_hidden_layers
    groups = [
        {"params": [named[name]], "lr": 1e-2 * 0.5 ** (layers - int(name.split(".")[3]))} for name in sorted(matrices(theirs))
    ]
    oracle = torch.optim.Muon(groups, weight_decay=SETTINGS.weight_decay, adjust_lr_fn="match_rms_adamw")
    optimizer = Optimizer(ours, dataclasses.replace(SETTINGS, layerwise_lr_decay=0.5))
    for module in (ours, theirs):
        set_gradients(module, gradients(0, module))
    optimizer.step(1e-2)
    oracle.step()
    for name in matrices(theirs):
        assert (optimizer.masters[name] - named[name]).norm() <= 1e-4 * (named[name] - start[name]).norm(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_its_state_is_one_moment_of_matrices_and_resumes_exactly(dtype: torch.dtype) -> None:
    def run(optimizer: Optimizer, module: nn.Module, steps: range) -> None:
        for step in steps:
            set_gradients(module, gradients(step, module))
            optimizer.step(1e-2)

    module = model()
    names = {name for name, _ in module.named_parameters()}
    optimizer = Optimizer(module, SETTINGS, dtype=dtype)
    run(optimizer, module, range(3))
    weights, state = ({name: t.detach().clone() for name, t in of().items()} for of in (optimizer.weights, optimizer.state))
    others = names - matrices(module)
    expected = {f"momentum_buffer.{name}" for name in matrices(module)} | {f"step.{name}" for name in names}
    expected |= {"loss_scale"} if dtype == torch.float16 else set()
    assert state.keys() == expected | {f"{moment}.{name}" for moment in ("exp_avg", "exp_avg_sq") for name in others}
    other = model()
    again = Optimizer(other, SETTINGS, dtype=dtype)
    again.restore(weights, state)
    run(optimizer, module, range(3, 6))
    run(again, other, range(3, 6))
    for of in ("weights", "state"):
        found, whole = getattr(again, of)(), getattr(optimizer, of)()
        assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
