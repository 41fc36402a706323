"""Muon (Jordan et al., 2024) for the matrices of the encoder's layers, AdamW for everything else.

Each matrix is updated along its orthogonalized momentum. As in Liu et al. (2025), "Muon is Scalable for LLM Training", section
2.2, the step is scaled to the size of AdamW's, so that both use the same learning rate and weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bertkit.config import TrainConfig
from bertkit.training.adamw import AdamW
from bertkit.training.update_rule import TrainedTensor, UpdateRule

MOMENTUM = 0.95
ITERATIONS, QUINTIC = 5, (3.4445, -4.7750, 2.0315)  # of Newton and Schulz, with Jordan's coefficients


class Muon(UpdateRule):
    """Muon with Nesterov momentum; matrices are orthogonalized in the working dtype."""

    matrix_moments = ("momentum_buffer",)
    elementwise = False

    def __init__(self, tensors: Sequence[TrainedTensor], config: TrainConfig, *, updates: int) -> None:
        super().__init__(tensors, config, updates=updates)
        self.others = AdamW([tensor for tensor in tensors if not tensor.is_matrix], config, updates=updates)

    def apply(self, gradients: Sequence[Tensor], learning_rate: float, divisor: Tensor | None) -> None:
        pairs = list(zip(self.tensors, gradients, strict=True))
        self.others.updates = self.updates
        self.others.apply([gradient for tensor, gradient in pairs if not tensor.is_matrix], learning_rate, divisor)
        for tensor, gradient in pairs:
            if not tensor.is_matrix:
                continue
            master, (momentum,), rate = tensor.master, tensor.moments, learning_rate * tensor.lr_scale
            gradient = gradient.to(master.dtype)
            if divisor is not None:
                gradient = gradient / divisor
            momentum.lerp_(gradient, 1 - MOMENTUM)
            dtype = (master if tensor.working is None else tensor.working).dtype
            update = orthogonalized(gradient.lerp(momentum, MOMENTUM), dtype)
            master.mul_(1 - rate * self.config.weight_decay)
            master.add_(update, alpha=-0.2 * math.sqrt(max(master.shape)) * rate)
            if tensor.working is not None:
                tensor.working.copy_(master)


def orthogonalized(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """U S V' of a matrix U D V', with S near 1, by five iterations of Newton and Schulz (Jordan et al., 2024) in this dtype."""
    wide = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    wide = wide if dtype == torch.float16 else wide.to(dtype)  # fp16 can hold a gradient only once it is normalized
    wide = (wide / wide.norm().clamp(min=1e-7)).to(dtype)
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if matrix.size(0) > matrix.size(1) else wide
