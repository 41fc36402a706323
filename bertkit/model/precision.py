"""In which dtype to compute: what was asked for, or what is faster here on the model's own shapes.

A processor's flag is not its speed: some compute bf16 products at half the rate of float32, others at twice.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.files import write_json
from bertkit.model.config import BertConfig
from bertkit.model.devices import Processes

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FASTER = 1.2  # bf16 has to be, for it costs some accuracy
ALTERNATIONS = 5
OPERATIONS = 2e9  # of one timed pass: some milliseconds
TOKENS_OF_A_GPU = 8192  # of one
CPU = torch.device("cpu")


class Precision(NamedTuple):
    """name: fp32 or bf16. rates: GFLOP/s of both, as measured; None where nothing had to be."""

    name: str
    rates: dict[str, float] | None = None

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.name]

    @property
    def recorded(self) -> str:
        """The dtype as run.json has it: float32 or bfloat16."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        """A line for the user; "" where nothing was measured."""
        if self.rates is None:
            return ""
        ratio = self.rates["bf16"] / self.rates["fp32"]
        rates = " and ".join(f"{rate:.0f}" for rate in self.rates.values())
        return f"--precision auto: {self.name}; bf16 is {ratio:.2f} times as fast as fp32 here ({rates} GFLOP/s)"


def resolve_precision(
    asked: str, config: BertConfig, processes: Processes, *, training: bool, recorded: str | None = None
) -> Precision:
    """The precision that was asked for; for "auto" the one to compute in, on every process the main process's.

    On a CPU that has bf16 it is measured, once for each processor, version of torch, number of threads and shape. recorded: the
    dtype of a run to resume, as in run.json.
    """
    if asked != "auto":
        return Precision(asked)
    if recorded is not None:
        return Precision(next(name for name in DTYPES if Precision(name).recorded == recorded))
    device = processes.device
    if device.type == "cuda":
        return Precision("bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32")
    if device.type != "cpu" or not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return Precision("fp32")
    rates = [_rates(config, tuple(DTYPES), training=training) if processes.is_main_process else None]
    if processes.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(rates)
    (found,) = rates
    assert found is not None
    return Precision("bf16" if found["bf16"] >= FASTER * found["fp32"] else "fp32", found)


def matrix_rate(precision: Precision, config: BertConfig, processes: Processes) -> float | None:
    """GFLOP/s of a layer's linear maps, forward and backward, in one process; None in others than the main one, and where it
    cannot be measured."""
    if not processes.is_main_process or processes.device.type not in ("cpu", "cuda"):
        return None
    if processes.device.type == "cpu":
        return _rates(config, [precision.name], training=True)[precision.name]
    shape = (config.hidden_size, config.intermediate_size)
    return measure_rates(*shape, [precision.name], training=True, device=processes.device)[precision.name]


def _rates(config: BertConfig, names: Sequence[str], *, training: bool) -> dict[str, float]:
    """The rates of this machine by dtype, from the user's cache or measured."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertkit" / "precision.json"
    shape = f"{config.hidden_size}x{config.intermediate_size}"
    machine = f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    key = f"{machine}, {shape}, {'' if training else 'no '}backward"
    known = {}
    with suppress(OSError, ValueError):
        known = json.loads(path.read_text(encoding="utf-8"))
    known = known if isinstance(known, dict) else {}
    if not _are_rates(known.get(key), names):
        before = known[key] if _are_rates(known.get(key), ()) else {}
        known[key] = {**before, **measure_rates(config.hidden_size, config.intermediate_size, names, training=training)}
        with suppress(OSError):  # a home that cannot be written
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, known)
    return known[key]


def _are_rates(values: Any, names: Sequence[str]) -> bool:
    return isinstance(values, dict) and all(isinstance(values.get(name), float) and values[name] > 0 for name in names)


def measure_rates(
    hidden_size: int,
    intermediate_size: int,
    names: Sequence[str] = tuple(DTYPES),
    *,
    training: bool,
    device: torch.device = CPU,
) -> dict[str, float]:
    """GFLOP/s of a layer's linear maps in each dtype, the best of alternated passes. training: backward too."""
    shapes = [(hidden_size, hidden_size)] * 4 + [(intermediate_size, hidden_size), (hidden_size, intermediate_size)]
    of_token = sum(2 * rows * columns for rows, columns in shapes) * (3 if training else 1)
    tokens = int(min(max(OPERATIONS / of_token, 64), 1024)) if device.type == "cpu" else TOKENS_OF_A_GPU

    def random(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.rand(shape, dtype=dtype, device=device, requires_grad=training)

    weights = {name: [random(*shape, dtype=DTYPES[name]) for shape in shapes] for name in names}
    inputs = {name: [random(tokens, columns, dtype=DTYPES[name]) for _, columns in shapes] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(ALTERNATIONS + 1):
        for name in names:
            begin = time.perf_counter()
            _pass(inputs[name], weights[name], training=training)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:  # the first one prepares
                seconds[name].append(time.perf_counter() - begin)
    return {name: round(tokens * of_token / min(taken) / 1e9, 1) for name, taken in seconds.items()}


def _pass(inputs: list[Tensor], weights: list[Tensor], *, training: bool) -> None:
    for rows, weight in zip(inputs, weights, strict=True):
        found = F.linear(rows, weight)
        if training:
            torch.autograd.grad(found, (rows, weight), found.detach())


def _processor() -> str:
    with suppress(OSError):  # where there is no /proc, platform's name has to do
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return platform.processor() or platform.machine()
