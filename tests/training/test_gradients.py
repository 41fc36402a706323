"""Gradients of several processes: what is sent, when, and in which dtype. The processes here are copies of one."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from bertkit.config import TrainConfig, filled
from bertkit.training import gradients
from bertkit.training.optimizer import Optimizer

CONFIG = dataclasses.replace(filled(TrainConfig()), max_grad_norm=0.0)


class Layers(nn.Module):
    """Its loss is the sum of its parameters, times a number: that is the gradient of each."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.ones(size)) for size in (5, 3, 9, 2, 2)])

    def forward(self, factor: float) -> Tensor:
        total = torch.zeros(())
        for part in self.parts:  # the last one's gradient comes first
            total = (total + part.float().sum()) * 1.0
        return total * factor


class Sent:
    """Stands for torch's sum over processes, all of which have what this one has."""

    def __init__(self, processes: int) -> None:
        self.processes, self.tensors = processes, []

    def __call__(self, tensor: Tensor, *, async_op: bool) -> Sent:
        assert async_op
        self.tensors.append(tensor.clone())
        tensor.mul_(self.processes)
        return self

    def wait(self) -> None:
        pass


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    sent = Sent(3)
    monkeypatch.setattr(gradients.dist, "all_reduce", sent)
    monkeypatch.setattr(gradients, "BUCKET", 6)
    return sent


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_micro_batches_and_processes_are_float32(dtype: torch.dtype, sent: Sent) -> None:
    """300 + 1 is 301 in float32, and 300 in bf16; and 3 times that."""
    module = Layers()
    optimizer = Optimizer(module, CONFIG, dtype=dtype, num_processes=3)
    count = sum(p.numel() for p in module.parameters())
    for factors in ((300.0, 1.0), (1.0,), (2.0, 300.0, 1.0)):  # nothing is left of the step before
        for index, factor in enumerate(factors):
            optimizer.backward(module(factor), last=index == len(factors) - 1)
        assert all(p.grad is None for p in module.parameters())
        norm = optimizer.step(0.0)
        torch.testing.assert_close(norm, torch.tensor(3 * sum(factors) * count**0.5), rtol=1e-6, atol=0)
    assert {tensor.dtype for tensor in sent.tensors} == {torch.float32}


def test_buckets_are_sent_in_one_order_while_the_backward_pass_goes_on(sent: Sent) -> None:
    module = Layers()
    optimizer = Optimizer(module, CONFIG, num_processes=3)
    optimizer.backward(module(1.0), last=False)
    assert not sent.tensors, "the sums of a step are sent once"
    when: list[int] = []
    for part in module.parts:
        part.register_post_accumulate_grad_hook(lambda _: when.append(len(sent.tensors)))
    optimizer.backward(module(1.0), last=True)
    assert when == sorted(when)
    assert 0 < when[-2] < len(sent.tensors) == when[-1], "some are on their way before the last gradient is there"
    assert sum(map(len, sent.tensors)) == sum(p.numel() for p in module.parameters())
    assert [len(tensor) for tensor in sent.tensors] == [len(bucket) for bucket in optimizer.shared.buckets]


def test_a_parameter_that_gets_no_gradient_is_said(sent: Sent) -> None:
    module = Layers()
    module.unread = nn.Parameter(torch.ones(2))
    optimizer = Optimizer(module, CONFIG, num_processes=3)
    with pytest.raises(AssertionError, match="no gradient"):
        optimizer.backward(module(1.0), last=False)
