"""Words of plain text, with their places."""

from __future__ import annotations

import re
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from file_contents import read_conll
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertkit.errors import MachineError
from bertkit.text.words import _EXTENDERS, split_words


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
        # What nobody sees is no word: variation selectors, joiners, keycaps, skin tones; they stay with what they change.
        ("I \u2764\ufe0f it", ["I", "\u2764\ufe0f", "it"]),
        ("ok\u263a\ufe0e!", ["ok", "\u263a\ufe0e", "!"]),
        ("\u2764\ufe0fabc", ["\u2764\ufe0f", "abc"]),
        (
            "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd.",
            "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd .".split(),
        ),
        ("#\ufe0f\u20e3 1\ufe0f\u20e3", ["#\ufe0f\u20e3", "1\ufe0f\u20e3"]),
        ("\u845b\U000e0100\u98fe", ["\u845b\U000e0100", "\u98fe"]),
        ("a \ufe0f \ufe0e\u200d \u200b b", ["a", "b"]),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", ["\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"]),
    ],
)
def test_words_by_hand(text: str, found: list[str]) -> None:
    assert words(text) == found


_CHANGING = "\u200d\ufe0f\U0001f3fd"  # the character before them

texts = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from(" .,'s\u2019-U\u4e2d\u200b\U0001f600\n\u3000" + _CHANGING)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(texts, st.sets(st.integers(0, 45), max_size=5))
@example("a" * 500 + "\U0001f600." * 1500, {7, 8})
def test_words_hold_everything_but_white_space_once(text: str, boundaries: set[int]) -> None:
    places = split_words(text, boundaries)
    assert all(0 <= start < end <= len(text) for start, end in places)
    assert all(before[1] <= after[0] for before, after in pairwise(places))
    held = [at for start, end in places for at in range(start, end)]
    seen = [at for at, character in enumerate(text) if not character.isspace()]
    assert held == sorted(set(held))
    assert set(held) <= set(seen)
    assert {unicodedata.category(text[at]) for at in set(seen) - set(held)} <= {"Cf", "Mn", "Me", "Sk"}
    assert not [place for place in places if all(unicodedata.category(each) == "Cf" for each in text[slice(*place)])]
    assert not [cut for cut in boundaries for start, end in places if start < cut < end]
    # A mark stands within a word only between other characters of it, as in "1,000" and "U.N."
    for word in (text[start:end] for start, end in places):
        if len(word) > 1 and not boundaries:
            first, last = (unicodedata.category(word[at])[0] in "PS" for at in (0, -1))
            is_extended = re.search(f"[{_EXTENDERS}]", word) is not None
            assert not first or word.lower() in ("'s", "\u2019s") or is_extended
            assert not last or word.count(".") > 1 or is_extended


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


def test_chinese_text_is_cut_by_jieba_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\u6211\u5728\u94f6\u884cWork\u3002 ok"
    cut = [text[start:end] for start, end in split_words(text, cut="jieba")]
    assert cut == ["\u6211", "\u5728", "\u94f6\u884c", "Work", "\u3002", "ok"]
    assert words(text)[:4] == [*"\u6211\u5728\u94f6\u884c"] == [text[a:b] for a, b in split_words(text, cut="basic")][:4]
    assert [text[a:b] for a, b in split_words(text, [3], "jieba")][2:4] == ["\u94f6", "\u884c"]
    monkeypatch.setitem(sys.modules, "jieba", None)  # as if it were not installed
    with pytest.raises(MachineError) as error:
        split_words(text, cut="jieba")
    assert "jieba" in error.value.what
    assert "--words basic" in str(error.value.hint)
    assert split_words("no Chinese", cut="jieba") == [(0, 2), (3, 10)]
