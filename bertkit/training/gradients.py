"""Gradients of several processes, summed in float32 during the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, groupby

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 2**22  # elements that are sent at once: 16 MB


class SharedGradients:
    """The sums of parameters' gradients over micro-batches and processes, in the masters' dtype.

    A gradient is added to its sum as soon as the backward pass has it, and dropped. In the last micro-batch the sums are sent
    in buckets, in the same order on every process, while the pass goes on.
    """

    def __init__(self, parameters: Sequence[Tensor], masters: Sequence[Tensor]) -> None:
        """parameters, masters: in about the order of the forward pass."""
        self.first = True  # whether the next backward pass is a step's first
        self.last = False  # whether it is the last
        self.sent: list[dist.Work] = []
        ends = [0, *accumulate(master.numel() for master in reversed(masters))]  # in backward order
        sums = torch.empty(ends[-1], dtype=masters[0].dtype, device=masters[0].device)
        self.sums: list[Tensor] = []
        self.buckets: list[Tensor] = []
        self.sizes: list[int] = []  # how many gradients each bucket holds
        places = zip(range(len(masters)), ends, ends[1:])
        for _, members in groupby(places, key=lambda place: place[2] // BUCKET):
            bucket = list(members)
            for index, begin, end in bucket:
                parameter, total = parameters[-1 - index], sums[begin:end].view(masters[-1 - index].shape)
                parameter.register_post_accumulate_grad_hook(partial(self._add, len(self.buckets), total))
                self.sums.insert(0, total)
            self.buckets.append(sums[bucket[0][1] : bucket[-1][2]])
            self.sizes.append(len(bucket))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Run the backward pass of a micro-batch. last: whether it is the last of the step."""
        self.last, self.missing = last, list(self.sizes)
        loss.backward()
        assert not any(self.missing), "a trained parameter got no gradient: freeze what a head does not read"
        self.first = False

    @torch.no_grad()
    def _add(self, bucket: int, total: Tensor, parameter: Tensor) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad.to_dense()
        if self.first:
            total.copy_(gradient)
        else:
            total.add_(gradient)
        parameter.grad = None
        self.missing[bucket] -= 1
        while self.last and len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            self.sent.append(dist.all_reduce(self.buckets[len(self.sent)], async_op=True))

    def wait(self) -> list[Tensor]:
        """The step's sums over all processes, one for each parameter and of its shape."""
        for work in self.sent:
            work.wait()
        self.first, self.sent = True, []
        return self.sums
