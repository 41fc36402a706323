"""Scores of taggers: chunks as seqeval finds them in its default and strict modes; accuracy of words and of whole sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.report import Table
from bertkit.tasks.class_report import lowest_f1_first
from bertkit.tasks.token_classification.tags import canonical, convert

Sentences = Sequence[Sequence[str]]
Intents = tuple[Sequence[str | None], Sequence[str | None]]  # predicted ones and references


class Tagged(NamedTuple):
    """The reference of a sentence; intent: None if none is learned."""

    tags: list[str]
    intent: str | None = None


Chunk = tuple[str, int, int]  # type, first and last word
Chunks = Sequence[set[Chunk]]  # of each sentence


def tag_scorer(
    predicted: Sentences, references: Sentences, scheme: str | None, intents: Intents | None = None
) -> Callable[[NDArray[np.int64]], dict[str, float | None]]:
    """A function that scores any selection of these sentences, with repeats; the chunks of each are counted only once.

    With a scheme: f1, precision and recall of chunks as in conlleval, strict_f1 as in seqeval's strict mode, and f1_TYPE.
    Always: accuracy of words and sentence_accuracy (all tags of a sentence, and its intent). With intents: intent_accuracy. A
    score is None if there is nothing to score.
    """
    right = np.array([sum(p == g for p, g in zip(*pair, strict=True)) for pair in zip(predicted, references, strict=True)])
    words = np.array([len(row) for row in references])
    whole, intent = right == words, None
    if intents is not None:
        intent = np.array([p == g for p, g in zip(*intents, strict=True)])
        whole = whole & intent
    if scheme is not None:
        predicted, references = ([[canonical(tag) for tag in row] for row in side] for side in (predicted, references))
        kinds, chunks = _count(_chunks(predicted), _chunks(references))
        strict = _count(_strict_chunks(predicted, scheme), _strict_chunks(references, scheme))[1].sum(axis=1)  # (S, 3)

    def scores(rows: NDArray[np.int64]) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        times = np.bincount(rows, minlength=len(whole)).astype(np.float64)  # products of integers are exact
        by_type: dict[str, float | None] = {}
        if scheme is not None:
            counts = np.tensordot(times, chunks, 1)  # (T, 3)
            true, taken, known = total = counts.sum(axis=0)
            found |= {"f1": _f1(total), "precision": None, "recall": None, "strict_f1": None}
            if found["f1"] is not None:
                found |= {"precision": _share(true, taken) or 0.0, "recall": _share(true, known) or 0.0}
                found["strict_f1"] = _f1(times @ strict) or 0.0
            by_type = {f"f1_{kind}": _f1(of_type) for kind, of_type in zip(kinds, counts, strict=True)}
        found["accuracy"] = _share(right[rows].sum(), words[rows].sum())
        if intent is not None:
            found["intent_accuracy"] = _share(intent[rows].sum(), len(rows))
        found["sentence_accuracy"] = _share(whole[rows].sum(), len(rows))
        return found | by_type

    return scores


def describe_types(predicted: Sentences, references: Sentences) -> Table:
    """Precision, recall and F1 of each type of chunk, as `tag_scorer` counts them, and the kinds of errors.

    Each chunk not found counts once: wrong type, if one is predicted at the same place; wrong bounds, if a predicted chunk of
    its type overlaps it; both wrong, if only other types do; or missed. A predicted chunk that overlaps none is spurious.
    """
    predicted, references = ([[canonical(tag) for tag in row] for row in side] for side in (predicted, references))
    of_predicted, of_references = _chunks(predicted), _chunks(references)
    kinds, counts = _count(of_predicted, of_references)
    faults: Counter[tuple[str, str]] = Counter()
    for taken, known in zip(of_predicted, of_references, strict=True):
        faults.update((chunk[0], _fault(chunk, taken)) for chunk in known - taken)
        faults.update((chunk[0], "spurious") for chunk in taken if not _overlapping(chunk, known))
    rows = []
    for kind, (right, given, chunks) in zip(kinds, counts.sum(axis=0).tolist(), strict=True):
        scores = (right / max(given, 1), right / max(chunks, 1), 2 * right / (given + chunks))
        rows.append([kind, *scores, int(chunks), int(given), *(faults[kind, fault] for fault in _FAULTS)])
    columns = ["label", "precision", "recall", "f1", "chunks", "predicted", *_FAULTS]
    return lowest_f1_first("type", columns, rows)


_FAULTS = ("wrong type", "wrong bounds", "both wrong", "missed", "spurious")


def _fault(chunk: Chunk, taken: set[Chunk]) -> str:
    """The kind of error in the prediction for a chunk."""
    near = _overlapping(chunk, taken)
    if any(other[1:] == chunk[1:] for other in near):
        return "wrong type"
    return "missed" if not near else "wrong bounds" if any(other[0] == chunk[0] for other in near) else "both wrong"


def _overlapping(chunk: Chunk, others: set[Chunk]) -> list[Chunk]:
    return [other for other in others if other[1] <= chunk[2] and other[2] >= chunk[1]]


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _f1(counts: NDArray[np.float64]) -> float | None:
    """F1 from the numbers of right, predicted and reference chunks; None if the last two are 0."""
    right, predicted, references = counts
    return _share(2 * right, predicted + references)


def _count(predicted: Chunks, references: Chunks) -> tuple[list[str], NDArray[np.float64]]:
    """The types of chunks, and (S, T, 3): the numbers of right, predicted and reference chunks in each sentence."""
    kinds = sorted({kind for side in (predicted, references) for chunks in side for kind, _, _ in chunks})
    place = {kind: at for at, kind in enumerate(kinds)}
    counts = np.zeros((len(references), len(kinds), 3))
    for row, (taken, known) in enumerate(zip(predicted, references, strict=True)):
        for at, chunks in enumerate((taken & known, taken, known)):
            for kind, _, _ in chunks:
                counts[row, place[kind], at] += 1
    return kinds, counts


def _chunks(sentences: Sentences) -> Chunks:
    """The chunks that seqeval's default mode, and conlleval, find."""
    from seqeval.metrics.sequence_labeling import get_entities

    return [set(get_entities(list(row))) for row in sentences]


def _strict_chunks(sentences: Sentences, scheme: str) -> Chunks:
    """The chunks that seqeval's strict mode finds."""
    from seqeval.scheme import IOB2, IOBES, Entities

    if scheme == "iob1":  # in strict mode a chunk must begin with B
        sentences = [convert(row, "iob2") for row in sentences]
    if scheme == "iob2":  # seqeval refuses tags of other schemes; in strict mode they are not chunks
        sentences = [[tag if tag[0] in "BIO" else "O" for tag in row] for row in sentences]
    found = Entities([list(row) for row in sentences], IOBES if scheme == "iobes" else IOB2).entities
    return [{(chunk.tag, chunk.start, chunk.end) for chunk in chunks} for chunks in found]
