"""Float32 master weights of a module, updated by one of several rules at the learning rate of each step.

The module's parameters are in the working dtype. The masters are authoritative: the rule updates them and copies them back, and
every save writes them. In a float32 (or float64) module the parameters are their own masters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn

from bertkit.config import TrainConfig
from bertkit.model.layerwise import learning_rate_scales
from bertkit.training.adamw import AdamW
from bertkit.training.gradients import SharedGradients
from bertkit.training.lamb import Lamb
from bertkit.training.loss_scale import LossScale
from bertkit.training.muon import Muon
from bertkit.training.update_rule import TrainedTensor, UpdateRule

RULES: dict[str, type[UpdateRule]] = {"adamw": AdamW, "lamb": Lamb, "muon": Muon}


# Decay schedules: the learning rate, as a share of its peak, for the share of the decay phase that is left.
FALLS: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: 0.5 - 0.5 * math.cos(math.pi * left),
    "constant": lambda left: 1.0,
    "warmup_stable_decay": lambda left: 1 - math.sqrt(1 - left),  # Hägele et al. (2024), section 3
}


def learning_rate_at(
    step: int,
    *,
    peak: float,
    warmup_steps: int,
    total_steps: int,
    schedule: str = "linear",
    decay_steps: int | None = None,
) -> float:
    """The learning rate of optimizer step `step` (from 0): a linear rise to `peak`, then a fall to 0, or none ("constant").

    decay_steps: the number of decaying steps at the end; None: all after the warm-up. As in BERT's own code, the first step of
    a warm-up has rate 0 (Devlin et al., 2019, appendix A.2).
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    falling = max(1, total_steps - warmup_steps if decay_steps is None else decay_steps)
    return peak * FALLS[schedule](min(1.0, max(0.0, (total_steps - step) / falling)))


def learning_rate_of(step: int, config: TrainConfig, total_steps: int) -> float:
    """The learning rate of a step under a run's settings."""
    return learning_rate_at(
        step,
        peak=config.learning_rate,
        warmup_steps=math.ceil(config.warmup_ratio * total_steps),
        total_steps=total_steps,
        schedule=config.schedule,
        decay_steps=round(config.decay_ratio * total_steps) if config.schedule == "warmup_stable_decay" else None,
    )


def decays(name: str) -> bool:
    """Whether a parameter gets weight decay: not biases or LayerNorm (as in optimization.py of Devlin et al., 2019).

    The scores of a CRF do not either, because they are like biases.
    """
    return not (name.rpartition(".")[2].startswith("bias") or "LayerNorm" in name or ".crf." in name)


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix of an encoder layer, as opposed to embeddings, heads and vectors."""
    return parameter.ndim == 2 and "encoder.layer." in name


class Optimizer:
    """Updates float32 masters of a module's parameters by the rule that config.optimizer names.

    The module comes in float32 (or float64) and is left in `dtype`; where both are the same, a parameter is its own master.
    Parameters that do not require a gradient have a master too, so that they are saved unrounded, and are never updated.
    Gradients are added up in float32, over micro-batches and over num_processes processes. In float16 the loss is scaled.
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
        rule = RULES[config.optimizer]
        self.moments = {
            name: {
                moment: torch.zeros_like(self.masters[name])
                for moment in (rule.matrix_moments if is_matrix(name, self.masters[name]) else rule.moments)
            }
            for name in self.trained
        }
        self.updates = 0
        self.norm = torch.zeros(())  # of the last update's gradients, before clipping
        self.loss_scale = LossScale() if dtype == torch.float16 else None
        self.averages: dict[str, Tensor] = {}  # of the masters, over all calls of `average`
        self.averaged = 0  # the number of these calls
        self.shared: SharedGradients | None = None
        if num_processes > 1:
            self.shared = SharedGradients(*([of[name] for name in self.trained] for of in (self.parameters, self.masters)))

    @cached_property
    def rule(self) -> UpdateRule:
        """The update rule, created at the first step, when the number of earlier updates is known."""
        scales, rounded = learning_rate_scales(self.parameters, self.config), set(self.rounded)
        tensors = [
            TrainedTensor(
                master=self.masters[name].detach(),
                working=self.parameters[name].detach() if name in rounded else None,
                moments=tuple(self.moments[name].values()),
                decays=decays(name),
                lr_scale=scales[name],
                is_matrix=is_matrix(name, self.masters[name]),
            )
            for name in self.trained
        ]
        return RULES[self.config.optimizer](tensors, self.config, updates=self.updates)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Run the backward pass of a micro-batch. last: of the step; with several processes it also sends the gradients."""
        if self.loss_scale is not None:
            loss = loss * self.loss_scale.scale
        if self.shared is not None:
            self.shared.backward(loss, last=last)
            return
        loss.backward()
        if not last:
            self.collect()

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """One update from the gradients of the step, which are then dropped. Returns their norm before clipping.

        In float16, gradients that overflow are skipped; the norm is then that of the last update.
        """
        if self._collected:
            self.collect()
        in_module = set() if self._collected else set(self.rounded)
        sources = [self.parameters[name] if name in in_module else self.masters[name] for name in self.trained]
        gradients = _gradients(sources) if self.shared is None else self.shared.wait()
        norm = self.rule.update(gradients, learning_rate, self.loss_scale)
        if self.rule.updates > self.updates:
            self.updates, self.norm = self.rule.updates, norm
        self._collected = False
        for parameter in self.parameters.values():
            parameter.grad = None
        return self.norm

    @torch.no_grad()
    def collect(self) -> None:
        """Add the module's gradients to those of the masters, which sum over micro-batches in float32."""
        for parameter in self.parameters.values():
            if parameter.grad is not None and parameter.grad.is_sparse:  # a sum of sparse ones would keep all their rows
                parameter.grad = parameter.grad.to_dense()
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

    @torch.no_grad()
    def average(self) -> None:
        """Include the masters in their mean over steps, which `weights` then returns."""
        self.averaged += 1
        if not self.averages:
            self.averages = {name: master.detach().clone() for name, master in self.masters.items()}
        averages, masters = zip(*((self.averages[name], self.masters[name]) for name in self.trained), strict=True)
        torch._foreach_lerp_(averages, masters, 1 / self.averaged)

    @contextmanager
    def averages_in_module(self) -> Iterator[None]:
        """Inside the context, the module computes with the averages, if there are any."""
        kept = {name: self.parameters[name].detach().clone() for name in self.averages}
        self._fill_module(self.averages)
        try:
            yield
        finally:
            self._fill_module(kept)

    @torch.no_grad()
    def _fill_module(self, values: Mapping[str, Tensor]) -> None:
        for name, tensor in values.items():
            self.parameters[name].copy_(tensor)

    def weights(self) -> dict[str, Tensor]:
        """The module's state dict with the masters, or their averages, as its parameters: a tied one is the same tensor under
        each of its names."""
        values = {id(p): (self.averages or self.masters)[name] for name, p in self.parameters.items()}
        return {name: values.get(id(tensor), tensor) for name, tensor in self.module.state_dict(keep_vars=True).items()}

    def state(self) -> dict[str, Tensor]:
        """What resuming needs besides the weights, by parameter name: the rule's moments and the number of updates; the
        masters, if the weights are averages; and the loss scale."""
        state: dict[str, Tensor] = {}
        if self.loss_scale is not None:
            values = [self.loss_scale.scale, self.loss_scale.updates, float(self.norm)]
            state["loss_scale"] = torch.tensor(values, dtype=torch.float64)
        if self.averages:
            state["averaged"] = torch.tensor(float(self.averaged))
            state |= {f"master.{name}": master for name, master in self.masters.items()}
        for name, moments in self.moments.items():
            state[f"step.{name}"] = torch.tensor(float(self.updates))
            state |= {f"{moment}.{name}": tensor for moment, tensor in moments.items()}
        return state

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Restore what `weights` (in float32) and `state` returned. A tied parameter needs only one of its names."""
        if self.loss_scale is not None and "loss_scale" in state:
            scale, updates, norm = state["loss_scale"].tolist()
            self.loss_scale, self.norm = LossScale(scale, int(updates)), torch.tensor(norm)
        self.averages, self.averaged = {}, int(state.get("averaged", 0))
        masters = {name.removeprefix("master."): tensor for name, tensor in state.items() if name.startswith("master.")}
        self._restore_weights(masters or weights)  # older versions always kept the masters in the state
        if self.averaged:
            self.averages = {name: torch.empty_like(master) for name, master in self.masters.items()}
            self._restore_weights(weights)
        for name, moments in self.moments.items():
            self.updates = int(state[f"step.{name}"])
            for moment, tensor in moments.items():
                tensor.copy_(state[f"{moment}.{name}"])
        self._fill_module(self.masters)
        self.__dict__.pop("rule", None)

    def _restore_weights(self, weights: Mapping[str, Tensor]) -> None:
        restored = {name: tensor for name, tensor in self.weights().items() if name in weights}
        expected = (self.averages or self.masters).values()
        lacking = {id(values) for values in expected} - {id(tensor) for tensor in restored.values()}
        assert not lacking, "save_model writes every parameter under its name"
        for name, tensor in restored.items():
            tensor.copy_(weights[name])


def _gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    gradients = [tensor.grad for tensor in tensors]
    assert all(gradient is not None for gradient in gradients), (
        "a trained parameter got no gradient: freeze what a head does not read"
    )
    return gradients  # type: ignore[return-value]
