"""Estimates what pre-training would take on GPUs that are not available here: memory by part, and a range of hours.

Nothing is measured. Memory is that of the tensors in the forward and backward pass, run on shapes only (torch's meta device),
without attention's scores, which a GPU's kernels do not keep (Dao et al., 2022, FlashAttention). Hours are the time for the
tokens' operations at a range of model FLOPs utilization (Chowdhery et al., 2022, appendix B).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bertkit import progress
from bertkit.config import TrainConfig
from bertkit.errors import UsageError
from bertkit.model.batch import Batch
from bertkit.model.bert import BertSelfAttention, set_activation_checkpointing
from bertkit.model.dropout import set_dropout
from bertkit.model.flops import flop_counter
from bertkit.model.language_model import LanguageModel
from bertkit.model.layerwise import freeze
from bertkit.model.precision import DTYPES
from bertkit.report import Report, Table, show
from bertkit.runs.pretraining.gpus import Gpus
from bertkit.training.optimizer import Optimizer

UTILIZATION = (0.2, 0.5)  # of the published rate
FILLED = 0.9  # the share of a GPU's memory for tensors; the rest is for CUDA, NCCL and fragmentation
META = torch.device("meta")
Build = Callable[[], LanguageModel]
MOMENTS, AVERAGES, SCORES = "optimizer moments", "averaged weights", "attention scores"


class Phase(NamedTuple):
    """A part of the training with sequences of one length. steps: counted as if all batches were full. ranks: the micro-batches
    of each GPU in such a step."""

    steps: float
    ranks: list[list[Batch]]

    @property
    def micro_batches(self) -> list[Batch]:
        return [batch for of_rank in self.ranks for batch in of_rank if any(batch.weights.values())]  # others stand in


def estimate(
    build: Build, phases: Sequence[Phase], config: TrainConfig, gpus: Gpus, *, steps: int, averaging: bool
) -> dict[str, Any]:
    """Show what training for `steps` steps would take. config: with the precision to compute in. averaging: whether the weights
    of the last steps are averaged.

    Raises UsageError if it does not fit into a GPU's memory.
    """
    module = _shapes(build, config)
    count = flop_counter(module)
    each = [(phase.steps, batch) for phase in phases for batch in phase.micro_batches]
    operations = sum(times * count(batch) for times, batch in each)
    tokens = sum(times * len(batch.input_ids) for times, batch in each)
    accumulates = any(len(of_rank) > 1 for phase in phases for of_rank in phase.ranks)
    largest = (max(phase.micro_batches, key=lambda batch: len(batch.input_ids)) for phase in phases)
    of_step = partial(memory, build, config=config, num_processes=gpus.number, accumulates=accumulates, averaging=averaging)
    each_step = [{name: size for name, size in of_step(batch).items() if name != SCORES} for batch in largest]
    parts = max(each_step, key=lambda parts: sum(parts.values()))
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    on_disk = 4 * num_parameters + parts[MOMENTS] + parts[AVERAGES]
    published = gpus.type.rate(config.precision)
    fastest, slowest = (operations / (share * published * 1e12 * gpus.number) / 3600 for share in reversed(UTILIZATION))

    if any(not any(batch.weights.values()) for phase in phases for of_rank in phase.ranks for batch in of_rank):
        progress.warn(f"--batch-size {config.batch_size} leaves some of {gpus.number} GPUs without a sequence; raise it")
    low, high = (f"{share:.0%}" for share in UTILIZATION)
    estimate = f"estimate for {gpus.number} x {gpus.name} in {config.precision}, not measured"
    rate = f"{low} to {high} utilization of the {published:g} TFLOP/s in NVIDIA's data sheet"
    progress.note(f"{estimate}: the hours assume {rate}, and exclude evaluations and waiting for other GPUs")
    total, most = sum(parts.values()) / 1e9, gpus.type.memory
    sizes = {**{name: size / 1e9 for name, size in parts.items() if size}, "total": total, f"one {gpus.name} has": most}
    rows = [[name, f"{size:.2f}"] for name, size in sizes.items()]
    by_part = Table(f"memory per GPU, with at most {config.micro_batch_tokens} tokens at once", ["what", "GB"], rows)
    values = {
        "parameters": num_parameters,
        "steps": steps,
        "tokens per step": round(tokens / steps),
        "operations": f"{operations:.2g}",
        "hours, not measured": f"{fastest:.2g} to {slowest:.2g}",
        "checkpoint, GB": f"{on_disk / 1e9:.2f}",
    }
    show(Report([by_part, Table("estimate of the training; nothing was run", [*values], [[*values.values()]])]))
    if total > FILLED * most:
        what = f"a step needs {total:.1f} GB; one {gpus.name} has {most} GB, of which {1 - FILLED:.0%} should stay free"
        hint = f"lower --micro-batch-tokens, which is {config.micro_batch_tokens}, or add --activation-checkpointing"
        raise UsageError(what, hint=hint)
    return values | {"memory": parts, "hours": (fastest, slowest), "on_disk": on_disk}


def memory(
    build: Build, batch: Batch, config: TrainConfig, *, num_processes: int, accumulates: bool, averaging: bool
) -> dict[str, int]:
    """The peak memory in bytes, by content, of a GPU that trains a model on micro-batches like `batch`.

    accumulates: whether steps have several micro-batches. SCORES: what the matrix-product kernel keeps, but a GPU's kernels do
    not.
    """
    module = _shapes(build, config)
    set_dropout(module, config.dropout, config.attention_dropout)
    set_activation_checkpointing(module, config.activation_checkpointing)
    optimizer = Optimizer(module, config, dtype=DTYPES[config.precision], num_processes=num_processes)
    masters = optimizer.masters.values()
    own = [master for name, master in optimizer.masters.items() if master is not optimizer.parameters[name]]
    in_float32 = num_processes > 1 or (accumulates and own)
    decoder = [parameter for parameter in module.cls.predictions.decoder.parameters() if parameter.requires_grad]

    batch = batch.to(META)
    with _LiveTensors() as live:
        loss = torch.stack([*module.train()(batch).loss_sums.values()]).sum()
        scores = 0 if config.activation_checkpointing else _scores(module, batch)
        kept = live.bytes - _bytes(decoder) - scores
        optimizer.backward(loss, last=optimizer.shared is None)
    return {
        f"weights in {config.precision}": _bytes(optimizer.parameters.values()),
        "float32 masters": _bytes(own),
        MOMENTS: _bytes(moment for moments in optimizer.moments.values() for moment in moments.values()),
        AVERAGES: _bytes(masters) if averaging else 0,
        "gradients, summed in float32": _bytes(optimizer.masters[name] for name in optimizer.trained) if in_float32 else 0,
        "activations": kept,
        SCORES: scores,
        "vocabulary gradient": _bytes(decoder),
        "scores of a chunk, intermediate gradients": live.most - scores - kept - _bytes(decoder),
    }


def _scores(module: LanguageModel, batch: Batch) -> int:
    """The bytes that the matrix-product kernel keeps for each query and key: with dropout, the weight, the mask and their
    product; without dropout, torch's own such kernel is used, which keeps scores and weights."""
    encoder = module.bert.encoder
    dropout = any(isinstance(part, BertSelfAttention) and part.dropout.active for part in encoder.modules())
    dtype = next(module.parameters()).dtype
    packing = encoder.packing(batch, dtype)
    lower, last = (
        sum(rows.num_lines * rows.length * keys.length for rows, keys in zip(*pattern, strict=True))
        for pattern in ((each.queries.layouts, each.keys.layouts) for each in (packing.tokens, packing.rows))
    )
    kept = 3 if dropout else 2
    return kept * dtype.itemsize * encoder.num_heads * ((len(encoder.layer) - 1) * lower + last)


def _shapes(build: Build, config: TrainConfig) -> LanguageModel:
    """The model without values."""
    with torch.device(META):
        module = build()
    freeze(module, config)
    return module


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _LiveTensors(TorchDispatchMode):
    """The bytes held by tensors that were created inside it and still exist, and their maximum so far."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(tensor.untyped_storage()) for tensor in _tensors((args, kwargs))}  # views, in-place updates: nothing new
        made = operation(*args, **(kwargs or {}))
        for storage in {id(own): own for own in (tensor.untyped_storage() for tensor in _tensors(made))}.values():
            if id(storage) not in given:
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        return made

    def _add(self, size: int) -> None:
        self.bytes += size
        self.most = max(self.most, self.bytes)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
