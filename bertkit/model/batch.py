"""The input and output of a model, Batch and Outputs; and `pack`, which turns padded input into a Batch.

Dimensions: B sequences, N packed tokens, R rows that the head reads, F features, T longest sequence, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B sequences packed into one row of N tokens, with the rows and labels that the head needs.

    cu_seqlens, cu_rows: (B + 1,) offsets of the sequences in the tokens, and in the rows that the head reads.
    rows: (R,) the tokens that the head reads, in order; None: all N, and cu_rows is cu_seqlens.
    labels: targets by loss term. weights: by loss term, the number of targets that count, or the sum of their class weights (0:
    nothing to learn from).
    features: (F,) indices of the features in this batch. cu_features: (F + 1,) offsets of their sequences.
    token_counts (B,), row_counts (B,), sequence_counts (F,): the lengths between these offsets, always on the host, so no step
    waits for a device to learn a shape.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    token_counts: NDArray[np.int64]
    rows: Tensor | None
    cu_rows: Tensor
    row_counts: NDArray[np.int64]
    features: Tensor
    cu_features: Tensor
    sequence_counts: NDArray[np.int64]
    labels: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    @property
    def max_seqlen(self) -> int:
        return int(self.token_counts.max())

    @property
    def max_rows(self) -> int:
        return int(self.row_counts.max())

    def later_rows(self) -> Tensor:
        """(R - B,) indices of the rows that the head reads, without the first row of each sequence."""
        count = int(self.row_counts.sum()) - len(self.row_counts)
        firsts = torch.arange(1, len(self.row_counts) + 1, device=self.cu_rows.device)
        passed = torch.repeat_interleave(firsts, self.cu_rows.diff() - 1, output_size=count)
        return torch.arange(count, device=self.cu_rows.device) + passed

    def reading(self, rows: Tensor) -> Batch:
        """The same batch, but the head reads only `rows` (B,), one per sequence."""
        cu_rows = torch.arange(len(rows) + 1, device=rows.device)
        return dataclasses.replace(self, rows=rows, cu_rows=cu_rows, row_counts=np.ones_like(self.token_counts))

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same batch in pinned memory, from which a GPU can copy asynchronously."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def changed(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: changed(item) for name, item in value.items()}
            return change(value) if isinstance(value, Tensor) else value

        return Batch(**{f.name: changed(getattr(self, f.name)) for f in dataclasses.fields(self)})


class Outputs(NamedTuple):
    """Per loss term the sum (not the mean) over its targets; and the logits by name, (R, C) unless the head says otherwise."""

    loss_sums: dict[str, Tensor]
    logits: dict[str, Tensor]


def pack(input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> tuple[Batch, Tensor]:
    """Padded input (B, T) as a Batch that reads all rows, and the attended positions (B, T) as bool.

    Position ids are column numbers, as transformers counts them. Raises ValueError for input without tokens, and for a mask
    that is not (B, T) of 0 and 1 or that leaves out the first token of a sequence.
    """
    if not input_ids.numel():
        raise ValueError(f"input_ids has shape {tuple(input_ids.shape)}; expected at least one sequence of one token")
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    if attention_mask.shape != input_ids.shape:
        raise ValueError(f"attention_mask has shape {tuple(attention_mask.shape)}; expected {tuple(input_ids.shape)}")
    attended = attention_mask.bool()
    if not torch.equal(attended.to(attention_mask.dtype), attention_mask) or not attended[:, 0].all():
        raise ValueError("attention_mask must be 0 or 1, and 1 at the first token of each sequence (no padding on the left)")
    lengths = attended.sum(1)
    cu_seqlens = F.pad(lengths.cumsum(0), (1, 0))
    columns = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
    token_counts = lengths.cpu().numpy()
    batch = Batch(
        input_ids=input_ids[attended],
        token_type_ids=segments[attended],
        position_ids=columns[attended],
        cu_seqlens=cu_seqlens,
        token_counts=token_counts,
        rows=None,
        cu_rows=cu_seqlens,
        row_counts=token_counts,
        features=torch.arange(len(input_ids), device=input_ids.device),
        cu_features=torch.arange(len(input_ids) + 1, device=input_ids.device),
        sequence_counts=np.ones(len(input_ids), dtype=np.int64),
    )
    return batch, attended
