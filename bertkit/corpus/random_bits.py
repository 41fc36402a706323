"""Random bits that depend only on where they are used: (seed, number of the sequence, purpose, position).

Each sequence has for each purpose a stream of SplitMix64 (Steele et al., 2014) of its own, whose numbers are computed where
they stand, not one after the other. So it does not matter which sequences are made together, by whom, or in which order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # from one number of a stream to the next; overflow wraps around
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def sequence_keys(seed: int, numbers: NDArray[np.int64]) -> Bits:
    """(B,) the key of each of these sequences of a run."""
    return stream(_mixed(np.array([seed % 2**64], dtype=np.uint64)), numbers)


def random_bits(keys: Bits, purpose: int, positions: NDArray[np.int64]) -> Bits:
    """(R,) 64 random bits each. keys: (R,) of the sequence of each; positions: (R,) in that sequence."""
    return stream(stream(keys, np.array([purpose])), positions)


def stream(state: Bits, positions: NDArray[np.int64]) -> Bits:
    """The numbers of SplitMix64 at these positions, from 0, of the streams that begin with `state`."""
    return _mixed(state + (positions + 1).astype(np.uint64) * _GAMMA)


def _mixed(bits: Bits) -> Bits:
    """A bijection in which each bit that goes in changes each bit that comes out with probability 1/2."""
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
