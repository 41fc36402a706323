"""Why a text model decides as it does: each word's attribution, its input times its gradient (Shrikumar et al., 2016)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.features import Features, Ragged
from bertkit.model.batch import Batch
from bertkit.model.heads import Head
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import split_words
from bertkit.training.batching import evaluation_batches


class Explanation(NamedTuple):
    """The label that is explained, None for a number; and each word of the texts, in order, with how much it supports the label
    (above 0) or opposes it.
    """

    label: str | None
    words: list[tuple[str, float]]


def sum_by_word(
    columns: Sequence[Sequence[str]],
    tokenizer: Tokenizer,
    max_length: int,
    truncate: str,
    values: Sequence[NDArray[np.float32]],
) -> list[list[tuple[str, float]]]:
    """Each row's words, from one or two columns of texts, with the sum of their tokens' values; 0 for truncated words.

    max_length, truncate: as in encoding the texts. values: for each sequence, one per token, including special tokens.
    """
    encoded = [tokenizer.encode_with_offsets(texts) for texts in columns]
    # The number of each column's first token, counted over all columns.
    begins = np.cumsum([0, *(len(ids.values) for ids, _, _ in encoded[:-1])])
    counted = [
        Ragged(begin + np.arange(len(ids.values)), ids.offsets) for begin, (ids, _, _) in zip(begins, encoded, strict=True)
    ]
    tokens = tokenizer.assemble(counted, max_length, truncate, special=(-1, -1)).input_ids.values
    sums = np.zeros(sum(len(column.values) for column in counted))
    np.add.at(sums, tokens[tokens >= 0], np.concatenate(values)[tokens >= 0])
    found: list[list[tuple[str, float]]] = [[] for _ in columns[0]]
    for texts, begin, (ids, starts, _) in zip(columns, begins, encoded, strict=True):
        for words, text, first, end in zip(found, texts, ids.offsets[:-1], ids.offsets[1:], strict=True):
            places = split_words(text)
            word_of = np.searchsorted([start for start, _ in places], starts[first:end], side="right") - 1
            of_words = word_of >= 0  # marks before the first word belong to none
            scores = np.bincount(word_of[of_words], sums[begin + first : begin + end][of_words], len(places))
            words += [(text[start:stop], float(score)) for (start, stop), score in zip(places, scores, strict=True)]
    return found


def inputs_times_gradients(
    module: Head, features: Features, outputs: NDArray[np.int64], micro_batch_tokens: int, device: torch.device
) -> list[NDArray[np.float32]]:
    """For each feature, which must have one sequence, (T,): each token's embedding times a logit's gradient by it, summed.

    outputs: (F,) which logit of (B, C). Other threads may use the module at the same time.
    """
    found: dict[int, NDArray[np.float32]] = {}
    for batch in evaluation_batches(features, micro_batch_tokens):
        numbers, lengths = batch.features.tolist(), batch.cu_seqlens.diff().tolist()
        products = _of_batch(module, batch.to(device), torch.from_numpy(outputs[numbers]).to(device)).float().cpu()
        found |= dict(zip(numbers, (part.numpy() for part in products.split(lengths)), strict=True))
    return [found[feature] for feature in range(len(features))]


def _of_batch(module: Head, batch: Batch, outputs: Tensor) -> Tensor:
    """(N,): input times gradient of each token; a copy that shares all other weights gives every token its own embedding."""
    copied = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
    words = copied.bert.embeddings.word_embeddings
    own = nn.Embedding.from_pretrained(words.weight[batch.input_ids].detach(), freeze=False)  # (N, H)
    copied.bert.embeddings.word_embeddings = own
    logits = copied(replace(batch, input_ids=torch.arange(len(batch.input_ids), device=batch.input_ids.device))).logits[
        "logits"
    ]
    (gradients,) = torch.autograd.grad(logits.gather(1, outputs[:, None]).sum(), [own.weight])
    return (own.weight * gradients).sum(1).detach()
