"""Products of 8-bit integers against the same computed by hand in float64, and a model of them against the exact one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertkit.errors import UsageError
from bertkit.model import int8, precision
from bertkit.model.batch import pack
from bertkit.model.bert import ACTIVATIONS, BertModel, initialize
from bertkit.model.config import BertConfig
from bertkit.model.devices import OneProcess
from bertkit.model.int8 import LEAST, Int8Linear, available, quantize
from bertkit.model.precision import refuse_int8, resolve_precision


def needs_int8(test: Callable) -> Callable:
    return pytest.mark.processor(pytest.mark.skipif(not available(), reason="no exact products of 8-bit integers")(test))


SMALL = BertConfig(vocab_size=50, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128)


def linear(rows: int, columns: int, seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(columns, rows)


def by_hand(x: Tensor, layer: nn.Linear, least: float | None) -> Tensor:
    """Each weight a multiple of a 127th of its channel's largest, each input of its row's `size`.

    That is a 127th of the row's largest; above `least`, a 235th, or a 20th of `least` if that is more; above 0, a 255th.
    """
    weight = layer.weight.detach().double()
    step = weight.abs().amax(1, keepdim=True) / 127
    weight = (weight / step).round() * step
    x = x.double()
    size = x.abs().amax(1, keepdim=True) / 127
    if least is not None:
        size = (x.amax(1, keepdim=True) / 235).clamp(min=-least / 20) if least else x.amax(1, keepdim=True) / 255
    size = size.clamp(min=1e-12)
    return ((x / size).round() * size) @ weight.T + layer.bias.detach().double()


@needs_int8
@pytest.mark.parametrize("least", [None, -0.17, 0.0])
@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 64, 48), (37, 128, 64), (200, 64, 256)])
def test_it_is_the_product_of_rounded_numbers(count: int, columns: int, rows: int, least: float | None) -> None:
    layer = linear(rows, columns, count)
    x = torch.randn(count, columns) * torch.logspace(-2, 2, count)[:, None]  # rows of very different size
    x = x if least is None else x.clamp(min=least)
    with torch.inference_mode():
        found = Int8Linear([layer], least=least)(x.clone())
    wanted = by_hand(x, layer, least)
    # a value halfway between two steps may be rounded either way in float32
    near = (found - wanted).norm(dim=1) <= 3e-3 * wanted.norm(dim=1)
    assert near.all()
    assert ((found - wanted).norm(dim=1) <= 1e-5 * wanted.norm(dim=1)).float().mean() > 0.5
    exact = layer(x).detach()
    assert 1e-4 < (found - exact).norm() / exact.norm() < 0.02, "eight bits lose something, and not much"


@needs_int8
@pytest.mark.parametrize("least", [None, -0.17, 0.0])
def test_a_row_does_not_depend_on_its_neighbours_and_zeros_give_the_bias(least: float | None) -> None:
    layer = linear(64, 64, 3)
    x = torch.randn(40, 64) * torch.logspace(-3, 3, 40)[:, None]
    x = x if least is None else x.clamp(min=least)
    x[7] = 0
    made = Int8Linear([layer], least=least)
    with torch.inference_mode():
        together = made(x.clone())
        alone = torch.cat([made(row[None].clone()) for row in x])
    assert torch.equal(together, alone)
    torch.testing.assert_close(together[7], layer.bias.detach())


@needs_int8
def test_several_layers_are_side_by_side() -> None:
    layers = [linear(32, 64, seed) for seed in range(3)]
    x = torch.randn(9, 64)
    with torch.inference_mode():
        joint = Int8Linear(layers)(x)
        apart = torch.cat([Int8Linear([layer])(x) for layer in layers], 1)
        half = Int8Linear(layers, torch.bfloat16)(x)
    assert torch.equal(joint, apart)
    assert half.dtype == torch.bfloat16
    assert (half.float() - joint).norm() < 0.01 * joint.norm()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_least_value_of_an_activation(name: str) -> None:
    values = ACTIVATIONS[name](torch.linspace(-50, 50, 100_001, dtype=torch.float64))
    if name in LEAST:
        assert LEAST[name] == pytest.approx(float(values.min()), abs=2e-4)
    else:
        assert values.min() < -0.5, "it takes either sign"


@needs_int8
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh"])
def test_a_quantized_model_is_near_the_exact_one(dtype: torch.dtype, activation: str) -> None:
    config = replace(SMALL, hidden_act=activation, initializer_range=0.2)
    model = BertModel(config).eval()
    initialize(model, config, seed=1)
    quantized = copy.deepcopy(model)
    quantize(quantized, dtype)
    encoder = quantized.encoder.layer
    assert sum(isinstance(part, Int8Linear) for part in quantized.modules()) == 4 * len(encoder) + 2
    assert not any(isinstance(part, nn.Linear) for part in encoder.modules())
    ids = torch.randint(1, 50, (6, 30), generator=torch.Generator().manual_seed(0))
    attended = torch.arange(30) < torch.tensor([30, 3, 17, 30, 1, 9])[:, None]
    batch, _ = pack(ids, attended.long(), None)
    with torch.inference_mode():
        exact, found = model.encode(batch), quantized.encode(batch)
    assert found.dtype == torch.float32
    assert 1e-4 < (found - exact).norm() / exact.norm() < 0.1


def test_lost_bits_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that adds pairs of products in 16 bits gives less."""

    def saturated(rows: Tensor, zero: int, weight: Tensor, scales: Tensor, zeros: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.full((len(rows), 64), 32767.0 * 32)

    monkeypatch.setattr(int8, "_product", saturated)
    assert not int8.available.__wrapped__()


# --- whether it is used -----------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Let the machine compute at these rates, and have int8 or not."""

    def set_rates(available: bool = True, **rates: float) -> None:
        monkeypatch.setattr(precision, "measure_rates", lambda *_, **__: (rates, True))
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: "bf16" in rates)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        monkeypatch.setitem(precision._COMPUTED, "int8", lambda: available)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    return set_rates


def resolved(asked: str = "int8") -> precision.Precision:
    return resolve_precision(asked, SMALL, OneProcess.on("cpu"), training=False)


@pytest.mark.parametrize(
    ("rates", "name", "attention"),
    [
        ({"fp32": 100.0, "int8": 130.0}, "int8", torch.float32),
        ({"fp32": 100.0, "bf16": 150.0, "int8": 200.0}, "int8", torch.bfloat16),
        ({"fp32": 100.0, "bf16": 110.0, "int8": 125.0}, "int8", torch.float32),
        ({"fp32": 100.0, "bf16": 150.0, "int8": 149.0}, "bf16", torch.bfloat16),
        ({"fp32": 100.0, "int8": 90.0}, "fp32", torch.float32),
        ({"fp32": 100.0, "bf16": 90.0, "int8": 101.0}, "int8", torch.float32),
    ],
)
def test_it_is_used_where_it_is_faster(measured, rates: dict[str, float], name: str, attention: torch.dtype) -> None:
    measured(**rates)
    found = resolved()
    assert (found.name, found.attention) == (name, attention)
    assert str(found).startswith(f"--precision int8: {name};")
    assert resolved("auto").name != "int8", "auto never takes it"


def test_without_such_products_it_is_a_float(measured) -> None:
    measured(available=False, fp32=100.0)
    found = resolved()
    assert found.name == "fp32"
    assert str(found)


def test_it_is_refused_where_gradients_are_needed() -> None:
    refuse_int8("auto", "")
    with pytest.raises(UsageError):
        refuse_int8("int8", "training")


@needs_int8
def test_numbers_of_eight_bits_are_all_used() -> None:
    """Of inputs from `least` to twelve times as far above 0, the lowest is 0 and the highest 255."""
    seen: list[np.ndarray] = []
    made = Int8Linear([linear(64, 64, 0)], least=-0.17)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(int8, "_product", lambda rows, *_: seen.append(rows.numpy()) or torch.zeros(len(rows), 64))
        made(torch.linspace(-0.17, 2, 64).expand(2, -1).contiguous())
    assert (seen[0].min(), seen[0].max(), len(np.unique(seen[0]))) == (0, 255, 64)
