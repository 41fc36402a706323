"""Predicted tags as JSON with places, as CoNLL columns, in CoNLL-U, and as coloured text; the words are those of the input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.text import Text

from bertkit.errors import DataError, UsageError
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.readers.parsers.conll import COLUMNS, CONLLU_LINES
from bertkit.report import Piece
from bertkit.tasks.output import OutputColumns
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.token_classification.sentences import GIVEN
from bertkit.tasks.token_classification.tags import spans_of
from bertkit.text.words import CJK

_WHITE_SPACE = frozenset("\t\n\r\v\f")
# No spaces are written next to these characters. Compiled on first use, as that takes milliseconds.
_SPACELESS = f"[{CJK}\u3000-\u30ff\uff00-\uffef]"
_COLOURS = ("green", "magenta", "cyan", "yellow", "blue", "red")


class _Chunk(NamedTuple):
    """start, end: in characters. probability: of its least certain word."""

    start: int
    end: int
    label: str
    probability: float | None  # of the least certain word; None if it is not a prediction


def _chunks(prediction: Prediction, places: Sequence[tuple[int, int]]) -> list[_Chunk]:
    return [
        _Chunk(
            places[first][0], places[end - 1][1], kind, prediction.probabilities and min(prediction.probabilities[first:end])
        )
        for first, end, kind in spans_of(prediction.value)
    ]


def _words(examples: Examples, row: int) -> list[str]:
    """The original words, before a recipe changed them."""
    return examples.columns.get(GIVEN, examples.columns["tokens"])[row]


def row_columns(*, intents: bool, chunks: bool) -> OutputColumns:
    """The columns of `as_row`."""
    more = (("intent", "intent_probability") if intents else ()) + (("entities",) if chunks else ())
    return OutputColumns(("text", "tokens", "offsets"), ("tags", "probabilities", *more))


def as_row(prediction: Prediction, examples: Examples, row: int, *, chunks: bool) -> dict[str, Any]:
    """A prediction as a JSON object: the text, its words and their offsets in characters, end exclusive; and its chunks.

    Words without a text are joined, by spaces except in Chinese and Japanese.
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
        words = _fitting_words(examples, row)
        lines = zip(words, prediction.probabilities, prediction.value, strict=True)
        sentences.append("".join(f"{word}\t{probability:.4f}\t{tag}\n" for word, probability, tag in lines))
    return "\n".join(sentences)


def as_conllu(predictions: Sequence[Prediction], examples: Examples, column: str) -> str:
    """CoNLL-U with the tags in this column. Sentences read from CoNLL-U keep everything else: comments, other columns, ranges
    and empty nodes; other sentences have only words, tags and "_".

    Raises DataError for a word that the columns cannot hold.
    """
    at = COLUMNS.index(column)
    sentences = []
    for row, prediction in enumerate(predictions):
        tags = iter(prediction.value)
        lines = []
        for line in examples.columns[CONLLU_LINES][row] if CONLLU_LINES in examples.columns else _new_lines(examples, row):
            fields = line.split("\t")
            if fields[0].isdecimal():
                fields[at] = next(tags)
            lines.append("\t".join(fields) + "\n")
        sentences.append("".join(lines) + "\n")
    return "".join(sentences)


def column_to_write(requested: str | None, learned: str | None) -> str:
    """The CoNLL-U column that predicted tags replace. requested: --column. learned: the one in training. Raises UsageError."""
    name = (requested or learned or "").strip().lower()
    name = COLUMNS[int(name) - 1] if name.isdecimal() and 0 < int(name) <= len(COLUMNS) else name
    if name not in COLUMNS[2:]:
        what = f"--column {name} cannot hold tags" if name else "the model's tags do not come from a column of CoNLL-U"
        raise UsageError(what, hint="say which column they replace: --column upos, or xpos, misc ...")
    return name


def _new_lines(examples: Examples, row: int) -> list[str]:
    words = enumerate(_fitting_words(examples, row), start=1)
    return ["\t".join([str(number), word, *["_"] * (len(COLUMNS) - 2)]) for number, word in words]


def _fitting_words(examples: Examples, row: int) -> list[str]:
    """The words of a sentence. Raises DataError for one that columns cannot hold."""
    words = _words(examples, row)
    unfit = next((word for word in words if not word or _WHITE_SPACE & set(word)), None)
    if unfit is not None:
        what = f"the word {unfit!r} is empty or contains a tab or line end, which CoNLL columns cannot hold"
        raise DataError(what, where=examples.where(row), hint="write .jsonl")
    return words


def as_text(prediction: Prediction, examples: Examples, row: int, *, chunks: bool) -> Text:
    """The text with its chunks in brackets and colour, "[PER Grace 0.98] paid"; without chunks "Grace/PROPN 0.98". Tags without
    probabilities are shown without numbers.
    """
    words, line = _words(examples, row), Text()
    if not chunks:
        probabilities = prediction.probabilities or [None] * len(words)
        for word, tag, probability in zip(words, prediction.value, probabilities, strict=True):
            line += plain(word) + Text(f"/{tag}{_number(probability)}  ", style="dim")
    else:
        text, places = _text_of(examples, row)
        done = 0
        for start, end, label, probability in _chunks(prediction, places):
            colour = _COLOURS[sum(map(ord, label)) % len(_COLOURS)]
            line += plain(text[done:start]) + Text(f"[{label} ", style=colour)
            line += Text(plain(text[start:end]).plain, style=f"bold {colour}") + Text(f"{_number(probability)}]", style=colour)
            done = end
        line += plain(text[done:])
    line.rstrip()
    if prediction.details.get("intent"):
        line += Text(f"  ({prediction.details['intent']})", style="bold")
    return line


def _number(probability: float | None) -> str:
    return "" if probability is None else f" {probability:.2f}"


def marked(tags: Sequence[str], intent: str | None, examples: Examples, row: int, *, chunks: bool) -> list[Piece]:
    """A sentence with its chunks marked, or without chunks each word with its tag; the intent, if any, comes last."""
    text, places = _text_of(examples, row)
    spans = spans_of(tags) if chunks else [(word, word + 1, tag) for word, tag in enumerate(tags)]
    pieces, done = [], 0
    for first, end, mark in spans:
        start, stop = places[first][0], places[end - 1][1]
        pieces += [Piece(text[done:start]), Piece(text[start:stop], mark or "chunk")]
        done = stop
    return [*pieces, Piece(text[done:]), *([Piece("  "), Piece(intent, "intent")] if intent else [])]


def _text_of(examples: Examples, row: int) -> tuple[str, list[tuple[int, int]]]:
    """A sentence's text and the places of its words in it; words without a text are joined."""
    if "places" in examples.columns:
        return examples.columns["text"][row], examples.columns["places"][row]
    words = _words(examples, row)
    text, places = "", []
    characters = all(len(word) == 1 for word in words) and re.search(_SPACELESS, "".join(words))  # each a word: "2 0 1 9"
    for word in words:
        if text and not (characters or re.match(_SPACELESS, text[-1]) or re.match(_SPACELESS, word)):
            text += " "
        places.append((len(text), len(text) + len(word)))
        text += word
    return text, places
