"""The memory layout of packed sequences: concatenated, and padded to a grid for attention.

Dimensions: B sequences, N packed tokens (R queries), T longest sequence, A heads, D head size, H = A * D.
Sequences are padded to (B, T) only here, in groups of neighbours: a few long ones then do not enlarge the scores of all, and on
a CPU the scores stay in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertkit.model.batch import Batch

# The maximum number of attention scores in a group. Training MiniLM on 32 windows of SQuAD (two cores, bf16), tokens/s: 3626;
# 3191 with four times as many; 1249 in one group.
SCORES_OF_A_GROUP = 2**21
# The cost of starting a group, in scores (a layer's attention runs about 25 operations per group); and the most parts of a
# batch that can become groups (each number of sequences is another shape for the products). Training MiniLM on the short texts
# of SST-2 and CoNLL-2003 (two cores, bf16), a step takes a tenth less time than with one group; 8 parts are no faster.
SCORES_OF_A_START = 2**15
PARTS = 4
LARGEST_PACKED = 192  # the largest head size for which torch's kernel for packed sequences has gradients on every GPU
CPU = torch.device("cpu")
MULTIPLE = 8  # padded lengths are multiples of it, which keeps shapes few, as in `round_up_shape`
# Digits for `round_up_shape`. MANY: in training. FEW: for the rows of heads, whose number varies more, and in CPU inference,
# where any number of tokens can occur: oneDNN keeps a kernel of about a megabyte per shape, so a server's memory would grow.
FEW, MANY = 4, 6
# In inference on several sequences, the numbers of tokens and of head rows are multiples of these too.
MULTIPLE_OF_TOKENS, MULTIPLE_OF_ROWS = 64, 8
# In training in bf16, the number of tokens is, as each shape has its own kernels. MiniLM on two cores with AMX, examples/s of a
# run's first 50 steps, with multiples of 1 and 32, in turn: SST-2 234 and 310, 232 and 260; MRPC 126 and 128, 131 and 132.
MULTIPLE_IN_BF16 = 32


@dataclass(frozen=True)
class Layout:
    """How packed rows map to a (B, T) grid.

    slots: (N,) the cell of each row; None if every cell is taken, so the packed rows are the grid.
    mask: (B, 1, 1, T) float, 0 at taken cells and -inf at empty ones; None likewise.
    """

    num_sequences: int
    max_seqlen: int
    slots: Tensor | None
    mask: Tensor | None
    device: torch.device = CPU

    @classmethod
    def of(cls, cu_seqlens: Tensor, max_seqlen: int, num_rows: int, dtype: torch.dtype) -> Layout:
        """The layout of rows whose sequences begin and end at cu_seqlens (B + 1,)."""
        count, device = len(cu_seqlens) - 1, cu_seqlens.device
        if num_rows == count * max_seqlen:
            return cls(count, max_seqlen, None, None, device)
        lengths = cu_seqlens.diff()
        taken = torch.arange(max_seqlen, device=device) < lengths[:, None]  # (B, T)
        begins = torch.arange(count, device=device) * max_seqlen - cu_seqlens[:-1]
        slots = torch.arange(num_rows, device=device) + torch.repeat_interleave(begins, lengths, output_size=num_rows)
        mask = torch.zeros(taken.shape, dtype=dtype, device=device).masked_fill_(~taken, -torch.inf)
        return cls(count, max_seqlen, slots, mask[:, None, None, :], device)

    def pad(self, rows: Tensor) -> Tensor:
        """(N, A, D) -> (B, A, T, D)"""
        grid = rows if self.slots is None else _Pad.apply(rows, self.slots, self.num_sequences * self.max_seqlen)
        return grid.view(self.num_sequences, self.max_seqlen, *rows.shape[1:]).transpose(1, 2)

    def unpad(self, grid: Tensor) -> Tensor:
        """(B, A, T, D) -> (N, A * D)"""
        rows = grid.transpose(1, 2).reshape(self.num_sequences * self.max_seqlen, grid.shape[1] * grid.shape[3])
        return rows if self.slots is None else _Unpad.apply(rows, self.slots)


class HeadLayout(NamedTuple):
    """How a group's rows (n, parts, A, D) map to a grid (parts, B * A, T, D) and back; the parts are query, key and value.

    cells: (parts * B * A * T,) for each cell the index of its head among n * parts * A. A cell without a row gets its
    sequence's first row, so that a NaN stays in its sequence.
    slots: (n * parts * A,) the cell of each head.
    taken: (B, 1, T, 1) float, 0 where a cell has no row; None if every cell has one.
    """

    shape: tuple[int, int, int]
    cells: Tensor
    slots: Tensor
    taken: Tensor | None

    @classmethod
    def of(cls, layout: Layout, num_rows: int, parts: int, num_heads: int) -> HeadLayout:
        count, length, device = layout.num_sequences, layout.max_seqlen, layout.device
        slots = torch.arange(num_rows, device=device) if layout.slots is None else layout.slots
        sequence, place = slots // length, slots % length
        lines = torch.arange(parts, device=device)[:, None] * (count * num_heads) + torch.arange(num_heads, device=device)
        heads = ((lines + sequence[:, None, None] * num_heads) * length + place[:, None, None]).flatten()
        firsts = torch.searchsorted(sequence, torch.arange(count, device=device)).clamp_(max=num_rows - 1)
        part, head = torch.arange(parts, device=device)[:, None, None, None], torch.arange(num_heads, device=device)[:, None]
        cells = ((firsts[:, None, None] * parts + part) * num_heads + head).repeat(1, 1, 1, length).flatten()
        cells[heads] = torch.arange(len(heads), device=device)
        taken = None if layout.slots is None or layout.mask is None else layout.mask.exp().view(count, 1, length, 1)
        return cls((parts, count * num_heads, length), cells, heads, taken)

    def pad(self, rows: Tensor, size: int) -> Tensor:
        """(n, parts * A * D) -> (parts, B * A, T, D)"""
        return rows.reshape(-1, size).index_select(0, self.cells).view(*self.shape, size)

    def unpad(self, grid: Tensor, out: Tensor) -> None:
        """(parts, B * A, T, D) -> (n, parts * A * D)"""
        size = grid.shape[-1]
        torch.index_select(grid.view(-1, size), 0, self.slots, out=out.view(-1, size))


@dataclass(frozen=True)
class Grouped:
    """Packed rows in groups of whole sequences: the number of rows in each group, and their layout. The kernel for packed
    sequences takes one group and no layout.

    padding_rows: rows after the groups that belong to no sequence; they attend to nothing, and nothing attends to them.
    """

    sizes: list[int]
    layouts: list[Layout]
    padding_rows: int = 0
    _head_layouts: dict[tuple[int, int], list[HeadLayout]] = field(default_factory=dict, compare=False)

    @property
    def spans(self) -> list[int]:
        """The number of rows in each group, then of padding rows."""
        return [*self.sizes, self.padding_rows]

    def head_layouts(self, parts: int, num_heads: int) -> list[HeadLayout]:
        """The head layout of each group for rows (N, parts, A, D); made once for all layers."""
        if (parts, num_heads) not in self._head_layouts:
            self._head_layouts[parts, num_heads] = [
                HeadLayout.of(layout, size, parts, num_heads) for size, layout in zip(self.sizes, self.layouts, strict=True)
            ]
        return self._head_layouts[parts, num_heads]

    @classmethod
    def of(
        cls,
        cu_seqlens: Tensor,
        counts: NDArray[np.int64],
        dtype: torch.dtype,
        groups: list[int],
        *,
        padding_rows: int = 0,
        few: bool = False,
    ) -> Grouped:
        """counts: (B,) rows per sequence, the differences of cu_seqlens (B + 1,). groups: where groups begin, then B.

        few: whether to round padded lengths to FEW digits, for fewer shapes.
        """
        sizes, layouts = [], []
        for begin, end in pairwise(groups):
            part = cu_seqlens[begin : end + 1] - cu_seqlens[begin]
            sizes.append(int(counts[begin:end].sum()))
            longest = int(counts[begin:end].max())
            # A single sequence needs no padding; with `few`, only if every group is a single sequence.
            if torch.is_grad_enabled() or (len(groups) <= len(counts) if few else end - begin > 1):
                longest = _padded_length(longest)
                longest = round_up_shape(longest, FEW) if few else longest
            layouts.append(Layout.of(part, longest, sizes[-1], dtype))
        return cls(sizes, layouts, padding_rows)


class Bounds(NamedTuple):
    """The offsets (B + 1,) int32 and longest lengths that torch's kernel for packed sequences takes."""

    cu_queries: Tensor
    cu_keys: Tensor
    longest_query: int
    longest_key: int


@dataclass(frozen=True)
class Pattern:
    """Which packed rows attend to which: queries and keys, in the same groups; the same object if every row is both.

    masks: per group (B, 1, 1 or Tq, Tk) float, -inf where a query may not attend; None: it attends to all keys.
    bounds: set if there is a kernel for packed sequences and queries attend to all keys.
    """

    queries: Grouped
    keys: Grouped
    masks: list[Tensor | None]
    bounds: Bounds | None = None

    @cached_property
    def is_full(self) -> bool:
        """Whether no cell is empty or masked, as for a single sequence or several of equal length."""
        layouts = (*self.queries.layouts, *self.keys.layouts)
        return all(mask is None for mask in self.masks) and all(each.slots is None and each.max_seqlen for each in layouts)

    @classmethod
    def of(
        cls,
        queries: Grouped,
        keys: Grouped,
        positions: Tensor | None,
        dtype: torch.dtype,
        bounds: Bounds | None = None,
    ) -> Pattern:
        """positions: (R,) each query's position in its sequence, which it attends up to; None: it attends to all of it."""
        if positions is None:
            return cls(queries, keys, [layout.mask for layout in keys.layouts], bounds)
        masks: list[Tensor | None] = []
        for part, rows, columns in zip(positions.split(queries.sizes), queries.layouts, keys.layouts, strict=True):
            position = rows.pad(part[:, None, None])  # (B, 1, Tq, 1)
            future = torch.arange(columns.max_seqlen, device=positions.device) > position  # (B, 1, Tq, Tk)
            masks.append(torch.zeros(future.shape, dtype=dtype, device=positions.device).masked_fill_(future, -torch.inf))
        return cls(queries, keys, masks)


class Packing:
    """How the encoder lays out a batch: groups, padding rows that round up the number of rows, and masks.

    tokens, rows: the patterns for all N tokens, and for the R rows that the head reads, which are the last layer's queries.
    """

    def __init__(self, batch: Batch, num_heads: int, head_size: int, dtype: torch.dtype, *, causal: bool) -> None:
        device = batch.cu_seqlens.device
        on_cpu = device.type == "cpu"
        takes_packed = not causal and batch.max_rows != 0 and has_packed_kernel(device, dtype, head_size)
        # Dropout draws bits for padding rows too, so changing their number would change the training.
        in_use = on_cpu and not torch.is_grad_enabled()
        groups = group(batch.token_counts, num_heads) if on_cpu else group_by_length(batch.token_counts)
        if in_use:
            groups = _round_groups(groups)
        positions = _positions(batch) if causal else None

        def grouped(cu_seqlens: Tensor, counts: NDArray[np.int64], in_inference: int, in_training: int) -> Grouped:
            count = int(counts.sum())
            if takes_packed:
                return Grouped([count], [])
            digits, multiple = (FEW, in_inference if len(counts) > 1 else 1) if in_use else (MANY, in_training)
            padding_rows = round_up_shape(count, digits, multiple) - count if on_cpu else 0
            return Grouped.of(cu_seqlens, counts, dtype, groups, padding_rows=padding_rows, few=in_use)

        def bounds(cu_queries: Tensor, longest: int) -> Bounds | None:
            return Bounds(cu_queries.int(), batch.cu_seqlens.int(), longest, batch.max_seqlen) if takes_packed else None

        in_training = MULTIPLE_IN_BF16 if dtype == torch.bfloat16 else 1
        keys = grouped(batch.cu_seqlens, batch.token_counts, MULTIPLE_OF_TOKENS, in_training)
        self.tokens = self.rows = Pattern.of(keys, keys, positions, dtype, bounds(batch.cu_seqlens, batch.max_seqlen))
        self.selected = batch.rows
        if batch.rows is not None:
            queries = grouped(batch.cu_rows, batch.row_counts, MULTIPLE_OF_ROWS, 1)
            positions = positions if positions is None else positions[batch.rows]
            self.rows = Pattern.of(queries, keys, positions, dtype, bounds(batch.cu_rows, batch.max_rows))

    def pad(self, tokens: Tensor) -> Tensor:
        """(N, H) -> (N + padding, H)"""
        return pad_rows(tokens, self.tokens.queries.padding_rows)

    def select(self, tokens: Tensor) -> Tensor:
        """(N + padding, H) -> (R + padding, H), the rows that the head reads."""
        if self.selected is None:
            return tokens
        return pad_rows(tokens.index_select(0, self.selected), self.rows.queries.padding_rows)

    def unpad(self, rows: Tensor) -> Tensor:
        """(R + padding, H) -> (R, H)"""
        return rows[: len(rows) - self.rows.queries.padding_rows]


def _positions(batch: Batch) -> Tensor:
    """(N,) each token's index in its sequence; position_ids of padded input have gaps where nothing is attended."""
    count = len(batch.input_ids)
    begins = torch.repeat_interleave(batch.cu_seqlens[:-1], batch.cu_seqlens.diff(), output_size=count)
    return torch.arange(count, device=begins.device) - begins


def pad_rows(rows: Tensor, count: int) -> Tensor:
    """The rows, followed by `count` rows of 0."""
    return F.pad(rows, (0, 0, 0, count)) if count else rows


def round_rows(rows: Tensor) -> Tensor:
    """(R, H) -> (R + padding, H): on a CPU, append rows of 0 to round up their number."""
    if rows.device.type != "cpu":
        return rows
    multiple = 1 if torch.is_grad_enabled() or len(rows) == 1 else MULTIPLE_OF_ROWS
    return pad_rows(rows, round_up_shape(len(rows), FEW, multiple) - len(rows))


def _padded_length(max_seqlen: int) -> int:
    return -(-max_seqlen // MULTIPLE) * MULTIPLE if max_seqlen > 1 else max_seqlen


def round_up_shape(count: int, digits: int = MANY, multiple: int = 1) -> int:
    """Round up to a number with at most `digits` significant binary digits: for six, 1 to 64, 66, 68 ... 128, 132 ...

    multiple: a power of two that the result is a multiple of.

    On a CPU, bfloat16 matrix products compile a kernel for each new shape, which takes longer than a small product and keeps
    about a megabyte. Padding rows, at most 3% for six digits, keep the number of shapes small.
    """
    unit = max(multiple, 1 << max(0, count.bit_length() - digits))
    return -(-count // unit) * unit


def shapes_in_use(most: int) -> list[int]:
    """The numbers of tokens, for up to `most`, that CPU inference pads several sequences to."""
    return sorted({round_up_shape(count, FEW, MULTIPLE_OF_TOKENS) for count in range(1, most + 1)})


def group(lengths: NDArray[np.int64], num_heads: int) -> list[int]:
    """The first sequence of each group of neighbours, then B. lengths: (B,), ideally sorted.

    Equal parts of the batch are joined where that costs least; groups with too many scores are then divided.
    """
    groups: list[int] = []
    for begin, end in pairwise(_joined_parts(lengths, num_heads)):
        groups.append(begin)
        longest = 0
        for index, length in enumerate(lengths[begin:end].tolist(), begin):
            longest = max(longest, length)
            if index > groups[-1] and (index - groups[-1] + 1) * num_heads * longest**2 > SCORES_OF_A_GROUP:
                groups.append(index)
                longest = length
    return [*groups, len(lengths)]


def _joined_parts(lengths: NDArray[np.int64], num_heads: int) -> list[int]:
    """The first sequence of each group, then B: of all ways to join neighbouring parts, the one with the least total cost."""
    begins = np.arange(0, len(lengths), -(-len(lengths) // PARTS))
    bounds = [*begins.tolist(), len(lengths)]
    padded = np.maximum.reduceat(-(-lengths // MULTIPLE) * MULTIPLE, begins)
    cheapest: list[tuple[int, list[int]]] = [(0, [])]  # of the first parts: the cost, and where groups begin
    for end in range(1, len(bounds)):
        choices = []
        for begin, (cost, groups) in enumerate(cheapest):
            scores = num_heads * int(padded[begin:end].max()) ** 2 * (bounds[end] - bounds[begin])
            choices.append((cost + SCORES_OF_A_START + scores, [*groups, bounds[begin]]))
        cheapest.append(min(choices))
    return [*cheapest[-1][1], len(lengths)]


def _round_groups(groups: list[int]) -> list[int]:
    """Divide groups so that the number of sequences in each is a power of two."""
    divided: list[int] = []
    for begin, end in pairwise(groups):
        while begin < end:
            divided.append(begin)
            begin += 1 << (end - begin).bit_length() - 1
    return [*divided, groups[-1]]


def group_by_length(lengths: NDArray[np.int64]) -> list[int]:
    """Like `group`, for devices where starting a kernel is slow. If sequences are sorted from long to short, those with equally
    many binary digits in their lengths form a group; otherwise all form one.

    The sorted grid is less than half empty, with at most ten groups up to 512 tokens.
    """
    digits = np.frexp(lengths)[1]
    steps = np.flatnonzero(np.diff(digits)) + 1
    return [0, *steps.tolist(), len(lengths)] if (np.diff(digits) <= 0).all() else [0, len(lengths)]


def has_packed_kernel(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether torch has a kernel for packed sequences on this device: on GPUs since Ampere (2020), in 16 bits."""
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and head_size % 8 == 0
        and head_size <= LARGEST_PACKED
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and torch.backends.cuda.is_flash_attention_available()
        and not torch.compiler.is_exporting()
    )


class _Pad(torch.autograd.Function):
    """Copies rows into their cells; the backward pass gathers them (autograd's own would add into zeros, which is slower)."""

    @staticmethod
    def forward(ctx, rows: Tensor, slots: Tensor, num_slots: int) -> Tensor:
        ctx.save_for_backward(slots)
        return rows.new_zeros(num_slots, *rows.shape[1:]).index_copy_(0, slots, rows)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient.index_select(0, *ctx.saved_tensors), None, None


class _Unpad(torch.autograd.Function):
    """The reverse of _Pad."""

    @staticmethod
    def forward(ctx, grid: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.num_slots = len(grid)
        return grid.index_select(0, slots)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (slots,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.num_slots, *gradient.shape[1:]).index_copy_(0, slots, gradient), None
