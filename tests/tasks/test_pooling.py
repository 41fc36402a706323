"""What a sequence's classifier reads: each pooling against transformers' hidden states, and from the command line."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from test_head_parity import assert_same_gradients, packed, random_rows
from test_parity import NO_DROPOUT, TINY, Rows, assert_close, padded
from torch import Tensor, nn

from bertkit.features import Ragged
from bertkit.model.config import POOLINGS, BertConfig
from bertkit.model.heads import BertForMultipleChoice, BertForSequenceClassification

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


# --- from the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def finetune(run_bertkit, make_model_dir, tmp_path: Path):
    lines = "".join(f"{'good bad'.split()[at % 2]},the movie {'was fine' if at % 2 else 'was not'} {at}\n" for at in range(24))
    (tmp_path / "rows.csv").write_text("label,text\n" + lines, encoding="utf-8")
    model = make_model_dir("BertModel", seed=21, num_hidden_layers=4)

    def finetune(*options: Any, output: str = "run") -> Any:
        data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--device", "cpu", "--max-steps", 3)
        return run_bertkit("finetune", "text-classification", *data, "--precision", "fp32", "-m", model, "-o", output, *options)

    return finetune


@pytest.mark.parametrize("pooling", [pooling for pooling in POOLINGS if pooling != "pooled"])
def test_a_run_knows_its_pooling(finetune, run_bertkit, tmp_path: Path, pooling: str) -> None:
    ran = finetune("--pooling", pooling)
    assert ran.code == 0, ran.err
    assert "the head is bertkit's own: transformers opens the folder as an encoder only" in ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert (config["architectures"], config["bertkit"]["pooling"]) == (["BertModel"], pooling)
    scores = json.loads(run_bertkit("eval", "run", "--json", "--precision", "fp32").out)
    assert scores["validation/loss"] == pytest.approx(run["best"]["scores"]["validation/loss"], rel=1e-5)
    assert json.loads(run_bertkit("predict", "run", "rows.csv").out.splitlines()[0])["label"] in ("good", "bad")
    ran = run_bertkit("eval", "run", "--pooling", "pooled")
    assert (ran.code, f"with --pooling {pooling}" in ran.err) == (4, True), ran.err
    _, info = transformers.AutoModel.from_pretrained("run", add_pooling_layer=False, output_loading_info=True)
    assert not info["missing_keys"]


def test_another_pooling_makes_a_fresh_head(finetune, tmp_path: Path) -> None:
    assert finetune("--pooling", "mean").code == 0
    ran = finetune("-m", "run", output="again")
    assert ran.code == 0, ran.err
    assert "fresh weights" in ran.err
    config = json.loads((tmp_path / "again" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["bertkit"]["pooling"] == "pooled"
    ran = finetune("-m", "run", "--pooling", "mean", output="on")
    assert ran.code == 0, ran.err
    assert "fresh weights" not in ran.err


def test_the_model_alone_knows_its_pooling_and_its_family(finetune, run_bertkit, tmp_path: Path) -> None:
    assert finetune("--pooling", "max", "--class-weights", "balanced").code == 0
    whole = run_bertkit("predict", "run", "rows.csv").out
    shutil.copytree(tmp_path / "run", tmp_path / "model", ignore=shutil.ignore_patterns("run.json", "checkpoint-*"))
    ran = run_bertkit("predict", "model", "rows.csv", "--text", "text", "--max-length", 16, "--precision", "fp32")
    assert ran.code == 0, ran.err
    assert [json.loads(line)["label"] for line in ran.out.splitlines()] == [
        json.loads(line)["label"] for line in whole.splitlines()
    ]
    other = ("--recipe", "multiple-choice", "--validation", "rows.csv", "--choices", "label,text", "--max-length", 16)
    ran = run_bertkit("eval", "model", *other)
    assert (ran.code, "text-classification with --pooling max; multiple-choice needs" in ran.err) == (4, True)
    config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    config["bertkit"]["pooling"] = "avg"
    (tmp_path / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ran = run_bertkit("predict", "model", "rows.csv", "--text", "text", "--max-length", 16)
    assert (ran.code, "Traceback" in ran.err) == (4, False)


def test_a_recipe_with_values_that_are_none(run_bertkit, finetune, tmp_path: Path) -> None:
    """Written in a recipe's file they are refused as if they were typed; numbers do as well as text."""
    recipe = "from bertkit.tasks import TextClassification\nrecipe = TextClassification({})\n"
    for written, what in (
        ('pooling="avg"', "--pooling is 'avg'; expected pooled or cls or mean or max or cls-last4"),
        ("label_smoothing=2", "--label-smoothing is 2; expected at most 1"),
        ("class_weights=(1.0, 2.0, 3.0)", "--class-weights is 1.0,2.0,3.0; expected balanced, or 2 numbers for bad, good"),
        ('class_weights="balanced,x"', "--class-weights is balanced,x; expected balanced, or 2 numbers for bad, good"),
    ):
        (tmp_path / "my.py").write_text(recipe.format(written), encoding="utf-8")
        data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "-m", tmp_path / "run", "-o", "out")
        if not (tmp_path / "run").exists():
            assert finetune().code == 0
        ran = run_bertkit("finetune", "./my.py", *data)
        assert (ran.code, f"error: {what}" in ran.err) == (2, True), ran.err
    (tmp_path / "my.py").write_text(recipe.format('class_weights="balanced"'), encoding="utf-8")
    data = ("--validation", "rows.csv", "--max-length", 16, "--json")
    assert run_bertkit("eval", "run", "--recipe", "./my.py", *data).code == 0


def test_more_layers_than_there_are(finetune, tiny_model_dir: Path, tmp_path: Path) -> None:
    ran = finetune("-m", tiny_model_dir, "--pooling", "cls-last4")
    assert (ran.code, "--pooling cls-last4 reads 4 layers; the model has 2" in ran.err) == (2, True)
    assert not (tmp_path / "run").exists()
