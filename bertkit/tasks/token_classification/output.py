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
    """start, end: in characters. probability: of its least certain word."""

    start: int
    end: int
    label: str
    probability: float


def _chunks(prediction: Prediction, places: Sequence[tuple[int, int]]) -> list[_Chunk]:
    return [
        _Chunk(places[first][0], places[end - 1][1], kind, min(prediction.probabilities[first:end]))
        for first, end, kind in spans_of(prediction.value)
    ]


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
        fields["entities"] = [
            {"start": start, "end": end, "label": label, "text": text[start:end], "probability": probability}
            for start, end, label, probability in _chunks(prediction, places)
        ]
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
        for start, end, label, probability in _chunks(prediction, places):
            colour = _COLOURS[sum(map(ord, label)) % len(_COLOURS)]
            line += plain(text[done:start]) + Text(f"[{label} ", style=colour)
            line += Text(plain(text[start:end]).plain, style=f"bold {colour}") + Text(f" {probability:.2f}]", style=colour)
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
