"""What a model must beat on its own data: fitted before it is trained, compared with it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.metrics.bootstrap import interval, resampled
from bertkit.model.directory import load_weights
from bertkit.model.heads import Vectors
from bertkit.model.precision import resolve_precision
from bertkit.model.pretrained import Pretrained
from bertkit.readers import Examples
from bertkit.report import Finding, Report, Table
from bertkit.runs.evaluate import predict
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Prediction, Task
from bertkit.training.batching import evaluation_batches

if TYPE_CHECKING:
    from accelerate import Accelerator

MOST_ROWS = {"train": 3000, "compared": 2000}  # more would take longer than seconds, and tell no more
MOST_OPERATIONS = 1e13  # of the linear probe's forward passes on a CPU: a minute; beyond it fewer rows are taken
FEWEST_ROWS = 200
RESAMPLES = 300


@dataclass(frozen=True)
class Baselines:
    """predictions: of each baseline for the examples, which are rows of `split`, with labels as the task names them."""

    task: Task
    split: str
    examples: Examples
    predictions: Mapping[str, Sequence[Prediction]]

    def scores(self) -> dict[str, dict[str, float | None]]:
        """All scores of each."""
        truth = self.task.truth(self.examples)
        return {name: self.task.score(predictions, truth) for name, predictions in self.predictions.items()}

    def first_scores(self) -> dict[str, float | None]:
        """The first score of each."""
        return {name: next(iter(scores.values())) for name, scores in self.scores().items()}

    def report(self) -> Report:
        """A table of the scores to beat."""
        first = next(iter(next(iter(self.scores().values()))))
        title = f"to beat: {first} on {len(self.examples)} rows of {self.split}"
        return Report([Table(title, ["baseline", first], [[name, score] for name, score in self.first_scores().items()])])

    def compare(self, predictions: Sequence[Prediction]) -> Report:
        """A model's predictions for the same examples beside them; a warning if it is worse by an interval below 0."""
        task = self.task
        truth = task.truth(self.examples)
        model = task.scorer(predictions, truth)
        worse = []
        everything = np.arange(len(truth))
        first, own = next(iter(model(everything).items()))
        rows: list[list[Any]] = [["this model", own, None, None]]
        sign = 1 if task.recipe.greater_is_better else -1
        for name, others in self.predictions.items():
            scorer = task.scorer(others, truth)
            draws = resampled(len(truth), RESAMPLES, np.random.default_rng(0))
            bounds = interval([_minus(model(drawn)[first], scorer(drawn)[first]) for drawn in draws])
            score = scorer(everything)[first]
            rows.append([name, score, _minus(own, score), progress.format_interval(bounds, "+.4f")])
            if bounds is not None and max(sign * bound for bound in bounds) < 0:
                worse.append(name)
        columns = ["predictions", first, "this model minus it", "95% interval"]
        parts: list[Table | Finding] = [Table(f"{self.split}, {len(truth)} rows", columns, rows)]
        if worse:
            hint = "more --num-epochs, or a higher --learning-rate"
            what = f"{self.split}: the model is worse than these baselines: {', '.join(worse)}; try {hint}"
            parts.append(Finding("warning", what))
        return Report(parts)


def fit_baselines(
    task: Task,
    train: Examples,
    held_out: Examples,
    split: str,
    pretrained: Pretrained | None = None,
    accelerator: Accelerator | None = None,
) -> Baselines | None:
    """The task's baselines on (some of) the held-out examples; None if it has none.

    train, held_out: with labels by name. The linear probe reads the weights of `pretrained`, which are not trained; without
    them there is none.
    """
    most, vectors = dict(MOST_ROWS), None
    if pretrained is not None and accelerator is not None:
        if accelerator.device.type == "cpu":
            most = _affordable(task, train, pretrained)
        vectors = partial(mean_vectors, task, pretrained=pretrained, accelerator=accelerator)
    held_out = _some(held_out, most["compared"])
    predictions = task.baselines(_some(train, most["train"]), held_out, vectors)
    return Baselines(task, split, held_out, predictions) if predictions else None


def baselines_of_data(recipe: Recipe, split: str) -> Baselines | None:
    """The baselines that need no model, of a resolved recipe on one of its splits; None if its task has none."""
    data = read_splits(recipe, [recipe.train_split, split])
    assert data.training is not None
    task = Task.fit(recipe, data.training)
    train, held_out = (task.examples(data.rows[name], labelled=True) for name in (recipe.train_split, split))
    return fit_baselines(task, train, held_out, split)


def _affordable(task: Task, examples: Examples, pretrained: Pretrained) -> dict[str, int]:
    """As many of MOST_ROWS as the linear probe reads on a CPU in MOST_OPERATIONS, but no fewer than FEWEST_ROWS."""
    config = pretrained.config
    of_layer = 2 * config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
    sample = task.encode(_some(examples, FEWEST_ROWS), pretrained.tokenizer, labelled=False).features
    of_row = config.num_hidden_layers * of_layer * len(sample.input_ids.values) / min(len(examples), FEWEST_ROWS)
    share = min(1.0, MOST_OPERATIONS / (of_row * sum(MOST_ROWS.values())))
    return {name: max(min(FEWEST_ROWS, most), int(share * most)) for name, most in MOST_ROWS.items()}


def mean_vectors(task: Task, examples: Examples, *, pretrained: Pretrained, accelerator: Accelerator) -> NDArray[np.floating]:
    """The mean of each example's hidden states: (rows, hidden_size); of several windows their mean."""
    module = Vectors(pretrained.config)
    load_weights(module, pretrained.folder)
    training = task.recipe.training
    precision = resolve_precision(training.precision, pretrained.config, accelerator, training=False)
    module.to(accelerator.device, precision.dtype)
    features, _ = task.encode(examples, pretrained.tokenizer, labelled=False)
    batches = evaluation_batches(
        features, training.micro_batch_tokens, rank=accelerator.process_index, world_size=accelerator.num_processes
    )
    outputs, _ = predict(module, batches, accelerator, num_features=len(features), description="linear probe")
    found = np.stack([rows[0] for rows in outputs["vectors"]])
    sums = np.zeros((len(examples), found.shape[1]), dtype=np.float32)
    np.add.at(sums, features.examples, found)
    return sums / np.bincount(features.examples, minlength=len(examples))[:, None]


def _some(examples: Examples, most: int) -> Examples:
    if len(examples) <= most:
        return examples
    return examples.select(sorted(np.random.default_rng(0).permutation(len(examples))[:most].tolist()))


def _minus(own: float | None, other: float | None) -> float | None:
    return None if own is None or other is None else own - other
