"""Intervals of scores, against statistics; and scorers, against the scores of the drawn rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bertkit.metrics import bootstrap
from bertkit.metrics.bootstrap import interval, intervals, resampled
from bertkit.tasks import (
    MultipleChoice,
    MultipleChoiceTask,
    QuestionAnswering,
    QuestionAnsweringTask,
    TextClassification,
    TextClassificationTask,
    TokenClassification,
    TokenClassificationTask,
    accuracy,
    f1,
    macro_f1,
)
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.question_answering.task import References
from bertkit.tasks.task import Task
from bertkit.tasks.token_classification.task import Tagged

pytestmark = pytest.mark.all_draws

RNG = np.random.default_rng(0)
COUNT = 60


def draws(count: int, resamples: int, seed: int = 0) -> Iterator[NDArray[np.int64]]:
    return resampled(count, resamples, np.random.default_rng(seed))


def test_the_interval_of_a_share_is_that_of_the_binomial() -> None:
    right = np.repeat([True, False], [700, 300])
    found = intervals(lambda rows: {"accuracy": float(right[rows].mean())}, draws(1000, 3000))["accuracy"]
    half = 1.96 * (0.7 * 0.3 / 1000) ** 0.5
    assert found == pytest.approx((0.7 - half, 0.7 + half), abs=0.003)


def test_draws_are_of_all_rows_and_follow_from_the_seed() -> None:
    first, again, other = (np.stack(list(draws(5, 200, seed))) for seed in (1, 1, 2))
    assert (first.shape, set(first.ravel())) == ((200, 5), set(range(5)))
    assert (first == again).all()
    assert (first != other).any()


def test_draws_without_a_score_are_left_out() -> None:
    assert interval([None, 0.5, float("nan"), 0.5]) == (0.5, 0.5)
    assert interval([None, float("nan")]) is None
    found = intervals(lambda rows: {"f1_A": 1 / len({*rows.tolist()})} if 0 in rows else {}, draws(3, 50))
    assert found == {"f1_A": (pytest.approx(1 / 3), 1.0)}


def test_a_score_that_no_draw_changes_has_no_interval() -> None:
    """Of one row, and of rows that are all right, the bootstrap would promise that the score is exact."""
    assert intervals(lambda rows: {"accuracy": float(rows.mean())}, draws(1, 50)) == {"accuracy": None}
    assert intervals(lambda rows: {"accuracy": 1.0, "f1": float(rows.mean())}, draws(9, 50))["accuracy"] is None


Made = tuple[Task, list[Prediction], list[Any]]


def classification(*names: str) -> Made:
    metrics = (accuracy, f1) if len(names) == 2 else (accuracy, macro_f1)
    task = TextClassificationTask(recipe=TextClassification(metrics=metrics), labels=names, positive=names[1])
    return task, [Prediction(str(RNG.choice(names))) for _ in range(COUNT)], RNG.choice(names, COUNT).tolist()


def choices() -> Made:
    predictions = [Prediction(int(RNG.integers(3))) for _ in range(COUNT)]
    return MultipleChoiceTask(recipe=MultipleChoice(metrics=(accuracy,))), predictions, RNG.integers(0, 3, COUNT).tolist()


def tags(*intents: str) -> Made:
    names = ["O", "B-A", "I-A", "B-B"]
    gold = [RNG.choice(names, RNG.integers(1, 9)).tolist() for _ in range(COUNT)]
    found = [[str(RNG.choice(names)) if RNG.random() < 0.3 else tag for tag in row] for row in gold]
    said, known = ([str(RNG.choice(intents)) if intents else None for _ in range(COUNT)] for _ in range(2))
    task = TokenClassificationTask(recipe=TokenClassification(), scheme="iob2", intents=intents)
    predictions = [Prediction(row, details={"intent": intent}) for row, intent in zip(found, said, strict=True)]
    return task, predictions, [Tagged(*pair) for pair in zip(gold, known, strict=True)]


def answers(unanswerable: bool, null_threshold: float | None = None) -> Made:
    words = ["red lamp", "lamp", "the blue lamp", "nothing"]
    found = []
    for _ in range(COUNT):
        text, odds = str(RNG.choice(words)), float(RNG.normal())
        details = {"nbest": [{"text": text, "start": 0}], "null_odds": odds}
        found.append(Prediction("" if unanswerable and odds > 0 else text, details=details))
    texts = [[] if unanswerable and RNG.random() < 0.4 else [str(RNG.choice(words))] for _ in range(COUNT)]
    task = QuestionAnsweringTask(recipe=QuestionAnswering(), unanswerable=unanswerable, null_threshold=null_threshold)
    return task, found, [References(row, by_characters=False, unanswerable=unanswerable) for row in texts]


@pytest.mark.parametrize(
    "made",
    [
        *(classification("a", "b"), classification("b", "c", "a"), choices(), tags(), tags("ask", "tell")),
        *(answers(False), answers(True), answers(True, 0.5)),
    ],
    ids="binary class choice tags intents answers odds threshold".split(),
)
def test_a_scorer_scores_drawn_rows_as_if_they_were_the_data(made: Made) -> None:
    task, predictions, truth = made
    scorer = task.scorer(predictions, truth)
    for rows in (np.arange(COUNT), RNG.integers(0, COUNT, COUNT), RNG.integers(0, COUNT, 7)):
        found = scorer(rows)
        expected = task.score([predictions[row] for row in rows], [truth[row] for row in rows])
        assert set(found) >= set(expected), "a score without an interval"
        assert found == pytest.approx({name: expected.get(name) for name in found}, nan_ok=True), rows


def test_how_often_users_draw() -> None:
    """With 1,000 draws, the end of a 95% interval varies by about 1/30 of its width."""
    assert (bootstrap.RESAMPLES, bootstrap.FEWER) == (1000, 300)
    assert len([*bootstrap.resampled(3)]) == 1000
