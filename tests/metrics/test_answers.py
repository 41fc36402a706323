"""Exact match and F1 against values that the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018 gave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.metrics.answers import Score, _treebank_words, best_threshold, score_characters, score_words

# prediction, references, and what version 1.1 and version 2.0 gave
WORDS = [
    ("the cat", ["a cat", "dog"], (1, 1), (1, 1)),
    ("The", ["a"], (1, 0), (1, 1)),
    ("", ["cat"], (0, 0), (0, 0)),
    ("cat sat on", ["the cat sat"], (0, 0.8), (0, 0.8)),
    ("cat cat", ["cat"], (0, 2 / 3), (0, 2 / 3)),
    ("U.S.A.", ["usa"], (1, 1), (1, 1)),
    ("it's 3.5%", ["its 35"], (1, 1), (1, 1)),
    ("\uff21\uff22\uff23 the", ["\uff41\uff42\uff43"], (1, 1), (1, 1)),
    ("!", ["cat", "the"], (1, 0), (0, 0)),
    ("red-hot fire", ["red hot fire", "redhot"], (0, 2 / 3), (0, 2 / 3)),
    ("an apple a day", ["Apple day!"], (1, 1), (1, 1)),
    ("42\n km", ["42 km"], (1, 1), (1, 1)),
    ("he then", ["hen", "then he"], (0, 1), (0, 1)),
]

CHARACTERS = [
    ("1967年", ["1967年", "在1967年"], (1, 1)),
    ("在1967年5月", ["1967年", "6月"], (0, 4 / 7)),
    ("“北京\uff0c大学”。", ["北京大学"], (1, 1)),
    ("NBA球员", ["nba 球员"], (0, 1)),
    ("the New York Times报", ["New York报"], (0, 0.5)),
    ("3.5%左右", ["3.5%", "35%"], (0, 2 / 3)),
    ("北京", ["南京"], (0, 0.5)),
    ("上海北京市", ["北京上海市"], (0, 0.4)),
    ('"kite"号', ["kite号", "“kite”号"], (0, 1 / 3)),
    ("《红楼梦》", ["红楼梦"], (1, 1)),
    ("it's不可以", ["it 's不可以"], (0, 1)),
    ("。", ["\uff0c"], (1, 0)),
    ("……好", ["好"], (0, 2 / 3)),
]


@pytest.mark.parametrize(("prediction", "references", "first", "second"), WORDS)
def test_english_answers_as_squad_scores_them(prediction, references, first, second) -> None:
    assert score_words(prediction, references, unanswerable=False) == pytest.approx(first)
    assert score_words(prediction, references, unanswerable=True) == pytest.approx(second)


@pytest.mark.parametrize(("prediction", "right"), [("", True), ("the", True), (".", True), ("cat", False)])
def test_no_answer_as_squad_2_scores_it(prediction: str, right: bool) -> None:
    for references in ([], ["the", "..."]):
        assert score_words(prediction, references, unanswerable=True) == Score(right, right)


@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [*CHARACTERS, ("", [], (1, 1)), ("北京", [], (0, 0)), ("", ["北"], (0, 0))],
)
def test_chinese_answers_as_cmrc_scores_them(prediction, references, expected) -> None:
    assert score_characters(prediction, references) == pytest.approx(expected)


# Words between Chinese characters, as nltk.word_tokenize cuts them: what a wrong cut changes is the F1.
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("about 2.6 km.", ["about", "2.6", "km", "."]),
        ("2,400, or 1", ["2,400", ",", "or", "1"]),
        ("\"alexandra\" (a.k.a. 'lex')", ["``", "alexandra", "''", "(", "a.k.a.", "'", "lex", "'", ")"]),
        ("don't it's they'll we've o'neil dogs'", ["do", "n't", "it", "'s", "they", "'ll", "we", "'ve", "o'neil", "dogs", "'"]),
        ("cannot gonna $5 r&b c#?", ["can", "not", "gon", "na", "$", "5", "r", "&", "b", "c", "#", "?"]),
        ("wait... no", ["wait", "...", "no"]),
        ("terry a. gates \u2014 \u00abx\u00bb [b]", ["terry", "a.", "gates", "\u2014", "\u00ab", "x", "\u00bb", "[", "b", "]"]),
    ],
)
def test_words_between_characters_are_those_of_the_penn_treebank(text: str, words: list[str]) -> None:
    assert _treebank_words(text) == words


@settings(max_examples=50)
@given(st.text(max_size=30), st.text(max_size=30))
def test_scores_are_between_0_and_1_and_equal_texts_match(a: str, b: str) -> None:
    for score in (score_words(a, [b], unanswerable=True), score_words(a, [b], unanswerable=False), score_characters(a, [b])):
        assert 0 <= score.f1 <= 1
        assert score.exact in (0, 1)
    assert score_words(a, [a], unanswerable=True) == (1, 1)
    assert score_words(a, [a], unanswerable=False).exact == score_characters(a, [a]).exact == 1


@pytest.mark.parametrize(
    ("rows", "expected"),  # answerable, score, whether the answer is not empty, odds of no answer; score and threshold
    [
        # as find_best_thresh of the official script gave them
        ([(1, 1, 1, -3), (1, 0.5, 1, -1), (0, 0, 1, -2), (0, 0, 1, 4), (1, 1, 1, 2)], (0.7, 2)),
        ([(1, 0, 1, 3), (0, 0, 1, 2)], (0.5, 0)),
        ([(1, 1, 1, 5), (0, 0, 1, -2), (1, 1, 1, 7), (0, 0, 0, 6)], (0.75, 7)),
        ([(1, 1, 1, 1.5), (0, 0, 1, 1.5), (1, 1, 1, 1.5)], (2 / 3, 1.5)),
        # its threshold does not give its score
        ([(1, 0, 1, -3), (0, 0, 1, -2)], (0.5, -4)),  # it says 0.5 at 0, which gives 0
        ([(0, 0, 1, 0), (1, 1, 0.5, 5)], (0.5, -1)),
        ([(1, 1, 1, 2), (0, 0, 1, 2), (0, 0, 1, 2)], (2 / 3, 0)),  # it says 1 at 2, which gives 1/3
        ([(1, 1, 1, -1), (1, 1, 1, 2), (0, 0, 1, 2), (0, 0, 1, 2)], (0.75, -1)),
    ],
)
def test_the_best_threshold_of_null_odds(rows, expected) -> None:
    answerable, scores, answered, odds = map(np.array, zip(*rows, strict=True))
    found = best_threshold(scores.astype(float), answerable == 1, answered == 1, odds.astype(float))
    assert found[:2] == pytest.approx(expected)
    assert found.between not in odds


ODDS = st.integers(-2, 2).map(float) | st.floats(-9, 9)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.5, 1.0]), st.booleans(), ODDS), min_size=1, max_size=12))
def test_the_threshold_gives_its_score_and_none_a_better_one(rows: list[tuple[bool, float, bool, float]]) -> None:
    """Applied as decoding does, against each of the odds as threshold, and no answer at all."""
    answerable, scores, answered, odds = (np.array(column) for column in zip(*rows, strict=True))
    scores = np.where(answerable, scores, ~answered)  # (E,) of answers given; an empty one is right where there is none
    found = best_threshold(scores, answerable, answered, odds)

    def held_back_above(threshold: float) -> float:
        return float(np.where(odds > threshold, ~answerable, scores).sum()) / len(rows)

    assert found.score == held_back_above(found.value) == held_back_above(found.between)
    assert found.score == max(held_back_above(threshold) for threshold in [-np.inf, *odds])
