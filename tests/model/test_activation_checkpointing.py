"""Activation checkpointing: losses and parameters are the same to the last bit, and little is kept from the forward pass."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path

import pytest
import torch
from shapes import CONFIG, SHAPES, TRAINING, training_run
from torch import Tensor, nn

from bertkit.config import TrainConfig
from bertkit.model.batch import pack
from bertkit.model.bert import BertIntermediate, BertModel, set_activation_checkpointing
from bertkit.model.dropout import DropoutStream, set_dropout
from bertkit.model.layerwise import freeze

WITH_DROPOUT = dataclasses.replace(TRAINING, dropout=0.3)
STEPS = 3


@pytest.mark.parametrize("config", [WITH_DROPOUT, dataclasses.replace(WITH_DROPOUT, precision="bf16")], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", SHAPES)
def test_training_is_the_same_to_the_last_bit(name: str, config: TrainConfig, tmp_path: Path) -> None:
    plain = training_run(SHAPES[name], config, STEPS, tmp_path / "plain")
    recomputed = training_run(
        SHAPES[name], dataclasses.replace(config, activation_checkpointing=True), STEPS, tmp_path / "less"
    )
    assert recomputed.losses == plain.losses
    assert all(torch.equal(recomputed.parameters[key], value) for key, value in plain.parameters.items())


def test_with_the_lowest_layer_frozen_too(tmp_path: Path) -> None:
    def run(active: bool) -> list[float]:
        module = SHAPES["words"].build()
        config = dataclasses.replace(WITH_DROPOUT, freeze="1", activation_checkpointing=active)
        freeze(module, config)
        return training_run(SHAPES["words"], config, STEPS, tmp_path / str(active), module=module).losses

    assert run(True) == run(False)


@pytest.mark.parametrize(("active", "training", "computed"), [(False, True, 2), (True, True, 4), (True, False, 2)])
def test_what_is_inside_a_layer_is_not_kept_but_computed_again(active: bool, training: bool, computed: int) -> None:
    model = BertModel(CONFIG, add_pooling_layer=False).train(training)
    set_activation_checkpointing(model, active)
    inside: list[weakref.ref[Tensor]] = []

    def remember(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        inside.append(weakref.ref(output))

    for module in model.modules():
        if isinstance(module, BertIntermediate):
            module.register_forward_hook(remember)
    batch, _ = pack(torch.tensor([[2, 5, 6, 7]]), None, None)
    hidden = model.encode(batch)
    kept = [reference() is not None for reference in inside]
    assert kept == [not (active and training)] * CONFIG.num_hidden_layers
    hidden.sum().backward()
    assert len(inside) == computed


def test_the_stream_goes_on_behind_what_was_drawn_twice() -> None:
    like = torch.empty(0)
    stream, other = DropoutStream(), DropoutStream()
    for each in (stream, other):
        each.seed(3, 1)
    first, again = stream.replayed()
    with first:
        drawn = stream.keep_mask((50,), 0.5, like)
    between = stream.keep_mask((51,), 0.5, like)
    with again:
        assert torch.equal(stream.keep_mask((50,), 0.5, like), drawn)
    expected = [other.keep_mask((count,), 0.5, like) for count in (50, 51, 52)]
    assert all(map(torch.equal, expected, [drawn, between, stream.keep_mask((52,), 0.5, like)]))


def test_dropout_is_still_on() -> None:
    model = BertModel(CONFIG, add_pooling_layer=False).train()
    set_dropout(model, 0.5)
    set_activation_checkpointing(model, True)
    batch, _ = pack(torch.tensor([[2, 5, 6, 7]]), None, None)
    assert not torch.equal(model.encode(batch), model.encode(batch))
