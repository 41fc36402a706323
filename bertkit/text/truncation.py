"""Truncation of texts that are longer than a sequence, computed from lengths alone (Sun et al., 2019, section 5.3.1).

head keeps the beginning of a text, tail its end, head+tail a quarter of what is kept from the beginning and the rest from the
end; windows keep all, in several sequences. E examples, S sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.features import ranges

TRUNCATIONS = ("head", "tail", "head+tail", "windows")
_HEAD = 4  # head+tail keeps one in so many tokens from the beginning: 128 of 510 in the paper


@dataclass(frozen=True)
class Part:
    """The part of a column of texts in each sequence: `kept` tokens from `first` on, with a gap after `head`. All are (S,)."""

    kept: NDArray[np.int64]
    first: NDArray[np.int64]
    head: NDArray[np.int64]  # tokens before the gap
    gap: NDArray[np.int64]

    def places(self, begins: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices of its tokens in flat values; texts begin at `begins` (S,)."""
        within = ranges(np.zeros_like(self.kept), self.kept)
        each = np.repeat(np.arange(len(self.kept)), self.kept)
        return begins[each] + self.first[each] + within + np.where(within >= self.head[each], self.gap[each], 0)


class Cut(NamedTuple):
    """examples: (S,) the example of each sequence. parts: of each column of texts. truncated: (E,) whether tokens are lost."""

    examples: NDArray[np.int64]
    parts: list[Part]
    truncated: NDArray[np.bool_]


def cut_texts(lengths: Sequence[NDArray[np.int64]], room: int, how: str = "head") -> Cut:
    """What to keep of texts, or pairs of texts, with these lengths (one array per column), in `room` tokens.

    A pair is truncated as in `longest_first`. Windows are equally long, as few as possible, and overlap if they must.
    """
    kept = [np.minimum(lengths[0], room)] if len(lengths) == 1 else list(longest_first(lengths[0], lengths[1], room))
    lost = np.array([whole - part for whole, part in zip(lengths, kept, strict=True)])  # (columns, E)
    zero = np.zeros_like(kept[0])
    if how != "windows":
        share = {"head": 1, "tail": 0}.get(how)
        heads = [part // _HEAD if share is None else part * share for part in kept]
        parts = [Part(count, zero, head, gap) for count, head, gap in zip(kept, heads, lost, strict=True)]
        return Cut(np.arange(len(zero)), parts, np.asarray(lost.any(axis=0)))
    in_windows = lost.argmax(axis=0)  # the column that is read in windows
    of_cut = np.where(in_windows == 0, kept[0], kept[-1])
    cut = (lost.max(axis=0) > 0) & (of_cut > 0)
    counts = np.where(cut, 1 - (-lost.max(axis=0) // np.maximum(of_cut, 1)), 1)
    examples = np.repeat(np.arange(len(zero)), counts)
    number = ranges(np.zeros_like(counts), counts)  # of each window in its example
    parts = []
    for column, part in enumerate(kept):
        mine = in_windows[examples] == column
        steps = np.maximum(counts[examples] - 1, 1)
        first = np.where(mine, lost[column][examples] * number // steps, 0)
        parts.append(Part(part[examples], first, part[examples], np.zeros_like(first)))
    other = np.where(in_windows == 0, lost[-1], lost[0]) if len(lengths) > 1 else zero
    return Cut(examples, parts, (other > 0) | ((lost.max(axis=0) > 0) & ~cut))


def longest_first(a: NDArray[np.int64], b: NDArray[np.int64], room: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many tokens of each pair are kept, by the rule of truncate_encodings in the tokenizers library.

    The shorter text is kept whole if it fits in half the room; else both get half, the longer one (or b) the odd token.
    """
    over = a + b > room
    shorter = np.minimum(np.minimum(a, b), room // 2)
    longer = room - shorter
    swap = a > b
    return np.where(over, np.where(swap, longer, shorter), a), np.where(over, np.where(swap, shorter, longer), b)
