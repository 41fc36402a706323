"""A predictor that knows its task: predictions in the terms of one of the task families, scores, and explanations."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertkit import progress
from bertkit.errors import UsageError, did_you_mean
from bertkit.metrics.confident_learning import Judged
from bertkit.model.devices import OneProcess, Processes, start_accelerator, start_processes
from bertkit.model.precision import multiplying_in, refuse_int8
from bertkit.model.pretrained import refuse_too_many_segments
from bertkit.progress import NO_BAR, Bar
from bertkit.readers import Examples, batched
from bertkit.runs.encoded import Split
from bertkit.runs.forward import outputs_of_each
from bertkit.runs.inference.explanation import Explanation, inputs_times_gradients, sum_by_word
from bertkit.runs.inference.predictor import Predictor, Row, checked_rows
from bertkit.runs.remarks import report_counts, report_remarks
from bertkit.runs.scoring import Scored, score_splits
from bertkit.runs.target import Opened, open_target
from bertkit.tasks import TextClassificationTask
from bertkit.tasks.counts import Count
from bertkit.tasks.presentation import Prediction, Presentation
from bertkit.tasks.recipe import unread_columns
from bertkit.tasks.task import Task


class TaskPredictor(Predictor):
    """A model of one of the task families, or several of the same task, whose probabilities are averaged."""

    task: Task

    def __init__(self, target: Opened, processes: Processes | None = None) -> None:
        """processes: by default those of the launch, on the recipe's device."""
        self.task, training = target.task, target.task.recipe.training
        super().__init__(target.pretrained, processes or start_processes(training.device), training.precision)
        self.max_length, self.micro_batch_tokens = training.max_length, training.micro_batch_tokens
        self._models = (target, *target.others)

    @cached_property
    def _modules(self) -> list[Any]:
        built = ((each.task.build(each.task.configure(each.pretrained.config)), each.pretrained) for each in self._models)
        return [self._loaded(*each) for each in built]

    @classmethod
    def open(cls, name: str, device: str, precision: str) -> Self:
        """A model by folder or hub id; remarks on it are issued as warnings. Raises ModelError, MachineError."""
        target = open_target(name, None, {"device": device, "precision": precision}, to_predict=True, quiet=True)
        for warning in target.task.remarks.warnings:
            warnings.warn(warning, stacklevel=3)
        return cls(target, OneProcess.on(device))._ready()

    @property
    def presentation(self) -> Presentation:
        return self.task

    @property
    def folders(self) -> list[Path]:
        return [each.pretrained.folder for each in self._models]

    def read_blocks(self, file: str) -> Iterator[Examples]:
        return self.task.recipe.read_blocks(file, labelled=False)

    def unread_columns(self, rows: Examples) -> list[str]:
        return unread_columns(self.task.recipe, rows, labelled=False)

    def encode(self, examples: Examples) -> tuple[Split, tuple[Count, ...]]:
        with self._encoding:
            features, counts = self.task.encode(examples, self.pretrained.tokenizer, max_length=self.max_length, labelled=False)
        refuse_too_many_segments(features, self.pretrained.config)
        return Split(examples, features), (*counts, *self.task.lacking(examples))

    def decode(self, split: Split, bar: Bar = NO_BAR) -> list[Prediction]:
        one, *others = outputs_of_each(self._modules, split.features, self.micro_batch_tokens, self.processes, bar=bar)
        return self.task.decode(one.outputs, split.features, split.examples, [each.outputs for each in others])

    def judge(self, split: Split, bar: Bar = NO_BAR) -> dict[str, Judged]:
        """The labels of a split with the probabilities of the first model; see `Task.judge`."""
        (found,) = outputs_of_each(self._modules[:1], split.features, self.micro_batch_tokens, self.processes, bar=bar)
        return self.task.judge(found.outputs, split.features, split.examples)

    def evaluate(self, splits: Mapping[str, Split]) -> Scored:
        """Every metric of every split, with predictions."""
        return score_splits(self.task, self._modules, splits, self.processes)

    def refused(self, rows: Examples) -> dict[int, str]:
        return self.task.recipe.refused(rows, labelled=False)

    def standard(self, examples: Examples) -> Examples:
        return self.task.recipe.standardize(examples, labelled=False)

    def _columns(self, row: Row) -> Mapping[str, Any]:
        return self.task.recipe.row_of(row)

    def _texts_of(self, row: Mapping[str, Any], number: int) -> Sequence[str]:
        return next(iter(self.task.recipe.texts_of(self.examples([row], [number]))))

    def explain(self, rows: Iterable[Row], label: str | None = None) -> list[Explanation]:
        """Each word's signed input times gradient, for the logit of `label`; by default, of the predicted label.

        Only for text classification. A word of several tokens gets their sum, averaged over windows. Raises UsageError for
        another family or an unknown label, DataError with the row.
        """
        task = self.task
        if not isinstance(task, TextClassificationTask):
            return super().explain(rows, label)
        if label is not None and label not in task.labels:
            raise UsageError(f"no label {label!r}", hint=did_you_mean(label, task.labels))
        refuse_int8(self.precision.name, "an explanation")
        found: list[Explanation] = []
        for window in batched(checked_rows(rows)):
            examples = self.examples(window, range(len(found), len(found) + len(window)))
            features = self.encode(examples)[0].features
            outputs = np.zeros(len(window), dtype=np.int64)  # for a number, the only one
            if label is not None:
                outputs += task.labels.index(label)
            elif task.labels:
                outputs += [int(np.argmax(prediction.probabilities)) for prediction in self.predict_examples(examples)]
            windows = np.bincount(features.examples)[features.examples]
            how = (self.micro_batch_tokens, self.processes.device)
            with multiplying_in(self.precision.name) if self.processes.device.type == "cuda" else nullcontext():
                values = inputs_times_gradients(self.model, features, outputs[features.examples], *how)
            columns = [*examples.given(task.recipe.in_order).values()]
            shares = [each / number for each, number in zip(values, windows, strict=True)]
            words = sum_by_word(columns, self.pretrained.tokenizer, self.max_length, task.recipe.truncate, shares)
            named = [task.labels[output] if task.labels else None for output in outputs]
            found += map(Explanation, named, words)
        return found


def predict_with_progress(target: Opened, examples: Examples) -> list[Prediction]:
    """One prediction per example, in Accelerate's processes; prints remarks, counts and a progress bar."""
    accelerator = start_accelerator(target.task.recipe.training.device)
    report_remarks(examples.remarks)
    predictor = TaskPredictor(target, accelerator)
    split, counts = predictor.encode(examples)
    report_counts(len(examples), counts)
    with progress.bar("predict", len(split.features)) as bar:
        predictions = predictor.decode(split, bar)
    accelerator.wait_for_everyone()
    return predictions
