"""Predicted tags as JSON with places, as CoNLL columns, and as coloured text; the words are those of the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.text import Text

from bertkit.errors import DataError
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.tasks.task import Prediction
from bertkit.tasks.token_classification.sentences import GIVEN
from bertkit.tasks.token_classification.tags import spans_of

_WHITE_SPACE = frozenset("\t\n\r\v\f")
_COLOURS = ("green", "magenta", "cyan", "yellow", "blue", "red")


class _Chunk(NamedTuple):
    """words: from the first to the one after the last. probability: of its least certain word."""

    words: slice
    kind: str
    probability: float


def _chunks(prediction: Prediction) -> list[_Chunk]:
    probabilities = prediction.probabilities
    return [_Chunk(slice(a, b), kind, min(probabilities[a:b])) for a, b, kind in spans_of(prediction.value)]


def _words(examples: Examples, row: int) -> list[str]:
    """The original words, before a recipe changed them."""
    return examples.columns.get(GIVEN, examples.columns["tokens"])[row]


def as_row(prediction: Prediction, examples: Examples, row: int, *, chunks: bool) -> dict[str, Any]:
    """A prediction as a JSON object: the text, its words and their offsets in characters, end exclusive; and its chunks.

    Words without a text are joined by spaces.
    """
    text, places = _text_of(examples, row)
    fields: dict[str, Any] = {
        "text": text,
        "tokens": _words(examples, row),
        "offsets": [[*place] for place in places],
        "tags": prediction.value,
        "probabilities": prediction.probabilities,
        **prediction.details,
    }
    if chunks:
        fields["entities"] = []
        for chunk in _chunks(prediction):
            start, end = places[chunk.words.start][0], places[chunk.words.stop - 1][1]
            entity = {"start": start, "end": end, "label": chunk.kind, "text": text[start:end]}
            fields["entities"].append(entity | {"probability": chunk.probability})
    return fields


def as_conll(predictions: Sequence[Prediction], examples: Examples) -> str:
    """One word per line, its probability and, in the last column, its tag, separated by tabs; a blank line between sentences.

    Raises DataError for a word that the columns cannot hold.
    """
    sentences = []
    for row, prediction in enumerate(predictions):
        words = _words(examples, row)
        unfit = next((word for word in words if not word or _WHITE_SPACE & set(word)), None)
        if unfit is not None:
            what = f"the word {unfit!r} is empty or contains a tab or line end, which CoNLL columns cannot hold"
            raise DataError(what, where=examples.where(row), hint="write .jsonl")
        lines = zip(words, prediction.probabilities, prediction.value, strict=True)
        sentences.append("".join(f"{word}\t{probability:.4f}\t{tag}\n" for word, probability, tag in lines))
    return "\n".join(sentences)


def as_text(prediction: Prediction, examples: Examples, row: int, *, chunks: bool) -> Text:
    """The text with its chunks in brackets and colour, "[PER Grace 0.98] paid"; without chunks "Grace/PROPN 0.98"."""
    words, line = _words(examples, row), Text()
    if not chunks:
        for word, tag, probability in zip(words, prediction.value, prediction.probabilities, strict=True):
            line += plain(word) + Text(f"/{tag} {probability:.2f}  ", style="dim")
    else:
        text, places = _text_of(examples, row)
        done = 0
        for chunk in _chunks(prediction):
            start, end = places[chunk.words.start][0], places[chunk.words.stop - 1][1]
            colour = _COLOURS[sum(map(ord, chunk.kind)) % len(_COLOURS)]
            line += plain(text[done:start]) + Text(f"[{chunk.kind} ", style=colour)
            line += Text(plain(text[start:end]).plain, style=f"bold {colour}")
            line += Text(f" {chunk.probability:.2f}]", style=colour)
            done = end
        line += plain(text[done:])
    if prediction.details.get("intent"):
        line += Text(f"  ({prediction.details['intent']})", style="bold")
    return line


def _text_of(examples: Examples, row: int) -> tuple[str, list[tuple[int, int]]]:
    """A sentence's text and the places of its words in it; words without a text are joined by spaces."""
    if "places" in examples.columns:
        return examples.columns["text"][row], examples.columns["places"][row]
    words, places, begin = _words(examples, row), [], 0
    for word in words:
        places.append((begin, begin + len(word)))
        begin += len(word) + 1
    return " ".join(words), places
