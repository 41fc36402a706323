"""Attention over packed sequences (Vaswani et al., 2017, section 3.2), one function per kernel.

Dimensions: N packed tokens (R queries), B lines of a grid, T cells of a line, A heads, D head size, H = A * D.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertkit.model.dropout import Dropout
from bertkit.model.layout import Bounds, HeadLayout, Pattern


def attend(tokens: Tensor, queries: Tensor | None, pattern: Pattern, num_heads: int, dropout: Dropout) -> Tensor:
    """Attention of each query over its own sequence: (R, H).

    tokens: (N, 3 H), the query, key and value of each token. If only some rows are queries, these are in `queries`, (R, H), and
    tokens has only keys and values, (N, 2 H). Both are packed as `pattern` says.
    """
    if pattern.bounds is not None:
        return _attend_packed(tokens, queries, pattern.bounds, num_heads, dropout)
    # On a CPU, torch's fused kernel is slower with a mask, in training and with dropout. There and on Apple's GPUs, its dropout
    # also does not draw from our random stream.
    device = "cuda" if torch.compiler.is_exporting() else tokens.device.type
    slower = {"cuda": False, "cpu": dropout.active or torch.is_grad_enabled() or not pattern.is_full}
    if slower.get(device, dropout.active):
        return _Products.apply(tokens, queries, pattern, num_heads, dropout)
    return _attend_fused(tokens, queries, pattern, num_heads, dropout)


def _by_head(tokens: Tensor, queries: Tensor | None, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The query (R, A, D), key and value (N, A, D) of `attend`, split by head."""
    *query, key, value = (part.unflatten(-1, (num_heads, -1)) for part in tokens.chunk(3 if queries is None else 2, dim=-1))
    return (query[0] if queries is None else queries.unflatten(-1, (num_heads, -1))), key, value


def _drawn_by_torch(dropout: Dropout, device: torch.device) -> float:
    """The probability for a kernel that draws its dropout from torch's own generator, which this seeds."""
    if not dropout.active:
        return 0.0
    dropout.stream.generator(device)
    return dropout.p


def _attend_packed(tokens: Tensor, queries: Tensor | None, bounds: Bounds, num_heads: int, dropout: Dropout) -> Tensor:
    """`attend` with torch's kernel for packed sequences (Dao, 2023, FlashAttention-2).

    torch's `varlen_attn` calls the same kernel, but without dropout, and its overhead alone takes as long as a small batch.
    """
    packed = (*_by_head(tokens, queries, num_heads), *bounds, _drawn_by_torch(dropout, tokens.device))
    found: Tensor = torch.ops.aten._flash_attention_forward(*packed, is_causal=False, return_debug_mask=False)[0]
    return found.flatten(1)


def _attend_fused(tokens: Tensor, queries: Tensor | None, pattern: Pattern, num_heads: int, dropout: Dropout) -> Tensor:
    """`attend` with torch's fused kernel, group by group."""
    rows, keys = pattern.queries, pattern.keys
    query, key, value = _by_head(tokens, queries, num_heads)
    packed = zip(query.split(rows.spans), key.split(keys.spans), value.split(keys.spans), strict=True)
    p = _drawn_by_torch(dropout, tokens.device)
    found = [
        own.unpad(F.scaled_dot_product_attention(own.pad(q), its.pad(k), its.pad(v), attn_mask=mask, dropout_p=p))
        for (q, k, v), own, its, mask in zip(packed, rows.layouts, keys.layouts, pattern.masks, strict=False)
    ]
    if rows.padding_rows:
        found.append(found[0].new_zeros(rows.padding_rows, found[0].shape[1]))
    return found[0] if len(found) == 1 else torch.cat(found)


class _Products(torch.autograd.Function):
    """`attend` with matrix products, softmax (torch's, which sums in float32 or wider) and dropout, group by group.

    The backward pass needs the sum over keys of weight times gradient. This equals the sum over D of output times gradient (Dao
    et al., 2022, appendix B.4), so two passes over the scores are enough.
    """

    @staticmethod
    def forward(ctx, tokens: Tensor, queries: Tensor | None, pattern: Pattern, num_heads: int, dropout: Dropout) -> Tensor:
        parts = 3 if queries is None else 2
        width = tokens.shape[1] // parts
        size = width // num_heads
        nothing = tokens.new_zeros(1, 1, 1)  # torch 2.13 reads it on Apple's GPUs even with beta=0: a NaN there would spread
        scale = 1 / math.sqrt(size)
        found = tokens.new_zeros(len(tokens if queries is None else queries), width)
        saved: list[Tensor | None] = []
        for rows, keys, mask, own, its_tokens in _groups(pattern, parts, num_heads, tokens):
            grid = keys.pad(its_tokens, size)
            query = grid[0] if queries is None else rows.pad(queries[own], size)[0]  # (B * A, Tq, D)
            key, value = grid[-2], grid[-1]
            scores = torch.baddbmm(nothing, query, key.transpose(1, 2), beta=0, alpha=scale)  # (B * A, Tq, Tk)
            scores = scores.view(-1, num_heads, *scores.shape[1:])
            weights = (scores if mask is None else scores.add_(mask)).softmax(-1)
            keep = dropout.stream.keep_mask(weights.shape, dropout.p, weights) if dropout.active else None
            kept = weights if keep is None else weights * keep
            read = torch.bmm(kept.flatten(0, 1), value)
            rows.unpad(read, found[own])
            if any(ctx.needs_input_grad):
                saved += [grid, None if queries is None else query, weights, keep, kept, read]
        ctx.save_for_backward(*saved)
        ctx.pattern, ctx.num_heads, ctx.parts, ctx.num_tokens = pattern, num_heads, parts, len(tokens)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        num_rows, width = gradient.shape
        size = width // ctx.num_heads
        to_tokens = gradient.new_zeros(ctx.num_tokens, ctx.parts * width)
        to_queries = None if ctx.parts == 3 else gradient.new_zeros(num_rows, width)
        saved = iter(ctx.saved_tensors)
        for rows, keys, _, own, its_tokens in _groups(ctx.pattern, ctx.parts, ctx.num_heads, to_tokens):
            grid, query, weights, keep, kept, read = (next(saved) for _ in range(6))
            grads = torch.empty_like(grid)
            query, to_query = (grid[0], grads[0]) if query is None else (query, torch.empty_like(query))
            key, value = grid[-2], grid[-1]
            incoming = rows.pad(gradient[own], size)[0]
            if rows.taken is not None:
                incoming.view(-1, ctx.num_heads, *incoming.shape[1:]).mul_(rows.taken)
            torch.bmm(kept.flatten(0, 1).transpose(1, 2), incoming, out=grads[-1])
            inner = (incoming * read).sum(-1, keepdim=True)
            grad_weights = torch.bmm(incoming, value.transpose(1, 2))
            if keep is None:
                grad_scores = grad_weights.sub_(inner)
            else:
                grad_scores = torch.addcmul(inner.neg_(), grad_weights, keep.flatten(0, 1), out=grad_weights)
            grad_scores.mul_(weights.flatten(0, 1))
            torch.bmm(grad_scores, key, out=to_query)
            torch.bmm(grad_scores.transpose(1, 2), query, out=grads[-2])
            to_query.mul_(1 / math.sqrt(size))
            grads[-2].mul_(1 / math.sqrt(size))
            keys.unpad(grads, its_tokens)
            if to_queries is not None:
                rows.unpad(to_query, to_queries[own])
        return to_tokens, to_queries, None, None, None


def _groups(
    pattern: Pattern, parts: int, num_heads: int, tokens: Tensor
) -> Iterator[tuple[HeadLayout, HeadLayout, Tensor | None, slice, Tensor]]:
    """For each group with queries: the head layouts of its queries and of its keys (`parts` of them), its mask, the slice of
    its query rows, and its rows of tokens (N, ...)."""
    rows, keys = pattern.queries, pattern.keys
    ends = accumulate(rows.sizes)
    heads = zip(rows.head_layouts(1, num_heads), keys.head_layouts(parts, num_heads), strict=True)
    for (own, its), mask, size, end, part in zip(
        heads, pattern.masks, rows.sizes, ends, tokens.split(keys.spans), strict=False
    ):
        if size:
            yield own, its, mask, slice(end - size, end), part
