"""Baselines that a fine-tuned model must beat: predictions fitted in seconds, without training the model."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.readers import Examples
from bertkit.text.words import CJK

MAJORITY, BAG_OF_WORDS, LINEAR_PROBE = "most frequent", "bag of words", "linear probe"
EACH_WORD, MEAN = "most frequent of each word", "mean"
NO_ANSWER, SLIDING_WINDOW = "no answer", "sliding window"


class Frozen(NamedTuple):
    """A model with frozen weights. vectors: a function from rows to their vectors, float (rows, hidden_size), or for tagged
    sentences to those of all words, (words, hidden_size). most_rows: the maximum number of rows to train a probe on.
    """

    vectors: Callable[[Examples], NDArray[np.floating]]
    most_rows: int


_WORD = f"[{CJK}]|[^\\W{CJK}]+"  # compiled on first use, as that takes milliseconds
T = TypeVar("T", bound=Hashable)


def most_frequent(values: Sequence[T]) -> T:
    """The most frequent value; on ties, the first."""
    return Counter(values).most_common(1)[0][0]


def bag_of_words(columns: Sequence[Sequence[str]], targets: NDArray[Any], new: Sequence[Sequence[str]]) -> NDArray[Any] | None:
    """Targets for new rows, by a linear model of word counts, separate for each column. columns, new: texts by column.

    Columns without a word are left out; None if all are.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import CountVectorizer

    sides = [pair for pair in zip(columns, new, strict=True) if any(map(_words, pair[0]))]
    if not sides:
        return None
    counters = [CountVectorizer(tokenizer=_words, token_pattern=None, binary=True).fit(column) for column, _ in sides]
    known, unknown = (
        hstack([counter.transform(column) for counter, column in zip(counters, texts, strict=True)]).tocsr()
        for texts in zip(*sides, strict=True)
    )
    return fit_linear(known, targets, unknown)


def probe(model: Frozen, train: Examples, targets: NDArray[Any], new: Examples) -> NDArray[Any]:
    """Targets for new rows, by a linear model of frozen vectors (Alain and Bengio, 2016)."""
    drawn = some_rows(len(train), model.most_rows)
    return fit_to_vectors(model.vectors(train.select(drawn)), targets[drawn], model.vectors(new))


def fit_to_vectors(known: NDArray[np.floating], targets: NDArray[Any], unknown: NDArray[np.floating]) -> NDArray[Any]:
    """Like `fit_linear`, but standardizes the vectors first."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(known)
    return fit_linear(scaler.transform(known), targets, scaler.transform(unknown))


def some_rows(count: int, most: int) -> list[int]:
    """The numbers of at most `most` rows, in order; drawn at random if there are more."""
    if count <= most:
        return [*range(count)]
    return sorted(np.random.default_rng(0).permutation(count)[:most].tolist())


def fit_linear(known: Any, targets: NDArray[Any], unknown: Any) -> NDArray[Any]:
    """Predicted targets: numbers by ridge regression; classes, or several labels (E, C), by logistic regression."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    if targets.ndim == 2:
        model = OneVsRestClassifier(LogisticRegression(max_iter=1000))
    elif np.issubdtype(targets.dtype, np.floating):
        model = Ridge()
    elif len(np.unique(targets)) == 1:
        return np.full(unknown.shape[0], targets[0])
    else:
        model = LogisticRegression(max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a label that no row or every row has, or a fit that did not converge, is fine here
        return model.fit(known, targets).predict(unknown)


class Found(NamedTuple):
    """A span of a text, in characters, and the weighted number of words that its surroundings share with a question."""

    start: int
    end: int
    score: float


def sliding_window(question: str, context: str, length: int) -> Found | None:
    """The span of `length` words (fewer in a shorter context) whose surroundings share most words with the question.

    Follows Richardson et al. (2013), like SQuAD's baseline (Rajpurkar et al., 2016, section 5.1): a word counts log(1 + 1 / its
    frequency in the context), less with its distance, and nothing beyond as many words as the question has. Words inside the
    span count against it, as answers rarely repeat the question. On ties, the first span; None for a context without words.
    """
    found = [*re.finditer(_WORD, context)]
    if not found:
        return None
    words, question_words = [match[0].casefold() for match in found], {*_words(question)}
    times = Counter(words)
    shared = np.array([math.log1p(1 / times[word]) if word in question_words else 0.0 for word in words])
    near = 1 - np.abs(np.arange(-len(question_words), len(question_words) + 1)) / (len(question_words) + 1)
    around = np.convolve(shared, near)[len(question_words) : len(question_words) + len(words)]
    length = min(length, len(words))
    scores = np.convolve(around - 2 * shared, np.full(length, 1 / length), "valid")
    best = int(np.argmax(scores))
    return Found(found[best].start(), found[best + length - 1].end(), float(scores[best]))


def usual_length(texts: Sequence[str]) -> int:
    """The median number of words in these texts, at least 1."""
    return max(1, int(np.median([len(_words(text)) for text in texts] or [1])))


def _words(text: str) -> list[str]:
    return re.findall(_WORD, text.casefold())
