"""The tokens of each training sequence: pairs of segments (Devlin et al., 2019, appendix A.2), in order or swapped (Lan et al.,
2020, section 3.1), or spans.

All sequences of a shard are drawn at once, in rounds: each document with text left gives its next one. The draws depend on the
given generator alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.corpus.shard import Shard
from bertkit.text.truncation import longest_first

SHORT = 0.1  # of the pairs have a shorter target length, so that the model sees short ones too
IS_NEXT, NOT_NEXT = 0, 1  # labels of next-sentence prediction, as transformers numbers them
IN_ORDER, SWAPPED = 0, 1  # labels of sentence-order prediction, likewise

Integers = NDArray[np.int64]


class Segments(NamedTuple):
    """B sequences: the first token and the length of segment A, and of segment B, which is empty in a span; and the label."""

    a: Integers
    num_a: Integers
    b: Integers
    num_b: Integers
    label: Integers

    def __len__(self) -> int:  # of sequences, not of fields
        return len(self.a)


def draw_pairs(shard: Shard, max_length: int, rng: np.random.Generator) -> Segments:
    """Pairs of segments, whole sentences unless truncated, of at most max_length - 3 tokens.

    Half of the Bs follow A; the others begin at a random sentence of another document of the shard, and the text after A is
    used again. A chunk of text has as many sentences as reach the target length, at least two; A ends at a random one. A pair
    that is too long loses tokens at either end of its longer segment. A single sentence, alone in its document or left over at
    its end, gives no A. In a shard of one document every B follows.
    """
    sentences, documents = np.asarray(shard.sentences), np.asarray(shard.documents)
    reached, ends = documents[:-1].copy(), documents[1:]
    rounds = []
    while len(left := np.flatnonzero(reached + 1 < ends)):
        begin = reached[left]
        target, middle, stop = _next_chunks(sentences, begin, ends[left], max_length, rng)
        follows = rng.random(len(left)) < 0.5 if len(ends) > 1 else np.ones(len(left), dtype=bool)
        other = rng.integers(0, max(1, len(ends) - 1), len(left))
        other += other >= left  # any document but this one
        other = np.minimum(other, len(ends) - 1)
        somewhere = rng.integers(documents[other], documents[other + 1])
        wanted = np.maximum(1, target - (sentences[middle] - sentences[begin]))
        until = np.clip(np.searchsorted(sentences, sentences[somewhere] + wanted), somewhere + 1, documents[other + 1])
        b_begin, b_end = np.where(follows, middle, somewhere), np.where(follows, stop, until)
        rounds.append((begin, middle, b_begin, b_end, np.where(follows, IS_NEXT, NOT_NEXT)))
        reached[left] = np.where(follows, stop, middle)
    return _truncated(sentences, rounds, max_length, rng)


def draw_ordered(shard: Shard, max_length: int, rng: np.random.Generator) -> Segments:
    """Pairs of consecutive segments, cut as in `draw_pairs`; half are swapped, so that B is the text before A."""
    sentences, documents = np.asarray(shard.sentences), np.asarray(shard.documents)
    reached, ends = documents[:-1].copy(), documents[1:]
    rounds = []
    while len(left := np.flatnonzero(reached + 1 < ends)):
        begin = reached[left]
        _, middle, stop = _next_chunks(sentences, begin, ends[left], max_length, rng)
        rounds.append((begin, middle, middle, stop, np.full(len(left), IN_ORDER)))
        reached[left] = stop
    pairs = _truncated(sentences, rounds, max_length, rng)
    swapped = rng.random(len(pairs)) < 0.5
    first, second = (pairs.a, pairs.num_a), (pairs.b, pairs.num_b)
    a, num_a = np.where(swapped, second, first)
    b, num_b = np.where(swapped, first, second)
    return Segments(a, num_a, b, num_b, np.where(swapped, SWAPPED, IN_ORDER))


def _next_chunks(
    sentences: Integers, begin: Integers, end: Integers, max_length: int, rng: np.random.Generator
) -> tuple[Integers, Integers, Integers]:
    """The next chunk of each document, from sentence `begin`: its target length, and the sentences at which A and it end."""
    room = max_length - 3
    target = np.where(rng.random(len(begin)) < SHORT, rng.integers(2, room + 1, len(begin)), room)
    stop = np.clip(np.searchsorted(sentences, sentences[begin] + target), begin + 2, end)
    return target, begin + rng.integers(1, stop - begin), stop


def _truncated(
    sentences: Integers, rounds: Sequence[tuple[Integers, ...]], max_length: int, rng: np.random.Generator
) -> Segments:
    """The pairs of all rounds, given as the sentences at which A and B begin and end, and the label; truncated."""
    if not rounds:
        return Segments(*(np.zeros(0, dtype=np.int64) for _ in Segments._fields))
    a_begin, a_end, b_begin, b_end, label = map(np.concatenate, zip(*rounds))
    a, b = sentences[a_begin], sentences[b_begin]
    num_a, num_b = sentences[a_end] - a, sentences[b_end] - b
    kept_a, kept_b = longest_first(num_a, num_b, max_length - 3)
    a += rng.binomial(num_a - kept_a, 0.5)
    b += rng.binomial(num_b - kept_b, 0.5)
    return Segments(a, kept_a, b, kept_b, label)


def draw_spans(shard: Shard, max_length: int, rng: np.random.Generator) -> Segments:
    """Spans of max_length - 2 tokens, across sentences but within a document.

    Every token is in one span. The first span of a document has a random length, so that spans differ between epochs.
    """
    room = max_length - 2
    bounds = np.asarray(shard.sentences)[np.asarray(shard.documents)]
    begins, lengths = bounds[:-1], np.diff(bounds)
    first = np.where(lengths > room, rng.integers(1, room + 1, len(lengths)), lengths)  # tokens of the first span
    numbers = 1 + -(-(lengths - first) // room)
    number = np.arange(numbers.sum()) - np.repeat(np.cumsum(numbers) - numbers, numbers)  # of each span in its document
    first, lengths, begins = (np.repeat(values, numbers) for values in (first, lengths, begins))
    offset = np.where(number > 0, first + (number - 1) * room, 0)
    count = np.minimum(np.where(number > 0, room, first), lengths - offset)
    nothing = np.zeros(len(offset), dtype=np.int64)
    return Segments(begins + offset, count, nothing, nothing, nothing)
