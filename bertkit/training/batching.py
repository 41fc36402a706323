"""The features of each step, split into packed micro-batches that the processes share.

What a step sees is a pure function of (seed, step): the order of an epoch comes from (seed, epoch), the split from the
lengths. A restart, another number of processes or another micro_batch_tokens does not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.features import IGNORED, Features, offsets_of, ranges
from bertkit.model.batch import Batch


@dataclass(frozen=True)
class Sampler:
    """The features of each optimizer step: a new order every epoch; the last step of an epoch takes the rest."""

    num_features: int
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_features // self.batch_size)

    def features_at(self, step: int) -> NDArray[np.int64]:
        """The indices of the features in `step` (from 0)."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = _order(self.num_features, self.seed, epoch)
        return order[position * self.batch_size : (position + 1) * self.batch_size]


@lru_cache(maxsize=2)
def _order(num_features: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(num_features)


def split_by_tokens(num_tokens: NDArray[np.int64], limit: int, multiple_of: int = 1) -> list[NDArray[np.int64]]:
    """Split features of these lengths, longest first, into groups of about equal tokens, at most `limit` each.

    A feature longer than the limit is a group of its own. Empty groups make the count a multiple of `multiple_of`.
    """
    order = np.argsort(-num_tokens, kind="stable")
    lengths = num_tokens[order]
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    middles = ends - lengths / 2
    count = multiple_of * max(1, -(-total // (limit * multiple_of)))
    while True:
        group = np.minimum((middles * count / total).astype(np.int64), count - 1)
        sizes, members = np.bincount(group, lengths, count), np.bincount(group, minlength=count)
        if np.all((sizes <= limit) | (members <= 1)):
            groups = [group for group in np.split(order, np.cumsum(members)[:-1]) if len(group)]
            return groups + [order[:0]] * (-len(groups) % multiple_of)
        count += multiple_of


def deal(num_tokens: NDArray[np.int64], limit: int, *, rank: int, world_size: int) -> list[NDArray[np.int64]]:
    """The features of each of this process's micro-batches, of at most `limit` tokens; depends only on the lengths.

    Every process gets the same number of micro-batches; where no features are left, they are empty.
    """
    return split_by_tokens(num_tokens, limit, multiple_of=world_size)[rank::world_size]


def collate(features: Features, indices: NDArray[np.int64]) -> Batch:
    """Pack the features at `indices`. If there are none, the first feature stands in, with all weights 0."""
    empty = not len(indices)
    indices = np.zeros(1, dtype=np.int64) if empty else indices
    starts = features.offsets[indices]
    counts = features.offsets[indices + 1] - starts
    sequences = ranges(starts, counts)
    input_ids, token_type_ids = features.input_ids.take(sequences), features.token_type_ids.take(sequences)
    read, rows = input_ids, None
    if features.rows is not None:
        read = features.rows.take(sequences)
        rows = torch.from_numpy(read.values + np.repeat(input_ids.offsets[:-1], read.lengths))
    labels = {term: _targets(ragged.take(indices).values) for term, ragged in features.labels.items()}
    weights = {term: _weight(targets, features.class_weights.get(term)) for term, targets in labels.items()}
    return Batch(
        input_ids=torch.from_numpy(input_ids.values.astype(np.int64)),
        token_type_ids=torch.from_numpy(token_type_ids.values.astype(np.int64)),
        position_ids=torch.from_numpy(ranges(np.zeros(len(sequences), np.int64), input_ids.lengths)),
        cu_seqlens=torch.from_numpy(input_ids.offsets),
        token_counts=input_ids.lengths,
        rows=rows,
        cu_rows=torch.from_numpy(read.offsets),
        row_counts=read.lengths,
        features=torch.from_numpy(np.asarray(indices)),
        cu_features=torch.from_numpy(offsets_of(counts)),
        sequence_counts=counts,
        labels={term: torch.from_numpy(targets) for term, targets in labels.items()},
        weights=dict.fromkeys(labels, 0.0) if empty else weights,
    )


def _targets(values: NDArray) -> NDArray:
    return values.astype(np.int64) if np.issubdtype(values.dtype, np.integer) else values  # torch takes classes as int64


def _weight(targets: NDArray, class_weights: NDArray | None) -> float:
    if not np.issubdtype(targets.dtype, np.integer):
        return float(targets.size)  # a score may be -100
    counted = targets[targets != IGNORED]
    return float(counted.size if class_weights is None else class_weights[counted].sum())


def training_batches(
    features: Features, sampler: Sampler, micro_batch_tokens: int, *, rank: int = 0, world_size: int = 1
) -> Callable[[int], list[Batch]]:
    """step -> the micro-batches of this process, as `micro_batches_for_rank` makes them."""

    def batches(step: int) -> list[Batch]:
        return micro_batches_for_rank(features, sampler.features_at(step), micro_batch_tokens, rank=rank, world_size=world_size)

    return batches


def micro_batches_for_rank(
    features: Features, indices: NDArray[np.int64], limit: int, *, rank: int = 0, world_size: int = 1
) -> list[Batch]:
    """This process's share of a step's features, as micro-batches of at most `limit` tokens."""
    groups = deal(features.num_tokens[indices], limit, rank=rank, world_size=world_size)
    return [collate(features, indices[group]) for group in groups]


def evaluation_batches(
    features: Features, micro_batch_tokens: int, *, multiple_of: int = 1, rank: int = 0, world_size: int = 1
) -> Iterator[Batch]:
    """This process's share of all features, each once; similar lengths together. multiple_of: as in `split_by_tokens`."""
    if len(features):
        for group in split_by_tokens(features.num_tokens, micro_batch_tokens, multiple_of)[rank::world_size]:
            if len(group):
                yield collate(features, group)


def split_by_feature(batch: Batch, rows: NDArray) -> dict[int, NDArray]:
    """Logits (R, C) by feature index. There is a row per feature, per sequence, or per row that the batch names."""
    per_sequence = batch.row_counts
    if len(rows) == len(batch.features) and len(rows) != per_sequence.sum():  # one row per feature
        return {feature: rows[index : index + 1] for index, feature in enumerate(batch.features.tolist())}
    if len(rows) != per_sequence.sum():  # one row per sequence, as pooling heads give
        assert len(rows) == len(per_sequence), (
            f"{len(rows)} logits for {per_sequence.sum()} rows of {len(per_sequence)} sequences"
        )
        per_sequence = np.ones_like(per_sequence)
    ends = offsets_of(per_sequence)[offsets_of(batch.sequence_counts)]
    features = batch.features.tolist()
    return {feature: rows[start:end] for feature, start, end in zip(features, ends[:-1], ends[1:], strict=True)}
