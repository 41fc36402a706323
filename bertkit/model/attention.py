"""Attention over packed sequences (Vaswani et al., 2017, section 3.2), one function per kernel.

Letters: B sequences, N packed tokens (of queries: R), T the longest sequence, A heads, D the size of a head. Sequences are
padded to (B, T) here and nowhere else, around the two matrix products that need it; on a CPU in groups of neighbours, so that
a few long ones do not make all scores long, and that scores stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertkit.model.batch import Batch
from bertkit.model.dropout import Dropout

# Scores that a group may have. Training MiniLM on 32 windows of SQuAD (two cores, bf16), tokens/s: 3626; 3191 with four times
# as many; 1249 in one group.
SCORES_OF_A_GROUP = 2**21
MULTIPLE = 8  # of a padded length: few shapes, as in `round_up_shape`
FEW = 4  # digits of `round_up_shape` for rows that a head reads: they vary more, and there are fewer than tokens


@dataclass(frozen=True)
class Layout:
    """How packed rows lie in a grid of B by T.

    slots: (N,) the cell of each row, or None where every cell is taken and the packed rows are the grid.
    mask: (B, 1, 1, T) float, 0 at taken cells and -inf at empty ones; None as above.
    """

    num_sequences: int
    max_seqlen: int
    slots: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, cu_seqlens: Tensor, max_seqlen: int, num_rows: int, dtype: torch.dtype) -> Layout:
        """The layout of rows whose sequences begin and end at cu_seqlens (B + 1,)."""
        count = len(cu_seqlens) - 1
        if num_rows == count * max_seqlen:
            return cls(count, max_seqlen, None, None)
        device = cu_seqlens.device
        lengths = cu_seqlens.diff()
        taken = torch.arange(max_seqlen, device=device) < lengths[:, None]  # (B, T)
        begins = torch.arange(count, device=device) * max_seqlen - cu_seqlens[:-1]
        slots = torch.arange(num_rows, device=device) + torch.repeat_interleave(begins, lengths, output_size=num_rows)
        mask = torch.zeros(taken.shape, dtype=dtype, device=device).masked_fill_(~taken, -torch.inf)
        return cls(count, max_seqlen, slots, mask[:, None, None, :])

    def pad(self, rows: Tensor) -> Tensor:
        """(N, A, D) -> (B, A, T, D)"""
        grid = rows if self.slots is None else _Pad.apply(rows, self.slots, self.num_sequences * self.max_seqlen)
        return grid.view(self.num_sequences, self.max_seqlen, *rows.shape[1:]).transpose(1, 2)

    def unpad(self, grid: Tensor) -> Tensor:
        """(B, A, T, D) -> (N, A * D)"""
        rows = grid.transpose(1, 2).reshape(self.num_sequences * self.max_seqlen, -1)
        return rows if self.slots is None else _Unpad.apply(rows, self.slots)


@dataclass(frozen=True)
class Grouped:
    """Packed rows in groups of whole sequences: how many rows each group has, and how these lie.

    padding_rows: rows behind the groups that belong to no sequence: they read nothing, and nothing reads them.
    """

    sizes: list[int]
    layouts: list[Layout]
    padding_rows: int = 0

    @classmethod
    def of(
        cls,
        cu_seqlens: Tensor,
        counts: NDArray[np.int64],
        dtype: torch.dtype,
        groups: list[int],
        *,
        padding_rows: int = 0,
    ) -> Grouped:
        """counts: (B,) the rows between cu_seqlens (B + 1,). groups: the sequences at which groups begin, and B."""
        sizes, layouts = [], []
        for begin, end in pairwise(groups):
            part = cu_seqlens[begin : end + 1] - cu_seqlens[begin]
            sizes.append(int(counts[begin:end].sum()))
            layouts.append(Layout.of(part, _padded_length(int(counts[begin:end].max())), sizes[-1], dtype))
        return cls(sizes, layouts, padding_rows)


@dataclass(frozen=True)
class Pattern:
    """Which packed rows attend to which: queries and keys in the same groups.

    masks: per group (B, 1, 1 or Tq, Tk) float, -inf where a query may not read; None: it reads all keys.
    """

    queries: Grouped
    keys: Grouped
    masks: list[Tensor | None]

    @classmethod
    def of(cls, queries: Grouped, keys: Grouped, positions: Tensor | None, dtype: torch.dtype) -> Pattern:
        """positions: (R,) of the queries in their sequences, which they read up to themselves; None: they read all of them."""
        if positions is None:
            return cls(queries, keys, [layout.mask for layout in keys.layouts])
        masks: list[Tensor | None] = []
        for part, rows, columns in zip(positions.split(queries.sizes), queries.layouts, keys.layouts, strict=True):
            position = rows.pad(part[:, None, None])  # (B, 1, Tq, 1)
            future = torch.arange(columns.max_seqlen, device=positions.device) > position  # (B, 1, Tq, Tk)
            masks.append(torch.zeros(future.shape, dtype=dtype, device=positions.device).masked_fill_(future, -torch.inf))
        return cls(queries, keys, masks)


class Packing:
    """How the encoder lays out a batch: groups, padding rows that make the number of rows round, and masks.

    tokens, rows: the patterns of all N tokens, and of the R rows that the head reads, which are the last layer's queries.
    """

    def __init__(self, batch: Batch, num_heads: int, dtype: torch.dtype, *, causal: bool) -> None:
        on_cpu = batch.cu_seqlens.device.type == "cpu"  # elsewhere one group is best
        groups = group(batch.token_counts, num_heads) if on_cpu else [0, len(batch.token_counts)]
        positions = _positions(batch) if causal else None

        def grouped(cu_seqlens: Tensor, counts: NDArray[np.int64], digits: int = 6) -> Grouped:
            count = int(counts.sum())
            return Grouped.of(cu_seqlens, counts, dtype, groups, padding_rows=round_up_shape(count, digits) - count)

        keys = grouped(batch.cu_seqlens, batch.token_counts)
        self.tokens = self.rows = Pattern.of(keys, keys, positions, dtype)
        self.selected = batch.rows
        if batch.rows is not None:
            # Dropout draws for padding rows too: another number of them would be another training.
            digits = 6 if torch.is_grad_enabled() else FEW
            queries = grouped(batch.cu_rows, batch.row_counts, digits)
            self.rows = Pattern.of(queries, keys, positions if positions is None else positions[batch.rows], dtype)

    def pad(self, tokens: Tensor) -> Tensor:
        """(N, H) -> (N + padding, H)"""
        return _pad_rows(tokens, self.tokens.queries.padding_rows)

    def select(self, tokens: Tensor) -> Tensor:
        """(N + padding, H) -> (R + padding, H), the rows that the head reads."""
        if self.selected is None:
            return tokens
        return _pad_rows(tokens.index_select(0, self.selected), self.rows.queries.padding_rows)

    def unpad(self, rows: Tensor) -> Tensor:
        """(R + padding, H) -> (R, H)"""
        return rows[: len(rows) - self.rows.queries.padding_rows]


def _positions(batch: Batch) -> Tensor:
    """(N,) where each token stands in its sequence; position_ids of padded input skip what is not attended."""
    count = len(batch.input_ids)
    begins = torch.repeat_interleave(batch.cu_seqlens[:-1], batch.cu_seqlens.diff(), output_size=count)
    return torch.arange(count, device=begins.device) - begins


def _pad_rows(rows: Tensor, count: int) -> Tensor:
    """Rows with `count` of 0 behind them."""
    return F.pad(rows, (0, 0, 0, count)) if count else rows


def round_rows(rows: Tensor) -> Tensor:
    """(R, H) -> (R + padding, H): rows of 0 behind them make their number round."""
    return _pad_rows(rows, round_up_shape(len(rows), FEW) - len(rows))


def _padded_length(max_seqlen: int) -> int:
    return -(-max_seqlen // MULTIPLE) * MULTIPLE if max_seqlen > 1 else max_seqlen


def round_up_shape(count: int, digits: int = 6) -> int:
    """The next number with at most so many significant binary digits: for six 1 to 64, 66, 68 ... 128, 132 ...

    On a CPU, bfloat16 matrix products compile a kernel for each new shape, which takes longer than a small product and keeps
    0.6 MB. Padding rows, at most three in a hundred for six digits, keep the shapes few.
    """
    unit = 1 << max(0, count.bit_length() - digits)
    return -(-count // unit) * unit


def group(lengths: NDArray[np.int64], num_heads: int) -> list[int]:
    """Where to begin groups of neighbouring sequences of these lengths (B,), at best sorted by length, and B."""
    groups, longest = [0], 0
    for index, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if index > groups[-1] and (index - groups[-1] + 1) * num_heads * longest**2 > SCORES_OF_A_GROUP:
            groups.append(index)
            longest = length
    return [*groups, len(lengths)]


class _Pad(torch.autograd.Function):
    """Rows into their cells; the gradient picks them out again (autograd's own would add into zeros, which is slower)."""

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


def attend(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: Dropout) -> Tensor:
    """What each query reads from its own sequence.

    query (R, A, D), key and value (N, A, D), packed as the pattern's queries and keys are. Returns (R, A * D).
    """
    # torch's fused kernel has a slow backward pass in bfloat16 on a CPU, and with dropout a slow forward pass, which would not
    # draw from our stream either.
    slow = query.requires_grad and query.dtype == torch.bfloat16 and query.device.type == "cpu"
    kernel = _attend_by_products if dropout.active or slow else _attend_fused
    queries, keys = pattern.queries, pattern.keys
    layouts = list(zip(queries.layouts, keys.layouts, pattern.masks, strict=True))
    if len(layouts) == 1 and not queries.padding_rows and not keys.padding_rows:
        return _attend_group(kernel, query, key, value, *layouts[0], dropout)
    query_sizes, key_sizes = [*queries.sizes, queries.padding_rows], [*keys.sizes, keys.padding_rows]
    packed = zip(query.split(query_sizes), key.split(key_sizes), value.split(key_sizes), strict=True)
    # the padding rows, behind the groups, are left out
    parts = [_attend_group(kernel, *part, *layout, dropout) for part, layout in zip(packed, layouts, strict=False)]
    return torch.cat([*parts, query.new_zeros(queries.padding_rows, query.shape[1] * query.shape[2])])


def _attend_group(
    kernel: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Layout,
    keys: Layout,
    mask: Tensor | None,
    dropout: Dropout,
) -> Tensor:
    if not query.shape[0]:
        return query.flatten(1)
    query, key, value = queries.pad(query), keys.pad(key), keys.pad(value)  # (B, A, T, D)
    return queries.unpad(kernel(query, key, value, mask, dropout))


def _attend_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _attend_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
    scores = (query * (1 / math.sqrt(query.shape[-1]))) @ key.transpose(-1, -2)  # (B, A, Tq, Tk)
    if mask is not None:
        scores = scores.add_(mask)
    # torch computes it in float32 either way; on a CPU its kernel for bfloat16 is the slower one unless rows fill its vectors.
    direct = scores.device.type != "cpu" or scores.shape[-1] % 32 == 0
    dtype = scores.dtype if direct else torch.promote_types(scores.dtype, torch.float32)
    probabilities = scores.softmax(-1, dtype=dtype).to(scores.dtype)
    return dropout(probabilities) @ value
