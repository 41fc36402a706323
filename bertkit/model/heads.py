"""The heads of the four task families (Devlin et al., 2019, section 4), over packed tokens; and their shared parts.

Each takes a Batch, or padded input like the transformers class of the same name, and returns Outputs. Dimensions as in bert.py,
plus F features and C classes.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.features import IGNORED
from bertkit.model.batch import Batch, Outputs, pack
from bertkit.model.bert import BertModel, refuse_arguments
from bertkit.model.config import CLS_LAYERS, LAYERS, POOLINGS, BertConfig
from bertkit.model.crf import Chain, LinearChain
from bertkit.model.dropout import Dropout
from bertkit.model.layout import Layout


class LayerMix(nn.Module):
    """Combines each token's hidden states into one vector, by one of LAYERS.

    A mix is their mean with learned weights, times a learned scale (Peters et al., 2018, eq. 1).
    """

    def __init__(self, layers: str, num_states: int) -> None:
        super().__init__()
        self.read, self.how = LAYERS[layers]
        if self.how == "mix":
            self.weights = nn.Parameter(torch.zeros(len(range(num_states)[self.read])))
            self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: list[Tensor]) -> Tensor:
        """(..., H) of the embeddings and of each layer -> (..., H), for last4 (..., 4 H)."""
        states = states[self.read]
        if self.how == "concat":
            return torch.cat(states, dim=-1)
        if self.how == "sum":
            return torch.stack(states).sum(0)
        exact = torch.promote_types(self.weights.dtype, torch.float32)
        shares = self.weights.to(exact).softmax(0).to(states[0].dtype)
        return self.scale * torch.einsum("l,l...->...", shares, torch.stack(states))


class Head(nn.Module, ABC):
    """Base class of all heads, also for pre-training: takes a packed Batch, or padded input like the class in transformers."""

    layers = "last"  # which of LAYERS it reads; the others are mixed by head.mix

    def __init__(self, config: BertConfig, *, add_pooling_layer: bool) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config, add_pooling_layer=add_pooling_layer)
        p = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = Dropout(p, self.bert.dropout_stream)

    def forward(
        self,
        input_ids: Batch | Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **refused: Any,
    ) -> Outputs:
        """Losses and logits for a packed Batch, or only the logits for padded input."""
        refuse_arguments(refused)
        if isinstance(input_ids, Batch):
            return self._of_batch(input_ids)
        return Outputs({}, self._of_padded(input_ids, attention_mask, token_type_ids))

    @abstractmethod
    def _of_batch(self, batch: Batch) -> Outputs:
        """Losses of the terms that the batch has labels for, and the logits of the rows that it names."""

    def raw(self, batch: Batch) -> dict[str, Tensor]:
        """The logits of the rows that the batch names, before a CRF or a choice of tokens is applied."""
        return self._of_batch(batch).logits

    def _encode(self, batch: Batch) -> Tensor:
        """One vector for each row that the batch names, combined from the layers' states."""
        if self.layers == "last":
            return self.bert.encode(batch)
        return self.get_submodule("head.mix")(self.bert.encode_layers(batch))

    def _of_padded(self, input_ids: Tensor, attention_mask: Tensor | None, segments: Tensor | None) -> dict[str, Tensor]:
        """Logits of all tokens: (B, T) or (B, T, C), 0 where nothing is attended."""
        batch, attended = pack(input_ids, attention_mask, segments)

        def padded(rows: Tensor) -> Tensor:
            cells = attended.view(*attended.shape, *[1] * (rows.dim() - 1))
            return rows.new_zeros(*attended.shape, *rows.shape[1:]).masked_scatter(cells, rows)

        logits = self._of_batch(batch).logits
        return {name: padded(rows) if len(rows) == len(batch.input_ids) else rows for name, rows in logits.items()}


def _width(config: BertConfig, layers: str) -> int:
    """The size of the vectors that LayerMix makes."""
    read, how = LAYERS[layers]
    return config.hidden_size * (len(range(config.num_hidden_layers + 1)[read]) if how == "concat" else 1)


class _PooledHead(Head):
    """A linear classifier of one vector per sequence, pooled by one of POOLINGS from one of LAYERS.

    With is_decoder, [CLS] attends only to itself, so the last token takes its place. transformers has a class only for the
    pooled [CLS]; otherwise the classifier is under `head`.
    """

    def __init__(self, config: BertConfig, num_classes: int, pooling: str, layers: str = "last") -> None:
        assert pooling in POOLINGS
        self.pooling, self.layers = ("cls", CLS_LAYERS[pooling]) if pooling in CLS_LAYERS else (pooling, layers)
        super().__init__(config, add_pooling_layer=self.pooling == "pooled")
        classifier = nn.Linear(_width(config, self.layers), num_classes)
        if self.pooling == "pooled" and not config.is_decoder:
            self.classifier = classifier
        else:
            self.head = nn.ModuleDict({"classifier": classifier})
            if self.layers != "last":
                self.head["mix"] = LayerMix(self.layers, config.num_hidden_layers + 1)

    def _classify_pooled(self, batch: Batch) -> Tensor:
        classifier = self.head["classifier"] if hasattr(self, "head") else self.classifier
        return _logits(classifier, self.dropout(self._pool(batch)))  # (B, C)

    def _pool(self, batch: Batch) -> Tensor:
        """(B, H), for last4 (B, 4 H)."""
        if self.pooling in ("mean", "max"):  # includes special tokens, like Sentence-Transformers
            hidden = self._encode(
                dataclasses.replace(batch, rows=None, cu_rows=batch.cu_seqlens, row_counts=batch.token_counts)
            )
            hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))  # (N, H); sums in bf16 would be imprecise
            layout = Layout.of(batch.cu_seqlens, batch.max_seqlen, len(hidden), hidden.dtype)
            grid = layout.pad(hidden[:, None])[:, 0]  # (B, T, H), 0 where there is no token
            if self.pooling == "mean":
                return grid.sum(1) / batch.cu_seqlens.diff()[:, None]
            return (grid if layout.mask is None else grid + layout.mask[:, 0, 0, :, None]).amax(1)
        hidden = self._encode(batch.reading(batch.cu_seqlens[1:] - 1 if self.config.is_decoder else batch.cu_seqlens[:-1]))
        return hidden if self.bert.pooler is None else self.bert.pool(hidden)

    def _of_padded(self, input_ids: Tensor, attention_mask: Tensor | None, segments: Tensor | None) -> dict[str, Tensor]:
        batch, _ = pack(input_ids, attention_mask, segments)
        return {"logits": self._classify_pooled(batch)}


class Vectors(_PooledHead):
    """The encoder alone; its logits are "vectors": (B, H), pooled by one of POOLINGS, or (N, H), the states of a layer.

    layer: return this layer's hidden states of every token; 0 is the embeddings, -1 the last layer. bert: a trained encoder to
    use instead of a new one.
    """

    def __init__(
        self, config: BertConfig, *, pooling: str = "mean", layer: int | None = None, bert: BertModel | None = None
    ) -> None:
        with torch.device("meta" if bert is not None else torch.get_default_device()):
            super().__init__(config, 1, pooling)
        del self.head
        self.layer = layer
        if bert is not None:  # without its pooler
            self.bert.embeddings, self.bert.encoder, self.bert.dropout_stream = (
                bert.embeddings,
                bert.encoder,
                bert.dropout_stream,
            )

    def _of_batch(self, batch: Batch) -> Outputs:
        found = self._pool(batch) if self.layer is None else self.bert.encode_layers(batch)[self.layer]
        return Outputs({}, {"vectors": found.to(torch.promote_types(found.dtype, torch.float32))})


class BertForSequenceClassification(_PooledHead):
    """A class, or a score, for each whole sequence; loss term "labels".

    Logits are (B, C). The loss depends on problem_type: cross-entropy; the squared error for "regression" (or one label); or
    for "multi_label_classification" the binary cross-entropy of every label, each of which counts as a target. class_weights,
    label_smoothing: as in torch's cross_entropy.
    """

    def __init__(
        self,
        config: BertConfig,
        *,
        pooling: str = "pooled",
        layers: str = "last",
        class_weights: tuple[float, ...] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(config, config.num_labels, pooling, layers)
        self.class_weights, self.label_smoothing = class_weights, label_smoothing

    def _of_batch(self, batch: Batch) -> Outputs:
        logits = self._classify_pooled(batch)  # (B, C)
        if "labels" not in batch.labels:
            return Outputs({}, {"logits": logits})
        labels = batch.labels["labels"]
        if self.config.problem_type == "multi_label_classification":
            targets = labels.view(logits.shape).to(logits.dtype)  # (B, C)
            loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        elif self.config.problem_type == "regression" or self.config.num_labels == 1:
            loss = (logits.view(-1) - labels.to(logits.dtype)).square().sum()
        else:
            smoothing = self.label_smoothing if self.training else 0.0
            loss = _cross_entropy(logits, labels, self.class_weights, smoothing)
        return Outputs({"labels": loss}, {"logits": logits})


class BertForMultipleChoice(_PooledHead):
    """Which of a question's choices is right; each choice is a sequence, each question a feature. Loss term "labels".

    Logits are (B, 1), one row per choice; for padded input of shape (F, choices, T) they are (F, choices).
    """

    def __init__(self, config: BertConfig, *, pooling: str = "pooled", layers: str = "last") -> None:
        super().__init__(config, 1, pooling, layers)

    def _of_batch(self, batch: Batch) -> Outputs:
        logits = self._classify_pooled(batch)  # (B, 1)
        if "labels" not in batch.labels:
            return Outputs({}, {"logits": logits})
        choices = _grid(logits[:, 0], batch.cu_features, int(batch.sequence_counts.max()))  # (F, most choices)
        loss = F.cross_entropy(choices, batch.labels["labels"], ignore_index=IGNORED, reduction="sum")
        return Outputs({"labels": loss}, {"logits": logits})

    def _of_padded(self, input_ids: Tensor, attention_mask: Tensor | None, segments: Tensor | None) -> dict[str, Tensor]:
        mask, types = (None if x is None else x.flatten(0, 1) for x in (attention_mask, segments))
        logits = super()._of_padded(input_ids.flatten(0, 1), mask, types)["logits"]
        return {"logits": logits.view(input_ids.shape[:2])}


class BertForQuestionAnswering(Head):
    """Where an answer starts and ends in its sequence. Reads all rows; logits (N,) and loss terms are "start" and "end".

    Each loss is half the cross-entropy over the sequence's tokens, without padding, so their sum is transformers' loss.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    def _of_batch(self, batch: Batch) -> Outputs:
        start, end = _logits(self.qa_outputs, self.bert.encode(batch)).unbind(-1)  # (N,)
        losses = {
            term: F.cross_entropy(
                _grid(logits, batch.cu_seqlens, batch.max_seqlen), batch.labels[term], ignore_index=IGNORED, reduction="sum"
            )
            / 2
            for term, logits in (("start", start), ("end", end))
            if term in batch.labels
        }
        return Outputs(losses, {"start": start, "end": end})


class BertForTokenClassification(Head):
    """A class for each row that the batch names (a word's first piece); loss term "labels". Logits are (R, C).

    head: "linear", transformers' own; "bilstm", with a bidirectional LSTM over the rows below it (Huang et al., 2015); or
    "crf", with a linear-chain CRF on top (Lafferty et al., 2001). legal: the starts, transitions and ends that a CRF allows, as
    booleans. lstm_layers: the number of stacked LSTMs. layers: which of LAYERS are read.
    num_intents: classes of the whole sequence, read from [CLS], which must be the first row of each; loss term "intent".
    class_weights, label_smoothing: for tags without a CRF, as in torch's cross_entropy.
    In evaluation, a CRF's logits are log marginals, and "path" is (R,), the class of each row in the best sequence. "intent" is
    (B, intents). Parameters that transformers does not have are under `head`.
    """

    def __init__(
        self,
        config: BertConfig,
        *,
        head: str = "linear",
        layers: str = "last",
        lstm_layers: int = 1,
        legal: tuple[Tensor, Tensor, Tensor] | None = None,
        num_intents: int = 0,
        class_weights: tuple[float, ...] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.class_weights, self.label_smoothing, self.layers = class_weights, label_smoothing, layers
        size, extra = _width(config, layers), nn.ModuleDict()
        classifier = nn.Linear(config.hidden_size if head == "bilstm" else size, config.num_labels)
        if head == "linear" and layers == "last":
            self.classifier = classifier
        else:
            extra["classifier"] = classifier
        if layers != "last":
            extra["mix"] = LayerMix(layers, config.num_hidden_layers + 1)
        if head == "bilstm":
            extra["lstm"] = nn.LSTM(size, config.hidden_size // 2, lstm_layers, bidirectional=True, batch_first=True)
        if head == "crf":
            extra["crf"] = LinearChain(config.num_labels, legal)
        if num_intents:
            extra["intent"] = nn.Linear(size, num_intents)
        if extra:
            self.head: nn.ModuleDict = extra
        self.parts = frozenset(extra)

    def raw(self, batch: Batch) -> dict[str, Tensor]:
        hidden = self.dropout(self._encode(batch))  # (R, H), for last4 (R, 4 H)
        outputs: dict[str, Tensor] = {}
        if "intent" in self.parts:
            outputs["intent"] = _logits(self.head["intent"], hidden[batch.cu_rows[:-1]])  # (B, intents)
        if "lstm" in self.parts:
            hidden = self._recur(hidden, batch)
        classifier = self.head["classifier"] if "classifier" in self.parts else self.classifier
        return {"logits": _logits(classifier, hidden), **outputs}  # (R, C)

    def _of_batch(self, batch: Batch) -> Outputs:
        outputs = self.raw(batch)
        logits, labels = outputs["logits"], batch.labels.get("labels")
        losses: dict[str, Tensor] = {}
        if "intent" in batch.labels and "intent" in self.parts:
            losses["intent"] = F.cross_entropy(outputs["intent"], batch.labels["intent"], ignore_index=IGNORED, reduction="sum")
        if "crf" in self.parts:
            if labels is not None:
                steps, chain = self._chain(logits, batch)
                losses["labels"] = chain.loss(labels.index_select(0, steps))
            return Outputs(losses, outputs if self.training else self.decoded(outputs, batch))
        if labels is not None:
            smoothing = self.label_smoothing if self.training else 0.0
            losses["labels"] = _cross_entropy(logits, labels, self.class_weights, smoothing)
        return Outputs(losses, outputs)

    def decoded(self, outputs: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """The outputs of `raw`, with a CRF's best path and log marginals in place of its emissions."""
        if "crf" not in self.parts:
            return outputs
        steps, chain = self._chain(outputs["logits"], batch)
        path = torch.zeros(len(outputs["logits"]), dtype=torch.long, device=steps.device)
        path = path.index_copy(0, steps, chain.best_path())
        return {**outputs, "logits": outputs["logits"].index_copy(0, steps, chain.log_marginals()), "path": path}

    def _chain(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Chain]:
        """The rows that the CRF covers, all except a [CLS] that is read for the intent; and the CRF over them."""
        field = self.head["crf"]
        assert isinstance(field, LinearChain)
        if "intent" not in self.parts:
            return torch.arange(len(logits), device=logits.device), field.over(logits, batch.cu_rows, batch.max_rows)
        steps = batch.later_rows()
        cu_steps = batch.cu_rows - torch.arange(len(batch.cu_rows), device=logits.device)
        return steps, field.over(logits.index_select(0, steps), cu_steps, max(1, batch.max_rows - 1))

    def _recur(self, hidden: Tensor, batch: Batch) -> Tensor:
        """(R, H), for last4 (R, 4 H) -> (R, H): the LSTM, applied to each sequence separately.

        Its kernel takes the first row of each sequence, the longest sequence first, then all second rows, and so on. It is
        called directly, because nn.LSTM would read sizes from the device.
        """
        lengths, count = batch.cu_rows.diff(), len(hidden)
        places = lengths.argsort(descending=True, stable=True).argsort()
        begins, place = (torch.repeat_interleave(x, lengths, output_size=count) for x in (batch.cu_rows[:-1], places))
        order = ((torch.arange(count, device=hidden.device) - begins) * len(lengths) + place).argsort()
        sizes = (batch.row_counts[:, None] > np.arange(batch.max_rows)).sum(0)  # (T,) how many sequences have such a row
        lstm = self.head["lstm"]
        assert isinstance(lstm, nn.LSTM)
        start = hidden.new_zeros(2 * lstm.num_layers, int(sizes[0]), lstm.hidden_size)
        states, _, _ = torch.lstm(
            hidden.index_select(0, order),
            torch.from_numpy(sizes),
            (start, start),
            list(lstm.parameters()),
            has_biases=True,
            num_layers=lstm.num_layers,
            dropout=0.0,
            train=self.training,
            bidirectional=True,
        )
        return torch.empty_like(states).index_copy(0, order, states)


def _logits(classifier: nn.Module, hidden: Tensor) -> Tensor:
    """(..., C) in float32 or wider: in bf16 many logits would be equal, and chance would decide their order."""
    assert isinstance(classifier, nn.Linear)
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    return F.linear(hidden.to(dtype), classifier.weight.to(dtype), classifier.bias.to(dtype))


def _cross_entropy(logits: Tensor, labels: Tensor, class_weights: tuple[float, ...] | None, smoothing: float) -> Tensor:
    """The sum over (R,) targets, each weighted by its class; to be divided by the sum of these weights."""
    weight = None if class_weights is None else _on_device(class_weights, logits.dtype, logits.device)
    return F.cross_entropy(logits, labels, weight, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _on_device(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """These values, copied to a device once."""
    return torch.tensor(values, dtype=dtype, device=device)


def _grid(values: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """Ragged rows (N,) as a grid (rows, longest), padded with -inf, which a softmax ignores."""
    layout = Layout.of(offsets, longest, len(values), values.dtype)
    if layout.slots is not None:
        values = values.new_full((layout.num_lines * longest,), -torch.inf).index_copy(0, layout.slots, values)
    return values.view(layout.num_lines, longest)
