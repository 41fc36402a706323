"""Shared by the engines: from Arrow tables to the same tables with a model's predictions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import torch

from bertkit.errors import UsageError
from bertkit.runs.inference.loading import load
from bertkit.runs.inference.predictor import Predictor

TEXT, NUMBER, PLACE = pa.string(), pa.float64(), pa.int64()
SPAN = {"start": PLACE, "end": PLACE, "text": TEXT, "probability": NUMBER}
# Types that a single batch may not reveal: a list can be empty in all rows, and an answer can have no place.
TYPES = {
    "answer": TEXT,
    "choice": PLACE,
    "end": PLACE,
    "entities": pa.list_(pa.struct(SPAN | {"label": TEXT})),
    "fills": pa.list_(pa.list_(pa.struct({"token": TEXT, "probability": NUMBER}))),
    "intent": TEXT,
    "intent_probability": NUMBER,
    "label": TEXT,
    "labels": pa.list_(TEXT),
    "nbest": pa.list_(pa.struct(SPAN | {"start_logit": NUMBER, "end_logit": NUMBER})),
    "null_odds": NUMBER,
    "offsets": pa.list_(pa.list_(PLACE)),
    "prediction": NUMBER,
    "probabilities": pa.list_(NUMBER),
    "probability": NUMBER,
    "question": TEXT,
    "start": PLACE,
    "tags": pa.list_(TEXT),
    "text": TEXT,
    "text_pair": TEXT,
    "tokens": pa.list_(TEXT),
}
OF_LABELS = pa.map_(TEXT, NUMBER)  # the probabilities of several labels, by name


class Opening(TypedDict):
    """How every worker opens the model, so that no decision depends on the worker."""

    model: str
    device: str
    precision: str


def open_here(model: str | Path, device: str, precision: str) -> tuple[Predictor, Opening]:
    """The model in the process that starts the workers, and how they open it: a precision "auto" is resolved here, once.

    Raises ModelError, MachineError; and UsageError for "auto" or "int8" if only the workers have GPUs.
    """
    name = str(Path(model).absolute()) if Path(model).exists() else str(model)  # workers have other working folders
    if device == "cpu" or torch.cuda.is_available():
        predictor = load(name, device, precision)
        return predictor, {"model": name, "device": device, "precision": predictor.precision.name}
    if precision in ("auto", "int8"):
        what = f"precision is {precision!r}, which depends on the workers' GPUs, and there is none here to ask"
        raise UsageError(what, hint='choose precision="bf16", "fp16", "tf32" or "fp32"')
    return load(name, "cpu", "fp32"), {"model": name, "device": device, "precision": precision}


def predicted_fields(predictor: Predictor, names: list[str]) -> tuple[list[str], list[pa.Field]]:
    """For a table with these columns: their names in the output, and the fields of the predicted columns.

    Raises DataError for a missing column.
    """
    inputs, added = predictor.output_columns(names)
    types = TYPES | ({"probabilities": OF_LABELS} if predictor.presentation.family == "text-classification" else {})
    return inputs, [pa.field(name, types[name]) for name in added]


class TablePredictor:
    """A model in a worker: called on a table, it returns the table with its columns unchanged and those of the predictions.

    num_threads: the number to compute with. By default, torch would use all cores in each worker of a machine, and these would
    wait for each other.
    """

    def __init__(self, model: str, device: str, precision: str, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        os.environ.setdefault("RAYON_NUM_THREADS", str(num_threads))  # the tokenizer's
        self.predictor = load(model, device, precision)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Raises DataError with the row, by its id if there is a column `id`."""
        inputs, fields = predicted_fields(self.predictor, table.column_names)
        columns = self.predictor(table.to_pydict())
        table = table.rename_columns(inputs)
        for field in fields:
            table = table.append_column(field, pa.array(columns[field.name], field.type))
        return table
