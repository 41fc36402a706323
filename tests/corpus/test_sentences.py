"""Where sentences end, in English and in Chinese: cases by hand, and nothing is lost."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.corpus.sentences import split_sentences
from bertkit.readers.documents import Documents
from bertkit.readers.text_sources import look_for


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("He came. She left! Did they? Yes.", ["He came.", "She left!", "Did they?", "Yes."]),
        ("Dr. Smith met J. R. Hill at St. Ives.", ["Dr. Smith met J. R. Hill at St. Ives."]),
        ("It closed at 5 p.m. They left.", ["It closed at 5 p.m.", "They left."]),
        ("Lamps, pens, etc. Then more.", ["Lamps, pens, etc.", "Then more."]),
        ("It was I. He knew.", ["It was I.", "He knew."]),
        ("It costs 3.14 at example.com today.", ["It costs 3.14 at example.com today."]),
        ("See Fig. 3 for more. 12 came.", ["See Fig. 3 for more.", "12 came."]),
        ("1. First point.", ["1. First point."]),
        ('"Why?" she asked. "No!" He left...  Then', ['"Why?" she asked.', '"No!"', "He left...", "Then"]),
        ("He left (at last). \u201cGood.\u201d All wept.", ["He left (at last).", "\u201cGood.\u201d", "All wept."]),
        ("What?! \u00c9tienne? Oui.", ["What?!", "\u00c9tienne?", "Oui."]),
        ("e.g. this and that", ["e.g. this and that"]),
        ("no end", ["no end"]),
        (" \t ", []),
        ("", []),
        ("\u4f60\u597d\u3002\u6211\uff01\u4ed6\uff1f\u662f", ["\u4f60\u597d\u3002", "\u6211\uff01", "\u4ed6\uff1f", "\u662f"]),
        ("\u201c\u771f\u7684\uff1f\u201d\u4ed6\u95ee\u3002", ["\u201c\u771f\u7684\uff1f\u201d", "\u4ed6\u95ee\u3002"]),
        ("\u8fd9\u2026\u2026\u597d\uff1b\u662f\u76843.5\u3002", ["\u8fd9\u2026\u2026", "\u597d\uff1b\u662f\u76843.5\u3002"]),
        ("\u4ed6\u8bf4 hello. World \u662f\u3002", ["\u4ed6\u8bf4 hello.", "World \u662f\u3002"]),
    ],
)
def test_by_hand(text, sentences):
    assert split_sentences(text) == sentences


@given(st.text(alphabet=st.sampled_from("aB1. !?\"'()\u3002\uff01\u201d\u2026\n\tDr")))
def test_nothing_but_white_space_is_lost(text):
    sentences = split_sentences(text)
    assert re.sub(r"\s", "", "".join(sentences)) == re.sub(r"\s", "", text)
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


def test_sentences_of_a_sentence_are_itself(data_dir):
    """On real text: cut twice is cut once, and sentences are of a sentence's length."""
    (source,) = look_for([str(data_dir / "text-en" / "novels-67.txt.xz")]).sources.values()
    lines = [line for _, document in zip(range(60), Documents(source)) for line in document.lines]
    sentences = [sentence for line in lines for sentence in split_sentences(line)]
    assert sum(split_sentences(sentence) == [sentence] for sentence in sentences) > 0.999 * len(sentences)
    words = sum(len(sentence.split()) for sentence in sentences) / len(sentences)
    assert 10 < words < 30


@pytest.mark.parametrize("mark", [".", "!", "?", "\u2026", "\u3002"])
def test_long_runs_of_marks_take_no_time(mark: str) -> None:
    """A second each, where every mark of a run was once tried against all that follow."""
    assert "".join(split_sentences(mark * 50000)).count(mark) == 50000
    if mark in ".!?":
        assert split_sentences(f"So\u2026. Then {mark * 3}x") == ["So\u2026.", f"Then {mark * 3}x"]


def test_a_sentence_of_abbreviations_is_looked_at_once() -> None:
    class Text(str):
        taken = 0

        def __getitem__(self, key: Any) -> str:
            part = str.__getitem__(self, key)
            Text.taken += len(part)
            return part

    text = Text("Mr. " * 5000)
    assert split_sentences(text) == [text.strip()]
    assert Text.taken < 40 * len(text)  # each from the sentence's begin would be 2500 times its length
