"""All-reduced totals of a step, computed on the host one step ahead: the weights of its loss terms, and whether to stop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

import torch
import torch.distributed as dist

from bertkit.model.batch import Batch


class Step(NamedTuple):
    """This process's micro-batches; the weight of each loss term over all processes; whether any received a stop signal."""

    micro_batches: list[Batch]
    weights: dict[str, float]
    stop: bool


@cache
def host_group() -> dist.ProcessGroup:
    """A process group on the hosts: what it exchanges does not wait for any device."""
    return dist.new_group(backend="gloo")


def with_totals(ready: Iterator[list[Batch]], stop: Sequence[int], num_processes: int) -> Iterator[Step]:
    """Yield each step with its totals. Those of the next step are started first, so that they are ready in time.

    stop: not empty if this process has received a stop signal; with several processes, all learn of it a step later.
    """
    ahead: _Totals | None = None
    for micro_batches in chain(ready, [None]):
        following = None if micro_batches is None else _Totals(micro_batches, stop, num_processes)
        if ahead is not None:
            yield ahead.wait()
        ahead = following


class _Totals:
    """Sums over the processes, in progress."""

    def __init__(self, micro_batches: list[Batch], stop: Sequence[int], num_processes: int) -> None:
        self.micro_batches, self.stop = micro_batches, stop
        self.terms = sorted(micro_batches[0].weights)
        sums = [math.fsum(batch.weights[term] for batch in micro_batches) for term in self.terms]
        self.sums = torch.tensor([*sums, float(bool(stop))], dtype=torch.float64)
        self.work = dist.all_reduce(self.sums, group=host_group(), async_op=True) if num_processes > 1 else None

    def wait(self) -> Step:
        if self.work is not None:
            self.work.wait()
        *weights, stop = self.sums.tolist()
        stopping = bool(stop) if self.work is not None else bool(self.stop)
        return Step(self.micro_batches, dict(zip(self.terms, weights, strict=True)), stopping)
