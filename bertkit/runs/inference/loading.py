"""`bertkit.load`: which kind of Predictor a model is."""

from __future__ import annotations

from pathlib import Path

from bertkit.model.directory import read_config, resolve
from bertkit.runs.inference.language_model import LanguageModelPredictor, is_language_model
from bertkit.runs.inference.predictor import Predictor, TaskPredictor
from bertkit.tasks.block import read_block


def load(model: str | Path, device: str = "auto", precision: str = "auto") -> Predictor:
    """Open a run folder, or any Hugging Face BERT by folder or hub id, to use it.

    device: cpu, cuda, mps, or auto, the fastest kind that there is. precision: one of --precision's; auto is measured on a CPU.
    What the user should know of the model is a warning. Raises ModelError, MachineError.
    """
    name = str(model)
    if is_language_model(name):
        return LanguageModelPredictor.open(name, device, precision)
    has_task = read_block(read_config(resolve(name)), name) is not None
    return (TaskPredictor if has_task else Predictor).open(name, device, precision)
