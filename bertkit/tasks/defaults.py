"""Training settings that neither recipe nor user sets: chosen by the model's size, the rows, their labels and lengths.

Small models need higher learning rates than BERT-base (Turc et al., 2019, section 3), and runs on few rows fail for lack of
steps (Mosbach et al., 2021). For 12 layers of 768, the choice is one of Devlin et al. (2019), appendix A.3. docs/defaults.md
explains the rule, and what it gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from bertkit.errors import plural
from bertkit.model.pretrained import Pretrained
from bertkit.readers import Examples
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task

BASE_SIZE = 12 * 768  # layers times hidden size, of BERT-base
BASE_RATE, HIGHEST_RATE = 5e-5, 3e-4
MANY_ROWS = 10_000  # three epochs over them in batches of 32 give enough steps
STEPS, STEPS_PER_LABEL = 600, 10
MANY_LABELS, STEPS_PER_MORE = 20, 40  # each label beyond so many takes more steps
FEWEST_EPOCHS, MOST_EPOCHS, MOST_EPOCHS_OF_SMALL = 3, 4, 7  # for BERT-base and larger models; the last for smaller ones
FEW_ROWS, MOST_EPOCHS_OF_FEW = 150, 20  # so many epochs cost smaller models only seconds
COVERED = 0.95  # share of the texts that max_length should not truncate
SAMPLE = 2000  # rows whose lengths are measured
STEP = 8  # lengths are multiples of it


def choose_settings(
    recipe: Recipe, rows: Examples, pretrained: Pretrained, *, earlier: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Choices for the training settings that a resolved recipe does not set, and "by" what they were chosen; empty if none.

    rows: the training rows, as in the data. earlier: settings of a run to resume, which are not chosen again. Raises DataError
    for rows that cannot be trained on.
    """
    stated = {**(earlier or {}), **{name: value for name, value in asdict(recipe.training).items() if value is not None}}
    left = [name for name in _CHOICES if stated.get(name) is None]
    if "max_steps" in stated and "num_epochs" in left:
        left.remove("num_epochs")
    if not left:
        return {}
    named = replace(recipe, **recipe.find_columns(rows).named)
    examples = named.standardize(rows, labelled=True)
    labels = set() if recipe.predicts_numbers else {name for names in named.labels_of(examples) for name in names}
    model = pretrained.config
    size = model.num_hidden_layers * model.hidden_size
    of_labels = f"{plural(len(labels), 'label')}, " if len(labels) > 1 else ""
    of_model = f"{plural(model.num_hidden_layers, 'layer')}, hidden size {model.hidden_size}"
    rows_learned = recipe.num_learned(examples)
    chosen: dict[str, Any] = {"by": f"{plural(rows_learned, 'row')}, {of_labels}{of_model}"}
    if "learning_rate" in left:
        chosen["learning_rate"] = float(f"{min(HIGHEST_RATE, BASE_RATE * math.sqrt(BASE_SIZE / max(size, 1))):.1e}")
    if "batch_size" in left:
        chosen["batch_size"] = 16 if rows_learned < MANY_ROWS else 32
    if "num_epochs" in left:
        more = max(0, len(labels) - MANY_LABELS)
        steps = STEPS + STEPS_PER_LABEL * (len(labels) - more) + STEPS_PER_MORE * more
        epochs = math.ceil(steps * (stated | chosen)["batch_size"] / max(1, rows_learned))
        of_small = MOST_EPOCHS_OF_FEW if rows_learned < FEW_ROWS else MOST_EPOCHS_OF_SMALL
        most = of_small if size < BASE_SIZE else MOST_EPOCHS
        chosen["num_epochs"] = min(max(epochs, FEWEST_EPOCHS), most)
    if "max_length" in left:
        chosen["max_length"] = _max_length(named, examples, pretrained)
    return chosen


_CHOICES = ("learning_rate", "batch_size", "num_epochs", "max_length")


def _max_length(recipe: Recipe, examples: Examples, pretrained: Pretrained) -> int:
    """The family's usual length, or more if otherwise more than a few texts would be truncated."""
    most = pretrained.config.max_position_embeddings
    usual = min(recipe.usual_length, most)
    if not recipe.truncates:
        return usual
    sample = examples.select(range(0, len(examples), math.ceil(len(examples) / SAMPLE)))
    features, _ = Task.unfitted(recipe).encode(sample, pretrained.tokenizer, max_length=math.inf, labelled=False)
    needed = float(np.quantile(features.input_ids.lengths, COVERED))
    return min(max(usual, math.ceil(needed / STEP) * STEP), most)
