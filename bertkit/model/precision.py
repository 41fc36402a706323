"""The dtype to compute in: the requested one, or the one measured to be faster on the model's own shapes.

Support does not mean speed: some processors compute bf16 products at half the rate of float32, others at twice.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.errors import MachineError, UsageError
from bertkit.files import write_json
from bertkit.model import int8
from bertkit.model.config import BertConfig
from bertkit.model.devices import Processes

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,  # for everything except the 8-bit products
}
FLOATS = ("fp32", "bf16")
GPU_ONLY = ("tf32", "fp16")
FASTER = 1.2  # how many times faster bf16 must be to be chosen by "auto", because it costs some accuracy
ALTERNATIONS = 5  # timings of each precision, in turns; more if other programs disturb them
PATIENCE = 2.0  # seconds after which disturbed timings are accepted
UNDISTURBED = 0.9  # share of a timing for which all threads must be computing
OPERATIONS = 4e9  # of each timing: some milliseconds
TOKENS = 1024  # at most in a pass, as in a batch; a timing of a small model has several passes
OPERATIONS_OF_A_GPU = 1e12  # of each timing; with a third of them, an H200 took longer to start the kernels than to compute
TOKENS_OF_A_GPU = 2**16  # at most in a pass: about a gigabyte
CPU = torch.device("cpu")


class Precision(NamedTuple):
    """name: one of DTYPES. rates: measured GFLOP/s; None if nothing was measured. requested: "auto" or "int8". beside: the
    precision of products that int8 does not quantize; by default that of the rates.
    """

    name: str
    rates: dict[str, float] | None = None
    requested: str = "auto"
    beside: str | None = None

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.name]

    @property
    def recorded(self) -> str:
        """The dtype as run.json has it, such as bfloat16."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        """A line for the user; "" if there is nothing to say."""
        if self.requested == "int8" and (self.rates is None or "int8" not in self.rates):
            return f"--precision int8: using {self.name}; this torch has no exact 8-bit matrix products on this device"
        if self.rates is None:
            return ""
        fewer, exact = ("int8", self._float) if self.requested == "int8" else ("bf16", "fp32")
        ratio = self.rates[fewer] / self.rates[exact]
        rates = f"{self.rates[fewer]:.0f} against {self.rates[exact]:.0f} GFLOP/s"
        products = f"matrix products in {fewer} are {ratio:.2f} times as fast as in {exact} ({rates})"
        line = f"--precision {self.requested}: {self.name}; {products}"
        return line if self.name == fewer or self.requested == "int8" else f"{line}; at least {FASTER} times is required"

    @property
    def _float(self) -> str:
        return faster_float(self.rates) if self.rates is not None else "fp32"

    @property
    def attention(self) -> torch.dtype:
        """The dtype of attention's products, which int8 does not quantize."""
        return DTYPES[self.beside or self._float] if self.name == "int8" else self.dtype


def faster_float(rates: Mapping[str, float]) -> str:
    """What "auto" is on a CPU. rates: GFLOP/s of matrix products by precision."""
    return "bf16" if rates.get("bf16", 0.0) >= FASTER * rates["fp32"] else "fp32"


def refuse_int8(requested: str | None, what: str) -> None:
    """Raise UsageError for int8, which is only for prediction. what: the operation, for the message."""
    if requested == "int8":
        raise UsageError(f"{what} needs gradients, which precision int8 does not support", hint="choose auto, fp32 or bf16")


def refuse_without_gpu(requested: str | None, device: torch.device) -> None:
    """Raise UsageError for a precision that this device lacks, or only emulates."""
    if requested in GPU_ONLY and device.type != "cuda":
        what = f"--precision {requested} needs an NVIDIA or AMD GPU; this run is on {device.type}"
        raise UsageError(what, hint="choose auto, fp32 or bf16")
    if requested in ("tf32", "bf16") and device.type == "cuda" and _auto_on_gpu(device) != "bf16":
        raise UsageError(f"--precision is {requested}, which this GPU does not support", hint="choose auto, fp16 or fp32")


def resolve_precision(
    requested: str, config: BertConfig, processes: Processes, *, training: bool, recorded: str | None = None
) -> Precision:
    """The requested precision; for "auto", the main process's choice, the same on every process. "int8" falls back to "auto"
    if 8 bits are not faster.

    On a CPU that has bf16 or int8, speed is measured, once for each processor, torch version, number of threads and shape.
    recorded: the dtype of a run to resume, as in run.json. Raises UsageError for a precision that the device lacks.
    """
    device = processes.device
    refuse_without_gpu(requested, device)
    if requested not in ("auto", "int8"):
        return Precision(requested)
    if recorded is not None:
        began = precision_of(recorded)
        try:
            refuse_without_gpu(began, device)
        except UsageError:
            what = f"the run began in {began}, which this device does not support"
            raise UsageError(what, hint="resume it on a device like the one that it began on") from None
        return Precision(began)
    if device.type == "cuda":
        return Precision(_auto_on_gpu(device), None, requested)
    if device.type != "cpu":
        return Precision("fp32", None, requested)
    names = [name for name in (*FLOATS, requested) if name in _COMPUTED and _COMPUTED[name]()]
    if names == ["fp32"]:
        return Precision("fp32", None, requested)
    rates = [_rates(config, names, training=training) if processes.is_main_process else None]
    if processes.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(rates)
    (found,) = rates
    assert found is not None
    chosen = {name: found[name] for name in names}
    name = faster_float(chosen)
    if chosen.get("int8", 0.0) > chosen[name]:
        name = "int8"
    return Precision(name, chosen, requested)


def precision_of(recorded: str) -> str:
    """The precision that `Precision.recorded` stands for: "bf16" for "bfloat16"."""
    return next(name for name, dtype in DTYPES.items() if str(dtype) == f"torch.{recorded}")


def _auto_on_gpu(device: torch.device) -> str:
    """The choice of "auto" on a GPU: bf16 since Ampere, fp16 on older GPUs that compute it faster."""
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "fp32"


@contextmanager
def multiplying_in(precision: str) -> Iterator[None]:
    """In this context, GPUs multiply float32 in TF32, which has 10 instead of 23 mantissa bits, if that is the precision; else
    in full float32. The settings apply to the whole process."""
    restored = _restoring()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"  # for a BiLSTM
    try:
        yield
    finally:
        for restore in restored:
            restore()


def _restoring() -> list[Callable[[], None]]:
    """Functions that restore the process's current settings, by whichever of torch's two interfaces they were made."""
    cudnn = torch.backends.cudnn
    restored: list[Callable[[], None]] = []
    parts: list[Any] = []  # that were set by the newer interface: then the older one cannot be read
    try:
        restored.append(partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
    except RuntimeError:
        parts += [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul")]  # noqa: B009  # mypy does not know it
    try:
        restored.append(partial(setattr, cudnn, "allow_tf32", cudnn.allow_tf32))
    except RuntimeError:
        parts += [getattr(cudnn, name) for name in ("conv", "rnn")]
    return restored + [partial(setattr, each, "fp32_precision", each.fp32_precision) for each in parts]


def multiply_in(module: torch.nn.Module, precision: str, device: torch.device) -> None:
    """On a GPU, apply `multiplying_in` to the forward pass of this module only, not to that of a part called by itself."""
    if device.type != "cuda":
        return
    begun: list[ExitStack] = []

    def begin(*_: Any) -> None:
        begun.append(ExitStack())
        begun[-1].enter_context(multiplying_in(precision))

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(lambda *_: begun.pop().close(), always_call=True)


# Whether a CPU supports each precision; its speed is then measured.
_COMPUTED: dict[str, Callable[[], bool]] = {
    "fp32": lambda: True,
    "bf16": lambda: torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
    "int8": int8.available,
}


def matrix_rate(precision: Precision, config: BertConfig, processes: Processes) -> float | None:
    """GFLOP/s of an encoder layer's linear layers, forward and backward, in one process; None outside the main process, and
    where it cannot be measured."""
    if not processes.is_main_process or processes.device.type not in ("cpu", "cuda"):
        return None
    if processes.device.type == "cpu":
        return _rates(config, [precision.name], training=True)[precision.name]
    shape = (config.hidden_size, config.intermediate_size)
    return measure_rates(*shape, [precision.name], training=True, device=processes.device)[0][precision.name]


_disturbed: dict[str, dict[str, float]] = {}  # rates that are not kept: the next command measures again


def _rates(config: BertConfig, names: Sequence[str], *, training: bool) -> dict[str, float]:
    """The rates of this machine by dtype, from the user's cache or measured."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertkit" / "precision.json"
    shape = f"{config.hidden_size}x{config.intermediate_size} joined"  # query, key and value; older files have them separately
    machine = f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    key = f"{machine}, {shape}, {'' if training else 'no '}backward"
    known = {}
    with suppress(OSError, ValueError):
        known = json.loads(path.read_text(encoding="utf-8"))
    known = known if isinstance(known, dict) else {}
    for found in (_disturbed.get(key, {}), known.get(key, {})):  # rates are compared, so all must be of one measurement
        if _are_rates(found, names):
            return found
    rates, undisturbed = measure_rates(config.hidden_size, config.intermediate_size, names, training=training)
    if not undisturbed:
        _disturbed[key] = rates
        return rates
    known[key] = rates
    with suppress(OSError, MachineError):  # a home that cannot be written, or one that another process is writing
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, known)
    return rates


def _are_rates(values: Any, names: Sequence[str]) -> bool:
    return isinstance(values, dict) and all(isinstance(values.get(name), float) and values[name] > 0 for name in names)


def measure_rates(
    hidden_size: int,
    intermediate_size: int,
    names: Sequence[str] = FLOATS,
    *,
    training: bool,
    device: torch.device = CPU,
) -> tuple[dict[str, float], bool]:
    """GFLOP/s of an encoder layer's linear layers in each precision, the best of alternating timings; and whether these were
    undisturbed by other programs. training: include the backward pass.
    """
    of_attention = [(3 * hidden_size, hidden_size), (hidden_size, hidden_size)]  # query, key and value are one product
    shapes = [*of_attention, (intermediate_size, hidden_size), (hidden_size, intermediate_size)]
    of_token = sum(2 * rows * columns for rows, columns in shapes) * (3 if training else 1)
    on_cpu = device.type == "cpu"
    operations, most, multiple_of = (OPERATIONS, TOKENS, 1) if on_cpu else (OPERATIONS_OF_A_GPU, TOKENS_OF_A_GPU, 64)
    tokens = int(min(max(operations / of_token, 64), most)) // multiple_of * multiple_of
    repeats = max(1, round(operations / (tokens * of_token)))

    def random(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.rand(shape, dtype=dtype, device=device, requires_grad=training)

    layers: dict[str, list[Any]] = {
        name: [partial(F.linear, weight=random(*shape, dtype=DTYPES[name])) for shape in shapes] for name in names
    }
    if "int8" in layers:
        layers["int8"] = [int8.Int8Linear([torch.nn.Linear(columns, rows)]) for rows, columns in shapes]
    inputs = {name: [random(tokens, columns, dtype=DTYPES[name]) for _, columns in shapes] for name in names}
    best: dict[str, tuple[float, bool]] = {}  # seconds of the fastest timing, and whether it was undisturbed
    start = time.perf_counter()
    threads = _usable_threads()
    for turn in itertools.count():
        for name in names:
            with multiplying_in(name):
                begin, computed = time.perf_counter(), time.process_time()
                for _ in range(repeats):
                    _pass(inputs[name], layers[name], training=training)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                seconds, computed = time.perf_counter() - begin, time.process_time() - computed
            if turn:  # the first turn is a warm-up
                undisturbed = device.type != "cpu" or computed >= UNDISTURBED * seconds * threads
                best[name] = min(best.get(name, (math.inf, True)), (seconds, undisturbed))
        impatient = time.perf_counter() - start > PATIENCE
        if turn >= ALTERNATIONS and (impatient or all(undisturbed for _, undisturbed in best.values())):
            break
    if device.type == "cuda":  # or the run would report this memory as its own
        del layers, inputs
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    rates = {name: round(repeats * tokens * of_token / seconds / 1e9, 1) for name, (seconds, _) in best.items()}
    return rates, all(undisturbed for _, undisturbed in best.values())


def _usable_threads() -> float:
    """How many of torch's threads can compute at once: a container may be given fewer cores than it sees."""
    threads = float(torch.get_num_threads())
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        threads = min(threads, int(quota) / int(period))  # "max" is no number
    return threads


def _pass(inputs: list[Tensor], layers: list[Any], *, training: bool) -> None:
    for rows, layer in zip(inputs, layers, strict=True):
        found = layer(rows)
        if training:
            torch.autograd.grad(found, (rows, layer.keywords["weight"]), found.detach())


def processor() -> str:
    """The processor's name, and whether it has AMX: virtual machines with and without it may give one name."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):  # where there is no /proc, platform's name has to do
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name} with AMX" if torch.cpu._is_amx_tile_supported() else name
