"""Baselines for a tagger: the most frequent tag, each word's most frequent tag, and a linear probe of the words' vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from bertkit.readers import Examples
from bertkit.tasks.baselines import EACH_WORD, LINEAR_PROBE, MAJORITY, Frozen, fit_to_vectors, most_frequent, some_rows


def baseline_tags(train: Examples, examples: Examples, model: Frozen | None) -> dict[str, list[list[str]]]:
    """A tag for each word, by baseline. model: for the linear probe, which is left out without one."""
    found = _usual_tags(train, examples.columns["tokens"])
    return found if model is None else found | {LINEAR_PROBE: _probed_tags(model, train, examples)}


def _usual_tags(train: Examples, sentences: Sequence[Sequence[str]]) -> dict[str, list[list[str]]]:
    """The most frequent tag overall, and for each word; a word not seen in training gets the overall one."""
    tags_of: dict[str, list[str]] = {}
    for words, tags in zip(train.columns["tokens"], train.columns["tags"], strict=True):
        for word, tag in zip(words, tags, strict=True):
            tags_of.setdefault(word, []).append(tag)
    usual = most_frequent([*chain.from_iterable(train.columns["tags"])])
    of_word = {word: most_frequent(tags) for word, tags in tags_of.items()}
    return {
        MAJORITY: [[usual] * len(words) for words in sentences],
        EACH_WORD: [[of_word.get(word, usual) for word in words] for words in sentences],
    }


def _probed_tags(model: Frozen, train: Examples, examples: Examples) -> list[list[str]]:
    """A tag for each word, by a linear model of frozen vectors, those of the words' first pieces."""
    drawn = train.select(some_rows(len(train), model.most_rows))
    names, targets = np.unique([*chain.from_iterable(drawn.columns["tags"])], return_inverse=True)
    found = fit_to_vectors(model.vectors(drawn), targets, model.vectors(examples))
    ends = np.cumsum([len(words) for words in examples.columns["tokens"]])
    return [names[numbers].tolist() for numbers in np.split(found, ends[:-1])]
