"""AdamW (Loshchilov and Hutter, 2019) with torch's fused kernel.

On a CPU, tensors are updated in blocks, so that gradients, masters and moments are read from memory only once. A sparse
gradient, of a few rows of a matrix, is made dense there, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from bertkit.config import TrainConfig
from bertkit.training.update_rule import BLOCK, TrainedTensor, UpdateRule


@dataclass
class _Block:
    """Tensors, or flat parts of them, that share weight decay and learning rate and are updated at once."""

    decay: float
    lr_scale: float
    parts: list[tuple[int, slice]] = field(default_factory=list)  # which tensor, and which of its elements
    masters: list[Tensor] = field(default_factory=list)
    moments: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))
    rounded: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))  # working copies, and their masters

    @property
    def size(self) -> int:
        return sum(master.numel() for master in self.masters)

    def add(self, tensor: TrainedTensor, index: int, part: slice) -> None:
        self.parts.append((index, part))
        master = tensor.master.view(-1)[part]
        self.masters.append(master)
        for moments, moment in zip(self.moments, tensor.moments, strict=True):
            moments.append(moment.view(-1)[part])
        if tensor.working is not None:
            self.rounded[0].append(tensor.working.view(-1)[part])
            self.rounded[1].append(master)


class AdamW(UpdateRule):
    """AdamW, with or without the correction of the moments' bias."""

    elementwise = True
    takes_sparse = True

    def __init__(self, tensors: Sequence[TrainedTensor], config: TrainConfig, *, updates: int) -> None:
        super().__init__(tensors, config, updates=updates)
        first = tensors[0].master
        on_cpu = first.device.type == "cpu"
        self.fused = first.device.type in ("cpu", "cuda")
        # on other devices, starting a kernel costs more than memory traffic: one block per setting
        self.blocks = _blocks(tensors, config, BLOCK if on_cpu else sum(tensor.master.numel() for tensor in tensors))
        self.scratch = torch.empty(max(block.size for block in self.blocks), dtype=first.dtype) if on_cpu else None

    def apply(self, gradients: Sequence[Tensor], learning_rate: float, divisor: Tensor | None) -> None:
        flat = [each if each.is_sparse else each.reshape(-1) for each in gradients]
        divisor = None if divisor is None else divisor.to(torch.float32)  # as the kernel takes it
        for block in self.blocks:
            self._update(block, self._gradients(block, flat), learning_rate, divisor)

    def _gradients(self, block: _Block, flat: list[Tensor]) -> list[Tensor]:
        """The gradients of a block, dense and in the masters' dtype; on a CPU, copies are in memory that is reused."""
        if self.scratch is None:
            gradients = [flat[index][part] for index, part in block.parts]
            if all(gradient.dtype == block.masters[0].dtype for gradient in gradients):
                return gradients
            copies = [torch.empty_like(master) for master in block.masters]
            torch._foreach_copy_(copies, gradients)  # on a GPU, a few kernels for all of them
            return copies
        found, used = [], 0
        for index, part in block.parts:
            gradient, free = flat[index], self.scratch[used : used + part.stop - part.start]
            if gradient.is_sparse:
                _fill(free, gradient, part)
            elif gradient.dtype != free.dtype:
                free.copy_(gradient[part])
            else:
                free = gradient[part]
            found.append(free)
            used += len(free)
        return found

    def _update(self, block: _Block, gradients: list[Tensor], learning_rate: float, divisor: Tensor | None) -> None:
        if divisor is not None and not self.fused:  # a fused kernel divides while it updates
            gradients = list(torch._foreach_div(gradients, divisor))
        beta1, beta2 = self.config.adam_beta1, self.config.adam_beta2
        # Undoes torch's division of both moments, to get the update without bias correction from the same kernel.
        first, second = 1.0, 1.0
        if not self.config.adam_bias_correction:
            first, second = 1 - beta1**self.updates, math.sqrt(1 - beta2**self.updates)
        settings: dict[str, Any] = {
            "lr": learning_rate * block.lr_scale * first / second,
            "beta1": beta1,
            "beta2": beta2,
            "weight_decay": block.decay * second / first,
            "eps": self.config.adam_epsilon / second,
            "amsgrad": False,
            "maximize": False,
        }
        if self.fused:  # without torch's function around the kernel, which takes a tenth of an update's time
            steps = [torch.full((), float(self.updates), device=block.masters[0].device)] * len(gradients)
            torch._fused_adamw_(block.masters, gradients, *block.moments, [], steps, grad_scale=divisor, **settings)
        else:
            steps = [torch.full((), self.updates - 1.0) for _ in gradients]
            adamw(block.masters, gradients, *block.moments, [], steps, **settings)
        if block.rounded[0]:
            torch._foreach_copy_(*block.rounded)


def _fill(out: Tensor, gradient: Tensor, part: slice) -> None:
    """Write a part of a coalesced gradient, made dense and flat, to out; it consists of whole rows."""
    width = gradient.shape[1]
    rows, first = gradient._indices()[0], part.start // width
    begin, end = np.searchsorted(rows.numpy(), (first, part.stop // width))
    out.zero_().view(-1, width).index_copy_(0, rows[begin:end] - first, gradient._values()[begin:end].to(out.dtype))


def _blocks(tensors: Sequence[TrainedTensor], config: TrainConfig, most: int) -> list[_Block]:
    """Blocks of tensors with equal settings, of at most `most` elements or one row; larger tensors are split between rows."""
    blocks: list[_Block] = []
    open_blocks: dict[tuple[float, float], _Block] = {}
    for index, tensor in enumerate(tensors):
        setting = (config.weight_decay if tensor.decays else 0.0, tensor.lr_scale)
        row = math.prod(tensor.master.shape[1:]) or 1  # elements
        size = max(1, most // row) * row
        for start in range(0, tensor.master.numel(), size):
            part = slice(start, min(start + size, tensor.master.numel()))
            block = open_blocks.get(setting)
            if block is None or block.size + part.stop - part.start > most:
                block = open_blocks[setting] = _Block(*setting)
                blocks.append(block)
            block.add(tensor, index, part)
    return blocks
