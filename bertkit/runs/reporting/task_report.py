"""The sections of a report on fine-tuned runs: scores, slices, worst errors, comparisons, and problems of their data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit import progress
from bertkit.html.charts import Figure, draw_reliability
from bertkit.html.page import Entry, Section
from bertkit.report import Finding, Piece, Table
from bertkit.runs.checks.data import open_data
from bertkit.runs.checks.labelled import check_data
from bertkit.runs.evaluation.compare import compare, refuse_other_rows, report_comparison
from bertkit.runs.evaluation.evaluate import Evaluated, Predicted, evaluate_target, report_scores
from bertkit.runs.inference.explanation import Explanation
from bertkit.runs.inference.predictor import Predictor
from bertkit.runs.reporting.reported_run import ReportedRun, draw_curves
from bertkit.runs.reporting.slices import describe_slices
from bertkit.runs.scoring import published_scores
from bertkit.runs.target import open_target
from bertkit.tasks import TextClassificationTask
from bertkit.tasks.class_report import describe_reliability
from bertkit.text.words import split_words

_LEAST = 0.1  # words with at least this share of the largest weight are marked
_NAMED = 5  # number of words whose weights are written out


class Result(NamedTuple):
    """A fine-tuned run with its predictions."""

    run: ReportedRun
    found: Evaluated


def describe_tasks(runs: Sequence[ReportedRun], rows: int, recipe_name: str | None) -> list[Section]:
    results: list[Result] = []
    for run in runs:
        target = open_target(str(run.folder), recipe_name, {})
        found = evaluate_target(target, [*results[0].found.splits] if results else (), checked=bool(results))
        results.append(Result(run, found))
        for split, of_first in results[0].found.splits.items():
            refuse_other_rows(found.splits[split].examples, of_first.examples, split, name=run.name, first_name=runs[0].name)
    scores: list[Table | Finding] = []
    details: list[Section] = []
    for run in runs:
        if run.folder != Path(run.name):
            what = f"{run.name} has several runs; this page shows {run.folder.name}"
            scores.append(Finding("note", what + ("; the comparison takes all" if len(runs) > 1 else "")))
    for result in results:
        summary, parts_of = _scores(result)
        scores += summary
        before = f"{result.run.name}, " if len(runs) > 1 else ""
        for split, parts in parts_of.items():
            predicted = result.found.of(split)
            named: dict[str, Sequence[Any]] = {
                "classes and probabilities": [*parts, *_reliability(predicted)],
                "slices": [describe_slices(result.found, split)],
                "worst errors": _worst_entries(predicted, result.found.predictor, rows),
            }
            details += [Section(f"{before}{split}: {title}", own) for title, own in named.items() if own]
    compared = [Section(f"Runs compared with {runs[0].name}", _compare(results, rows, recipe_name))] if len(runs) > 1 else []
    first_of: dict[str, Result] = {}  # of the runs with the same data
    for result in results:
        first_of.setdefault(json.dumps(result.run.values["data"]), result)
    findings = [part for result in first_of.values() for part in _data_findings(result, recipe_name)]
    return [Section("Scores", scores), draw_curves(runs), *compared, *details, Section("Data", findings)]


def _scores(result: Result) -> tuple[list[Table | Finding], dict[str, list[Table]]]:
    """The first score next to baselines, and all scores of eval; and the tables of each split."""
    scored, trained_from = result.found.scored, result.found.trained_from
    published = published_scores(scored.task.recipe, trained_from)
    report = report_scores(result.run.name, result.found, intervals=True)
    first, value = next(iter(scored.scores.items()))
    others = {
        **(result.run.values.get("baselines") or {}),
        **({f"published, {trained_from}": published[first]} if first in published else {}),
    }
    compared = [[result.run.name, value, progress.format_interval(report.json["intervals"][first])]]
    compared += [[name, score, None] for name, score in others.items()]
    tables = [part for part in report.parts if isinstance(part, Table)]
    parts_of = {split: [part for part in tables[:-1] if part.title.startswith(f"{split}: ")] for split in result.found.splits}
    findings = [part for part in report.parts if isinstance(part, Finding)]
    return [Table(f"{first} compared", ["predictions", first, "95% interval"], compared), tables[-1], *findings], parts_of


def _reliability(predicted: Predicted) -> list[Table | Figure]:
    confidences = predicted.task.confidences(predicted.predictions, predicted.truth)
    if confidences is None:
        return []
    table = describe_reliability(*confidences)
    return [draw_reliability(table), table]


def _worst_entries(predicted: Predicted, predictor: Predictor, count: int) -> list[Finding | Entry]:
    """The worst errors; for text classification, with the words that support or oppose the prediction."""
    rows, note = predicted.worst(count)
    texts = [*map(predicted.laid_out, rows)]
    if isinstance(predicted.task, TextClassificationTask) and rows:
        inputs = predicted.task.recipe.texts_of(predicted.examples.select(rows))
        explanations = predictor.explain([own if len(own) > 1 else own[0] for own in inputs])
        texts = [*map(_pushed, texts, explanations)]
    entries = [Entry(predicted.examples.where(row), own) for row, own in zip(rows, texts, strict=True)]
    return [Finding("note", note), *entries]


def _pushed(texts: Mapping[str, list[Piece]], explanation: Explanation) -> dict[str, list[Piece]]:
    """A text classification example, with its words marked by how much they support the prediction."""
    heaviest = max((abs(weight) for _, weight in explanation.words), default=0.0) or 1.0
    found, remaining = dict(texts), iter(explanation.words)
    for name in [name for name in texts if name not in ("expected", "predicted")]:
        ((text, *_),) = texts[name]
        pieces, done = [], 0
        for (start, stop), (_, weight) in zip(split_words(text), remaining, strict=False):
            if abs(weight) >= _LEAST * heaviest:
                pieces += [Piece(text[done:start]), Piece(text[start:stop], weight=weight / heaviest)]
                done = stop
        found[name] = [*pieces, Piece(text[done:])]
    most = sorted(explanation.words, key=lambda word: -abs(word[1]))[:_NAMED]
    listing = ", ".join(f"{word} {weight:+.3f}" for word, weight in most)
    return found | {f"words for {explanation.label or 'the number'}": [Piece(listing)]}


def _compare(results: Sequence[Result], count: int, recipe_name: str | None) -> list[Table | Finding | Entry]:
    """The comparison on the first split; and the rows that only the first run, or only another run, gets wrong, unless the
    predictions are numbers.
    """
    split = next(iter(results[0].found.splits))
    predicted = {result.run.name: result.found.of(split) for result in results}
    examples = predicted[results[0].run.name].examples
    known = {result.run.folder: predicted[result.run.name] for result in results}
    comparison = compare([*predicted], split=split, recipe_name=recipe_name, known=known)
    parts = report_comparison(comparison).on_page
    if results[0].found.scored.task.recipe.predicts_numbers:
        return [*parts]
    wrong = {name: own.errors() > 0 for name, own in predicted.items()}
    counts, entries = [], []
    first, *others = predicted
    for other in (name for name in others if name not in comparison["same"]):
        changed = {"fixed": wrong[first] & ~wrong[other], "broken": wrong[other] & ~wrong[first]}
        counts.append([other, *(int(rows.sum()) for rows in changed.values()), int((wrong[first] & wrong[other]).sum())])
        for how, row in ((how, int(row)) for how, rows in changed.items() for row in np.flatnonzero(rows)[:count]):
            texts = predicted[first].laid_out(row)
            own_pieces = {name: predicted[name].laid_out(row)["predicted"] for name in (first, other)}
            shared = {name: pieces for name, pieces in texts.items() if name != "predicted"}
            by_name = {f"predicted by {name}": pieces for name, pieces in own_pieces.items()}
            entries.append(Entry(f"{examples.where(row)}: {how} by {other}", shared | by_name))
    several = any(result.run.folder != Path(result.run.name) for result in results)
    title = f"rows fixed and broken, compared with {first}" + (", one run of each" if several else "")
    changes = [Table(title, ["run", "fixed", "broken", "wrong in both"], counts)] if counts else []
    return [*parts, *changes, *entries]


def _data_findings(result: Result, recipe_name: str | None) -> list[Table | Finding]:
    """The findings of check in a run's data."""
    recipe, splits, _ = open_data(str(result.run.folder), recipe_name, {})
    return check_data(recipe, splits, result.found.predictor.pretrained).report(result.run.name).on_page
