"""Weights of linear layers in oneDNN's packed layout, for inference on a CPU.

torch rearranges a weight for every product; for a short text this takes as long as the product itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# oneDNN's name and formula for each activation, which it applies before the product is rounded and written.
_POST_OPS = {
    "none": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "swish": ("swish", ""),
    "tanh": ("tanh", ""),
}


class PackedWeights:
    """Applies linear layers to the same rows at once, from a packed copy of their weights, without gradients.

    activation: the config's name for the activation that follows, if any. Without layers it is empty and serves nothing; copies
    and unpickled instances are empty too.
    """

    def __init__(self, *layers: nn.Linear, activation: str = "none") -> None:
        self.layers, self.activation = layers, _POST_OPS[activation]
        if layers:
            with torch.no_grad():
                weight = torch.cat([layer.weight for layer in layers])
                self.bias = torch.cat([layer.bias for layer in layers])
                self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
            self.made_of = self._parameters()

    def _parameters(self) -> list[tuple[int, int]]:
        """The addresses and versions of the parameters, which change when a parameter does."""
        return [(p.data_ptr(), p._version) for layer in self.layers for p in (layer.weight, layer.bias)]

    def serves(self, x: Tensor, *layers: nn.Module) -> bool:
        """Whether it can stand in for these layers on x: in inference, in its dtype, and while their weights are unchanged."""
        return self.layers == layers and is_inference() and x.dtype == self.bias.dtype and self.made_of == self._parameters()

    def __reduce__(self) -> tuple[type[PackedWeights], tuple[()]]:
        return PackedWeights, ()  # torch neither copies nor saves packed tensors

    def __call__(self, x: Tensor) -> Tensor:
        name, formula = self.activation
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, name, [], formula)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the layers' output for x, added before rounding."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")


def is_inference() -> bool:
    """Whether neither gradients are computed nor a graph is exported."""
    return not torch.is_grad_enabled() and not torch.compiler.is_exporting()


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can pack and multiply such weights on this machine."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    operators = torch.ops.mkldnn  # internal to torch's compiler, so they may change
    if not hasattr(operators, "_linear_pointwise") or not hasattr(operators, "_reorder_linear_weight"):
        return False
    bf16 = weight.dtype == torch.bfloat16 and operators._is_mkldnn_bf16_supported()
    return bf16 or weight.dtype == torch.float32
