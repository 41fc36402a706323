"""Exact match and F1 of answers, by the rules of three sets: SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018), CMRC 2018.

English answers are compared as bags of words without case, punctuation and articles. Chinese ones as sequences of characters
(Cui et al., 2019): F1 is that of their longest common substring, and what stands between Chinese characters is cut into words
as in the Penn Treebank. All values are shares of 1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Score(NamedTuple):
    """How well a prediction fits the best of its references."""

    exact: float
    f1: float


class Threshold(NamedTuple):
    """The best mean score that a threshold on the odds of no answer can give, and that threshold."""

    score: float
    value: float


def score_words(prediction: str, references: Sequence[str], *, unanswerable: bool) -> Score:
    """As SQuAD 1.1 scores it, or with `unanswerable` as 2.0 does. No references: only an empty answer is right.

    The two differ in what is nothing but articles and punctuation: to 2.0 it is no answer, to 1.1 an answer without F1.
    """
    found = _words(prediction)
    known = [_words(reference) for reference in references]
    if unanswerable or not known:
        known = [words for words in known if words] or [[]]
        return Score(max(float(words == found) for words in known), max(_f1_of_words(found, words, 1.0) for words in known))
    return Score(max(float(words == found) for words in known), max(_f1_of_words(found, words, 0.0) for words in known))


def score_characters(prediction: str, references: Sequence[str]) -> Score:
    """As CMRC 2018 scores it. No references: only an empty answer is right."""
    if not references:
        return Score(float(not prediction), float(not prediction))
    plain = _without_punctuation(prediction)
    found = _segments(prediction)
    exact = any(_without_punctuation(reference) == plain for reference in references)
    return Score(float(exact), max(_f1_of_substring(found, _segments(reference)) for reference in references))


def best_threshold(
    scores: NDArray[np.float64], answerable: NDArray[np.bool_], answered: NDArray[np.bool_], null_odds: NDArray[np.float64]
) -> Threshold:
    """The threshold above which the odds of no answer should mean no answer, as SQuAD 2.0 tunes it.

    scores: (E,) of the answers given if nothing is held back. answered: where those are not empty; to a question without an
    answer, one of articles alone counts as wrong here. The threshold is the odds of the last answer that it lets through.

    It gives that very score. The official script's may not, which parts answers of equal odds, as no threshold can, and says 0
    where holding all back is best, whatever the odds: here it is then 0 or what is less than all of them.
    """
    order = np.argsort(null_odds, kind="stable")
    odds = null_odds[order]
    gains = np.where(answerable, scores, np.where(answered, -1.0, 0.0))[order]
    totals = np.cumsum(np.concatenate([[float((~answerable).sum())], gains]))  # (E + 1,) by how many answers are given
    totals[1:-1][odds[1:] == odds[:-1]] = -np.inf
    best = int(np.argmax(totals))
    hold_all = 0.0 if odds[0] > 0 else float(odds[0]) - 1
    return Threshold(float(totals[best]) / len(scores), float(odds[best - 1]) if best else hold_all)


# --- words -------------------------------------------------------------------------------------------------------------

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:an?|the)\b")


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _f1_of_words(found: list[str], known: list[str], both_empty: float) -> float:
    if not found and not known:
        return both_empty
    return _f1((Counter(found) & Counter(known)).total(), len(found), len(known))


def _f1(common: int, found: int, known: int) -> float:
    if not common:
        return 0.0
    precision, recall = common / found, common / known
    return 2 * precision * recall / (precision + recall)


# --- characters ----------------------------------------------------------------------------------------------------------

# CMRC 2018's own list: ASCII's quotes, brackets, comma and full stop are not in it, nor is a single U+2026.
_PUNCTUATION = (
    "-:_*^/\\~`+=\uff0c\u3002\uff1a\uff1f\uff01\u201c\u201d\uff1b\u2019\u300a\u300b\u00b7\u3001"
    "\u300c\u300d\uff08\uff09\uff0d\uff5e\u300e\u300f"
)
_DROP = str.maketrans("", "", _PUNCTUATION)
_CHINESE = re.compile("([\u4e00-\u9fa5])")


def _without_punctuation(text: str) -> str:
    return text.lower().strip().translate(_DROP)


def _segments(text: str) -> list[str]:
    """Chinese characters one by one, and the words between them."""
    found = []
    for at, part in enumerate(_CHINESE.split(_without_punctuation(text))):
        if at % 2:
            found.append(part)
        elif part:
            found += _treebank_words(part)
    return found


def _f1_of_substring(found: list[str], known: list[str]) -> float:
    """F1 of the longest run of segments that both have."""
    longest = 0
    previous = [0] * (len(known) + 1)
    for segment in found:
        row = [0] * (len(known) + 1)
        for at, other in enumerate(known):
            if segment == other:
                row[at + 1] = previous[at] + 1
                longest = max(longest, row[at + 1])
        previous = row
    return _f1(longest, len(found), len(known))


_ALONE = re.compile(r"(\.{2,}|''|[;@#$%&?!()\[\]{}<>\u2012-\u2015\u00ab\u00bb\u2018\u201e\"]|,(?!\d))")
_LAST_STOP = re.compile(r"(?<=[^.])\.(?=[\])}>\"'\u00bb ]*$)")
_OPENING = re.compile(r"(?<=[ (\[{<])(?:\"|'')")
_APOSTROPHE = re.compile(r"(?<!\w)'(?!(?:re|ve|ll|[mtsdn])\b)(?=\w)")
_CLITIC = re.compile(r"(?<=[^' ])('s|'m|'d|'ll|'re|'ve|n't|')$")
_CONTRACTED = re.compile(r"(can)(not)|(d)('ye)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(more)('n)|(wan)(na)|('t)(is|was)")


def _treebank_words(text: str) -> list[str]:
    """Lower-cased text in words as the Penn Treebank has them, a sentence: full stops within it stay with their words."""
    text = _OPENING.sub(" `` ", re.sub('^"', "`` ", text))
    text = _APOSTROPHE.sub("' ", _LAST_STOP.sub(" . ", text))
    words: list[str] = []
    for word in _ALONE.sub(r" \1 ", text).split():
        clitic = _CLITIC.search(word) if word != "''" else None
        for part in (word[: clitic.start()], clitic[0]) if clitic else (word,):
            contracted = _CONTRACTED.fullmatch(part)
            words += [piece for piece in contracted.groups() if piece] if contracted else [part.replace('"', "''")]
    return words
