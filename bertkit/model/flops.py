"""The number of floating-point operations that the tokens of a training step need.

Linear layers and attention over real tokens count, forward and backward; a multiplication and an addition are two operations.
Padding, recomputed activations and element-wise work do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from bertkit.model.batch import Batch
from bertkit.model.bert import BertLayer, BertModel
from bertkit.model.language_model import LanguageModel


def flop_counter(module: nn.Module, *, attention: bool = True) -> Callable[[Batch], float]:
    """A function that counts a batch's operations from the shapes of the module's parameters; 0 if it has no BERT layers.

    attention: whether to count attention's products, which grow with the square of a sequence's length.
    """
    bert = next((part for part in module.modules() if isinstance(part, BertModel)), None)
    if bert is None or not bert.encoder.layer:
        return lambda batch: 0.0
    *lower, last = (layer for layer in bert.encoder.layer if isinstance(layer, BertLayer))
    of_pair = 4 * bert.config.hidden_size * attention  # per query and key: the score, and the weighted value
    keys = [last.attention.self.key, last.attention.self.value]
    of_token = sum(_linear(layer.modules()) for layer in lower) + _linear(keys)  # the last layer reads all tokens,
    of_row = _linear(last.modules()) - _linear(keys)  # and computes the rows that the head reads
    token_pairs, row_pairs = sum(map(_passes, lower)) * of_pair, _passes(last) * of_pair
    of_sequence = _linear(bert.pooler.modules()) if bert.pooler is not None else 0
    of_output = _linear(module.modules()) - _linear(bert.modules())
    term = module.term if isinstance(module, LanguageModel) else None

    def count(batch: Batch) -> float:
        tokens, rows = batch.token_counts, batch.row_counts
        outputs = rows.sum() if term is None else len(batch.labels[term])
        linear = of_token * tokens.sum() + of_row * rows.sum() + of_sequence * len(tokens) + of_output * outputs
        return float(linear + token_pairs * (tokens * tokens).sum() + row_pairs * (rows * tokens).sum())

    return count


def _passes(part: nn.Module) -> int:
    """3 for a trained part: forward, and backward to its input and its weights; 1 if frozen, as then all below it is too."""
    return 3 if any(parameter.requires_grad for parameter in part.parameters()) else 1


def _linear(parts: Iterable[nn.Module]) -> int:
    """The operations of the linear layers among the parts, for one row."""
    return sum(2 * part.weight.numel() * _passes(part) for part in parts if isinstance(part, nn.Linear))
