"""The interface of an update rule, such as AdamW: it gets whole trained tensors, their gradients and the learning rate.

A new optimizer is one file with an UpdateRule, and its name in optimizer.RULES and among the choices of `optimizer` in
TrainConfig and PretrainConfig.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bertkit.config import TrainConfig
from bertkit.training.loss_scale import LossScale

BLOCK = 2**18  # elements that a CPU converts or updates at once: their gradients in float32 stay in a core's cache


@dataclass(frozen=True)
class TrainedTensor:
    """A trained parameter.

    master: its value in float32 (or float64). working: the module's copy in another dtype; None: the module has the master.
    moments: what the rule remembers of earlier gradients, of the master's shape, 0 at first. decays: False for biases and
    LayerNorm. lr_scale: what its learning rate is multiplied by. is_matrix: whether it is a matrix of an encoder layer.
    """

    master: Tensor
    working: Tensor | None
    moments: tuple[Tensor, ...]
    decays: bool
    lr_scale: float
    is_matrix: bool


class UpdateRule(ABC):
    """An optimizer's formula. updates: the number made so far, including those before a resume.

    moments: the names of its moments in a checkpoint; matrix_moments: those of the encoder's matrices. elementwise: whether an
    element without gradients changes only by its own weight decay, a factor of 1 - learning_rate * weight_decay per step; rows
    of tokens that the data lacks then need no update. takes_sparse: whether `apply` takes sparse gradients, with
    each row once, in ascending order.
    """

    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    matrix_moments: ClassVar[tuple[str, ...]] = moments
    elementwise: ClassVar[bool]
    takes_sparse: ClassVar[bool] = False

    def __init__(self, tensors: Sequence[TrainedTensor], config: TrainConfig, *, updates: int) -> None:
        self.tensors, self.config, self.updates = tensors, config, updates

    def update(self, gradients: Sequence[Tensor], learning_rate: float, loss_scale: LossScale | None = None) -> Tensor:
        """Update all masters and working copies from complete gradients of any dtype; returns their norm before clipping.

        loss_scale: the scale of their loss; it may reject the gradients, and then nothing is updated.
        """
        gradients = [_coalesced(each) if each.is_sparse else each for each in gradients]
        norm = self._norm(gradients)
        if loss_scale is None:
            divisor = clipping_divisor(norm, self.config.max_grad_norm)
        else:
            scale = loss_scale.scale
            norm = norm / scale
            if not loss_scale.admits(norm):
                return norm
            clipping = clipping_divisor(norm, self.config.max_grad_norm)
            divisor = norm.new_tensor(scale) if clipping is None else clipping * scale
        self.updates += 1
        self.apply(gradients, learning_rate, divisor)
        return norm

    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, in the masters' dtype."""
        dtype = self.tensors[0].master.dtype
        if gradients[0].device.type != "cpu":
            return norm_by_few_kernels(gradients, dtype)
        flat = ((each._values() if each.is_sparse else each).reshape(-1) for each in gradients)
        return total_norm(part.to(dtype) for each in flat for part in each.split(BLOCK))

    @abstractmethod
    def apply(self, gradients: Sequence[Tensor], learning_rate: float, divisor: Tensor | None) -> None:
        """Update all tensors from gradients that must still be divided by `divisor`, if there is one."""


def _coalesced(gradient: Tensor) -> Tensor:
    """A sparse gradient of a matrix on a CPU with each row once, in ascending order.

    Values of the same row are added up by the kernel of dense gradients; torch's coalesce has another order.
    """
    rows, places = np.unique(gradient._indices()[0].numpy(), return_inverse=True)
    values = torch.ops.aten.embedding_dense_backward(gradient._values(), torch.from_numpy(places), len(rows), -1, False)
    indices = torch.from_numpy(rows)[None]
    return torch.sparse_coo_tensor(indices, values, gradient.shape, is_coalesced=True, check_invariants=False)


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The norm of flat tensors together; on a CPU, a dot product is faster, and nearer to the truth, than torch's norm."""
    return torch.stack([torch.dot(tensor, tensor) for tensor in tensors]).sum().sqrt()


def norm_by_few_kernels(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The norm of tensors of any dtype and shape together, in `dtype`; on a GPU, starting a kernel for each tensor would take
    longer than the sums."""
    return torch.stack(torch._foreach_norm(list(tensors), dtype=dtype)).norm()


def clipping_divisor(norm: Tensor, max_norm: float) -> Tensor | None:
    """The divisor that clips gradients of this norm to max_norm; None if max_norm is 0, for no clipping."""
    return ((norm + 1e-6) / max_norm).clamp(min=1.0) if max_norm else None
