"""The heads of tagging, question answering and multiple choice against transformers' own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import parity
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from parity import (
    NO_DROPOUT,
    TINY,
    Rows,
    assert_close,
    assert_packed,
    copied,
    gradients,
    in_both_precisions,
    packed,
    padded,
    pair,
    random_rows,
)
from torch import Tensor

from bertkit.features import Ragged

# Relative, per tensor. A logit that is a sum of 64 products is itself exact to no more in float32.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}
LEAST = 0.01  # of all gradients, to which a tensor's error is relative at least: sums may cancel


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    case = draw(parity.cases())
    sizes = {name: value for name, value in case["sizes"].items() if name != "problem_type"}
    return case | {"sizes": sizes | {"num_labels": max(2, sizes["num_labels"])}}


def rows_of(case: dict[str, Any], lengths: list[int] | None = None) -> tuple[np.random.Generator, Rows]:
    rng, sizes = np.random.default_rng(case["seed"]), case["sizes"]
    return rng, random_rows(rng, lengths or case["lengths"], sizes["vocab_size"], sizes["type_vocab_size"])


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float, **more: Any) -> None:
    parity.assert_same_gradients(ours, theirs, tolerance, least=LEAST, **more)


def last_bias(case: dict[str, Any]) -> str:
    """What is added to every token's hidden state alike: a softmax over tokens does not see it."""
    layers = case["sizes"]["num_hidden_layers"]
    return f"layer.{layers - 1}.output.LayerNorm.bias" if layers else "embeddings.LayerNorm.bias"


@in_both_precisions(cases())
def test_token_classification(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Any rows of each sequence are read, some without a label."""
    rng, rows = rows_of(case)
    classes, tolerance = case["sizes"]["num_labels"], TOLERANCES[dtype]
    lengths = [len(ids) for ids, _ in rows]
    read = [np.sort(rng.choice(n, rng.integers(1, n + 1), replace=False)).tolist() for n in lengths]
    labels = [[int(rng.integers(classes)) if rng.random() < 0.8 else -100 for _ in chosen] for chosen in read]
    labels[0][0] = 1
    targets = torch.full((len(rows), max(lengths)), -100)
    for at, (chosen, row) in enumerate(zip(read, labels, strict=True)):
        targets[at, chosen] = torch.tensor(row)
    ours, theirs = pair("BertForTokenClassification", seed=case["seed"], dtype=dtype, **case["sizes"], **NO_DROPOUT)
    inputs = padded(rows)
    reference = theirs(**inputs, labels=targets)
    wanted = copied(gradients(theirs, reference.loss))

    batch = packed(rows, {"labels": Ragged.of(labels, np.int64)}, read=Ragged.of(read, np.int64))
    expected = torch.cat([reference.logits[at, chosen] for at, chosen in enumerate(read)])
    assert_packed(ours, batch, {"logits": expected}, reference.loss, wanted, tolerance, least=LEAST)

    logits = ours(**inputs).logits["logits"]
    attended = inputs["attention_mask"].bool()
    assert_close(logits[attended], reference.logits[attended], tolerance, what="padded logits")
    assert not logits[~attended].any()
    assert_same_gradients(gradients(ours, F.cross_entropy(logits.flatten(0, 1), targets.flatten())), wanted, tolerance)


@in_both_precisions(cases())
def test_question_answering(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Their padding may be an answer and ours may not, so theirs see one sequence at a time."""
    rng, rows = rows_of(case)
    tolerance, unseen = TOLERANCES[dtype], ("qa_outputs.bias", last_bias(case))
    start, end = (np.array([rng.integers(len(ids)) for ids, _ in rows]) for _ in range(2))
    sizes = case["sizes"] | {"num_labels": 2}
    ours, theirs = pair("BertForQuestionAnswering", seed=case["seed"], dtype=dtype, **sizes, **NO_DROPOUT)
    alone = [
        theirs(**padded([row]), start_positions=torch.tensor([s]), end_positions=torch.tensor([e]))
        for row, s, e in zip(rows, start, end, strict=True)
    ]
    total = torch.stack([one.loss for one in alone]).mean()
    wanted = copied(gradients(theirs, total))

    batch = packed(rows, {"start": Ragged.column(start), "end": Ragged.column(end)}, read=None)
    expected = {name: torch.cat([one[f"{name}_logits"][0] for one in alone]) for name in ("start", "end")}
    assert_packed(ours, batch, expected, total, wanted, tolerance, zero=unseen, least=LEAST)

    inputs = padded(rows)
    logits = ours(**inputs).logits
    attended = inputs["attention_mask"].bool()
    losses = []
    for name, target in (("start", start), ("end", end)):
        assert_close(logits[name][attended], expected[name], tolerance, what="padded logits")
        losses.append(F.cross_entropy(logits[name].masked_fill(~attended, -torch.inf), torch.from_numpy(target)) / 2)
    assert_same_gradients(gradients(ours, sum(losses)), wanted, tolerance, zero=unseen)


def test_an_ignored_end_counts_nothing() -> None:
    sizes = TINY | {"num_labels": 2, "type_vocab_size": 2}
    _, rows = rows_of({"sizes": sizes, "seed": 1}, [9, 4])
    ours, _ = pair("BertForQuestionAnswering", seed=1, dtype=torch.float64, **sizes, **NO_DROPOUT)
    batch = packed(rows, {"start": Ragged.column([3, 1]), "end": Ragged.column([5, -100])}, read=None)
    assert batch.weights == {"start": 2.0, "end": 1.0}
    first = packed(rows[:1], {"end": Ragged.column([5])}, read=None)
    assert_close(ours(batch).loss_sums["end"], ours(first).loss_sums["end"], 1e-12)


@in_both_precisions(cases())
def test_multiple_choice(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Questions of one to four choices; theirs take one question at a time, its choices padded."""
    rng = np.random.default_rng(case["seed"])
    counts = rng.integers(1, 5, 3).tolist()
    counts[int(rng.integers(3))] = 3
    sequences = np.cumsum([0, *counts]).tolist()
    _, rows = rows_of(case, rng.integers(1, parity.LONGEST, sum(counts)).tolist())
    questions = [rows[first:last] for first, last in pairwise(sequences)]
    answers = [int(rng.integers(count)) for count in counts]
    tolerance = TOLERANCES[dtype]
    ours, theirs = pair("BertForMultipleChoice", seed=case["seed"], dtype=dtype, **case["sizes"], **NO_DROPOUT)
    inputs = [{name: value[None] for name, value in padded(question).items()} for question in questions]  # (1, choices, T)
    alone = [theirs(**one, labels=torch.tensor([answer])) for one, answer in zip(inputs, answers, strict=True)]
    total = torch.stack([one.loss for one in alone]).mean()
    wanted = copied(gradients(theirs, total))

    batch = packed(rows, {"labels": Ragged.column(answers)}, read=Ragged.column(np.zeros(len(rows))), sequences=sequences)
    expected = torch.cat([one.logits[0] for one in alone])[:, None]
    zero = ("classifier.bias",)
    assert_packed(ours, batch, {"logits": expected}, total, wanted, tolerance, zero=zero, least=LEAST)

    found = [ours(**one).logits["logits"] for one in inputs]
    for one, other in zip(found, alone, strict=True):
        assert_close(one, other.logits, tolerance, what="padded logits")
    losses = [F.cross_entropy(one, torch.tensor([answer])) for one, answer in zip(found, answers, strict=True)]
    assert_same_gradients(gradients(ours, torch.stack(losses).mean()), wanted, tolerance, zero=zero)
