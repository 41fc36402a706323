"""Tagged sentences as they go out: JSON with places, CoNLL columns, coloured text. The words are those that came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.tasks.tags import spans_of

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
    """A prediction as a JSON object: places are in characters where the input was text, else in words; end is exclusive."""
    words = _words(examples, at)
    row: dict[str, Any] = {"text": examples.columns["text"][at]} if "text" in examples.columns else {}
    row |= {"tokens": words, **prediction}
    if chunks:
        row["entities"] = []
        for chunk in _chunks(prediction):
            start, end, text = chunk.words.start, chunk.words.stop, " ".join(words[chunk.words])
            if "places" in examples.columns:
                places = examples.columns["places"][at]
                start, end = places[start][0], places[end - 1][1]
                text = row["text"][start:end]
            found = {"start": start, "end": end, "label": chunk.kind, "text": text, "probability": chunk.probability}
            row["entities"].append(found)
    return row


def as_conll(predictions: Sequence[Mapping[str, Any]], examples: Examples) -> str:
    """A word a line with its probability and, last as readers expect it, its tag; parted by tabs, sentences by a blank line."""
    sentences = [
        "".join(
            f"{word}\t{probability:.4f}\t{tag}\n"
            for word, tag, probability in zip(_words(examples, at), found["tags"], found["probabilities"], strict=True)
        )
        for at, found in enumerate(predictions)
    ]
    return "\n".join(sentences)


def as_text(prediction: Mapping[str, Any], examples: Examples, at: int, *, chunks: bool) -> Text:
    """The text with its chunks in brackets and colour, "[PER Grace] paid"; without chunks each word with its tag."""
    words, line = _words(examples, at), Text()
    if not chunks:
        for word, tag in zip(words, prediction["tags"], strict=True):
            line += plain(word) + Text(f"/{tag} ", style="dim")
    else:
        text, places = _text_of(examples, at)
        done = 0
        for chunk in _chunks(prediction):
            start, end = places[chunk.words.start][0], places[chunk.words.stop - 1][1]
            colour = _COLOURS[sum(map(ord, chunk.kind)) % len(_COLOURS)]
            line += plain(text[done:start]) + Text(f"[{chunk.kind} ", style=colour)
            line += Text(plain(text[start:end]).plain, style=f"bold {colour}") + Text("]", style=colour)
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
