"""Checkpoints and the best model of a run, written in the background from a copy in host memory while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from bertkit.errors import Stopped
from bertkit.files import write_json
from bertkit.manifest import write_folder
from bertkit.training.checkpoint import TRAINING, copy_to_root, drop_older_checkpoints
from bertkit.training.optimizer import Optimizer

OPTIMIZER, PROGRESS = "optimizer.safetensors", "progress.json"  # in the folder TRAINING of a checkpoint
WriteModel = Callable[[Path, dict[str, Tensor]], object]  # writes a model folder from a state dict


class HostCopies:
    """Copies of tensors in host memory, in the same buffers each time; pinned where they come from a GPU."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate the buffers and write to every page: otherwise the system would supply them one by one during `take`."""
        for name, tensor in _once(tensors).items():
            if name not in self._buffers:
                with torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext():  # a new thread starts on GPU 0
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._buffers[name] = buffer.zero_()

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of all tensors, valid until the next call. A tensor with several names is copied once."""
        self.reserve(tensors)
        copies = {id(t): self._buffers[name].copy_(t, non_blocking=t.is_cuda) for name, t in _once(tensors).items()}
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return {name: copies[id(tensor)] for name, tensor in tensors.items()}


def _once(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor under the last of its names."""
    return dict({id(tensor): (name, tensor) for name, tensor in tensors.items()}.values())


class CheckpointWriter:
    """Writes a run's saves in a thread, one after another; as a context manager, it exits once everything is written.

    An error in the thread is raised by the next call of `check`, `wait` or `save`, or at the end of the context, unless that
    ends with another error.
    """

    def __init__(self, run_dir: Path, optimizer: Optimizer, save_model: Callable[[int], WriteModel], *, keep: str) -> None:
        """save_model: step -> a function that writes that step's model later. keep: how many checkpoints, or "all"."""
        self.run_dir, self.optimizer, self.save_model, self.keep = run_dir, optimizer, save_model, keep
        self._weights, self._state = HostCopies(), HostCopies()
        self._begun: Future[None] | None = None  # Thread.join returns too early once a signal has interrupted it

    def __enter__(self) -> CheckpointWriter:
        self._start(self._reserve)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.wait()
        while self._begun is not None and not self._begun.done():
            with suppress(Stopped):  # however many signals arrive: the folder must stay locked until the thread ends
                self._begun.exception()

    def save(self, progress: dict[str, Any], *, best: bool) -> None:
        """Start saving a checkpoint of the step in `progress`. best: whether it is the best model so far.

        Returns once everything is copied, so that training can continue.
        """
        self.wait()
        weights, state = self._weights.take(self.optimizer.weights()), self._state.take(self.optimizer.state())
        self._start(partial(self._write, self.save_model(progress["step"]), weights, state, progress, best=best))

    def check(self) -> None:
        """Raise an error of the thread, if any, without waiting."""
        if self._begun is not None and self._begun.done():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is written."""
        if self._begun is not None:
            error = self._begun.exception()
            self._begun = None
            if error is not None:
                raise error

    def _start(self, work: Callable[[], None]) -> None:
        begun: Future[None] = Future()

        def run() -> None:
            try:
                work()
                begun.set_result(None)
            except BaseException as error:
                begun.set_exception(error)

        thread = Thread(target=run, name="checkpoints")  # not a daemon: the process waits for it before it exits
        self._begun = begun
        try:
            thread.start()
        except BaseException as error:
            if thread.ident is None:  # it never started
                begun.set_exception(error)
            raise

    def _reserve(self) -> None:
        self._weights.reserve(self.optimizer.weights())
        self._state.reserve(self.optimizer.state())

    def _write(
        self,
        write_model: WriteModel,
        weights: dict[str, Tensor],
        state: dict[str, Tensor],
        progress: dict[str, Any],
        *,
        best: bool,
    ) -> None:
        def write(folder: Path) -> None:
            from safetensors import torch as safetensors

            write_model(folder, weights)
            (folder / TRAINING).mkdir()
            safetensors.save_file(state, folder / TRAINING / OPTIMIZER)
            write_json(folder / TRAINING / PROGRESS, progress)

        checkpoint = self.run_dir / f"checkpoint-{progress['step']}"
        write_folder(checkpoint, write)
        drop_older_checkpoints(checkpoint, self.keep)
        if best:
            copy_to_root(checkpoint, self.run_dir)
