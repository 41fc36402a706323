"""`bertkit.load`: opens a model as the right kind of Predictor."""

from __future__ import annotations

from pathlib import Path

from bertkit.model.directory import read_config, resolve
from bertkit.runs.inference.language_model import LanguageModelPredictor, is_language_model
from bertkit.runs.inference.predictor import Predictor
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.tasks.block import read_block


def load(model: str | Path, device: str = "auto", precision: str = "auto") -> Predictor:
    """Open a run folder, or any Hugging Face BERT by folder or hub id, for use.

    device: cpu, cuda, mps, or auto, the fastest kind available. precision: as in --precision; on a CPU, auto is measured.
    Remarks on the model are issued as warnings. Raises ModelError, MachineError.
    """
    name = str(model)
    if is_language_model(name):
        return LanguageModelPredictor.open(name, device, precision)
    has_task = read_block(read_config(resolve(name)), name) is not None
    return (TaskPredictor if has_task else Predictor).open(name, device, precision)
