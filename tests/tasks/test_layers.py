"""Heads that read more than the last layer: each mix against transformers' hidden states, and as the option of all families."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from parity import NO_DROPOUT, TINY, assert_close, assert_same_gradients, packed, random_rows
from safetensors.numpy import load_file
from torch import Tensor, nn

import bertkit
from bertkit.config import filled
from bertkit.errors import ModelError, UsageError
from bertkit.features import Ragged
from bertkit.model.config import LAYERS, BertConfig
from bertkit.model.heads import BertForSequenceClassification, BertForTokenClassification
from bertkit.readers import Examples
from bertkit.tasks import TextClassification, TokenClassification
from bertkit.tasks.task import Task

MIXES = [layers for layers in LAYERS if layers != "last"]
SIZES = {**TINY, **NO_DROPOUT, "num_hidden_layers": 5, "num_labels": 3}
HIDDEN = TINY["hidden_size"]
ROWS = random_rows(np.random.default_rng(5), [9, 3, 5, 12], TINY["vocab_size"], 2)
READ = [[1, 3, 4, 7], [1], [2, 3], [1, 2, 5, 6, 10]]
TAGS = [[0, 1, 2, 1], [2], [0, 0], [1, 2, 0, 1, 1]]


class Theirs(nn.Module):
    """transformers' encoder row by row, the layers mixed as the paper says it, and torch's LSTM and linear classifier."""

    def __init__(self, layers: str, lstm_layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.bert = transformers.BertModel(
            transformers.BertConfig(**SIZES, attn_implementation="eager"), add_pooling_layer=False
        )
        width = 4 * HIDDEN if layers == "last4" else HIDDEN
        parts: dict[str, nn.Module] = {"classifier": nn.Linear(HIDDEN if lstm_layers else width, 3)}
        if mixed := {"mix": 6, "last4-mix": 4}.get(layers):
            parts["mix"] = nn.ParameterDict({"weights": torch.randn(mixed), "scale": torch.ones(1)})
        if lstm_layers:
            parts["lstm"] = nn.LSTM(width, HIDDEN // 2, lstm_layers, bidirectional=True, batch_first=True)
        self.head = nn.ModuleDict(parts)

    def vectors(self, ids: list[int], types: list[int]) -> Tensor:
        states = self.bert(torch.tensor([ids]), token_type_ids=torch.tensor([types]), output_hidden_states=True).hidden_states
        embeddings, *layers = [state[0] for state in states]
        match self.layers:
            case "last4":
                return torch.cat(layers[1:], dim=-1)
            case "sum":
                return layers[0] + layers[1] + layers[2] + layers[3] + layers[4]
            case "last4-sum":
                return layers[1] + layers[2] + layers[3] + layers[4]
        weights = self.head["mix"]["weights"].exp() / self.head["mix"]["weights"].exp().sum()
        read = [embeddings, *layers] if self.layers == "mix" else layers[1:]
        return self.head["mix"]["scale"] * sum(weight * state for weight, state in zip(weights, read, strict=True))

    def forward(self, read: list[list[int]]) -> Tensor:
        vectors = [self.vectors(*row)[rows] for row, rows in zip(ROWS, read, strict=True)]
        if "lstm" in self.head:
            vectors = [self.head["lstm"](each[None])[0][0] for each in vectors]
        return self.head["classifier"](torch.cat(vectors))


def both(ours: nn.Module, layers: str, lstm_layers: int = 0) -> tuple[nn.Module, nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        theirs = Theirs(layers, lstm_layers)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours.double().train(), theirs.double().train()


def gradients(module: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert len(found) == len(list(module.parameters()))
    return found


@pytest.mark.parametrize("lstm_layers", [0, 1, 2])
@pytest.mark.parametrize("layers", MIXES)
def test_a_class_of_each_word(layers: str, lstm_layers: int) -> None:
    config = BertConfig.from_dict(transformers.BertConfig(**SIZES).to_dict())
    kind = {"head": "bilstm", "lstm_layers": lstm_layers} if lstm_layers else {}
    ours, theirs = both(BertForTokenClassification(config, layers=layers, **kind), layers, lstm_layers)
    wanted = theirs(READ)
    batch = packed(ROWS, read=Ragged.of(READ, np.int64), labels={"labels": Ragged.of(TAGS, dtype=np.int64)})
    outputs = ours(batch)
    assert_close(outputs.logits["logits"], wanted, 1e-10, what="logits")
    F.cross_entropy(wanted, torch.tensor([tag for tags in TAGS for tag in tags])).backward()
    (outputs.loss_sums["labels"] / batch.weights["labels"]).backward()
    assert_same_gradients(gradients(ours), gradients(theirs), 1e-8)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("layers", MIXES)
def test_a_class_of_each_sequence(layers: str, pooling: str) -> None:
    config = BertConfig.from_dict(transformers.BertConfig(**SIZES).to_dict())
    ours, theirs = both(BertForSequenceClassification(config, pooling=pooling, layers=layers), layers)
    vectors = [theirs.vectors(*row) for row in ROWS]
    pooled = {"cls": lambda x: x[0], "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}[pooling]
    wanted = theirs.head["classifier"](torch.stack([*map(pooled, vectors)]))
    batch = packed(ROWS, read=Ragged.column(np.zeros(len(ROWS))), labels={})
    assert_close(ours(batch).logits["logits"], wanted, 1e-10, what="logits")


# --- the option ------------------------------------------------------------------------------------------------------------

EXAMPLES = {
    TextClassification: Examples({"text": ["a", "b"], "label": ["bad", "good"]}, "f", range(2)),
    TokenClassification: Examples({"tokens": [["a", "b"]], "tags": [["B-X", "O"]]}, "f", [1]),
}
CONFIG = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16)


def fit(recipe: Any, config: BertConfig | None = None) -> Task:
    return Task.fit(filled(recipe), EXAMPLES[type(recipe)], config, fresh_head=None)


@pytest.mark.parametrize("layers", MIXES)
@pytest.mark.parametrize("recipe", [TextClassification(pooling="mean"), TokenClassification()])
def test_a_model_knows_its_layers(recipe: Any, layers: str) -> None:
    task = fit(replace(recipe, layers=layers))
    assert task.architecture(CONFIG) == "BertModel"
    saved = replace(task.configure(CONFIG), extra={**task.configure(CONFIG).extra, "architectures": ["BertModel"]})
    assert Task.restore(saved).recipe.layers == layers
    for other in (other for other in LAYERS if other != layers):
        with pytest.raises(ModelError):
            Task.restore(saved, replace(recipe, layers=other))
        assert fit(replace(recipe, layers=other), saved).fresh_head
    assert not fit(replace(recipe, layers=layers), saved).fresh_head


def test_another_depth_of_the_lstm_makes_a_fresh_head() -> None:
    config = fit(TokenClassification(head="bilstm", lstm_layers=2)).configure(CONFIG)
    saved = replace(config, extra={**config.extra, "architectures": ["BertModel"]})
    assert Task.restore(saved).recipe.lstm_layers == 2
    assert fit(TokenClassification(head="bilstm"), saved).fresh_head


@pytest.mark.parametrize("layers", ["last4", "last4-sum", "last4-mix"])
def test_more_layers_than_there_are(layers: str) -> None:
    with pytest.raises(UsageError, match="reads 4 layers; the model has 2"):
        fit(TokenClassification(layers=layers)).configure(replace(CONFIG, num_hidden_layers=2))


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        (TextClassification(layers="sum"), "--pooling pooled and --layers sum cannot be combined"),
        (TextClassification(pooling="cls-mix", layers="sum"), "--pooling cls-mix and --layers sum cannot be combined"),
        (TokenClassification(head="crf", lstm_layers=2), "--lstm-layers is for --head bilstm; the head is crf"),
    ],
)
def test_what_goes_together(recipe: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        replace(recipe, train="rows.csv").resolved()


def test_a_frozen_encoder_under_a_bilstm_from_the_command_line(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    """Devlin et al. (2019), section 5.3; what was trained is what eval, predict and bertkit.load restore."""
    model = make_model_dir("BertModel", num_hidden_layers=4)
    rows = [{"tokens": ["the", noun, "is", "broken"], "tags": ["O", f"B-{kind}", "O", "O"]} for noun, kind in NOUNS]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    data = ("--train", "rows.jsonl", "--validation", "rows.jsonl", "--model", model, "--output-dir", "run")
    head = ("--layers", "last4-mix", "--head", "bilstm", "--lstm-layers", 2, "--freeze", "encoder")
    how = (
        "--num-epochs",
        80,
        "--batch-size",
        8,
        "--learning-rate",
        2e-2,
        "--eval-steps",
        40,
        "--precision",
        "fp32",
        "--device",
        "cpu",
        "--max-length",
        16,
    )
    ran = run_bertkit("finetune", "token-classification", *data, *head, *how)
    assert ran.code == 0, ran.err
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run"))
    before = {f"bert.{name.removeprefix('bert.')}": tensor for name, tensor in before.items()}
    encoder = [name for name in after if name.startswith("bert.")]
    assert encoder
    assert all(np.array_equal(before[name], after[name]) for name in encoder)
    assert np.ptp(after["head.mix.weights"]) > 0  # learned
    assert "head.lstm.weight_ih_l1_reverse" in after
    scores = json.loads(run_bertkit("eval", "run", "--json").out)
    assert scores["validation/f1"] > 0.9
    predicted = [prediction.value for prediction in bertkit.load(tmp_path / "run").predict(rows)]
    ran = run_bertkit("predict", "run", "rows.jsonl")
    assert predicted == [json.loads(line)["tags"] for line in ran.out.splitlines()]
    assert sum(tags == row["tags"] for tags, row in zip(predicted, rows, strict=True)) / len(rows) > 0.9


NOUNS = [(noun, kind) for kind, nouns in (("THING", "phone screen"), ("WORK", "film story")) for noun in nouns.split()] * 4
