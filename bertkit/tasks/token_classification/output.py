"""Tagged sentences as they go out: JSON with places, CoNLL columns, coloured text. The words are those that came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from bertkit.errors import DataError
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.tasks.token_classification.tags import spans_of

_WHITE_SPACE = frozenset("\t\n\r\v\f")
_COLOURS = ("green", "magenta", "cyan", "yellow", "blue", "red")


class _Chunk(NamedTuple):
    """words: the first, and the one after the last. probability: that of its least certain word."""

    words: slice
    kind: str
    probability: float


def _chunks(prediction: Mapping[str, Any]) -> list[_Chunk]:
    probabilities = prediction["probabilities"]
    return [_Chunk(slice(a, b), kind, min(probabilities[a:b])) for a, b, kind in spans_of(prediction["tags"])]


def _words(examples: Examples, at: int) -> list[str]:
    """The words as they came, before a recipe stripped what is no part of them."""
    return examples.columns.get("given", examples.columns["tokens"])[at]


def as_row(prediction: Mapping[str, Any], examples: Examples, at: int, *, chunks: bool) -> dict[str, Any]:
    """A prediction as a JSON object: text, its words and their offsets in it, in characters, end exclusive; and its chunks.

    Words that came without a text are joined by spaces to one.
    """
    text, places = _text_of(examples, at)
    row: dict[str, Any] = {
        "text": text,
        "tokens": _words(examples, at),
        "offsets": [[*place] for place in places],
        **prediction,
    }
    if chunks:
        row["entities"] = []
        for chunk in _chunks(prediction):
            start, end = places[chunk.words.start][0], places[chunk.words.stop - 1][1]
            found = {"start": start, "end": end, "label": chunk.kind, "text": text[start:end], "probability": chunk.probability}
            row["entities"].append(found)
    return row


def as_conll(predictions: Sequence[Mapping[str, Any]], examples: Examples) -> str:
    """A word a line with its probability and, last as readers expect it, its tag; parted by tabs, sentences by a blank line.

    Raises DataError for a word that the columns cannot hold.
    """
    sentences = []
    for at, found in enumerate(predictions):
        words = _words(examples, at)
        unfit = next((word for word in words if not word or _WHITE_SPACE & set(word)), None)
        if unfit is not None:
            what = f"the word {unfit!r} is empty or holds a tab or line end, which CoNLL columns cannot"
            raise DataError(what, where=examples.where(at), hint="write .jsonl")
        rows = zip(words, found["probabilities"], found["tags"], strict=True)
        sentences.append("".join(f"{word}\t{probability:.4f}\t{tag}\n" for word, probability, tag in rows))
    return "\n".join(sentences)


def as_text(prediction: Mapping[str, Any], examples: Examples, at: int, *, chunks: bool) -> Text:
    """The text with its chunks in brackets and colour, "[PER Grace 0.98] paid"; without chunks "Grace/PROPN 0.98"."""
    words, line = _words(examples, at), Text()
    if not chunks:
        for word, tag, probability in zip(words, prediction["tags"], prediction["probabilities"], strict=True):
            line += plain(word) + Text(f"/{tag} {probability:.2f}  ", style="dim")
    else:
        text, places = _text_of(examples, at)
        done = 0
        for chunk in _chunks(prediction):
            start, end = places[chunk.words.start][0], places[chunk.words.stop - 1][1]
            colour = _COLOURS[sum(map(ord, chunk.kind)) % len(_COLOURS)]
            line += plain(text[done:start]) + Text(f"[{chunk.kind} ", style=colour)
            line += Text(plain(text[start:end]).plain, style=f"bold {colour}")
            line += Text(f" {chunk.probability:.2f}]", style=colour)
            done = end
        line += plain(text[done:])
    if prediction.get("intent"):
        line += Text(f"  ({prediction['intent']})", style="bold")
    return line


def _text_of(examples: Examples, at: int) -> tuple[str, list[tuple[int, int]]]:
    """A sentence's text and the places of its words in it; words that came without a text are joined by spaces."""
    if "places" in examples.columns:
        return examples.columns["text"][at], examples.columns["places"][at]
    words, places, begin = _words(examples, at), [], 0
    for word in words:
        places.append((begin, begin + len(word)))
        begin += len(word) + 1
    return " ".join(words), places
