"""Dropout from one seeded stream: its rates, its bits, and whom it reaches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertkit.model.bert import BertModel, initialize
from bertkit.model.config import BertConfig
from bertkit.model.dropout import Dropout, DropoutStream, seed_dropout, set_dropout
from bertkit.model.heads import BertForSequenceClassification

MILLION = 2**20


def stream(*key: int) -> DropoutStream:
    made = DropoutStream()
    made.seed(*key)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_rates(p: float, dtype: torch.dtype) -> None:
    """16 bits cannot give 0.1 exactly: the rate is within 2**-17 of it, and the scale is that rate's own; so the mean stays."""
    dropped = Dropout(p, stream(1, 2, 3))(torch.ones(2 * MILLION, dtype=dtype))
    assert dropped.dtype == dtype
    kept = dropped != 0
    assert abs(kept.double().mean().item() - (1 - p)) < 1e-3
    (scale,) = dropped[kept].unique().tolist()
    assert scale == pytest.approx(1 / (1 - p), rel={torch.bfloat16: 4e-3}.get(dtype, 2e-5))
    if dtype == torch.float64:
        assert 2**16 / scale == pytest.approx(round(2**16 / scale), abs=1e-6)
        assert abs(1 / scale - (1 - p)) <= 2**-17


def test_elements_are_independent() -> None:
    """Neighbours, rows, and elements that come from one random number are dropped together no more often than by chance."""
    dropped = (stream(5).keep_mask((1024, 1024), 0.5, torch.empty(0)) == 0).double().flatten() - 0.5
    for lag in (1, 2, 3, 4, 8, 16, 64, 1024):
        correlation = (dropped[lag:] * dropped[:-lag]).mean().item() / 0.25
        assert abs(correlation) < 5 / 1024, lag  # five standard deviations
    columns, rows = dropped.view(1024, 1024).mean(0), dropped.view(1024, 1024).mean(1)
    assert max(columns.abs().max().item(), rows.abs().max().item()) < 6 * 0.5 / 32


def test_kept_values_and_gradients_are_scaled() -> None:
    x = torch.randn(300, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dropout = Dropout(0.3, stream(9))
    mask = stream(9).keep_mask((300, 8), 0.3, x)
    x.requires_grad_()
    dropped = dropout(x)
    assert torch.equal(dropped, x * mask)
    dropped.sum().backward()
    assert torch.equal(x.grad, mask)
    dropout.stream.seed(9)
    assert torch.equal(dropout.mask(x), mask)
    assert dropout.eval().mask(x) is None


def bits(dropout_stream: DropoutStream, count: int = 4096) -> Tensor:
    return dropout_stream.keep_mask((count,), 0.5, torch.empty(0))


def test_seeds() -> None:
    """The same (seed, step, micro-step, rank) gives the same bits; any other one others, and so does drawing on."""
    first = bits(stream(42, 7, 1, 0))
    assert torch.equal(first, bits(stream(42, 7, 1, 0)))
    keys = [(42, 7, 1, 0), (43, 7, 1, 0), (42, 8, 1, 0), (42, 7, 2, 0), (42, 7, 1, 1), (7, 42, 1, 0), (42, 1, 7, 0)]
    drawn = [bits(stream(*key)) for key in keys]
    going_on = stream(42, 7, 1, 0)
    bits(going_on)
    drawn.append(bits(going_on))
    for at, one in enumerate(drawn):
        for other in drawn[:at]:
            assert 0.45 < (one == other).double().mean().item() < 0.55


def test_no_other_randomness_is_touched_or_used() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(5)
    torch.manual_seed(3)
    np.random.seed(3)
    first = bits(stream(1))
    assert torch.equal(torch.rand(5), wanted)
    torch.manual_seed(99)
    np.random.seed(99)
    assert torch.equal(bits(stream(1)), first)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (3,), (5, 7), ()])
def test_shapes(shape: tuple[int, ...]) -> None:
    assert Dropout(0.5, stream(0))(torch.ones(shape)).shape == shape


@pytest.mark.parametrize("p", [1.0, 1 - 1e-9])
def test_all_is_dropped(p: float) -> None:
    x = torch.randn(50).requires_grad_()
    dropped = Dropout(p, stream(0))(x)
    dropped.sum().backward()
    assert not dropped.any()
    assert not x.grad.any()


def test_off_in_eval_and_at_zero() -> None:
    x = torch.randn(10)
    for dropout in (Dropout(0.5, stream(0)).eval(), Dropout(0.0, stream(0))):
        assert not dropout.active
        assert dropout(x) is x
    assert Dropout(0.5, stream(0)).active


# --- in the model ------------------------------------------------------------------------------------------------------

RATES = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.3}
SIZES = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
CONFIG = BertConfig(**SIZES, **RATES)


def make_model(config: BertConfig = CONFIG) -> BertForSequenceClassification:
    model = BertForSequenceClassification(config)
    initialize(model, dataclasses.replace(config, initializer_range=0.3), seed=0)
    return model


def logits(model: nn.Module, *key: int) -> Tensor:
    ids = torch.randint(1, 30, (4, 6), generator=torch.Generator().manual_seed(0))
    seed_dropout(model, *key)
    return model(ids).logits["logits"].detach()


def test_every_module_has_its_rate_and_the_one_stream() -> None:
    model = make_model()
    rates = {name: module.p for name, module in model.named_modules() if isinstance(module, Dropout)}
    layers = {
        f"bert.encoder.layer.{layer}.{name}.dropout": p
        for layer in range(2)
        for name, p in (("attention.self", 0.2), ("attention.output", 0.1), ("output", 0.1))
    }
    assert rates == {"bert.embeddings.dropout": 0.1, **layers, "dropout": 0.3}
    assert {module.stream for module in model.modules() if isinstance(module, Dropout)} == {model.bert.dropout_stream}
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
    for rate, found in ((None, 0.1), (0.0, 0.0)):
        assert make_model(dataclasses.replace(CONFIG, classifier_dropout=rate)).dropout.p == found
    set_dropout(model, 0.25)
    assert {module.p for module in model.modules() if isinstance(module, Dropout)} == {0.25}
    set_dropout(model, None, 0.5)
    found = {name: module.p for name, module in model.named_modules() if isinstance(module, Dropout)}
    assert found == {name: 0.5 if "attention.self" in name else 0.25 for name in rates}
    set_dropout(model, 0.1)
    assert {module.p for module in model.modules() if isinstance(module, Dropout)} == {0.1}
    assert not [name for name in model.state_dict() if "dropout" in name]


def test_a_step_is_repeated_bit_for_bit() -> None:
    model = make_model().train()
    first = logits(model, 42, 3, 1, 0)
    for other in ((42, 3, 2, 0), (42, 4, 1, 0), (42, 3, 1, 1)):  # another micro-step, step, process
        assert not torch.equal(logits(model, *other), first)
    assert torch.equal(logits(model, 42, 3, 1, 0), first)
    kept = logits(model.eval(), 1)
    assert torch.equal(logits(model, 2), kept)
    assert not torch.isclose(first, kept).all(-1).any()


def test_seed_dropout_reaches_every_stream() -> None:
    both = nn.ModuleList([BertModel(CONFIG), nn.Sequential(make_model())])
    streams = [both[0].dropout_stream, both[1][0].bert.dropout_stream]
    assert streams[0] is not streams[1]
    seed_dropout(both, 5, 6)
    for one in streams:
        assert torch.equal(bits(one), bits(stream(5, 6)))


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_on_a_gpu(p: float) -> None:
    x = torch.ones(2 * MILLION, device="cuda")
    dropped = Dropout(p, stream(1, 2))(x)
    assert abs((dropped != 0).double().mean().item() - (1 - p)) < 1e-3
    (scale,) = dropped[dropped != 0].unique().tolist()
    assert scale == pytest.approx(1 / (1 - p), rel=1e-6)
    assert torch.equal(Dropout(p, stream(1, 2))(x), dropped)
    assert not torch.equal(Dropout(p, stream(1, 3))(x), dropped)
