"""The tokens of each training sequence: pairs of segments (Devlin et al., 2019, appendix A.2), in order or swapped (Lan et al.,
2020, section 3.1), or spans.

All sequences of a shard are drawn at once, in rounds: in each, every document with text left yields its next sequence. The
draws depend only on the given generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.corpus.shard import Shard

SHORT = 0.1  # the share of pairs with a shorter target length, so that the model sees short ones too
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

    @property
    def num_sequences(self) -> int:
        return len(self.a)


class Chunks(NamedTuple):
    """The next chunk of each of some documents: tokens `begin` to `stop` - 1; those before `middle` can be segment A.

    target: the length aimed at. within: whether `middle` is inside a sentence.
    """

    begin: Integers
    middle: Integers
    stop: Integers
    target: Integers
    within: NDArray[np.bool_]


def draw_pairs(shard: Shard, max_length: int, rng: np.random.Generator) -> Segments:
    """Pairs of segments of at most max_length - 3 tokens, which together read each document from its first token to its last.

    A is the beginning of a chunk. Half of the Bs are the rest of it; the others begin at a random sentence of another document
    of the shard, or at a random token if A ends inside a sentence, and the text after A is used again. A single token left over
    at the end of a document is not read. In a shard of one document, every B follows its A.
    """
    sentences, documents = np.asarray(shard.sentences), np.asarray(shard.documents)
    bounds = sentences[documents]
    reached, ends = bounds[:-1].copy(), bounds[1:]
    rounds = []
    while len(left := np.flatnonzero(reached + 1 < ends)):
        begin, middle, stop, target, within = _next_chunks(sentences, reached[left], ends[left], max_length, rng)
        num_a = middle - begin
        follows = rng.random(len(left)) < 0.5 if len(ends) > 1 else np.ones(len(left), dtype=bool)
        other = rng.integers(0, max(1, len(ends) - 1), len(left))
        other += other >= left  # any document but this one
        other = np.minimum(other, len(ends) - 1)
        somewhere = sentences[rng.integers(documents[other], documents[other + 1])]
        somewhere = np.where(within, rng.integers(bounds[other], bounds[other + 1]), somewhere)
        until = np.searchsorted(sentences, somewhere + np.maximum(1, target - num_a))
        until = np.minimum(sentences[np.minimum(until, documents[other + 1])], somewhere + max_length - 3 - num_a)
        b, b_end = np.where(follows, middle, somewhere), np.where(follows, stop, until)
        rounds.append(Segments(begin, num_a, b, b_end - b, np.where(follows, IS_NEXT, NOT_NEXT)))
        reached[left] = np.where(follows, stop, middle)
    return _joined(rounds)


def draw_ordered(shard: Shard, max_length: int, rng: np.random.Generator) -> Segments:
    """The two segments of each chunk, cut as in `draw_pairs`; half are swapped, so that B precedes A in the text."""
    sentences = np.asarray(shard.sentences)
    bounds = sentences[np.asarray(shard.documents)]
    reached, ends = bounds[:-1].copy(), bounds[1:]
    rounds = []
    while len(left := np.flatnonzero(reached + 1 < ends)):
        begin, middle, stop, _, _ = _next_chunks(sentences, reached[left], ends[left], max_length, rng)
        rounds.append(Segments(begin, middle - begin, middle, stop - middle, np.full(len(left), IN_ORDER)))
        reached[left] = stop
    pairs = _joined(rounds)
    swapped = rng.random(pairs.num_sequences) < 0.5
    first, second = (pairs.a, pairs.num_a), (pairs.b, pairs.num_b)
    a, num_a = np.where(swapped, second, first)
    b, num_b = np.where(swapped, first, second)
    return Segments(a, num_a, b, num_b, np.where(swapped, SWAPPED, IN_ORDER))


def _next_chunks(sentences: Integers, begin: Integers, end: Integers, max_length: int, rng: np.random.Generator) -> Chunks:
    """The next chunk of each document from token `begin` on; two or more tokens must be left.

    It has as many sentences as the target length needs, at least two, but is cut where there is no more room; the next chunk
    continues there. A ends at a random sentence end, or at a random token if the chunk is part of one sentence.
    """
    room = max_length - 3
    target = np.where(rng.random(len(begin)) < SHORT, rng.integers(2, room + 1, len(begin)), room)
    second = np.searchsorted(sentences, begin, side="right")  # the sentence after that of `begin`
    stop = np.maximum(np.searchsorted(sentences, begin + target), second + 1)
    stop = np.minimum(np.minimum(sentences[np.minimum(stop, len(sentences) - 1)], end), begin + room)
    others = np.searchsorted(sentences, stop) - second  # sentences that begin within the chunk
    within = others == 0
    # not before the last token, which would be left over and not read
    choices = np.where(within, np.maximum(1, stop - begin - 2), others)
    chosen = rng.integers(0, choices)
    middle = np.where(within, begin + 1 + chosen, sentences[np.where(within, 0, second + chosen)])
    return Chunks(begin, middle, stop, target, within)


def _joined(rounds: Sequence[Segments]) -> Segments:
    nothing = Segments(*(np.zeros(0, dtype=np.int64) for _ in Segments._fields))
    return Segments(*map(np.concatenate, zip(nothing, *rounds)))


def tokens_read(segments: Segments) -> int:
    """The number of a shard's tokens that are in any of its segments."""
    begins, lengths = np.concatenate([segments.a, segments.b]), np.concatenate([segments.num_a, segments.num_b])
    order = np.argsort(begins)
    begins, ends = begins[order], (begins + lengths)[order]
    before = np.maximum.accumulate(np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]]))  # read by those that begin earlier
    return int(np.maximum(0, ends - np.maximum(begins, before)).sum()) if len(begins) else 0


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
