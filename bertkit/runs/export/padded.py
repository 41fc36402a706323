"""A head over padded input in traceable operations, for export as a graph to another runtime.

It uses the head's own modules, so the weights are not copied; only packing, which depends on the data, is replaced.
Padding must be on the right. Dimensions as in bert.py, plus C classes and V vocab_size; T is the number of columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bertkit.errors import ModelError
from bertkit.model.heads import BertForMultipleChoice, BertForQuestionAnswering, BertForTokenClassification, Head
from bertkit.model.language_model import LanguageModel
from bertkit.model.layout import Grouped, Layout, Pattern

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Padded(nn.Module):
    """A head as a function of INPUTS, (B, T) of int64, or for multiple choice (B, choices, T).

    outputs: their names, as in transformers and optimum: logits (B, C), (B, T, C), (B, T, V), (B, choices); or start_logits
    and end_logits (B, T); and intent_logits (B, intents). At padding they are arbitrary. A CRF outputs its emissions; the
    caller must search for the best path. Raises ModelError for a head that has no such graph.
    """

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head: Any = head
        self.outputs = ["logits"]
        if isinstance(head, BertForQuestionAnswering):
            self.outputs = ["start_logits", "end_logits"]
        elif isinstance(head, BertForTokenClassification):
            if "lstm" in head.parts:
                raise ModelError("models with a BiLSTM head cannot be exported, because it reads words, not tokens")
            if "intent" in head.parts:
                self.outputs.append("intent_logits")
        elif isinstance(head, LanguageModel) and head.config.is_decoder:
            raise ModelError("causal language models cannot be exported: only masked language models can")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """The outputs in the order of their names."""
        head, lead = self.head, input_ids.shape[:-1]
        inputs = [each.reshape(-1, input_ids.shape[-1]) for each in (input_ids, attention_mask, token_type_ids)]
        states = self._encode(*inputs)
        hidden = states[-1] if head.layers == "last" else head.head["mix"](states)  # (B, T, H), for last4 (B, T, 4 H)
        if isinstance(head, BertForQuestionAnswering):
            return head.qa_outputs(hidden).unbind(-1)
        if isinstance(head, LanguageModel):
            return (head.cls.predictions(hidden),)
        if isinstance(head, BertForTokenClassification):
            tags = head.head["classifier"] if "classifier" in head.parts else head.classifier
            intents = (head.head["intent"](hidden[:, 0]),) if "intent" in head.parts else ()
            return tags(hidden), *intents
        classifier = head.head["classifier"] if hasattr(head, "head") else head.classifier
        logits = classifier(self._pool(hidden, inputs[1]))  # (B, C)
        return (logits.reshape(lead) if isinstance(head, BertForMultipleChoice) else logits,)

    def _encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> list[Tensor]:
        """The embeddings and each layer's hidden states, (B, T, H). Every cell is a row here; a mask excludes padding."""
        bert = self.head.bert
        rows, columns = input_ids.shape
        places = torch.arange(columns, device=input_ids.device)
        embedded = bert.embeddings(input_ids, places.expand_as(input_ids), token_type_ids)
        read = (attention_mask != 0)[:, None, None, :]
        if bert.encoder.is_decoder:
            read = read & (places <= places[:, None])
        mask = torch.zeros(read.shape, device=read.device).masked_fill(~read, -torch.inf)
        cells = Grouped([rows * columns], [Layout(rows, columns, None, mask)])
        pattern = Pattern(cells, cells, [mask])
        states = [embedded]
        for layer in bert.encoder.layer:
            hidden = states[-1].reshape(rows * columns, -1)
            states.append(layer(hidden, hidden, pattern).view(rows, columns, -1))
        return states

    def _pool(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, H), for last4 (B, 4 H): the same pooling as _PooledHead's for packed tokens."""
        head = self.head
        read = (attention_mask != 0)[:, :, None]
        if head.pooling == "mean":
            return (hidden * read).sum(1) / read.sum(1)
        if head.pooling == "max":
            return hidden.masked_fill(~read, -torch.inf).amax(1)
        if head.config.is_decoder:  # the last token; [CLS] reads nothing but itself
            place = (attention_mask.sum(1) - 1)[:, None, None].expand(-1, 1, hidden.shape[-1])
            hidden = hidden.gather(1, place)
        return hidden[:, 0] if head.bert.pooler is None else head.bert.pooler(hidden[:, 0])
