"""Random bits that depend only on where they are used: (seed, number of the sequence, purpose, position).

Each sequence has, for each purpose, its own stream of SplitMix64 (Steele et al., 2014), whose numbers are computed directly
from their positions, not one after another. So it does not matter which process makes which sequences, or in which order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the step between a stream's states; overflow wraps around
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def sequence_keys(seed: int, numbers: NDArray[np.int64]) -> Bits:
    """(B,) the key of each of these sequences of a run."""
    return stream(_mixed(np.array([seed % 2**64], dtype=np.uint64)), numbers)


def random_bits(keys: Bits, purpose: int, positions: NDArray[np.int64]) -> Bits:
    """(R,) values of 64 random bits. keys: (R,) of their sequences; positions: (R,) in these sequences."""
    return stream(stream(keys, np.array([purpose])), positions)


def stream(state: Bits, positions: NDArray[np.int64]) -> Bits:
    """The numbers of SplitMix64 at these positions (from 0), in the streams that begin at `state`."""
    return _mixed(state + (positions + 1).astype(np.uint64) * _GAMMA)


def _mixed(bits: Bits) -> Bits:
    """A bijection in which each input bit flips each output bit with probability 1/2."""
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
