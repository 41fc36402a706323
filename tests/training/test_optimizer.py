"""Float32 masters, AdamW against torch.optim.AdamW and BERT's own, and the learning rate against transformers'."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from shapes import CONFIG, PreTrainer, decays_in_run_glue
from torch import Tensor, nn

from bertkit.config import PretrainConfig, TrainConfig, filled, options_of
from bertkit.model.bert import initialize
from bertkit.model.heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertkit.model.language_model import BertForMaskedLM, BertForPreTraining
from bertkit.training.optimizer import FALLS, RULES, Optimizer, learning_rate_at, learning_rate_of
from bertkit.training.update_rule import norm_by_few_kernels

SETTINGS = filled(
    PretrainConfig(learning_rate=3e-3, weight_decay=0.2, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-5, max_grad_norm=0.5)
)


ELEMENTWISE = [name for name in RULES if name != "muon"]  # test_muon.py has the other


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
    return {name: torch.randn(p.shape, generator=generator) * scale for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_norm_by_few_kernels_is_the_norm(dtype: torch.dtype) -> None:
    """As on a GPU: of any shapes, in float32, where float16 would overflow; what is not finite stays so."""
    tensors = [torch.randn(7, 5), torch.randn(3), torch.full((2, 2), 6e4), torch.randn(1000, 30)]
    found = norm_by_few_kernels([tensor.to(dtype) for tensor in tensors], torch.float32)
    wanted = np.sqrt(sum(tensor.to(dtype).double().square().sum().item() for tensor in tensors))
    assert (found.dtype, found.shape) == (torch.float32, ())
    assert found.item() == pytest.approx(wanted, rel=1e-5)
    for value in (torch.inf, torch.nan):
        assert not norm_by_few_kernels(
            [tensors[0].to(dtype), torch.tensor([1.0, value], dtype=dtype)], torch.float32
        ).isfinite()


def set_gradients(module: nn.Module, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        parameter = module.get_parameter(name)
        parameter.grad = value.to(parameter.dtype, copy=True)


def constant(module: nn.Module, value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(p, value, dtype=torch.float32) for name, p in gradients(0, module).items()}


def torch_adamw(module: nn.Module, config: TrainConfig, rate: Callable[[str], float] = lambda name: 1.0) -> torch.optim.AdamW:
    """rate: of a parameter's name, its learning rate."""
    groups = [
        {"params": [p], "weight_decay": config.weight_decay if decays_in_run_glue(name) else 0.0, "lr": rate(name)}
        for name, p in module.named_parameters()
        if p.requires_grad
    ]
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, betas=betas, eps=config.adam_epsilon, foreach=False, fused=False)


def norm_of(values: dict[str, Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.cat([value.flatten() for value in values.values()]))


def assert_near(ours: nn.Module, theirs: nn.Module) -> None:
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5])
def test_adamw_equals_that_of_torch_with_clipping(max_grad_norm: float) -> None:
    config = dataclasses.replace(SETTINGS, max_grad_norm=max_grad_norm)
    ours, theirs = Small(), Small()
    optimizer, oracle = Optimizer(ours, config), torch_adamw(theirs, config)
    clipped = set()
    for step in range(12):
        values, rate = gradients(step, ours), 1e-3 * (step + 1)
        set_gradients(ours, values)
        set_gradients(theirs, values)
        if max_grad_norm:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        for group in oracle.param_groups:
            group["lr"] = rate
        oracle.step()
        norm = norm_of(values)
        torch.testing.assert_close(optimizer.step(rate), norm, rtol=1e-6, atol=0, msg="the norm is that before clipping")
        clipped.add(bool(norm > max_grad_norm))
        assert all(p.grad is None for p in ours.parameters())
    assert clipped == ({True, False} if max_grad_norm else {True})
    assert_near(ours, theirs)
    assert torch.equal(ours.frozen.weight, Small().frozen.weight)
    assert not torch.allclose(ours.dense.weight, Small().dense.weight, atol=1e-2)


def test_each_layer_learns_at_its_own_rate() -> None:
    config = dataclasses.replace(SETTINGS, max_grad_norm=0.0, layerwise_lr_decay=0.5)
    ours, theirs = BertForSequenceClassification(CONFIG), BertForSequenceClassification(CONFIG)
    initialize(ours, CONFIG, seed=0)
    theirs.load_state_dict(ours.state_dict())
    head = CONFIG.num_hidden_layers + 1

    def rate(name: str) -> float:
        part = name.split(".")
        depth = 0 if part[1] == "embeddings" else int(part[3]) + 1 if part[1] == "encoder" else head
        return 1e-2 * 0.5 ** (head - depth)

    optimizer, oracle = Optimizer(ours, config), torch_adamw(theirs, config, rate)
    assert len({group["lr"] for group in oracle.param_groups}) == head + 1
    for step in range(3):
        values = gradients(step, ours)
        set_gradients(ours, values)
        set_gradients(theirs, values)
        optimizer.step(1e-2)
        oracle.step()
    assert_near(ours, theirs)


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    """300 + 1 + 1 is 302 in float32; in bf16, whose steps are 2 there, 300 + 1 stays 300."""
    ours = Small()
    optimizer = Optimizer(ours, dataclasses.replace(SETTINGS, max_grad_norm=0.0), dtype=torch.bfloat16)
    for value in (300.0, 1.0, 1.0):
        set_gradients(ours, constant(ours, value))
        optimizer.collect()
    for value, total in ((0.0, 302.0), (1.0, 1.0)):  # nothing is left of the step before
        set_gradients(ours, constant(ours, value))
        torch.testing.assert_close(optimizer.step(1e-3), norm_of(constant(ours, total)), rtol=1e-6, atol=0)


def test_a_parameter_in_float32_is_its_own_master() -> None:
    module = Small()
    optimizer = Optimizer(module, SETTINGS)
    assert all(optimizer.masters[name] is p for name, p in module.named_parameters())


def test_bf16_masters_advance_by_what_bf16_cannot_hold() -> None:
    config = dataclasses.replace(SETTINGS, weight_decay=0.0, max_grad_norm=0.0, adam_epsilon=1e-12)
    ours = Small()
    nn.init.ones_(ours.dense.weight)
    optimizer = Optimizer(ours, config, dtype=torch.bfloat16)
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    steps, rate = 40, 1e-5  # the whole way is 4e-4; bf16 around 1 has steps of 4e-3 and 8e-3
    for _ in range(steps):
        set_gradients(ours, constant(ours, 1.0))
        optimizer.step(rate)
    torch.testing.assert_close(optimizer.masters["dense.weight"], torch.full((5, 7), 1 - steps * rate), rtol=0, atol=1e-6)
    assert torch.equal(ours.dense.weight, torch.ones(5, 7, dtype=torch.bfloat16))
    for name, parameter in ours.named_parameters():
        assert optimizer.masters[name].dtype == torch.float32
        assert torch.equal(parameter, optimizer.masters[name].bfloat16()), name


@pytest.mark.parametrize("rule", ELEMENTWISE)
def test_fp16_updates_by_gradients_that_it_cannot_hold(rule: str) -> None:
    """Of 1e-9, which fp16 rounds to 0; against float32, that gets gradients of the same loss. An overflow changes nothing."""
    config = dataclasses.replace(SETTINGS, optimizer=rule, adam_epsilon=1e-12, max_grad_norm=0.0)
    modules = {dtype: Small() for dtype in (torch.float32, torch.float16)}
    optimizers = {dtype: Optimizer(module, config, dtype=dtype) for dtype, module in modules.items()}

    def step(dtype: torch.dtype, size: float) -> Tensor:
        module, weights = modules[dtype], torch.arange(1.0, 6.0) * size
        for last in (False, True):  # two micro-batches
            x = torch.linspace(0.5, 1.5, 7).to(dtype)
            loss = (module.dense(x).float() * weights).sum() + (module.LayerNorm(x[:5]).float() * weights).sum()
            optimizers[dtype].backward(loss, last=last)
        return optimizers[dtype].step(1e-2)

    for number in range(6):
        assert step(torch.float16, 1e-9 if number != 3 else 1e9) > 0
        if number != 3:
            step(torch.float32, 1e-9)
    assert {dtype: each.updates for dtype, each in optimizers.items()} == {torch.float32: 5, torch.float16: 5}
    assert optimizers[torch.float16].loss_scale.scale == 2.0**15
    for name, master in optimizers[torch.float32].masters.items():
        torch.testing.assert_close(optimizers[torch.float16].masters[name], master, rtol=0, atol=1e-3, msg=name)
        assert (master - Small().get_parameter(name)).abs().max() > 1e-3 or "frozen" in name


@pytest.mark.parametrize("rule", ELEMENTWISE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("done", [0, 3])
def test_optimizer_resumes_bit_exactly(done: int, dtype: torch.dtype, rule: str) -> None:
    def run(optimizer: Optimizer, module: nn.Module, steps: range) -> None:
        for step in steps:
            set_gradients(module, gradients(step, module))
            optimizer.step(1e-2)

    config = dataclasses.replace(SETTINGS, optimizer=rule)
    module, other = Small(), Small()
    optimizer = Optimizer(module, config, dtype=dtype)
    run(optimizer, module, range(done))
    weights, state = copy_of(optimizer)
    run(optimizer, module, range(done, done + 4))

    for parameter in other.parameters():
        nn.init.normal_(parameter)  # what was there before must not matter
    again = Optimizer(other, config, dtype=dtype)
    run(again, other, range(20, 22))
    again.restore(weights, state)
    kept = [{name: tensor.clone() for name, tensor in part.items()} for part in (weights, state)]
    run(again, other, range(done, done + 4))
    for part, after, expected in zip((weights, state), copy_of(again), copy_of(optimizer), strict=True):
        assert after.keys() == part.keys() == expected.keys()
        assert all(torch.equal(after[name], expected[name]) for name in expected)
    for part, before in zip((weights, state), kept, strict=True):
        assert all(torch.equal(part[name], before[name]) for name in before), "what was restored from is not written into"
    for (name, p), q in zip(other.named_parameters(), module.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_adamw_without_bias_correction_is_berts_own() -> None:
    """AdamWeightDecayOptimizer of google-research/bert, optimization.py, in float64."""
    config = dataclasses.replace(SETTINGS, max_grad_norm=0.0, adam_bias_correction=False)
    ours, other = Small(), Small()
    optimizer, corrected = Optimizer(ours, config), Optimizer(other, dataclasses.replace(config, adam_bias_correction=True))
    expected = {name: ours.get_parameter(name).detach().double().clone() for name in gradients(0, ours)}
    m, v = ({name: torch.zeros_like(value) for name, value in expected.items()} for _ in range(2))
    for step in range(12):
        values, rate = gradients(step, ours), 1e-3 * (step + 1)
        set_gradients(ours, values)
        set_gradients(other, values)
        optimizer.step(rate)
        corrected.step(rate)
        for name, value in expected.items():
            m[name] = config.adam_beta1 * m[name] + (1 - config.adam_beta1) * values[name].double()
            v[name] = config.adam_beta2 * v[name] + (1 - config.adam_beta2) * values[name].double() ** 2
            decay = config.weight_decay if name == "dense.weight" else 0.0
            expected[name] = value - rate * (m[name] / (v[name].sqrt() + config.adam_epsilon) + decay * value)
        if step == 5:  # a restart counts on
            weights, state = (
                {name: tensor.clone() for name, tensor in of().items()} for of in (optimizer.weights, optimizer.state)
            )
            optimizer = Optimizer(ours, config)
            optimizer.restore(weights, state)
    for name, value in expected.items():
        found = ours.get_parameter(name)
        torch.testing.assert_close(found.double(), value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
        assert not torch.allclose(found, other.get_parameter(name), atol=1e-4), "the correction is no small thing"


def copy_of(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Its weights and its state, as they are now."""
    weights, state = ({name: t.detach().clone() for name, t in of().items()} for of in (optimizer.weights, optimizer.state))
    return weights, state


@pytest.mark.parametrize("rule", ELEMENTWISE)
def test_state_names_moments_and_counts_and_has_no_weights(rule: str) -> None:
    """The names in checkpoints, which stay; the moments of these rules are Adam's."""
    module = Small()
    optimizer = Optimizer(module, dataclasses.replace(SETTINGS, optimizer=rule), dtype=torch.bfloat16)
    set_gradients(module, gradients(0, module))
    optimizer.step(1e-2)
    expected = {f"{part}.{name}" for part in ("exp_avg", "exp_avg_sq", "step") for name in gradients(0, module)}
    assert set(optimizer.state()) == expected
    assert {tensor.dtype for tensor in optimizer.state().values()} == {torch.float32}
    assert optimizer.state()["step.dense.weight"] == 1


HEADS: dict[str, Callable[[], nn.Module]] = {
    "pairs": PreTrainer,
    "pre-training": lambda: BertForPreTraining(CONFIG),
    "masked tokens": lambda: BertForMaskedLM(CONFIG),
    "classes": lambda: BertForSequenceClassification(CONFIG),
    "mixed layers": lambda: BertForSequenceClassification(CONFIG, pooling="mean", layers="mix"),
    "choices": lambda: BertForMultipleChoice(CONFIG),
    "answers": lambda: BertForQuestionAnswering(CONFIG),
    "tags": lambda: BertForTokenClassification(CONFIG, num_intents=3),
    "tags by an LSTM": lambda: BertForTokenClassification(CONFIG, head="bilstm"),
    "tags by a CRF": lambda: BertForTokenClassification(CONFIG, head="crf"),
}


@pytest.mark.parametrize("head", HEADS)
def test_decay_groups_are_those_of_run_glue_and_a_crf_has_none(head: str) -> None:
    module = HEADS[head]()
    optimizer = Optimizer(module, dataclasses.replace(SETTINGS, weight_decay=0.3))
    names = [name for name, _ in module.named_parameters()]
    decay = {names[index]: block.decay for block in optimizer.rule.blocks for index, _ in block.parts}
    of_crf = {f"head.crf.{part}" for part in ("start", "follow", "end")}
    assert of_crf.isdisjoint(names) == (head != "tags by a CRF")
    assert decay == {name: 0.3 if decays_in_run_glue(name) and name not in of_crf else 0.0 for name in names}


def test_tensors_larger_than_a_block_are_updated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for size in (2**22, 7):
        monkeypatch.setattr("bertkit.training.adamw.BLOCK", size)
        module = Small()
        optimizer = Optimizer(module, SETTINGS, dtype=torch.bfloat16)
        assert all(sum(master.numel() for master in block.masters) <= size for block in optimizer.rule.blocks)
        for step in range(3):
            set_gradients(module, gradients(step, module))
            norm = optimizer.step(1e-2)
        results.append((norm, copy_of(optimizer), {name: p.detach().float() for name, p in module.named_parameters()}))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("block", [2**22, 50])  # 50: 7 rows at a time
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sparse_gradient_updates_as_a_dense_one(dtype: torch.dtype, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, also in rows that it lacks, which have moments from earlier steps."""
    monkeypatch.setattr("bertkit.training.adamw.BLOCK", block)
    looked_up = [[3, 3, 29], [0, 6, 7, 13, 3, 13, 0], [29], [14, 8]]
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(30, 7, sparse=sparse), nn.Linear(7, 2))
        optimizer = Optimizer(module, SETTINGS, dtype=dtype)
        norms = []
        for rows in looked_up:
            module(torch.tensor(rows)).square().sum().backward()
            assert module[0].weight.grad.is_sparse == sparse
            norms.append(optimizer.step(1e-2))
        found.append((norms, copy_of(optimizer), [p.detach().clone() for p in module.parameters()]))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert len({float(norm) for norm in found[0][0]}) == 4


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


@pytest.mark.parametrize(("warmup", "decay", "total"), [(0, 1, 1), (0, 7, 7), (3, 4, 20), (1, 10, 50), (5, 5, 10)])
def test_warmup_stable_decay_equals_that_of_transformers(warmup: int, decay: int, total: int) -> None:
    from transformers import get_wsd_schedule

    adamw = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.7)
    scheduler = get_wsd_schedule(adamw, warmup, decay, total, decay_type="1-sqrt")
    ratios = {"warmup_ratio": warmup / total, "decay_ratio": decay / total}
    config = filled(TrainConfig(learning_rate=0.7, schedule="warmup_stable_decay", **ratios))
    rates = []
    for step in range(total):
        rates.append(learning_rate_of(step, config, total))
        assert rates[-1] == pytest.approx(scheduler.get_last_lr()[0])
        adamw.step()
        scheduler.step()
    assert rates.count(0.7) == total - warmup - decay + 1, "the fall begins at the peak"
    assert set(FALLS) == set(options_of(TrainConfig)["schedule"].choices)


@pytest.mark.parametrize(("ratio", "steps"), [(0.0, 0), (0.06, 1), (0.1, 1), (0.11, 2), (1.0, 10)])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_warmup_ratio_is_rounded_up_to_steps(ratio: float, steps: int, schedule: str) -> None:
    config = filled(TrainConfig(learning_rate=0.5, warmup_ratio=ratio, schedule=schedule))
    for step in range(10):
        expected = learning_rate_at(step, peak=0.5, warmup_steps=steps, total_steps=10, schedule=schedule)
        assert learning_rate_of(step, config, 10) == expected
