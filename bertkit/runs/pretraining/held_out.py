"""How well a language model predicts held-out tokens: all of them, and those of each corpus and source."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertkit.corpus.shard import Shard
from bertkit.model.devices import sum_over_processes
from bertkit.runs.pretraining.sequences import HeldOutSequences
from bertkit.training.batching import evaluation_batches

if TYPE_CHECKING:
    from accelerate import Accelerator


def unigram_loss(
    parts: Iterable[tuple[float, Iterable[Shard]]], vocab_size: int, targets: NDArray[np.integer], accelerator: Accelerator
) -> float:
    """A baseline: the mean loss, in nats, over the targets of all processes, predicted by token frequency in the training text.

    parts: shards of each corpus of a mix, with its share. Counts are raised by one, so that no token has probability 0.
    """
    counted = [
        (share, sum((np.bincount(shard.input_ids, minlength=vocab_size) for shard in shards), np.zeros(vocab_size)))
        for share, shards in parts
    ]
    total = sum(own.sum() for _, own in counted)
    counts = 1 + sum(share * total * own / max(own.sum(), 1) for share, own in counted)
    losses = -np.log(counts / counts.sum())[targets]
    total, number = sum_over_processes(torch.tensor([losses.sum(), losses.size], dtype=torch.float64), accelerator).tolist()
    return total / number


def score_language_model(
    module: nn.Module, held_out: HeldOutSequences, micro_batch_tokens: int, accelerator: Accelerator
) -> dict[str, float]:
    """Loss and accuracy of each loss term over all processes, and the perplexity of the first term, the tokens; then the same
    for each part, as PART/mlm_loss and so on.

    Losses are means over targets, so the total is the mean of the sources' losses, weighted by their numbers of targets.
    held_out: this process's share, which may be empty.
    """
    features, terms = held_out.features, [*held_out.features.labels]
    of_part = np.stack([np.ones(len(features), dtype=bool), *held_out.parts.values()]).astype(np.float64)  # (1 + parts, B)
    sums = np.zeros((len(of_part), len(terms), 3))  # loss, correct predictions, targets
    was_training = module.training
    module.eval()
    with torch.inference_mode():
        for batch in evaluation_batches(features, micro_batch_tokens):
            on_device = batch.to(accelerator.device)
            _, logits = module(on_device)
            chosen = batch.features.numpy()
            for number, term in enumerate(terms):
                found, labels = logits[term], on_device.labels[term][:, None]
                if term != terms[0]:  # the first has (M, 2): the target's log-probability, and whether it is the most likely
                    right = found.argmax(dim=-1, keepdim=True) == labels
                    found = torch.cat([found.log_softmax(dim=-1).gather(1, labels), right], dim=1)
                values = found.cpu().double().numpy() * (-1, 1)
                owners = np.repeat(chosen, features.labels[term].lengths[chosen])
                sums[:, number] += of_part[:, owners] @ np.column_stack([values, np.ones(len(owners))])
    module.train(was_training)
    scores: dict[str, float] = {}
    totals = sum_over_processes(torch.from_numpy(sums), accelerator).tolist()
    for before, total in zip(("", *(f"{name}/" for name in held_out.parts)), totals, strict=True):
        for term, (loss, correct, targets) in zip(terms, total, strict=True):
            if not targets:  # a source of nothing but special tokens
                continue
            scores[f"{before}{term}_loss"] = loss / targets
            if term == terms[0]:
                scores[f"{before}perplexity"] = math.exp(min(loss / targets, 700))
            scores[f"{before}{term}_accuracy"] = correct / targets
    return scores
