"""AdamW over float32 masters, its parameter groups, and the learning rate of a step.

The module's parameters are in the working dtype; the masters are the truth: the optimizer updates them and copies them
back, and every save writes them. With a float32 (or float64) module the parameters are their own masters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bertkit.config import TrainConfig
from bertkit.layerwise import learning_rate_scales


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


class MasterAdamW:
    """torch's fused AdamW (Loshchilov and Hutter, 2019) on float32 masters of a module's parameters.

    The module comes in float32 (or float64) and is left in `dtype`; where both are the same, a parameter is its own master.
    Parameters that do not require a gradient have a master too, so that they are saved unrounded, and are never updated.
    """

    def __init__(self, module: nn.Module, config: TrainConfig, *, dtype: torch.dtype = torch.float32) -> None:
        self.max_grad_norm = config.max_grad_norm
        self._collected = False  # whether the masters hold gradients of this step
        self.parameters = dict(module.named_parameters())
        self.masters = {name: p.detach().clone() if p.dtype != dtype else p for name, p in self.parameters.items()}
        module.to(dtype)
        self.trained = [name for name, p in self.parameters.items() if p.requires_grad]
        self.rounded = [name for name in self.trained if self.masters[name] is not self.parameters[name]]
        scales = learning_rate_scales(self.parameters, config)
        groups: dict[tuple[float, float], list[Tensor]] = {}  # by weight decay and the learning rate's scale
        for name in self.trained:
            decay = config.weight_decay if decays(name) else 0.0
            groups.setdefault((decay, scales[name]), []).append(self.masters[name])
        self.bias_correction = config.adam_bias_correction
        self.updates = 0
        self.adamw = torch.optim.AdamW(
            [{"params": params, "weight_decay": decay, "decay": decay, "scale": s} for (decay, s), params in groups.items()],
            lr=0.0,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            fused=self.masters[self.trained[0]].device.type in ("cpu", "cuda"),
        )

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """One update from the gradients in the module, which are then dropped. Returns their norm before clipping."""
        norms = self.collect()
        self._collected = False
        gradients = _gradients([self.masters[name] for name in self.trained])
        rounded = set(self.rounded)
        own = [gradient for name, gradient in zip(self.trained, gradients, strict=True) if name not in rounded]
        norm = torch.linalg.vector_norm(torch.stack([*norms, *(torch._foreach_norm(own) if own else [])]))
        if self.max_grad_norm:
            divisor = ((norm + 1e-6) / self.max_grad_norm).clamp(min=1.0).to(torch.float32)
            if self.adamw.defaults["fused"]:
                self.adamw.grad_scale = divisor  # type: ignore[attr-defined]  # its kernel divides by it: clipping is no pass of its own
            else:
                torch._foreach_div_(gradients, divisor)
        self.updates += 1
        beta1, beta2 = self.adamw.defaults["betas"]
        # What torch divides both moments by, taken back: the same update by the same kernel.
        first, second = (
            (1 - beta1**self.updates, math.sqrt(1 - beta2**self.updates)) if not self.bias_correction else (1.0, 1.0)
        )
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate * group["scale"] * first / second
            group["eps"] = self.adamw.defaults["eps"] / second
            group["weight_decay"] = group["decay"] * second / first
        self.adamw.step()
        if self.rounded:
            working: list[Tensor] = [self.parameters[name] for name in self.rounded]
            torch._foreach_copy_(working, [self.masters[name] for name in self.rounded])
        for parameter in self.parameters.values():
            parameter.grad = None
        return norm

    @torch.no_grad()
    def collect(self) -> list[Tensor]:
        """Move the module's gradients to the masters, where those of micro-batches add up in float32; returns their norms.

        What wraps a module for several processes adds them up itself, in the module's dtype.
        """
        working = [self.parameters[name] for name in self.rounded]
        norms = []
        for name, parameter, gradient in zip(self.rounded, working, _gradients(working), strict=True):
            master = self.masters[name]
            master.grad = torch.empty_like(master) if master.grad is None else master.grad
            if self._collected:
                master.grad.add_(gradient)
            else:
                master.grad.copy_(gradient)
            norms.append(torch.linalg.vector_norm(master.grad))  # while it is in the cache
            parameter.grad = None
        self._collected = True
        return norms

    def state(self) -> dict[str, Tensor]:
        """Everything a restart needs, by parameter name: masters, first and second moments, and the count of updates."""
        state = {f"master.{name}": master.detach() for name, master in self.masters.items()}
        for name in self.trained:
            state |= {f"{part}.{name}": tensor for part, tensor in self.adamw.state[self.masters[name]].items()}
        return state

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        for name, master in self.masters.items():
            master.copy_(state[f"master.{name}"])
            self.parameters[name].copy_(master)
        for name in self.trained:
            if f"step.{name}" not in state:  # saved before the first update
                continue
            master = self.masters[name]
            self.updates = int(state[f"step.{name}"])
            parts = ("step", "exp_avg", "exp_avg_sq")
            self.adamw.state[master] = {part: state[f"{part}.{name}"].to(master.device, copy=True) for part in parts}


def _gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    gradients = [tensor.grad for tensor in tensors]
    assert all(gradient is not None for gradient in gradients), (
        "a trained parameter got no gradient: freeze what a head does not read"
    )
    return gradients  # type: ignore[return-value]
