"""Words that are cut by the end of an annotated entity: the model reads them whole, as in text without annotations.

So training and evaluation see the same words as prediction, while scores use the entities as annotated: one that begins or ends
inside a word counts as missed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertkit.readers import Examples
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.token_classification.tags import respell, spans_of, tags_of

WHOLE = "whole"  # the column of the places of words before entities cut them


def whole_words(examples: Examples, labels: Sequence[str], scheme: str | None) -> Examples:
    """The rows with whole words, each with its first part's tag; rows where entities cut no words are unchanged.

    labels, scheme: of the task. An entity that begins inside a word is moved to begin at the next one.
    """
    if WHOLE not in examples.columns:
        return examples
    columns: dict[str, Sequence[Any]] = {name: values for name, values in examples.columns.items() if name != WHOLE}
    columns["places"] = examples.columns[WHOLE]
    texts = zip(examples.columns["text"], columns["places"], strict=True)
    columns["tokens"] = [[text[start:end] for start, end in places] for text, places in texts]
    if "tags" in columns:
        rows = zip(columns["tags"], examples.columns["places"], columns["places"], strict=True)
        columns["tags"] = [
            tags if len(parts) == len(whole) else _joined(tags, _firsts(parts, whole), labels, scheme)
            for tags, parts, whole in rows
        ]
    return replace(examples, columns=columns)


def cut_again(
    predictions: Sequence[Prediction], examples: Examples, labels: Sequence[str], scheme: str | None
) -> list[Prediction]:
    """Convert predictions for whole words to the words of `examples`, which entities may have cut."""
    if WHOLE not in examples.columns:
        return [*predictions]
    rows = zip(predictions, examples.columns["places"], examples.columns[WHOLE], strict=True)
    return [
        each if len(parts) == len(whole) else _parted(each, _firsts(parts, whole), len(parts), labels, scheme)
        for each, parts, whole in rows
    ]


def _firsts(parts: Sequence[tuple[int, int]], whole: Sequence[tuple[int, int]]) -> list[int]:
    """The number of each word's first part."""
    starts = [start for start, _ in parts]
    return [bisect_left(starts, start) for start, _ in whole]


def _joined(tags: list[str], firsts: list[int], labels: Sequence[str], scheme: str | None) -> list[str]:
    if scheme is None:
        return [tags[first] for first in firsts]
    spans = ((bisect_left(firsts, begin), bisect_left(firsts, end), kind) for begin, end, kind in spans_of(tags))
    (found,) = respell([tags_of([span for span in spans if span[0] < span[1]], len(firsts), scheme)], labels)
    return found


def _parted(each: Prediction, firsts: list[int], count: int, labels: Sequence[str], scheme: str | None) -> Prediction:
    bounds = [*firsts, count]
    sizes = np.diff(bounds)
    if scheme is None:
        tags = np.repeat(np.array(each.value, dtype=object), sizes).tolist()
    else:
        spans = [(bounds[begin], bounds[end], kind) for begin, end, kind in spans_of(each.value)]
        (tags,) = respell([tags_of(spans, count, scheme)], labels)
    probabilities = None if each.probabilities is None else np.repeat(each.probabilities, sizes).tolist()
    return each._replace(value=tags, probabilities=probabilities)
