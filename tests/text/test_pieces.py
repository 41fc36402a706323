"""Pieces by words against the library's own, text by text; what is kept, and when it is forgotten."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.features import Ragged
from bertkit.text import tokenizer as module
from bertkit.text.tokenizer import PieceCache, Tokenizer

ODD = ["a\x1cb", "a\x85b c", "x\xa0y", "e\u0301 \u0301a", "[MASK] a[SEP]b", "##ing ing", "\u3000wide", "tab\tand\nline", ""]
ODD += ["  ", "\u200b", "Zo\u00eb's caf\u00e9  costs $5."]


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


def of_library(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [tokenizer.backend.encode(text, add_special_tokens=False).ids for text in texts]


def rows(found: Ragged) -> list[list[int]]:
    return [found[row].tolist() for row in range(len(found))]


@given(st.lists(st.text(max_size=30) | st.sampled_from(ODD), max_size=8))
@settings(max_examples=100)
def test_any_text_has_the_librarys_pieces(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert rows(tokenizer.pieces(texts)) == of_library(tokenizer, texts)


def test_a_word_is_tokenized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def encode(words: list[str]) -> Ragged:
        asked.append(sorted(words))
        return Ragged.of([[len(word)] * len(word) for word in words])

    cache = PieceCache(encode)
    assert rows(cache.pieces(["a bb a", "", "ccc bb"])) == [[1, 2, 2, 1], [], [3, 3, 3, 2, 2]]
    assert rows(cache.pieces(["bb dddd"])) == [[2, 2, 4, 4, 4, 4]]
    assert asked == [["", "a", "bb", "ccc"], ["dddd"]]
    monkeypatch.setattr(module, "MOST_CACHED", 5)
    assert rows(cache.pieces(["a"])) == [[1]]
    assert asked[2:] == [["a"]], "all was forgotten, and only what is needed learnt again"
    assert rows(cache.pieces([])) == []


def test_new_words_without_end_need_little_memory(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers, say: every row has one that no other has."""
    monkeypatch.setattr(module, "MOST_CACHED", 2**20)
    tokenizer.pieces(["a"])
    tracemalloc.start()
    held = []
    for begin in range(0, 40_000, 1000):
        tokenizer.pieces([f"good {number}" for number in range(begin, begin + 1000)])
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert 2**19 < max(held) < 2**21, "that of about 6,000 words"


def test_a_token_that_reaches_over_a_space_goes_past_the_cache(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    other = Tokenizer.load(tmp_path)
    other.backend.add_tokens(["the good"])
    texts = ["see the good movie"]
    assert rows(other.pieces(texts)) == of_library(other, texts) != rows(tokenizer.pieces(texts))
