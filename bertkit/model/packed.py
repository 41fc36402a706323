"""Weights of linear layers as oneDNN multiplies them, for inference on a CPU.

torch arranges a weight anew for each product; for a short text that takes as long as the product itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Packed:
    """What linear layers make of the same rows, side by side, by a copy of their weights as they are now: without gradients."""

    def __init__(self, *layers: nn.Linear) -> None:
        with torch.no_grad():
            weight = torch.cat([layer.weight for layer in layers])
            self.bias = torch.cat([layer.bias for layer in layers])
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Packed:
        return self  # nothing in it changes, and torch copies no packed tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class PackedLinear(nn.Linear):
    """A linear layer with its own parameters and a packed copy, which inference reads."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.packed = Packed(layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.packed(x) if is_inference() else super().forward(x)


def is_inference() -> bool:
    """Whether there is neither a gradient to compute nor a graph to write."""
    return not torch.is_grad_enabled() and not torch.compiler.is_exporting()


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN multiplies by such weights on this machine."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    operators = torch.ops.mkldnn  # those of torch's compiler, which may change
    if not hasattr(operators, "_linear_pointwise") or not hasattr(operators, "_reorder_linear_weight"):
        return False
    bf16 = weight.dtype == torch.bfloat16 and operators._is_mkldnn_bf16_supported()
    return bf16 or weight.dtype == torch.float32
