"""`bertkit report`: everything about one or more runs, as an HTML page with the numbers of eval, compare and check."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit import progress
from bertkit.errors import ModelError, UsageError, UserError
from bertkit.files import relative, write_files
from bertkit.html.charts import Figure, Line, draw_lines, draw_reliability
from bertkit.html.page import Entry, Section, render, require_packages
from bertkit.metrics.classification import EVALUATE
from bertkit.model.config import PRETRAINING
from bertkit.report import Finding, Piece, Report, Table
from bertkit.runs.checks.check import check_data
from bertkit.runs.checks.label_errors import FOUND as LABEL_ERRORS
from bertkit.runs.checks.label_errors import report_label_errors
from bertkit.runs.checks.learning_curve import FOUND as LEARNING_CURVE
from bertkit.runs.checks.learning_curve import report_learning_curve
from bertkit.runs.checks.target import open_data
from bertkit.runs.inference.destination import check_output
from bertkit.runs.inference.explanation import Explanation
from bertkit.runs.inference.held_out_corpora import HeldOut, open_held_out
from bertkit.runs.inference.predictor import Predictor
from bertkit.runs.inference.scores import Evaluated, Predicted, evaluate_target, report_scores
from bertkit.runs.pretraining.course import Course
from bertkit.runs.reporting.compare import Side, compare_sides, refuse_other_rows, report_comparison
from bertkit.runs.reporting.slices import describe_slices
from bertkit.runs.run_file import flat, require_run
from bertkit.runs.series import runs_to_use
from bertkit.runs.target import open_target
from bertkit.runs.tuning.study import TUNING_FILE, report_tuning
from bertkit.tasks import TextClassificationTask
from bertkit.tasks.class_report import describe_reliability
from bertkit.tasks.recipe import published_scores
from bertkit.text.words import split_words
from bertkit.training.metrics_log import MetricsLog

_LEAST = 0.1  # words with at least this share of the largest weight are marked
_NAMED = 5  # number of words whose weights are written out


class ReportedRun(NamedTuple):
    """A run: its name as typed, its folder and its run.json."""

    name: str
    folder: Path
    values: Mapping[str, Any]

    @property
    def family(self) -> str:
        return str(self.values["recipe"].get("family"))

    def flat(self) -> dict[str, Any]:
        """The values in run.json, under names such as training.seed."""
        return dict(chain.from_iterable(flat(value, part) for part, value in self.values.items()))

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events in metrics.jsonl."""
        return MetricsLog(self.folder).read()


class Result(NamedTuple):
    """A fine-tuned run with its predictions."""

    run: ReportedRun
    found: Evaluated


def write_report(
    names: Sequence[str], output: Path, *, rows: int = 20, recipe_name: str | None = None, overwrite: bool = False
) -> None:
    """Write the page of runs to a file. rows: number of worst errors to show. recipe_name: the file of the runs' own recipe.

    A name may also be an output folder of `check --label-errors`, `check --learning-curve` or `tune`, whose tables are shown.

    Raises MachineError if packages are missing, and UsageError for folders that are not runs, for runs of different tasks or
    rows, and for an output that exists.
    """
    require_packages()
    check_output(output, names, overwrite=overwrite)
    if output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--output is {output}; a report is HTML", hint="expected a name that ends in .html or .htm")
    found = {name: _found_in(Path(name), rows) for name in names}
    sections: list[Section] = []
    if runs := _open([name for name in names if not found[name]]):
        is_pretraining = runs[0].family == PRETRAINING
        described = _describe_pretraining(runs, rows) if is_pretraining else _describe_tasks(runs, rows, recipe_name)
        sections = [*described, Section("Settings", [_settings(runs)])]
    sections += chain.from_iterable(found.values())
    page = render(f"Report of {', '.join(found)}", sections, paths=_relative_paths(names, runs))
    if not progress.console.quiet:
        write_files(output.absolute().parent, {output.name: page}, locked=False)
    progress.note(f"wrote {output}, {len(page.encode()) / 1e3:.0f} kB")


# The results that other commands leave in their folders, and how to show them.
_FOUND: dict[str, tuple[str, Callable[[Mapping[str, Any], Path, int], Report]]] = {
    LABEL_ERRORS: ("Wrong labels", report_label_errors),
    LEARNING_CURVE: ("Learning curve", lambda found, folder, rows: report_learning_curve(found)),
    TUNING_FILE: ("Tuning", lambda found, folder, rows: report_tuning(found, folder)),
}


def _found_in(folder: Path, rows: int) -> list[Section]:
    """The results of `check` or `tune` in a folder; empty for a run. Raises ModelError."""
    sections = []
    for name, (title, describe) in _FOUND.items():
        if (path := folder / name).is_file():
            try:
                report = describe(json.loads(path.read_text(encoding="utf-8")), folder, rows)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                hint = "repeat the command that wrote it"
                raise ModelError(f"{name} is damaged: {error!r}", where=str(path), hint=hint) from None
            sections.append(Section(f"{folder}: {title}", _shown(report)))
    return sections


def _shown(report: Report) -> list[Table | Finding]:
    """The parts of a report that a page shows: all except text for the terminal."""
    return [part for part in report.parts if isinstance(part, (Table, Finding))]


# Names of settings in run.json that may be paths.
_PATHS = re.compile(
    r"recipe\.(name|train|validation|test|data|metric)|data\..+\.source|model\.name|resumed_from|training\.entities"
)


def _relative_paths(names: Sequence[str], runs: Sequence[ReportedRun]) -> dict[str, str]:
    """What a report shows instead of absolute paths: the runs as typed, and their data, models and code."""
    told = [value for run in runs for name, value in run.flat().items() if _PATHS.fullmatch(name)]
    told += [corpus["source"] for run in runs for each in run.values.get("continued") or () for corpus in each["data"].values()]
    texts = chain(names, *(value if isinstance(value, list) else [str(value)] for value in told))
    paths = (text.removeprefix(EVALUATE).rstrip(os.sep) for text in texts)
    return {path: relative(path) for path in paths if os.path.isabs(path)}


def _open(names: Sequence[str]) -> list[ReportedRun]:
    runs = [ReportedRun(name, Path(*runs_to_use(name, ensemble=False)), {}) for name in dict.fromkeys(names)]
    runs = [run._replace(values=require_run(run.folder)) for run in runs]
    if len({run.family for run in runs}) > 1:
        what = f"the runs are of different tasks: {', '.join(f'{run.name} is {run.family}' for run in runs)}"
        raise UsageError(what, hint="write a report of each")
    return runs


# --- fine-tuned runs -------------------------------------------------------------------------------------------------


def _describe_tasks(runs: Sequence[ReportedRun], rows: int, recipe_name: str | None) -> list[Section]:
    results: list[Result] = []
    for run in runs:
        target = open_target(str(run.folder), recipe_name, {})
        found = evaluate_target(target, tuple(results[0].found.splits) if results else None)
        results.append(Result(run, found))
        for split, of_first in results[0].found.splits.items():
            refuse_other_rows(found.splits[split].examples, of_first.examples, split, name=run.name, first_name=runs[0].name)
    scores: list[Table | Finding] = []
    details: list[Section] = []
    for result in results:
        summary, parts_of = _scores(result)
        scores += summary
        before = f"{result.run.name}, " if len(runs) > 1 else ""
        for split, parts in parts_of.items():
            predicted = result.found.of(split)
            named: dict[str, Sequence[Any]] = {
                "classes and probabilities": [*parts, *_reliability(predicted)],
                "slices": [describe_slices(result.found, split)],
                "worst errors": _worst(predicted, result.found.predictor, rows),
            }
            details += [Section(f"{before}{split}: {title}", own) for title, own in named.items() if own]
    compared = [Section(f"Runs compared with {runs[0].name}", _compare(results, rows))] if len(runs) > 1 else []
    data = {json.dumps(result.run.values["data"]): result for result in reversed(results)}  # runs of the same data share it
    findings = [part for result in reversed(data.values()) for part in _check(result, recipe_name)]
    return [Section("Scores", scores), _curves(runs), *compared, *details, Section("Data", findings)]


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


def _worst(predicted: Predicted, predictor: Predictor, count: int) -> list[Finding | Entry]:
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
    told = ", ".join(f"{word} {weight:+.3f}" for word, weight in most)
    return found | {f"words for {explanation.label or 'the number'}": [Piece(told)]}


def _compare(results: Sequence[Result], count: int) -> list[Table | Finding | Entry]:
    """The comparison on the first split, and the rows that only the first run, or only another run, gets wrong."""
    split = next(iter(results[0].found.splits))
    predicted = {result.run.name: result.found.of(split) for result in results}
    sides = [Side(run.name, run.values, [predicted[run.name].scorer()]) for run, _ in results]
    examples = predicted[results[0].run.name].examples
    comparison = compare_sides(sides, examples, split)
    parts = _shown(report_comparison(comparison))
    wrong = {name: own.errors() > 0 for name, own in predicted.items()}
    counts, entries = [], []
    first, *others = predicted
    for other in (name for name in others if name not in comparison["same"]):
        changed = {"fixed": wrong[first] & ~wrong[other], "broken": wrong[other] & ~wrong[first]}
        counts.append([other, *(int(rows.sum()) for rows in changed.values()), int((wrong[first] & wrong[other]).sum())])
        for how, row in ((how, int(row)) for how, rows in changed.items() for row in np.flatnonzero(rows)[:count]):
            texts = predicted[first].laid_out(row)
            said = {name: predicted[name].laid_out(row)["predicted"] for name in (first, other)}
            shared = {name: pieces for name, pieces in texts.items() if name != "predicted"}
            by_name = {f"predicted by {name}": pieces for name, pieces in said.items()}
            entries.append(Entry(f"{examples.where(row)}: {how} by {other}", shared | by_name))
    title = f"rows fixed and broken, compared with {first}"
    changes = [Table(title, ["run", "fixed", "broken", "wrong in both"], counts)] if counts else []
    return [*parts, *changes, *entries]


def _check(result: Result, recipe_name: str | None) -> list[Table | Finding]:
    """The findings of check in a run's data."""
    recipe, splits, _ = open_data(str(result.run.folder), recipe_name, {})
    return _shown(check_data(recipe, splits, result.found.predictor.pretrained).report(result.run.name))


# --- pre-training ----------------------------------------------------------------------------------------------------


def _describe_pretraining(runs: Sequence[ReportedRun], rows: int) -> list[Section]:
    scores: list[Table | Finding] = []
    details: list[Section] = []
    for run in runs:
        before = f"{run.name}: " if len(runs) > 1 else ""
        details.append(Section(f"{before}Loss by phase", [_losses_by_phase(run)]))
        try:
            held_out = open_held_out(str(run.folder), [], {})
        except UserError as error:  # what the run itself recorded is still shown
            scores.append(Finding("note", f"{run.name} is not scored: {error}", hint=error.hint))
            continue
        if held_out.accelerator.num_processes > 1:
            raise UsageError("the report of a pre-training run is written by one process", hint="run it without a launcher")
        scored = held_out.scores()
        found = [[f"validation/{name}", value] for name, value in scored.items()]
        scores.append(Table(run.name, ["score", "value"], found))
        if baselines := run.values.get("baselines"):
            first = f"{found[0][0]}"
            compared = [[run.name, found[0][1]], *map(list, baselines.items())]
            scores.append(Table(f"{first} compared", ["predictions", first], compared))
        details.append(Section(f"{before}Perplexity by source", [_perplexities(held_out, scored)]))
        filled = [Entry(f"held-out sequence {n}", {"text": own}) for n, own in enumerate(held_out.filled(rows), start=1)]
        details += [Section(f"{before}Filled masks", filled)] if filled else []
    return [Section("Scores", scores), _curves(runs), *details]


def _phases(run: ReportedRun) -> list[tuple[int, int]]:
    """The first step of each phase of pre-training, from 0, and its number of tokens."""
    course = Course.of(run.values)
    return [*zip(course.begins, (length for length, _ in course.config.lengths()), strict=True)]


def _losses_by_phase(run: ReportedRun) -> Table:
    begins, lengths = zip(*_phases(run), strict=True)
    rows = []
    trained = [event for event in run.events if "learning_rate" in event]
    for phase, length in enumerate(lengths):
        own = [event for event in trained if bisect_right(begins, event["step"] - 1) - 1 == phase]
        for term in [name for name in (own[0] if own else {}) if name.endswith("loss")]:
            losses = [event[term] for event in own]
            steps = f"{own[0]['step']} to {own[-1]['step']}"
            rows.append([phase + 1, length, steps, term, losses[0], losses[-1], min(losses)])
    return Table("training loss by phase", ["phase", "tokens", "steps", "loss", "first", "last", "lowest"], rows)


def _perplexities(held_out: HeldOut, scores: Mapping[str, float]) -> Table:
    features, parts = held_out.sequences
    rows = [[name, int(of_part.sum()), scores[f"{name}/perplexity"]] for name, of_part in parts.items()]
    whole = [", ".join(corpus.name for corpus in held_out.corpora), len(features), scores["perplexity"]]
    return Table("held-out sequences by source", ["source", "sequences", "perplexity"], rows or [whole])


# --- any run ---------------------------------------------------------------------------------------------------------


def _curves(runs: Sequence[ReportedRun]) -> Section:
    """Loss, learning rate and the first score by step, of all runs together."""
    lines: dict[str, list[Line]] = {"loss": [], "learning rate": []}
    for run in runs:
        events = run.events
        scores = [*run.values.get("best", {}).get("scores", {})]
        dev = next((name for name in scores if not name.endswith("loss")), "")
        kinds = {"loss": ["loss", *(name for name in scores if name.endswith("loss"))], "learning rate": ["learning_rate"]}
        kinds |= {dev: [name for name in scores if dev and name.endswith(f"/{dev.rpartition('/')[2]}")]}
        for title, name in ((title, name) for title, names in kinds.items() for name in names):
            points = [(event["step"], event[name]) for event in events if event.get(name) is not None]
            if points:
                said = {"loss": "training", "learning_rate": "learning rate"}.get(name, name)
                called = f"{run.name}: {said}" if len(runs) > 1 else said
                lines.setdefault(title, []).append(Line(called, *zip(*points, strict=True)))
    begins = {begin for run in runs if run.family == PRETRAINING for begin, _ in _phases(run)}
    return Section("Curves", [draw_lines(title, own, marks=sorted(begins - {0})) for title, own in lines.items() if own])


def _settings(runs: Sequence[ReportedRun]) -> Table:
    """All of run.json except the scores."""
    scores = re.compile(r"(best|last)(\..*)?")
    settings = [{name: value for name, value in run.flat().items() if not scores.fullmatch(name)} for run in runs]
    names = dict.fromkeys(chain.from_iterable(settings))

    def cell(value: Any) -> str | None:
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    rows = [[name, *(cell(own.get(name)) for own in settings)] for name in names]
    return Table("run.json", ["setting", *(run.name for run in runs)], rows)
