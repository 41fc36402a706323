"""A model's outputs for each feature, in order, gathered from all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertkit import manifest
from bertkit.errors import ModelError, plural
from bertkit.features import Features
from bertkit.model.batch import Batch, Outputs
from bertkit.model.devices import Processes
from bertkit.model.streams import num_streams, side_by_side
from bertkit.progress import NO_BAR, Bar
from bertkit.training.batching import evaluation_batches, split_by_feature

# The maximum number of tokens in a batch on a CPU, so that the activations of a layer fit into the cache. MiniLM on two AMD
# cores, batches in parallel, texts/s with 512, 1024 and 2048 tokens: for MRPC 346, 369, 374 in bf16 and 392, 439, 450 in int8;
# for texts as short as SST-2's 804, 855, 895 and 953, 1089, 1018.
CPU_TOKENS = 1024


def batch_tokens(micro_batch_tokens: int, device: torch.device) -> int:
    """The maximum number of tokens that `outputs_of` computes as one batch."""
    return min(micro_batch_tokens, CPU_TOKENS) if device.type == "cpu" else micro_batch_tokens


class ModelOutputs(NamedTuple):
    """outputs: for each name of logits, one float array per feature, in order. losses: the mean loss by term."""

    outputs: dict[str, list[NDArray]]
    losses: dict[str, float]


def outputs_of(
    model: nn.Module, features: Features, micro_batch_tokens: int, processes: Processes, *, bar: Bar = NO_BAR
) -> ModelOutputs:
    """Run `model` on this process's share of the features and gather the logits of all processes. bar: advances by features.

    All predictions use this function, during training and after.
    """
    place = {"rank": processes.process_index, "world_size": processes.num_processes}
    if was_training := model.training:  # setting the mode takes longer than a short text, and threads share a model
        model.eval()
    outputs: dict[str, dict[int, NDArray]] = {}
    sums: dict[str, list[float]] = {}

    def compute(batch: Batch) -> tuple[Batch, Outputs]:
        with torch.inference_mode():
            return batch, model(batch.to(processes.device))

    streams = num_streams(processes.device)
    limit = batch_tokens(micro_batch_tokens, processes.device)
    alike = streams if processes.num_processes == 1 else 1  # several may differ in threads, and all must split alike
    batches = evaluation_batches(features, limit, multiple_of=alike, **place)
    for batch, (loss_sums, logits) in side_by_side(compute, batches, streams):
        for name, rows in logits.items():
            logits_of = split_by_feature(batch, rows.cpu().numpy())
            outputs.setdefault(name, {}).update(logits_of)
            num_seen = len(logits_of)
        for term, loss in loss_sums.items():
            total = sums.setdefault(term, [0.0, 0.0])
            total[0] += float(loss)
            total[1] += batch.weights[term]
        bar.advance(num_seen * processes.num_processes)
    if was_training:
        model.train()
    manifest.raise_if_damaged()
    return _gathered(outputs, sums, processes, len(features))


def outputs_of_each(
    modules: Sequence[nn.Module], features: Features, micro_batch_tokens: int, processes: Processes, *, bar: Bar = NO_BAR
) -> list[ModelOutputs]:
    """`outputs_of` each module, in the form that `Task.decode` takes; with several modules the losses mean nothing.

    Raises ModelError for NaN outputs that no loss reveals.
    """
    found = [outputs_of(module, features, micro_batch_tokens, processes, bar=bar) for module in modules]
    if len(found) == 1 and found[0].losses:  # these reveal NaN
        return found
    outputs = [logits for each in found for logits in each.outputs.values()]
    if nan := {number for logits in outputs for number, rows in enumerate(logits) if np.isnan(rows).any()}:
        hint = "try --precision fp32; or the training went wrong: see its losses in metrics.jsonl"
        what = f"the model's outputs are NaN for {len(nan)} of {plural(len(features), 'feature')}"
        raise ModelError(what, hint=hint)
    return found


def _gathered(
    outputs: dict[str, dict[int, NDArray]], sums: dict[str, list[float]], processes: Processes, num_features: int
) -> ModelOutputs:
    parts = [(outputs, sums)]
    if processes.num_processes > 1:
        from accelerate.utils import gather_object

        parts = gather_object(parts)
    merged: dict[str, dict[int, NDArray]] = {}
    totals: dict[str, NDArray] = {}
    for part, part_sums in parts:
        for name, logits_of in part.items():
            merged.setdefault(name, {}).update(logits_of)
        for term, total in part_sums.items():
            totals[term] = totals.get(term, np.zeros(2)) + total
    in_order = {name: [logits_of[feature] for feature in range(num_features)] for name, logits_of in merged.items()}
    return ModelOutputs(in_order, {term: float(loss / weight) for term, (loss, weight) in totals.items() if weight})
