"""Which tokens a masked language model predicts, and what replaces them in its input (Devlin et al., 2019, section 3.1).

What happens to a token depends only on its own sequence and that sequence's key, not on the rest of the batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertkit.corpus.random_bits import Bits, random_bits
from bertkit.features import Ragged, offsets_of

MASKED = 0.15  # the default share of a sequence's tokens that are targets
MASK, RANDOM = 0.8, 0.1  # the shares of the targets that become [MASK], or a random token; the others stay
_ORDER, _FATE, _REPLACEMENT = range(3)  # the purposes of random bits


def num_targets(lengths: NDArray[np.int64], share: float = MASKED) -> NDArray[np.int64]:
    """How many targets sequences of these lengths get: max(1, round(share n))."""
    return np.maximum(1, np.rint(share * lengths).astype(np.int64))


def choose_tokens(
    special: NDArray[np.bool_], lengths: NDArray[np.int64], keys: Bits, share: float = MASKED
) -> NDArray[np.int64]:
    """(R,) the targets of each sequence, in order: exactly `num_targets`, or all its ordinary tokens if there are fewer.

    special: (N,) tokens that are never targets; lengths, keys: (B,) of the sequences, including special tokens. The targets of
    a larger share include those of a smaller one.
    """
    tokens = np.flatnonzero(~special)
    owners, order = _shuffled(tokens, lengths, keys)
    rank = np.arange(len(tokens)) - offsets_of(np.bincount(owners, minlength=len(lengths)))[owners]
    return np.sort(tokens[order[rank < num_targets(lengths, share)[owners]]])


def choose_words(
    special: NDArray[np.bool_],
    begins_word: NDArray[np.bool_],
    lengths: NDArray[np.int64],
    keys: Bits,
    share: float = MASKED,
) -> NDArray[np.int64]:
    """(R,) the targets of each sequence, as whole words.

    begins_word: (N,) whether a token begins a word; a word also begins at the start of a segment. Words are taken in random
    order, skipping those that would exceed `num_targets`; a sequence gets at least one word, its shortest, however long.
    """
    starts = begins_word | special
    starts[1:] |= special[:-1]
    word = np.cumsum(starts) - 1  # (N,)
    firsts = np.flatnonzero(starts)
    usable = np.flatnonzero(~special[firsts])
    sizes = np.bincount(word)[usable]
    owners, order = _shuffled(firsts[usable], lengths, keys)
    left = num_targets(lengths, share)
    chosen = np.zeros(len(firsts), dtype=bool)
    while len(order):
        # From each sequence, take all words up to the first that does not fit; the next round starts after it.
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
    empty = ~np.isin(owners, owners[chosen[usable]])  # words of sequences where none was chosen; these get their shortest word
    shortest = np.lexsort((sizes, owners))
    shortest = shortest[empty[shortest]]
    chosen[usable[shortest[np.unique(owners[shortest], return_index=True)[1]]]] = True
    return np.flatnonzero(chosen[word])


def mask(
    input_ids: Ragged, targets: NDArray[np.int64], keys: Bits, *, mask_token_id: int, candidates: NDArray
) -> tuple[Ragged, NDArray[np.int64]]:
    """The sequences with 80% of the targets masked, 10% replaced by one of `candidates`, 10% kept; and (R,) the originals."""
    labels = input_ids.values[targets].astype(np.int64)
    owners, positions = _places(targets, input_ids.lengths)
    fate = random_bits(keys[owners], _FATE, positions) * 2.0**-64
    replaced = candidates[random_bits(keys[owners], _REPLACEMENT, positions) % np.uint64(len(candidates))]
    values = input_ids.values.copy()
    values[targets] = np.where(fate < MASK, mask_token_id, np.where(fate < MASK + RANDOM, replaced, labels))
    return Ragged(values, input_ids.offsets), labels


def _places(tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sequence of each of these tokens, and its position there."""
    owners = np.repeat(np.arange(len(lengths)), lengths)[tokens]
    return owners, tokens - offsets_of(lengths)[owners]


def _shuffled(tokens: NDArray[np.int64], lengths: NDArray[np.int64], keys: Bits) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sequence of each of these tokens, and an order of them that is random within their sequences."""
    owners, positions = _places(tokens, lengths)
    return owners, np.lexsort((random_bits(keys[owners], _ORDER, positions), owners))
