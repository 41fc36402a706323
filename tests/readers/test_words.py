"""Words of plain text, with their places."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from file_contents import read_conll
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertkit.readers.words import split_words


def words(text: str, boundaries: tuple[int, ...] = ()) -> list[str]:
    return [text[start:end] for start, end in split_words(text, boundaries)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" \t\n\u3000", []),
        ("EU rejects German call.", ["EU", "rejects", "German", "call", "."]),
        ("U.N. official (Ekeus), in U.S.-held Baghdad.", "U.N. official ( Ekeus ) , in U.S.-held Baghdad .".split()),
        ("He paid $1,000.50!", ["He", "paid", "$", "1,000.50", "!"]),
        ("John's dogs' toys don't", ["John", "'s", "dogs", "'", "toys", "don't"]),
        ("John\u2019s don\u2019t dogs\u2019", ["John", "\u2019s", "don\u2019t", "dogs", "\u2019"]),
        ("the 1990's", ["the", "1990's"]),
        ('"Yes," she said...', ['"', "Yes", ",", '"', "she", "said", ".", ".", "."]),
        ("re-opened a/b x_y", ["re-opened", "a/b", "x_y"]),
        ("\u4e2d\u56fdABC\u3002", ["\u4e2d", "\u56fd", "ABC", "\u3002"]),
        ("1990\u20131995 \u201cso\u201d", ["1990", "\u2013", "1995", "\u201c", "so", "\u201d"]),
        ("ok\U0001f600\U0001f600", ["ok", "\U0001f600", "\U0001f600"]),
        ("!!!", ["!", "!", "!"]),
    ],
)
def test_words_by_hand(text: str, found: list[str]) -> None:
    assert words(text) == found


texts = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from(" .,'s\u2019-U\u4e2d\u200b\U0001f600\n\u3000")), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(texts, st.sets(st.integers(0, 45), max_size=5))
@example("a" * 500 + "\U0001f600." * 1500, {7, 8})
def test_words_hold_everything_but_white_space_once(text: str, boundaries: set[int]) -> None:
    places = split_words(text, boundaries)
    assert all(0 <= start < end <= len(text) for start, end in places)
    assert all(before[1] <= after[0] for before, after in pairwise(places))
    held = [at for start, end in places for at in range(start, end)]
    assert held == [at for at, character in enumerate(text) if not character.isspace()]
    assert not [cut for cut in boundaries for start, end in places if start < cut < end]
    # A mark stands within a word only between other characters of it, as in "1,000" and "U.N."
    for word in (text[start:end] for start, end in places):
        if len(word) > 1 and not boundaries:
            first, last = (unicodedata.category(word[at])[0] in "PS" for at in (0, -1))
            assert not first or word.lower() in ("'s", "\u2019s")
            assert not last or word.count(".") > 1


def test_words_do_not_depend_on_what_stands_beside_white_space() -> None:
    parts = ["U.N.", "(John's", "1,000)", "\u4e2dA", "\u2019t"]
    assert words(" ".join(parts)) == [word for part in parts for word in words(part)]


def test_boundaries_cut_words_alone() -> None:
    assert words("Berlin-based Siemens", (6,)) == ["Berlin", "-based", "Siemens"]
    assert words("Berlin-based Siemens", (0, 12, 13, 20)) == ["Berlin-based", "Siemens"]


def test_real_words_split_as_published_but_for_few(data_dir: Path) -> None:
    """Joined by spaces, CoNLL-2003's own words come back: it splits no otherwise, but for abbreviations and hyphens."""
    sentences = read_conll(data_dir / "CoNLL2003" / "valid.txt.gz").columns["tokens"]
    same = sum(words(" ".join(sentence)) == sentence for sentence in sentences)
    assert same > 0.6 * len(sentences)
