"""Float32 masters of a module's parameters, updated by one of several rules at the learning rate of each step.

The module's parameters are in the working dtype; the masters are the truth: the rule updates them and copies them back, and
every save writes them. With a float32 (or float64) module the parameters are their own masters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from bertkit.config import TrainConfig
from bertkit.model.layerwise import learning_rate_scales
from bertkit.training.adamw import AdamW
from bertkit.training.gradients import SharedGradients
from bertkit.training.lamb import Lamb
from bertkit.training.update_rule import TrainedTensor, UpdateRule

RULES: dict[str, type[UpdateRule]] = {"adamw": AdamW, "lamb": Lamb}


def learning_rate_at(step: int, *, peak: float, warmup_steps: int, total_steps: int, schedule: str = "linear") -> float:
    """The learning rate of optimizer step `step` (from 0): a linear rise to `peak`, then a linear or cosine fall to 0, or none
    ("constant").

    As in BERT's own code the first step of a warm-up has rate 0 (Devlin et al., 2019, appendix A.2).
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    left = max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
    return peak * (0.5 - 0.5 * math.cos(math.pi * left) if schedule == "cosine" else left)


def learning_rate_of(step: int, config: TrainConfig, total_steps: int) -> float:
    """The learning rate that a run's settings give a step."""
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


class Optimizer:
    """Updates float32 masters of a module's parameters by the rule that config.optimizer names.

    The module comes in float32 (or float64) and is left in `dtype`; where both are the same, a parameter is its own master.
    Parameters that do not require a gradient have a master too, so that they are saved unrounded, and are never updated.
    Gradients are added up in float32, over micro-batches and over num_processes processes.
    """

    def __init__(
        self, module: nn.Module, config: TrainConfig, *, dtype: torch.dtype = torch.float32, num_processes: int = 1
    ) -> None:
        self.module, self.config = module, config
        self._collected = False  # whether the masters hold gradients of this step
        self.parameters = dict(module.named_parameters())
        self.masters = {name: p.detach().clone() if p.dtype != dtype else p for name, p in self.parameters.items()}
        module.to(dtype)
        self.trained = [name for name, p in self.parameters.items() if p.requires_grad]
        self.rounded = [name for name in self.trained if self.masters[name] is not self.parameters[name]]
        self.moments = {
            name: {moment: torch.zeros_like(self.masters[name]) for moment in RULES[config.optimizer].moments}
            for name in self.trained
        }
        self.updates = 0
        self.shared: SharedGradients | None = None
        if num_processes > 1:
            self.shared = SharedGradients(*([of[name] for name in self.trained] for of in (self.parameters, self.masters)))

    @cached_property
    def rule(self) -> UpdateRule:
        """Made for the first step, when it is known how many updates there were."""
        scales, rounded = learning_rate_scales(self.parameters, self.config), set(self.rounded)
        tensors = [
            TrainedTensor(
                master=self.masters[name].detach(),
                working=self.parameters[name].detach() if name in rounded else None,
                moments=tuple(self.moments[name].values()),
                decays=decays(name),
                lr_scale=scales[name],
            )
            for name in self.trained
        ]
        return RULES[self.config.optimizer](tensors, self.config, updates=self.updates)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """The backward pass of a micro-batch. last: of the step; with several processes its gradients are sent meanwhile."""
        if self.shared is not None:
            self.shared.backward(loss, last=last)
            return
        loss.backward()
        if not last:
            self.collect()

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """One update from the gradients of the step, which are then dropped. Returns their norm before clipping."""
        if self._collected:
            self.collect()
        in_module = set() if self._collected else set(self.rounded)
        sources = [self.parameters[name] if name in in_module else self.masters[name] for name in self.trained]
        norm = self.rule.update(_gradients(sources) if self.shared is None else self.shared.wait(), learning_rate)
        self.updates += 1
        self._collected = False
        for parameter in self.parameters.values():
            parameter.grad = None
        return norm

    @torch.no_grad()
    def collect(self) -> None:
        """Move the module's gradients to the masters, where those of micro-batches add up in float32."""
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

    def weights(self) -> dict[str, Tensor]:
        """The module's state dict with the masters as its parameters: a tied one is the same tensor under each of its names."""
        masters = {id(p): self.masters[name] for name, p in self.parameters.items()}
        return {name: masters.get(id(tensor), tensor) for name, tensor in self.module.state_dict(keep_vars=True).items()}

    def state(self) -> dict[str, Tensor]:
        """What a restart needs beside the weights, by parameter name: the rule's moments, and the count of updates."""
        state: dict[str, Tensor] = {}
        for name, moments in self.moments.items():
            state[f"step.{name}"] = torch.tensor(float(self.updates))
            state |= {f"{moment}.{name}": tensor for moment, tensor in moments.items()}
        return state

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Put back what `weights`, in float32, and `state` gave. Of a tied parameter one of its names is enough."""
        restored = {name: tensor for name, tensor in self.weights().items() if name in weights}
        lacking = {id(master) for master in self.masters.values()} - {id(tensor) for tensor in restored.values()}
        assert not lacking, "save_model writes every parameter under its name"
        for name, tensor in restored.items():
            tensor.copy_(weights[name])
        for name, moments in self.moments.items():
            self.updates = int(state[f"step.{name}"])
            for moment, tensor in moments.items():
                tensor.copy_(state[f"{moment}.{name}"])
        for name, parameter in self.parameters.items():
            parameter.copy_(self.masters[name])
        self.__dict__.pop("rule", None)


def _gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    gradients = [tensor.grad for tensor in tensors]
    assert all(gradient is not None for gradient in gradients), (
        "a trained parameter got no gradient: freeze what a head does not read"
    )
    return gradients  # type: ignore[return-value]
