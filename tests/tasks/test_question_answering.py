"""Question answering: windows, labels and answers against hand-worked cases, transformers and plain searches; the commands."""

from __future__ import annotations

import gzip
import json
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from bertkit.config import filled
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.features import Features, Ragged
from bertkit.model.config import BertConfig
from bertkit.readers import Examples
from bertkit.tasks import (
    MultipleChoice,
    MultipleChoiceTask,
    Prediction,
    QuestionAnswering,
    QuestionAnsweringTask,
    Task,
    accuracy,
)
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.counts import Count, lines_of
from bertkit.tasks.question_answering.answers import best_answers
from bertkit.tasks.question_answering.places import ELSEWHERE, FIRST, LOST, MOVED, NEAR, OTHER_CASE, find_answer
from bertkit.tasks.splits import read_splits
from bertkit.text.tokenizer import Tokenizer

WORDS = "one two three good bad great poor movie film book".split()
CONTEXT = " ".join(WORDS)
Row = tuple[str, str, list[tuple[str, int]]]


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


def examples_of(*rows: Row) -> Examples:
    """Rows of question, context, answers as `standardize` gives them."""
    questions, contexts, answers = map(list, zip(*rows, strict=True))
    ids = [f"q{row}" for row in range(len(rows))]
    return Examples({"id": ids, "question": questions, "context": contexts, "answers": answers}, "rows.json", ids)


def task_of(
    *, unanswerable: bool | None = None, matching: str = "auto", null_threshold: float | None = None, **options: Any
) -> QuestionAnsweringTask:
    recipe = filled(QuestionAnswering(**options))
    return QuestionAnsweringTask(recipe=recipe, unanswerable=unanswerable, matching=matching, null_threshold=null_threshold)


def tokens_of(tokenizer: Tokenizer, features: Features, at: int) -> str:
    names = {number: token for token, number in tokenizer.vocab.items()}
    return " ".join(names[number] for number in features.input_ids[at].tolist())


def labels_of(features: Features) -> list[tuple[int, int]]:
    return list(zip(*(features.labels[term].values.tolist() for term in ("start", "end")), strict=True))


def counts_in(counts: tuple[Count, ...]) -> list[int]:
    return [int(remark.split()[0]) for remark in lines_of(counts)]


# --- windows and labels --------------------------------------------------------------------------------------------------


def test_windows_by_hand(tokenizer: Tokenizer) -> None:
    """A question of one token leaves 4 of 8 for the context; windows begin every 2."""
    task = task_of(doc_stride=2, unanswerable=True)
    rows = examples_of(
        ("who", CONTEXT, [("bad great", CONTEXT.index("bad great")), ("one", 0)]),
        ("what", "one two", [("two", 4)]),
        ("why", "one two", []),
    )
    features, remarks = task.encode(rows, tokenizer, max_length=8)
    assert features.examples.tolist() == [0, 0, 0, 0, 1, 2]
    assert [tokens_of(tokenizer, features, at) for at in range(6)] == [
        "[CLS] who [SEP] one two three good [SEP]",
        "[CLS] who [SEP] three good bad great [SEP]",
        "[CLS] who [SEP] bad great poor movie [SEP]",
        "[CLS] who [SEP] poor movie film book [SEP]",
        "[CLS] what [SEP] one two [SEP]",
        "[CLS] why [SEP] one two [SEP]",
    ]
    assert [features.token_type_ids[at].tolist() for at in (0, 4)] == [[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]
    assert labels_of(features) == [(0, 0), (5, 6), (3, 4), (0, 0), (4, 4), (0, 0)]
    assert (features.rows, counts_in(remarks)) == (None, [6, 1])
    assert [[*task.describe_targets(features, at)[0]] for at in (0, 1, 4)] == [[0], [5, 6], [4]]


def test_lost_moved_and_split_answers_are_counted(tokenizer: Tokenizer) -> None:
    task = task_of(doc_stride=4, max_query_length=2, unanswerable=True)
    rows = examples_of(
        ("who", "one two three", [("two", 4)]),
        ("who", "one two three", [("two", 5)]),  # near
        ("who", "one two three", [("four", 4)]),  # nowhere
        ("who", "two and two ", [("two ", 9 + NEAR)]),  # not near, and not the only one
        ("who", "one two three", [("two ", 9 + NEAR)]),  # far, the only one
        ("who", "one two three", [("TWO", -1)]),  # in another case
        ("who", CONTEXT, [("good bad great poor movie", CONTEXT.index("good"))]),  # in no single window
        ("who what where", "one two three", []),  # the question is truncated
        (" ", "one two three", [("one", 0)]),
    )
    features, remarks = task.encode(rows, tokenizer, max_length=8)
    # windows, blank questions, truncated ones, near, far, in another case, without an answer, nowhere, split
    assert counts_in(remarks) == [11, 1, 1, 1, 1, 1, 1, 2, 1]
    lost = next(remark for remark in lines_of(remarks) if LOST.what in remark)
    assert lost.endswith("(rows.json:q2, rows.json:q3)"), "the rows are named"
    nowhere = [(-100, -100)] * 2
    assert labels_of(features) == [(4, 4), (4, 4), *nowhere, (4, 4), (4, 4), (0, 0), (0, 0), (0, 0), (0, 0), (2, 2)]
    found = [(each.severity, each.what.split()[0], each.places) for each in task.check(rows)]
    assert found == [
        ("warning", "1", ("rows.json:q8",)),
        ("error", "2", ("rows.json:q2", "rows.json:q3")),
        ("warning", "1", ("rows.json:q5",)),
        ("warning", "1", ("rows.json:q4",)),
        ("note", "1", ("rows.json:q1",)),
    ]
    assert task.describe_targets(features, 2) == [{}]
    # If every question has an answer, one without is not trained on.
    features, _ = replace(task, unanswerable=False).encode(rows, tokenizer, max_length=8)
    assert labels_of(features)[-2:] == [(-100, -100), (2, 2)]
    learned = features.with_targets()
    assert set(learned.examples.tolist()) == {0, 1, 4, 5, 6, 8}
    assert [replace(task.recipe, unanswerable=may_be).num_learned(rows) for may_be in (True, False)] == [7, 6]
    features, remarks = task.encode(rows, tokenizer, max_length=8, labelled=False)
    assert (features.labels, counts_in(remarks)) == ({}, [11, 1, 1])
    with pytest.raises(DataError) as error:
        task.encode(rows.select([0, 2, 3]).select([1, 2]), tokenizer)
    assert error.value.where == "rows.json:q2"


def test_an_answer_within_a_word_becomes_its_tokens(tokenizer: Tokenizer) -> None:
    rows = examples_of(("who", "a goodish (film), x", [("film", 11)]), ("who", "one goodish two", [("oodi", 5)]))
    features, _ = task_of().encode(rows, tokenizer, max_length=32)
    (start, end), (first, last) = labels_of(features)
    assert tokens_of(tokenizer, features, 0).split()[start : end + 1] == ["film"]
    assert tokens_of(tokenizer, features, 1).split()[first] == "good"
    assert last > first


def test_offsets_count_the_characters_before_normalization(tokenizer: Tokenizer) -> None:
    context = "Cafe\u0301 \u0130stanbul \U0001f600 na\u00efve \u5b57\u5b57 Film"
    features, _ = task_of().encode(examples_of(("who", context, [("Film", context.index("Film"))])), tokenizer, max_length=64)
    [(start, end)] = labels_of(features)
    begin, starts, ends = (features.extras[name][0] for name in ("context", "starts", "ends"))
    assert context[starts[start - begin[0]] : ends[end - begin[0]]] == "Film"
    assert [context[a:b] for a, b in zip(starts, ends, strict=True)][-3:] == ["\u5b57", "\u5b57", "Film"]


@pytest.mark.parametrize(("max_length", "doc_stride"), [(12, 3), (16, 5), (16, 100), (64, 16)])
def test_windows_are_those_of_transformers(
    tokenizer: Tokenizer, tiny_tokenizer_dir: Path, max_length: int, doc_stride: int
) -> None:
    """Its stride is the overlap: what the room exceeds the step by."""
    oracle = AutoTokenizer.from_pretrained(tiny_tokenizer_dir)
    rng = np.random.default_rng(max_length)
    words = [*WORDS, "Goodish", "unreadable,", "(x)", "caf\u00e9"]
    rows = [
        (" ".join(rng.choice(WORDS, rng.integers(1, 6))), " ".join(rng.choice(words, rng.integers(1, 60)))) for _ in range(60)
    ]
    rows += [(question, rows[0][1]) for question, _ in rows[:5]]  # a context that several questions share
    task = task_of(doc_stride=doc_stride, max_query_length=50)
    features, _ = task.encode(examples_of(*((*row, []) for row in rows)), tokenizer, max_length=max_length, labelled=False)
    expected = []
    for row, (question, context) in enumerate(rows):
        query = len(oracle(question, add_special_tokens=False)["input_ids"])
        room = max_length - 3 - query
        options = {"stride": room - min(doc_stride, room), "return_overflowing_tokens": True, "return_offsets_mapping": True}
        found = oracle(question, context, truncation="only_second", max_length=max_length, **options)
        for ids, types, offsets in zip(found["input_ids"], found["token_type_ids"], found["offset_mapping"], strict=True):
            expected.append((row, ids, types, query + 2, offsets[query + 2 : -1]))
    assert len(features) == len(expected)
    for at, (row, ids, types, begin, offsets) in enumerate(expected):
        assert (features.examples[at], features.extras["context"][at]) == (row, begin)
        assert (features.input_ids[at].tolist(), features.token_type_ids[at].tolist()) == (ids, types)
        spans = zip(features.extras["starts"][at].tolist(), features.extras["ends"][at].tolist(), strict=True)
        assert [*spans] == offsets


FAR = "x" + "." * 9 + "x" + "." * 5 + "x" + "." * 100 + "y"
Y = FAR.index("y")


@pytest.mark.parametrize(
    ("context", "text", "places"),  # answer_start -> where the answer is found, and how
    [
        ("one two one two", "two", {4: (4, None), 5: (4, MOVED), -1: (4, MOVED), 99: (-1, LOST), None: (4, FIRST)}),
        ("one two one two", "o", {2: (0, MOVED)}),
        ("one two one two", "six", {4: (-1, LOST), None: (-1, LOST)}),
        ("one two one two", "one", {0: (0, None)}),
        ("aaa", "aa", {99: (-1, LOST), 1: (1, None)}),  # overlapping ones are two
        (FAR, "x", {3: (0, MOVED), 7: (10, MOVED), 13: (10, MOVED), 14: (16, MOVED)}),  # the earlier of two as near
        (FAR, "x", {16 + NEAR: (16, MOVED), 17 + NEAR: (-1, LOST)}),
        (FAR, "y", {Y - NEAR: (Y, MOVED), Y - NEAR - 1: (Y, ELSEWHERE), -1: (Y, ELSEWHERE), Y + NEAR + 1: (Y, ELSEWHERE)}),
        (FAR, "Y", {Y: (Y, OTHER_CASE), -1: (Y, OTHER_CASE), None: (Y, OTHER_CASE)}),
        (FAR, "X", {0: (-1, LOST), None: (-1, LOST)}),
        ("\u0130. one (Two)?", "(two)?", {0: (7, OTHER_CASE)}),  # characters are counted before any change of case
        ("two TWO", "two", {99: (0, ELSEWHERE)}),  # its own case first
    ],
)
def test_an_answer_is_found_near_its_start_or_where_it_stands_once(context: str, text: str, places: dict) -> None:
    assert {start: tuple(find_answer(context, text, start)) for start in places} == places


# --- answers -------------------------------------------------------------------------------------------------------------


def random_logits(features: Features, seed: int) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {name: [rng.normal(size=n).astype(np.float32) * 3 for n in features.input_ids.lengths] for name in ("start", "end")}


def brute_force(
    outputs: dict[str, list[np.ndarray]], features: Features, example: int, n: int, longest: int
) -> list[tuple[float, int, int]]:
    """Every span of every window, one by one: score and characters, best first."""
    spans: dict[tuple[int, int], float] = {}
    for at in np.flatnonzero(features.examples == example).tolist():
        begin, starts, ends = features.extras["context"][at][0], features.extras["starts"][at], features.extras["ends"][at]
        s, e = (outputs[name][at][begin : begin + len(starts)] for name in ("start", "end"))
        for i, j in ((a, b) for a in range(len(s)) for b in range(a, min(len(s), a + longest))):
            span = int(starts[i]), int(ends[j])
            spans[span] = max(spans.get(span, -np.inf), float(s[i] + e[j]))
    return sorted(((score, *span) for span, score in spans.items()), reverse=True)[:n]


@pytest.mark.parametrize(
    ("n", "longest", "doc_stride", "at_once"),
    [
        *((20, 30, 16, None), (5, 3, 4, None), (1, 1, 7, None), (3, 2, 100, None), (100, 100, 5, None), (2, 1000, 9, None)),
        *((20, 30, 16, 5000), (5, 3, 4, 1)),  # ten windows at once; one
    ],
)
def test_the_n_best_are_those_of_a_search_over_all_pairs(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, n: int, longest: int, doc_stride: int, at_once: int | None
) -> None:
    if at_once is not None:
        monkeypatch.setattr("bertkit.tasks.question_answering.answers._CELLS", at_once)
    rng = np.random.default_rng(n)
    words = [*WORDS, "e\u0301", "\u5b57\u5b57", "\U0001f600", ".,"]
    contexts = [" ".join(rng.choice(words, rng.integers(1, 50))) for _ in range(60)]
    rows = examples_of(*(("who when", context, []) for context in [*contexts, "", " \n"]))
    task = task_of(doc_stride=doc_stride, n_best_size=n, max_answer_length=longest, unanswerable=n % 2 == 0)
    features, _ = task.encode(rows, tokenizer, max_length=24, labelled=False)
    assert len(features) > 80
    outputs = random_logits(features, n)
    found = task.decode(outputs, features, rows)
    *predictions, empty, blank = [task.row(prediction, rows, number) for number, prediction in enumerate(found)]
    json.dumps([*predictions, empty, blank], allow_nan=False)
    for nothing in (empty, blank):
        assert (nothing["answer"], nothing["start"], nothing.get("null_odds", 0)) == ("", None, 0)
        assert len(nothing["nbest"]) == task.unanswerable
    for row, (prediction, context) in enumerate(zip(predictions, contexts, strict=True)):
        expected = brute_force(outputs, features, row, n, longest)
        scores = [score for score, *_ in expected]
        spans = [c for c in prediction["nbest"] if c["start"] is not None]
        assert [(c["start"], c["end"], c["text"]) for c in spans] == [(a, b, context[a:b]) for _, a, b in expected]
        assert [c["start_logit"] + c["end_logit"] for c in spans] == pytest.approx(scores, abs=1e-5)
        if task.unanswerable:
            windows = np.flatnonzero(features.examples == row)
            null = min(float(outputs["start"][at][0] + outputs["end"][at][0]) for at in windows)
            assert prediction["null_odds"] == pytest.approx(null - scores[0], abs=1e-5)
            assert prediction["answer"] == ("" if null > scores[0] else spans[0]["text"])
            scores = sorted([*scores, null], reverse=True)
        else:
            assert prediction["answer"] == spans[0]["text"]
        weights = np.exp(np.array(scores) - scores[0])
        assert [c["probability"] for c in prediction["nbest"]] == pytest.approx(list(weights / weights.sum()), abs=1e-5)


@pytest.mark.parametrize("longest", [1000, 3000])
def test_long_answers_are_searched_in_little_memory(tokenizer: Tokenizer, longest: int) -> None:
    """Of a context of T tokens, where a search over all pairs holds T times `longest` scores at once."""
    size, n = 3000, 20
    rows = examples_of(("who", " ".join(np.random.default_rng(0).choice(WORDS, size)), []))
    task = task_of(n_best_size=n, max_answer_length=longest, unanswerable=False)
    features, _ = task.encode(rows, tokenizer, max_length=math.inf, labelled=False)
    outputs = random_logits(features, 0)
    tracemalloc.start()
    found = best_answers(outputs, features, 1, n_best_size=n, max_answer_length=longest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size * longest  # bytes; a score has four
    begin = int(features.extras["context"][0][0])
    start, end = (outputs[name][0][begin : begin + size] for name in ("start", "end"))
    distance = np.arange(size) - np.arange(size)[:, None]
    every = np.where((distance >= 0) & (distance < longest), start[:, None] + end, -np.inf)
    order = np.argsort(-every, axis=None, kind="stable")[:n]
    first, last = np.unravel_index(order, every.shape)
    assert found.scores[0].tolist() == every.flat[order].tolist()
    assert found.start[0].tolist() == features.extras["starts"][0][first].tolist()
    assert found.end[0].tolist() == features.extras["ends"][0][last].tolist()


@pytest.mark.parametrize("equal", [False, True])
def test_the_answer_does_not_depend_on_how_many_are_written(tokenizer: Tokenizer, equal: bool) -> None:
    rng = np.random.default_rng(0)
    rows = examples_of(*(("who when", " ".join(rng.choice(WORDS, 60)), []) for _ in range(30)))
    task = task_of(doc_stride=8, unanswerable=True)
    features, _ = task.encode(rows, tokenizer, max_length=24, labelled=False)
    outputs = random_logits(features, 1)
    if equal:  # all spans are
        outputs = {name: [np.zeros_like(logits) for logits in each] for name, each in outputs.items()}

    def answers(n: int) -> list[Any]:
        own = replace(task, recipe=replace(task.recipe, n_best_size=n), null_threshold=-99.0 if equal else 0.0)
        return [(p.value, p.details["start"], p.details["null_odds"]) for p in own.decode(outputs, features, rows)]

    assert answers(1) == answers(2) == answers(20) == answers(500)


def test_an_answer_by_hand() -> None:
    """Two windows of one context; the second knows better, but its [CLS] is loudest."""
    features = Features(
        input_ids=Ragged.of([[2, 9, 3, 5, 6, 7, 3], [2, 9, 3, 6, 7, 8, 3]]),
        token_type_ids=Ragged.of([[0, 0, 0, 1, 1, 1, 1]] * 2),
        examples=np.array([0, 0]),
        extras={
            "context": Ragged.column([3, 3]),
            "starts": Ragged.of([[0, 4, 8], [4, 8, 14]]),
            "ends": Ragged.of([[3, 7, 13], [7, 13, 18]]),
        },
    )
    outputs = {  # [CLS] and the question are above all of the context
        "start": [np.array([2, 9, 9, 1, 3, 0, 9.0]), np.array([4, 9, 9, 5, 0, 0, 9.0])],
        "end": [np.array([1, 9, 9, 0, 2, 4, 9.0]), np.array([5, 9, 9, 1, 3, 0, 9.0])],
    }
    rows = examples_of(("who", "one two three four", []))
    task = task_of(n_best_size=3, max_answer_length=2, unanswerable=False)

    def decided(task: QuestionAnsweringTask) -> tuple[Prediction, list[tuple[str, float, float]]]:
        [found] = task.decode(outputs, features, rows)
        return found, [(c["text"], c["start_logit"], c["end_logit"]) for c in found.details["nbest"]]

    nbest = [("two three", 5, 3), ("two", 5, 1), ("three", 0, 4)]
    found, candidates = decided(task)
    assert (found.value, found.details["start"], found.details["end"], candidates) == ("two three", 4, 13, nbest)
    assert found.probability == pytest.approx(np.exp(8) / np.exp([8, 6, 4]).sum())
    assert "null_odds" not in found.details
    # The lower of 2 + 1 and 4 + 5 speaks for no answer, by 5 less than the best answer.
    found, candidates = decided(replace(task, unanswerable=True))
    assert (found.value, found.details["null_odds"], candidates) == ("two three", -5, [*nbest, ("", 2, 1)])
    doubting = replace(task, unanswerable=True, null_threshold=-5.5)
    held_back, _ = decided(doubting)
    assert doubting.decide([found]) == [held_back]
    assert (held_back.value, held_back.details["start"], held_back.details["end"]) == ("", None, None)
    assert held_back.probability == pytest.approx(np.exp(3) / np.exp([8, 6, 4, 3]).sum())


def test_answers_as_a_person_reads_them() -> None:
    context = "." * 300 + "[bold]two\x1b " + "," * 300
    task, rows = task_of(), examples_of(("[i]who?", context, [("two", 306), ("two", 306), ("dot", 0)]), ("why?", "x", []))
    answer = Prediction("two", 0.25, details={"start": 306, "end": 309})
    shown = task.format_prediction(answer, rows, 0)
    assert shown.plain == f"[i]who?\n...{'.' * 194}[bold][two]\\x1b {',' * 198}... (0.25)\n"
    assert [shown.plain[s.start : s.end] for s in shown.spans if "bold" in str(s.style)] == ["[i]who?", "[two]"]
    whole = replace(rows, columns=rows.columns | {"context": [f"{'-' * 200}two{',' * 200}", "x"]})
    shown = task.format_prediction(Prediction("two", 0.5, details={"start": 200, "end": 203}), whole, 0)
    assert shown.plain == f"[i]who?\n{'-' * 200}[two]{',' * 200} (0.50)\n"
    nothing = task.format_prediction(Prediction("", 0.75, details={"start": None, "end": None}), rows, 1).plain
    assert (nothing.startswith("why?\n"), "(0.75)" in nothing) == (True, True)
    assert lines_of(task.counts_of([answer, Prediction(""), Prediction("")])) == ["2 questions that the model does not answer"]
    assert lines_of(task.counts_of([answer])) == []
    truth = task.truth(rows)
    assert task.format_truth(truth[0], rows, 0) == "two / dot"
    assert [task.error(answer, truth[0]), task.error(answer, truth[1])] == [0, 0.25]
    for unsure in (Prediction("", 0.0), Prediction("")):  # of an empty context, or a baseline's
        assert 0 < task.error(unsure, truth[0]) < 1e-6, "wrong, but least so"
        assert task.error(unsure, truth[1]) == 0


# --- scores --------------------------------------------------------------------------------------------------------------


def predicted(answer: str, null_odds: float | None = None, best: str | None = None) -> Prediction:
    nbest = [{"text": "", "start": None}, {"text": answer if best is None else best, "start": 0}]
    return Prediction(answer, details={"null_odds": null_odds, "nbest": nbest})


def test_scores_if_every_question_has_an_answer() -> None:
    rows = examples_of(("who", "x", [("red hot fire", 0), ("The redhot", 0)]), ("who", "x", [("cat", 0)]), ("who", "x", []))
    task = task_of(unanswerable=False)
    predictions, truth = [predicted("red-hot fire"), predicted("a cat"), predicted("dog")], task.truth(rows)
    found = task.score(predictions, truth)
    assert [*found.items()] == [("f1", pytest.approx((2 / 3 + 1) / 3)), ("exact_match", pytest.approx(1 / 3))]
    assert task.tuned(predictions, truth) == task
    chinese = examples_of(("谁", "在1967年5月", [("1967年", 1)]))
    assert task_of().score([predicted("在1967年5月")], task_of().truth(chinese))["f1"] == pytest.approx(4 / 7)


def test_scores_if_questions_may_have_no_answer() -> None:
    """Threshold 0 against the best one, which is 2: hand-worked, and as find_best_thresh gave it."""
    rows = examples_of(*(("who", "x", [(text, 0)] if text else []) for text in ("cat", "cat dog", "", "", "cat")))
    best = zip(["cat", "cat mouse", "cat", "cat", "cat"], [-3.0, -1.0, -2.0, 4.0, 2.0], strict=True)
    predictions = [predicted(text if null <= 0 else "", null, text) for text, null in best]
    task = task_of(unanswerable=True, matching="words")
    truth = task.truth(rows)
    expected = {
        "f1": 2.5 / 5,
        "exact": 2 / 5,
        "HasAns_exact": 1 / 3,
        "HasAns_f1": 1.5 / 3,
        "NoAns_exact": 1 / 2,
        "NoAns_f1": 0.5,
    }
    expected |= {"best_exact": 3 / 5, "best_exact_thresh": -3, "best_f1": 3.5 / 5, "best_f1_thresh": 2}
    for before in (task, replace(task, null_threshold=0.0)):
        found = before.score(predictions, truth)
        assert next(iter(found)) == "best_f1"
        assert found == pytest.approx(expected)
    tuned = task.tuned(predictions, truth)
    assert tuned.null_threshold == 3, "halfway to the next question's"
    gained = {"f1": 3.5 / 5, "exact": 3 / 5, "HasAns_exact": 2 / 3, "HasAns_f1": 2.5 / 3}
    assert tuned.score(predictions, truth) == pytest.approx(expected | gained)
    asked = replace(task, recipe=replace(task.recipe, null_threshold=1.0), null_threshold=1.0)
    assert asked.tuned(predictions, truth).null_threshold == 1


def test_a_model_without_a_recipe_is_scored_by_what_the_rows_say(tokenizer: Tokenizer) -> None:
    """If one row has no answer, as SQuAD 2.0 scores, else as 1.1; rows to predict say nothing."""
    task, answered, unanswered = task_of(), ("who", CONTEXT, [("two", 4)]), ("why", CONTEXT, [])
    for rows, scores, num_files in (
        ([answered, unanswered], ["best_f1", "best_f1_thresh"], 3),
        ([answered], ["f1", "exact_match"], 2),
    ):
        examples = examples_of(*rows)
        truth = task.truth(examples)
        features, _ = task.encode(examples, tokenizer, max_length=16)
        assert (-100, -100) not in labels_of(features)
        outputs = random_logits(features, 1)
        predictions = task.decode(outputs, features, examples)
        assert list(task.score(predictions, truth))[:2] == scores
        files = {name: json.loads(text) for name, text in task.files(predictions, truth, examples).items()}
        assert list(files) == ["predictions.json", "nbest_predictions.json", "null_odds.json"][:num_files]
        assert all(list(by_id) == examples.columns["id"] for by_id in files.values())
        assert files["predictions.json"]["q0"] == predictions[0].value
        assert set(files["nbest_predictions.json"]["q0"][0]) == {"text", "probability", "start_logit", "end_logit"}
        unlabelled = replace(examples, columns={name: examples.columns[name] for name in ("id", "question", "context")})
        assert "null_odds" not in task.decode(outputs, features, unlabelled)[0].details
        assert "null_odds" in replace(task, unanswerable=True).decode(outputs, features, unlabelled)[0].details


ENGLISH, CHINESE = ("who", CONTEXT, [("two", 4)]), ("谁", "第一章 film 北京大学", [("北京", 9)])


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        ([ENGLISH, ENGLISH], {}, (False, "words", None)),
        ([CHINESE, ("谁", "北京", [])], {"null_threshold": 2.0}, (True, "characters", 2.0)),
        ([CHINESE], {"unanswerable": True, "matching": "words"}, (True, "words", None)),
        ([ENGLISH, ("why", CONTEXT, [])], {"unanswerable": False}, "rows.json:q1"),
        ([("why", CONTEXT, [])], {}, "rows.json"),
        ([ENGLISH], {"null_threshold": 0.0}, None),
    ],
)
def test_training_rows_decide_how_answers_are_scored(rows: list[Row], options: dict[str, Any], expected: Any) -> None:
    recipe = filled(QuestionAnswering(**options))
    if isinstance(expected, tuple):
        task = QuestionAnsweringTask.fit_examples(recipe, examples_of(*rows))
        assert (task.unanswerable, task.matching, task.null_threshold) == expected
        return
    with pytest.raises(DataError if expected else UsageError) as error:
        QuestionAnsweringTask.fit_examples(recipe, examples_of(*rows))
    assert error.value.where == expected


def test_another_family_keeps_nothing_of_the_block() -> None:
    config = task_of(unanswerable=True, null_threshold=1.0).configure(BertConfig())
    assert config.extra["bertkit"]["null_threshold"] == 1
    other = MultipleChoiceTask(recipe=filled(MultipleChoice())).configure(config)
    assert not {"unanswerable", "null_threshold"} & set(other.extra["bertkit"])


def test_a_recipe_has_no_metrics_of_its_own() -> None:
    with pytest.raises(UsageError):
        QuestionAnswering(metrics=(accuracy,), train="x.json").resolved()


@pytest.mark.parametrize("name", ["doc_stride", "max_query_length", "max_answer_length", "n_best_size"])
def test_sizes_are_at_least_1(name: str) -> None:
    QuestionAnswering(**{name: 1})
    with pytest.raises(UsageError):
        QuestionAnswering(**{name: 0})


def test_a_question_that_leaves_no_room(tokenizer: Tokenizer) -> None:
    rows = examples_of(("who what why", "one", []))
    with pytest.raises(UsageError):
        task_of().encode(rows, tokenizer, max_length=6)
    assert len(task_of().encode(rows, tokenizer, max_length=7, labelled=False)[0]) == 1


# --- reading -------------------------------------------------------------------------------------------------------------


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def load(tmp_path: Path, content: str, name: str = "rows.jsonl", *, to_predict: bool = False, **options: Any) -> Examples:
    (tmp_path / name).write_text(content, encoding="utf-8")
    recipe = QuestionAnswering(**options)
    return recipe.standardize(recipe.read_file(tmp_path / name), labelled=not to_predict)


def asked(id: str, text: str | None = None, start: int | None = None, question: str = "who") -> dict[str, Any]:
    """A question of SQuAD's JSON, about CONTEXT; without text one that has no answer."""
    place = CONTEXT.find(text) if text and start is None else start
    answers = [{"text": text, "answer_start": place}] if text else []
    return {"id": id, "question": question, "answers": answers, "is_impossible": not answers}


def squad(*questions: dict[str, Any]) -> str:
    data = [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": list(questions)}]}]
    return json.dumps({"version": "x", "data": data})


FIRST, SECOND = ({"id": name, "question": asks, "context": CONTEXT} for name, asks in (("a", "who"), ("b", "what")))
DICTS = FIRST | {"answers": {"text": ["two"], "answer_start": [4]}}, SECOND | {"answers": {"text": [], "answer_start": []}}
TABLE = f"id,question,context,answer,answer_start\na,who,{CONTEXT},two,4.0\nb,what,{CONTEXT},,\n"
IMPOSSIBLE = {"answers": [{"text": "one", "answer_start": 0}], "is_impossible": "true"}
IN_CELL = "\"{'text': ['two'], 'answer_start': [4]}\""
AS_JSON = r'''"{""text"": [""\u0074wo""], ""answer_start"": [4], ""by"": null, ""sure"": true}"'''
MARKED = f"id,question,context,answer,is_impossible\na,who,{CONTEXT},{IN_CELL},False\nb,what,{CONTEXT},{IN_CELL},1.0\n"
RENAMED = TABLE.replace("question", "q", 1).replace("context", "page", 1).replace("answer,", "said,", 1)


@pytest.mark.parametrize(
    ("content", "name", "options"),
    [
        (squad(asked("a", "two"), asked("b", question="what")), "rows.json", {}),
        (jsonl(*DICTS), "rows.jsonl", {}),
        (jsonl(FIRST | {"answers": {"text": "two", "answer_start": 4}}, SECOND | {"answers": []}), "rows.jsonl", {}),
        (jsonl(FIRST | {"answers": [{"text": "two", "answer_start": " 4 "}]}, SECOND | {"answers": []}), "rows.jsonl", {}),
        (jsonl(FIRST | {"answer": [{"text": "two", "answer_start": 4.0}]}, SECOND | {"answer": []}), "rows.jsonl", {}),
        (jsonl(FIRST | {"answers": [{"text": "two", "answer_start": 4}]}, SECOND | IMPOSSIBLE), "rows.jsonl", {}),
        (squad(asked("a", "two"), asked("b", "one", question="what") | {"is_impossible": True}), "rows.json", {}),
        (TABLE, "rows.csv", {}),
        (TABLE.replace("answer,", "answer_text,", 1), "rows.csv", {}),
        (MARKED, "rows.csv", {}),
        (f"id,question,context,answer\na,who,{CONTEXT},{IN_CELL}\nb,what,{CONTEXT},\n", "rows.csv", {}),
        (f"id,question,context,answer\na,who,{CONTEXT},{AS_JSON}\nb,what,{CONTEXT},[]\n", "rows.csv", {}),
        (RENAMED, "rows.csv", {"question": "q", "context": "page", "answers": "said"}),
    ],
)
def test_one_data_set_in_every_form(tmp_path: Path, content: str, name: str, options: dict[str, str]) -> None:
    expected = {"id": ["a", "b"], "question": ["who", "what"], "context": [CONTEXT] * 2, "answers": [[("two", 4)], []]}
    assert load(tmp_path, content, name, **options).columns == expected
    recipe = QuestionAnswering(dataset=lambda split: [row | {"title": "t"} for row in DICTS]).resolved()
    assert recipe.standardize(read_splits(recipe).rows["train"], labelled=True).columns == expected


def test_columns_have_usual_names_in_any_case(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(TABLE.replace("question,context,answer", "Question,Paragraph,Answer", 1), encoding="utf-8")
    recipe = QuestionAnswering(train=str(path), validation=str(path)).resolved()
    rows = read_splits(recipe).rows["train"]
    task = Task.fit(recipe, rows)
    assert task.examples(rows, labelled=True).columns["answers"] == [[("two", 4)], []]
    assert (task.recipe.question_column, task.recipe.context) == ("Question", "Paragraph")
    own = QuestionAnswering(question_column="asked").find_columns(rows).named
    assert own["question_column"] == "asked", "what a recipe names comes before a guess"


def test_every_column_of_squad_may_be_in_upper_case(tmp_path: Path) -> None:
    names = "Id,Title,Question,Context,Answer,Answer_Start,Is_Impossible"
    table = f"{names}\na,t,who,one two two,two,8,False\nb,t,what,one two,two,4,True\n"
    found = load(tmp_path, table, "rows.csv", question="Question", context="Context")
    assert (found.columns["id"], found.columns["answers"]) == (["a", "b"], [[("two", 8)], []])
    recipe = QuestionAnswering(question="Question", context="Context")
    read = recipe.columns_read(Examples({name: [] for name in names.split(",")}, "f", []), labelled=True)
    assert read >= {*names.split(",")}
    (tmp_path / "rows").write_text(table, encoding="utf-8")  # a name that says nothing
    assert next(QuestionAnswering().read_blocks(tmp_path / "rows")).columns["Answer"] == ["two", "two"]
    with pytest.raises(DataError, match="column 'Is_Impossible' holds 'maybe'"):
        load(tmp_path, table.replace("True", "maybe"), "rows.csv", question="Question", context="Context")
    both = load(tmp_path, f"question,context,Answer,answer\nwho,{CONTEXT},one,two\n", "rows.csv")
    assert both.columns["answers"] == [[("two", None)]], "the exact name takes precedence"


def test_a_cell_unlike_the_lists_of_answers_is_named(tmp_path: Path) -> None:
    for cell in ("[1912]", "two"):
        rows = "".join(f"who,{CONTEXT},\"['{text}']\"\n" for text in ("one", "two", "one"))
        with pytest.raises(DataError) as error:
            load(tmp_path, f"question,context,answers\n{rows}who,{CONTEXT},{cell}\n", "rows.csv")
        assert (error.value.where, cell in error.value.what) == (f"{tmp_path / 'rows.csv'}:5", True)
        kept = load(tmp_path, f"question,context,answers\n{rows}who,{CONTEXT},{cell}\n", "rows.csv", on_error="skip")
        assert kept.columns["answers"] == [[("one", None)], [("two", None)], [("one", None)]]


@pytest.mark.parametrize(
    ("odd", "others", "expected"),
    [
        (["one"], "two", "holds ['one']; expected text, as in most rows"),
        ("one", ["two"], "holds 'one'; expected a list or object, as in most rows"),
        ("one", {"text": ["two"], "answer_start": [4]}, "holds 'one'; expected a list or object, as in most rows"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_most_rows_decide_the_form_of_answers(odd: Any, others: Any, expected: str, place: int, tmp_path: Path) -> None:
    answers = [others] * 3
    answers[place] = odd
    written = "".join(json.dumps({"question": "who", "context": CONTEXT, "answers": each}) + "\n" for each in answers)
    with pytest.raises(DataError) as error:
        load(tmp_path, written)
    assert error.value.where == f"{tmp_path / 'rows.jsonl'}:{place + 1}"
    assert expected in error.value.what
    assert len(load(tmp_path, written, on_error="skip")) == 2


def test_a_list_beside_cells_with_lists_is_kept(tmp_path: Path) -> None:
    answers = (["one"], "['two']", "['one', 'two']", None)
    written = "".join(json.dumps({"question": "who", "context": CONTEXT, "answers": each}) + "\n" for each in answers)
    assert [len(each) for each in load(tmp_path, written).columns["answers"]] == [1, 1, 2, 0]
    with pytest.raises(DataError, match="holds 1912"):
        load(tmp_path, written.replace('["one"]', "1912"))


def test_empty_text_beside_lists_is_no_answer(tmp_path: Path) -> None:
    """Even where most rows have it; a list written in a text is a list there too."""
    answers = ("", ["one"], " ", "", "['two']")
    written = "".join(json.dumps({"question": "who", "context": CONTEXT, "answers": each}) + "\n" for each in answers)
    assert load(tmp_path, written).columns["answers"] == [[], [("one", None)], [], [], [("two", None)]]


def test_objects_without_answer_start_are_found_in_the_context(tmp_path: Path) -> None:
    forms = ([{"text": "two"}], {"text": ["two"]}, {"text": "two"}, [{"text": "two", "answer_start": 4}, {"text": "one"}])
    written = "".join(json.dumps({"question": "who", "context": CONTEXT, "answers": each}) + "\n" for each in forms)
    assert load(tmp_path, written).columns["answers"] == [*[[("two", None)]] * 3, [("two", 4), ("one", None)]]


def test_an_empty_answer_is_none(tmp_path: Path) -> None:
    forms = ([{"text": "", "answer_start": -1}], {"text": [" "], "answer_start": [-1]}, [{"text": "two"}])
    written = "".join(json.dumps({"question": "who", "context": CONTEXT, "answers": each}) + "\n" for each in forms)
    assert load(tmp_path, written).columns["answers"] == [[], [], [("two", None)]]
    with pytest.raises(DataError, match="an answer is empty"):
        load(tmp_path, json.dumps({"question": "who", "context": CONTEXT, "answers": [{"text": "two"}, {"text": ""}]}) + "\n")


def test_answers_in_brackets_are_texts(tmp_path: Path) -> None:
    table = "question,context,answer\nwhich?,see [1] and [2],[1]\nand?,see [1] and [2],[2]\n"
    assert load(tmp_path, table, "rows.csv").columns["answers"] == [[("[1]", None)], [("[2]", None)]]


def test_answers_of_impossible_questions_are_ignored_with_a_warning(tmp_path: Path) -> None:
    found = load(tmp_path, jsonl(FIRST | IMPOSSIBLE, SECOND | IMPOSSIBLE))
    assert found.columns["answers"] == [[], []]
    (warning,) = found.remarks.warnings
    assert warning.startswith("2 questions marked is_impossible but with answers, which are ignored (")
    assert all(found.where(row) in warning for row in range(2))


@pytest.mark.parametrize(("mark", "told"), [(False, True), ("0", True), (None, False), (True, False)])
def test_a_question_without_answers_that_is_not_marked_so_is_told(tmp_path: Path, mark: Any, told: bool) -> None:
    found = load(tmp_path, jsonl(DICTS[0] | {"is_impossible": False}, DICTS[1] | {"is_impossible": mark}))
    assert len(found.columns["answers"][1]) == 0
    where = found.where(1)
    warning = f"1 question not marked is_impossible but without answers, read as impossible ({where})"
    assert found.remarks.warnings == ((warning,) if told else ())


def test_rows_to_predict_may_share_an_id_and_lack_a_context(tmp_path: Path) -> None:
    assert len(load(tmp_path, jsonl(*[FIRST | {"context": ""}] * 2), to_predict=True)) == 2


def test_rows_without_id_are_numbered_and_split_by_context(tmp_path: Path) -> None:
    found = load(tmp_path, jsonl(*[{"question": "who", "context": "x", "answers": []}] * 2))
    assert found.columns["id"] == ["0", "1"]
    assert QuestionAnswering().split_by(found) == (("context",), None)
    assert QuestionAnswering().labels_of(examples_of(ENGLISH, ("why", CONTEXT, []))) == [("answered",), ("no answer",)]
    assert QuestionAnswering().labels_of(load(tmp_path, jsonl(FIRST), to_predict=True)) == [()]


@pytest.mark.parametrize("form", ["table", "lists"])
def test_answers_without_a_start_are_at_their_first_occurrence(tmp_path: Path, tokenizer: Tokenizer, form: str) -> None:
    context = "one two one three"
    if form == "table":
        found = load(
            tmp_path, f"question,context,answer\nwho,{context},one\nwhat,{context},three\nwhy,{context},\n", "rows.csv"
        )
    else:
        found = load(tmp_path, jsonl(*(FIRST | {"id": n, "context": context, "answers": a} for n, a in enumerate(LISTS))))
    assert [[text for text, _ in answers][:1] for answers in found.columns["answers"]] == [["one"], ["three"], []]
    features, remarks = task_of(unanswerable=True).encode(found, tokenizer, max_length=16)
    assert labels_of(features) == [(3, 3), (6, 6), (0, 0)]
    assert counts_in(remarks) == [2, 1]


LISTS = ["one", "two"], ["three"], []
FULL = {"question": "who", "context": CONTEXT, "answers": {"text": ["two"], "answer_start": [4]}}


@pytest.mark.parametrize(
    ("content", "name", "line"),
    [
        (jsonl(FULL, FULL | {"question": None}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"context": 7}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"context": ""}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": None}), "rows.jsonl", ":2"),
        (jsonl(FULL | {"answers": "two"}, FULL | {"answers": None}), "rows.jsonl", ":2"),
        (jsonl(*[FULL] * 3, FULL | {"answers": "two"}), "rows.jsonl", ":4"),  # forms are not mixed: the odd one is blamed
        (jsonl(*[FULL | {"answers": "two"}] * 2, FULL), "rows.jsonl", ":3"),
        (jsonl(FULL | {"answers": "two"}, FULL | {"answers": []}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": ["two", 3]}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": ["two", " "]}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": {"text": ["two"], "answer_start": []}}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"is_impossible": "perhaps"}), "rows.jsonl", ":2"),
        ("question,context,answer\nwho,x,\"{'text': array(['x'], dtype=object)}\"\n", "rows.csv", ":2"),
        ("question,context,gold,answer_start\nwho,x,x,0\n", "rows.csv", ""),  # which is no column of answers
        (jsonl(FULL, FULL | {"answers": {"text": ["two", "one"], "answer_start": 4}}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": {"answer_start": [4]}}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": [{"text": "", "answer_start": 4}]}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": [{"text": 2, "answer_start": 4}]}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": [{"text": "two", "answer_start": "four"}]}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": [{"text": "two", "answer_start": None}]}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": [{"text": "two", "answer_start": True}]}), "rows.jsonl", ":2"),
        (jsonl(FULL, FULL | {"answers": [{"text": "two", "answer_start": 4.5}]}), "rows.jsonl", ":2"),
        (jsonl(*(FULL | {"id": name} for name in "xyx")), "rows.jsonl", ":3"),
        (squad(asked("a", "two"), asked("a", "one")), "rows.json", ""),
        ("", "rows.json", ""),
        (" \n", "page.txt", ""),
        ("question,context,answer,answer_start\n", "rows.csv", ""),
        ('{"question": "who", "context": "x", "ans', "rows.jsonl", ":1"),
        (squad(asked("a", "two")).partition("answer_st")[0], "rows.json", ":1"),
        ("question,answer,answer_start\nwho,x,0\n", "rows.csv", ""),
        ("context,answer,answer_start\nx,x,0\n", "rows.csv", ""),
        ("question,context\nwho,x\n", "rows.csv", ""),
    ],
)
def test_faults_of_data_are_named_by_row(tmp_path: Path, content: str, name: str, line: str) -> None:
    with pytest.raises(DataError) as error:
        load(tmp_path, content, name)
    assert error.value.where == f"{tmp_path / name}{line}"
    assert ("column 'answers' holds null; expected" in error.value.what) == ('"answers": null' in content)


def test_an_id_that_occurs_twice_is_named_before_rows_are_held_out(tmp_path: Path) -> None:
    """The line is that of the file, not of the part that is trained on."""
    rows = [FULL | {"id": str(number), "context": f"{CONTEXT} {number}"} for number in range(20)]
    path = tmp_path / "rows.jsonl"
    path.write_text(jsonl(*rows, FULL | {"id": "3"}), encoding="utf-8")
    with pytest.raises(DataError, match=r"the id '3' occurs twice, first at .*:4") as error:
        read_splits(QuestionAnswering(train=str(path), validation="50%").resolved())
    assert error.value.where == f"{path}:21"


def test_questions_with_the_id_of_another_can_be_left_out(tmp_path: Path) -> None:
    content = jsonl(*(FULL | {"id": name} for name in "xyx"), FULL | {"id": "z", "context": ""})
    examples = load(tmp_path, content, on_error="skip")
    assert examples.columns["id"] == ["x", "y"]
    assert ["the id 'x' occurs twice" in each for each in examples.remarks.left_out] == [True, False]
    numbered = jsonl(FULL | {"id": "1"}, FULL, FULL | {"id": ""}, FULL | {"id": "1"})  # the second row's number is taken
    assert load(tmp_path, numbered, on_error="skip").columns["id"] == ["1", "1_", "2"]
    broken = jsonl(FULL, FULL | {"context": ""}, "{", FULL, FULL | {"id": "0"}).replace('"{"', "{")
    assert load(tmp_path, broken, on_error="skip").columns["id"] == ["0_", "3", "0"], "numbered as in the file"
    assert load(tmp_path, broken.replace(', "id": "0"', ""), on_error="skip").columns["id"] == ["0", "3", "4"], "without ids"
    whole = jsonl(*(FULL | {"context": f"{CONTEXT} {row}"} for row in range(12)))
    for rows in (whole, whole + "{\n"):  # a row that is left out changes no id of rows that are held out
        (tmp_path / "twelve.jsonl").write_text(rows, encoding="utf-8")
        recipe = QuestionAnswering(train=str(tmp_path / "twelve.jsonl"), validation="25%", on_error="skip").resolved()
        held_out = recipe.standardize(read_splits(recipe).rows["validation"], labelled=True).columns
        assert held_out["id"] == [context.split()[-1] for context in held_out["context"]]
    both = jsonl(FULL | {"id": "1"}, FULL, FULL | {"id": "1_"})
    assert load(tmp_path, both).columns["id"] == ["1", "1__", "1_"]
    assert load(tmp_path, content, to_predict=True, on_error="skip").columns["id"] == [*"xyxz"]


@pytest.mark.parametrize(
    ("name", "text", "question", "is_page"),
    [
        ("page.txt", "Title\tby me\n\nIt rained.\tMuch.\n", "Did it rain?", True),
        ("page", "Title\tby me\nIt rained.\n", "Did it rain?", True),
        ("page.txt", "Title\tby me\nIt rained.\n", None, True),  # and so asks for a question
        ("rows.txt", "context\tquestion\nIt rained.\tDid it?\n", None, False),
        ("rows.txt", "context\tasked \r\nIt rained.\tDid it?\r\n", "asked", False),
        ("rows", "page\tquestion\nIt rained.\tDid it?\n", None, False),
        ("rows.tsv", "context\tasked\nIt rained.\tDid it?\n", "Did it rain?", False),
        ("rows", '{"asked": "Did it?",\t"context": "It rained."}\n', "asked", False),
    ],
)
def test_a_page_may_contain_tabs(tmp_path: Path, name: str, text: str, question: str | None, is_page: bool) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    recipe = QuestionAnswering(question=question)
    if is_page and question is None:
        with pytest.raises(UsageError) as error:
            recipe.read_file(tmp_path / name)
        assert error.value.where == str(tmp_path / name)
    elif is_page:
        assert recipe.read_file(tmp_path / name).columns == {question: [question], "context": [text]}
    else:
        assert {"question", "asked"} & set(recipe.read_file(tmp_path / name).columns)
        if not text.startswith("{"):
            assert list(recipe.read_file(tmp_path / name, columns=("a", "b")).columns) == ["a", "b"]


# --- real data -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """A function that loads a published vocabulary."""

    def load(name: str) -> Tokenizer:
        folder = tmp_path_factory.mktemp(name)
        for path in sorted((data_dir.parent / "vocab" / name).iterdir()):
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            (folder / path.name.removesuffix(".gz")).write_bytes(content)
        return Tokenizer.load(folder)

    return load


def opened(name: str, **overrides: Path) -> tuple[QuestionAnsweringTask, Examples]:
    """A recipe's task and the examples of its validation split, to which it is fitted."""
    recipe = load_recipe(name).overridden(overrides).resolved()
    rows = read_splits(recipe, ["validation"]).rows["validation"]
    task = Task.fit(recipe, rows)
    return task, task.examples(rows, labelled=True)


def oracle(features: Features) -> dict[str, list[np.ndarray]]:
    """Logits that say what the labels say, and nothing in windows without the answer."""
    found: dict[str, list[np.ndarray]] = {"start": [], "end": []}
    for term, logits in found.items():
        for at in range(len(features)):
            place = features.labels[term][at][0]
            logits.append(np.zeros(len(features.input_ids[at]), dtype=np.float32))
            if place >= 0:
                logits[-1][place] = 9.0
    return found


def test_squad_is_read_and_answered(data_dir: Path, published: Callable[[str], Tokenizer]) -> None:
    task, rows = opened("squad", data=data_dir / "SQuAD")
    known = [*zip(rows.columns["context"], rows.columns["answers"], strict=True)]
    assert (len(rows), sum(len(answers) for _, answers in known), len(set(rows.columns["context"]))) == (10570, 34726, 2067)
    assert all(context.startswith(*answer) for context, answers in known for answer in answers)
    tokenizer = published("bert-base-uncased")
    features, remarks = task.encode(rows, tokenizer)
    too_long = tokenizer.pieces([answers[0][0] for _, answers in known]).lengths > 30
    assert counts_in(remarks) == [10833, too_long.sum()]  # windows, as run_squad counts them with 384 and 128
    assert too_long.any()
    found = task.score(task.decode(oracle(features), features, rows), task.truth(rows))
    # These answers begin or end within a token: "8" in "18", "20,980" behind a pound sign.
    assert found["exact_match"] == 1 - 27 / 10570
    assert found["f1"] > 0.998


def test_half_of_squad_2_is_read_and_answered(data_dir: Path, published: Callable[[str], Tokenizer]) -> None:
    task, rows = opened("squad_v2", validation=data_dir / "SQuAD" / "dev-v2.0.half.json.gz")
    answers = rows.columns["answers"]
    assert (len(rows), sum(not accepted for accepted in answers), sum(map(len, answers))) == (6078, 3168, 10052)
    rows = rows.select(range(1500, 2700))
    features, _ = task.encode(rows, published("bert-base-uncased"))
    outputs, truth = oracle(features), task.truth(rows)
    found = task.score(task.decode(outputs, features, rows), truth)
    assert found["NoAns_exact"] == found["NoAns_f1"] == 1
    assert found["HasAns_exact"] == 1 - 5 / 504  # these are longer than 30 tokens
    assert found["best_exact"] == pytest.approx(found["exact"])
    # A model that always doubts is put right by its threshold.
    for logits in (*outputs["start"], *outputs["end"]):
        logits[0] += 20
    predictions = task.decode(outputs, features, rows)
    doubting = task.score(predictions, truth)
    assert doubting["exact"] == pytest.approx(696 / 1200)
    assert doubting["best_exact"] == pytest.approx(found["exact"])
    tuned = task.tuned(predictions, truth)
    decided = tuned.decide(predictions)
    assert decided == tuned.decode(outputs, features, rows)
    for scorer in (tuned, task):  # by the threshold, and by the answers given
        assert scorer.score(decided, truth)["f1"] == pytest.approx(doubting["best_f1"])


@pytest.mark.parametrize(("split", "answers", "misplaced", "near"), [("dev", 9657, 200, 7), ("trial", 1002, 5, 5)])
def test_misplaced_answers_of_cmrc_are_found(data_dir: Path, split: str, answers: int, misplaced: int, near: int) -> None:
    task, rows = opened("cmrc2018", validation=data_dir / "CMRC2018" / f"cmrc2018_{split}.json.gz")
    assert (task.matching, task.unanswerable) == ("characters", False)
    columns = zip(rows.columns["context"], rows.columns["answers"], strict=True)
    known = [find_answer(context, text, start).how for context, own in columns for text, start in own]
    assert len(known) == answers
    assert sum(how is not None for how in known) == misplaced
    assert known.count(MOVED) == near


def test_cmrc_is_answered(data_dir: Path, published: Callable[[str], Tokenizer]) -> None:
    task, rows = opened("cmrc2018", validation=data_dir / "CMRC2018" / "cmrc2018_dev.json.gz")
    rows = rows.select(range(1000))
    features, remarks = task.encode(rows, published("bert-base-chinese"))
    assert counts_in(remarks) == [len(features), 3, 20]  # answer_start is wrong, over 30 tokens; first answers all occur
    found = task.score(task.decode(oracle(features), features, rows), task.truth(rows))
    assert found["exact_match"] == 1 - 20 / 1000  # these are longer than 50 tokens
    assert found["f1"] > 0.98


# --- commands ------------------------------------------------------------------------------------------------------------

PAGE = "[bold]The page[/bold]\n\ngood movie in the city . the man saw it late\n"
ROWS = [("who", word, CONTEXT.index(word)) for word in WORDS[:4]] + [("what", "", "")] * 2


@pytest.fixture(scope="module")
def run(make_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table with its own names of columns, in which some questions have no answer."""
    from bertkit.cli import main

    folder = tmp_path_factory.mktemp("answers")
    table = "".join(f"{question},{CONTEXT},{text},{start}\n" for question, text, start in ROWS)
    (folder / "rows.csv").write_text(f"q,page,said,answer_start\n{table}", encoding="utf-8")
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)
    files = ("--train", folder / "rows.csv", "--validation", folder / "rows.csv", "-m", model, "-o", folder / "run")
    names = ("--question", "q", "--context", "page", "--answers", "said")
    steps = "--max-steps 2 --batch-size 4 --max-length 48 --precision fp32 --device cpu --no-baselines".split()
    assert main(list(map(str, ("finetune", "question-answering", *files, *names, *steps)))) == 0
    return folder / "run"


def test_a_run_opens_in_transformers_with_equal_logits(run_bertkit, run: Path, tmp_path: Path) -> None:
    import torch

    question, context = "who saw the movie", "good movie in the city . the man saw it late"
    (tmp_path / "ask.jsonl").write_text(jsonl({"q": question, "page": context}), encoding="utf-8")
    ran = run_bertkit("predict", run, "ask.jsonl", "--n-best", 20, "--device", "cpu")
    assert ran.code == 0, ran.err
    nbest = json.loads(ran.out)["nbest"]
    assert len(nbest) > 10
    encoded = AutoTokenizer.from_pretrained(run)(question, context, return_tensors="pt", return_offsets_mapping=True)
    places = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        theirs = AutoModelForQuestionAnswering.from_pretrained(run).eval()(**encoded)
    inside = [at for at, segment in enumerate(encoded["token_type_ids"][0].tolist()) if segment and places[at][1]]
    for side, key, logits in ((0, "start", theirs.start_logits[0]), (1, "end", theirs.end_logits[0])):
        token_at = {places[at][side]: at for at in inside} | {None: 0}  # no answer is at [CLS]
        for candidate in nbest:
            assert candidate[f"{key}_logit"] == pytest.approx(float(logits[token_at[candidate[key]]]), abs=1e-4)


def test_the_threshold_is_tuned_saved_and_used(run_bertkit, run: Path, tmp_path: Path) -> None:
    state = json.loads((run / "run.json").read_text(encoding="utf-8"))
    best = state["best"]["scores"]["validation/best_f1_thresh"]
    block = json.loads((run / "config.json").read_text(encoding="utf-8"))["bertkit"]
    tuned = block["null_threshold"]
    assert (block["unanswerable"], block["matching"], best < tuned) == (True, "words", True)
    assert (state["task"]["matching"], state["task"]["null_threshold"]) == ("words", tuned)
    odds = {}
    for threshold in (tuned, -1e6, 1e6):
        options = () if threshold == tuned else ("--null-threshold", threshold)
        ran = run_bertkit("eval", run, "--json", *options, "--output", "eval")
        assert ran.code == 0, ran.err
        files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "eval").iterdir()}
        assert {name: text == "" for name, text in files["predictions"].items()} == {
            name: null > threshold for name, null in files["null_odds"].items()
        }
        odds[threshold] = files
        assert not any(best + 1e-3 < null < tuned + 1e-3 for null in files["null_odds"].values()), (
            "rounding changes no decision"
        )
        if threshold == tuned:
            assert json.loads(ran.out)["validation/best_f1"] == pytest.approx(state["best"]["scores"]["validation/best_f1"])
        elif threshold == -1e6:
            assert json.loads(ran.out)["validation/f1"] == pytest.approx(2 / 6)
    for folder in (run, run / "checkpoint-2"):  # the latter has no run.json: config.json is enough
        found = [json.loads(line) for line in run_bertkit("predict", folder, run.parent / "rows.csv").out.splitlines()]
        assert {str(row["id"]): row["answer"] for row in found} == odds[tuned]["predictions"]


def test_a_question_about_a_page(run_bertkit, run: Path, tmp_path: Path) -> None:
    """The text of --question is no column, even if it is the name of one."""
    (tmp_path / "page.txt").write_text(PAGE, encoding="utf-8")
    ran = run_bertkit("predict", run, "page.txt", "--question", "q", "--null-threshold", 1e6)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["question"], PAGE[found["start"] : found["end"]]) == ("q", found["answer"])
    assert found["answer"] != ""
    piped = run_bertkit("predict", run, "--question", "q", "--null-threshold", 1e6, stdin=PAGE.encode())
    assert piped.out == ran.out
    options = ("--max-query-length", 4, "--null-threshold", -1e6)
    ran = run_bertkit("predict", run, "page.txt", "--question", "q " * 9, *options)
    assert (ran.code, json.loads(ran.out)["answer"], "4 tokens" in ran.err) == (0, "", True)
    ran = run_bertkit("predict", run, "page.txt")
    error = next(line for line in ran.err.splitlines() if line.startswith("error: "))
    assert (ran.code, error.endswith(" (page.txt)")) == (2, True)
    ran = run_bertkit("predict", run, "--split", "test")
    assert (ran.code, f"hint: name the file itself: bertkit predict {run} FILE" in ran.err) == (2, True), ran.err


def test_rows_to_predict_without_a_question_or_a_context_are_counted(run_bertkit, run: Path, tmp_path: Path) -> None:
    asked = (("who", CONTEXT), ("", CONTEXT), ("who", None), ("who", " "), ("", ""), ("", None))
    (tmp_path / "ask.jsonl").write_text(jsonl(*({"q": question, "page": page} for question, page in asked)), encoding="utf-8")
    ran = run_bertkit("predict", run, "ask.jsonl", "--on-error", "skip", "--output", "said.jsonl", "--null-threshold", 1e6)
    told = "skipped 2 rows: ", "4 rows, 2 rows without a question, 2 rows without a context, ", "wrote 4 predictions to "
    assert (ran.code, [each in ran.err for each in told]) == (0, [True] * 3), ran.err


def test_dry_run_shows_targets_and_truncated_questions(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    """No answer of the first rows is found: they are not trained on, and not shown."""
    lost = [asked(name, "six", 90, "who what never shown") for name in "ab"]
    long = asked("d", "one two", question="who what where why")
    (tmp_path / "train.json").write_text(squad(*lost, long, asked("c", "one two")), encoding="utf-8")
    files = ("--train", "train.json", "--validation", "train.json", "-m", make_model_dir(), "-o", "run", "--device", "cpu")
    options = ("--max-length", 8, "--doc-stride", 2, "--max-query-length", 2, "--dry-run")
    ran = run_bertkit("finetune", "squad", *files, *options)
    assert ran.code == 0, ran.err
    shown = [line.strip() for line in ran.err.splitlines()]
    assert shown.count("cut by --max-query-length: where why") == 1
    assert not any("never shown" in line for line in shown)
    assert any("one[answer starts] two[answer ends]" in line for line in shown)


@pytest.mark.e2e
def test_rows_without_something_to_learn_take_no_step(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    there = [{"question": "who", "context": "one two three", "answers": [{"text": "two", "answer_start": 4}]}] * 5
    lost = [{"question": "who", "context": "one two three", "answers": [{"text": "six", "answer_start": 4}]}] * 6
    for name, rows in (("train", [*there, *lost]), ("dev", there)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lengths = ("--max-length", 32, "--doc-stride", 8, "--max-query-length", 8)
    options = (*lengths, "--batch-size", 2, "--device", "cpu", "--no-baselines")
    files = ("--train", "train.jsonl", "--validation", "dev.jsonl", "-m", tiny_model_dir, "-o", "run")
    ran = run_bertkit("finetune", "question-answering", *files, *options)
    assert ran.code == 0, ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["data"]["train"]["rows"] == 5
    assert run["chosen"]["by"].startswith("5 rows")
    assert "5 features / batch_size 2 = 3 steps per epoch" in ran.err
    assert "6 answers not found" in ran.err
    assert "on 5 rows of" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8").replace("\n", " ")


def test_folds_without_unanswerable_questions_are_not_compared_with_others() -> None:
    with_some, without = (QuestionAnsweringTask(recipe=QuestionAnswering(), unanswerable=some) for some in (True, False))
    assert with_some.scored_with([with_some]).unanswerable
    with pytest.raises(ModelError) as error:
        with_some.scored_with([with_some, without])
    assert "--unanswerable" in str(error.value.hint)
