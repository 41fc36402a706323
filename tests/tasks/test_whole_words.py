"""Words that entities cut: training, evaluation and prediction see the same words, whatever was annotated."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertkit.config import filled
from bertkit.readers import Examples
from bertkit.tasks import Prediction, Task, TokenClassification, TokenClassificationTask
from bertkit.tasks.token_classification.whole_words import cut_again, whole_words
from bertkit.text.tokenizer import Tokenizer

CUT = {"text": "pre-Nord Bank-led Ann-Li", "entities": [[4, 13, "ORG"], [18, 21, "PER"], [22, 24, "PER"]]}
IOBES = ("O", "B-ORG", "E-ORG", "S-ORG", "S-PER")


@pytest.mark.parametrize(
    ("scheme", "labels", "learned", "predicted", "parted"),
    [
        ("iob2", (), "O B-ORG B-PER", "B-ORG I-ORG B-PER", "B-ORG I-ORG I-ORG I-ORG B-PER I-PER I-PER"),
        ("iobes", IOBES, "O S-ORG S-PER", "B-ORG E-ORG S-PER", "B-ORG I-ORG I-ORG E-ORG B-PER I-PER E-PER"),
        ("iobes", ("U-ORG", "U-PER", "B-PER", "L-PER"), "O U-ORG U-PER", "O O U-PER", "O O O O B-PER I-PER L-PER"),
        (None, (), "O I-ORG B-PER", "X O Y", "X X O O Y Y Y"),
    ],
)
def test_a_word_that_an_entity_cuts_has_one_tag(scheme, labels, learned: str, predicted: str, parted: str) -> None:
    rows = TokenClassification().standardize(Examples({k: [v] for k, v in CUT.items()}, "x", [1]), labelled=True)
    assert rows.columns["tokens"] == [["pre-", "Nord", "Bank", "-led", "Ann", "-", "Li"]]
    whole = whole_words(rows, labels, scheme)
    assert whole.columns["tokens"] == [["pre-Nord", "Bank-led", "Ann-Li"]]
    assert whole.columns["tags"] == [learned.split()]
    found = Prediction(predicted.split(), probabilities=[0.5, 0.25, 0.125])
    (again,) = cut_again([found], rows, labels, scheme)
    assert again.value == parted.split()
    assert again.probabilities == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.125]


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


def spans_between(text: str, places: list[int]) -> list[list]:
    """Entities between places of a text, one after the other, that have letters."""
    ends = sorted({min(place, len(text)) for place in places})
    return [[start, end, "X"] for start, end in pairwise(ends) if any(map(str.isalnum, text[start:end]))]


@given(st.lists(st.tuples(st.text("ab -.\u200d\u4e2d", max_size=12), st.lists(st.integers(0, 12), max_size=4)), min_size=1))
def test_they_are_encoded_as_without_entities(tokenizer: Tokenizer, rows: list[tuple[str, list[int]]]) -> None:
    columns = {"text": [text for text, _ in rows], "entities": [spans_between(*row) for row in rows]}
    assume(any(map(str.isalnum, "".join(columns["text"]))))
    recipe = TokenClassification()
    task = TokenClassificationTask(recipe=recipe, labels=("O", "B-X", "I-X"), scheme="iob2")
    examples = Examples(columns, "x", range(len(rows)))
    known, unknown = (recipe.standardize(examples, labelled=labelled) for labelled in (True, False))
    features = task.encode(known, tokenizer, max_length=64).features
    expected = task.encode(unknown, tokenizer, max_length=64, labelled=False).features
    assert np.array_equal(features.input_ids.values, expected.input_ids.values)
    assert features.rows is not None
    assert expected.rows is not None
    assert np.array_equal(features.rows.values, expected.rows.values)
    assert len(features.labels["labels"].values) == sum(map(len, unknown.columns["tokens"]))


def fitted(scheme: str | None = None, **columns: list) -> tuple[TokenClassificationTask, Examples]:
    recipe = filled(TokenClassification(scheme=scheme))
    rows = Examples(columns, "x", range(len(columns["text"])))
    task = Task.fit(recipe, rows)
    return task, task.examples(rows, labelled=True)


@pytest.mark.parametrize(
    ("scheme", "text", "spans", "labels"),
    [  # where a word is cut, another tag begins an entity, or is all of it
        ("iobes", "x-New York", [[2, 10, "LOC"]], ("O", "S-LOC")),
        ("iob1", "Ann-Li Smith", [[0, 3, "PER"], [4, 12, "PER"]], ("O", "B-PER", "I-PER")),
    ],
)
def test_the_tags_of_whole_words_are_learned(tokenizer: Tokenizer, scheme: str, text: str, spans: list, labels: tuple) -> None:
    task, examples = fitted(scheme, text=[text, "here it is"], entities=[spans, []])
    assert task.labels == labels
    encoding = task.encode(examples, tokenizer)
    assert not any("not seen in training" in count.what for count in encoding.counts)
    assert (encoding.features.labels["labels"].values >= 0).all()


def test_words_are_judged_as_they_are_read(tokenizer: Tokenizer) -> None:
    """A model that is sure of what it was taught makes no likely errors."""
    task, examples = fitted(text=["Bank-led pre-Nord Bank"], entities=[[[0, 4, "ORG"], [13, 22, "ORG"]]])
    features = task.encode(examples, tokenizer).features
    logits = [
        np.eye(len(task.labels))[targets] * 9 for targets in map(features.labels["labels"].__getitem__, range(len(features)))
    ]
    judged = task.judge({"logits": logits}, features, examples)["tag"]
    assert judged.given == [task.labels[number] for number in judged.probabilities.argmax(1)] == ["B-ORG", "O", "B-ORG"]
