"""Words that entities cut: training, evaluation and prediction see the same words, whatever was annotated."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertkit.readers import Examples
from bertkit.tasks import Prediction, TokenClassification, TokenClassificationTask
from bertkit.tasks.token_classification.whole_words import cut_again, parts_of_words, whole_words
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
    assert parts_of_words(rows).tolist() == [2, 2, 3]


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
    assert parts_of_words(known).sum() == sum(map(len, known.columns["tokens"]))
