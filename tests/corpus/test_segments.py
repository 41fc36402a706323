"""Pairs and spans: a plain reading of each, and statistics over many."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.corpus.segments import (
    IN_ORDER,
    IS_NEXT,
    NOT_NEXT,
    SWAPPED,
    Segments,
    draw_ordered,
    draw_pairs,
    draw_spans,
    tokens_read,
)
from bertkit.corpus.shard import Shard
from bertkit.features import offsets_of


def shard_of(lengths: np.ndarray, documents: np.ndarray) -> Shard:
    """Sentences of these lengths in documents that begin at these; a token's number is its place."""
    tokens, hashes = np.arange(lengths.sum(), dtype=np.int32), np.arange(len(documents) - 1, dtype=np.uint64)
    return Shard(tokens, np.zeros(0, dtype=np.uint8), offsets_of(lengths), documents, hashes)


def made_shard(num_documents: int, seed: int, most_sentences: int = 30) -> Shard:
    """Sentences of up to 40 tokens."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(1, most_sentences + 1, num_documents)
    return shard_of(rng.integers(1, 41, numbers.sum()), offsets_of(numbers))


def document_of(shard: Shard, tokens: np.ndarray) -> np.ndarray:
    bounds = shard.sentences[shard.documents]
    return np.searchsorted(bounds, tokens, side="right") - 1


def in_text_order(pairs: Segments) -> Segments:
    """The pairs of `draw_ordered` with what was swapped put back."""
    swapped = pairs.label == SWAPPED
    first, second = np.stack(pairs[:2]), np.stack(pairs[2:4])
    return Segments(*np.where(swapped, second, first), *np.where(swapped, first, second), np.full(pairs.num_sequences, IS_NEXT))


@pytest.mark.parametrize("draw", [draw_pairs, lambda *arguments: in_text_order(draw_ordered(*arguments))])
@pytest.mark.parametrize("max_length", [16, 64, 512])
def test_pairs_are_what_they_say(draw, max_length: int) -> None:
    shard = made_shard(400, 1)
    pairs = draw(shard, max_length, np.random.default_rng(2))
    total = pairs.num_a + pairs.num_b
    assert pairs.num_sequences > 400
    assert total.max() == max_length - 3
    assert min(pairs.num_a.min(), pairs.num_b.min()) >= 1
    ends = [(pairs.a, pairs.num_a), (pairs.b, pairs.num_b)]
    (a, a_end), (b, b_end) = [(document_of(shard, start), document_of(shard, start + num - 1)) for start, num in ends]
    assert np.array_equal(a, a_end), "a segment lies in one document"
    assert np.array_equal(b, b_end)
    assert np.array_equal(a == b, pairs.label == IS_NEXT), "the label says whether B is of the same document"
    assert np.array_equal(pairs.a + pairs.num_a == pairs.b, pairs.label == IS_NEXT), "B begins where A ends"
    begun = np.isin(pairs.b, shard.sentences)
    splits = np.searchsorted(shard.sentences, pairs.a + pairs.num_a) == np.searchsorted(shard.sentences, pairs.a, side="right")
    splits &= ~np.isin(pairs.a + pairs.num_a, shard.sentences)
    assert (begun | splits).all(), "A ends at a sentence, or where it began: within a long or lone one"
    assert splits.mean() < 0.3 or max_length < 40, "sentences that do not fit are cut, and others left over alone"
    assert 0 < np.isin(pairs.a, shard.sentences).mean() < 1, "what is cut goes on in the next chunk"


@pytest.mark.parametrize("max_length", [16, 64, 512])
def test_each_document_is_read_from_its_first_token_to_its_last(max_length: int) -> None:
    """A chunk begins where the text that was read before ends: B's end, or A's where B is of elsewhere."""
    shard = made_shard(400, 1)
    bounds = shard.sentences[shard.documents]
    for draw in (draw_pairs, lambda *arguments: in_text_order(draw_ordered(*arguments))):
        pairs = draw(shard, max_length, np.random.default_rng(2))
        order = np.argsort(pairs.a, kind="stable")
        a, num_a, _, num_b, label = (values[order] for values in pairs)
        reached = a + num_a + np.where(label == IS_NEXT, num_b, 0)
        first = np.isin(a, bounds)
        assert np.array_equal(a[~first], reached[:-1][~first[1:]])
        assert np.array_equal(np.unique(document_of(shard, a)), np.flatnonzero(np.diff(bounds) > 1))
        left = bounds[1:][document_of(shard, a)] - reached
        assert (left[np.append(first[1:], True)] <= 1).all(), "but for a single token at the end"
        assert tokens_read(pairs) > 0.995 * bounds[-1]


def tokens_by_hand(segments: Segments) -> set[int]:
    ends = [*zip(segments.a, segments.num_a), *zip(segments.b, segments.num_b)]
    return {token for start, num in ends for token in range(start, start + num)}


@pytest.mark.parametrize("draw", [draw_pairs, draw_ordered, draw_spans])
def test_the_tokens_that_are_read_are_counted_once(draw) -> None:
    shard = made_shard(40, 5)
    drawn = draw(shard, 48, np.random.default_rng(0))
    for some in (slice(None), slice(0, None, 3), slice(5, 6), slice(0)):
        part = Segments(*(values[some] for values in drawn))
        assert tokens_read(part) == len(tokens_by_hand(part))


@pytest.mark.parametrize("draw", [draw_pairs, draw_ordered])
@pytest.mark.parametrize("lengths", [np.full(4000, 30), np.full(300, 700), np.random.default_rng(1).integers(1, 400, 2000)])
def test_lone_and_long_sentences_are_read(draw, lengths: np.ndarray) -> None:
    """Documents of one sentence each, of reviews without punctuation; half of their pairs have either label."""
    shard = shard_of(lengths, np.arange(len(lengths) + 1))
    pairs = draw(shard, 128, np.random.default_rng(2))
    assert tokens_read(pairs) > 0.99 * lengths.sum()
    assert abs(pairs.label.mean() - 0.5) < 0.03
    other = (pairs.label == NOT_NEXT) & (pairs.num_a + pairs.num_b < 125)
    if draw is draw_pairs and other.any():  # else where B begins would tell the label
        assert np.isin(pairs.b[other], shard.sentences).mean() < 0.2


def test_shares_of_pairs() -> None:
    shard = made_shard(12_000, 3)
    pairs = draw_pairs(shard, 128, np.random.default_rng(4))
    assert pairs.num_sequences > 40_000
    assert abs((pairs.label == NOT_NEXT).mean() - 0.5) < 0.01
    # Other documents are drawn alike: of 20 groups of them each has its twentieth.
    other = document_of(shard, pairs.b[pairs.label == NOT_NEXT])
    assert (abs(np.bincount(other // 600) / len(other) - 0.05) < 0.005).all()
    # Most pairs of either label are full: a B of elsewhere more often meets the end of its document, as in BERT's own data.
    full = pairs.num_a + pairs.num_b == 125
    shares = [full[pairs.label == label].mean() for label in (IS_NEXT, NOT_NEXT)]
    assert min(shares) > 0.5


def test_a_ends_and_b_begins_at_any_sentence() -> None:
    """Else where a segment ends or begins would reveal the label."""
    shard = shard_of(np.full(40_000, 6), np.arange(0, 40_001, 10))  # ten sentences a document, all of which fit
    for draw in (draw_pairs, lambda *given: in_text_order(draw_ordered(*given))):
        pairs = draw(shard, 63, np.random.default_rng(0))
        whole = (pairs.a % 60 == 0) & (pairs.num_a + pairs.num_b == 60) & (pairs.label == IS_NEXT)
        shares = np.bincount(pairs.num_a[whole] // 6, minlength=10)[1:] / whole.sum()
        assert whole.sum() > 1500
        assert (abs(shares - 1 / 9) < 0.03).all()
    pairs = draw_pairs(shard, 63, np.random.default_rng(0))
    begins = pairs.b[(pairs.label == NOT_NEXT) & np.isin(pairs.b, shard.sentences)]
    assert len(begins) > 500
    assert (abs(np.bincount(begins // 6 % 10, minlength=10) / len(begins) - 0.1) < 0.03).all()


def test_half_of_the_ordered_pairs_are_swapped_and_each_text_is_read_once() -> None:
    shard = made_shard(12_000, 3)
    pairs = draw_ordered(shard, 128, np.random.default_rng(4))
    assert pairs.num_sequences > 32_000
    full = pairs.num_a + pairs.num_b == 125
    for some in (full, ~full):
        assert abs((pairs.label[some] == SWAPPED).mean() - 0.5) < 0.02, "of full pairs and of short ones"
    shard = made_shard(1500, 3)
    pairs = in_text_order(draw_ordered(shard, 5000, np.random.default_rng(4)))  # hardly anything is cut
    read = np.concatenate(
        [np.arange(start, start + num) for start, num in zip([*pairs.a, *pairs.b], [*pairs.num_a, *pairs.num_b])]
    )
    assert len(np.unique(read)) == len(read) > 0.9 * len(shard.input_ids)


def test_a_tenth_aims_at_less_than_the_full_length() -> None:
    """One long document and another: but for its end only short pairs are not full."""
    shard = shard_of(np.full(40_000, 7), np.array([0, 39_990, 40_000]))
    pairs = draw_pairs(shard, 131, np.random.default_rng(5))
    follows = pairs.label == IS_NEXT
    short = (pairs.num_a + pairs.num_b)[follows] < 128
    assert abs(short.mean() - 0.1 * 120 / 127) < 0.02  # of the short targets few round up to full
    assert follows.sum() > 800
    pairs = draw_ordered(shard_of(np.full(9000, 1), np.array([0, 9000])), 13, np.random.default_rng(5))
    assert set((pairs.num_a + pairs.num_b)[:-1].tolist()) == set(range(2, 11)), "from two tokens to all that there is room for"


def test_one_document_and_documents_of_one_token() -> None:
    for draw, labels in ((draw_pairs, {IS_NEXT}), (draw_ordered, {IN_ORDER, SWAPPED})):
        alone = draw(made_shard(1, 9, most_sentences=90), 64, np.random.default_rng(0))
        assert set(alone.label.tolist()) == labels
        assert draw(shard_of(np.ones(50, dtype=int), np.arange(51)), 64, np.random.default_rng(0)).num_sequences == 0


@pytest.mark.parametrize("draw", [draw_pairs, draw_ordered, draw_spans])
def test_the_same_generator_draws_the_same(draw) -> None:
    shard = made_shard(60, 10)
    found = [draw(shard, 48, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert all(np.array_equal(x, y) for x, y in zip(found[0], found[1], strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(found[0], found[2], strict=True))


@pytest.mark.parametrize("max_length", [3, 10, 64, 5000])
def test_spans_hold_every_token_once(max_length: int) -> None:
    shard = made_shard(80, 11)
    spans = draw_spans(shard, max_length, np.random.default_rng(12))
    tokens = np.concatenate([np.arange(a, a + n) for a, n in zip(spans.a, spans.num_a)])
    assert np.array_equal(np.sort(tokens), np.arange(len(shard.input_ids)))
    assert spans.num_a.max() <= max_length - 2
    assert np.array_equal(document_of(shard, spans.a), document_of(shard, spans.a + spans.num_a - 1))
    assert not spans.num_b.any()
    bounds = np.diff(shard.sentences[shard.documents])
    assert spans.num_sequences <= (2 + bounds // (max_length - 2)).sum()


def test_where_spans_end_differs_between_draws() -> None:
    shard = made_shard(1, 13, most_sentences=400)
    ends = {int(draw_spans(shard, 34, np.random.default_rng(seed)).num_a[0]) for seed in range(300)}
    assert ends == set(range(1, 33))
