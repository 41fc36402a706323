"""Scores of taggers against seqeval, and worked by hand where modes and schemes differ."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import metrics
from seqeval.scheme import IOB2, IOBES

from bertkit.tasks.token_classification.scores import Intents, describe_types, tag_scorer

Sentences = list[list[str]]


def score_tags(
    predicted: Sentences, gold: Sentences, scheme: str | None, intents: Intents | None = None
) -> dict[str, float | None]:
    """The scores of all sentences."""
    return tag_scorer(predicted, gold, scheme, intents)(np.arange(len(gold)))


@st.composite
def two_taggings(draw: st.DrawFn) -> tuple[Sentences, Sentences, str]:
    """Any tags of the scheme's letters, legal or not."""
    scheme, letters = draw(st.sampled_from([("iob2", "BI"), ("iobes", "BIES")]))
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    tags = st.sampled_from(["O", *(f"{letter}-{kind}" for letter in letters for kind in ("PER", "LOC"))])
    one, other = ([draw(st.lists(tags, min_size=n, max_size=n)) for n in lengths] for _ in range(2))
    return one, other, scheme


@given(two_taggings())
def test_scores_are_those_of_seqeval(case: tuple[Sentences, Sentences, str]) -> None:
    *taggings, scheme = case
    predicted, gold = taggings
    found = score_tags(predicted, gold, scheme)
    flat = [[tag for row in side for tag in row] for side in taggings]
    right = [p == g for p, g in zip(*flat, strict=True)]
    assert found["accuracy"] == (pytest.approx(sum(right) / len(right)) if right else None)
    assert found["sentence_accuracy"] == pytest.approx(sum(p == g for p, g in zip(*taggings, strict=True)) / len(gold))
    if set(flat[0]) | set(flat[1]) <= {"O"}:
        assert {found[name] for name in ("f1", "precision", "recall", "strict_f1")} == {None}
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("f1", "precision", "recall"):
            expected = getattr(metrics, f"{name}_score")(gold, predicted, zero_division=0)
            assert found[name] == pytest.approx(expected), name
        strict = {"mode": "strict", "scheme": {"iob2": IOB2, "iobes": IOBES}[scheme], "zero_division": 0}
        try:
            expected = metrics.f1_score(gold, predicted, **strict)
        except ValueError:  # no chunk by the letter on either side
            expected = 0.0
        assert found["strict_f1"] == pytest.approx(expected)
        for kind in {tag[2:] for tag in (*flat[0], *flat[1]) if tag != "O"}:
            only = [[[tag if tag.endswith(kind) else "O" for tag in row] for row in side] for side in taggings]
            assert found[f"f1_{kind}"] == pytest.approx(metrics.f1_score(only[1], only[0], zero_division=0)), kind


def test_by_hand() -> None:
    """Of three chunks two are found, one of them with a wrong end; two sentences of three are right."""
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC"], ["O", "O"]]
    predicted = [["B-PER", "O", "O", "B-LOC"], ["O", "B-LOC"], ["O", "O"]]
    found = score_tags(predicted, gold, "iob2")
    assert found["precision"] == found["recall"] == found["f1"] == found["strict_f1"] == pytest.approx(2 / 3)
    assert found["accuracy"] == 7 / 8
    assert found["sentence_accuracy"] == pytest.approx(2 / 3)
    assert (found["f1_PER"], found["f1_LOC"]) == (0.0, 1.0)
    assert next(iter(found)) == "f1", "the first score decides which step is the best"
    some = tag_scorer(predicted, gold, "iob2")(np.array([1, 0, 1]))
    assert some == score_tags([predicted[at] for at in (1, 0, 1)], [gold[at] for at in (1, 0, 1)], "iob2")


def test_an_illegal_chunk_counts_by_default_and_not_by_the_letter() -> None:
    gold = [["B-PER", "I-PER", "O"], ["B-LOC"]]
    predicted = [["I-PER", "I-PER", "O"], ["B-LOC"]]  # iob2 begins chunks with B
    found = score_tags(predicted, gold, "iob2")
    assert found["f1"] == 1.0
    assert found["strict_f1"] == pytest.approx(2 / 3)  # one of one, of two
    found = score_tags([["B-PER", "I-PER"]], [["B-PER", "E-PER"]], "iobes")  # a chunk that never ends
    assert (found["f1"], found["strict_f1"]) == (1.0, 0.0)


def test_tags_of_another_scheme_are_no_chunk_by_the_letter() -> None:
    """Slips of real data, which seqeval's strict mode refuses."""
    gold = [["B-PER", "E-PER", "O", "S-LOC"], ["B-PER"]]
    found = score_tags(gold, gold, "iob2")
    assert (found["f1"], found["strict_f1"]) == (1.0, 1.0)
    found = score_tags([["B-PER", "O", "O", "O"], ["B-PER"]], gold, "iob2")
    assert found["f1"] == pytest.approx(2 / 5)  # one of two, of three
    assert found["strict_f1"] == 1.0
    assert score_tags([["O"]], [["S-LOC"]], "iob2")["strict_f1"] == 0.0


def test_iob1_by_the_letter() -> None:
    """I begins a chunk, and B one right after another of its type: by iob2's letter none of these would count."""
    gold = [["I-PER", "I-PER", "O", "I-LOC"], ["I-PER", "B-PER"]]
    assert score_tags(gold, gold, "iob1")["strict_f1"] == 1.0
    predicted = [["I-PER", "I-PER", "O", "O"], ["I-PER", "I-PER"]]  # one right, one missing, two joined into one
    found = score_tags(predicted, gold, "iob1")
    assert found["precision"] == 1 / 2
    assert found["recall"] == 1 / 4
    assert found["f1"] == found["strict_f1"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(("inside", "end", "single"), [("I", "E", "S"), ("M", "E", "S"), ("I", "L", "U")])
def test_every_spelling_of_iobes_scores_alike(inside: str, end: str, single: str) -> None:
    gold = [["B-A", f"{inside}-A", f"{end}-A", "O", f"{single}-B"], ["B-A", f"{end}-A"]]
    predicted = [["B-A", f"{inside}-A", f"{end}-A", "O", "O"], [f"{single}-A", f"{single}-A"]]
    found = score_tags(predicted, gold, "iobes")
    assert found["precision"] == found["recall"] == pytest.approx(1 / 3)
    assert found["strict_f1"] == found["f1"] == pytest.approx(1 / 3)
    assert score_tags(gold, gold, "iobes")["strict_f1"] == 1.0


def test_intents_count_for_the_whole_sentence() -> None:
    gold, predicted = [["O"], ["B-X"], ["O"], []], [["O"], ["O"], ["O"], []]
    found = score_tags(predicted, gold, "iob2", (["a", "a", "b", None], ["a", "a", "a", "b"]))
    assert found["intent_accuracy"] == 2 / 4
    assert found["sentence_accuracy"] == 1 / 4  # the first alone has both right
    assert found["accuracy"] == 2 / 3


def test_words_without_a_scheme_have_accuracy_alone() -> None:
    found = score_tags([["NOUN", "VERB"], ["DET"]], [["NOUN", "NOUN"], ["DET"]], None)
    assert found == {"accuracy": pytest.approx(2 / 3), "sentence_accuracy": 1 / 2}


def test_nothing_to_score() -> None:
    empty = dict.fromkeys(("f1", "precision", "recall", "strict_f1"))
    assert score_tags([["O"]], [["O"]], "iob2") == {**empty, "accuracy": 1.0, "sentence_accuracy": 1.0}
    assert score_tags([[]], [[]], "iob1") == {**empty, "accuracy": None, "sentence_accuracy": 1.0}
    assert score_tags([], [], None) == {"accuracy": None, "sentence_accuracy": None}


# --- the table by type -----------------------------------------------------------------------------------------------


@given(two_taggings())
def test_types_are_those_of_seqeval_and_every_chunk_counts_once(case: tuple[Sentences, Sentences, str]) -> None:
    predicted, gold, _ = case
    table = describe_types(predicted, gold)
    names = table.columns
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in table.rows}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {}
        if {tag for side in (predicted, gold) for tags in side for tag in tags} - {"O"}:
            expected = metrics.classification_report(gold, predicted, output_dict=True, zero_division=0)
    assert {*rows} == {name for name in expected if not name.endswith(" avg")}
    for kind, row in rows.items():
        own = expected[kind]
        found = [row[name] for name in ("precision", "recall", "f1", "chunks")]
        assert found == pytest.approx([own[name] for name in ("precision", "recall", "f1-score", "support")])
        right = round(row["recall"] * row["chunks"])
        assert right + sum(row[name] for name in ("wrong type", "wrong bounds", "both wrong", "missed")) == row["chunks"]
        assert row["spurious"] <= row["predicted"] - right


def test_faults_of_chunks_by_hand() -> None:
    gold = [
        "B-PER I-PER O     B-LOC O     B-ORG I-ORG O     B-PER".split(),
        "O     O     B-LOC I-LOC I-LOC I-LOC O     B-ORG B-PER".split(),
        "B-LOC I-LOC O     O     O     O     O     O     O".split(),
    ]
    predicted = [
        "B-PER I-PER O     B-PER O     B-ORG O     O     O".split(),  # right, wrong type, wrong bounds, missed
        "B-ORG O     B-PER B-LOC O     B-ORG O     B-PER I-PER".split(),  # spurious; LOC, PER wrong bounds; ORG both wrong
        "O     B-PER I-PER O     O     O     B-LOC O     O".split(),  # LOC both wrong; LOC spurious
    ]
    table = describe_types(predicted, gold)
    assert table.columns[4:] == ["chunks", "predicted", "wrong type", "wrong bounds", "both wrong", "missed", "spurious"]
    assert {row[0]: row[4:] for row in table.rows} == {
        "LOC": [3, 2, 1, 1, 1, 0, 1],
        "ORG": [2, 3, 0, 1, 1, 0, 1],
        "PER": [3, 5, 0, 1, 0, 1, 0],
    }
    assert table.rows[2][1:4] == pytest.approx([1 / 5, 1 / 3, 2 / 8])
    assert table.title == "by type"


def test_of_many_types_the_worst_are_shown() -> None:
    kinds = [f"{number:02}" for number in range(40)]
    gold = [[f"B-{kind}" for kind in kinds]]
    predicted = [[f"B-{kind}" if number < 20 else "O" for number, kind in enumerate(kinds)]]
    table = describe_types(predicted, gold)
    assert table.title == "by type: the 30 of 40 with the lowest F1"
    assert [row[0] for row in table.rows] == [*kinds[20:], *kinds[:10]]
