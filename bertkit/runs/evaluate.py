"""A model's predictions for each feature, in order, gathered from all processes; and their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertkit import manifest, progress
from bertkit.errors import ModelError, UsageError, plural
from bertkit.features import Features
from bertkit.model.batch import Batch, Outputs
from bertkit.model.devices import Processes
from bertkit.model.streams import num_streams, side_by_side
from bertkit.progress import NO_BAR, Bar
from bertkit.readers import Examples
from bertkit.report import Table
from bertkit.runs.remarks import report_remarks
from bertkit.tasks.presentation import Prediction, lines_of
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import evaluation_batches, split_by_feature
from bertkit.training.state import TrainState

# The maximum number of tokens in a batch on a CPU, so that the activations of a layer fit into the cache. MiniLM on two AMD
# cores, batches in parallel, texts/s with 512, 1024 and 2048 tokens: for MRPC 346, 369, 374 in bf16 and 392, 439, 450 in int8;
# for texts as short as SST-2's 804, 855, 895 and 953, 1089, 1018.
CPU_TOKENS = 1024
CONSTANT = "constant_predictions"  # a score of 1, present only if a model predicts the same for every row


def batch_tokens(micro_batch_tokens: int, device: torch.device) -> int:
    """The maximum number of tokens that `predict` computes as one batch."""
    return min(micro_batch_tokens, CPU_TOKENS) if device.type == "cpu" else micro_batch_tokens


class Predictions(NamedTuple):
    """outputs: for each name of logits, one float array per feature, in order. losses: the mean loss by term."""

    outputs: dict[str, list[NDArray]]
    losses: dict[str, float]


def predict(
    model: nn.Module, features: Features, micro_batch_tokens: int, processes: Processes, *, bar: Bar = NO_BAR
) -> Predictions:
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
    manifest.raise_damage()
    return _gathered(outputs, sums, processes, len(features))


def _gathered(
    outputs: dict[str, dict[int, NDArray]], sums: dict[str, list[float]], processes: Processes, num_features: int
) -> Predictions:
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
    return Predictions(in_order, {term: float(loss / weight) for term, (loss, weight) in totals.items() if weight})


# --- splits ----------------------------------------------------------------------------------------------------------


_WRONG_VOCABULARY = 0.1  # share of [UNK] above which the vocabulary does not fit the data


@dataclass(frozen=True)
class Split:
    """A split of the data, as rows and as features."""

    examples: Examples
    features: Features

    def describe(self, task: Task) -> dict[str, Any]:
        """Its entry in run.json: with the sha256 of the features, and of the rows' texts."""
        return {
            "source": self.examples.source,
            "rows": len(np.unique(self.features.examples)),  # for training, only rows that have something to learn
            "sha256": self.features.fingerprint(),
            "rows_sha256": hash_of_rows(task.recipe, self.examples),
        }


def hash_of_rows(recipe: Recipe, examples: Examples) -> str:
    """sha256 of every row's texts, in order."""
    digest = sha256()
    for row in recipe.texts_of(examples):
        digest.update(f"{row!r}\n".encode())
    return digest.hexdigest()


class Scored(NamedTuple):
    """scores: every metric, as "split/metric". predictions, truth: one per row, by split. objective: the score that selects the
    best step (higher is better). task: with tuned thresholds.
    """

    scores: dict[str, float | None]
    predictions: dict[str, list[Prediction]]
    truth: dict[str, Sequence[Any]]
    objective: float | None
    task: Task


def encode_split(task: Task, split: str, rows: Examples, tokenizer: Tokenizer, *, checked: bool = False) -> Split:
    """Encode a split's rows; report the length of its sequences and what was truncated or dropped; also remarks and [UNK],
    unless the rows were already `checked`.
    """
    examples = task.examples(rows, labelled=True)
    features, counts = task.encode(examples, tokenizer)
    if not checked:
        report_remarks(examples.remarks, f"{split}: ")
    mean = len(features.input_ids.values) / max(1, len(features.input_ids))
    progress.note(", ".join([f"{split}: {plural(len(examples), 'row')}, {mean:.0f} tokens on average", *lines_of(counts)]))
    unknown = float((features.input_ids.values == tokenizer.unk_token_id).mean()) if len(features.input_ids.values) else 0.0
    if unknown > _WRONG_VOCABULARY and not checked:
        hint = "does the model's vocabulary match the data's language, alphabet and case? `bertkit check` shows examples"
        progress.warn(f"{split}: {unknown:.0%} of the tokens are [UNK]; {hint}")
    return Split(examples, features)


def predict_each(
    modules: Sequence[nn.Module], features: Features, micro_batch_tokens: int, processes: Processes, *, bar: Bar = NO_BAR
) -> list[Predictions]:
    """`predict` with each of several modules for the same task, as `Task.decode` takes them; only a single one has losses.

    Raises ModelError for NaN outputs, if no loss would reveal them.
    """
    found = [predict(module, features, micro_batch_tokens, processes, bar=bar) for module in modules]
    if len(found) == 1 and found[0].losses:  # these reveal NaN
        return found
    outputs = [logits for each in found for logits in each.outputs.values()]
    if nan := {number for logits in outputs for number, rows in enumerate(logits) if np.isnan(rows).any()}:
        hint = "try --precision fp32; or the training went wrong: see its losses in metrics.jsonl"
        what = f"the model's outputs are NaN for {len(nan)} of {plural(len(features), 'feature')}"
        raise ModelError(what, hint=hint)
    return found


def refuse_not_finite(loss: float, split: str) -> None:
    """Raise UsageError for a loss that is not finite, because the model is then useless."""
    if not math.isfinite(loss):
        hint = "train with a lower --learning-rate, a higher --warmup-ratio, or --precision fp32"
        raise UsageError(f"the loss on {split} is {loss}", hint=hint)


def scores_table(state: TrainState, title: str, published: Mapping[str, float] | None = None) -> Table:
    """The best, the last and, if any, the published scores of a run."""
    columns = ["score", f"best (step {state.best_step})", f"last (step {state.step})", *(["published"] if published else [])]
    rows = [
        [name, value, state.last_scores.get(name), *([published.get(name)] if published else [])]
        for name, value in state.best_scores.items()
    ]
    return Table(title, columns, rows)


def score_splits(
    task: Task, modules: Sequence[nn.Module], splits: Mapping[str, Split], processes: Processes, *, tune: bool = False
) -> Scored:
    """Every metric of every split; the first metric is the objective. modules: see `predict_each`. tune: choose thresholds on
    the first split.

    Raises UsageError for a loss that is not finite.
    """
    scores: dict[str, float | None] = {}
    predictions: dict[str, list[Prediction]] = {}
    truth: dict[str, Sequence[Any]] = {}
    for number, (split, data) in enumerate(splits.items()):
        with progress.bar(f"evaluate {split}", len(modules) * len(data.features)) as bar:
            one, *others = predict_each(modules, data.features, task.recipe.training.micro_batch_tokens, processes, bar=bar)
        decoded = task.decode(one.outputs, data.features, data.examples, [each.outputs for each in others])
        losses = {} if others else one.losses
        truth_of = task.truth(data.examples)
        thresholds = {}
        if tune and number == 0:
            task = task.tuned(decoded, truth_of)
            decoded, thresholds = task.decide(decoded), task.thresholds_tuned()
        for name, value in (task.score(decoded, truth_of) | thresholds).items():
            scores[f"{split}/{name}"] = value
        for remark in lines_of(task.counts_of(decoded)):
            progress.note(remark)
        if len(decoded) > 1 and task.distinct(decoded) == 1:
            scores[f"{split}/{CONSTANT}"] = 1.0
        for term, loss in losses.items():
            refuse_not_finite(loss, split)
            scores[f"{split}/{'loss' if term == 'labels' else term + '_loss'}"] = loss
        predictions[split], truth[split] = decoded, truth_of
    first = next(iter(scores.values()), None)
    objective = first if first is None or task.recipe.greater_is_better else -first
    return Scored(scores, predictions, truth, objective, task)
