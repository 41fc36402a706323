"""Intervals of scores: against what statistics say they must be; and scorers against the scores of the drawn rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bertkit.metrics.bootstrap import interval, intervals
from bertkit.readers import Examples
from bertkit.tasks import MultipleChoice, QuestionAnswering, TextClassification, TokenClassification, accuracy, f1, macro_f1
from bertkit.tasks.task import Task

RNG = np.random.default_rng(0)
COUNT = 60


def test_the_interval_of_a_share_is_that_of_the_binomial() -> None:
    right = np.repeat([True, False], [700, 300])
    found = intervals(lambda rows: {"accuracy": float(right[rows].mean())}, 1000, resamples=3000)["accuracy"]
    half = 1.96 * (0.7 * 0.3 / 1000) ** 0.5
    assert found == pytest.approx((0.7 - half, 0.7 + half), abs=0.003)


def test_draws_on_which_a_score_is_not_defined_are_left_out() -> None:
    assert interval([None, 0.5, float("nan"), 0.5]) == (0.5, 0.5)
    assert interval([None, float("nan")]) is None


def test_a_score_that_only_some_draws_have() -> None:
    found = intervals(lambda rows: {"f1_A": 1.0} if 0 in rows else {}, 3, resamples=50)
    assert found == {"f1_A": (1.0, 1.0)}


def test_the_same_seed_gives_the_same_interval() -> None:
    values = RNG.normal(size=50)
    first, again, other = (
        intervals(lambda rows: {"mean": float(values[rows].mean())}, 50, resamples=200, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def classification() -> tuple[Task, list[dict[str, Any]], dict[str, list[Any]]]:
    names = ("a", "b", "c")
    task = TextClassification(labels=names, model_labels=("b", "c", "a"), metrics=(accuracy, f1, macro_f1))
    return task, [{"label": str(RNG.choice(names))} for _ in range(COUNT)], {"label": RNG.choice(names, COUNT).tolist()}


def choices() -> tuple[Task, list[dict[str, Any]], dict[str, list[Any]]]:
    return (
        MultipleChoice(metrics=(accuracy,)),
        [{"choice": int(RNG.integers(3))} for _ in range(COUNT)],
        {"label": RNG.integers(0, 3, COUNT).tolist()},
    )


def tags(intent: bool = False) -> tuple[Task, list[dict[str, Any]], dict[str, list[Any]]]:
    names = ["O", "B-A", "I-A", "B-B"]
    drawn = [RNG.choice(names, RNG.integers(1, 9)).tolist() for _ in range(COUNT)]
    pairs = [list(zip(["O", *row[:-1]], row, strict=True)) for row in drawn]  # by few illegal rows the scheme seems another
    gold = [["B-A" if tag == "I-A" and before[-1] != "A" else tag for before, tag in row] for row in pairs]
    found = [{"tags": [str(RNG.choice(names)) if RNG.random() < 0.3 else tag for tag in row]} for row in gold]
    columns = {"tags": gold, "tokens": gold}
    if intent:
        columns["intent"] = RNG.choice(["ask", "tell"], COUNT).tolist()
        found = [{**prediction, "intent": str(RNG.choice(["ask", "tell"]))} for prediction in found]
    return TokenClassification(scheme="iob2", intent=intent), found, columns


def answers(unanswerable: bool) -> tuple[Task, list[dict[str, Any]], dict[str, list[Any]]]:
    words = ["red lamp", "lamp", "the blue lamp", "nothing"]
    found: list[dict[str, Any]] = []
    for _ in range(COUNT):
        text = str(RNG.choice(words))
        odds = float(RNG.normal())
        nbest = [{"text": text, "start": 0}]
        found.append({"answer": text if odds < 0 or not unanswerable else "", "nbest": nbest, "null_odds": odds})
    gold = [[] if unanswerable and RNG.random() < 0.4 else [(str(RNG.choice(words)), 0)] for _ in range(COUNT)]
    columns = {"answers": gold, "context": ["the red lamp"] * COUNT, "question": ["what"] * COUNT}
    return QuestionAnswering(unanswerable=unanswerable), found, columns


@pytest.mark.parametrize(
    "made",
    [classification(), choices(), tags(), tags(intent=True), answers(False), answers(True)],
    ids="class choice tags intents answers odds".split(),
)
def test_a_scorer_scores_drawn_rows_as_if_they_were_the_data(made: tuple[Task, list[dict[str, Any]], dict]) -> None:
    task, predictions, columns = made
    examples = Examples(columns, "here", range(COUNT))
    scorer = task.scorer(predictions, examples)
    for rows in (np.arange(COUNT), RNG.integers(0, COUNT, COUNT), RNG.integers(0, COUNT, 7)):
        found = scorer(rows)
        expected = task.score([predictions[row] for row in rows], examples.select(rows.tolist()))
        assert set(found) >= set(expected), "a score without an interval"
        assert found == pytest.approx({name: expected.get(name) for name in found}, nan_ok=True), rows
