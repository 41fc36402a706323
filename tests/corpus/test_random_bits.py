"""The random bits of a sequence: the numbers of SplitMix64, with an avalanche, and independent of their neighbours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bertkit.corpus.random_bits import random_bits, sequence_keys, stream


def test_the_streams_are_those_of_splitmix64() -> None:
    """The first numbers from the state 1234567, as the reference in C gives them."""
    state = np.array([1234567], dtype=np.uint64)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert stream(state, np.arange(5)).tolist() == expected
    assert stream(state, np.array([4, 0])).tolist() == [expected[4], expected[0]]


def test_known_answers() -> None:
    """Another value would change the masks of every run."""
    keys = sequence_keys(42, np.array([0, 1, 10**12]))
    assert keys.tolist() == [10996452266160306281, 2958219263312191191, 7406622554204047885]
    assert random_bits(keys, 1, np.array([0, 7, 511])).tolist() == [
        14648239820685838605,
        14750448929680034020,
        8609174709383830370,
    ]
    assert sequence_keys(2**70 + 42, np.array([0])) == keys[0]


def of_place(seed: int, number: np.ndarray, position: np.ndarray) -> np.ndarray:
    return random_bits(sequence_keys(seed, number), 0, position)


def poor(seed: int, number: np.ndarray, position: np.ndarray) -> np.ndarray:
    """What a mere product would be."""
    return (number.astype(np.uint64) * np.uint64(2654435761) + position.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)


def worst_avalanche(bits: Callable[..., np.ndarray]) -> float:
    """How far from 1/2 is, at worst, the share of cases in which a changed bit of the place changes a bit of the result."""
    rng = np.random.default_rng(0)
    number, position = rng.integers(0, 2**40, 4000), rng.integers(0, 512, 4000)
    before, worst = bits(42, number, position), 0.0
    places = [(number ^ (1 << bit), position) for bit in range(40)] + [(number, position ^ (1 << bit)) for bit in range(9)]
    for place in places:
        changed = before ^ bits(42, *place)
        shares = [((changed >> np.uint64(bit)) & np.uint64(1)).mean() for bit in range(64)]
        worst = max(worst, *(abs(share - 0.5) for share in shares))
    return worst


def worst_neighbour(bits: Callable[..., np.ndarray]) -> float:
    """The strongest correlation, in size, of a number with its neighbours in a sequence and in other sequences."""
    table = bits(42, np.repeat(np.arange(400), 500), np.tile(np.arange(500), 400)).reshape(400, 500) * 2.0**-64
    pairs = [(table[:-lag], table[lag:]) for lag in range(1, 9)] + [(table[:, :-lag], table[:, lag:]) for lag in range(1, 9)]
    return max(abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) for one, other in pairs)


@pytest.mark.parametrize(("bits", "good"), [(of_place, True), (poor, False)])
def test_a_changed_bit_of_the_place_changes_half_of_the_bits(bits: Callable[..., np.ndarray], good: bool) -> None:
    assert (worst_avalanche(bits) < 0.05) == good  # 6 standard deviations


@pytest.mark.parametrize(("bits", "good"), [(of_place, True), (poor, False)])
def test_neighbours_are_independent(bits: Callable[..., np.ndarray], good: bool) -> None:
    assert (worst_neighbour(bits) < 0.012) == good  # 5 standard deviations


def test_bits_are_uniform_and_differ_by_purpose_and_seed() -> None:
    number, position = np.repeat(np.arange(1000), 200), np.tile(np.arange(200), 1000)
    tables = [random_bits(sequence_keys(seed, number), purpose, position) for seed in (0, 1) for purpose in (0, 1, 2)]
    for table in tables:
        for shift in (0, 28, 56):  # of the lowest, a middle and the highest byte
            counts = np.bincount(((table >> np.uint64(shift)) & np.uint64(255)).astype(np.int64), minlength=256)
            expected = len(table) / 256
            assert 150 < ((counts - expected) ** 2 / expected).sum() < 380  # chi-square with 255 degrees of freedom
    assert len(np.unique(np.concatenate(tables))) == 6 * 200_000
    shares = [table * 2.0**-64 for table in tables]
    assert max(abs(np.corrcoef(shares)[np.triu_indices(6, 1)])) < 0.012
