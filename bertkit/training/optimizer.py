"""AdamW over float32 masters, its parameter groups, and the learning rate of a step.

The module's parameters are in the working dtype; the masters are the truth: the optimizer updates them and copies them
back, and every save writes them. With a float32 (or float64) module the parameters are their own masters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from bertkit.config import TrainConfig
from bertkit.model.layerwise import learning_rate_scales


def learning_rate_at(step: int, *, peak: float, warmup_steps: int, total_steps: int, schedule: str = "linear") -> float:
    """The learning rate of optimizer step `step` (from 0): linear rise to `peak`, then a fall to 0, linear or as half a cosine,
    or none ("constant").

    As in BERT's own code the first step of a warm-up has rate 0 (Devlin et al., 2019, appendix A.2).
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    left = max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
    return peak * (0.5 - 0.5 * math.cos(math.pi * left) if schedule == "cosine" else left)


def learning_rate_of(step: int, config: TrainConfig, total_steps: int) -> float:
    """The learning rate that these settings mean for a step of a run."""
    return learning_rate_at(
        step,
        peak=config.learning_rate,
        warmup_steps=math.ceil(config.warmup_ratio * total_steps),
        total_steps=total_steps,
        schedule=config.schedule,
    )


def decays(name: str) -> bool:
    """Whether a parameter takes weight decay: not biases, not LayerNorm (Devlin et al., 2019, their optimization.py).

    Nor the scores of a CRF, which are like biases.
    """
    return not (name.rpartition(".")[2].startswith("bias") or "LayerNorm" in name or ".crf." in name)


BLOCK = 2**22  # elements that a CPU updates at once: their gradients, masters and moments are read from memory once


@dataclass
class _Block:
    """Parameters, or parts of them, that are updated at once, by one weight decay and learning rate."""

    decay: float
    scale: float
    places: list[tuple[str, slice]] = field(default_factory=list)  # of what parameter, and which of its elements
    masters: list[Tensor] = field(default_factory=list)
    moments: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))
    steps: list[Tensor] = field(default_factory=list)
    working: list[Tensor | None] = field(default_factory=list)  # None: the master itself

    @property
    def size(self) -> int:
        return sum(master.numel() for master in self.masters)


class MasterAdamW:
    """torch's fused AdamW (Loshchilov and Hutter, 2019) on float32 masters of a module's parameters.

    The module comes in float32 (or float64) and is left in `dtype`; where both are the same, a parameter is its own master.
    Parameters that do not require a gradient have a master too, so that they are saved unrounded, and are never updated.
    """

    def __init__(self, module: nn.Module, config: TrainConfig, *, dtype: torch.dtype = torch.float32) -> None:
        self.config = config
        self._collected = False  # whether the masters hold gradients of this step
        self.parameters = dict(module.named_parameters())
        self.masters = {name: p.detach().clone() if p.dtype != dtype else p for name, p in self.parameters.items()}
        module.to(dtype)
        self.trained = [name for name, p in self.parameters.items() if p.requires_grad]
        self.rounded = [name for name in self.trained if self.masters[name] is not self.parameters[name]]
        masters = {name: self.masters[name] for name in self.trained}
        self.moments = {name: (torch.zeros_like(master), torch.zeros_like(master)) for name, master in masters.items()}
        self.updates = 0
        first = masters[self.trained[0]]
        self.on_cpu, self.fused = first.device.type == "cpu", first.device.type in ("cpu", "cuda")
        self.scratch = torch.empty(BLOCK, dtype=first.dtype) if self.on_cpu and self.rounded else None

    @cached_property
    def blocks(self) -> list[_Block]:
        """On a CPU of at most BLOCK elements; elsewhere, where starting a kernel costs more, one for each setting.

        They are made for the first step: what wraps a module for several processes may move its parameters.
        """
        most = BLOCK if self.on_cpu else sum(self.masters[name].numel() for name in self.trained)
        scales = learning_rate_scales(self.parameters, self.config)
        blocks: list[_Block] = []
        open_blocks: dict[tuple[float, float], _Block] = {}
        rounded = set(self.rounded)
        for name in self.trained:
            master = self.masters[name]
            setting = (self.config.weight_decay if decays(name) else 0.0, scales[name])
            for start in range(0, master.numel(), most):
                part = slice(start, min(start + most, master.numel()))
                block = open_blocks.get(setting)
                if block is None or block.size + part.stop - part.start > most:
                    block = open_blocks[setting] = _Block(*setting)
                    blocks.append(block)
                block.places.append((name, part))
                block.masters.append(master.detach().view(-1)[part])
                for moment, of_block in zip(self.moments[name], block.moments, strict=True):
                    of_block.append(moment.view(-1)[part])
                block.steps.append(torch.full((), float(self.updates), device=master.device))
                block.working.append(self.parameters[name].detach().view(-1)[part] if name in rounded else None)
        return blocks

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """One update from the gradients in the module, which are then dropped. Returns their norm before clipping."""
        if self._collected:
            self.collect()
        rounded = set() if self._collected else set(self.rounded)
        sources = [self.parameters[name] if name in rounded else self.masters[name] for name in self.trained]
        flat = {name: grad.reshape(-1) for name, grad in zip(self.trained, _gradients(sources), strict=True)}
        squares = [_square(gradient) for block in self.blocks for gradient in self._gradients_of(block, flat)]
        norm = torch.stack(squares).sum().sqrt()
        divisor = None
        if self.config.max_grad_norm:
            divisor = ((norm + 1e-6) / self.config.max_grad_norm).clamp(min=1.0).to(torch.float32)
        self.updates += 1
        for block in self.blocks:
            self._update(block, self._gradients_of(block, flat), learning_rate, divisor)
        self._collected = False
        for parameter in self.parameters.values():
            parameter.grad = None
        return norm

    def _gradients_of(self, block: _Block, flat: dict[str, Tensor]) -> list[Tensor]:
        """The gradients of a block in the masters' dtype; on a CPU in memory that the next block takes again."""
        gradients, at = [], 0
        for (name, part), master in zip(block.places, block.masters, strict=True):
            gradient = flat[name][part]
            if gradient.dtype != master.dtype:
                if self.scratch is None:
                    gradient = gradient.to(master.dtype)
                else:
                    gradient = self.scratch[at : at + len(gradient)].copy_(gradient)
                    at += len(gradient)
            gradients.append(gradient)
        return gradients

    def _update(self, block: _Block, gradients: list[Tensor], learning_rate: float, divisor: Tensor | None) -> None:
        if divisor is not None and not self.fused:  # a fused kernel divides by it on the way
            gradients = list(torch._foreach_div(gradients, divisor))
        beta1, beta2 = self.config.adam_beta1, self.config.adam_beta2
        # What torch divides both moments by, taken back: the same update by the same kernel.
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
            lr=learning_rate * block.scale * first / second,
            weight_decay=block.decay * second / first,
            eps=self.config.adam_epsilon / second,
            maximize=False,
        )
        pairs = [(working, master) for working, master in zip(block.working, block.masters, strict=True) if working is not None]
        if pairs:
            torch._foreach_copy_([working for working, _ in pairs], [master for _, master in pairs])

    @torch.no_grad()
    def collect(self) -> None:
        """Move the module's gradients to the masters, where those of micro-batches add up in float32.

        What wraps a module for several processes adds them up itself, in the module's dtype.
        """
        working = [self.parameters[name] for name in self.rounded]
        for name, parameter, gradient in zip(self.rounded, working, _gradients(working), strict=True):
            master = self.masters[name]
            if self._collected:
                master.grad.add_(gradient)  # type: ignore[union-attr]
            else:
                master.grad = torch.empty_like(master) if master.grad is None else master.grad
                master.grad.copy_(gradient)
            parameter.grad = None
        self._collected = True

    def state(self) -> dict[str, Tensor]:
        """Everything a restart needs, by parameter name: masters, first and second moments, and the count of updates."""
        state = {f"master.{name}": master.detach() for name, master in self.masters.items()}
        for name, (first, second) in self.moments.items():
            state |= {f"step.{name}": torch.tensor(float(self.updates)), f"exp_avg.{name}": first, f"exp_avg_sq.{name}": second}
        return state

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        for name, master in self.masters.items():
            master.copy_(state[f"master.{name}"])
            self.parameters[name].copy_(master)
        for name, moments in self.moments.items():
            if f"step.{name}" not in state:  # saved before the first update
                continue
            self.updates = int(state[f"step.{name}"])
            for part, moment in zip(("exp_avg", "exp_avg_sq"), moments, strict=True):
                moment.copy_(state[f"{part}.{name}"])
        self.__dict__.pop("blocks", None)


def _square(values: Tensor) -> Tensor:
    """The sum of the squares; a dot product is faster, and nearer to the truth, than torch's norm."""
    return torch.dot(values, values)


def _gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    gradients = [tensor.grad for tensor in tensors]
    assert all(gradient is not None for gradient in gradients), (
        "a trained parameter got no gradient: freeze what a head does not read"
    )
    return gradients  # type: ignore[return-value]
