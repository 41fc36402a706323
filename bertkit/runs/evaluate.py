"""What a model says of each feature, in order and once each whatever the number of processes; and how that scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertkit import progress
from bertkit.errors import UsageError
from bertkit.features import Features
from bertkit.model.batch import Batch
from bertkit.readers import Examples
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import evaluation_batches, split_by_feature

if TYPE_CHECKING:
    from accelerate import Accelerator


CONSTANT = "constant_predictions"  # a score that is there, as 1, where a model says the same of every row


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


# --- splits ----------------------------------------------------------------------------------------------------------


_WRONG_VOCABULARY = 0.1  # share of [UNK] above which the vocabulary is hardly the data's


@dataclass(frozen=True)
class Split:
    """A split of the data, as rows and as features."""

    examples: Examples
    features: Features

    def describe(self, task: Task) -> dict[str, Any]:
        """What run.json says of it: sha256 of what the model sees, and of the rows' texts."""
        found = {"source": self.examples.source, "rows": len(self.examples), "sha256": self.features.fingerprint()}
        return found | {"rows_sha256": hash_of_rows(task, self.examples)}


def hash_of_rows(task: Task, examples: Examples) -> str:
    """sha256 of every row's texts, in order."""
    digest = sha256()
    for row in task.texts_of(examples):
        digest.update(f"{row!r}\n".encode())
    return digest.hexdigest()


class Scored(NamedTuple):
    """scores: every metric as "split/metric". predictions: one a row, by split. objective: what decides which step is best."""

    scores: dict[str, float | None]
    predictions: dict[str, list[dict[str, Any]]]
    objective: float | None


def read_split(task: Task, split: str, examples: Examples, tokenizer: Tokenizer) -> Split:
    """Encode a split, and say how long its sequences are and what befell them."""
    features, remarks = task.encode(examples, tokenizer, task.training.max_length)
    mean = len(features.input_ids.values) / max(1, len(features.input_ids))
    progress.note(", ".join([f"{split}: {len(examples)} rows, {mean:.0f} tokens on average", *remarks]))
    unknown = float((features.input_ids.values == tokenizer.unk_token_id).mean()) if len(features.input_ids.values) else 0.0
    if unknown > _WRONG_VOCABULARY:
        hint = "is the model's vocabulary of the data's language, alphabet and case? `bertkit check` shows examples"
        progress.warn(f"{split}: {unknown:.0%} of the tokens are [UNK], which say nothing: {hint}")
    return Split(examples, features)


def predict_split(task: Task, module: nn.Module, split: Split, accelerator: Accelerator, *, description: str) -> Predictions:
    """The logits of each of a split's features."""
    batches = evaluation_batches(
        split.features,
        task.training.micro_batch_tokens,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
    return predict(module, batches, accelerator, num_features=len(split.features), description=description)


def check_finite(loss: float, split: str) -> None:
    """Raise UsageError for a loss that is not: its model is of no use."""
    if not math.isfinite(loss):
        hint = "train with a lower --learning-rate, a higher --warmup-ratio, or --precision fp32"
        raise UsageError(f"the loss on {split} is {loss}", hint=hint)


def score_splits(task: Task, module: nn.Module, splits: Mapping[str, Split], accelerator: Accelerator) -> Scored:
    """Every metric of every split; the first of them is the objective. Raises UsageError for a loss that is not finite."""
    scores: dict[str, float | None] = {}
    predictions: dict[str, list[dict[str, Any]]] = {}
    for split, data in splits.items():
        found = predict_split(task, module, data, accelerator, description=f"evaluate {split}")
        predictions[split] = task.decode(found.outputs, data.features, data.examples)
        for name, value in task.score(predictions[split], data.examples).items():
            scores[f"{split}/{name}"] = value
        task = task.with_scores(scores)  # what the first split found out holds for the others
        if len(predictions[split]) > 1 == len(task.outcomes(predictions[split])):
            scores[f"{split}/{CONSTANT}"] = 1.0
        for term, loss in found.losses.items():
            check_finite(loss, split)
            scores[f"{split}/{'loss' if term == 'labels' else term + '_loss'}"] = loss
    first = next(iter(scores.values()), None)
    return Scored(scores, predictions, first if first is None or task.greater_is_better else -first)
