"""Scores of taggers: chunks by seqeval, in its default mode and in its strict one; accuracy of words and of whole sentences."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.tasks.tags import convert

Sentences = Sequence[Sequence[str]]


def score_tags(
    predicted: Sentences, gold: Sentences, scheme: str | None, intents: tuple[Sequence[str], Sequence[str]] | None = None
) -> dict[str, float | None]:
    """With a scheme: f1, precision and recall of chunks as conlleval counts them, strict_f1 by the scheme's letter, and
    f1_TYPE; in any case accuracy of words and sentence_accuracy (all tags of a sentence, and its intent).

    intents: predicted and gold ones, which also gives intent_accuracy.
    """
    words = [p == g for one, other in zip(predicted, gold, strict=True) for p, g in zip(one, other, strict=True)]
    whole = [list(one) == list(other) for one, other in zip(predicted, gold, strict=True)]
    accuracy = {"accuracy": _share(words)}
    if intents is not None:
        right = [p == g for p, g in zip(*intents, strict=True)]
        accuracy["intent_accuracy"] = _share(right)
        whole = [both and intent for both, intent in zip(whole, right, strict=True)]
    accuracy["sentence_accuracy"] = _share(whole)
    if scheme is None:
        return accuracy
    overall, by_type = _chunk_scores(predicted, gold, scheme)
    return {**overall, **accuracy, **{f"f1_{kind}": value for kind, value in by_type.items()}}


def tag_scorer(
    predicted: Sentences, gold: Sentences, scheme: str | None
) -> Callable[[NDArray[np.int64]], dict[str, float | None]]:
    """Of any of these sentences, maybe drawn more than once: f1, precision and recall of chunks, accuracy, sentence_accuracy.

    They are those of `score_tags`, from what is counted of each sentence once.
    """
    right = np.array([sum(p == g for p, g in zip(*pair, strict=True)) for pair in zip(predicted, gold, strict=True)])
    words = np.array([len(row) for row in gold])
    chunks = None if scheme is None else _chunk_counts(predicted, gold)  # (S, 3) right, predicted, gold

    def scores(rows: NDArray[np.int64]) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        if chunks is not None:
            true, taken, known = chunks[rows].sum(axis=0).tolist()
            ratios = {"f1": (2 * true, taken + known), "precision": (true, taken), "recall": (true, known)}
            found |= {name: part / whole if whole else None for name, (part, whole) in ratios.items()}
        found["accuracy"] = float(right[rows].sum() / max(1, words[rows].sum()))
        found["sentence_accuracy"] = float((right[rows] == words[rows]).mean())
        return found

    return scores


def _chunk_counts(predicted: Sentences, gold: Sentences) -> NDArray[np.int64]:
    """(S, 3) chunks of each sentence: right, predicted and gold, as seqeval's default mode finds them."""
    from seqeval.metrics.sequence_labeling import get_entities

    pairs = ((set(get_entities(p)), set(get_entities(g))) for p, g in zip(_spelt(predicted), _spelt(gold), strict=True))
    return np.array([(len(taken & known), len(taken), len(known)) for taken, known in pairs])


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None


def _chunk_scores(predicted: Sentences, gold: Sentences, scheme: str) -> tuple[dict[str, float | None], dict[str, float]]:
    """Scores over all chunks, and F1 by type; None where neither side has a chunk."""
    from seqeval.metrics import classification_report
    from seqeval.scheme import IOB2, IOBES

    predicted, gold = _spelt(predicted), _spelt(gold)
    if all(tag == "O" for rows in (predicted, gold) for row in rows for tag in row):
        return dict.fromkeys(("f1", "precision", "recall", "strict_f1")), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types without a chunk on one side: their score is 0
        report = classification_report(gold, predicted, output_dict=True, zero_division=0)
        if scheme == "iob1":  # strict mode knows a chunk's begin by its B alone
            predicted, gold = ([convert(row, "iob2") for row in rows] for rows in (predicted, gold))
        letter = IOBES if scheme == "iobes" else IOB2
        if scheme == "iob2":  # seqeval refuses a tag of another scheme, which is no chunk by the letter of this one
            predicted, gold = ([[tag if tag[0] in "BIO" else "O" for tag in row] for row in rows] for rows in (predicted, gold))
        strict = classification_report(gold, predicted, output_dict=True, zero_division=0, mode="strict", scheme=letter)
    overall: dict[str, float | None] = {
        "f1": float(report["micro avg"]["f1-score"]),
        "precision": float(report["micro avg"]["precision"]),
        "recall": float(report["micro avg"]["recall"]),
        "strict_f1": float(strict.get("micro avg", {"f1-score": 0.0})["f1-score"]),
    }
    return overall, {kind: float(row["f1-score"]) for kind, row in report.items() if not kind.endswith(" avg")}


def _spelt(sentences: Sentences) -> list[list[str]]:
    """Tags with the prefixes that seqeval knows: of BMES M becomes I, of BILOU L becomes E and U becomes S."""
    letters = {"M": "I", "L": "E", "U": "S"}
    return [[letters.get(tag[:1], tag[:1]) + tag[1:] for tag in row] for row in sentences]
