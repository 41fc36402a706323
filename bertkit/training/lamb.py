"""LAMB (You et al., 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2).

Adam's update with decoupled weight decay, scaled for each tensor by its trust ratio: the norm of the tensor over that of the
update, with phi(z) = z. Details that the paper leaves open follow Google's code (google-research/albert, lamb_optimizer.py): a
ratio with a norm of 0 counts as 1, and biases and LayerNorm get neither weight decay nor a trust ratio.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bertkit.training.update_rule import UpdateRule, total_norm


class Lamb(UpdateRule):
    """LAMB; a tensor's norms cover all its rows, so none may be left out."""

    elementwise = False

    def apply(self, gradients: Sequence[Tensor], learning_rate: float, divisor: Tensor | None) -> None:
        config, beta1, beta2 = self.config, self.config.adam_beta1, self.config.adam_beta2
        corrections = (1 - beta1**self.updates, 1 - beta2**self.updates) if config.adam_bias_correction else (1.0, 1.0)
        for tensor, gradient in zip(self.tensors, gradients, strict=True):
            master, (mean, square) = tensor.master, tensor.moments
            gradient = gradient.to(master.dtype)
            if divisor is not None:
                gradient = gradient / divisor
            mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            update = (mean / corrections[0]).div_((square / corrections[1]).sqrt_().add_(config.adam_epsilon))
            if tensor.decays:
                update.add_(master, alpha=config.weight_decay)
                update.mul_(trust_ratio(master, update))
            master.sub_(update, alpha=learning_rate * tensor.lr_scale)
            if tensor.working is not None:
                tensor.working.copy_(master)


def trust_ratio(master: Tensor, update: Tensor) -> Tensor:
    """The norm of a tensor over that of its update; 1 where either is 0."""
    size, change = (total_norm([values.flatten()]) for values in (master, update))
    return torch.where((size > 0) & (change > 0), size / change, 1.0)
