"""BERT's pre-training heads: masked tokens and the relation of two segments (Devlin et al., 2019, section 3.1), and the next
token, as in the paper's left-to-right ablation (section 5.1).

Dimensions as in bert.py, plus M rows whose token is predicted and V vocab_size. Only these rows get vocabulary scores, in
chunks, and the forward pass computes the gradient of the cross-entropy: the float32 matrix of tokens times vocabulary never
exceeds a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.batch import Batch, Outputs, pack
from bertkit.model.bert import ACTIVATIONS
from bertkit.model.config import BertConfig
from bertkit.model.heads import Head
from bertkit.model.layout import round_rows

CHUNK = 2**20  # vocabulary scores that a CPU computes at once: 4 MB in float32, which fit into the cache
BLOCK = 2**24  # gradients of scores that a CPU multiplies at once: 32 MB in bfloat16
OF_A_GPU = 2**27  # both of these on a GPU: half a gigabyte in float32; fewer rows would not keep it busy
# The factor on the scores' gradients in float16, so that fewer round to 0. The loss scale is applied later, and sums over
# thousands of rows must stay below 65,504.
ENLARGED = 16.0


class BertPredictionHeadTransform(nn.Module):
    """LayerNorm(activation(dense(hidden)))"""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden)))


class BertLMPredictionHead(nn.Module):
    """Vocabulary scores: the transform, then a decoder tied to the word embeddings, with a bias of its own."""

    def __init__(self, config: BertConfig, embeddings: nn.Embedding) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.decoder.weight = embeddings.weight
        self.bias = self.decoder.bias  # transformers has it under both names

    def forward(self, hidden: Tensor) -> Tensor:
        """(M, H) -> (M, V)"""
        return self.decoder(self.transform(hidden))

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The sum of the cross-entropies of (M, H) at targets (M,)."""
        return _LinearCrossEntropy.apply(self.transform(round_rows(hidden)), self.decoder.weight, self.decoder.bias, targets)


class BertPreTrainingHeads(nn.Module):
    def __init__(self, config: BertConfig, embeddings: nn.Embedding, *, pairs: bool) -> None:
        super().__init__()
        self.predictions = BertLMPredictionHead(config, embeddings)
        if pairs:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)


class LanguageModel(Head):
    """Predicts tokens of the vocabulary (loss term `term`) and, with `pairs`, one of two labels for a pair of segments.

    The logits for padded input are `term`, (B, T, V), 0 where nothing is attended, and "nsp", (B, 2), as in transformers.
    """

    term: str = "mlm"
    pairs: bool = False

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=self.pairs)
        self.bert.embeddings.sparse_gradient = True  # which autograd adds to the decoder's, a dense one
        self.cls = BertPreTrainingHeads(config, self.bert.embeddings.word_embeddings, pairs=self.pairs)

    def _of_padded(self, input_ids: Tensor, attention_mask: Tensor | None, segments: Tensor | None) -> dict[str, Tensor]:
        batch, attended = pack(input_ids, attention_mask, segments)
        hidden = self.bert.encode(batch)  # (N, H)
        scores = self.cls.predictions(hidden)
        logits = {self.term: scores.new_zeros(*attended.shape, scores.shape[-1]).masked_scatter(attended[..., None], scores)}
        if self.pairs:
            logits["nsp"] = self._pair_logits(hidden[batch.cu_seqlens[:-1]])
        return logits

    def raw(self, batch: Batch) -> dict[str, Tensor]:
        """(R, V) vocabulary scores."""
        return {"logits": self.cls.predictions(self.bert.encode(batch))}

    def _pair_logits(self, first: Tensor) -> Tensor:
        scores = self.cls.seq_relationship(self.bert.pool(first))
        return scores.to(torch.promote_types(scores.dtype, torch.float32))  # (B, 2)

    def _of_batch(self, batch: Batch) -> Outputs:
        """The batch names the rows whose token is predicted and, if sequences are pairs, the [CLS] of each.

        labels: the right tokens under `term`, the labels of pairs under any other name. In evaluation the logits of `term` are
        (M, 2): the log-probability of the right token, and whether it is the most likely one.
        """
        hidden = self.bert.encode(batch)  # (R, H)
        losses: dict[str, Tensor] = {}
        logits: dict[str, Tensor] = {}
        if self.pairs:
            (term,) = batch.labels.keys() - {self.term}
            firsts = batch.cu_rows[:-1]
            logits[term] = self._pair_logits(hidden[firsts])
            losses[term] = F.cross_entropy(logits[term], batch.labels[term], reduction="sum")
            hidden = hidden.index_select(0, batch.later_rows())  # (M, H)
        targets = batch.labels[self.term]
        if self.training:
            losses[self.term] = self.cls.predictions.loss(hidden, targets)
        else:
            logits[self.term] = self._scored(hidden, targets)
            losses[self.term] = -logits[self.term][:, 0].sum()
        return Outputs(losses, logits)

    def likeliest(self, batch: Batch, k: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities (R, k) and ids (R, k) of the k most likely tokens at each row that the batch reads.

        ids: the candidates, the ids of real tokens; a padded vocabulary has others too.
        """
        chunks = []
        states = self.bert.encode(batch)
        for rows in states.split(_chunk_rows(self.config.vocab_size, states.device)):
            chunks.append(likeliest(self.cls.predictions(rows), k, ids))
        probabilities, tokens = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        return probabilities, tokens

    def _scored(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(M, 2): the log-probability of each target, and 1 if it is the most likely token; ties go to the smallest id."""
        chunks = [hidden.new_zeros(0, 2, dtype=torch.float32)]
        size = _chunk_rows(self.config.vocab_size, hidden.device)
        for rows, right_tokens in zip(hidden.split(size), targets.split(size), strict=True):
            scores = self.cls.predictions(rows).float()  # (m, V)
            right = F.log_softmax(scores, dim=-1).gather(1, right_tokens[:, None])[:, 0]
            chunks.append(torch.stack([right, (scores.argmax(dim=-1) == right_tokens).float()], dim=1))
        return torch.cat(chunks)


class BertForPreTraining(LanguageModel):
    """Masked tokens (loss term "mlm") and a label for each pair of segments (the objective's own loss term)."""

    pairs = True


class BertForMaskedLM(LanguageModel):
    """Only masked tokens: loss term "mlm". There is no pooler."""


class BertLMHeadModel(LanguageModel):
    """The next token at each position, with is_decoder in the config: loss term "lm". There is no pooler."""

    term = "lm"


def likeliest(scores: Tensor, k: int, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The k most probable tokens among `ids` by vocabulary scores (M, V): probabilities and ids, (M, k)."""
    top = scores.float().softmax(dim=-1)[:, ids].topk(min(k, len(ids)))
    return top.values, ids[top.indices]


def _chunk_rows(vocab_size: int, device: torch.device) -> int:
    return max(1, (CHUNK if device.type == "cpu" else OF_A_GPU) // vocab_size)


class _LinearCrossEntropy(torch.autograd.Function):
    """sum of cross_entropy(hidden @ weight.T + bias, targets), with the gradients computed in the forward pass.

    Rows of `hidden` after the last target are padding: their gradients are 0.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        loss = hidden.new_zeros((), dtype=exact)
        to_hidden = torch.empty_like(hidden)
        to_weight: Tensor | None = None
        to_bias = torch.zeros_like(bias, dtype=exact)
        most = BLOCK if hidden.device.type == "cpu" else OF_A_GPU
        enlarged = ENLARGED if hidden.dtype == torch.float16 else 1.0
        blocks = max(1, -(-len(hidden) * len(weight) // most))  # of equally many rows
        begin = 0
        for rows, to_rows in zip(hidden.tensor_split(blocks), to_hidden.tensor_split(blocks), strict=True):
            here = targets[begin : begin + len(rows)]
            gradient = rows.new_empty(len(rows), len(weight))  # of the scores
            gradient[len(here) :] = 0
            size = _chunk_rows(len(weight), hidden.device)
            for chunk, right, into in zip(rows.split(size), here.split(size), gradient.split(size), strict=False):
                scores = torch.addmm(bias, chunk[: len(right)], weight.T).log_softmax(dim=-1, dtype=exact)  # (m, V)
                loss -= scores.gather(1, right[:, None]).sum()
                scores.exp_().scatter_add_(1, right[:, None], scores.new_full((len(right), 1), -1.0))
                to_bias += scores.sum(dim=0)
                into[: len(right)] = scores if enlarged == 1.0 else scores.mul_(enlarged)
            torch.mm(gradient, weight, out=to_rows)
            of_block = gradient.T @ rows
            to_weight = of_block if to_weight is None else to_weight.to(exact).add_(of_block)
            begin += len(rows)
        assert to_weight is not None
        ctx.gradients, ctx.enlarged = (to_hidden, to_weight.to(weight.dtype), to_bias), enlarged
        ctx.bias_dtype = bias.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        (factor,) = grad
        (to_hidden, to_weight, to_bias), ctx.gradients = ctx.gradients, None  # scaled in place, so backward can run only once
        grad_scale = factor / ctx.enlarged
        return to_hidden.mul_(grad_scale), to_weight.mul_(grad_scale), to_bias.mul_(factor).to(ctx.bias_dtype), None
