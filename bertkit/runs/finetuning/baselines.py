"""The baselines that a model must beat on its own data: fitting them, and comparing the trained model with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.errors import UsageError, plural
from bertkit.metrics import bootstrap
from bertkit.metrics.bootstrap import Scorer, difference, interval
from bertkit.metrics.classification import METRICS, can_be_resampled
from bertkit.model.directory import load_weights
from bertkit.model.heads import Vectors
from bertkit.model.precision import resolve_precision
from bertkit.model.pretrained import Pretrained
from bertkit.readers import Examples
from bertkit.report import Finding, Report, Table
from bertkit.runs.forward import outputs_of
from bertkit.tasks.baselines import LINEAR_PROBE, Frozen, some_rows
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task

if TYPE_CHECKING:
    from accelerate import Accelerator

MOST_ROWS, MOST_COMPARED = 20_000, 2000  # rows to fit to, and to score: more would be slower, and say little more
MOST_OPERATIONS = 1e13  # for the linear probe's forward passes, a minute on a CPU; beyond this, it is fitted to fewer rows
FEWEST_ROWS = 200


@dataclass(frozen=True)
class Baselines:
    """predictions: of each baseline, for the examples, which are rows of `split` with the task's label names.

    fitted_to: the number of training rows that each was fitted to.
    """

    task: Task
    split: str
    examples: Examples
    predictions: Mapping[str, Sequence[Prediction]]
    fitted_to: Mapping[str, int]

    def scores(self) -> dict[str, dict[str, float | None]]:
        """All scores of each baseline."""
        truth = self.task.truth(self.examples)
        return {name: self.task.score(predictions, truth) for name, predictions in self.predictions.items()}

    def first_scores(self) -> dict[str, float | None]:
        """The first score of each baseline."""
        return {name: next(iter(scores.values())) for name, scores in self.scores().items()}

    def report(self) -> Report:
        """A table of the scores to beat."""
        scores = self.scores()
        first = next(iter(next(iter(scores.values()))))
        title = f"to beat: {first} on {plural(len(self.examples), 'row')} of {self.split}"
        rows = [[name, of[first], self.fitted_to[name]] for name, of in scores.items()]
        return Report([Table(title, ["baseline", first, "training rows"], rows)])

    def compare(self, predictions: Sequence[Prediction]) -> Report:
        """Compare a model's predictions for the same examples with the baselines.

        A warning if the interval of the difference is below 0 (worse), a note if it is not above 0 (not clearly better). A
        difference without an interval counts as it is.
        """
        task = self.task
        truth = task.truth(self.examples)
        model = task.scorer(predictions, truth)
        worse, not_better = [], []
        everything = np.arange(len(truth))
        first, own = next(iter(model(everything).items()))
        rows: list[list[Any]] = [["this model", own, None, None, None]]
        sign = 1 if task.recipe.greater_is_better else -1

        def resampled_scores(scorer: Scorer) -> list[float | None]:
            draws = bootstrap.FEWER if can_be_resampled(task.recipe.metrics) else 0
            return [scorer(drawn)[first] for drawn in bootstrap.resampled(len(truth), draws)]

        of_model = resampled_scores(model)
        for name, others in self.predictions.items():
            scorer = task.scorer(others, truth)
            bounds = interval([*map(difference, of_model, resampled_scores(scorer))])
            score = scorer(everything)[first]
            gain = difference(own, score)
            rows.append([name, score, gain, progress.format_interval(bounds, "+.4f"), self.fitted_to[name]])
            low, high = sorted(sign * (value or 0) for value in bounds or (gain, gain))  # an undefined gain is none
            if high < 0:
                worse.append(name)
            elif score is not None and low <= 0:
                not_better.append(name)
        columns = ["predictions", first, "this model minus baseline", "95% interval", "training rows"]
        parts: list[Table | Finding] = [Table(f"{self.split}, {plural(len(truth), 'row')}", columns, rows)]
        verdicts = (("warning", "worse than", worse), ("note", "not clearly better than", not_better))
        hint = self._advice(own)
        for severity, how, names in verdicts:
            if names:
                what = f"{self.split}: the model is {how} these baselines: {', '.join(names)}"
                parts.append(Finding(severity, what, (), hint))
                hint = None  # once is enough
        return Report(parts)

    def _advice(self, score: float | None) -> str | None:
        """Advice for a model with this score; None if no score could be higher."""
        if score == 1 and self.task.recipe.greater_is_better:
            return None
        return f"try {self.task.recipe.training.longer}, or another --learning-rate"


def fit_baselines(
    task: Task,
    train: Examples,
    held_out: Examples,
    split: str,
    pretrained: Pretrained | None = None,
    accelerator: Accelerator | None = None,
) -> Baselines | None:
    """The task's baselines on (some of) the held-out examples; None if it has none.

    train, held_out: with label names. The linear probe uses the weights of `pretrained` before fine-tuning; without it,
    there is no probe.
    """
    train, held_out = _some(train, MOST_ROWS), _some(held_out, MOST_COMPARED)
    model = None
    if pretrained is not None and accelerator is not None:
        operations, words = _cost_of_row(task, train, pretrained)
        affordable = int(MOST_OPERATIONS / operations) if accelerator.device.type == "cpu" else MOST_ROWS + MOST_COMPARED
        held_out = _some(held_out, max(FEWEST_ROWS, affordable - len(train), affordable // 3))
        vectors = partial(frozen_vectors, task, pretrained=pretrained, accelerator=accelerator)
        most = max(FEWEST_ROWS, min(affordable - len(held_out), int(MOST_ROWS / words)))
        model = Frozen(vectors, min(len(train), most))
    predictions = {}
    truth = task.truth(held_out)
    for name, predicted in task.baselines(train, held_out, model).items():
        try:
            task.score(predicted, truth)
            predictions[name] = predicted
        except UsageError as error:  # a user's metric may fail on predictions that are all equal
            progress.warn(f"the baseline {name!r} is left out: {error}")
    fitted_to = dict.fromkeys(predictions, len(train)) | ({LINEAR_PROBE: model.most_rows} if model is not None else {})
    return Baselines(task, split, held_out, predictions, fitted_to) if predictions else None


def refuse_failing_metrics(task: Task, train: Examples, held_out: Examples) -> None:
    """Raise UsageError for a user's metric that fails on a baseline, before the training that it would end. It may fail on
    predictions that are all equal.
    """
    if all(metric in METRICS.values() for metric in task.recipe.metrics):
        return
    train, held_out = _some(train, MOST_COMPARED), _some(held_out, MOST_ROWS)
    truth = task.truth(held_out)
    for predicted in task.baselines(train, held_out, None).values():
        if task.distinct(predicted) > 1:
            task.score(predicted, truth)


def baselines_of_data(recipe: Recipe, split: str) -> Baselines | None:
    """The baselines that need no model, of a resolved recipe on one of its splits; None if its task has none."""
    data = read_splits(recipe, [recipe.train_split, split])
    assert data.training is not None
    task = Task.fit(recipe, data.training)
    train, held_out = (task.examples(data.rows[name], labelled=True) for name in (recipe.train_split, split))
    return fit_baselines(task, train, held_out, split)


def _cost_of_row(task: Task, examples: Examples, pretrained: Pretrained) -> tuple[float, float]:
    """The operations of a row's forward pass, and its number of vectors: one per word for a tagger, else one."""
    config = pretrained.config
    of_layer = 2 * config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
    sample = _some(examples, FEWEST_ROWS)
    features = task.encode(sample, pretrained.tokenizer, labelled=False).features
    operations = config.num_hidden_layers * of_layer * len(features.input_ids.values)
    vectors = len(features.rows.values) if task.by_word and features.rows is not None else len(sample)
    return operations / len(sample), vectors / len(sample)


def frozen_vectors(task: Task, examples: Examples, *, pretrained: Pretrained, accelerator: Accelerator) -> NDArray[np.floating]:
    """Hidden states of the last layer: for a tagger, of each word, (words, hidden_size); else the mean over each example,
    (rows, hidden_size), averaged over windows if there are several.
    """
    features, _ = task.encode(examples, pretrained.tokenizer, labelled=False)
    module = Vectors(pretrained.config, layer=-1 if task.by_word else None)
    load_weights(module, pretrained.folder)
    training = task.recipe.training
    precision = resolve_precision(training.precision, pretrained.config, accelerator, training=False)
    module.to(accelerator.device, precision.dtype)
    with progress.bar("linear probe", len(features)) as bar:
        outputs, _ = outputs_of(module, features, training.micro_batch_tokens, accelerator, bar=bar)
    if task.by_word:
        return np.concatenate(outputs["vectors"])
    return features.mean_by_example(np.stack([rows[0] for rows in outputs["vectors"]]), len(examples))


def _some(examples: Examples, most: int) -> Examples:
    return examples if len(examples) <= most else examples.select(some_rows(len(examples), most))
