"""A linear-chain conditional random field (Lafferty et al., 2001) over packed rows.

Dimensions: B sequences, R rows in all, T most rows in a sequence, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from bertkit.features import IGNORED
from bertkit.model.layout import Layout

_FORBIDDEN = -1e4  # a log-score too low for real scores to outweigh, yet small enough for float32 sums to stay precise


class LinearChain(nn.Module):
    """Scores of starts, transitions and ends. legal: which of them are allowed, as booleans (C,), (C, C), (C,)."""

    def __init__(self, num_classes: int, legal: tuple[Tensor, Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(num_classes))
        self.follow = nn.Parameter(torch.zeros(num_classes, num_classes))  # [from, to]
        self.end = nn.Parameter(torch.zeros(num_classes))
        masks = legal or tuple(torch.ones_like(p, dtype=torch.bool) for p in (self.start, self.follow, self.end))
        for name, mask in zip(("start", "follow", "end"), masks, strict=True):
            self.register_buffer(f"may_{name}", mask, persistent=False)

    def scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """The scores of starts, transitions and ends; very low where not allowed."""
        start, follow, end = (
            getattr(self, name).masked_fill(~getattr(self, f"may_{name}"), _FORBIDDEN) for name in ("start", "follow", "end")
        )
        return start, follow, end

    def over(self, logits: Tensor, cu_rows: Tensor, max_rows: int) -> Chain:
        """The field over sequences of logits (R, C)."""
        start, follow, end = (each.to(logits.dtype) for each in self.scores())
        return Chain(logits, start, follow, end, Layout.of(cu_rows, max_rows, len(logits), logits.dtype), cu_rows.diff())


@dataclass
class Chain:
    """A field over some sequences: logits (R, C), scores of start (C,), follow (C, C), end (C,), layout of the rows."""

    logits: Tensor
    start: Tensor
    follow: Tensor
    end: Tensor
    layout: Layout
    lengths: Tensor

    @cached_property
    def grid(self) -> Tensor:
        return self._pad(self.logits)

    def _pad(self, rows: Tensor) -> Tensor:
        return self.layout.pad(rows[:, None, :])[:, 0]  # (B, T, C)

    def loss(self, labels: Tensor) -> Tensor:
        """The sum over sequences of -log P(labels); labels: (R,). An IGNORED label is marginalized out."""
        fits = torch.zeros_like(self.logits).masked_fill_(
            (labels[:, None] != IGNORED) & (labels[:, None] != torch.arange(self.logits.shape[1], device=labels.device)),
            _FORBIDDEN * 100,
        )
        return (self._log_partition(self.grid) - self._log_partition(self._pad(self.logits + fits))).sum()

    def _log_partition(self, grid: Tensor) -> Tensor:
        """(B,) the log of the sum over all paths; 0 for a sequence without rows."""
        alphas = self._forward(grid)
        last = alphas[torch.arange(len(grid), device=grid.device), (self.lengths - 1).clamp_min(0)]  # (B, C)
        return torch.where(self.lengths > 0, (last + self.end).logsumexp(-1), 0.0)

    def _forward(self, grid: Tensor) -> Tensor:
        """(B, T, C): the log-sum over all paths from the left that end in each class at each row."""
        alpha = self.start + grid[:, 0] + 0 * self.follow.sum()  # a single row has no transition, but `follow` needs a gradient
        alphas = [alpha]
        for step in range(1, grid.shape[1]):
            alpha = (alpha[:, :, None] + self.follow).logsumexp(1) + grid[:, step]
            alphas.append(alpha)
        return torch.stack(alphas, 1)

    def _backward(self, grid: Tensor) -> Tensor:
        """(B, T, C): the log-sum over all paths from each class at each row to the end, without the logits of that row."""
        length = grid.shape[1]
        beta = self.end.expand(len(grid), -1)
        betas = [beta]
        for step in range(length - 2, -1, -1):
            continued = (self.follow + (grid[:, step + 1] + beta)[:, None, :]).logsumexp(-1)
            beta = torch.where((step + 1 < self.lengths)[:, None], continued, self.end)
            betas.append(beta)
        return torch.stack(betas[::-1], 1)

    def log_marginals(self) -> Tensor:
        """(R, C): the log-probability of each class at each row."""
        joint = self._forward(self.grid) + self._backward(self.grid)
        return self.layout.unpad(joint.log_softmax(-1)[:, None])

    def best_path(self) -> Tensor:
        """(R,) the classes of each sequence's best path (Viterbi, 1967)."""
        grid = self.grid
        score, pointers = self.start + grid[:, 0], []
        going = torch.arange(score.shape[1], device=score.device).expand_as(score)
        for step in range(1, grid.shape[1]):
            best, pointer = (score[:, :, None] + self.follow).max(1)
            alive = (step < self.lengths)[:, None]
            score = torch.where(alive, best + grid[:, step], score)
            pointers.append(torch.where(alive, pointer, going))
        state = (score + self.end).argmax(-1)  # (B,)
        path = [state]
        for pointer in reversed(pointers):
            state = pointer.gather(1, state[:, None])[:, 0]
            path.append(state)
        return self.layout.unpad(torch.stack(path[::-1], 1)[:, None, :, None])[:, 0]
