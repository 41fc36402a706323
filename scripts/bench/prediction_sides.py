"""How each side predicts: its model is opened from a task's folder, and then maps rows to decisions.

A decision is a label, or the list of the words' tags. The other libraries get the rows of a call sorted by length, in batches
of 32 that are padded to their longest row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.bench.prediction_inputs import BATCH, MAX_LENGTH, Inputs, Rows, padded_batches, peer_model, peer_tokenizer
from scripts.bench.prediction_models import ONNX, ONNX_INT8, OPENVINO, OPENVINO_INT8, RUN

Decide = Callable[[Rows], list[Any]]


def threads() -> int:
    """How many a side may use: what torch takes too."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(os.environ.get("OMP_NUM_THREADS") or cores)


# --- bertkit ---------------------------------------------------------------------------------------------------------------


def open_bertkit(folder: Path, family: str, precision: str) -> Decide:
    import bertkit

    predictor = bertkit.load(folder / RUN, device="cpu", precision=precision)
    columns = {"text-classification": ("text", "text_pair"), "token-classification": ("tokens",)}[family]

    def form(row: Mapping[str, Any]) -> Any:
        found = [row[name] for name in columns if name in row]
        return found if len(found) > 1 else found[0]

    return lambda rows: [prediction.value for prediction in predictor.predict([form(row) for row in rows])]


# --- peers: rows in, logits out, decisions ---------------------------------------------------------------------------------


def tags_of(logits: NDArray, words: Sequence[int | None], names: Mapping[int, str], count: int) -> list[str]:
    """The tag of each word, by its first piece; "O" for words that were cut off."""
    best = logits.argmax(-1).tolist()
    tags = ["O"] * count
    for at, (before, word) in enumerate(pairwise([None, *words])):
        if word is not None and word != before:
            tags[word] = names[best[at]]
    return tags


def open_padded(folder: Path, family: str, open_model: Callable[[Path, str], Callable[[Inputs], NDArray]]) -> Decide:
    """open_model: (folder, family) -> inputs to logits."""
    from transformers import AutoConfig

    tokenizer, names = peer_tokenizer(folder / RUN), AutoConfig.from_pretrained(folder / RUN).id2label
    run = open_model(folder, family)

    def decide(rows: Rows) -> list[Any]:
        decisions: list[Any] = [None] * len(rows)
        found, batches = padded_batches(tokenizer, rows)
        for chosen, inputs in batches:
            for at, logits in zip(chosen, run(inputs)):
                if family == "token-classification":
                    decisions[at] = tags_of(logits, found.word_ids(at), names, len(rows[at]["tokens"]))
                else:
                    decisions[at] = names[int(logits.argmax())]
        return decisions

    return decide


def open_torch(folder: Path, family: str, dtype: str = "float32") -> Callable[[Inputs], NDArray]:
    import torch

    model = peer_model(family, folder / RUN, attn_implementation="sdpa", dtype=getattr(torch, dtype))

    @torch.inference_mode()
    def run(inputs: Inputs) -> NDArray:
        return model(**{name: torch.from_numpy(values) for name, values in inputs.items()}).logits.float().numpy()

    return run


def open_onnx(folder: Path, family: str, graph: str) -> Callable[[Inputs], NDArray]:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads()
    session = onnxruntime.InferenceSession(folder / graph, settings, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


def open_openvino(folder: Path, family: str, graph: str, **hints: str) -> Callable[[Inputs], NDArray]:
    """hints: else OpenVINO's own choice."""
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads(), **hints}
    request = openvino.Core().compile_model(folder / graph, "CPU", settings).create_infer_request()
    return lambda inputs: request.infer(inputs)[0]


def open_pipeline(folder: Path, family: str) -> Decide:
    """transformers' pipeline, which batches neighbours: rows come sorted by their number of characters."""
    import torch
    from transformers import pipeline

    tagging = family == "token-classification"
    model, tokenizer = peer_model(family, folder / RUN, attn_implementation="sdpa"), peer_tokenizer(folder / RUN)
    tokenizer.model_max_length = MAX_LENGTH
    pipe = pipeline(family, model=model, tokenizer=tokenizer, device=torch.device("cpu"))

    def form(row: Mapping[str, Any]) -> Any:
        return row["tokens"] if tagging else {name: row[name] for name in ("text", "text_pair") if name in row}

    def decision(row: Mapping[str, Any], found: Any) -> Any:
        if not tagging:
            return found["label"]
        by_start = {piece["start"]: piece["entity"] for piece in found}
        starts = np.cumsum([0, *(len(word) + 1 for word in row["tokens"])]).tolist()
        return [by_start.get(start, "O") for start in starts[:-1]]

    how: dict[str, Any] = {"truncation": True, "max_length": MAX_LENGTH}
    if tagging:
        how = {"is_split_into_words": True, "ignore_labels": []}  # it truncates by itself

    def decide(rows: Rows) -> list[Any]:
        order = sorted(range(len(rows)), key=lambda at: len(str(form(rows[at]))))
        results = pipe([form(rows[at]) for at in order], batch_size=BATCH, **how)
        decisions: list[Any] = [None] * len(rows)
        for at, found in zip(order, results):
            decisions[at] = decision(rows[at], found)
        return decisions

    return decide


# --- the table -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """kind: "float" computes in floating point, "int8" in 8 bits. graphs: of a task's folder, that the side needs; and packages
    of the extra `bench`."""

    label: str
    kind: str
    open: Callable[[Path, str], Decide]
    graphs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    ours: bool = False


def _bertkit(precision: str) -> Side:
    kind = "int8" if precision == "int8" else "float"
    return Side(f"bertkit, {precision}", kind, partial(open_bertkit, precision=precision), ours=True)


def _padded(label: str, kind: str, open_model: Callable[..., Any], *graphs: str, **named: Any) -> Side:
    """graphs: the last one is run, and was made of the others."""
    named |= {"graph": graphs[-1]} if graphs else {}
    packages = {open_onnx: ("onnxruntime",), open_openvino: ("openvino", "nncf")}.get(open_model, ())
    return Side(label, kind, partial(open_padded, open_model=partial(open_model, **named)), graphs, packages)


FP32, BF16 = ({"INFERENCE_PRECISION_HINT": name} for name in ("f32", "bf16"))
SIDES = {
    **{f"bertkit-{precision}": _bertkit(precision) for precision in ("fp32", "bf16", "int8")},
    "pipeline": Side("transformers pipeline, fp32", "float", open_pipeline),
    "torch": _padded("torch loop, fp32", "float", open_torch),
    "torch-bf16": _padded("torch loop, bf16", "float", open_torch, dtype="bfloat16"),
    "onnx": _padded("ONNX Runtime, fp32", "float", open_onnx, ONNX),
    "onnx-int8": _padded("ONNX Runtime, int8 (dynamic)", "int8", open_onnx, ONNX, ONNX_INT8),
    "openvino": _padded("OpenVINO, fp32", "float", open_openvino, OPENVINO, **FP32),
    "openvino-bf16": _padded("OpenVINO, bf16", "float", open_openvino, OPENVINO, **BF16),
    "openvino-int8": _padded("OpenVINO, int8 (NNCF)", "int8", open_openvino, OPENVINO, OPENVINO_INT8),
}


def available() -> list[str]:
    """The sides that there are: bertkit's in the precisions that it has."""
    from bertkit.model.precision import DTYPES

    return [side for side in SIDES if not SIDES[side].ours or side.removeprefix("bertkit-") in DTYPES]
