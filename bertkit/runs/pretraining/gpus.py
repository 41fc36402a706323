"""GPU types with their memory and published rates, for estimates on machines without a GPU.

From NVIDIA's data sheets (for rtx4090, the white paper on the Ada architecture), for the SXM variant if there are several.
Rates are for dense products: half the figure if a sheet gives it with sparsity.
"""

from __future__ import annotations

from typing import NamedTuple

from bertkit.errors import UsageError, listed


class GpuType(NamedTuple):
    """memory: GB. rate16: TFLOP/s of 16-bit products with float32 sums, in `dtype16`; if that is bf16, TF32 has half this rate.
    rate32: TFLOP/s in float32."""

    memory: int
    rate16: float
    rate32: float
    dtype16: str = "bf16"

    def rate(self, precision: str) -> float:
        """TFLOP/s of dense products."""
        return {"fp32": self.rate32, "tf32": self.rate16 / 2}.get(precision, self.rate16)

    @classmethod
    def named(cls, name: str) -> GpuType:
        """The type of this name. Raises UsageError for an unknown one."""
        if name.lower() not in GPU_TYPES:
            known = listed([*GPU_TYPES], len(GPU_TYPES))
            raise UsageError(f"--gpu-type is {name!r}, which bertkit has no figures for", hint=f"known: {known}")
        return GPU_TYPES[name.lower()]


class Gpus(NamedTuple):
    """GPUs of a type in GPU_TYPES."""

    number: int
    name: str

    @property
    def type(self) -> GpuType:
        return GpuType.named(self.name)

    def precision(self, requested: str) -> str:
        """The precision that --precision resolves to on them. Raises UsageError for a dtype that they lack."""
        if requested in ("bf16", "tf32") and self.type.dtype16 == "fp16":
            raise UsageError(f"--precision is {requested}, which {self.name} lacks", hint="choose auto, fp16 or fp32")
        return self.type.dtype16 if requested == "auto" else requested


GPU_TYPES = {
    "a100-40": GpuType(40, 312, 19.5),
    "a100-80": GpuType(80, 312, 19.5),
    "h100": GpuType(80, 989, 67),
    "h200": GpuType(141, 989, 67),
    "l40s": GpuType(48, 362, 91.6),
    "a10g": GpuType(24, 70, 31.5),
    "rtx4090": GpuType(24, 165, 82.6),
    "v100-16": GpuType(16, 125, 15.7, dtype16="fp16"),
    "v100-32": GpuType(32, 125, 15.7, dtype16="fp16"),
}
