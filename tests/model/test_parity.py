"""The model against transformers' own BERT as the oracle: logits, losses, every gradient, and training on real data."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from parity import (
    NO_DROPOUT,
    TINY,
    assert_close,
    assert_parity,
    assert_same_gradients,
    cases,
    copied,
    gradients,
    in_both_precisions,
    packed,
    packed_at_first,
    padded,
    pair,
    random_labels,
    random_rows,
)
from torch import Tensor, nn

from bertkit.config import TrainConfig, filled
from bertkit.features import Ragged
from bertkit.model.config import BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.model.directory import load_weights, read_config
from bertkit.model.dropout import DropoutStream
from bertkit.model.grouping import Rounding
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import Sampler, training_batches
from bertkit.training.loop import train
from bertkit.training.vocabulary import UsedVocabulary

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative, per tensor
# --- random configs ----------------------------------------------------------------------------------------------------


@in_both_precisions(cases())
def test_random_configs(case: dict[str, Any], dtype: torch.dtype) -> None:
    sizes = case["sizes"]
    rng = np.random.default_rng(case["seed"])
    rows = random_rows(rng, case["lengths"], sizes["vocab_size"], sizes["type_vocab_size"])
    rows[0][0][-1] = sizes["pad_token_id"]  # attended, and yet without a gradient
    labels = random_labels(rng, len(rows), sizes["num_labels"], regression=sizes["problem_type"] == "regression")
    ours, theirs = pair(seed=case["seed"], dtype=dtype, **NO_DROPOUT, **sizes)
    assert_parity(ours, theirs, rows, labels, TOLERANCES[dtype])
    assert not ours.bert.embeddings.word_embeddings.weight.grad[sizes["pad_token_id"]].any()


def test_an_ignored_label_counts_nothing() -> None:
    rng = np.random.default_rng(1)
    rows, labels = random_rows(rng, [8, 4, 7, 3], 50, 2), torch.tensor([0, -100, 2, 1])
    ours, theirs = pair(seed=1, dtype=torch.float64, num_labels=3, **NO_DROPOUT, **TINY)
    assert packed_at_first(rows, labels).weights == {"labels": 3.0}
    assert_parity(ours, theirs, rows, labels, 1e-10)


# --- the rows that a head reads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [[[0], [0], [0], [0]], [[0, 3, 8], [], [6], [0, 2]], [[8], [1, 2], [], []]])
def test_rows_alone_equal_the_same_rows_of_all(chosen: list[list[int]]) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, [9, 4, 7, 3], 50, 2)
    model, _ = pair("BertModel", seed=2, dtype=torch.float64, **NO_DROPOUT, **TINY)
    model.pooler = None
    every, some = (packed(rows, {}, read=read) for read in (None, Ragged.of(chosen, np.int64)))
    hidden = model.encode(every)
    assert hidden.shape == (9 + 4 + 7 + 3, 32)
    count = len(some.rows)
    weights = torch.from_numpy(rng.normal(size=(count, 32)))
    wanted = hidden[some.rows]
    wanted_gradients = copied(gradients(model, (wanted * weights).sum()))

    computed: list[torch.Size] = []
    model.encoder.layer[-1].intermediate.register_forward_hook(lambda module, inputs, output: computed.append(inputs[0].shape))
    found = model.encode(some)
    assert computed == [(count, 32)]  # and no others
    assert_close(found, wanted, 1e-10)
    assert_same_gradients(gradients(model, (found * weights).sum()), wanted_gradients, 1e-10)


# --- padded input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("holes", [False, True])
def test_padded_forward(holes: bool, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    inputs = padded(random_rows(rng, rng.integers(2, 24, size=5).tolist(), 50, 2))
    attended = inputs["attention_mask"].bool()
    if holes:
        attended[:, 1:] &= torch.from_numpy(rng.random((5, attended.shape[1] - 1)) > 0.3)
        inputs["attention_mask"] = attended.long()
    ours, theirs = pair("BertModel", seed=0, dtype=dtype, **NO_DROPOUT, **TINY)
    assert not attended.all()
    found, wanted = ours(**inputs), theirs(**inputs)
    assert found.last_hidden_state.shape == wanted.last_hidden_state.shape
    assert not found.last_hidden_state[~attended].any()
    assert_close(found.last_hidden_state[attended], wanted.last_hidden_state[attended], TOLERANCES[dtype])
    assert_close(found.pooler_output, wanted.pooler_output, TOLERANCES[dtype])

    weights = torch.from_numpy(rng.normal(size=(int(attended.sum()), 32))).to(dtype)
    losses = [(out.last_hidden_state[attended] * weights).sum() + out.pooler_output.sum() for out in (found, wanted)]
    assert_same_gradients(gradients(ours, losses[0]), gradients(theirs, losses[1]), TOLERANCES[dtype])


def test_defaults_of_padded_input() -> None:
    """Without a mask everything is attended; without segments all are the first."""
    ids = torch.randint(50, (3, 11), generator=torch.Generator().manual_seed(0))
    everything = torch.ones_like(ids)
    ours, theirs = pair("BertModel", seed=4, dtype=torch.float64, **NO_DROPOUT, **TINY)
    assert_close(ours(ids).last_hidden_state, theirs(ids).last_hidden_state, 1e-10)
    assert_close(ours(ids, everything.bool()).last_hidden_state, theirs(ids).last_hidden_state, 1e-10)
    second = ours(ids, token_type_ids=everything).last_hidden_state
    assert_close(second, theirs(ids, token_type_ids=everything).last_hidden_state, 1e-10)
    ours, theirs = pair(seed=4, dtype=torch.float64, **NO_DROPOUT, **TINY)
    assert_close(ours(ids).logits["logits"], theirs(ids).logits, 1e-10)


# --- where dropout stands ----------------------------------------------------------------------------------------------


def column_mask(size: int, p: float) -> Tensor:
    """A mask that depends on the last dimension and on p alone, so that padded and packed tensors get the same one."""
    kept = torch.from_numpy(np.random.default_rng((size, round(p * 1000))).random(size) >= p)
    kept[0] = True
    return kept.to(torch.float64) / (1 - p)


def test_padding_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    rows, labels = random_rows(rng, [9, 4, 7, 3], 50, 2), random_labels(rng, 4, 3, regression=False)
    ours, theirs = pair(seed=4, dtype=torch.float64, num_labels=3, **NO_DROPOUT, **TINY)
    monkeypatch.setattr(Rounding, "padding", lambda rounding, count: 5)  # of so few rows it would be none
    assert_parity(ours, theirs, rows, labels, 1e-10)


def test_dropout_stands_where_transformers_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides drop by one fixed rule in place of chance: then every output and gradient is the same.

    The rule knows the width, which is padded here to a multiple of 8, and the place in it: no two sequences share a line.
    """
    used: list[float] = []

    def drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * column_mask(x.shape[-1], p).to(x.dtype) if training and p else x

    def keep_mask(stream: DropoutStream, shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
        used.append(p)
        return column_mask(shape[-1], p).to(like.dtype).expand(shape)

    rng = np.random.default_rng(5)
    rows, labels = random_rows(rng, [8, 5, 7, 6], 50, 2), random_labels(rng, 4, 3, regression=False)
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.25, "classifier_dropout": 0.5}
    ours, theirs = pair(seed=5, dtype=torch.float64, num_labels=3, **rates, **TINY)
    monkeypatch.setattr(F, "dropout", drop)
    monkeypatch.setattr(DropoutStream, "keep_mask", keep_mask)
    assert_parity(ours, theirs, rows, labels, 1e-10)
    once = [0.1, *[0.25, 0.1, 0.1] * 3, 0.5]
    assert used == once * 2  # packed and padded

    dropped = ours(packed_at_first(rows, labels)).logits["logits"]
    assert not torch.allclose(dropped, ours.eval()(packed_at_first(rows, labels)).logits["logits"], rtol=1e-3)
    assert_parity(ours.eval(), theirs.eval(), rows, labels, 1e-10)


# --- training on real data ---------------------------------------------------------------------------------------------

STEPS, STEPS_PER_EPOCH = 8, 5  # the curves cross into the second epoch
Inputs = dict[str, Tensor]


def glue(place: Path, tokenizer: Any, config: BertConfig, columns: tuple[int, ...], label: int) -> Callable[..., Inputs]:
    """A function from row numbers to what transformers sees of an official train.tsv, with nothing of ours."""
    with gzip.open(place / "train.tsv.gz", "rt", encoding="utf-8-sig", newline="\n") as file:
        lines = [line.rstrip("\r\n").split("\t") for line in islice(file, 1, 100)]

    def encode(rows: Sequence[int]) -> Inputs:
        parts = [[lines[row][column] for row in rows] for column in columns]
        encoded = tokenizer(*parts, padding="longest", truncation=True, max_length=64, return_tensors="pt")
        return {**encoded, "labels": torch.tensor([int(lines[row][label]) for row in rows])}

    return encode


def conll(place: Path, tokenizer: Any, config: BertConfig) -> Callable[..., Inputs]:
    """The same of an official file of entities, each tag at the first piece of its word."""
    blocks = gzip.decompress((place / "train.txt.gz").read_bytes()).decode("utf-8").split("\n\n")[:100]
    sentences = [[line.split(" ") for line in block.split("\n") if line.strip()] for block in blocks]
    sentences = [sentence for sentence in sentences if sentence and sentence[0][0] != "-DOCSTART-"]
    numbers = {label: number for number, label in config.id2label.items()}

    def encode(rows: Sequence[int]) -> Inputs:
        words = [[line[0] for line in sentences[row]] for row in rows]
        encoded = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
        labels = torch.full(encoded["input_ids"].shape, -100)
        for at, row in enumerate(rows):
            places = encoded.word_ids(at)
            for word, line in enumerate(sentences[row]):
                labels[at, places.index(word)] = numbers[line[3]]
        return {**encoded, "labels": labels}

    return encode


def norm(tensors: Iterable[Tensor]) -> float:
    return torch.stack([tensor.norm() for tensor in tensors]).norm().item()


def reference_curve(model: nn.Module, batches: Iterable[Inputs], config: TrainConfig) -> list[dict[str, float]]:
    """A plain loop of torch: nothing of ours but the values of the settings."""
    decayed, plain = [], []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            (plain if isinstance(module, nn.LayerNorm) or name == "bias" else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    betas = (config.adam_beta1, config.adam_beta2)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon, fused=True)
    warmup_steps = math.ceil(config.warmup_ratio * STEPS)
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, warmup_steps, STEPS)
    events = []
    for inputs in batches:
        loss = model(**inputs).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        events.append({"loss": loss.item(), "grad_norm": norm.item(), "learning_rate": scheduler.get_last_lr()[0]})
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return events


@pytest.mark.parametrize(
    ("task", "folder", "reference", "batch_size", "micro_batch_tokens"),
    [
        ("sst2", "GLUE/SST-2", partial(glue, columns=(0,), label=1), 8, 8192),
        ("mrpc", "GLUE/MRPC", partial(glue, columns=(3, 4), label=0), 4, 128),
        ("conll2003", "CoNLL2003", conll, 4, 64),
    ],
    ids=["sst2", "mrpc", "conll2003"],
)
def test_training_equals_a_plain_loop(
    task: str,
    folder: str,
    reference: Callable[..., Callable[..., Inputs]],
    batch_size: int,
    micro_batch_tokens: int,
    data_dir: Path,
    minilm: Path,
    tmp_path: Path,
) -> None:
    """Real data and weights, float32, no dropout, in micro-batches but for SST-2: the same losses and the same weights."""
    place = data_dir / folder
    typed = {"data": str(place), "device": "cpu", "precision": "fp32", "dropout": 0.0, "learning_rate": 1e-4, "max_length": 64}
    typed |= {"batch_size": batch_size, "micro_batch_tokens": micro_batch_tokens, "max_steps": STEPS, "logging_steps": 1}
    recipe = load_recipe(task).overridden(typed).resolved()
    config = filled(recipe.training)
    num_rows = STEPS_PER_EPOCH * batch_size - 2  # the last step of an epoch has fewer
    rows = read_splits(recipe, ["train"]).rows["train"].select(range(num_rows))
    fitted = Task.fit(recipe, rows)
    features, _ = fitted.encode(fitted.examples(rows, labelled=True), Tokenizer.load(minilm))
    sampler = Sampler(len(features), config.batch_size, config.seed)
    assert (len(features), sampler.steps_per_epoch) == (num_rows, STEPS_PER_EPOCH)
    ours = fitted.build(dataclasses.replace(fitted.configure(read_config(minilm)), **NO_DROPOUT)).train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        more = {"num_labels": ours.config.num_labels, "problem_type": ours.config.problem_type, **NO_DROPOUT}
        theirs = getattr(transformers, type(ours).__name__).from_pretrained(minilm, **more).train()
    assert sorted(load_weights(ours, minilm, fresh_head=True)) == ["classifier.bias", "classifier.weight"]
    ours.classifier.load_state_dict(theirs.classifier.state_dict())
    initial = copied(dict(theirs.named_parameters()))
    vocabulary = UsedVocabulary([features], ours, config)  # as finetune does
    batches = training_batches(vocabulary.narrow(features), sampler, config.micro_batch_tokens)
    assert (max(len(batches(step)) for step in range(STEPS)) > 1) == (task != "sst2")

    encode = reference(place, transformers.AutoTokenizer.from_pretrained(minilm), ours.config)
    wanted = reference_curve(theirs, (encode(sampler.features_at(step)) for step in range(STEPS)), config)
    train(ours, batches, config, start_accelerator("cpu"), total_steps=STEPS, run_dir=tmp_path)
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["step"] for event in found] == list(range(1, STEPS + 1))
    for ours_event, theirs_event in zip(found, wanted, strict=True):
        step = ours_event["step"]
        assert abs(ours_event["loss"] - theirs_event["loss"]) <= 1e-5, (step, ours_event, theirs_event)
        assert ours_event["learning_rate"] == pytest.approx(theirs_event["learning_rate"], rel=1e-12), step
        assert ours_event["grad_norm"] == pytest.approx(theirs_event["grad_norm"], rel=1e-4), step
    # The curves are of training, as the large learning rate sees to, and what came of it is the same too.
    assert max(event["loss"] for event in wanted) - min(event["loss"] for event in wanted) > 0.05
    trained = vocabulary.widen(ours.state_dict(), step=STEPS, total_steps=STEPS)
    found_moves = {name: trained[name] - weight for name, weight in initial.items()}
    moves = {name: parameter.detach() - initial[name] for name, parameter in theirs.named_parameters()}
    assert norm(found_moves[name] - moves[name] for name in initial) < 1e-3 * norm(moves.values())
    # Rows of tokens that the data lacks only decay, by factors so near to 1 that float32 rounds them by some percent.
    words = "bert.embeddings.word_embeddings.weight"
    unused = torch.ones(len(initial[words]), dtype=torch.bool)
    unused[torch.from_numpy(np.unique(features.input_ids.values))] = False
    assert unused.sum() > 20_000
    assert norm([found_moves[words][unused] - moves[words][unused]]) < 0.1 * norm([moves[words][unused]])
