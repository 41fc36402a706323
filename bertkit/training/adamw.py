"""AdamW (Loshchilov and Hutter, 2019) with torch's fused kernel.

On a CPU, tensors are updated in blocks, so that gradients, masters and moments are read from memory only once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from bertkit.config import TrainConfig
from bertkit.training.update_rule import TrainedTensor, UpdateRule, total_norm

BLOCK = 2**18  # elements that a CPU updates at once: their gradients in float32 stay in a core's cache


@dataclass
class _Block:
    """Tensors, or flat parts of them, that share weight decay and learning rate and are updated at once."""

    decay: float
    lr_scale: float
    parts: list[tuple[int, slice]] = field(default_factory=list)  # which tensor, and which of its elements
    masters: list[Tensor] = field(default_factory=list)
    moments: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))
    steps: list[Tensor] = field(default_factory=list)
    rounded: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))  # working copies, and their masters

    @property
    def size(self) -> int:
        return sum(master.numel() for master in self.masters)

    def add(self, tensor: TrainedTensor, index: int, part: slice, updates: int) -> None:
        self.parts.append((index, part))
        master = tensor.master.view(-1)[part]
        self.masters.append(master)
        for moments, moment in zip(self.moments, tensor.moments, strict=True):
            moments.append(moment.view(-1)[part])
        self.steps.append(torch.full((), float(updates), device=master.device))
        if tensor.working is not None:
            self.rounded[0].append(tensor.working.view(-1)[part])
            self.rounded[1].append(master)


class AdamW(UpdateRule):
    """AdamW, with or without the correction of the moments' bias."""

    elementwise = True

    def __init__(self, tensors: Sequence[TrainedTensor], config: TrainConfig, *, updates: int) -> None:
        super().__init__(tensors, config, updates=updates)
        first = tensors[0].master
        on_cpu = first.device.type == "cpu"
        self.fused = first.device.type in ("cpu", "cuda")
        # on other devices, starting a kernel costs more than memory traffic: one block per setting
        self.blocks = _blocks(tensors, config, updates, BLOCK if on_cpu else sum(tensor.master.numel() for tensor in tensors))
        rounded = any(tensor.working is not None for tensor in tensors)
        self.scratch = torch.empty(BLOCK, dtype=first.dtype) if on_cpu and rounded else None

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        if gradients[0].device.type != "cpu":
            return super().norm(gradients)
        flat = [gradient.reshape(-1) for gradient in gradients]
        return total_norm(part for block in self.blocks for part in self._gradients(block, flat))

    def apply(self, gradients: Sequence[Tensor], learning_rate: float, divisor: Tensor | None) -> None:
        flat = [gradient.reshape(-1) for gradient in gradients]
        divisor = None if divisor is None else divisor.to(torch.float32)  # as the kernel takes it
        for block in self.blocks:
            self._update(block, self._gradients(block, flat), learning_rate, divisor)

    def _gradients(self, block: _Block, flat: list[Tensor]) -> list[Tensor]:
        """The gradients of a block in the masters' dtype; on a CPU, in memory that the next block reuses."""
        gradients = [flat[index][part] for index, part in block.parts]
        differ = [gradient.dtype != master.dtype for gradient, master in zip(gradients, block.masters, strict=True)]
        if self.scratch is not None:
            used = 0
            for index, gradient in enumerate(gradients):
                if differ[index]:
                    gradients[index] = self.scratch[used : used + len(gradient)].copy_(gradient)
                    used += len(gradient)
        elif any(differ):
            copies = [torch.empty_like(master) for master in block.masters]
            torch._foreach_copy_(copies, gradients)  # on a GPU, a few kernels for all of them
            return copies
        return gradients

    def _update(self, block: _Block, gradients: list[Tensor], learning_rate: float, divisor: Tensor | None) -> None:
        if divisor is not None and not self.fused:  # a fused kernel divides while it updates
            gradients = list(torch._foreach_div(gradients, divisor))
        beta1, beta2 = self.config.adam_beta1, self.config.adam_beta2
        # Undoes torch's division of both moments, to get the update without bias correction from the same kernel.
        first, second = 1.0, 1.0
        if not self.config.adam_bias_correction:
            first, second = 1 - beta1**self.updates, math.sqrt(1 - beta2**self.updates)
        adamw(
            block.masters,
            gradients,
            *block.moments,
            [],
            block.steps,
            fused=self.fused,
            grad_scale=divisor if self.fused else None,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=learning_rate * block.lr_scale * first / second,
            weight_decay=block.decay * second / first,
            eps=self.config.adam_epsilon / second,
            maximize=False,
        )
        if block.rounded[0]:
            torch._foreach_copy_(*block.rounded)


def _blocks(tensors: Sequence[TrainedTensor], config: TrainConfig, updates: int, most: int) -> list[_Block]:
    """The tensors in blocks of at most `most` elements with the same settings; a larger tensor is split."""
    blocks: list[_Block] = []
    open_blocks: dict[tuple[float, float], _Block] = {}
    for index, tensor in enumerate(tensors):
        setting = (config.weight_decay if tensor.decays else 0.0, tensor.lr_scale)
        for start in range(0, tensor.master.numel(), most):
            part = slice(start, min(start + most, tensor.master.numel()))
            block = open_blocks.get(setting)
            if block is None or block.size + part.stop - part.start > most:
                block = open_blocks[setting] = _Block(*setting)
                blocks.append(block)
            block.add(tensor, index, part, updates)
    return blocks
