"""Train only the embedding rows of tokens that the data has.

A fine-tuning set uses a third or less of BERT's word pieces. The rows of the others get no gradient: an elementwise rule, such
as AdamW, would only decay them, at the cost of as much memory traffic as the whole encoder. So they are left out of the module
during training, and decayed when the model is saved. The result is the same, but for fp16: they decay also for steps whose
update was skipped because gradients overflowed. Other rules train all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.config import TrainConfig
from bertkit.features import Features, Growing, Ragged, blocks_of
from bertkit.model.layerwise import learning_rate_scales
from bertkit.training.optimizer import RULES, learning_rate_of

_EMBEDDING = "bert.embeddings.word_embeddings"


class UsedVocabulary:
    """The word pieces that some features use, renumbered in their old order; the rows of all others are set aside."""

    def __init__(self, features: Iterable[Features], module: nn.Module, config: TrainConfig) -> None:
        """Take the unused rows out of the module, which then takes the token numbers that `narrow` gives."""
        embedding = module.get_submodule(_EMBEDDING)
        assert isinstance(embedding, nn.Embedding)
        self.config, self.module = config, module
        self.full = embedding.weight.detach()  # (V, H)
        if RULES[config.optimizer].elementwise:
            used = np.zeros(len(self.full), dtype=bool)
            for values in chain.from_iterable(blocks_of(part.input_ids.values) for part in features):
                used[values] = True
            self.tokens = np.flatnonzero(used)
        else:  # other rules update whole matrices, so rows without gradients matter too
            self.tokens = np.arange(len(self.full))
        padding = np.flatnonzero(self.tokens == embedding.padding_idx)
        narrowed = nn.Embedding.from_pretrained(
            self.full[torch.from_numpy(self.tokens)].clone(),
            freeze=False,
            padding_idx=int(padding[0]) if len(padding) else None,
        )
        module.set_submodule(_EMBEDDING, narrowed)

    def narrow(self, features: Features) -> Features:
        """The same features in the new token numbers."""
        narrowed = Growing(np.int32)
        for values in blocks_of(features.input_ids.values):
            narrowed.add(np.searchsorted(self.tokens, values))
        return replace(features, input_ids=Ragged(narrowed.array(), features.input_ids.offsets))

    def widen(self, state_dict: dict[str, Tensor], *, step: int, total_steps: int) -> dict[str, Tensor]:
        """The state dict with all rows, after `step` steps; the unused ones with only weight decay applied."""
        name, config = f"{_EMBEDDING}.weight", self.config
        names = dict(self.module.named_parameters())
        decay = config.weight_decay * learning_rate_scales(names, config)[name] if names[name].requires_grad else 0.0
        remaining = math.prod(1 - decay * learning_rate_of(s, config, total_steps) for s in range(step))
        weight = self.full * remaining
        weight[torch.from_numpy(self.tokens)] = state_dict[name].to("cpu", weight.dtype)
        return {**state_dict, name: weight}

    def narrow_weights(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `widen`."""
        name = f"{_EMBEDDING}.weight"
        return {**state_dict, name: state_dict[name][torch.from_numpy(self.tokens)]}
