"""The model's own contract: names, fresh weights, what it takes and what it refuses. Its numbers are in test_parity.py."""

from __future__ import annotations

import ast
import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

import bertkit
from bertkit.model import config as bert_config
from bertkit.model.batch import Batch, pack
from bertkit.model.bert import ACTIVATIONS, BertModel, initialize
from bertkit.model.config import MODEL_SIZES, BertConfig
from bertkit.model.heads import BertForSequenceClassification

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
CONFIG = BertConfig(**SIZES, max_position_embeddings=12, id2label={0: "a", 1: "b", 2: "c"})


def make_model(config: BertConfig = CONFIG, *, seed: int = 0) -> BertForSequenceClassification:
    model = BertForSequenceClassification(config)
    initialize(model, dataclasses.replace(config, initializer_range=0.2), seed=seed)
    return model.eval()


# --- sizes and activations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "millions"), [("tiny", 4.4), ("mini", 11.2), ("base", 109.5), ("large", 335.1)])
def test_sizes_have_the_published_number_of_parameters(size: str, millions: float) -> None:
    """As counted by Turc et al. (2019), table 1, and Devlin et al. (2019): 110M and 340M, rounded."""
    assert size in MODEL_SIZES
    with torch.device("meta"):
        model = BertModel(BertConfig.of_size(size))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


def test_no_model_of_transformers_is_imported() -> None:
    files = sorted(Path(bertkit.__file__).parent.rglob("*.py"))
    assert len(files) > 20
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not any(name.split(".")[0] == "transformers" for name in [source, *named]), path


def test_activations_are_those_that_the_config_permits() -> None:
    assert set(ACTIVATIONS) == set(bert_config.ACTIVATION_NAMES)
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    for name, activation in ACTIVATIONS.items():
        torch.testing.assert_close(activation(x), ACT2FN[name](x), rtol=1e-12, atol=1e-14)


# --- fresh weights -----------------------------------------------------------------------------------------------------


def test_fresh_weights() -> None:
    config = dataclasses.replace(CONFIG, vocab_size=3000, hidden_size=64, pad_token_id=7, initializer_range=0.05)
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():  # nothing of what was there before stays
            parameter.fill_(3.0)
    initialize(model, config, seed=0)
    drawn = []
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "LayerNorm" in name:
            assert (parameter == name.endswith("LayerNorm.weight")).all(), name
            continue
        drawn.append(name)
        rows = parameter.detach()
        if "word_embeddings" in name:
            assert (rows[7] == 0).all()
            rows = rows[torch.arange(3000) != 7]
        assert (rows != 0).all(), name
        assert abs(rows.mean()) < 5 * 0.05 / math.sqrt(rows.numel()), name
        assert abs(rows.std() / 0.05 - 1) < 5 / math.sqrt(2 * rows.numel()), name
    assert len(drawn) == 3 + 2 * 6 + 2  # embeddings; q, k, v and three dense of each layer; pooler and classifier
    words = model.bert.embeddings.word_embeddings.weight.detach()[8:] / 0.05
    assert (words.abs() < 1).double().mean() == pytest.approx(0.6827, abs=0.01)  # normal, not uniform
    assert words.abs().max() > 3.5  # and not truncated at two


def test_fresh_weights_depend_on_the_seed_alone() -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        model = BertForSequenceClassification(CONFIG)
        before = torch.get_rng_state()
        initialize(model, CONFIG, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        return model.state_dict()

    first, second, other = weights(5), weights(5), weights(6)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


# --- what forward takes ------------------------------------------------------------------------------------------------

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])


@pytest.mark.parametrize("make", [BertModel, BertForSequenceClassification])
@pytest.mark.parametrize("name", ["inputs_embeds", "position_ids", "head_mask", "labels", "output_attentions", "return_dict"])
def test_refuses_by_name_what_transformers_takes(make: type[nn.Module], name: str) -> None:
    model = make(CONFIG)
    for value in (IDS, False):
        with pytest.raises(TypeError, match=name):
            model(IDS, **{name: value})
    with pytest.raises(TypeError, match=f"a, {name};"):
        model(IDS, **{name: 0, "a": False, "b": None})
    model(IDS, **{name: None})  # as transformers' own code hands arguments on


@pytest.mark.parametrize(
    "mask",
    [
        [[0, 1, 1, 1], [1, 1, 1, 1]],
        [[1, 1, 1, 1], [0, 0, 0, 0]],
        [[1, 1, 2, 1], [1, 1, 1, 1]],
        [[1, 1, -1, 1], [1, 1, 1, 1]],
        [[1.0, 0.5, 1, 1], [1, 1, 1, 1]],
        [[1, 1, 1], [1, 1, 1]],
        [1, 1, 1, 1],
        [[[1, 1, 1, 1]], [[1, 1, 1, 1]]],
    ],
)
@pytest.mark.parametrize("make", [BertModel, BertForSequenceClassification])
def test_refuses_masks(make: type[nn.Module], mask: list) -> None:
    shape = tuple(torch.tensor(mask).shape)
    with pytest.raises(ValueError, match="attention_mask" if shape == (2, 4) else re.escape(f"{shape}; expected (2, 4)")):
        make(CONFIG)(IDS, torch.tensor(mask))


def test_input_without_tokens_is_refused() -> None:
    for shape in ((0, 3), (2, 0)):
        with pytest.raises(ValueError, match="expected at least one sequence of one token"):
            BertModel(CONFIG)(torch.zeros(shape, dtype=torch.long))


def test_a_sparse_gradient_is_the_dense_one_of_rows_that_were_looked_up() -> None:
    """Padding that is attended gets no gradient either way."""
    model = BertModel(CONFIG).double().eval()
    ids = torch.tensor([[1, 2, 5], [2, 2, CONFIG.pad_token_id]])
    goal = torch.randn(*ids.shape, CONFIG.hidden_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for sparse in (False, True):
        model.zero_grad()
        model.embeddings.sparse_gradient = sparse
        model(ids).last_hidden_state.backward(goal)
        found.append(model.embeddings.word_embeddings.weight.grad)
    assert (found[0].is_sparse, found[1].is_sparse) == (False, True)
    assert set(found[1].coalesce().indices()[0].tolist()) == {1, 2, 5}
    assert found[0][[1, 2, 5]].any(1).all()
    torch.testing.assert_close(found[1].to_dense(), found[0])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_masks_of_any_dtype(dtype: torch.dtype) -> None:
    model, mask = make_model(), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    assert torch.equal(model(IDS, mask.to(dtype)).logits["logits"], model(IDS, mask).logits["logits"])


def test_padding_is_not_computed() -> None:
    """Whatever stands in the padding, even numbers that are no tokens: it is never looked up."""
    model = make_model()
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    seen: list[torch.Size] = []
    for module in (model.bert.embeddings.LayerNorm, model.bert.encoder.layer[0].intermediate):
        module.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    plain = model(IDS, mask).logits["logits"]
    odd = model(IDS.masked_fill(mask == 0, 10**9), mask, torch.zeros_like(IDS).masked_fill(mask == 0, 77)).logits["logits"]
    assert torch.equal(odd, plain)
    assert seen == [(5, 16), (5, 24)] * 2


def test_without_a_pooler() -> None:
    assert BertModel(CONFIG, add_pooling_layer=False)(IDS).pooler_output is None


# --- batches and losses ------------------------------------------------------------------------------------------------


def make_batch(labels: dict[str, Tensor]) -> Batch:
    batch, _ = pack(IDS, None, None)
    return dataclasses.replace(
        batch, rows=torch.tensor([0, 4]), cu_rows=torch.arange(3), row_counts=np.ones(2, dtype=np.int64), labels=labels
    )


def test_loss_is_a_sum_over_targets() -> None:
    """Of no target 0, where a mean would be NaN; and there is none without labels. One label alone is a score."""
    model = make_model()
    assert model(make_batch({})).loss_sums == {}
    assert model(make_batch({"labels": torch.tensor([-100, -100])})).loss_sums["labels"] == 0
    score = make_model(dataclasses.replace(CONFIG, id2label={0: "LABEL_0"}))(make_batch({"labels": torch.tensor([2.5, -1.0])}))
    logits = score.logits["logits"]
    assert logits.shape == (2, 1)
    torch.testing.assert_close(score.loss_sums["labels"], (logits[0, 0] - 2.5) ** 2 + (logits[1, 0] + 1) ** 2)


def test_logits_and_loss_are_float32_at_least() -> None:
    batch = make_batch({"labels": torch.tensor([2, 0])})
    for dtype, wanted in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)):
        found = make_model().to(dtype)(batch)
        assert found.logits["logits"].dtype == found.loss_sums["labels"].dtype == wanted
    full, half = make_model()(batch), make_model().to(torch.bfloat16)(batch)
    torch.testing.assert_close(half.logits["logits"], full.logits["logits"], rtol=0.05, atol=0.05)


def test_batches_move_whole() -> None:
    batch = dataclasses.replace(make_batch({"labels": torch.tensor([1, 0])}), weights={"labels": 2.0})
    moved = batch.to(torch.device("meta"))
    for field in dataclasses.fields(Batch):
        value = getattr(moved, field.name)
        if isinstance(value, Tensor):
            assert value.device.type == "meta", field.name
            assert value.shape == getattr(batch, field.name).shape
    assert moved.labels["labels"].device.type == "meta"
    assert (moved.weights, moved.max_seqlen, moved.max_rows) == ({"labels": 2.0}, 4, 1)
    assert dataclasses.replace(batch, rows=None).to(torch.device("cpu")).rows is None


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    model, batch = make_model(), make_batch({"labels": torch.tensor([2, 0])})
    wanted = model(batch)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    padded = model(IDS, mask)
    model.cuda()
    found = model(batch.to(torch.device("cuda")))
    torch.testing.assert_close(found.logits["logits"].cpu(), wanted.logits["logits"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.loss_sums["labels"].cpu(), wanted.loss_sums["labels"], rtol=1e-4, atol=1e-4)
    found = model(IDS.cuda(), mask.cuda())
    torch.testing.assert_close(found.logits["logits"].cpu(), padded.logits["logits"], rtol=1e-4, atol=1e-4)


# --- shapes ------------------------------------------------------------------------------------------------------------


def test_batches_of_any_size_are_multiplied_in_few_shapes() -> None:
    """In bfloat16, each shape costs a CPU half a megabyte for good: files of millions of rows have batches of every size."""
    model = make_model()
    shapes: dict[str, set[int]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs, name=name: shapes.setdefault(name, set()).add(len(inputs[0])))
    with torch.inference_mode():
        for size in range(200, 300):
            (logits,) = model(IDS[:1].repeat(size, 1)).logits.values()
            assert len(logits) == size
    counts = {name: len(found) for name, found in shapes.items()}
    assert max(counts.values()) <= 24, counts
    of_first_tokens = ["bert.pooler.dense", *(f"bert.encoder.layer.1.{part}.dense" for part in ("intermediate", "output"))]
    assert max(counts[name] for name in of_first_tokens) <= 8, counts
