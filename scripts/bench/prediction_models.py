"""A fine-tuned run of a task, its rows, and its model for ONNX Runtime and OpenVINO, for prediction.py to time.

    python -m scripts.bench.prediction_models mrpc --work FOLDER --data DATA

Existing files are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.bench.prediction_inputs import INPUTS, MAX_LENGTH, padded_batches, peer_model, peer_tokenizer, read_rows
from scripts.bench.task_rows import read_columns
from scripts.provenance import ROOT
from scripts.turns import bertkit_command, typed

MODEL, SEED = "minilm", 1
WORK = ROOT / "runs" / "bench_prediction"
CALIBRATED_ON = 300  # training rows, as NNCF advises
# In a task's folder:
RUN, TRAIN, DEV, MADE_BY = "run", "train.jsonl", "dev.jsonl", "made-by.json"
GRAPHS = ONNX, ONNX_INT8, OPENVINO, OPENVINO_INT8 = "model.onnx", "model-int8.onnx", "openvino.xml", "openvino-int8.xml"


@dataclass(frozen=True)
class Task:
    """folder: of its data. settings: of the fine-tuning, long enough that its decisions are not those of chance."""

    family: str
    folder: str
    score: str
    settings: dict[str, Any]


TASKS = {
    "mrpc": Task("text-classification", "GLUE/MRPC", "accuracy", {"learning-rate": 1e-4, "num-epochs": 3}),
    "sst2": Task(
        "text-classification", "GLUE/SST-2", "accuracy", {"learning-rate": 1e-4, "num-epochs": 1, "max-train-samples": 4000}
    ),
    "conll2003": Task(
        "token-classification", "CoNLL2003", "f1", {"learning-rate": 5e-4, "num-epochs": 1, "max-train-samples": 5000}
    ),
}


def make(task: str, folder: Path, data: str | None, graphs: Collection[str] = GRAPHS) -> list[str]:
    """The rows, the run and these graphs of a task, in its folder; those of other settings go away. Returns what was made."""
    made_by = json.dumps({"model": MODEL, "seed": SEED, "max_length": MAX_LENGTH, **asdict(TASKS[task])})
    if (folder / MADE_BY).is_file() and (folder / MADE_BY).read_text(encoding="utf-8") != made_by:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MADE_BY).write_text(made_by, encoding="utf-8")
    makers: dict[str, Callable[[Path], None]] = {
        TRAIN: lambda path: write_rows(task, data, "train", path),
        DEV: lambda path: write_rows(task, data, "validation", path),
        RUN: lambda path: fine_tune(task, data, path),
        ONNX: lambda path: write_onnx(TASKS[task].family, folder / RUN, path),
        ONNX_INT8: lambda path: quantize_onnx(folder / ONNX, path),
        OPENVINO: lambda path: write_openvino(TASKS[task].family, folder / RUN, path),
        OPENVINO_INT8: lambda path: quantize_openvino(folder, path),
    }
    made = [name for name in makers if (name in graphs or name not in GRAPHS) and not (folder / name).exists()]
    for name in made:
        partial = folder / f"partial-{name}"
        if partial.is_dir():
            shutil.rmtree(partial)
        makers[name](partial)
        for path in (partial, partial.with_suffix(".bin")):  # OpenVINO has its weights in a file of their own
            if path.exists():
                os.replace(path, folder / path.name.removeprefix("partial-"))
    return made


def write_rows(task: str, data: str | None, split: str, path: Path) -> None:
    """The rows of a split as JSON lines, labels by name."""
    columns = read_columns(task, TASKS[task].folder, data, split)[1]
    rows = (dict(zip(columns, row)) for row in zip(*columns.values()))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def fine_tune(task: str, data: str | None, path: Path) -> None:
    named = {"data": Path(data) / TASKS[task].folder if data else None, "model": MODEL, "seed": SEED, "output-dir": path}
    words = typed({**named, "max-length": MAX_LENGTH, **TASKS[task].settings})
    subprocess.run([*bertkit_command(), "finetune", task, *words], cwd=ROOT, stdout=sys.stderr, check=True)


def _example() -> tuple[Any, ...]:
    import torch

    ids = torch.ones(2, 16, dtype=torch.int64)
    return ids, torch.ones_like(ids), torch.zeros_like(ids)


def write_onnx(family: str, run: Path, path: Path) -> None:
    """The graph in float32, its layers fused by ONNX Runtime's optimizer for transformers."""
    import torch
    from onnxruntime.transformers.optimizer import optimize_model

    model = peer_model(family, run, attn_implementation="eager")  # whose attention the optimizer knows
    axes = {0: "batch", 1: "length"}
    torch.onnx.export(
        model,
        _example(),
        str(path),
        dynamo=False,
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamic_axes=dict.fromkeys(INPUTS, axes) | {"logits": axes if family == "token-classification" else {0: "batch"}},
        opset_version=17,
    )
    config = model.config
    fused = optimize_model(str(path), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size)
    fused.save_model_to_file(str(path))


def quantize_onnx(source: Path, path: Path) -> None:
    """8 bits as ONNX Runtime advises for transformers: dynamically, after fusing, each channel by a scale of its own."""
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    default = {"DefaultTensorType": TensorProto.FLOAT}  # of fused layers, whose types onnx cannot infer
    quantize_dynamic(source, path, per_channel=True, weight_type=QuantType.QInt8, extra_options=default)


def write_openvino(family: str, run: Path, path: Path) -> None:
    import openvino

    model = peer_model(family, run)
    shape = openvino.PartialShape([-1, -1])
    inputs = dict(zip(INPUTS, _example()))
    converted = openvino.convert_model(model, example_input=inputs, input=[(name, shape) for name in INPUTS])
    openvino.save_model(converted, path, compress_to_fp16=False)


def quantize_openvino(folder: Path, path: Path) -> None:
    """8 bits as NNCF advises for transformers: after training, calibrated on some of its rows."""
    import nncf
    import openvino

    rows = read_rows(folder / TRAIN)
    rows = rows[:: max(1, len(rows) // CALIBRATED_ON)][:CALIBRATED_ON]
    samples = [inputs for _, inputs in padded_batches(peer_tokenizer(folder / RUN), rows, 1)[1]]
    model = openvino.Core().read_model(folder / OPENVINO)
    how = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(samples)}
    quantized = nncf.quantize(model, nncf.Dataset(samples), **how)
    openvino.save_model(quantized, path, compress_to_fp16=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--work", type=Path, required=True, help="folder of the tasks' folders")
    parser.add_argument("--data", help="folder of the data sets; default: the hub")
    parser.add_argument("--graphs", default=",".join(GRAPHS), help="comma-separated [%(default)s]")
    options = parser.parse_args()
    print(json.dumps({"made": make(options.task, options.work / options.task, options.data, options.graphs.split(","))}))


if __name__ == "__main__":
    main()
