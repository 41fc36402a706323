"""Loss scaling: small gradients would round to 0 in fp16 (Micikevicius et al., 2018, "Mixed Precision Training", 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bertkit.errors import UsageError

GROWTH_INTERVAL = 2000  # updates, as in torch's GradScaler
LEAST = 2.0**-14


@dataclass
class LossScale:
    """The factor on the loss: halved when gradients overflow, doubled after many updates without an overflow.

    updates: the number of updates since it last changed.
    """

    scale: float = 2.0**16
    updates: int = 0

    def admits(self, norm: Tensor) -> bool:
        """Whether gradients of this norm update the weights; the scale of the next ones follows from it.

        Reading the norm makes each step wait for the device, unlike in other precisions. Raises UsageError if no scale helps.
        """
        if not norm.isfinite().item():
            self.scale, self.updates = self.scale / 2, 0
            if self.scale < LEAST:
                what = f"the gradients are not finite, even with the loss scaled by {self.scale:.1e}"
                raise UsageError(what, hint="lower --learning-rate, raise --warmup-ratio, or try --precision fp32")
            return False
        self.updates += 1
        if self.updates == GROWTH_INTERVAL:
            self.scale, self.updates = self.scale * 2, 0
        return True
