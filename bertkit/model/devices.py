"""The device that a command computes on, and the processes of a run."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import torch

from bertkit import progress
from bertkit.errors import MachineError, UsageError, listed
from bertkit.model import peers

if TYPE_CHECKING:
    from accelerate import Accelerator


class Processes(Protocol):
    """What prediction needs from Accelerate: the device, this process's index, and the number of processes."""

    @property
    def device(self) -> torch.device: ...
    @property
    def process_index(self) -> int: ...
    @property
    def num_processes(self) -> int: ...
    @property
    def is_main_process(self) -> bool: ...
    def wait_for_everyone(self) -> None: ...


class OneProcess(NamedTuple):
    """This process on its own, however it was launched: in a server or an engine, each process has its own rows."""

    device: torch.device
    process_index: int = 0
    num_processes: int = 1
    is_main_process: bool = True

    @classmethod
    def on(cls, device: str | None = None) -> OneProcess:
        """One process on the named device; None or "auto": the fastest kind available. Raises MachineError."""
        return cls(torch.device(_available(device)))

    def wait_for_everyone(self) -> None:
        """Return at once: there are no other processes."""


# torch's GPU warnings about problems that it then solves itself: it sets the CUDA context in the backward pass's thread, and at
# each call of an LSTM in bf16 it copies the weights, a few megabytes, into contiguous memory.
_SOLVED_BY_TORCH = (
    "Attempting to run cuBLAS, but there was no current CUDA context",
    "RNN module weights are not part of single contiguous chunk of memory",
)


def _available(device: str | None) -> str:
    """The kind of a device by name; None is "auto". Raises MachineError for one that is not available."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if available["cuda"]:
        for message in _SOLVED_BY_TORCH:
            warnings.filterwarnings("ignore", message)
    if device is None or device == "auto":
        return next(kind for kind, is_there in available.items() if is_there)
    if not available.get(device, True):
        raise MachineError(
            f"--device {device} is not available to torch {torch.__version__}",
            hint="use --device cpu, or install a torch built for it",
        )
    return device


def start_processes(device: str | None = None) -> Processes:
    """The processes that predict. Accelerate, which is slow to import, is used only if a launcher may have started several."""
    if any(name in _LAUNCHED or name.startswith("ACCELERATE_") for name in os.environ):
        return start_accelerator(device)
    keep_freed_memory()
    return OneProcess.on(device)


def start_accelerator(device: str | None = None) -> Accelerator:
    """An Accelerator for processes, device, reduction and trackers; bertkit handles precision and accumulation itself.

    Settings for those two in the environment, as `accelerate launch` makes them, are ignored with a warning. Raises UsageError
    if several processes are requested but cannot be started, MachineError for a device that is not available.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, is_initialized
    from accelerate.utils import GradientAccumulationPlugin

    _refuse_incomplete_launch()
    on_cpu = _available(device) == "cpu"
    if is_initialized():  # a process keeps its first device, though runs that are compared may name several
        on_cpu = AcceleratorState().device.type == "cpu"
    keep_freed_memory()
    for name, (none, instead) in _IGNORED.items():
        if (value := os.environ.get(name, none)) != none:
            progress.warn_once(f"{name}={value} is ignored: {instead}")
    plugin = GradientAccumulationPlugin(num_steps=1)  # given as a number, it would lose to the environment's
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="no", gradient_accumulation_plugin=plugin)
    if accelerator.num_processes > 1:
        store = torch.distributed.distributed_c10d._get_default_store()
        peers.watch(store, accelerator.process_index, accelerator.num_processes)
    return accelerator


def _refuse_incomplete_launch() -> None:
    """Raise UsageError if environment variables ask for several processes without saying how to connect them."""
    numbers = {name: os.environ.get(name) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT")}
    for name, value in numbers.items():
        if value is not None and not value.isdecimal():
            raise UsageError(f"the environment variable {name} is {value!r}; expected a number", hint=_LAUNCH)
    asking = "LOCAL_RANK" if numbers["LOCAL_RANK"] else "WORLD_SIZE" if numbers["WORLD_SIZE"] not in (None, "0", "1") else None
    missing = [name for name in (*numbers, "MASTER_ADDR") if not os.environ.get(name)]
    if asking and missing:
        what = f"the environment variable {asking} is set, but {listed(missing)} {'is' if len(missing) == 1 else 'are'} not"
        raise UsageError(what, hint=f"for one process, unset {asking}; {_LAUNCH}")
    # set by `accelerate launch --cpu --num_processes 2`, which still starts only one process
    if not asking and os.environ.get("ACCELERATE_USE_CPU") and numbers["MASTER_PORT"] and not _MPI & set(os.environ):
        raise UsageError("accelerate launch was asked for several processes but started only one", hint=_LAUNCH)
    if os.environ.get("MASTER_ADDR") and numbers["WORLD_SIZE"] is None:
        progress.warn_once(f"MASTER_ADDR is set, but WORLD_SIZE is not: this process runs alone; {_LAUNCH}")
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        what = "accelerate launch was given --use_fsdp, which bertkit does not support: each process keeps the whole model"
        raise UsageError(what, hint="leave it out")


def peak_memory(device: torch.device) -> float:
    """The peak memory of this process in MiB: on a GPU, the GPU's memory."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10), 1)


def refuse_differences(own: Mapping[str, object], processes: Processes, *, hint: str) -> None:
    """Raise UsageError on every process if any process's values differ from the main process's. own: plain values by name."""
    if processes.num_processes == 1:
        return
    from accelerate.utils import gather_object

    first, *others = gather_object([dict(own)])
    for number, theirs in enumerate(others, 1):
        if names := [name for name in {**first, **theirs} if first.get(name) != theirs.get(name)]:
            differing = (f"{name} is {theirs.get(name)!r}, but {first.get(name)!r} in process 0" for name in names)
            raise UsageError(f"process {number} of {processes.num_processes}: {listed([*differing], 4, '; ')}", hint=hint)


def sum_over_processes(values: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
    """The sum of each value over all processes."""
    return accelerator.reduce(values.to(accelerator.device), "sum") if accelerator.num_processes > 1 else values


def value_of_main_process(value: float, accelerator: Accelerator) -> float:
    """The main process's value. With their own clocks, for example, processes would plan different numbers of steps."""
    from accelerate.utils import broadcast

    if accelerator.num_processes == 1:
        return float(value)
    own = torch.tensor(value, dtype=torch.float64, device=accelerator.device)
    return cast(torch.Tensor, broadcast(own)).item()


_LAUNCH = "to start several: torchrun --nproc-per-node 2 -m bertkit ..."
_MPI = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"}
_LAUNCHED = _MPI | {"WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}

# Accelerate's variables that would change the training: the value that changes nothing, and the option to use instead.
_IGNORED = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("1", "--batch-size is the whole step, --micro-batch-tokens splits it"),
    "ACCELERATE_MIXED_PRECISION": ("no", "--precision sets the precision to compute in"),
}


def return_freed_memory() -> None:
    """Return to the system what `keep_freed_memory` has kept, which grows in a long-running process. Linux only."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if malloc_trim is not None:
        malloc_trim(0)


def keep_freed_memory(*, of_library: bool = False) -> None:
    """Make glibc keep freed memory for the next batch: returning and remapping it takes 2% of a step, 5% of a prediction.

    Linux only. of_library: for use inside another program, set only the thresholds that glibc would itself reach after a block
    of 32 MiB is freed, and none if the environment sets its own. The option numbers are from malloc.h.
    """
    trim_threshold, mmap_threshold, never = -1, -3, -1
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    is_set = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if mallopt is None or (of_library and is_set):
        return
    largest = 2**30
    if of_library or not mallopt(mmap_threshold, largest):  # older versions accept at most 32 MiB
        largest = 2**25
        mallopt(mmap_threshold, largest)
    mallopt(trim_threshold, 2**26 if of_library else never)
