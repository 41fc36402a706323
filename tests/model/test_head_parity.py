"""The heads of tagging, question answering and multiple choice against transformers' own; and twenty steps of tagging."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_parity
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from test_parity import (
    NO_DROPOUT,
    TINY,
    Rows,
    assert_close,
    gradients,
    padded,
    random_rows,
    reference_curve,
)
from torch import Tensor, nn

from bertkit.config import filled
from bertkit.features import Features, Ragged
from bertkit.model import heads
from bertkit.model.batch import Batch
from bertkit.model.config import BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.model.directory import load_weights, read_config
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import Sampler, collate, training_batches
from bertkit.training.loop import train
from bertkit.training.vocabulary import UsedVocabulary

# Relative, per tensor. A logit that is a sum of 64 products is itself exact to no more in float32.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}

# --- random configs --------------------------------------------------------------------------------------------------------


def pair(architecture: str, case: dict[str, Any], dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """Our head and transformers' of that name, with one set of random weights."""
    config = transformers.BertConfig(**case["sizes"], **NO_DROPOUT, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(case["seed"])
        theirs = getattr(transformers, architecture)(config)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    ours = getattr(heads, architecture)(BertConfig.from_dict(config.to_dict()))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours.to(dtype).train(), theirs.to(dtype).train()


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    case = draw(test_parity.cases())
    sizes = {name: value for name, value in case["sizes"].items() if name != "problem_type"}
    return case | {"sizes": sizes | {"num_labels": max(2, sizes["num_labels"])}}


def rows_of(case: dict[str, Any], lengths: list[int] | None = None) -> tuple[np.random.Generator, Rows]:
    rng, sizes = np.random.default_rng(case["seed"]), case["sizes"]
    return rng, random_rows(rng, lengths or case["lengths"], sizes["vocab_size"], sizes["type_vocab_size"])


def packed(rows: Rows, *, read: Ragged | None, labels: dict[str, Ragged], sequences: list[int] | None = None) -> Batch:
    count = len(rows) if sequences is None else len(sequences) - 1
    features = Features(
        input_ids=Ragged.of([ids for ids, _ in rows]),
        token_type_ids=Ragged.of([types for _, types in rows], dtype=np.uint8),
        examples=np.arange(count),
        sequences=None if sequences is None else np.array(sequences),
        rows=read,
        labels=labels,
    )
    return collate(features, np.arange(count))


def assert_same_gradients(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float, *, zero: tuple[str, ...] = ()
) -> None:
    """Each tensor relative to itself, at least a hundredth of all (sums may cancel); key.bias and those that end in `zero`,
    whose gradients vanish in theory, to all.
    """
    assert set(ours) == set(theirs)
    total = torch.stack([gradient.norm() for gradient in theirs.values()]).norm()
    assert total > 0
    for name, gradient in theirs.items():
        scale = total if name.endswith(("key.bias", *zero)) else torch.maximum(gradient.norm(), total / 100)
        assert_close(ours[name], gradient, tolerance, scale=scale, what=name)


def last_bias(case: dict[str, Any]) -> str:
    """What is added to every token's hidden state alike: a softmax over tokens does not see it."""
    layers = case["sizes"]["num_hidden_layers"]
    return f"layer.{layers - 1}.output.LayerNorm.bias" if layers else "embeddings.LayerNorm.bias"


def in_both_precisions(check: Any) -> Any:
    """A test of random configs in float64; in float32 the same cases each time (see test_parity)."""

    @pytest.mark.parametrize("dtype", TOLERANCES)
    def test(dtype: torch.dtype) -> None:
        run = settings(max_examples=15, derandomize=dtype == torch.float32)(given(cases())(lambda case: check(case, dtype)))
        run()

    test.__doc__ = check.__doc__
    return test


@in_both_precisions
def test_token_classification(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Any rows of each sequence are read, some without a label."""
    rng, rows = rows_of(case)
    classes, tolerance = case["sizes"]["num_labels"], TOLERANCES[dtype]
    lengths = [len(ids) for ids, _ in rows]
    read = [np.sort(rng.choice(n, rng.integers(1, n + 1), replace=False)).tolist() for n in lengths]
    labels = [[int(rng.integers(classes)) if rng.random() < 0.8 else -100 for _ in chosen] for chosen in read]
    labels[0][0] = 1
    targets = torch.full((len(rows), max(lengths)), -100)
    for at, (chosen, its) in enumerate(zip(read, labels, strict=True)):
        targets[at, chosen] = torch.tensor(its)
    ours, theirs = pair("BertForTokenClassification", case, dtype)
    reference = theirs(**padded(rows), labels=targets)
    wanted = {name: g.clone() for name, g in gradients(theirs, reference.loss).items()}

    batch = packed(rows, read=Ragged.of(read, np.int64), labels={"labels": Ragged.of(labels, np.int64)})
    outputs = ours(batch)
    loss = outputs.loss_sums["labels"] / batch.weights["labels"]
    expected = torch.cat([reference.logits[at, chosen] for at, chosen in enumerate(read)])
    assert_close(outputs.logits["logits"], expected, tolerance, what="packed logits")
    assert_close(loss, reference.loss, tolerance, what="packed loss")
    assert_same_gradients(gradients(ours, loss), wanted, tolerance)

    inputs = padded(rows)
    logits = ours(**inputs).logits["logits"]
    attended = inputs["attention_mask"].bool()
    assert_close(logits[attended], reference.logits[attended], tolerance, what="padded logits")
    assert not logits[~attended].any()
    assert_same_gradients(gradients(ours, F.cross_entropy(logits.flatten(0, 1), targets.flatten())), wanted, tolerance)


@in_both_precisions
def test_question_answering(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Their padding may be an answer and ours may not, so theirs see one sequence at a time; some have no end to learn."""
    case = case | {"sizes": case["sizes"] | {"num_labels": 2}}
    rng, rows = rows_of(case)
    tolerance, unseen = TOLERANCES[dtype], ("qa_outputs.bias", last_bias(case))
    start, end = (np.array([rng.integers(len(ids)) for ids, _ in rows]) for _ in range(2))
    ours, theirs = pair("BertForQuestionAnswering", case, dtype)
    alone = [
        theirs(**padded([row]), start_positions=torch.tensor([s]), end_positions=torch.tensor([e]))
        for row, s, e in zip(rows, start, end, strict=True)
    ]
    total = torch.stack([one.loss for one in alone]).mean()
    wanted = {name: g.clone() for name, g in gradients(theirs, total).items()}

    labels = {"start": Ragged.column(start), "end": Ragged.column(end)}
    batch = packed(rows, read=None, labels=labels)
    outputs = ours(batch)
    for name in ("start", "end"):
        expected = torch.cat([one[f"{name}_logits"][0] for one in alone])
        assert_close(outputs.logits[name], expected, tolerance, what=name)
    loss = sum(outputs.loss_sums[name] / batch.weights[name] for name in ("start", "end"))
    assert_close(loss, total, tolerance, what="packed loss")
    assert_same_gradients(gradients(ours, loss), wanted, tolerance, zero=unseen)

    inputs = padded(rows)
    logits = ours(**inputs).logits
    empty = ~inputs["attention_mask"].bool()
    losses = []
    for name, target in (("start", start), ("end", end)):
        for at, one in enumerate(alone):
            assert_close(logits[name][at, : len(rows[at][0])], one[f"{name}_logits"][0], tolerance, what="padded logits")
        losses.append(F.cross_entropy(logits[name].masked_fill(empty, -torch.inf), torch.from_numpy(target)) / 2)
    assert_same_gradients(gradients(ours, sum(losses)), wanted, tolerance, zero=unseen)


def test_an_ignored_end_counts_nothing() -> None:
    case = {"sizes": TINY | {"num_labels": 2, "type_vocab_size": 2}, "seed": 1}
    _, rows = rows_of(case, [9, 4])
    ours, _ = pair("BertForQuestionAnswering", case, torch.float64)
    labels = {"start": Ragged.column([3, 1]), "end": Ragged.column([5, -100])}
    batch = packed(rows, read=None, labels=labels)
    assert batch.weights == {"start": 2.0, "end": 1.0}
    first = packed(rows[:1], read=None, labels={name: Ragged.column(value.values[:1]) for name, value in labels.items()})
    assert_close(ours(batch).loss_sums["end"], ours(first).loss_sums["end"], 1e-12)


@in_both_precisions
def test_multiple_choice(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Questions of one to four choices; theirs take one question at a time, its choices padded."""
    rng = np.random.default_rng(case["seed"])
    counts = rng.integers(1, 5, 3).tolist()
    counts[int(rng.integers(3))] = 3
    sequences = np.cumsum([0, *counts]).tolist()
    _, rows = rows_of(case, rng.integers(1, test_parity.LONGEST, sum(counts)).tolist())
    questions = [rows[first:last] for first, last in pairwise(sequences)]
    answers = [int(rng.integers(count)) for count in counts]
    tolerance = TOLERANCES[dtype]
    ours, theirs = pair("BertForMultipleChoice", case, dtype)

    def as_theirs(question: Rows) -> dict[str, Tensor]:
        return {name: value[None] for name, value in padded(question).items()}  # (1, choices, T)

    alone = [theirs(**as_theirs(q), labels=torch.tensor([a])) for q, a in zip(questions, answers, strict=True)]
    total = torch.stack([one.loss for one in alone]).mean()
    wanted = {name: g.clone() for name, g in gradients(theirs, total).items()}

    read = Ragged.column(np.zeros(len(rows)))
    batch = packed(rows, read=read, labels={"labels": Ragged.column(answers)}, sequences=sequences)
    outputs = ours(batch)
    expected = torch.cat([one.logits[0] for one in alone])[:, None]
    assert_close(outputs.logits["logits"], expected, tolerance, what="packed logits")
    loss = outputs.loss_sums["labels"] / batch.weights["labels"]
    assert_close(loss, total, tolerance, what="packed loss")
    assert_same_gradients(gradients(ours, loss), wanted, tolerance, zero=("classifier.bias",))

    found = [ours(**as_theirs(question)).logits["logits"] for question in questions]
    for one, other in zip(found, alone, strict=True):
        assert_close(one, other.logits, tolerance, what="padded logits")
    losses = [F.cross_entropy(one, torch.tensor([answer])) for one, answer in zip(found, answers, strict=True)]
    assert_same_gradients(gradients(ours, torch.stack(losses).mean()), wanted, tolerance, zero=("classifier.bias",))


# --- the real weights --------------------------------------------------------------------------------------------------------

STEPS, BATCH_SIZE, MAX_LENGTH = 20, 4, 64


def real_sentences(path: Path, count: int) -> tuple[list[list[str]], list[list[str]]]:
    """Words and entity tags of the first sentences of an official file, with nothing of ours."""
    blocks = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n\n")
    rows = [[line.split(" ") for line in block.split("\n") if line.strip()] for block in blocks]
    rows = [row for row in rows if row and row[0][0] != "-DOCSTART-"][:count]
    return [[line[0] for line in row] for row in rows], [[line[3] for line in row] for row in rows]


def test_twenty_steps_of_tagging(data_dir: Path, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real sentences and weights, float32, no dropout, micro-batches: `train` and a plain loop give the same losses."""
    monkeypatch.setattr(test_parity, "STEPS", STEPS)  # of the plain loop's schedule
    typed = {"data": str(data_dir / "CoNLL2003"), "device": "cpu", "precision": "fp32", "dropout": 0.0, "learning_rate": 1e-4}
    typed |= {"batch_size": BATCH_SIZE, "micro_batch_tokens": 64, "max_length": MAX_LENGTH, "logging_steps": 1}
    recipe = load_recipe("conll2003").overridden(typed).resolved()
    config = filled(recipe.training)
    count = 13 * BATCH_SIZE - 3  # the curves cross into a second epoch, whose last step has fewer
    words, tags = real_sentences(data_dir / "CoNLL2003" / "train.txt.gz", count)
    rows = read_splits(recipe, ["train"]).rows["train"].select(range(count))
    task = Task.fit(recipe, rows)
    features, remarks = task.encode(task.examples(rows, labelled=True), Tokenizer.load(minilm))
    assert (len(features), remarks) == (count, ())

    label2id = {label: number for number, label in enumerate(task.labels)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = transformers.BertForTokenClassification.from_pretrained(minilm, num_labels=len(label2id), **NO_DROPOUT).train()
    model_config = dataclasses.replace(task.configure(read_config(minilm)), **NO_DROPOUT)
    ours = task.build(model_config)
    assert sorted(load_weights(ours, minilm, fresh_head=True)) == ["classifier.bias", "classifier.weight"]
    ours.classifier.load_state_dict(theirs.classifier.state_dict())
    vocabulary = UsedVocabulary([features], ours, config)
    sampler = Sampler(len(features), BATCH_SIZE, config.seed)
    batches = training_batches(vocabulary.narrow(features), sampler, config.micro_batch_tokens)
    assert max(len(batches(step)) for step in range(STEPS)) > 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)

    def reference_batches() -> Iterator[dict[str, Tensor]]:
        for step in range(STEPS):
            rows = sampler.features_at(step)
            encoded = tokenizer([words[row] for row in rows], is_split_into_words=True, padding=True, return_tensors="pt")
            labels = torch.full(encoded["input_ids"].shape, -100)
            for at, row in enumerate(rows):
                of = encoded.word_ids(at)
                for word, tag in enumerate(tags[row]):
                    labels[at, of.index(word)] = label2id[tag]
            yield {**encoded, "labels": labels}

    wanted = reference_curve(theirs, reference_batches(), config)
    train(ours, batches, config, start_accelerator("cpu"), total_steps=STEPS, run_dir=tmp_path)
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["step"] for event in found] == list(range(1, STEPS + 1))
    for ours_event, theirs_event in zip(found, wanted, strict=True):
        assert abs(ours_event["loss"] - theirs_event["loss"]) <= 1e-5, (ours_event, theirs_event)
        assert ours_event["grad_norm"] == pytest.approx(theirs_event["grad_norm"], rel=1e-4)
    assert wanted[0]["loss"] - wanted[-1]["loss"] > 0.5
