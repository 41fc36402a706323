"""The memory layout of packed sequences: concatenated, and padded to a grid for attention.

Dimensions: S sequences, N packed tokens (R queries), B lines of a grid, T cells of a line, A heads, D head size, H = A * D.
Sequences are padded to a grid only here, in groups of neighbours: a few long ones then do not enlarge the scores of all, and on
a CPU the scores stay in the cache. A line of the grid holds one sequence or several.
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
from bertkit.model.grouping import (
    FEW,
    LINES_ONLY,
    MULTIPLE_OF_ROWS,
    Groups,
    Rounding,
    group_by_length,
    round_up_shape,
    roundings,
    share_lines,
)

LARGEST_PACKED = 192  # the largest head size for which torch's kernel for packed sequences has gradients on every GPU
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Layout:
    """How packed rows map to a (B, T) grid.

    slots: (N,) the cell of each row; None if the packed rows are the grid.
    mask: (B, 1, 1, T) float, 0 at taken cells and -inf at empty ones; None likewise.
    owners: (B, T) the sequence of each cell, -1 at empty ones; None if no line of the grid is shared or empty.
    """

    num_lines: int
    length: int
    slots: Tensor | None
    mask: Tensor | None
    device: torch.device = CPU
    owners: Tensor | None = None

    @classmethod
    def of(cls, cu_seqlens: Tensor, length: int, num_rows: int, dtype: torch.dtype) -> Layout:
        """The layout of rows whose sequences begin and end at cu_seqlens (B + 1,)."""
        count, device = len(cu_seqlens) - 1, cu_seqlens.device
        if num_rows == count * length:
            return cls(count, length, None, None, device)
        lengths = cu_seqlens.diff()
        taken = torch.arange(length, device=device) < lengths[:, None]  # (B, T)
        begins = torch.arange(count, device=device) * length - cu_seqlens[:-1]
        slots = torch.arange(num_rows, device=device) + torch.repeat_interleave(begins, lengths, output_size=num_rows)
        mask = torch.zeros(taken.shape, dtype=dtype, device=device).masked_fill_(~taken, -torch.inf)
        return cls(count, length, slots, mask[:, None, None, :], device)

    @classmethod
    def shared(
        cls, lines: NDArray[np.int64], counts: NDArray[np.int64], num_lines: int, length: int, dtype: torch.dtype
    ) -> Layout:
        """The layout, on a CPU, of sequences of `counts` (S,) rows in `lines` (S,) of the grid, one after the other."""
        order = np.argsort(lines, kind="stable")
        offsets = np.empty_like(counts)  # of each sequence in its line
        before = np.cumsum(counts[order]) - counts[order]
        offsets[order] = before - before[np.searchsorted(lines[order], lines[order])]
        begins = lines * length + offsets - (np.cumsum(counts) - counts)
        slots = np.repeat(begins, counts) + np.arange(counts.sum())
        cells = np.full((num_lines, length), -1)
        cells.reshape(-1)[slots] = np.repeat(np.arange(len(counts)), counts)
        owners = torch.from_numpy(cells)
        mask = torch.zeros(owners.shape, dtype=dtype).masked_fill_(owners < 0, -torch.inf)
        return cls(num_lines, length, torch.from_numpy(slots), mask[:, None, None, :], owners=owners)

    def pad(self, rows: Tensor) -> Tensor:
        """(N, A, D) -> (B, A, T, D)"""
        grid = rows if self.slots is None else _Pad.apply(rows, self.slots, self.num_lines * self.length)
        return grid.view(self.num_lines, self.length, *rows.shape[1:]).transpose(1, 2)

    def unpad(self, grid: Tensor) -> Tensor:
        """(B, A, T, D) -> (N, A * D)"""
        rows = grid.transpose(1, 2).reshape(self.num_lines * self.length, grid.shape[1] * grid.shape[3])
        return rows if self.slots is None else _Unpad.apply(rows, self.slots)


class HeadLayout(NamedTuple):
    """How a group's rows (n, parts, A, D) map to a grid (parts, B * A, T, D) and back; the parts are query, key and value.

    cells: (parts * B * A * T,) for each cell the index of its head among n * parts * A. A cell without a row gets the
    first row of its line, so that a NaN stays in its line; in a line without rows, another, which `taken` leaves out.
    slots: (n * parts * A,) the cell of each head.
    taken: (B, 1, T, 1) float, 0 where a cell has no row; None if every cell has one.
    """

    shape: tuple[int, int, int]
    cells: Tensor
    slots: Tensor
    taken: Tensor | None

    @classmethod
    def of(cls, layout: Layout, num_rows: int, parts: int, num_heads: int) -> HeadLayout:
        count, length, device = layout.num_lines, layout.length, layout.device
        rows = torch.arange(num_rows, device=device)
        slots = rows if layout.slots is None else layout.slots
        line, place = slots // length, slots % length
        grids = torch.arange(parts, device=device)[:, None] * (count * num_heads) + torch.arange(num_heads, device=device)
        heads = ((grids + line[:, None, None] * num_heads) * length + place[:, None, None]).flatten()
        if layout.owners is None:
            firsts = torch.searchsorted(line, torch.arange(count, device=device)).clamp_(max=num_rows - 1)
        else:
            firsts = torch.zeros(count, dtype=rows.dtype).scatter_reduce_(0, line, rows, "amin", include_self=False)
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
        groups: Groups,
        rounding: Rounding = LINES_ONLY,
    ) -> Grouped:
        """counts: (S,) rows per sequence, the differences of cu_seqlens (S + 1,)."""
        sizes, layouts = [], []
        for begin, end in pairwise(groups.begins):
            own, part = counts[begin:end], cu_seqlens[begin : end + 1] - cu_seqlens[begin]
            sizes.append(int(own.sum()))
            if groups.lines is not None:
                lines = groups.lines[begin:end]
                filled = np.bincount(lines, own)
                length, num_lines = rounding.line(int(filled.max())), round_up_shape(len(filled), rounding.digits)
                if np.array_equal(lines, np.arange(num_lines)):  # no line is shared or empty
                    layouts.append(Layout.of(part, length, sizes[-1], dtype))
                else:
                    layouts.append(Layout.shared(lines, own, num_lines, length, dtype))
                continue
            length = int(own.max())
            if torch.is_grad_enabled() or end - begin > 1:  # a single sequence needs no padding
                length = rounding.line(length)
            layouts.append(Layout.of(part, length, sizes[-1], dtype))
        return cls(sizes, layouts, rounding.padding(sum(sizes)))


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
        return all(mask is None for mask in self.masks) and all(each.slots is None and each.length for each in layouts)

    @classmethod
    def of(
        cls,
        queries: Grouped,
        keys: Grouped,
        positions: tuple[Tensor, Tensor] | None,
        dtype: torch.dtype,
        bounds: Bounds | None = None,
    ) -> Pattern:
        """positions: of each query (R,) and of each key (N,) in its sequence; a query attends to no later key. None: to all."""
        layouts = [*zip(queries.layouts, keys.layouts, strict=True)]
        places: list[tuple[Tensor, ...] | None] = [None] * len(layouts)
        if positions is not None:
            of_queries, of_keys = positions[0].split(queries.sizes), positions[1].split(keys.sizes)
            places = [*zip(of_queries, of_keys, strict=True)]
        masks = [_mask(*pair, each, dtype) for pair, each in zip(layouts, places, strict=True)]
        return cls(queries, keys, masks, bounds)


def _mask(queries: Layout, keys: Layout, positions: tuple[Tensor, ...] | None, dtype: torch.dtype) -> Tensor | None:
    """A group's mask, as in Pattern.

    A cell without a query attends to the first sequence of its line, because a softmax over nothing is not a number.
    """
    if positions is None and keys.owners is None:
        return keys.mask
    excluded = torch.zeros((), dtype=torch.bool, device=keys.device)
    if keys.owners is not None:
        assert queries.owners is not None, "both are in the same lines"
        own = torch.where(queries.owners < 0, keys.owners[:, :1], queries.owners)
        excluded = own[:, None, :, None] != keys.owners[:, None, None, :]
    elif keys.mask is not None:
        excluded = keys.mask != 0
    if positions is not None:
        of_query, of_key = (each.pad(part[:, None, None]) for each, part in zip((queries, keys), positions, strict=True))
        excluded = excluded | (of_key.transpose(2, 3) > of_query)
    return torch.zeros(excluded.shape, dtype=dtype, device=keys.device).masked_fill_(excluded, -torch.inf)


class Packing:
    """How the encoder lays out a batch: groups, padding rows that round up the number of rows, and masks.

    tokens, rows: the patterns for all N tokens, and for the R rows that the head reads, which are the last layer's queries.
    """

    def __init__(self, batch: Batch, num_heads: int, head_size: int, dtype: torch.dtype, *, causal: bool) -> None:
        device = batch.cu_seqlens.device
        on_cpu = device.type == "cpu"
        takes_packed = not causal and batch.max_rows != 0 and has_packed_kernel(device, dtype, head_size)
        of_tokens, of_rows = roundings(device, dtype, len(batch.token_counts))
        groups = share_lines(batch.token_counts, num_heads, of_tokens) if on_cpu else group_by_length(batch.token_counts)
        if not torch.is_grad_enabled() and len(groups.begins) > len(batch.token_counts):
            groups = Groups(groups.begins)  # each sequence is alone: a kernel without padding is faster
        positions = _positions(batch) if causal else None

        def grouped(cu_seqlens: Tensor, counts: NDArray[np.int64], rounding: Rounding) -> Grouped:
            if takes_packed:
                return Grouped([int(counts.sum())], [])
            return Grouped.of(cu_seqlens, counts, dtype, groups, rounding)

        def bounds(cu_queries: Tensor, longest: int) -> Bounds | None:
            return Bounds(cu_queries.int(), batch.cu_seqlens.int(), longest, batch.max_seqlen) if takes_packed else None

        keys = grouped(batch.cu_seqlens, batch.token_counts, of_tokens)
        every = None if positions is None else (positions, positions)
        self.tokens = self.rows = Pattern.of(keys, keys, every, dtype, bounds(batch.cu_seqlens, batch.max_seqlen))
        self.selected = batch.rows
        if batch.rows is not None:
            queries = grouped(batch.cu_rows, batch.row_counts, of_rows)
            places = None if positions is None else (positions[batch.rows], positions)
            self.rows = Pattern.of(queries, keys, places, dtype, bounds(batch.cu_rows, batch.max_rows))

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
