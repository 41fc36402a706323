"""Scores of taggers: chunks as seqeval finds them, by default and by the letter; accuracy of words and of whole sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.tasks.token_classification.tags import convert

Sentences = Sequence[Sequence[str]]
Intents = tuple[Sequence[str | None], Sequence[str | None]]  # predicted and gold
Chunks = Sequence[set[tuple[str, int, int]]]  # of each sentence: type, first and last word


def score_tags(
    predicted: Sentences, gold: Sentences, scheme: str | None, intents: Intents | None = None
) -> dict[str, float | None]:
    """With a scheme: f1, precision and recall of chunks as conlleval counts them, strict_f1 by the scheme's letter, and
    f1_TYPE; in any case accuracy of words and sentence_accuracy (all tags of a sentence, and its intent).

    intents also give intent_accuracy. None is a score of nothing.
    """
    return tag_scorer(predicted, gold, scheme, intents)(np.arange(len(gold)))


def tag_scorer(
    predicted: Sentences, gold: Sentences, scheme: str | None, intents: Intents | None = None
) -> Callable[[NDArray[np.int64]], dict[str, float | None]]:
    """`score_tags` of any of these sentences, maybe drawn more than once, from what is counted of each sentence once."""
    right = np.array([sum(p == g for p, g in zip(*pair, strict=True)) for pair in zip(predicted, gold, strict=True)])
    words = np.array([len(row) for row in gold])
    whole, intent = right == words, None
    if intents is not None:
        intent = np.array([p == g for p, g in zip(*intents, strict=True)])
        whole = whole & intent
    if scheme is not None:
        predicted, gold = _spelt(predicted), _spelt(gold)
        kinds, chunks = _count(_chunks(predicted), _chunks(gold))
        strict = _count(_strict_chunks(predicted, scheme), _strict_chunks(gold, scheme))[1].sum(axis=1)  # (S, 3)

    def scores(rows: NDArray[np.int64]) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        times = np.bincount(rows, minlength=len(whole)).astype(np.float64)  # a product with which is an exact sum
        by_type: dict[str, float | None] = {}
        if scheme is not None:
            counts = np.tensordot(times, chunks, 1)  # (T, 3)
            true, taken, known = total = counts.sum(axis=0)
            found |= {"f1": _f1(total), "precision": None, "recall": None, "strict_f1": None}
            if found["f1"] is not None:
                found |= {"precision": _share(true, taken) or 0.0, "recall": _share(true, known) or 0.0}
                found["strict_f1"] = _f1(times @ strict) or 0.0
            by_type = {f"f1_{kind}": _f1(of_kind) for kind, of_kind in zip(kinds, counts, strict=True)}
        found["accuracy"] = _share(right[rows].sum(), words[rows].sum())
        if intent is not None:
            found["intent_accuracy"] = _share(intent[rows].sum(), len(rows))
        found["sentence_accuracy"] = _share(whole[rows].sum(), len(rows))
        return found | by_type

    return scores


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _f1(counts: NDArray[np.float64]) -> float | None:
    """Of chunks right, predicted and gold; None where there are none to find and none is found."""
    right, predicted, gold = counts
    return _share(2 * right, predicted + gold)


def _count(predicted: Chunks, gold: Chunks) -> tuple[list[str], NDArray[np.float64]]:
    """The types of chunks, and (S, T, 3) how many of each are right, predicted and gold in each sentence."""
    kinds = sorted({kind for side in (predicted, gold) for chunks in side for kind, _, _ in chunks})
    place = {kind: at for at, kind in enumerate(kinds)}
    counts = np.zeros((len(gold), len(kinds), 3))
    for row, (taken, known) in enumerate(zip(predicted, gold, strict=True)):
        for at, chunks in enumerate((taken & known, taken, known)):
            for kind, _, _ in chunks:
                counts[row, place[kind], at] += 1
    return kinds, counts


def _chunks(sentences: Sentences) -> Chunks:
    """As seqeval's default mode, and conlleval, find them."""
    from seqeval.metrics.sequence_labeling import get_entities

    return [set(get_entities(list(row))) for row in sentences]


def _strict_chunks(sentences: Sentences, scheme: str) -> Chunks:
    """As seqeval's strict mode finds them."""
    from seqeval.scheme import IOB2, IOBES, Entities

    if scheme == "iob1":  # strict mode knows a chunk's begin by its B alone
        sentences = [convert(row, "iob2") for row in sentences]
    if scheme == "iob2":  # seqeval refuses a tag of another scheme, which is no chunk by the letter of this one
        sentences = [[tag if tag[0] in "BIO" else "O" for tag in row] for row in sentences]
    found = Entities([list(row) for row in sentences], IOBES if scheme == "iobes" else IOB2).entities
    return [{(chunk.tag, chunk.start, chunk.end) for chunk in chunks} for chunks in found]


def _spelt(sentences: Sentences) -> list[list[str]]:
    """Tags with the prefixes that seqeval knows: of BMES M becomes I, of BILOU L becomes E and U becomes S."""
    letters = {"M": "I", "L": "E", "U": "S"}
    return [[letters.get(tag[:1], tag[:1]) + tag[1:] for tag in row] for row in sentences]
