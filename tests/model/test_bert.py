"""The model's own contract: names, fresh weights, what it takes and what it refuses. Its numbers are in test_parity.py."""

from __future__ import annotations

import ast
import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.activations import ACT2FN

import bertkit
from bertkit.model import config as bert_config
from bertkit.model.batch import Batch, pack
from bertkit.model.bert import ACTIVATIONS, BertModel, initialize, refuse
from bertkit.model.config import MODEL_SIZES, BertConfig
from bertkit.model.heads import BertForSequenceClassification

CONFIG = BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
    id2label={0: "a", 1: "b", 2: "c"},
)


def make_model(config: BertConfig = CONFIG, *, seed: int = 0) -> BertForSequenceClassification:
    model = BertForSequenceClassification(config)
    initialize(model, dataclasses.replace(config, initializer_range=0.2), seed=seed)
    return model.eval()


def theirs(config: BertConfig) -> transformers.BertConfig:
    return transformers.BertConfig.from_dict(config.to_dict())


# --- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"num_hidden_layers": 0}, {"num_hidden_layers": 5, "type_vocab_size": 1}, {"id2label": {0: "LABEL_0"}}]
)
def test_names_and_shapes_are_those_of_transformers(changes: dict) -> None:
    config = dataclasses.replace(CONFIG, **changes)

    def shapes(module: nn.Module) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in module.state_dict().items()}

    assert shapes(BertForSequenceClassification(config)) == shapes(transformers.BertForSequenceClassification(theirs(config)))
    assert shapes(BertModel(config)) == shapes(transformers.BertModel(theirs(config)))
    without = transformers.BertModel(theirs(config), add_pooling_layer=False)
    assert shapes(BertModel(config, add_pooling_layer=False)) == shapes(without)


@pytest.mark.parametrize(("size", "millions"), [("tiny", 4.4), ("mini", 11.2), ("base", 109.5), ("large", 335.1)])
def test_sizes_have_the_published_number_of_parameters(size: str, millions: float) -> None:
    """As counted by Turc et al. (2019), table 1, and Devlin et al. (2019): 110M and 340M, rounded."""
    assert size in MODEL_SIZES
    with torch.device("meta"):
        model = BertModel(BertConfig.of_size(size))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


def test_no_model_of_transformers_is_imported() -> None:
    """Not by name in any file, and not in fact when a model is built and run with every module of bertkit imported."""
    package = Path(bertkit.__file__).parent
    files = sorted(package.rglob("*.py"))
    assert len(files) > 20
    modules = []
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            named = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not any(name.split(".")[0] == "transformers" for name in [source, *named]), path
        parts = path.relative_to(package.parent).with_suffix("").parts
        if parts[-1] != "__main__" and "recipes" not in parts:
            modules.append(".".join(parts).removesuffix(".__init__"))
    script = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
import torch
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertForSequenceClassification
config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
assert BertForSequenceClassification(config)(torch.tensor([[1, 2]])).logits["logits"].shape == (1, 2)
print(*[name for name in sys.modules if name.startswith("transformers.") and ".modeling_" in name])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_activations_are_those_that_the_config_permits() -> None:
    assert set(ACTIVATIONS) == set(bert_config.ACTIVATIONS)
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    for name, activation in ACTIVATIONS.items():
        torch.testing.assert_close(activation(x), ACT2FN[name](x), rtol=1e-12, atol=1e-14)
    # gelu by its definition, x * P(Z <= x), and not by its approximation
    exact = torch.tensor([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS["gelu"](x), exact, rtol=1e-12, atol=1e-14)
    assert (ACTIVATIONS["gelu_new"](x) - exact).abs().max() > 1e-5


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
        if name.endswith("LayerNorm.weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            drawn.append(name)
            rows = parameter.detach()
            if "word_embeddings" in name:
                assert (rows[7] == 0).all()
                rows = rows[torch.arange(3000) != 7]
            assert (rows != 0).all(), name
            count = rows.numel()
            assert abs(rows.mean()) < 5 * 0.05 / math.sqrt(count), name
            assert abs(rows.std() / 0.05 - 1) < 5 / math.sqrt(2 * count), name
    assert len(drawn) == 3 + 2 * 6 + 2  # embeddings; q, k, v and three dense of each layer; pooler and classifier
    words = model.bert.embeddings.word_embeddings.weight.detach()[8:] / 0.05
    assert (words.abs() < 1).double().mean() == pytest.approx(0.6827, abs=0.01)  # normal, not uniform
    assert words.abs().max() > 3.5  # and not truncated at two


def test_fresh_weights_depend_on_the_seed_alone() -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        model = BertForSequenceClassification(CONFIG)
        initialize(model, CONFIG, seed=seed)
        return model.state_dict()

    torch.manual_seed(0)
    first = weights(5)
    torch.manual_seed(1)
    second, other = weights(5), weights(6)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])
    model = BertForSequenceClassification(CONFIG)
    before = torch.get_rng_state()
    initialize(model, CONFIG, seed=5)
    assert torch.equal(torch.get_rng_state(), before)


# --- what forward takes ------------------------------------------------------------------------------------------------

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])


@pytest.mark.parametrize("make", [BertModel, BertForSequenceClassification])
@pytest.mark.parametrize(
    "name",
    [
        "inputs_embeds",
        "position_ids",
        "head_mask",
        "labels",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "past_key_values",
        "encoder_hidden_states",
    ],
)
def test_refuses_by_name(make: type[nn.Module], name: str) -> None:
    model = make(CONFIG)
    message = rf"^forward\(\) does not take {name}; it takes input_ids, attention_mask, token_type_ids$"
    with pytest.raises(TypeError, match=message):
        model(IDS, **{name: IDS})
    with pytest.raises(TypeError, match=f" {name};"):
        model(IDS, **{name: True})
    model(IDS, **{name: None})  # as transformers' own code hands arguments on


def test_refuses_several_at_once() -> None:
    with pytest.raises(TypeError, match="does not take a, labels;"):
        refuse({"labels": 0, "a": False, "b": None})


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[0, 1, 1, 1], [1, 1, 1, 1]], "no padding on the left"),
        ([[1, 1, 1, 1], [0, 0, 0, 0]], "1 at the first token of each sequence"),
        ([[1, 1, 2, 1], [1, 1, 1, 1]], "must be 0 or 1"),
        ([[1, 1, -1, 1], [1, 1, 1, 1]], "must be 0 or 1"),
        ([[1.0, 0.5, 1, 1], [1, 1, 1, 1]], "must be 0 or 1"),
        ([[1, 1, 1], [1, 1, 1]], r"shape \(2, 3\); expected \(2, 4\)"),
        ([1, 1, 1, 1], r"shape \(4,\); expected \(2, 4\)"),
        ([[[1, 1, 1, 1]], [[1, 1, 1, 1]]], r"shape \(2, 1, 4\); expected \(2, 4\)"),
    ],
)
@pytest.mark.parametrize("make", [BertModel, BertForSequenceClassification])
def test_refuses_masks(make: type[nn.Module], mask: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(CONFIG)(IDS, torch.tensor(mask))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float32])
def test_masks_of_any_dtype(dtype: torch.dtype) -> None:
    model = make_model()
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    assert torch.equal(model(IDS, mask.to(dtype)).logits["logits"], model(IDS, mask).logits["logits"])


def test_pack() -> None:
    """Holes and all: only what is attended, at the columns where it stood."""
    mask = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 0]])
    types = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]])
    batch, attended = pack(IDS, mask, types)
    assert batch.input_ids.tolist() == [5, 7, 9, 10, 11]
    assert batch.token_type_ids.tolist() == [0, 1, 0, 0, 0]
    assert batch.position_ids.tolist() == [0, 2, 0, 1, 2]
    assert batch.cu_seqlens.tolist() == batch.cu_rows.tolist() == [0, 2, 5]
    assert (batch.max_seqlen, batch.max_rows, batch.rows) == (3, 3, None)
    assert batch.features.tolist() == [0, 1]
    assert attended.tolist() == [[True, False, True, False], [True, True, True, False]]


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
    model = BertModel(CONFIG, add_pooling_layer=False)
    assert model(IDS).pooler_output is None
    assert model(IDS).last_hidden_state.shape == (2, 4, 16)


# --- batches and losses ------------------------------------------------------------------------------------------------


def make_batch(labels: dict[str, Tensor]) -> Batch:
    batch, _ = pack(IDS, None, None)
    return dataclasses.replace(batch, rows=torch.tensor([0, 4]), cu_rows=torch.arange(3), max_rows=1, labels=labels)


def test_loss_sums() -> None:
    """A sum over targets, whatever its divisor will be; nothing without labels."""
    model = make_model()
    assert model(make_batch({})).loss_sums == {}
    found = model(make_batch({"labels": torch.tensor([2, 0])}))
    logits = found.logits["logits"]
    assert logits.shape == (2, 3)
    wanted = -(logits[0].softmax(0)[2].log() + logits[1].softmax(0)[0].log())
    assert set(found.loss_sums) == {"labels"}
    torch.testing.assert_close(found.loss_sums["labels"], wanted)
    ignored = model(make_batch({"labels": torch.tensor([2, -100])})).loss_sums["labels"]
    torch.testing.assert_close(ignored, -logits[0].softmax(0)[2].log())
    assert model(make_batch({"labels": torch.tensor([-100, -100])})).loss_sums["labels"] == 0  # where a mean would be NaN


@pytest.mark.parametrize("problem_type", ["regression", None])
def test_regression_loss_sum(problem_type: str | None) -> None:
    model = make_model(dataclasses.replace(CONFIG, id2label={0: "LABEL_0"}, problem_type=problem_type))
    found = model(make_batch({"labels": torch.tensor([2.5, -1.0])}))
    logits = found.logits["logits"]
    assert logits.shape == (2, 1)
    torch.testing.assert_close(found.loss_sums["labels"], (logits[0, 0] - 2.5) ** 2 + (logits[1, 0] + 1) ** 2)


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
