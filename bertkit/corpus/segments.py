"""Which tokens of a shard make up a training sequence: pairs of segments (Devlin et al., 2019, appendix A.2), in order or not
(Lan et al., 2020, section 3.1), or spans.

All sequences of a shard are drawn at once, round by round: in each, every document that has text left gives its next one. What
is drawn depends on the generator that is handed in and on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.corpus.shard import Shard
from bertkit.text.truncation import longest_first

SHORT = 0.1  # of the pairs aim at less than the full length, that a model knows short ones too
IS_NEXT, NOT_NEXT = 0, 1  # labels of next-sentence prediction, as transformers numbers them
IN_ORDER, SWAPPED = 0, 1  # labels of sentence-order prediction, likewise

Integers = NDArray[np.int64]


class Segments(NamedTuple):
    """I sequences: the first token of segment A and how many it has, likewise of B, which is empty in a span; and the label."""

    a: Integers
    num_a: Integers
    b: Integers
    num_b: Integers
    label: Integers

    def __len__(self) -> int:  # of sequences, not of fields
        return len(self.a)


def draw_pairs(shard: Shard, max_length: int, rng: np.random.Generator) -> Segments:
    """Pairs of segments, whole sentences but for what is cut, of at most max_length - 3 tokens.

    Half of the B are what follows A; the others begin at some sentence of another document of the shard, and the text after A
    is taken up again. A chunk of text is as many sentences as reach the length aimed at, two at least; A ends at one of them.
    What is too long loses tokens from either end of the longer segment. A document's last sentence, where it is left alone, and
    documents of one sentence are no A. A shard of one document has no other: all its B follow.
    """
    sentences, documents = np.asarray(shard.sentences), np.asarray(shard.documents)
    at, ends = documents[:-1].copy(), documents[1:]
    rounds = []
    while len(left := np.flatnonzero(at + 1 < ends)):
        begin = at[left]
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
        at[left] = np.where(follows, stop, middle)
    return _truncated(sentences, rounds, max_length, rng)


def draw_ordered(shard: Shard, max_length: int, rng: np.random.Generator) -> Segments:
    """Pairs of consecutive segments, cut as `draw_pairs` cuts them, of which half are swapped: B is the text before A."""
    sentences, documents = np.asarray(shard.sentences), np.asarray(shard.documents)
    at, ends = documents[:-1].copy(), documents[1:]
    rounds = []
    while len(left := np.flatnonzero(at + 1 < ends)):
        begin = at[left]
        _, middle, stop = _next_chunks(sentences, begin, ends[left], max_length, rng)
        rounds.append((begin, middle, middle, stop, np.full(len(left), IN_ORDER)))
        at[left] = stop
    pairs = _truncated(sentences, rounds, max_length, rng)
    swapped = rng.random(len(pairs)) < 0.5
    first, second = (pairs.a, pairs.num_a), (pairs.b, pairs.num_b)
    a, num_a = np.where(swapped, second, first)
    b, num_b = np.where(swapped, first, second)
    return Segments(a, num_a, b, num_b, np.where(swapped, SWAPPED, IN_ORDER))


def _next_chunks(
    sentences: Integers, begin: Integers, end: Integers, max_length: int, rng: np.random.Generator
) -> tuple[Integers, Integers, Integers]:
    """The next chunk of each document, from sentence `begin` on: the tokens aimed at, and the sentences where A and it end."""
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
    """Spans of max_length - 2 tokens that go on over the ends of sentences, and end where their document does.

    Every token is in one span. Where the first span of a document ends is drawn, so that they differ from epoch to epoch.
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
