"""`bertkit.load`: opens a model as the right kind of Predictor."""

from __future__ import annotations

from pathlib import Path

from bertkit.config import TrainConfig, convert, options_of
from bertkit.model.directory import read_config, resolve
from bertkit.runs.inference.language_model import LanguageModelPredictor, is_language_model
from bertkit.runs.inference.predictor import Predictor
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.tasks.block import read_block


def kind_of(name: str) -> type[Predictor]:
    """The kind of predictor for a model, by its config.json. Raises ModelError, UsageError."""
    if is_language_model(name):
        return LanguageModelPredictor
    return Predictor if read_block(read_config(resolve(name)), name) is None else TaskPredictor


def load(model: str | Path, device: str = "auto", precision: str = "auto") -> Predictor:
    """Open a run folder, or any Hugging Face BERT by folder or hub id, for use.

    device: cpu, cuda, mps, or auto, the fastest kind available. precision: as in --precision; on a CPU, auto is measured.
    Remarks on the model are issued as warnings. Raises ModelError, MachineError, UsageError.
    """
    declared = options_of(TrainConfig)
    device, precision = convert(declared["device"], device), convert(declared["precision"], precision)
    return kind_of(str(model)).open(str(model), device, precision)
