"""Dropout from one seeded stream of random bits, fast on a CPU.

A model's dropout modules share one stream. The training loop seeds it by (seed, step, micro-step, rank) before each forward
pass, so a step draws the same bits whether or not the run was resumed. On a CPU, 16 random bits decide each element (8 would
turn p = 0.1 into 0.1016), and the comparison writes the mask directly in the working dtype; torch's own dropout takes about
twenty times as long there. On a GPU, torch's attention kernels draw their own dropout, in steps of 1/256: 0.1016 for p = 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class DropoutStream:
    """The random bits of all dropout modules of one model."""

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, *key: int) -> None:
        """Restart the stream; the numbers of `key` decide the bits."""
        self._sequence = np.random.SeedSequence(key)
        self._bits = np.random.SFC64(self._sequence)
        self._generators: dict[torch.device, torch.Generator] = {}

    def _state(self) -> tuple[Any, dict[torch.device, Tensor]]:
        return self._bits.state, {device: generator.get_state() for device, generator in self._generators.items()}

    def _restore(self, state: tuple[Any, dict[torch.device, Tensor]]) -> None:
        self._bits.state, generators = state
        for device in [*self._generators]:
            if device in generators:
                self._generators[device].set_state(generators[device])
            else:
                del self._generators[device]  # made from the seed when it is needed

    def replayed(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The context_fn for torch's checkpoint, with which a repeated forward pass draws the same bits again."""
        begin = self._state()

        @contextmanager
        def again() -> Iterator[None]:
            now = self._state()
            self._restore(begin)
            try:
                yield
            finally:
                self._restore(now)

        return nullcontext(), again()

    def keep_mask(self, shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
        """A tensor of `like`'s dtype and device: 0 with probability p, else 1 / (1 - p); all 0 for p = 1."""
        if like.device.type == "cpu":
            count = int(np.prod(shape))
            kept = 2**16 - round(p * 2**16)
            bits = torch.from_numpy(self._bits.random_raw(-(-count // 4)).view(np.int16)[:count].reshape(shape))
            mask = torch.empty(shape, dtype=like.dtype)
            torch.ge(bits, 2**15 - kept, out=mask)
            return mask.mul_(2**16 / kept if kept else 0.0)
        if like.device.type == "meta":  # shapes alone: nothing is drawn
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        mask = torch.empty(shape, dtype=like.dtype, device=like.device)
        return mask.bernoulli_(1 - p, generator=self.generator(like.device)).mul_(1 / (1 - p) if p < 1 else 0.0)

    def generator(self, device: torch.device) -> torch.Generator:
        """torch's generator for a device, seeded on first use; for a GPU, the one that fused kernels draw from."""
        if device not in self._generators:
            own = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.Generator(device)
            own.manual_seed(int(self._sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))
            self._generators[device] = own
        return self._generators[device]


class Dropout(nn.Module):
    """Zeroes elements with probability p while training, and scales the others by 1 / (1 - p)."""

    def __init__(self, p: float, stream: DropoutStream) -> None:
        super().__init__()
        self.p, self.stream = p, stream

    @property
    def active(self) -> bool:
        return self.training and self.p > 0

    def mask(self, x: Tensor) -> Tensor | None:
        """The mask to multiply x by; None if nothing is dropped."""
        return self.stream.keep_mask(x.shape, self.p, x) if self.active else None

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask(x)
        return x if mask is None else x * mask


def seed_dropout(model: nn.Module, *key: int) -> None:
    """Restart the stream of all dropout modules of a model."""
    for stream in {module.stream for module in model.modules() if isinstance(module, Dropout)}:
        stream.seed(*key)


def set_dropout(model: nn.Module, p: float | None, attention: float | None = None) -> None:
    """Set the probability of all dropout modules of a model; attention: another one for attention. None changes nothing."""
    for name, module in model.named_modules():
        if isinstance(module, Dropout):
            chosen = attention if attention is not None and name.endswith("attention.self.dropout") else p
            module.p = module.p if chosen is None else chosen
