"""Which sequences of a batch attention computes together, and to what sizes their grids are rounded up.

Dimensions: S sequences. A grid of attention has lines of equal length. On a CPU, a line holds a long sequence or several short
ones, so that little of the grid is empty. On other devices, where starting a kernel is slow, each sequence has its own line.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

# The maximum number of attention scores in a group of several sequences. Training MiniLM on 32 windows of SQuAD (two cores,
# bf16), in groups of equally many sequences, tokens/s: 3626; 3191 with four times as many; 1249 in one group.
SCORES_OF_A_GROUP = 2**21
# The cost of starting a group, in scores (a layer's attention runs about 25 operations per group), and the number of equal
# parts of a batch that may be joined, before groups with too many scores are divided. Training MiniLM (two cores, bf16), a
# step's attention takes, on SST-2 and CoNLL-2003: 17 and 27 ms; 21 and 31 with a fourth of this cost; 18 and 30 with one group.
SCORES_OF_A_START = 2**17
PARTS = 4
# The length of lines is a multiple of it, which keeps shapes few, as in `round_up_shape`. In bf16, a CPU's registers hold 32
# numbers, and a softmax of 56 takes longer than one of 64.
MULTIPLE, MULTIPLE_IN_BF16 = 8, 32
# Digits for `round_up_shape`. MANY: in training. FEW: in inference, where any number of tokens can occur: oneDNN keeps a kernel
# of about a megabyte per shape, so a server's memory would grow.
FEW, MANY = 4, 6
# In inference on several sequences, the numbers of tokens and of the rows that heads read are multiples of these too.
MULTIPLE_OF_TOKENS, MULTIPLE_OF_ROWS = 64, 8


def round_up_shape(count: int, digits: int = MANY, multiple: int = 1) -> int:
    """Round up to a number with at most `digits` significant binary digits: for six, 1 to 64, 66, 68 ... 128, 132 ...

    multiple: a power of two that the result is a multiple of.

    On a CPU, bfloat16 matrix products compile a kernel for each new shape, which takes longer than a small product and keeps
    about a megabyte. Padding rows, at most 3% for six digits without a multiple, keep the number of shapes small.
    """
    unit = max(multiple, 1 << max(0, count.bit_length() - digits))
    return -(-count // unit) * unit


def shapes_in_use(most: int) -> list[int]:
    """The numbers of tokens, for up to `most`, that CPU inference pads several sequences to."""
    return sorted({round_up_shape(count, FEW, MULTIPLE_OF_TOKENS) for count in range(1, most + 1)})


class Rounding(NamedTuple):
    """How `round_up_shape` rounds up the shapes of packed rows and their grids.

    digits: of all shapes. rows: what the number of rows is a multiple of; 0: it is not rounded. length: likewise, of lines.
    """

    digits: int = MANY
    rows: int = 0
    length: int = MULTIPLE

    def padding(self, count: int) -> int:
        """How many rows to add to `count`."""
        return round_up_shape(count, self.digits, self.rows) - count if self.rows else 0

    def line(self, longest: int) -> int:
        """The length of lines of which the fullest has `longest` cells."""
        return round_up_shape(longest, self.digits, self.length) if longest > 1 else longest


LINES_ONLY = Rounding()  # the number of rows stays as it is


def roundings(device: torch.device, dtype: torch.dtype, num_sequences: int) -> tuple[Rounding, Rounding]:
    """For a batch's tokens and for the rows that heads read: in training where gradients are computed, else in inference.

    Dropout draws bits for padding too, so with another rounding, a training has other results.
    """
    if device.type != "cpu":
        return LINES_ONLY, LINES_ONLY
    in_bf16 = dtype == torch.bfloat16
    length = MULTIPLE_IN_BF16 if in_bf16 else MULTIPLE
    if torch.is_grad_enabled():
        # Each number of rows has its own kernels, and compiling one takes about 2 ms. MiniLM on two cores with AMX, examples/s
        # of a run's first 50 steps (CoNLL-2003: 100), with multiples of 1 and 32, in turn. Of tokens: SST-2 234 and 310, 232
        # and 260; MRPC 126 and 128, 131 and 132. Of the rows that heads read: CoNLL-2003 247 and 277, 255 and 263, 248 and 270.
        multiple = 32 if in_bf16 else 1
        return Rounding(MANY, multiple, length), Rounding(MANY, multiple)
    tokens, rows = (MULTIPLE_OF_TOKENS, MULTIPLE_OF_ROWS) if num_sequences > 1 else (1, 1)
    return Rounding(FEW, tokens, length), Rounding(FEW, rows)


class Groups(NamedTuple):
    """Groups of neighbouring sequences, each with a grid of its own.

    begins: the first sequence of each group, then S. lines: (S,) the line of each sequence in its group's grid; None: each has
    one of its own.
    """

    begins: list[int]
    lines: NDArray[np.int64] | None = None


def share_lines(lengths: NDArray[np.int64], num_heads: int, rounding: Rounding) -> Groups:
    """Groups whose sequences share lines. lengths: (S,) of the sequences, ideally sorted.

    Equal parts of the batch are joined where that costs least; groups with too many scores are then divided.
    """

    @cache
    def length(begin: int, end: int) -> int:
        return rounding.line(int(lengths[begin:end].max()))

    @cache
    def lines(begin: int, end: int) -> NDArray[np.int64]:
        return fill_lines(lengths[begin:end], length(begin, end))

    def scores(begin: int, end: int) -> int:
        return num_heads * length(begin, end) ** 2 * (int(lines(begin, end).max()) + 1)

    parts = [*range(0, len(lengths), -(-len(lengths) // PARTS)), len(lengths)]
    cheapest: list[tuple[int, list[int]]] = [(0, [])]  # of the first parts: the cost, and where groups begin
    for number, end in enumerate(parts[1:], 1):
        joined = zip(parts[:number], cheapest, strict=True)
        choices = [(cost + SCORES_OF_A_START + scores(begin, end), [*groups, begin]) for begin, (cost, groups) in joined]
        cheapest.append(min(choices))
    begins = []
    for begin, end in pairwise([*cheapest[-1][1], len(lengths)]):
        while begin < end:
            begins.append(begin)
            begin += max(1, bisect_right(range(begin + 1, end + 1), SCORES_OF_A_GROUP, key=partial(scores, begin)))
    begins.append(len(lengths))
    return Groups(begins, np.concatenate([lines(begin, end) for begin, end in pairwise(begins)]))


def fill_lines(lengths: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """(S,) a line of this length for each sequence, from the longest to the shortest where it leaves the least room."""
    lines = np.empty(len(lengths), np.int64)
    rooms: list[tuple[int, int]] = []  # of each line: the room that is left, and its number; in ascending order
    for index in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[index])
        fitting = bisect_left(rooms, (size, 0))
        room, line = rooms.pop(fitting) if fitting < len(rooms) else (length, len(rooms))
        lines[index] = line
        insort(rooms, (room - size, line))
    return lines


def group_by_length(lengths: NDArray[np.int64]) -> Groups:
    """Groups for devices where starting a kernel is slow. If sequences are sorted from long to short, those whose lengths have
    equally many binary digits form a group; otherwise all form one.

    The sorted grid is less than half empty, with at most ten groups up to 512 tokens.
    """
    digits = np.frexp(lengths)[1]
    steps = np.flatnonzero(np.diff(digits)) + 1
    return Groups([0, *steps.tolist(), len(lengths)] if (np.diff(digits) <= 0).all() else [0, len(lengths)])
