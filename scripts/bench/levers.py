"""The optimizations that make bertkit's training fast, and how to turn each off: by replacing one name of the package.

Turning one off gives the same losses, only more slowly, except for precision and dropout.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator
from functools import partial
from typing import Any


def no_padding() -> None:
    """The encoder computes all sequences of a batch as long as its longest."""
    from bertkit.model import bert
    from bertkit.model.grouping import Groups
    from bertkit.model.layout import Grouped, Layout, Pattern, _Pad, _Unpad

    class Padded(bert.Packing):
        def __init__(self, batch: Any, num_heads: int, head_size: int, dtype: Any, *, causal: bool) -> None:
            assert not causal, "no lever is measured on a model that reads from left to right"
            count, longest = len(batch.token_counts), batch.max_seqlen
            layout = Layout.of(batch.cu_seqlens, longest, len(batch.input_ids), dtype)
            self.slots, self.cells = layout.slots, count * longest
            grid = Grouped([self.cells], [dataclasses.replace(layout, slots=None)])
            self.tokens = self.rows = Pattern(grid, grid, [layout.mask])
            self.selected = batch.rows
            if batch.rows is not None:
                queries = Grouped.of(batch.cu_rows, batch.row_counts, dtype, Groups([0, count]))
                self.rows = Pattern(queries, grid, [layout.mask])
                if self.slots is not None:
                    self.selected = self.slots[batch.rows]

        def pad(self, tokens: Any) -> Any:
            return tokens if self.slots is None else _Pad.apply(tokens, self.slots, self.cells)

        def unpad(self, rows: Any) -> Any:
            return rows if self.selected is not None or self.slots is None else _Unpad.apply(rows, self.slots)

    bert.Packing = Padded  # type: ignore[misc]


def groups() -> None:
    """Attention pads all sequences of a batch to its longest."""
    import numpy as np

    from bertkit.model import layout
    from bertkit.model.grouping import Groups

    layout.share_lines = lambda lengths, *rest: Groups([0, len(lengths)], np.arange(len(lengths)))


def shared_lines() -> None:
    """Attention gives each sequence a line of its own."""
    import numpy as np

    from bertkit.model import grouping

    grouping.fill_lines = lambda lengths, length: np.arange(len(lengths))


def rounded_shapes() -> None:
    """The number of tokens, and the sizes of attention's grids, are what a batch has."""
    from bertkit.model import layout

    layout.roundings = lambda *batch: (layout.Rounding(digits=64, length=1),) * 2


def bf16() -> None:
    """fp32 is computed in, however much slower it is."""
    from bertkit.model import precision

    precision.FASTER = math.inf


def dropout() -> None:
    """torch's own dropout."""
    import torch
    import torch.nn.functional as F

    from bertkit.model.dropout import DropoutStream

    def mask(self: Any, shape: tuple[int, ...], p: float, like: Any) -> Any:
        return F.dropout(torch.ones(shape, dtype=like.dtype, device=like.device), p)

    DropoutStream.keep_mask = mask  # type: ignore[method-assign]


def last_layer() -> None:
    """The last layer computes all rows, of which the head then reads some."""
    from bertkit.model import bert

    class AllRows(bert.Packing):
        def __init__(self, batch: Any, *rest: Any, **named: Any) -> None:
            every = dataclasses.replace(batch, rows=None, cu_rows=batch.cu_seqlens, row_counts=batch.token_counts)
            super().__init__(every, *rest, **named)
            self.read = batch.rows

        def unpad(self, rows: Any) -> Any:
            rows = super().unpad(rows)
            return rows if self.read is None else rows.index_select(0, self.read)

    bert.Packing = AllRows  # type: ignore[misc]


def vocabulary() -> None:
    """All rows of the embeddings are trained."""
    from bertkit.training.adamw import AdamW

    AdamW.elementwise = False


def sparse_gradients() -> None:
    """All trained rows of the embeddings have a gradient in each step."""
    from bertkit.training.adamw import AdamW

    AdamW.takes_sparse = False


def fused_adamw() -> None:
    """torch's AdamW, an operation for all tensors after the other."""
    from bertkit.training import adamw

    class Foreach(adamw.AdamW):
        def __init__(self, *rest: Any, **named: Any) -> None:
            super().__init__(*rest, **named)
            self.fused = False

    from bertkit.training.optimizer import RULES

    adamw.adamw = partial(adamw.adamw, foreach=True)
    RULES["adamw"] = Foreach


def prefetching() -> None:
    """Batches are made between the steps."""
    from bertkit.training import loop

    def in_the_loop(batches: Callable[[int], list[Any]], steps: range, device: Any) -> Generator[list[Any]]:
        yield from map(batches, steps)

    loop.prefetched = in_the_loop


@dataclasses.dataclass(frozen=True)
class Lever:
    """off: called before training, does without it."""

    label: str
    off: Callable[[], None]


# In the order in which lever_gains.py turns them on.
LEVERS = {
    "no-padding": Lever("no padding", no_padding),
    "groups": Lever("attention in groups of similar length", groups),
    "shared-lines": Lever("short sequences share the lines of attention", shared_lines),
    "bf16": Lever("bf16, where it is faster", bf16),
    "rounded-shapes": Lever("shapes of batches rounded up", rounded_shapes),
    "dropout": Lever("cheap dropout", dropout),
    "last-layer": Lever("the last layer only where it is read", last_layer),
    "vocabulary": Lever("the vocabulary that occurs", vocabulary),
    "fused-adamw": Lever("fused AdamW", fused_adamw),
    "sparse-gradients": Lever("sparse gradients of embeddings", sparse_gradients),
    "prefetching": Lever("batches made in a thread", prefetching),
}
