"""Corpora mixed by weight: which one a sequence of a run comes from is a pure function of (seed, number of the sequence)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from bertkit.corpus.corpora import BLOCK
from bertkit.corpus.masking import MASKED
from bertkit.corpus.random_bits import random_bits, sequence_keys
from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.segments import Integers
from bertkit.features import Features, ranges

_CORPUS = 3  # the purpose of random bits; smaller ones are those of masking


@dataclass(frozen=True, eq=False)  # hashed by identity, for the cache of its blocks
class Mix:
    """The sequences of a run on one corpus or several: those of each part come in the part's own order.

    shares: of the parts; they add up to 1. counts: (parts,) each part's number of sequences in a block.
    """

    parts: Sequence[CorpusSampler]
    shares: Sequence[float]
    counts: Integers = field(init=False)

    def __post_init__(self) -> None:
        exact = BLOCK * np.array(self.shares)
        counts = exact.astype(np.int64)
        counts[np.argsort(counts - exact, kind="stable")[: BLOCK - counts.sum()]] += 1  # by largest remainder
        object.__setattr__(self, "counts", counts)

    def epoch_length(self, tokens: Sequence[int]) -> tuple[int, bool]:
        """The number of sequences in an epoch of all parts together, and whether it is exact. tokens: of each part."""
        lengths, exact = zip(*(part.epoch_length(count) for part, count in zip(self.parts, tokens, strict=True)), strict=True)
        return sum(lengths), all(exact)

    def numbers_at(self, step: int) -> Integers:
        """The numbers of the sequences of `step` (from 0)."""
        return self.parts[0].numbers_at(step)

    def lengths(self, numbers: Integers) -> Integers:
        """(B,) the number of tokens in each of these sequences, given by number; no text is read."""
        of_part, own = self.places(numbers)
        lengths = np.zeros_like(numbers)
        for number, part in enumerate(self.parts):
            lengths[of_part == number] = part.lengths(own[of_part == number])
        return lengths

    def sequences(self, numbers: Integers, masked: float = MASKED) -> Features:
        """The run's sequences with these numbers, in this order, as `CorpusSampler.sequences` returns them."""
        of_part, own = self.places(numbers)
        rows = [np.flatnonzero(of_part == number) for number in range(len(self.parts))]
        found = [
            part.sequences(own[here], masked, numbers[here]) for part, here in zip(self.parts, rows, strict=True) if len(here)
        ]
        return found[0] if len(found) == 1 else Features.joined(found).take(np.argsort(np.concatenate(rows)))

    def mark_at(self, number: int) -> list[int]:
        """Where each part can begin to reach this sequence and later ones: the numbers of each part's Mark, concatenated."""
        block, place = divmod(number, BLOCK)
        own = block * self.counts + np.bincount(_block(self, block)[0][:place], minlength=len(self.parts))
        return [number for part, first in zip(self.parts, own.tolist(), strict=True) for number in part.mark_at(first)]

    def places(self, numbers: Integers) -> tuple[Integers, Integers]:
        """(B,) the part of each sequence of the run, and (B,) its number in that part."""
        of_part, own = np.zeros_like(numbers), np.zeros_like(numbers)
        blocks, places = np.divmod(numbers, BLOCK)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            parts, before = (values[places[here]] for values in _block(self, block))
            of_part[here], own[here] = parts, block * self.counts[parts] + before
        return of_part, own


@lru_cache(maxsize=8)
def _block(mix: Mix, block: int) -> tuple[Integers, Integers]:
    """(BLOCK,) the part of each sequence of a block, and (BLOCK,) how many before it in the block are of the same part."""
    numbers = np.arange(block * BLOCK, (block + 1) * BLOCK)
    order = np.argsort(random_bits(sequence_keys(mix.parts[0].seed, numbers), _CORPUS, np.zeros_like(numbers)), kind="stable")
    parts, before = np.zeros_like(numbers), np.zeros_like(numbers)
    parts[order] = np.repeat(np.arange(len(mix.counts)), mix.counts)
    before[np.argsort(parts, kind="stable")] = ranges(np.zeros_like(mix.counts), mix.counts)
    return parts, before
