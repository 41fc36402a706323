"""Packed weights: the same outputs to rounding, the same state dict, and gradients as before."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch

from bertkit.model.bert import ACTIVATIONS, BertIntermediate, BertModel, initialize, pack_weights
from bertkit.model.config import BertConfig
from bertkit.model.packed_weights import PackedWeights, can_pack

CONFIG = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
IDS = torch.tensor([[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 0, 0, 0]])
MASK = (IDS > 0).long()


def num_packed(module: torch.nn.Module) -> int:
    """How many products of a module have packed weights."""
    found = [part.packed for part in module.modules() if hasattr(part, "packed")]
    packed = [each for part in found for each in (part.values() if isinstance(part, dict) else [part])]
    assert all(isinstance(each, PackedWeights) for each in packed)
    return sum(bool(each.layers) for each in packed)


needs_onednn = pytest.mark.skipif(not can_pack(torch.zeros(1)), reason="torch has no oneDNN here")


@needs_onednn
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), pytest.param(torch.bfloat16, 0.05, marks=pytest.mark.processor)]
)
def test_packed_weights_give_the_same_outputs(dtype: torch.dtype, tolerance: float) -> None:
    plain = BertModel(CONFIG)
    initialize(plain, CONFIG, seed=0)
    plain = plain.to(dtype).eval()
    if not can_pack(plain.embeddings.LayerNorm.weight):
        pytest.skip("this machine has no bfloat16 products")
    packed = copy.deepcopy(plain)
    pack_weights(packed)
    assert [num_packed(layer) for layer in packed.encoder.layer] == [4, 6]  # the last one's query, and key and value, apart
    assert [*packed.state_dict()] == [*plain.state_dict()]
    with torch.inference_mode():
        pairs = zip(copy.deepcopy(packed)(IDS, MASK), plain(IDS, MASK), strict=True)
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)
    for part in packed.encoder.layer[0].modules():  # what is read in inference is the copy
        if isinstance(part, torch.nn.Linear):
            part.weight.data.zero_()
    with torch.inference_mode():
        torch.testing.assert_close(
            packed(IDS, MASK).last_hidden_state, plain(IDS, MASK).last_hidden_state, rtol=0, atol=tolerance
        )


@needs_onednn
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_activation_is_computed_with_the_product(name: str) -> None:
    part = BertIntermediate(dataclasses.replace(CONFIG, hidden_act=name))
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = part(x)
        part.pack()
        part.dense.weight.data.zero_()
        torch.testing.assert_close(part(x), wanted, rtol=0, atol=1e-5)
    assert float(wanted.std()) > 0.1


@needs_onednn
def test_gradients_are_those_of_the_own_weights() -> None:
    plain = BertModel(CONFIG)
    initialize(plain, CONFIG, seed=0)
    packed = copy.deepcopy(plain)
    pack_weights(packed)
    for model in (plain, packed):
        model.eval()(IDS, MASK).pooler_output.sum().backward()
    for (name, wanted), (_, found) in zip(plain.named_parameters(), packed.named_parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, msg=name)


def test_other_dtypes_stay_as_they_are() -> None:
    model = BertModel(CONFIG).double()
    pack_weights(model)
    assert num_packed(model) == 0


@needs_onednn
def test_changed_weights_and_copies_are_computed_with_as_they_are() -> None:
    model = BertModel(CONFIG).eval()
    initialize(model, CONFIG, seed=0)
    pack_weights(model)
    other = BertModel(CONFIG).eval()
    initialize(other, CONFIG, seed=1)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    with torch.no_grad():
        before = model(IDS, MASK).last_hidden_state
        for same in copies:
            torch.testing.assert_close(same(IDS, MASK).last_hidden_state, before, rtol=0, atol=1e-5)
        assert copies[0].to(torch.bfloat16)(IDS, MASK).last_hidden_state.dtype == torch.bfloat16
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model(IDS, MASK).last_hidden_state, other(IDS, MASK).last_hidden_state, rtol=0, atol=1e-5)
