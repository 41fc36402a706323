"""Products of 8-bit integers for prediction on a CPU: weights quantized per output channel, activations per row on the fly.

Each row is quantized by its own largest value, so the prediction for a text does not depend on its neighbours in the batch.
Only the encoder's linear layers are quantized. The products are oneDNN's, which scale and round the sums before writing them to
memory; torch._int_mm returns the sums, which takes two more passes over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.model.attention import attend
from bertkit.model.bert import BertEncoder, BertSelfAttention
from bertkit.model.layout import Pattern

# The minimum of each activation function: its 8 bits need not represent anything much lower.
LEAST = {"gelu": -0.17, "gelu_new": -0.17, "gelu_pytorch_tanh": -0.17, "relu": 0.0, "silu": -0.2785, "swish": -0.2785}
_BELOW = 20  # levels below 0 for such inputs. The error of MiniLM is smallest with 16 to 20: the largest of most rows is 1 to 5
_SIGN = 128  # shifts int8 to uint8; torch converts float32 to int8 three times as fast
_TINY = 1e-12  # the scale of a row of zeros


class Int8Linear(nn.Module):
    """Linear layers with the same input, concatenated, in 8 bits: (N, in_features) float32 -> (N, out_features) of `dtype`.

    least: for the output of an activation, its lower bound, at most 0; inputs in float32 are then overwritten. None: inputs
    have either sign.
    """

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype = torch.float32, *, least: float | None = None) -> None:
        super().__init__()
        weight, bias = (torch.cat([getattr(layer, name).detach().float() for layer in layers]) for name in ("weight", "bias"))
        self.dtype, self.bias, self.signed = dtype, bias.to(dtype), least is None
        self.zero = _SIGN if least is None else _BELOW if least else 0  # the level of 0
        self.smallest = max(_TINY, -(least or 0.0) / _BELOW)  # of the scales of rows
        self.scales = weight.abs().amax(1).div_(127).clamp_(min=_TINY)  # (out_features,)
        rounded = weight.div_(self.scales[:, None]).round_()
        self.weight = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), None)
        self.zeros = torch.zeros(len(bias), dtype=torch.int64)

    def __deepcopy__(self, memo: dict[int, Any]) -> Int8Linear:
        return self  # it never changes, and torch cannot copy packed tensors

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        largest = x.amax(1, keepdim=True)
        if self.signed:
            largest = torch.maximum(largest, x.amin(1, keepdim=True).neg_())
        scale = largest.mul_(1 / (255 - self.zero)).clamp_(min=self.smallest)
        if self.signed:
            levels = x * scale.reciprocal()
        else:
            levels = x.mul_(scale.reciprocal()).sub_(_SIGN - self.zero)
        rows = levels.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(_SIGN)
        sums = _product(rows, self.zero, self.weight, self.scales, self.zeros, self.dtype)
        return torch.addcmul(self.bias, sums, scale.to(self.dtype), out=sums)


def _product(rows: Tensor, zero: int, weight: Tensor, scales: Tensor, zeros: Tensor, dtype: torch.dtype) -> Tensor:
    """(rows - zero) @ weight.T * scales, of (N, in_features) uint8 and prepacked int8."""
    return torch.ops.onednn.qlinear_pointwise(rows, 1.0, zero, weight, scales, zeros, None, 1.0, 0, dtype, "none", [], "none")


class _Int8SelfAttention(nn.Module):
    """A BertSelfAttention with 8-bit projections; scores and sums are in `dtype`.

    last: whether it belongs to the last layer, the only one that may compute just some rows.
    """

    def __init__(self, exact: BertSelfAttention, dtype: torch.dtype, *, last: bool) -> None:
        super().__init__()
        self.num_heads, self.dropout = exact.num_heads, exact.dropout
        self.joint = Int8Linear([exact.query, exact.key, exact.value], dtype)
        if last:
            self.query, self.read = Int8Linear([exact.query], dtype), Int8Linear([exact.key, exact.value], dtype)

    def forward(self, hidden: Tensor, rows: Tensor, pattern: Pattern) -> Tensor:
        if pattern.queries is pattern.keys:
            tokens, queries = self.joint(hidden), None
        else:
            tokens, queries = self.read(hidden), self.query(rows)
        return attend(tokens, queries, pattern, self.num_heads, self.dropout)


def quantize(module: nn.Module, dtype: torch.dtype) -> None:
    """Replace the linear layers of a module's encoder, in float32 on a CPU, by 8-bit products. dtype: of attention."""
    for encoder in [part for part in module.modules() if isinstance(part, BertEncoder)]:
        least = LEAST.get(encoder.hidden_act)
        layers: Any = encoder.layer
        for layer in layers:
            layer.attention.self = _Int8SelfAttention(layer.attention.self, dtype, last=layer is layers[-1])
            layer.attention.output.dense = Int8Linear([layer.attention.output.dense])
            layer.intermediate.dense = Int8Linear([layer.intermediate.dense])
            layer.output.dense = Int8Linear([layer.output.dense], least=least)


@cache
def available() -> bool:
    """Whether this build of torch has 8-bit products and this processor computes them exactly; older ones lose bits."""
    rows, weights = torch.full((16, 64), 255, dtype=torch.uint8), torch.full((64, 64), 127, dtype=torch.int8)
    try:
        weight = torch.ops.onednn.qlinear_prepack(weights, None)
        found = _product(rows, 0, weight, torch.ones(64), torch.zeros(64, dtype=torch.int64), torch.float32)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool((found == 255.0 * 127 * 64).all())
