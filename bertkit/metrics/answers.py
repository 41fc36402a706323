"""Exact match and F1 of answers, by the rules of three data sets: SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018), CMRC 2018.

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
    """Scores of a prediction against the best matching reference."""

    exact: float
    f1: float


class Threshold(NamedTuple):
    """The best mean score over all thresholds of null_odds, and its threshold.

    between: gives the same decisions on these rows, but is halfway to the next null_odds, as other batches round differently.
    """

    score: float
    value: float
    between: float


def score_words(prediction: str, references: Sequence[str], *, unanswerable: bool) -> Score:
    """The score by SQuAD 1.1 or, with `unanswerable`, by 2.0. Without references, only an empty answer is right.

    They differ for answers of only articles and punctuation: for 2.0 these are no answer, for 1.1 an answer with an F1 of 0.
    """
    words, accepted = _words(prediction), [_words(reference) for reference in references]
    both_empty = 0.0
    if unanswerable or not accepted:
        accepted, both_empty = [each for each in accepted if each] or [[]], 1.0
    exact = max(float(each == words) for each in accepted)
    return Score(exact, max(_f1_of_words(words, each, both_empty) for each in accepted))


def score_characters(prediction: str, references: Sequence[str]) -> Score:
    """The score by CMRC 2018. Without references, only an empty answer is right."""
    if not references:
        return Score(float(not prediction), float(not prediction))
    plain = _without_punctuation(prediction)
    segments = _segments(prediction)
    exact = any(_without_punctuation(reference) == plain for reference in references)
    return Score(float(exact), max(_f1_of_substring(segments, _segments(reference)) for reference in references))


def best_threshold(
    scores: NDArray[np.float64], answerable: NDArray[np.bool_], answered: NDArray[np.bool_], null_odds: NDArray[np.float64]
) -> Threshold:
    """The threshold of null_odds above which no answer is predicted, tuned as SQuAD 2.0 does.

    scores: (E,) of the best answers. answered: (E,) whether these are not empty; one of articles alone is wrong here for a
    question without an answer. The threshold is the null_odds of the last answer that is given.

    It gives exactly the returned score. The official script's threshold may not: the script separates answers with equal odds,
    which no threshold can, and returns 0 if it is best to give no answer at all; here that is 0, or less than all odds.
    """
    order = np.argsort(null_odds, kind="stable")
    odds = null_odds[order]
    gains = np.where(answerable, scores, np.where(answered, -1.0, 0.0))[order]
    totals = np.cumsum(np.concatenate([[float((~answerable).sum())], gains]))  # (E + 1,) by how many answers are given
    totals[1:-1][odds[1:] == odds[:-1]] = -np.inf
    best = int(np.argmax(totals))
    hold_all = 0.0 if odds[0] > 0 else float(odds[0]) - 1
    value = float(odds[best - 1]) if best else hold_all
    above = float(odds[best]) if best < len(odds) else value + 2
    return Threshold(float(totals[best]) / len(scores), value, (value + above) / 2)


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
_CHINESE = "([\u4e00-\u9fa5])"  # compiled on first use, as that takes milliseconds


def _without_punctuation(text: str) -> str:
    return text.lower().strip().translate(_DROP)


def _segments(text: str) -> list[str]:
    """Chinese characters one by one, and the words between them."""
    segments = []
    for number, part in enumerate(re.split(_CHINESE, _without_punctuation(text))):
        if number % 2:  # a match of the pattern
            segments.append(part)
        elif part:
            segments += _treebank_words(part)
    return segments


def _f1_of_substring(found: list[str], known: list[str]) -> float:
    """F1 of the longest run of segments in common."""
    longest = 0
    previous = [0] * (len(known) + 1)
    for segment in found:
        row = [0] * (len(known) + 1)
        for column, other in enumerate(known):
            if segment == other:
                row[column + 1] = previous[column] + 1
                longest = max(longest, row[column + 1])
        previous = row
    return _f1(longest, len(found), len(known))


_ALONE = re.compile(r"(\.{2,}|''|[;@#$%&?!()\[\]{}<>\u2012-\u2015\u00ab\u00bb\u2018\u201e\"]|,(?!\d))")
_LAST_STOP = re.compile(r"(?<=[^.])\.(?=[\])}>\"'\u00bb ]*$)")
_OPENING = re.compile(r"(?<=[ (\[{<])(?:\"|'')")
_APOSTROPHE = re.compile(r"(?<!\w)'(?!(?:re|ve|ll|[mtsdn])\b)(?=\w)")
_CLITIC = re.compile(r"(?<=[^' ])('s|'m|'d|'ll|'re|'ve|n't|')$")
_CONTRACTED = re.compile(r"(can)(not)|(d)('ye)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(more)('n)|(wan)(na)|('t)(is|was)")


def _treebank_words(text: str) -> list[str]:
    """The words of a lower-cased sentence as in the Penn Treebank; full stops within it stay with their words."""
    text = _OPENING.sub(" `` ", re.sub('^"', "`` ", text))
    text = _APOSTROPHE.sub("' ", _LAST_STOP.sub(" . ", text))
    words: list[str] = []
    for word in _ALONE.sub(r" \1 ", text).split():
        clitic = _CLITIC.search(word) if word != "''" else None
        for part in (word[: clitic.start()], clitic[0]) if clitic else (word,):
            contracted = _CONTRACTED.fullmatch(part)
            words += [piece for piece in contracted.groups() if piece] if contracted else [part.replace('"', "''")]
    return words
