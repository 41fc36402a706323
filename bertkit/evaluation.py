"""What a model says of each feature: in order, once each, whatever the number of processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertkit import progress
from bertkit.batching import split_by_feature
from bertkit.model import Batch

if TYPE_CHECKING:
    from accelerate import Accelerator


class Predictions(NamedTuple):
    """outputs: per name of logits, one float array a feature, in the features' order. losses: the mean loss by term."""

    outputs: dict[str, list[NDArray]]
    losses: dict[str, float]


def predict(
    model: nn.Module, batches: Iterable[Batch], accelerator: Accelerator, *, num_features: int, description: str = "predict"
) -> Predictions:
    """Run `model` over this process's batches and bring the logits of all processes together."""
    was_training = model.training
    model.eval()
    outputs: dict[str, dict[int, NDArray]] = {}
    sums: dict[str, list[float]] = {}
    with torch.inference_mode(), progress.bar(description, num_features) as bar:
        for batch in batches:
            loss_sums, logits = model(batch.to(accelerator.device))
            for name, rows in logits.items():
                found = split_by_feature(batch, rows.cpu().numpy())
                outputs.setdefault(name, {}).update(found)
                seen = len(found)
            for term, loss in loss_sums.items():
                total = sums.setdefault(term, [0.0, 0.0])
                total[0] += float(loss)
                total[1] += batch.weights[term]
            bar.advance(seen * accelerator.num_processes)
    model.train(was_training)
    return _gathered(outputs, sums, accelerator, num_features)


def _gathered(
    outputs: dict[str, dict[int, NDArray]], sums: dict[str, list[float]], accelerator: Accelerator, num_features: int
) -> Predictions:
    parts = [(outputs, sums)]
    if accelerator.num_processes > 1:
        from accelerate.utils import gather_object

        parts = gather_object(parts)
    merged: dict[str, dict[int, NDArray]] = {}
    totals: dict[str, NDArray] = {}
    for part, part_sums in parts:
        for name, found in part.items():
            merged.setdefault(name, {}).update(found)
        for term, total in part_sums.items():
            totals[term] = totals.get(term, np.zeros(2)) + total
    in_order = {name: [found[feature] for feature in range(num_features)] for name, found in merged.items()}
    return Predictions(in_order, {term: float(loss / weight) for term, (loss, weight) in totals.items() if weight})
