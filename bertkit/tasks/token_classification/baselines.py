"""What a tagger must beat: the most frequent tag, and that of each word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from bertkit.readers import Examples
from bertkit.tasks.baselines import EACH_WORD, MAJORITY, most_frequent


def usual_tags(train: Examples, sentences: Sequence[Sequence[str]]) -> dict[str, list[list[str]]]:
    """For each baseline a tag of each word of the sentences; a word that training lacks gets the most frequent tag."""
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
