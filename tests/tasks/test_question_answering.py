"""Question answering: windows, labels and answers against hand-worked cases, transformers and plain searches; the commands."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from bertkit.config import filled
from bertkit.errors import DataError, UsageError
from bertkit.features import Features, Ragged
from bertkit.readers import Examples
from bertkit.tasks import Prediction, QuestionAnswering, QuestionAnsweringTask, Task, accuracy
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.question_answering.answers import best_answers
from bertkit.tasks.question_answering.windows import NEAR, find_answer
from bertkit.tasks.splits import read_splits
from bertkit.text.tokenizer import Tokenizer

WORDS = "one two three good bad great poor movie film book".split()
CONTEXT = " ".join(WORDS)


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


@pytest.fixture(scope="session")
def published(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """A function that loads a published vocabulary."""

    def load(name: str) -> Tokenizer:
        folder = tmp_path_factory.mktemp(name)
        for path in sorted((data_dir.parent / "vocab" / name).iterdir()):
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            (folder / path.name.removesuffix(".gz")).write_bytes(content)
        return Tokenizer.load(folder)

    return load


def examples_of(*rows: tuple[str, str, list[tuple[str, int]]]) -> Examples:
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
    assert features.rows is None
    assert remarks == ("6 windows",)
    assert [task.describe_targets(features, at) for at in (0, 1, 4)] == [
        [{0: "no answer here"}],
        [{5: "answer starts", 6: "answer ends"}],
        [{4: "answer"}],
    ]
    # The last window ends with the context, and no window is wholly inside another.
    nine = task.encode(examples_of(("who", " ".join(WORDS[:9]), [("one", 0)])), tokenizer, max_length=8)[0]
    assert [tokens_of(tokenizer, nine, at).split()[3:-1] for at in range(len(nine))] == [
        WORDS[0:4],
        WORDS[2:6],
        WORDS[4:8],
        WORDS[6:9],
    ]


def test_what_befalls_answers_is_counted(tokenizer: Tokenizer) -> None:
    task = task_of(doc_stride=4, max_query_length=2, unanswerable=True)
    rows = examples_of(
        ("who", "one two three", [("two", 4)]),
        ("who", "one two three", [("two", 5)]),
        ("who", "one two three", [("four", 4)]),
        ("who", "one two three", [("two ", 9 + NEAR)]),
        ("who", CONTEXT, [("good bad great poor movie", CONTEXT.index("good"))]),
        ("who what where", "one two three", []),
        (" ", "one two three", [("one", 0)]),
    )
    features, remarks = task.encode(rows, tokenizer, max_length=8)
    assert remarks == (
        "9 windows",
        "1 without a question",
        "1 questions longer than 2 tokens truncated",
        "1 answers found near their answer_start",
        "2 not found",
        "1 not within one window",
    )
    assert labels_of(features) == [(4, 4), (4, 4), (-100, -100), (-100, -100), (0, 0), (0, 0), (0, 0), (0, 0), (2, 2)]
    assert task.describe_targets(features, 2) == [{}]
    # Where every question has an answer, one without is no example of anything.
    features, _ = replace(task, unanswerable=False).encode(rows, tokenizer, max_length=8)
    assert labels_of(features)[-2:] == [(-100, -100), (2, 2)]
    features, remarks = task.encode(rows, tokenizer, max_length=8, labelled=False)
    assert (features.labels, len(remarks)) == ({}, 3)


def test_an_answer_within_a_word_is_that_word(tokenizer: Tokenizer) -> None:
    rows = examples_of(("who", "a goodish (film), x", [("film", 11)]), ("who", "one goodish two", [("oodi", 5)]))
    features, _ = task_of().encode(rows, tokenizer, max_length=32)
    (start, end), (first, last) = labels_of(features)
    assert tokens_of(tokenizer, features, 0).split()[start : end + 1] == ["film"]
    assert tokens_of(tokenizer, features, 1).split()[first] == "good"
    assert last > first


def test_characters_are_those_of_the_context_whatever_the_normalizer_does(tokenizer: Tokenizer) -> None:
    context = "Cafe\u0301 \u0130stanbul \U0001f600 na\u00efve \u5b57\u5b57 Film"
    rows = examples_of(("who", context, [("Film", context.index("Film"))]))
    features, _ = task_of().encode(rows, tokenizer, max_length=64)
    [(start, end)] = labels_of(features)
    begin = features.extras["context"][0][0]
    starts, ends = features.extras["starts"][0], features.extras["ends"][0]
    assert context[starts[start - begin] : ends[end - begin]] == "Film"
    pieces = [context[a:b] for a, b in zip(starts, ends, strict=True)]
    assert pieces[-3:] == ["\u5b57", "\u5b57", "Film"]


@pytest.mark.parametrize(("max_length", "doc_stride"), [(12, 3), (16, 5), (16, 100), (24, 7), (64, 16)])
def test_windows_are_those_of_transformers(
    tokenizer: Tokenizer, tiny_tokenizer_dir: Path, max_length: int, doc_stride: int
) -> None:
    """Whose stride is the overlap: what the room exceeds the step by."""
    oracle = AutoTokenizer.from_pretrained(tiny_tokenizer_dir)
    rng = np.random.default_rng(max_length)
    words = [*WORDS, "Goodish", "unreadable,", "(x)", "caf\u00e9"]
    rows = [
        (" ".join(rng.choice(WORDS, rng.integers(1, 6))), " ".join(rng.choice(words, rng.integers(1, 60)))) for _ in range(60)
    ]
    rows += [(question, rows[0][1]) for question, _ in rows[:5]]  # a context that several questions share
    task = task_of(doc_stride=doc_stride, max_query_length=50)
    features, _ = task.encode(examples_of(*((*row, []) for row in rows)), tokenizer, max_length=max_length, labelled=False)
    at = 0
    for row, (question, context) in enumerate(rows):
        room = max_length - 3 - len(oracle(question, add_special_tokens=False)["input_ids"])
        options = {"stride": room - min(doc_stride, room), "return_overflowing_tokens": True, "return_offsets_mapping": True}
        expected = oracle(question, context, truncation="only_second", max_length=max_length, **options)
        for ids, types, offsets, number in zip(
            expected["input_ids"], expected["token_type_ids"], expected["offset_mapping"], range(len(rows)), strict=False
        ):
            assert features.input_ids[at].tolist() == ids, (row, number)
            assert features.token_type_ids[at].tolist() == types
            assert features.examples[at] == row
            begin = features.extras["context"][at][0]
            found = list(zip(features.extras["starts"][at].tolist(), features.extras["ends"][at].tolist(), strict=True))
            assert found == [tuple(span) for span in offsets[begin:-1]]
            at += 1
    assert at == len(features)


@given(length=st.integers(0, 40), asked=st.integers(1, 5), max_length=st.integers(9, 30), doc_stride=st.integers(1, 40))
def test_every_token_is_in_some_window(tokenizer: Tokenizer, length: int, asked: int, max_length: int, doc_stride: int) -> None:
    context = " ".join(WORDS[at % 10] for at in range(length))
    rows = examples_of(("who " * asked, context, []))
    features, _ = task_of(doc_stride=doc_stride).encode(rows, tokenizer, max_length=max_length, labelled=False)
    begins = np.array([0, *np.cumsum([len(word) + 1 for word in context.split()])][:length])
    seen = [features.extras["starts"][at].tolist() for at in range(len(features))]
    assert sorted({start for window in seen for start in window}) == begins.tolist()
    assert (features.input_ids.lengths <= max_length).all()
    for before, after in pairwise(seen):
        assert after[0] == begins[min(len(begins) - 1, begins.tolist().index(before[0]) + min(doc_stride, len(before)))]
        assert after[-1] > before[-1]


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [("two", 4, 4), ("two", 5, 4), ("two", 3, 4), ("two", -1, 4), ("o", 2, 0), ("two", 99, -1), ("six", 4, -1), ("one", 0, 0)],
)
def test_answers_are_looked_for_near_their_start(text: str, start: int, found: int) -> None:
    assert find_answer("one two one two", text, start) == found


def test_the_nearest_place_wins_and_none_is_too_far() -> None:
    context = "x" + "." * 9 + "x" + "." * 5 + "x" + "." * 100 + "y"
    assert [find_answer(context, "x", start) for start in (3, 7, 12, 14, 16 + NEAR, 17 + NEAR)] == [0, 10, 10, 16, 16, -1]
    y = context.index("y")
    assert [find_answer(context, "y", y + shift) for shift in (-NEAR, -NEAR - 1, NEAR, NEAR + 1)] == [y, -1, y, -1]


# --- answers -------------------------------------------------------------------------------------------------------------


def random_logits(features: Features, seed: int) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {name: [rng.normal(size=n).astype(np.float32) * 3 for n in features.input_ids.lengths] for name in ("start", "end")}


def brute_force(
    outputs: dict[str, list[np.ndarray]], features: Features, example: int, n: int, longest: int
) -> list[tuple[float, int, int]]:
    """Every pair of one of the n best starts and n best ends of every window, one by one: score and characters, best first."""
    spans: dict[tuple[int, int], float] = {}
    for at in np.flatnonzero(features.examples == example).tolist():
        begin, starts, ends = features.extras["context"][at][0], features.extras["starts"][at], features.extras["ends"][at]
        s, e = (outputs[name][at][begin : begin + len(starts)] for name in ("start", "end"))
        pairs = [
            (i, j)
            for i in sorted(range(len(s)), key=lambda i: -s[i])[:n]
            for j in sorted(range(len(e)), key=lambda j: -e[j])[:n]
            if i <= j < i + longest
        ]
        for i, j in pairs or [(best := int(np.argmax(s + e)), best)]:
            span = int(starts[i]), int(ends[j])
            spans[span] = max(spans.get(span, -np.inf), float(s[i] + e[j]))
    return sorted(((score, *span) for span, score in spans.items()), reverse=True)[:n]


@pytest.mark.parametrize(("n", "longest", "doc_stride"), [(20, 30, 16), (5, 3, 4), (1, 1, 7), (3, 2, 100), (100, 100, 5)])
def test_the_n_best_are_those_of_a_search_over_all_pairs(tokenizer: Tokenizer, n: int, longest: int, doc_stride: int) -> None:
    rng = np.random.default_rng(n)
    contexts = [" ".join(rng.choice(WORDS, rng.integers(1, 50))) for _ in range(80)]
    rows = examples_of(*(("who when", context, []) for context in contexts))
    task = task_of(doc_stride=doc_stride, n_best_size=n, max_answer_length=longest, unanswerable=n % 2 == 0)
    features, _ = task.encode(rows, tokenizer, max_length=24, labelled=False)
    assert len(features) > 100
    outputs = random_logits(features, n)
    predictions = task.rows(task.decode(outputs, features, rows), rows)
    for row, (prediction, context) in enumerate(zip(predictions, contexts, strict=True)):
        expected = brute_force(outputs, features, row, n, longest)
        spans = [c for c in prediction["nbest"] if c["start"] is not None]
        assert [(c["start"], c["end"]) for c in spans] == [(start, end) for _, start, end in expected]
        assert [c["start_logit"] + c["end_logit"] for c in spans] == pytest.approx([score for score, *_ in expected], abs=1e-5)
        assert all(c["text"] == context[c["start"] : c["end"]] for c in spans)
        scores = [score for score, *_ in expected]
        if task.unanswerable:
            null = min(
                float(outputs["start"][at][0] + outputs["end"][at][0]) for at in np.flatnonzero(features.examples == row)
            )
            assert prediction["null_odds"] == pytest.approx(null - scores[0], abs=1e-5)
            assert prediction["answer"] == ("" if null > scores[0] else spans[0]["text"])
            scores = sorted([*scores, null], reverse=True)
        else:
            assert prediction["answer"] == spans[0]["text"]
        weights = np.exp(np.array(scores) - scores[0])
        assert [c["probability"] for c in prediction["nbest"]] == pytest.approx(list(weights / weights.sum()), abs=1e-5)


def test_an_answer_by_hand() -> None:
    """Two windows of one context; the second knows better, but says [CLS] loudest."""
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
    [found] = task.rows(task.decode(outputs, features, rows), rows)
    assert (found["id"], found["answer"], found["start"], found["end"]) == ("q0", "two three", 4, 13)
    assert [(c["text"], c["start_logit"], c["end_logit"]) for c in found["nbest"]] == [
        ("two three", 5, 3),
        ("two", 5, 1),
        ("three", 0, 4),
    ]
    weights = np.exp([8, 6, 4])
    assert found["probability"] == pytest.approx(weights[0] / weights.sum())
    assert "null_odds" not in found
    # The lower of 2 + 1 and 4 + 5 speaks for no answer, by 5 less than the best answer.
    task = replace(task, unanswerable=True)
    decoded = task.decode(outputs, features, rows)
    [found] = task.rows(decoded, rows)
    assert (found["null_odds"], found["answer"]) == (-5, "two three")
    assert [c["text"] for c in found["nbest"]] == ["two three", "two", "three", ""]
    weights = np.exp([8, 6, 4, 3])
    assert found["nbest"][3]["probability"] == pytest.approx(weights[3] / weights.sum())
    task = replace(task, null_threshold=-5.5)
    assert task.decide(decoded) == task.decode(outputs, features, rows)
    [found] = task.rows(task.decide(decoded), rows)
    assert (found["answer"], found["start"], found["end"]) == ("", None, None)
    assert found["probability"] == pytest.approx(weights[3] / weights.sum())


@given(data=st.data())
def test_answers_are_spans_of_their_contexts(tokenizer: Tokenizer, data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text(alphabet="ab \u0301\u00e9\u5b57\U0001f600.,\n", max_size=40), min_size=1, max_size=4))
    unanswerable = data.draw(st.booleans())
    task = task_of(
        n_best_size=data.draw(st.integers(1, 5)),
        max_answer_length=data.draw(st.integers(1, 4)),
        doc_stride=data.draw(st.integers(1, 9)),
        unanswerable=unanswerable,
    )
    rows = examples_of(*(("who", text, []) for text in texts))
    features, _ = task.encode(rows, tokenizer, max_length=12, labelled=False)
    predictions = task.decode(random_logits(features, 1), features, rows)
    for prediction, text in zip(task.rows(predictions, rows), texts, strict=True):
        json.dumps(prediction, allow_nan=False)
        for found in [c for c in prediction["nbest"] if c["start"] is not None]:
            assert 0 <= found["start"] < found["end"] <= len(text)
            assert found["text"] == text[found["start"] : found["end"]]
        if not tokenizer.pieces([text]).lengths[0]:
            assert (prediction["answer"], prediction["start"]) == ("", None)
        elif not unanswerable:
            assert prediction["answer"] != ""
        assert sum(c["probability"] for c in prediction["nbest"]) in (0, pytest.approx(1))


def test_no_examples_and_no_tokens() -> None:
    empty = Features(
        Ragged.of([[2, 3, 3]]),
        Ragged.of([[0, 0, 1]]),
        np.array([0]),
        extras={"context": Ragged.column([2]), "starts": Ragged.of([[]]), "ends": Ragged.of([[]])},
    )
    logits = [np.ones(3, np.float32)]
    found = best_answers({"start": logits, "end": logits}, empty, 1, n_best_size=3, max_answer_length=3)
    assert (found.scores == -np.inf).all()
    assert found.null_odds.tolist() == [0]


# --- scores --------------------------------------------------------------------------------------------------------------


def predicted(answer: str, null_odds: float | None = None, best: str | None = None) -> Prediction:
    text = answer if best is None else best
    nbest = [{"text": "", "start": None}, {"text": text, "start": 0}]
    return Prediction(answer, details={"null_odds": null_odds, "nbest": nbest})


def test_scores_of_answers_that_all_exist() -> None:
    rows = examples_of(("who", "x", [("red hot fire", 0), ("The redhot", 0)]), ("who", "x", [("cat", 0)]), ("who", "x", []))
    task = task_of(unanswerable=False)
    predictions = [predicted("red-hot fire"), predicted("a cat"), predicted("dog")]
    assert task.score(predictions, task.truth(rows)) == pytest.approx({"f1": (2 / 3 + 1) / 3, "exact_match": 1 / 3})
    assert task.tuned(predictions, task.truth(rows)) == task


def test_scores_where_there_may_be_no_answer() -> None:
    """Threshold 0 against the best one, which is 2: hand-worked, and as find_best_thresh gave it."""
    rows = examples_of(
        ("who", "x", [("cat", 0)]),
        ("who", "x", [("cat dog", 0)]),
        ("who", "x", []),
        ("who", "x", []),
        ("who", "x", [("cat", 0)]),
    )
    odds = [-3.0, -1.0, -2.0, 4.0, 2.0]
    best = ["cat", "cat mouse", "cat", "cat", "cat"]
    predictions = [predicted(text if null <= 0 else "", null, text) for text, null in zip(best, odds, strict=True)]
    task = task_of(unanswerable=True, matching="words")
    truth = task.truth(rows)
    expected = {
        "f1": 2.5 / 5,
        "exact": 2 / 5,
        "HasAns_exact": 1 / 3,
        "HasAns_f1": 1.5 / 3,
        "NoAns_exact": 1 / 2,
        "NoAns_f1": 1 / 2,
        "best_exact": 3 / 5,
        "best_exact_thresh": -3,
        "best_f1": 3.5 / 5,
        "best_f1_thresh": 2,
    }
    for before in (task, replace(task, null_threshold=0.0)):
        found = before.score(predictions, truth)
        assert next(iter(found)) == "best_f1"
        assert found == pytest.approx(expected)
    tuned = task.tuned(predictions, truth)
    assert tuned.null_threshold == 2
    gained = {"f1": 3.5 / 5, "exact": 3 / 5, "HasAns_exact": 2 / 3, "HasAns_f1": 2.5 / 3}
    assert tuned.score(predictions, truth) == pytest.approx(expected | gained)
    asked = replace(task, recipe=replace(task.recipe, null_threshold=1.0), null_threshold=1.0)
    assert asked.tuned(predictions, truth).null_threshold == 1


def test_a_model_without_a_recipe_is_scored_by_what_the_rows_say(tokenizer: Tokenizer) -> None:
    """Where one of them has no answer as SQuAD 2.0 scores, and else as 1.1; rows to predict say nothing."""
    task = task_of()
    both, one = (("who", CONTEXT, [("two", 4)]), ("why", CONTEXT, [])), (("who", CONTEXT, [("two", 4)]),)
    for rows, scores, files in (
        (both, ["best_f1", "best_f1_thresh"], ["predictions.json", "nbest_predictions.json", "null_odds.json"]),
        (one, ["f1", "exact_match"], ["predictions.json", "nbest_predictions.json"]),
    ):
        examples = examples_of(*rows)
        truth = task.truth(examples)
        features, _ = task.encode(examples, tokenizer, max_length=16)
        assert (-100, -100) not in labels_of(features)
        outputs = {name: [np.arange(len(ids), dtype=np.float32) for ids in features.input_ids] for name in ("start", "end")}
        predictions = task.decode(outputs, features, examples)
        assert list(task.score(predictions, truth))[:2] == scores
        assert list(task.files(predictions, truth, examples)) == files
        unlabelled = replace(examples, columns={name: examples.columns[name] for name in ("id", "question", "context")})
        assert "null_odds" not in task.decode(outputs, features, unlabelled)[0].details
        assert "null_odds" in replace(task, unanswerable=True).decode(outputs, features, unlabelled)[0].details


def test_the_best_f1_is_what_its_threshold_gives(tokenizer: Tokenizer) -> None:
    """Through decoding, with null odds of float32 that are alike in groups, and where holding all back is best."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        words = [WORDS[at] for at in rng.integers(0, 10, 12)]
        examples = examples_of(*(("who", CONTEXT, [(w, CONTEXT.index(w))] if rng.random() < 0.5 else []) for w in words))
        task = task_of(unanswerable=True, matching="words")
        features, _ = task.encode(examples, tokenizer, max_length=32)
        logits = [np.zeros(len(features.input_ids[at]), dtype=np.float32) for at in range(len(features))]
        for row in logits:
            row[3 + rng.integers(0, 10)] = 0.7  # the best answer
            row[0] = rng.integers(0, 3) * 0.7
        outputs, truth = {"start": logits, "end": logits}, task.truth(examples)
        predictions = task.decode(outputs, features, examples)
        before = task.score(predictions, truth)
        tuned = task.tuned(predictions, truth)
        decided = tuned.decide(predictions)
        assert decided == tuned.decode(outputs, features, examples)
        for scorer in (tuned, task):  # what is written scores what is said
            assert scorer.score(decided, truth)["f1"] == pytest.approx(before["best_f1"])
        assert before["best_f1"] >= before["f1"] - 1e-9


def test_what_the_training_data_settles() -> None:
    def fitted(*rows: tuple[str, str, list[tuple[str, int]]], **options: Any) -> tuple[bool | None, str]:
        task = QuestionAnsweringTask.fit_examples(filled(QuestionAnswering(**options)), examples_of(*rows), None, {})
        return task.unanswerable, task.matching

    english, chinese = ("who", CONTEXT, [("two", 4)]), ("谁", "第一章 film 北京大学", [("北京", 9)])
    assert fitted(english, english) == (False, "words")
    assert fitted(chinese, ("谁", "北京", [])) == (True, "characters")
    assert fitted(chinese, unanswerable=True, matching="words") == (True, "words")
    rows = examples_of(("谁", "在1967年5月", [("1967年", 1)]))
    assert task_of().score([predicted("在1967年5月")], task_of().truth(rows))["f1"] == pytest.approx(4 / 7)


# --- reading -------------------------------------------------------------------------------------------------------------


def load(tmp_path: Path, content: Any, name: str = "rows.jsonl", *, to_predict: bool = False, **options: Any) -> Examples:
    text = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
    (tmp_path / name).write_text(text, encoding="utf-8")
    recipe = QuestionAnswering(**options)
    return recipe.standardize(recipe.read_file(tmp_path / name), labelled=not to_predict)


def squad(*questions: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def asked(id: str, text: str | None = None, start: int | None = None, question: str = "who") -> dict[str, Any]:
    """A question of SQuAD's JSON, about CONTEXT; without text one that has no answer."""
    place = CONTEXT.find(text) if text and start is None else start
    answers = [{"text": text, "answer_start": place}] if text else []
    return {"id": id, "question": question, "answers": answers, "is_impossible": not answers}


def test_one_data_set_in_every_form(tmp_path: Path) -> None:
    expected = {
        "id": ["a", "b"],
        "question": ["who", "what"],
        "context": [CONTEXT, CONTEXT],
        "answers": [[("two", 4)], []],
    }
    first = {"id": "a", "question": "who", "context": CONTEXT}
    second = {"id": "b", "question": "what", "context": CONTEXT}
    dicts = {"answers": {"text": ["two"], "answer_start": [4]}}, {"answers": {"text": [], "answer_start": []}}
    lists = {"answers": [{"text": "two", "answer_start": 4}]}, {"answers": []}
    nested = json.dumps(squad(asked("a", "two"), asked("b", question="what")))
    assert load(tmp_path, nested, "rows.json").columns == expected
    for one, other in (dicts, lists):
        assert load(tmp_path, [first | one, second | other]).columns == expected
    table = f"id,question,context,answer,answer_start\na,who,{CONTEXT},two,4\nb,what,{CONTEXT},,\n"
    assert load(tmp_path, table, "rows.csv").columns == expected
    own = table.replace("question", "q", 1).replace("context", "page", 1).replace("answer,", "said,", 1)
    assert load(tmp_path, own, "rows.csv", question="q", context="page", answers="said").columns == expected
    hub_rows = [{**first, "title": "t", **dicts[0]}, {**second, "title": "t", **dicts[1]}]
    recipe = QuestionAnswering(dataset=lambda split: hub_rows).resolved()
    assert recipe.standardize(read_splits(recipe).rows["train"], labelled=True).columns == expected


def test_rows_without_id_are_numbered(tmp_path: Path) -> None:
    found = load(tmp_path, [{"question": "who", "context": "x", "answers": []}] * 2)
    assert found.columns["id"] == ["0", "1"]


def test_a_context_stays_on_one_side(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "context": f"context {n // 5}", "answers": []} for n in range(100)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rows = read_splits(QuestionAnswering(train=str(tmp_path / "rows.jsonl"), validation="20%").resolved()).rows
    train, held_out = (set(rows[split].columns["context"]) for split in ("train", "validation"))
    assert not train & held_out
    assert len(held_out) == 4


FULL = {"question": "who", "context": CONTEXT, "answers": {"text": ["two"], "answer_start": [4]}}
FULL = {"question": "who", "context": CONTEXT, "answers": {"text": ["two"], "answer_start": [4]}}


@pytest.mark.parametrize(
    "row",
    [
        {"question": None},
        {"context": 7},
        {"context": ""},
        {"answers": None},
        {"answers": ["two", 3]},
        {"answers": ["two", " "]},
        {"answers": {"text": ["two"], "answer_start": []}},
        {"answers": [{"text": "", "answer_start": 4}]},
        {"answers": [{"text": "two", "answer_start": "four"}]},
        {"answers": [{"text": "two", "answer_start": None}]},
    ],
)
def test_30_rows_that_lack_something(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(DataError) as error:
        load(tmp_path, [FULL, FULL | row])
    assert error.value.where == f"{tmp_path / 'rows.jsonl'}:2"
    assert error.value.hint


@pytest.mark.parametrize(
    ("content", "name", "line"),
    [
        ("", "rows.json", ""),
        ("question,context,answer,answer_start\n", "rows.csv", ""),
        ('{"question": "who", "context": "x", "ans', "rows.jsonl", ":1"),
        (json.dumps(squad(asked("a", "two"))).partition("answer_st")[0], "rows.json", ":1"),
        ("question,answer,answer_start\nwho,x,0\n", "rows.csv", ""),
        ("question,context\nwho,x\n", "rows.csv", ""),
    ],
)
def test_28_and_29_files_that_are_broken(tmp_path: Path, content: str, name: str, line: str) -> None:
    with pytest.raises(DataError) as error:
        load(tmp_path, content, name)
    assert error.value.where == f"{tmp_path / name}{line}"


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
def test_a_page_may_hold_tabs(tmp_path: Path, name: str, text: str, question: str | None, is_page: bool) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    task = QuestionAnswering(question=question)
    if is_page and question is None:
        with pytest.raises(UsageError):
            task.read_file(tmp_path / name)
    elif is_page:
        assert task.read_file(tmp_path / name).columns == {question: [question], "context": [text]}
    else:
        assert {"question", "asked"} & set(task.read_file(tmp_path / name).columns)
        if not text.startswith("{"):
            assert list(task.read_file(tmp_path / name, columns=("a", "b")).columns) == ["a", "b"]


def test_38_two_rows_of_one_id(tmp_path: Path) -> None:
    place = tmp_path / "rows.jsonl"
    with pytest.raises(DataError, match="'x'") as error:
        load(tmp_path, [FULL | {"id": "x"}, FULL | {"id": "y"}, FULL | {"id": "x"}])
    assert error.value.where == f"{place}:3"
    assert f"{place}:1" in error.value.what
    with pytest.raises(DataError, match="'a'"):
        load(tmp_path, json.dumps(squad(asked("a", "two"), asked("a", "one"))), "rows.json")
    assert len(load(tmp_path, [FULL | {"id": "x"}] * 2, to_predict=True)) == 2


def test_a_question_that_leaves_no_room(tokenizer: Tokenizer) -> None:
    rows = examples_of(("who what why", "one", []))
    with pytest.raises(UsageError, match="--max-length"):
        task_of().encode(rows, tokenizer, max_length=6)
    assert len(task_of().encode(rows, tokenizer, max_length=7, labelled=False)[0]) == 1


# --- real data -----------------------------------------------------------------------------------------------------------


def opened(name: str, **typed: Path) -> tuple[QuestionAnsweringTask, Examples]:
    """A recipe's task and the examples of its validation split, to which it is fitted."""
    recipe = load_recipe(name).overridden(typed).resolved()
    rows = read_splits(recipe, ["validation"]).rows["validation"]
    task = Task.fit(recipe, rows)
    return task, task.examples(rows, labelled=True)


def oracle(features: Features) -> dict[str, list[np.ndarray]]:
    """Logits that say what the labels say, and in windows without the answer nothing."""
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
    assert len(rows) == 10570
    assert sum(map(len, rows.columns["answers"])) == 34726
    assert len(set(rows.columns["context"])) == 2067
    assert all(
        context.startswith(text, start)
        for context, answers in zip(rows.columns["context"], rows.columns["answers"], strict=True)
        for text, start in answers
    )
    features, remarks = task.encode(rows, published("bert-base-uncased"))
    assert remarks == ("10833 windows",)  # as run_squad counts them, with 384 and 128
    found = task.score(task.decode(oracle(features), features, rows), task.truth(rows))
    # 27 answers begin or end within a token: "8" in "18", "20,980" behind a pound sign.
    assert found["exact_match"] == 1 - 27 / 10570
    assert found["f1"] > 0.998


def test_half_of_squad_2_is_read_and_answered(data_dir: Path, published: Callable[[str], Tokenizer]) -> None:
    task, rows = opened("squad_v2", validation=data_dir / "SQuAD" / "dev-v2.0.half.json.gz")
    assert len(rows) == 6078
    assert sum(not answers for answers in rows.columns["answers"]) == 3168
    assert sum(map(len, rows.columns["answers"])) == 10052
    features, _ = task.encode(rows, published("bert-base-uncased"))
    outputs, truth = oracle(features), task.truth(rows)
    found = task.score(task.decode(outputs, features, rows), truth)
    assert found["NoAns_exact"] == found["NoAns_f1"] == 1
    assert found["HasAns_exact"] == 1 - 6 / 2910  # which are longer than 30 tokens
    assert found["best_exact"] == pytest.approx(found["exact"])
    # A model that always doubts is put right by its threshold.
    for name in ("start", "end"):
        for logits in outputs[name]:
            logits[0] += 20
    predictions = task.decode(outputs, features, rows)
    doubting = task.score(predictions, truth)
    assert doubting["exact"] == pytest.approx(3168 / 6078)
    assert doubting["best_exact"] == pytest.approx(found["exact"])
    tuned = task.tuned(predictions, truth)
    assert tuned.score(tuned.decide(predictions), truth)["f1"] == pytest.approx(doubting["best_f1"])


@pytest.mark.parametrize(("split", "answers", "misplaced", "near"), [("dev", 9657, 200, 7), ("trial", 1002, 5, 5)])
def test_cmrc_is_read_and_its_misplaced_answers_counted(
    data_dir: Path, published: Callable[[str], Tokenizer], split: str, answers: int, misplaced: int, near: int
) -> None:
    task, rows = opened("cmrc2018", validation=data_dir / "CMRC2018" / f"cmrc2018_{split}.json.gz")
    known = [
        (text, start, find_answer(context, text, start))
        for context, its in zip(rows.columns["context"], rows.columns["answers"], strict=True)
        for text, start in its
    ]
    assert len(known) == answers
    assert sum(found != start or found < 0 for _, start, found in known) == misplaced
    assert sum(found not in (start, -1) for _, start, found in known) == near
    if split == "trial":
        return
    features, remarks = task.encode(rows, published("bert-base-chinese"))
    # First answers all stand somewhere.
    assert remarks == (f"{len(features)} windows", "3 answers found near their answer_start")
    found = task.score(task.decode(oracle(features), features, rows), task.truth(rows))
    assert found["exact_match"] == 1 - 32 / 3219  # which are longer than 50 tokens
    assert found["f1"] > 0.99


# --- commands ------------------------------------------------------------------------------------------------------------

PAGES = ["good movie in the city . the man saw it late", "the river runs by a new city , one two three", CONTEXT]
DATA = squad(
    asked("a", "bad great"),
    asked("b", "movie film"),
    asked("c", "one"),
    asked("d", "book", 200),  # nowhere near
    asked("e", "good", CONTEXT.index("good") + 2),
)
DATA_2 = squad(asked("a", "bad great"), asked("b", "movie film"), asked("c"), asked("d"))


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertModel", seed=21, initializer_range=0.5)


def finetune(run_bertkit: Callable[..., Any], recipe: str, model: Path, data: Any, *options: Any) -> tuple[dict[str, Any], str]:
    Path("train.json").write_text(json.dumps(data), encoding="utf-8")
    settings = ("--max-steps", 2, "--batch-size", 4, "--max-length", 16, "--doc-stride", 4, "--precision", "fp32")
    files = ("--train", "train.json", "--validation", "train.json", "--device", "cpu")
    ran = run_bertkit("finetune", recipe, *files, "-m", model, "-o", "run", *settings, *options)
    assert ran.code == 0, ran.err
    return json.loads(Path("run/run.json").read_text(encoding="utf-8")), ran.err


def test_a_run_opens_in_transformers_with_equal_logits(run_bertkit, tmp_path: Path, model: Path) -> None:
    import torch
    import transformers

    finetune(run_bertkit, "squad", model, DATA, "--max-length", 64)
    question, context = "who saw the movie", PAGES[0]
    (tmp_path / "ask.jsonl").write_text(json.dumps({"question": question, "context": context}) + "\n", encoding="utf-8")
    ran = run_bertkit("predict", "run", "ask.jsonl", "--precision", "fp32", "--device", "cpu")
    assert ran.code == 0, ran.err
    nbest = json.loads(ran.out)["nbest"]
    assert len(nbest) > 10

    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained("run").eval()
    encoded = AutoTokenizer.from_pretrained("run")(question, context, return_tensors="pt", return_offsets_mapping=True)
    places = [tuple(place) if segment else None for place, segment in zip(
        encoded.pop("offset_mapping")[0].tolist(), encoded["token_type_ids"][0].tolist(), strict=True)]  # fmt: skip
    with torch.no_grad():
        found = theirs(**encoded)
    starts = {place[0]: at for at, place in enumerate(places) if place and place[1]}
    ends = {place[1]: at for at, place in enumerate(places) if place and place[1]}
    for candidate in nbest:
        assert candidate["start_logit"] == pytest.approx(float(found.start_logits[0, starts[candidate["start"]]]), abs=1e-4)
        assert candidate["end_logit"] == pytest.approx(float(found.end_logits[0, ends[candidate["end"]]]), abs=1e-4)


def test_squad_from_file_to_answers(run_bertkit, tmp_path: Path, model: Path) -> None:
    run, said = finetune(run_bertkit, "squad", model, DATA)
    assert "1 answers found near their answer_start, 1 not found" in said
    scores = run["best"]["scores"]
    names = ["validation/f1", "validation/exact_match", "validation/start_loss", "validation/end_loss"]
    assert [name for name in scores if name != "validation/constant_predictions"] == names
    assert (run["task"]["unanswerable"], run["task"]["matching"]) == (False, "words")
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForQuestionAnswering"]

    ran = run_bertkit("eval", "run", "--json", "--output", "eval")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-5)
    written = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "eval").iterdir()}
    assert set(written) == {"predictions.json", "nbest_predictions.json"}
    assert set(written["predictions.json"]) == set("abcde")
    for name, best in written["nbest_predictions.json"].items():
        assert best[0]["text"] == written["predictions.json"][name]
        assert set(best[0]) == {"text", "probability", "start_logit", "end_logit"}

    answers = list(written["predictions.json"].values())
    ran = run_bertkit("predict", "run", "train.json")
    assert ran.code == 0, ran.err
    assert [json.loads(line)["answer"] for line in ran.out.splitlines()] == answers
    table = "question,context\n" + "".join(f'who,"{page}"\n' for page in PAGES)
    (tmp_path / "rows.csv").write_text(table, encoding="utf-8")
    ran = run_bertkit("predict", "run", "rows.csv", "--output", "out.csv")
    assert ran.code == 0, ran.err
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["question"] for row in rows] == ["who"] * 3
    for row, page in zip(rows, PAGES, strict=True):
        assert page[int(row["start"]) : int(row["end"])] == row["answer"] == json.loads(row["nbest"])[0]["text"]
    assert rows[2]["answer"] == answers[0]

    # A page of text, the question beside it.
    (tmp_path / "page.txt").write_text(f"[bold]The page[/bold]\n\n{PAGES[0]}\n", encoding="utf-8")
    ran = run_bertkit("predict", "run", "page.txt", "--question", "Who saw it?")
    assert ran.code == 0, ran.err
    [found] = [json.loads(line) for line in ran.out.splitlines()]
    assert found["question"] == "Who saw it?"
    assert (tmp_path / "page.txt").read_text(encoding="utf-8")[found["start"] : found["end"]] == found["answer"] != ""
    piped = run_bertkit("predict", "run", "--question", "Who saw it?", stdin=(tmp_path / "page.txt").read_bytes())
    assert piped.out == ran.out
    shown = run_bertkit("predict", "run", "page.txt", "--question", "Who saw it?", "--format", "text")
    assert shown.code == 0, shown.err
    page, (start, end) = (tmp_path / "page.txt").read_text(encoding="utf-8"), (found["start"], found["end"])
    marked = f"{page[:start]}[{page[start:end]}]{page[end:]}".rstrip()  # what is markup elsewhere is text here
    assert shown.out.startswith(f"Who saw it?\n{marked} (")
    ran = run_bertkit("predict", "run", "page.txt")
    assert (ran.code, 'hint: ask it: --question "Who' in ran.err) == (2, True)


def test_the_threshold_is_tuned_kept_and_used(run_bertkit, tmp_path: Path, model: Path) -> None:
    run, _ = finetune(run_bertkit, "squad_v2", model, DATA_2)
    scores, task = run["best"]["scores"], run["task"]
    assert task["unanswerable"] is True
    assert task["null_threshold"] == scores["validation/best_f1_thresh"]
    ran = run_bertkit("eval", "run", "--json", "--output", "eval")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["validation/best_f1"] == pytest.approx(scores["validation/best_f1"])
    written = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "eval").iterdir()}
    assert set(written) == {"predictions", "nbest_predictions", "null_odds"}
    for threshold in (None, -1e6, 1e6):
        options = () if threshold is None else ("--null-threshold", threshold)
        ran = run_bertkit("eval", "run", "--json", *options, "--output", "eval")
        assert ran.code == 0, ran.err
        answers = json.loads((tmp_path / "eval" / "predictions.json").read_text(encoding="utf-8"))
        limit = task["null_threshold"] if threshold is None else threshold
        assert {name: text == "" for name, text in answers.items()} == {
            name: odds > limit for name, odds in written["null_odds"].items()
        }
        if threshold == -1e6:
            assert json.loads(ran.out)["validation/f1"] == 0.5
    for model_folder in ("run", "run/checkpoint-2"):  # the latter has no run.json: all that is needed stands in config.json
        ran = run_bertkit("predict", model_folder, "train.json")
        found = [json.loads(line) for line in ran.out.splitlines()]
        assert {row["id"]: row["answer"] for row in found} == written["predictions"]
        assert {row["id"]: "null_odds" in row for row in found} == dict.fromkeys("abcd", True)
    block = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["bertkit"]
    assert (block["unanswerable"], block["null_threshold"]) == (True, task["null_threshold"])
    # A model for another task is not one that leaves questions unanswered.
    (tmp_path / "x.csv").write_text("text,label\ngood,a\nbad,b\n", encoding="utf-8")
    files = ("--train", "x.csv", "--validation", "x.csv", "-m", "run", "-o", "other", "--max-steps", 1, "--max-length", 16)
    ran = run_bertkit("finetune", "text-classification", *files)
    assert ran.code == 0, ran.err
    config = json.loads((tmp_path / "other" / "config.json").read_text(encoding="utf-8"))
    assert not {"unanswerable", "null_threshold"} & {*config, *config["bertkit"]}


@pytest.mark.parametrize("form", ["table", "lists"])
def test_answers_without_their_place_are_taken_where_they_first_stand(tmp_path: Path, tokenizer: Tokenizer, form: str) -> None:
    context = "one two one three"
    if form == "table":
        content, name = f"question,context,answer\nwho,{context},one\nwhat,{context},three\nwhy,{context},\n", "rows.csv"
    else:
        rows = [{"question": "q", "context": context, "answers": its} for its in (["one", "two"], ["three"], [])]
        content, name = "".join(json.dumps(row) + "\n" for row in rows), "rows.jsonl"
    found = load(tmp_path, content, name)
    assert [[text for text, _ in its][:1] for its in found.columns["answers"]] == [["one"], ["three"], []]
    features, remarks = task_of(unanswerable=True).encode(found, tokenizer, max_length=16)
    assert labels_of(features) == [(3, 3), (6, 6), (0, 0)]
    count = 2 if form == "table" else 3
    assert remarks == (f"{count} answers without answer_start, taken at their first occurrence",)


def test_places_that_a_table_wrote_as_fractions(tmp_path: Path) -> None:
    content = f"question,context,answer,answer_start\nwho,{CONTEXT},two,4.0\nwhy,{CONTEXT},,\n"
    assert load(tmp_path, content, "rows.csv").columns["answers"] == [[("two", 4)], []]


def test_cmrc_trains_and_evaluates_on_real_rows(run_bertkit, data_dir: Path, tiny_chinese_dir: Path) -> None:
    """The trial file as training data, from random weights."""
    folder = data_dir / "CMRC2018"
    files = ("--train", folder / "cmrc2018_trial.json.gz", "--validation", folder / "cmrc2018_trial.json.gz")
    settings = ("--max-steps", 2, "--batch-size", 16, "--max-length", 512, "--precision", "fp32", "--device", "cpu")
    ran = run_bertkit("finetune", "cmrc2018", *files, "-m", tiny_chinese_dir, "-o", "run", *settings)
    assert ran.code == 0, ran.err
    run = json.loads(Path("run/run.json").read_text(encoding="utf-8"))
    assert run["data"]["train"]["rows"] == 1002
    assert run["task"]["matching"] == "characters"
    ran = run_bertkit("eval", "run", "--json", "--output", "eval")
    assert json.loads(ran.out) == pytest.approx(run["best"]["scores"], abs=1e-5)
    answers = json.loads(Path("eval/predictions.json").read_text(encoding="utf-8"))
    assert len(answers) == 1002
    assert all(len(answer) > 0 for answer in answers.values())


def test_a_page_is_no_column_and_columns_stay_with_the_run(run_bertkit, tmp_path: Path, model: Path) -> None:
    table = "q,page,said,answer_start\n" + "".join(f"who,{CONTEXT},{word},{CONTEXT.index(word)}\n" for word in WORDS[:4])
    (tmp_path / "rows.csv").write_text(table, encoding="utf-8")
    names = ("--question", "q", "--context", "page", "--answers", "said")
    settings = ("--max-steps", 1, "--max-length", 16, "--device", "cpu", "-m", model, "-o", "run")
    ran = run_bertkit("finetune", "question-answering", "--train", "rows.csv", "--validation", "rows.csv", *names, *settings)
    assert ran.code == 0, ran.err
    ran = run_bertkit("predict", "run", "rows.csv")
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 4
    (tmp_path / "page.txt").write_text(CONTEXT, encoding="utf-8")
    assert run_bertkit("predict", "run", "page.txt").code == 2
    ran = run_bertkit("predict", "run", "page.txt", "--question", "q")
    assert (ran.code, json.loads(ran.out)["answer"] != "") == (0, True)
    options = ("--max-query-length", 4, "--unanswerable", "--null-threshold", -1e6)
    ran = run_bertkit("predict", "run", "page.txt", "--question", "q " * 9, *options)
    assert (ran.code, json.loads(ran.out)["answer"]) == (0, "")
    assert "1 questions longer than 4 tokens truncated" in ran.err


@pytest.mark.parametrize(
    ("recipe", "data", "place"),
    [
        ("squad", DATA_2, ":c"),  # without an answer, as may not be
        ("squad", squad(asked("a", "two", 90), asked("b", "one", 80)), ":a"),  # no answer is found
        ("squad_v2", squad(asked("a"), asked("b")), ""),
        (
            "question-answering",
            squad({"id": "a", "question": "who", "answers": [{"text": "two", "answer_start": "4"}]}),
            "",
        ),
    ],
)
def test_17_and_38_answers_that_cannot_be_trained_on(
    run_bertkit, tmp_path: Path, model: Path, recipe: str, data: Any, place: str
) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    files = ("--train", "train.json", "--validation", "train.json", "--max-length", 16, "--device", "cpu")
    ran = run_bertkit("finetune", recipe, *files, "-m", model, "-o", "run")
    [error] = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert (ran.code, error.endswith(f"({path}{place})")) == (3, True), error
    assert not (tmp_path / "run").exists()


def test_dry_run_shows_where_answers_stand(run_bertkit, tmp_path: Path, model: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(DATA), encoding="utf-8")
    files = ("--train", "train.json", "--validation", "train.json", "--max-length", 16, "--device", "cpu")
    ran = run_bertkit("finetune", "squad", *files, "-m", model, "-o", "run", "--dry-run")
    assert ran.code == 0, ran.err
    assert "bad[answer starts] great[answer ends]" in ran.err


def test_dry_run_shows_rows_without_labels_and_questions_that_are_cut(run_bertkit, tmp_path: Path, model: Path) -> None:
    """None of the answers of the first rows is found, of the others one is: it trains, so it is shown."""
    lost = [asked(name, "two", 90, "who what where why") for name in "abc"]
    (tmp_path / "train.json").write_text(json.dumps(squad(*lost, asked("d", "two"))), encoding="utf-8")
    files = ("--train", "train.json", "--validation", "train.json", "--max-length", 8, "--doc-stride", 2, "--device", "cpu")
    options = ("--max-query-length", 2, "--dry-run")
    ran = run_bertkit("finetune", "squad", *files, "-m", model, "-o", "run", *options)
    assert ran.code == 0, ran.err
    shown = [line.strip() for line in ran.err.splitlines()]
    assert shown.count("cut by --max-query-length: where why") == 3
    assert not any("cut by --max-length" in line or "answer" in line.partition("[SEP]")[0] for line in shown if "[CLS]" in line)
    assert "[CLS] who what [SEP] one two three [SEP] (8 tokens, segment B: 4)" in shown


def test_a_recipe_has_no_metrics_of_its_own() -> None:
    with pytest.raises(UsageError):
        QuestionAnswering(metrics=(accuracy,), train="x.json").resolved()
