"""The padded form of every head against the packed one, over many shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bertkit.errors import ModelError
from bertkit.model.bert import initialize
from bertkit.model.config import LAYERS, POOLINGS, BertConfig
from bertkit.model.heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Head,
)
from bertkit.model.language_model import BertForMaskedLM, BertForPreTraining, BertLMHeadModel
from bertkit.runs.export.padded import Padded

SIZES = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}


def config(**more: Any) -> BertConfig:
    labels = {"id2label": {0: "a", 1: "b", 2: "c"}}
    return BertConfig.from_dict({**SIZES, "max_position_embeddings": 40, "initializer_range": 0.4, **labels, **more})


def inputs(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = torch.randint(1, length + 1, (count, 1))
    lengths[0] = length
    ids, types = torch.randint(SIZES["vocab_size"], (count, length)), torch.randint(2, (count, length))
    return ids, (torch.arange(length) < lengths).long(), types


TWO_LAYERS = {"num_hidden_layers": 2}  # enough where no head reads the last four
HEADS: dict[str, Callable[[], Head]] = {
    **{f"classes-{pooling}": lambda p=pooling: BertForSequenceClassification(config(), pooling=p) for pooling in POOLINGS},
    "classes-pooled": lambda: BertForSequenceClassification(config(**TWO_LAYERS)),
    "choices": lambda: BertForMultipleChoice(config(**TWO_LAYERS)),
    "answers": lambda: BertForQuestionAnswering(config(**TWO_LAYERS)),
    "tags": lambda: BertForTokenClassification(config(**TWO_LAYERS)),
    "intents": lambda: BertForTokenClassification(config(**TWO_LAYERS), num_intents=5),
    "masks": lambda: BertForMaskedLM(config(**TWO_LAYERS)),
    "masks-pairs": lambda: BertForPreTraining(config(**TWO_LAYERS)),
    "decoder": lambda: BertForSequenceClassification(config(is_decoder=True, **TWO_LAYERS)),
    **{f"tags-{layers}": lambda how=layers: BertForTokenClassification(config(), layers=how) for layers in LAYERS},
    "intents-last4": lambda: BertForTokenClassification(config(), layers="last4", num_intents=5),
    "classes-mean-last4": lambda: BertForSequenceClassification(config(), pooling="mean", layers="last4"),
    "decoder-cls-sum": lambda: BertForSequenceClassification(config(is_decoder=True), pooling="cls", layers="sum"),
    "decoder-mean": lambda: BertForSequenceClassification(config(is_decoder=True), pooling="mean"),
}


@pytest.mark.parametrize("name", HEADS)
def test_it_gives_the_logits_of_packed_tokens(name: str) -> None:
    head = HEADS[name]().eval()
    initialize(head, head.config, seed=1)
    torch.manual_seed(2)
    padded = Padded(head).eval()
    for count, length in [(1, 2), (1, 40), (2, 7), (3, 40), (5, 13), (9, 2)]:
        given = inputs(count, length)
        if name == "choices":
            given = tuple(each.view(1, count, length) for each in given)  # type: ignore[assignment]
        with torch.inference_mode():
            expected, found = list(head(*given).logits.values()), padded(*given)
        assert len(found) == len(padded.outputs)
        for want, got in zip(expected, found, strict=False):
            assert want.shape == got.shape
            read = given[1].bool() if got.shape[:2] == given[1].shape else ...
            # in float32, by other kernels: an Intel processor with AVX-512 gave logits 1.1e-5 apart
            torch.testing.assert_close(got[read], want[read], atol=2e-5, rtol=1e-5)


def test_heads_without_a_graph_say_why() -> None:
    with pytest.raises(ModelError, match="BiLSTM"):
        Padded(BertForTokenClassification(config(), head="bilstm"))
    with pytest.raises(ModelError, match="causal"):
        Padded(BertLMHeadModel(config(is_decoder=True)))
