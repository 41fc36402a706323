"""Masks: exact counts, shares over 100,000 targets, whole words whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.corpus.masking import choose_tokens, choose_words, mask, num_targets
from bertkit.corpus.random_bits import sequence_keys
from bertkit.features import Ragged, offsets_of


def made(lengths: list[int], seed: int, pairs: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(special, begins_word, lengths): [CLS] and [SEP] at the ends, a [SEP] within; words of one to five pieces."""
    rng = np.random.default_rng(seed)
    counts = np.array(lengths)
    offsets = offsets_of(counts)
    special = np.zeros(offsets[-1], dtype=bool)
    special[offsets[:-1]] = special[offsets[1:] - 1] = True
    if pairs:
        special[offsets[:-1] + 1 + rng.integers(0, np.maximum(1, counts - 2))] = True
    return special, rng.random(len(special)) < 0.6, counts


def keys_of(lengths: np.ndarray, seed: int) -> np.ndarray:
    """The keys of the first sequences of a run, one for each of these."""
    return sequence_keys(seed, np.arange(len(lengths)))


def per_sequence(targets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.bincount(np.repeat(np.arange(len(lengths)), lengths)[targets], minlength=len(lengths))


def test_how_many() -> None:
    lengths = np.array([1, 3, 4, 9, 10, 11, 128, 512])
    assert num_targets(lengths).tolist() == [max(1, round(0.15 * n)) for n in lengths.tolist()] == [1, 1, 1, 1, 2, 2, 19, 77]


def test_a_larger_share_adds_to_the_targets_of_a_smaller_one() -> None:
    assert num_targets(np.array([1, 10, 128]), 0.3).tolist() == [1, 3, 38]
    special, begins, lengths = made([128] * 200, 1)
    keys = keys_of(lengths, 2)
    few, many = (choose_tokens(special, lengths, keys, share) for share in (0.15, 0.4))
    assert (len(few), len(many)) == (19 * 200, 51 * 200)
    assert set(few) < set(many)
    assert len(choose_words(special, begins, lengths, keys, 0.4)) > 50.9 * 200
    assert np.array_equal(few, choose_tokens(special, lengths, keys))


@given(st.lists(st.integers(3, 60), min_size=1, max_size=30), st.integers(0, 2**32 - 1))
def test_targets_are_exactly_as_many_and_never_special(lengths: list[int], seed: int) -> None:
    special, _, counts = made(lengths, seed)
    targets = choose_tokens(special, counts, keys_of(counts, seed))
    assert np.array_equal(targets, np.unique(targets))
    assert not special[targets].any()
    possible = per_sequence(np.flatnonzero(~special), counts)
    assert np.array_equal(per_sequence(targets, counts), np.minimum(num_targets(counts), possible))


def test_every_token_is_as_likely() -> None:
    special, _, lengths = made([40] * 20_000, 1, pairs=False)
    targets = choose_tokens(special, lengths, keys_of(lengths, 2))
    assert len(targets) == 120_000
    places = np.bincount(targets % 40, minlength=40)
    assert places[[0, 39]].tolist() == [0, 0]
    assert (abs(places[1:39] / 20_000 - 6 / 38) < 0.01).all()


@given(st.lists(st.integers(3, 60), min_size=1, max_size=30), st.integers(0, 2**32 - 1))
def test_whole_words_stay_whole(lengths: list[int], seed: int) -> None:
    """Against a loop over the same words; a sequence gets one word at least, and more only while they fit."""
    special, begins, counts = made(lengths, seed)
    targets = set(choose_words(special, begins, counts, keys_of(counts, seed)).tolist())
    assert not special[list(targets)].any()
    offsets = offsets_of(counts)
    for start, end, most in zip(offsets[:-1], offsets[1:], num_targets(counts)):
        words: list[list[int]] = []
        for place in range(start, end):
            if special[place]:
                continue
            if begins[place] or special[place - 1]:
                words.append([])
            words[-1].append(place)
        taken = [word for word in words if set(word) <= targets]
        assert sum(map(len, taken)) == sum(place in targets for place in range(start, end)), "no part of a word"
        if not words:
            continue
        assert taken
        one = len(taken) == 1 and len(taken[0]) == min(map(len, words))
        assert sum(map(len, taken)) <= most or one
        left = most - sum(map(len, taken))
        assert not [word for word in words if word not in taken and len(word) <= left], "none that fits is left"


def test_whole_words_reach_the_share_that_is_asked_for() -> None:
    special, begins, lengths = made([128] * 8000, 3)
    targets = choose_words(special, begins, lengths, keys_of(lengths, 4))
    assert len(targets) > 100_000
    counts = per_sequence(targets, lengths)
    assert counts.max() <= 19
    assert counts.mean() > 18.9
    of_begin = begins[targets].mean()
    assert abs(of_begin - begins[~special].mean()) < 0.04, "long words are hardly less likely: where little room is left"


def test_what_stands_in_the_place_of_targets() -> None:
    rng = np.random.default_rng(5)
    ids = Ragged(rng.integers(10, 1000, 200_000).astype(np.int32), np.array([0, 200_000]))
    targets = np.sort(rng.permutation(200_000)[:120_000])
    candidates = np.arange(5, 2000)
    masked, labels = mask(ids, targets, keys_of(ids.lengths, 6), mask_token_id=4, candidates=candidates)
    assert np.array_equal(labels, ids.values[targets])
    assert labels.dtype == np.int64
    assert np.array_equal(np.delete(masked.values, targets), np.delete(ids.values, targets))
    found = masked.values[targets]
    is_mask, kept = found == 4, found == labels
    assert abs(is_mask.mean() - 0.8) < 0.01
    assert abs(kept.mean() - (0.1 + 0.1 / len(candidates))) < 0.01
    random = found[~is_mask & ~kept]
    assert abs(len(random) / 120_000 - 0.1) < 0.01
    assert (random >= 5).all()
    halves = np.bincount((random - 5) * 5 // len(candidates)) / len(random)
    assert (abs(halves - 0.2) < 0.02).all(), "replacements are drawn from all candidates alike"
    assert ids.values[targets[is_mask]].min() >= 10, "the input is not changed in place"


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)])
def test_masks_depend_on_the_seed(seeds: tuple[int, int]) -> None:
    special, begins, lengths = made([50] * 20, 7)
    for choose in (
        lambda keys: choose_tokens(special, lengths, keys),
        lambda keys: choose_words(special, begins, lengths, keys),
    ):
        first, second = (choose(keys_of(lengths, seed)) for seed in seeds)
        assert np.array_equal(first, second) == (seeds[0] == seeds[1])
