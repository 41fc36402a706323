"""Float32 masters, and AdamW against torch.optim.AdamW and BERT's own."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from shapes import CONFIG, PreTrainer
from torch import Tensor, nn

from bertkit.config import TrainConfig, filled
from bertkit.model.bert import initialize
from bertkit.model.heads import BertForSequenceClassification
from bertkit.training.optimizer import RULES, Optimizer, decays

SETTINGS = filled(
    TrainConfig(learning_rate=3e-3, weight_decay=0.2, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-5, max_grad_norm=0.5)
)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense = nn.Linear(7, 5)
        self.LayerNorm = nn.LayerNorm(5)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)


def gradients(step: int, module: nn.Module) -> dict[str, Tensor]:
    """Small ones and large ones in turn, so that some steps are clipped and some are not."""
    generator = torch.Generator().manual_seed(step)
    scale = 0.01 if step % 2 else 3.0
    named = module.named_parameters()
    return {name: torch.randn(p.shape, generator=generator) * scale for name, p in named if p.requires_grad}


def set_gradients(module: nn.Module, values: dict[str, Tensor]) -> None:
    for name, parameter in module.named_parameters():
        if name in values:
            parameter.grad = values[name].to(parameter.dtype, copy=True)


def torch_adamw(module: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    groups = [
        {"params": [module.dense.weight], "weight_decay": config.weight_decay},
        {"params": [module.dense.bias, module.LayerNorm.weight, module.LayerNorm.bias], "weight_decay": 0.0},
    ]
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=config.adam_epsilon, foreach=False, fused=False)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5])
def test_equals_torch_adamw_with_clipping(max_grad_norm: float) -> None:
    config = dataclasses.replace(SETTINGS, max_grad_norm=max_grad_norm)
    ours, theirs = Small(), Small()
    optimizer, oracle = Optimizer(ours, config), torch_adamw(theirs, config)
    clipped = []
    for step in range(12):
        values, rate = gradients(step, ours), 1e-3 * (step + 1)
        set_gradients(ours, values)
        set_gradients(theirs, values)
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in values.values()]))
        if max_grad_norm:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        for group in oracle.param_groups:
            group["lr"] = rate
        oracle.step()
        found = optimizer.step(rate)
        torch.testing.assert_close(found, norm, rtol=1e-6, atol=0, msg="the norm is that before clipping")
        clipped.append(bool(norm > max_grad_norm))
        assert all(p.grad is None for p in ours.parameters())
    assert set(clipped) == ({True, False} if max_grad_norm else {True})
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.equal(ours.frozen.weight, Small().frozen.weight)
    assert not torch.allclose(ours.dense.weight, Small().dense.weight, atol=1e-2)


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    """300 + 1 + 1 is 302 in float32; in bf16, whose steps are 2 there, 300 + 1 stays 300."""
    ours = Small()
    config = dataclasses.replace(SETTINGS, max_grad_norm=0.0)
    optimizer = Optimizer(ours, config, dtype=torch.bfloat16)
    for value in (300.0, 1.0, 1.0):
        set_gradients(ours, {name: torch.full_like(p, value) for name, p in gradients(0, ours).items()})
        optimizer.collect()
    sums = {name: torch.full_like(p, 302.0, dtype=torch.float32) for name, p in gradients(0, ours).items()}
    set_gradients(ours, {name: torch.zeros_like(total) for name, total in sums.items()})
    norm = torch.linalg.vector_norm(torch.cat([total.flatten() for total in sums.values()]))
    torch.testing.assert_close(optimizer.step(1e-3), norm, rtol=1e-6, atol=0)
    set_gradients(ours, {name: torch.ones_like(total) for name, total in sums.items()})
    ones = torch.linalg.vector_norm(torch.cat([torch.ones_like(total).flatten() for total in sums.values()]))
    torch.testing.assert_close(optimizer.step(1e-3), ones, rtol=1e-6, atol=0, msg="nothing is left of the step before")


def test_a_parameter_in_float32_is_its_own_master() -> None:
    module = Small()
    optimizer = Optimizer(module, SETTINGS)
    assert all(optimizer.masters[name] is p for name, p in module.named_parameters())


def test_bf16_masters_advance_by_what_bf16_cannot_hold() -> None:
    config = dataclasses.replace(SETTINGS, weight_decay=0.0, max_grad_norm=0.0, adam_epsilon=1e-12)
    ours, oracle_module = Small(), Small()
    with torch.no_grad():
        for module in (ours, oracle_module):
            module.dense.weight.fill_(1.0)
    optimizer, oracle = Optimizer(ours, config, dtype=torch.bfloat16), torch_adamw(oracle_module, config)
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in optimizer.masters.values()} == {torch.float32}
    steps, rate = 40, 1e-5  # the whole way is 4e-4; bf16 around 1 has steps of 4e-3 and 8e-3
    for step in range(steps):
        values = {name: torch.ones_like(p, dtype=torch.float32) for name, p in gradients(step, ours).items()}
        set_gradients(ours, values)
        set_gradients(oracle_module, values)
        optimizer.step(rate)
        for group in oracle.param_groups:
            group["lr"] = rate
        oracle.step()
    torch.testing.assert_close(optimizer.masters["dense.weight"], torch.full((5, 7), 1 - steps * rate), rtol=0, atol=1e-6)
    torch.testing.assert_close(optimizer.masters["dense.weight"], oracle_module.dense.weight.detach(), rtol=1e-6, atol=1e-6)
    assert torch.equal(ours.dense.weight, torch.ones(5, 7, dtype=torch.bfloat16))
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, optimizer.masters[name].bfloat16()), name


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("done", [0, 3])
def test_resumes_bit_exactly(done: int, dtype: torch.dtype, rule: str) -> None:
    def run(optimizer: Optimizer, module: nn.Module, steps: range) -> None:
        for step in steps:
            set_gradients(module, gradients(step, module))
            optimizer.step(1e-2)

    config = dataclasses.replace(SETTINGS, optimizer=rule)
    module = Small()
    optimizer = Optimizer(module, config, dtype=dtype)
    run(optimizer, module, range(done))
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    run(optimizer, module, range(done, done + 4))

    other = Small()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()  # what was there before must not matter
    again = Optimizer(other, config, dtype=dtype)
    run(again, other, range(20, 22))
    again.restore(state)
    kept = {name: tensor.clone() for name, tensor in state.items()}
    run(again, other, range(done, done + 4))
    after, expected = again.state(), optimizer.state()
    assert after.keys() == expected.keys()
    assert all(torch.equal(after[name], expected[name]) for name in expected)
    assert all(torch.equal(state[name], kept[name]) for name in kept), "what was restored from is not written into"
    for (name, p), q in zip(other.named_parameters(), module.parameters(), strict=True):
        assert torch.equal(p, q), name


class Berts(nn.Module):
    """As BERT's own AdamWeightDecayOptimizer updates (google-research/bert, optimization.py): no correction of the bias."""

    def __init__(self, config: TrainConfig, module: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.values = {n: p.detach().double().clone() for n, p in module.named_parameters() if p.requires_grad}
        self.m = {name: torch.zeros_like(value) for name, value in self.values.items()}
        self.v = {name: torch.zeros_like(value) for name, value in self.values.items()}

    def step(self, gradients: dict[str, Tensor], rate: float) -> None:
        c = self.config
        for name, value in self.values.items():
            self.m[name] = c.adam_beta1 * self.m[name] + (1 - c.adam_beta1) * gradients[name].double()
            self.v[name] = c.adam_beta2 * self.v[name] + (1 - c.adam_beta2) * gradients[name].double() ** 2
            update = self.m[name] / (self.v[name].sqrt() + c.adam_epsilon)
            update = update + (c.weight_decay * value if name == "dense.weight" else 0)
            self.values[name] = value - rate * update


def test_without_bias_correction_it_is_berts_own_optimizer() -> None:
    config = dataclasses.replace(SETTINGS, max_grad_norm=0.0, adam_bias_correction=False)
    ours = Small()
    optimizer, oracle = Optimizer(ours, config), Berts(config, ours)
    corrected = Optimizer(other := Small(), dataclasses.replace(config, adam_bias_correction=True))
    for step in range(12):
        values, rate = gradients(step, ours), 1e-3 * (step + 1)
        for module in (ours, other):
            set_gradients(module, values)
        optimizer.step(rate)
        corrected.step(rate)
        oracle.step(values, rate)
        if step == 5:  # a restart counts on
            state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
            optimizer = Optimizer(ours, config)
            optimizer.restore(state)
    for name, value in oracle.values.items():
        found = ours.get_parameter(name)
        torch.testing.assert_close(found.double(), value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
        assert not torch.allclose(found, other.get_parameter(name), atol=1e-4), "the correction is no small thing"


def test_each_layer_learns_at_its_own_rate() -> None:
    """A layer's weights move as those of an AdamW of torch that has that layer alone, at its share of the rate."""
    config = dataclasses.replace(SETTINGS, max_grad_norm=0.0, layerwise_lr_decay=0.5)
    ours, theirs = BertForSequenceClassification(CONFIG), BertForSequenceClassification(CONFIG)
    initialize(ours, CONFIG, seed=0)
    theirs.load_state_dict(ours.state_dict())
    optimizer = Optimizer(ours, config)
    head = CONFIG.num_hidden_layers + 1
    groups = []
    for name, parameter in theirs.named_parameters():
        part = name.split(".")
        depth = 0 if part[1] == "embeddings" else int(part[3]) + 1 if part[1] == "encoder" else head
        decay = config.weight_decay if decays(name) else 0.0
        groups.append({"params": [parameter], "weight_decay": decay, "lr": 1e-2 * 0.5 ** (head - depth)})
    betas = (config.adam_beta1, config.adam_beta2)
    oracle = torch.optim.AdamW(groups, betas=betas, eps=config.adam_epsilon, fused=True)
    assert len({group["lr"] for group in groups}) == head + 1
    for step in range(3):
        values = gradients(step, ours)
        set_gradients(ours, values)
        set_gradients(theirs, values)
        optimizer.step(1e-2)
        oracle.step()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("rule", RULES)
def test_state_names_masters_moments_and_counts(rule: str) -> None:
    """The names in checkpoints, which stay; the moments of both rules are Adam's."""
    module = Small()
    optimizer = Optimizer(module, dataclasses.replace(SETTINGS, optimizer=rule), dtype=torch.bfloat16)
    set_gradients(module, gradients(0, module))
    optimizer.step(1e-2)
    trained = ["dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias"]
    expected = {f"{part}.{name}" for part in ("master", "exp_avg", "exp_avg_sq", "step") for name in trained}
    assert set(optimizer.state()) == expected | {"master.frozen.weight", "master.frozen.bias"}
    assert {tensor.dtype for tensor in optimizer.state().values()} == {torch.float32}


@pytest.mark.parametrize("build", [lambda: BertForSequenceClassification(CONFIG), PreTrainer])
def test_decay_groups_are_those_of_run_glue(build: type[nn.Module]) -> None:
    names = [name for name, _ in build().named_parameters()]
    no_decay = ["bias", "LayerNorm.weight"]  # run_glue_no_trainer.py of transformers
    assert {name for name in names if decays(name)} == {name for name in names if not any(nd in name for nd in no_decay)}
    assert sum(decays(name) for name in names) > 10
    module = build()
    initialize(module, CONFIG, seed=0)
    optimizer = Optimizer(module, dataclasses.replace(SETTINGS, weight_decay=0.3))
    decay = {names[index]: block.decay for block in optimizer.rule.blocks for index, _ in block.parts}
    assert decay == {name: 0.3 if decays(name) else 0.0 for name in names}


def test_parameters_larger_than_a_block_are_updated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for size in (2**22, 7):
        monkeypatch.setattr("bertkit.training.adamw.BLOCK", size)
        module = Small()
        optimizer = Optimizer(module, SETTINGS, dtype=torch.bfloat16)
        assert all(block.size <= size for block in optimizer.rule.blocks)
        for seed in range(3):
            torch.manual_seed(seed)
            for parameter in module.parameters():
                parameter.grad = torch.randn_like(parameter)
            norm = optimizer.step(1e-2)
        results.append((norm, optimizer.state(), [p.clone() for p in module.parameters()]))
    (norm, state, parameters), (other_norm, other_state, other_parameters) = results
    torch.testing.assert_close(norm, other_norm)
    torch.testing.assert_close(state, other_state)
    torch.testing.assert_close(parameters, other_parameters, rtol=1e-2, atol=1e-3)
    assert float(state["step." + next(iter(optimizer.trained))]) == 3.0
