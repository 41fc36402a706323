"""Which tokens a masked language model predicts, and what replaces them in its input (Devlin et al., 2019, section 3.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertkit.features import Ragged

MASKED = 0.15  # of a sequence's tokens are targets
MASK, RANDOM = 0.8, 0.1  # of the targets become [MASK], or a random token; the others stay


def num_targets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many targets sequences of these lengths get: max(1, round(0.15 n))."""
    return np.maximum(1, np.rint(MASKED * lengths).astype(np.int64))


def choose_tokens(special: NDArray[np.bool_], lengths: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """(R,) the targets of each sequence, in order: exactly `num_targets`, or all its ordinary tokens if there are fewer.

    special: (N,) tokens that are never targets; lengths: (B,) of the sequences, including special tokens.
    """
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    # A random order in each sequence, special tokens last: the first ones are the targets.
    order = np.argsort(sequence + np.where(special, 1 - 2**-20, rng.random(len(special)) * (1 - 2**-19)), kind="stable")
    rank = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    possible = np.bincount(sequence[~special], minlength=len(lengths))
    return np.sort(order[rank < np.repeat(np.minimum(num_targets(lengths), possible), lengths)])


def choose_words(
    special: NDArray[np.bool_], begins_word: NDArray[np.bool_], lengths: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """(R,) the targets of each sequence, as whole words.

    begins_word: (N,) whether a token begins a word; a word also begins at the start of a segment. Words are taken in random
    order, skipping those that would exceed `num_targets`; a sequence gets at least one word, its shortest, however long.
    """
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    starts = begins_word | special
    starts[1:] |= special[:-1]
    word = np.cumsum(starts) - 1  # (N,)
    firsts = np.flatnonzero(starts)
    usable = np.flatnonzero(~special[firsts])
    sizes = np.bincount(word)[usable]
    owners = sequence[firsts[usable]]
    order = np.argsort(owners + rng.random(len(usable)), kind="stable")
    left = num_targets(lengths)
    chosen = np.zeros(len(firsts), dtype=bool)
    while len(order):
        # Of each sequence all words up to the first that does not fit; the next round starts after it.
        size, owner = sizes[order], owners[order]
        ahead = np.cumsum(size)
        before = np.r_[0, ahead[:-1]]
        begin = np.searchsorted(owner, owner)  # where the sequence's words begin in the order
        fits = ahead - before[begin] <= left[owner]
        blocked = np.maximum.accumulate(np.where(fits, -1, np.arange(len(order))))
        taken = fits & (blocked < begin)
        chosen[usable[order[taken]]] = True
        np.subtract.at(left, owner[taken], size[taken])
        order = order[~taken]
        order = order[sizes[order] <= left[owners[order]]]  # the others can never fit
    empty = ~np.isin(owners, owners[chosen[usable]])  # words of sequences without a chosen one, of which the shortest is taken
    shortest = np.lexsort((sizes, owners))
    shortest = shortest[empty[shortest]]
    chosen[usable[shortest[np.unique(owners[shortest], return_index=True)[1]]]] = True
    return np.flatnonzero(chosen[word])


def mask(
    input_ids: Ragged, targets: NDArray[np.int64], *, mask_token_id: int, candidates: NDArray, rng: np.random.Generator
) -> tuple[Ragged, NDArray[np.int64]]:
    """The sequences with 80% of the targets masked, 10% replaced by one of `candidates`, 10% kept; and (R,) the originals."""
    labels = input_ids.values[targets].astype(np.int64)
    draw = rng.random(len(targets))
    replaced = rng.choice(candidates, len(targets))
    values = input_ids.values.copy()
    values[targets] = np.where(draw < MASK, mask_token_id, np.where(draw < MASK + RANDOM, replaced, labels))
    return Ragged(values, input_ids.offsets), labels
