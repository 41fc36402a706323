"""Heads as ONNX graphs: written, checked against the head, quantized, and run in its place."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.errors import ModelError, packages_of
from bertkit.model.batch import Batch, Outputs, pack
from bertkit.model.heads import BertForMultipleChoice, BertForTokenClassification, Head
from bertkit.model.language_model import likeliest
from bertkit.runs.export.padded import INPUTS, Padded

TOLERANCE = 1e-4  # of logits in float32
# Sequences and tokens of the batches to compare; 0 is the model's maximum length, -1 is one less.
SHAPES = [(1, 2), (1, 3), (1, 7), (1, 16), (1, 31), (1, 64), (1, 127), (1, -1), (1, 0), (2, 2), (2, 5), (2, 9), (2, 33), (2, 0)]
SHAPES += [(3, 4), (3, 17), (3, 100), (4, 11), (5, 13), (6, 29), (7, 8), (8, 3), (9, 21), (16, 6), (17, 19), (32, 12)]
ROUNDS = 5  # of timing
_NAMES = {"start_logits": "start", "end_logits": "end", "intent_logits": "intent"}  # as our heads call them
_QUANTIZED = ["MatMul", "Gather"]  # the linear layers and the embeddings: a quarter of the size


def require_packages() -> None:
    """Raise MachineError where the packages of the extra `export` are missing."""
    with packages_of("export"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401


def write_graph(head: Head, path: Path) -> None:
    """Trace a head, in evaluation on a CPU, into an ONNX file with a dynamic batch and length. Raises ModelError."""
    module = Padded(head).eval().requires_grad_(False)
    axes: dict[int, Any] = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    example = torch.ones(2, 3, dtype=torch.int64)  # a size of 1 would be exported as fixed
    if isinstance(head, BertForMultipleChoice):
        axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("choices"), 2: torch.export.Dim("length")}
        example = torch.ones(2, 3, 4, dtype=torch.int64)
    with _quiet():
        traced = torch.onnx.export(
            module,
            tuple(example.clone() for _ in INPUTS),
            dynamo=True,
            input_names=list(INPUTS),
            output_names=module.outputs,
            dynamic_shapes=dict.fromkeys(INPUTS, axes),
            verbose=False,
        )
        assert traced is not None
        traced.save(str(path), external_data=False)


def quantize(path: Path, target: Path) -> None:
    """Write a graph with 8-bit weights and a scale per channel; activations are quantized at run time.

    One bit is left unused: processors without VNNI add two products in 16 bits, where full 8-bit products would overflow.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            path,
            target,
            op_types_to_quantize=_QUANTIZED,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch and onnxruntime, which warn and log about their own internals."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


class Graph(nn.Module):
    """An ONNX file that replaces the head it was exported from: takes a Batch and returns the same Outputs, without losses."""

    def __init__(self, path: Path, head: Head) -> None:
        super().__init__()
        import onnxruntime

        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.head = head

    def raw(self, batch: Batch) -> dict[str, Tensor]:
        """Like the head's own `raw`: the logits of the rows that the batch names."""
        lengths = batch.cu_seqlens.diff()
        attended = torch.arange(batch.max_seqlen) < lengths[:, None]  # (B, T)
        shape = (len(lengths), batch.max_seqlen)
        inputs = [
            torch.zeros(shape, dtype=torch.int64).masked_scatter(attended, values.long())
            for values in (batch.input_ids, torch.ones_like(batch.input_ids), batch.token_type_ids)
        ]
        if isinstance(self.head, BertForMultipleChoice):
            inputs = [values[None] for values in inputs]
        found = self.session.run(None, {name: values.numpy() for name, values in zip(INPUTS, inputs, strict=True)})
        outputs: dict[str, Tensor] = {}
        for output, values in zip(self.session.get_outputs(), found, strict=True):
            logits = torch.from_numpy(values)
            if isinstance(self.head, BertForMultipleChoice):
                logits = logits.T  # (1, B) -> (B, 1)
            elif output.name != "intent_logits" and not hasattr(self.head, "pooling"):  # of every token
                logits = logits[attended]
                logits = logits if batch.rows is None else logits[batch.rows]
            outputs[_NAMES.get(output.name, output.name)] = logits
        return outputs

    def forward(self, batch: Batch) -> Outputs:
        outputs = self.raw(batch)
        return Outputs({}, self.head.decoded(outputs, batch) if isinstance(self.head, BertForTokenClassification) else outputs)

    def likeliest(self, batch: Batch, k: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Like LanguageModel.likeliest."""
        return likeliest(self.raw(batch)["logits"], k, ids)


def largest_difference(graph: Graph) -> float:
    """The largest difference between the logits of a graph and of its head, on random tokens and padding of SHAPES.

    Raises ModelError if it exceeds TOLERANCE.
    """
    config, generator = graph.head.config, torch.Generator().manual_seed(0)
    longest, worst = config.max_position_embeddings, 0.0
    for count, length in SHAPES:
        size = min(length, longest) if length > 0 else longest + length
        lengths = torch.randint(1, size + 1, (count, 1), generator=generator)
        lengths[0] = size
        mask = (torch.arange(size) < lengths).long()
        ids = torch.randint(config.vocab_size, (count, size), generator=generator)
        types = torch.randint(config.type_vocab_size, (count, size), generator=generator)
        batch, _ = pack(ids, mask, types)
        with torch.inference_mode():
            found, expected = graph.raw(batch), graph.head.raw(batch)
        for name, logits in expected.items():
            difference = (found[name] - logits).abs().max().item()
            worst = difference if difference != difference else max(worst, difference)
            if not worst <= TOLERANCE:
                what = f"the graph's {name} differ by {difference:.2g} for {count} sequences of {size} tokens"
                raise ModelError(
                    f"{what}; expected at most {TOLERANCE:g}",
                    hint="nothing was written; if no weight of the model is NaN, please report this",
                )
    return worst


def speeds(graphs: Sequence[Graph], batches: Sequence[Batch]) -> list[float]:
    """Batches per second of each graph: the medians over ROUNDS, in which the graphs take turns."""
    seconds: list[list[float]] = [[] for _ in graphs]
    for number in range(ROUNDS + 1):
        for graph, measured in zip(graphs, seconds, strict=True):
            begin = time.perf_counter()
            for batch in batches:
                graph.raw(batch)
            if number:  # the first round warms up
                measured.append(time.perf_counter() - begin)
    return [len(batches) / float(np.median(measured)) for measured in seconds]
