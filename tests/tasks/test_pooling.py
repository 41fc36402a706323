"""What a sequence's classifier reads: each pooling against transformers' hidden states, and as the task's option."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from parity import NO_DROPOUT, TINY, Rows, assert_close, assert_same_gradients, packed, padded, random_rows
from torch import Tensor, nn

from bertkit.config import filled
from bertkit.errors import ModelError, UsageError
from bertkit.features import Ragged
from bertkit.model.config import POOLINGS, BertConfig
from bertkit.model.directory import read_config, save_model
from bertkit.model.heads import BertForMultipleChoice, BertForSequenceClassification
from bertkit.readers import Examples
from bertkit.tasks import MultipleChoice, TextClassification
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer

LABELS = [2, 0, 1, 2]
LENGTHS = [9, 1, 5, 12]


class Theirs(nn.Module):
    """transformers' encoder and a linear classifier over what torch's own operations pool."""

    def __init__(self, config: transformers.BertConfig, pooling: str, num_classes: int) -> None:
        super().__init__()
        self.pooling, self.is_decoder = pooling, config.is_decoder
        self.bert = transformers.BertModel(config, add_pooling_layer=pooling == "pooled")
        self.head = nn.ModuleDict()
        self.head["classifier"] = nn.Linear(config.hidden_size * (4 if pooling == "cls-last4" else 1), num_classes)
        if pooling == "cls-mix":
            self.head["mix"] = nn.ParameterDict({"weights": torch.randn(config.num_hidden_layers + 1), "scale": torch.ones(1)})

    def forward(self, **inputs: Tensor) -> Tensor:
        states = self.bert(**inputs, output_hidden_states=True).hidden_states
        mask = inputs["attention_mask"]
        at = mask.sum(1) - 1 if self.is_decoder else torch.zeros(len(mask), dtype=torch.long)
        first = [state[torch.arange(len(mask)), at] for state in states]
        attended = mask[..., None].bool()
        pooled = {
            "cls": lambda: first[-1],
            "pooled": lambda: torch.tanh(self.bert.pooler.dense(first[-1])),
            "mean": lambda: torch.where(attended, states[-1], 0).sum(1) / mask.sum(1, keepdim=True),
            "max": lambda: torch.where(attended, states[-1], -torch.inf).amax(1),
            "cls-last4": lambda: torch.cat(first[-4:], dim=1),
            "cls-mix": lambda: self.head["mix"]["scale"] * sum(map(torch.mul, self.head["mix"]["weights"].softmax(0), first)),
        }[self.pooling]()
        return self.head["classifier"](pooled)


def both(pooling: str, is_decoder: bool, ours: type[nn.Module], num_classes: int) -> tuple[nn.Module, nn.Module]:
    sizes = {**TINY, **NO_DROPOUT, "num_hidden_layers": 4, "num_labels": num_classes, "is_decoder": is_decoder}
    config = transformers.BertConfig(**sizes, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(7)
        theirs = Theirs(config, pooling, num_classes)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    state = theirs.state_dict()
    if pooling == "pooled" and not is_decoder:
        state = {name.removeprefix("head."): value for name, value in state.items()}
    model = ours(BertConfig.from_dict(config.to_dict()), pooling=pooling)
    model.load_state_dict(state, strict=True)
    return model.double().train(), theirs.double().train()


def rows_of(lengths: list[int]) -> Rows:
    return random_rows(np.random.default_rng(3), lengths, TINY["vocab_size"], TINY.get("type_vocab_size", 2))


def gradients(module: nn.Module) -> dict[str, Tensor]:
    found = {name.removeprefix("head."): p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert len(found) == len(list(module.parameters()))
    return found


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_class_of_each_sequence(pooling: str, is_decoder: bool) -> None:
    ours, theirs = both(pooling, is_decoder, BertForSequenceClassification, 3)
    rows = rows_of(LENGTHS)
    wanted = theirs(**padded(rows))
    batch = packed(rows, read=Ragged.column(np.zeros(len(rows))), labels={"labels": Ragged.column(LABELS)})
    outputs = ours(batch)
    assert_close(outputs.logits["logits"], wanted, 1e-10, what="packed logits")
    assert_close(ours(**padded(rows)).logits["logits"], wanted, 1e-10, what="padded logits")
    F.cross_entropy(wanted, torch.tensor(LABELS)).backward()
    (outputs.loss_sums["labels"] / batch.weights["labels"]).backward()
    assert_same_gradients(gradients(ours), gradients(theirs), 1e-8)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_score_of_each_choice(pooling: str) -> None:
    ours, theirs = both(pooling, False, BertForMultipleChoice, 1)
    rows, bounds = rows_of([3, 8, 5, 2, 11]), [0, 2, 5]
    wanted = torch.cat([theirs(**padded(rows[first:last])) for first, last in pairwise(bounds)])
    batch = packed(rows, read=Ragged.column(np.zeros(5)), labels={"labels": Ragged.column([1, 2])}, sequences=bounds)
    assert_close(ours(batch).logits["logits"], wanted, 1e-10, what="packed logits")


def test_the_mean_is_taken_in_float32() -> None:
    """In bf16 a sum over so many tokens would stand still: 256 + 1 is 256."""
    ours, _ = both("mean", False, BertForSequenceClassification, 3)
    rows = rows_of([24])
    batch = packed(rows, read=Ragged.column([0]), labels={})
    half = ours.to(torch.bfloat16)
    pooled = half._pool(batch)
    assert pooled.dtype == torch.float32
    assert torch.equal(pooled[0], half.bert.encode(packed(rows, read=None, labels={})).float().mean(0))


# --- the task --------------------------------------------------------------------------------------------------------------

ROWS = Examples({"text": ["a", "b"], "label": ["bad", "good"]}, "f", range(2))
CONFIG = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16)


def fit(pooling: str, config: BertConfig | None = None, **options: Any) -> Task:
    return Task.fit(filled(TextClassification(pooling=pooling, **options)), ROWS, config, fresh_head=None)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_model_knows_its_pooling_and_its_family(pooling: str, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    task = fit(pooling)
    config = task.configure(CONFIG)
    architecture = "BertForSequenceClassification" if pooling == "pooled" else "BertModel"
    assert task.architecture(config) == architecture
    module, tokenizer = task.build(config), Tokenizer.load(tiny_tokenizer_dir)
    save_model(tmp_path, state_dict=module.state_dict(), config=config, tokenizer=tokenizer, architecture=architecture)
    _, info = transformers.AutoModel.from_pretrained(tmp_path, add_pooling_layer=pooling == "pooled", output_loading_info=True)
    assert not info["missing_keys"]
    saved = read_config(tmp_path)
    assert Task.restore(saved).recipe.pooling == pooling
    for asked in (MultipleChoice(), *(TextClassification(pooling=other) for other in POOLINGS if other != pooling)):
        with pytest.raises(ModelError):
            Task.restore(saved, asked)
    spoiled = {"architectures": ["BertModel"], "bertkit": saved.extra["bertkit"] | {"pooling": "avg"}}
    with pytest.raises(ModelError):
        Task.restore(replace(saved, extra=spoiled))


def test_another_pooling_makes_a_fresh_head() -> None:
    mean = fit("mean").configure(replace(CONFIG, extra={"architectures": ["BertModel"]}))
    assert not fit("mean", mean).fresh_head
    task = fit("pooled", mean)
    assert task.fresh_head
    assert task.configure(mean).extra["bertkit"]["pooling"] == "pooled"


@pytest.mark.parametrize(
    "options",
    [{"pooling": "avg"}, {"label_smoothing": 2}, {"class_weights": (1.0, 2.0, 3.0)}, {"class_weights": "balanced,x"}],
)
def test_values_of_a_recipes_file_are_checked_as_if_typed(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        fit(**{"pooling": "mean", **options})
    assert fit("mean", class_weights="balanced").weights == {"bad": 1.0, "good": 1.0}


def test_more_layers_than_there_are() -> None:
    with pytest.raises(UsageError, match="last4 reads 4 layers; the model has 2"):
        fit("cls-last4").configure(replace(CONFIG, num_hidden_layers=2))
