"""Compares a quantized graph with its model: decisions, the dev score, and speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit import progress
from bertkit.errors import DataError, plural
from bertkit.features import Features, Ragged
from bertkit.metrics.bootstrap import Scorer, interval, resampled
from bertkit.progress import format_interval
from bertkit.runs.encoded import Split
from bertkit.runs.export.graph import Graph, speeds
from bertkit.runs.forward import outputs_of, outputs_of_each
from bertkit.runs.inference.language_model import LanguageModelPredictor, Likeliest
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.training.batching import evaluation_batches

TEXTS_COMPARED = 5000  # texts to compare decisions on, if there are as many
AGREEMENT = 0.99  # the least share of equal decisions
POINTS = 0.5  # how far the dev score may fall
RISE = 0.05  # by which share of itself it may rise, if lower is better
_NEAR = 0.1  # how far a number may differ, in standard deviations of the model's numbers
_EVERY = 7  # one token in this many is masked
_TIMED = 48  # features to time


@dataclass(frozen=True)
class Verdict:
    """How a quantized graph compares with the float32 model.

    texts, decisions: how many were compared; agreement: the share of equal decisions. score: the name of the first score on the
    dev rows, and its value in float32 and quantized; None without dev rows. interval: 95%, of the difference. speeds: texts per
    second of both graphs. greater_is_better: for the score. near: of numbers, by how much equal ones may differ.
    """

    texts: int
    decisions: int
    agreement: float
    score: tuple[str, float, float] | None
    interval: tuple[float, float] | None
    speeds: tuple[float, float]
    greater_is_better: bool = True
    near: float | None = None

    @property
    def faults(self) -> list[str]:
        """Why it does not pass; empty if it does."""
        found = []
        if not self.agreement >= AGREEMENT:  # nan, for no decisions, does not pass
            found.append(f"only {self._agreed}, expected {AGREEMENT:.0%}")
        if self.score is not None:
            name, exact, quantized = self.score
            if self.greater_is_better:
                verb, most, is_kept = "falls", f"{POINTS} points", 100 * (exact - quantized) <= POINTS + 1e-9
            else:
                verb, most, is_kept = "rises", f"{RISE:.0%}", quantized - exact <= RISE * abs(exact) + 1e-9
            if not is_kept:  # nan, for an undefined score, does not pass
                change = f"{name} {verb} from {exact:.4f} to {quantized:.4f}"
                found.append(f"{change}, by more than {most} (95% interval {format_interval(self.interval, '+.4f')})")
        return found

    @property
    def remarks(self) -> list[str]:
        """Remarks for the user, one line each."""
        found = [f"int8: {self._agreed} on {plural(self.texts, 'text')}"]
        if self.score is not None:
            name, exact, quantized = self.score
            bounds = format_interval(self.interval, "+.4f")
            found.append(f"int8: {name} {quantized:.4f}, in float32 {exact:.4f}; the difference is in {bounds} (95%)")
        return found

    @property
    def _agreed(self) -> str:
        if self.near is None:
            return f"{self.agreement:.2%} of {plural(self.decisions, 'decision')} agree"
        within = f"within {self.near:.3g}, a tenth of the numbers' standard deviation,"
        return f"{self.agreement:.2%} of {plural(self.decisions, 'number')} agree {within} with float32"

    @property
    def warnings(self) -> list[str]:
        found = []
        if self.texts < TEXTS_COMPARED:
            found.append(f"int8 was compared on only {plural(self.texts, 'text')}; {TEXTS_COMPARED} would say more")
        if self.score is None:
            found.append("int8: no dev score was compared, as there are no rows with labels")
        exact, quantized = self.speeds
        if quantized < exact:
            found.append(f"int8 is slower than float32 on this machine: {quantized:.0f} against {exact:.0f} texts/s")
        return found


def compare_tasks(predictor: TaskPredictor, graphs: tuple[Graph, Graph], texts: Split, dev: Split | None) -> Verdict:
    """The verdict on a task's graphs, in float32 and quantized. texts: without labels; dev: rows with labels."""
    splits = [split for split in (texts, dev) if split is not None and len(split.examples)]
    task = predictor.task
    exact, quantized = [], []
    with progress.bar("compare int8", 2 * sum(len(split.features) for split in splits)) as bar:
        for split in splits:
            exact.append(predictor.decode(split, bar))
            # one batch per feature: a batch's quantized activations share a scale, which neighbours would change
            (found,) = outputs_of_each([graphs[1]], split.features, 1, predictor.processes, bar=bar)
            quantized.append(task.decode(found.outputs, split.features, split.examples))
    ours, theirs = ([*chain.from_iterable(map(task.decisions, chain.from_iterable(side)))] for side in (exact, quantized))
    near = _NEAR * float(np.std(ours)) if ours and isinstance(ours[0], float) else None
    scorers = None
    if dev is not None:
        truth = task.truth(dev.examples)
        scorers = (task.scorer(exact[-1], truth), task.scorer(quantized[-1], truth))
    count = sum(len(split.examples) for split in splits)
    rows = 0 if dev is None else len(dev.examples)
    verdict = _verdict(count, _agreement(ours, theirs, near), scorers, rows, graphs, texts.features)
    return replace(verdict, greater_is_better=task.recipe.greater_is_better, near=near)


def _agreement(exact: Sequence[Any], quantized: Sequence[Any], near: float | None) -> NDArray[np.bool_]:
    """Which decisions are equal or, for numbers, differ by at most `near`."""
    if near is not None:
        return np.abs(np.subtract(exact, quantized)) <= near
    return np.array([one == other for one, other in zip(exact, quantized, strict=True)], dtype=bool)


def compare_language_models(model: LanguageModelPredictor, graphs: tuple[Graph, Graph], texts: Sequence[str]) -> Verdict:
    """The verdict on a masked model's graphs, by the most likely tokens of the texts, with one token in _EVERY masked."""
    features, truth = _masked(model, texts)
    ids = torch.tensor(sorted(model.pretrained.tokenizer.vocab.values()))
    found = []
    modules: list[tuple[Any, int]] = [(model.model, model.micro_batch_tokens), (graphs[1], 1)]
    with progress.bar("compare int8", 2 * len(features)) as bar:
        for module, tokens in modules:
            outputs = outputs_of(Likeliest(module, 1, ids), features, tokens, model.processes, bar=bar).outputs
            found.append(np.concatenate(outputs["tokens"])[:, 0])
    scorers = tuple(_accuracy(tokens == truth) for tokens in found)
    return _verdict(len(features), found[0] == found[1], scorers, len(truth), graphs, features)


def _accuracy(right: NDArray[np.bool_]) -> Scorer:
    return lambda rows: {"masked_accuracy": float(right[rows].mean())}


def _masked(model: LanguageModelPredictor, texts: Sequence[str]) -> tuple[Features, NDArray[np.int64]]:
    """Features of the texts that have tokens, some of these masked; and the original tokens."""
    tokenizer = model.pretrained.tokenizer
    encoded = tokenizer.encode(texts, max_length=model.max_length)
    kept = np.flatnonzero(encoded.input_ids.lengths > 2)
    if not len(kept):
        raise DataError("no text has a token to mask", hint="give texts that the model was made for: --texts FILE")
    ids, types = encoded.input_ids.take(kept), encoded.token_type_ids.take(kept)
    places = [range(1 + number % min(_EVERY, length - 2), length - 1, _EVERY) for number, length in enumerate(ids.lengths)]
    flat = np.concatenate([np.array(own) + begin for own, begin in zip(places, ids.offsets, strict=False)])
    truth = ids.values[flat].astype(np.int64)
    ids.values[flat] = tokenizer.mask_token_id
    return Features(ids, types, kept, rows=Ragged.of(places)), truth


def _verdict(
    texts: int,
    equal: NDArray[np.bool_],
    scorers: Any,
    rows: int,
    graphs: tuple[Graph, Graph],
    features: Features,
) -> Verdict:
    score = bounds = None
    if scorers is not None and (whole := [each(np.arange(rows)) for each in scorers])[0]:
        name = next(iter(whole[0]))

        def first(drawn: NDArray[np.int64]) -> tuple[float, float]:
            exact, quantized = (each(drawn)[name] for each in scorers)
            return np.nan if exact is None else exact, np.nan if quantized is None else quantized

        score = (name, *first(np.arange(rows)))
        differences = [np.subtract(*first(drawn)[::-1]) for drawn in resampled(rows)]
        bounds = interval([float(each) for each in differences])
    chosen = np.linspace(0, len(features) - 1, min(_TIMED, len(features))).astype(np.int64)
    batches = [*evaluation_batches(features.take(chosen), 1)]
    exact, quantized = speeds(graphs, batches)
    return Verdict(texts, len(equal), float(equal.mean()), score, bounds, (exact, quantized))
