"""The operations counted are those that torch does where nothing is padded."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from shapes import LARGER as CONFIG
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bertkit.config import TrainConfig, filled
from bertkit.model.batch import Batch, pack
from bertkit.model.flops import flop_counter
from bertkit.model.heads import BertForSequenceClassification, BertForTokenClassification, Head
from bertkit.model.language_model import BertForMaskedLM, BertForPreTraining
from bertkit.model.layerwise import freeze

COUNT, LENGTH = 8, 32


def batch_of(rows_each: int | None, labels: dict[str, torch.Tensor]) -> Batch:
    """COUNT sequences of LENGTH tokens, of which the head reads the first rows_each."""
    batch, _ = pack(torch.randint(5, CONFIG.vocab_size, (COUNT, LENGTH)), None, None)
    if rows_each is not None:
        rows = (torch.arange(COUNT)[:, None] * LENGTH + torch.arange(rows_each)).flatten()
        counts = torch.full((COUNT,), rows_each)
        cu_rows = torch.arange(COUNT + 1) * rows_each
        batch = dataclasses.replace(batch, rows=rows, cu_rows=cu_rows, row_counts=counts.numpy())
    return dataclasses.replace(batch, labels=labels, weights=dict.fromkeys(labels, 1.0))


def classes(count: int) -> torch.Tensor:
    return torch.randint(0, 2, (count,))


CASES = {
    "sentences": (BertForSequenceClassification, 1, {"labels": COUNT}),
    "words": (BertForTokenClassification, 16, {"labels": 16 * COUNT}),
    "all words": (BertForTokenClassification, None, {"labels": LENGTH * COUNT}),
    "masked": (BertForMaskedLM, 8, {"mlm": 8 * COUNT}),
    "masked and pairs": (BertForPreTraining, 9, {"mlm": 8 * COUNT, "nsp": COUNT}),
}


@pytest.mark.parametrize("frozen", [None, "embeddings", "2"])
@pytest.mark.parametrize("name", CASES)
def test_as_torch_counts_them(name: str, frozen: str | None) -> None:
    head, rows, sizes = CASES[name]
    module: Head = head(CONFIG).train()
    freeze(module, filled(TrainConfig(freeze=frozen)))
    batch = batch_of(rows, {term: classes(size) for term, size in sizes.items()})
    with FlopCounterMode(display=False) as torchs:
        sum(module(batch).loss_sums.values()).backward()
    # the gradient with respect to frozen embeddings is not computed: at most that of three of 18 maps of the lowest layer
    tolerance = 0.02 if frozen is None else 0.12
    assert flop_counter(module)(batch) == pytest.approx(torchs.get_total_flops(), rel=tolerance)


def test_a_module_without_layers_counts_nothing() -> None:
    flat = BertForSequenceClassification(dataclasses.replace(CONFIG, num_hidden_layers=0))
    for module in (nn.Linear(3, 3), flat):
        assert flop_counter(module)(batch_of(None, {})) == 0
