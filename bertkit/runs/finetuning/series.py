"""Fine-tune a recipe several times, in one folder: its runs are kept, resumed, and summarized in a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.config import filled
from bertkit.errors import DataError, UsageError, listed, plural
from bertkit.files import as_json, write_json
from bertkit.files.output_folder import OutputFolder
from bertkit.model.devices import start_accelerator
from bertkit.model.directory import weights_hash
from bertkit.model.precision import refuse_int8
from bertkit.readers import Examples
from bertkit.report import Finding, Report, Table, show
from bertkit.runs.directory import NEW_FOLDER, RUN, replaced
from bertkit.runs.finetuning.finetune import Given, finetune
from bertkit.runs.request import Request
from bertkit.runs.run_file import changed_settings, finished_run, read_run_file, refuse_changed
from bertkit.runs.scoring import CONSTANT, published_scores
from bertkit.runs.series import Series, summarize
from bertkit.runs.target import open_model_or_run
from bertkit.tasks.defaults import choose_settings
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import without_derived
from bertkit.tasks.splits import read_splits


def finetune_series(
    series: Series,
    request: Request,
    output_dir: Path,
    *,
    count: int,
    overwrite: bool = False,
    baselines: bool = False,
    is_part: bool = False,
) -> dict[str, Any]:
    """Fine-tune each of the runs 1 to `count` into output_dir/NOUN-N; returns the final content of the summary.

    Finished runs are kept: the same command resumes a stopped one, and more seeds can be added later. baselines: compare with
    baselines, once for runs on the same rows. is_part: as in `finetune`. Raises UsageError if the existing runs have different
    settings, model or data.
    """
    recipe = request.recipe
    refuse_int8(recipe.training.precision, "training")
    first = request.with_recipe(series.run(recipe, 1, count))
    resolved, pretrained = first.recipe.resolved(), open_model_or_run(request.model)
    accelerator = start_accelerator(recipe.training.device)
    folder_of_runs = OutputFolder.prepare(output_dir, series.kind, resume=True, overwrite=overwrite, reads=request.reads)
    earlier = {} if overwrite else series.read(output_dir).get("plan") or _begun(series, output_dir)
    read: dict[str, Examples] = {}  # so that all runs read each file only once
    data = read_splits(resolved, read=read)
    if earlier:  # unset settings are those of the first runs
        chosen = earlier.get("chosen") or {}
    else:
        chosen = choose_settings(resolved, data.rows[resolved.train_split], pretrained)
    varied = series.changes(recipe, 1, count).get("training", {})
    training = dataclasses.asdict(filled(recipe.training, chosen)) | dict.fromkeys(varied)
    plan = {**first.plan(training, weights_hash(pretrained.folder)), "data": {"sha256": data.sha256}, "chosen": chosen or None}
    if series.own_rows:  # a later run may refuse what the first one does not, such as a label that only one fold has
        for number in range(1, count + 1):
            own = series.run(recipe, number, count).resolved()
            try:
                request.fit_and_read(own, read_splits(own, read=read), pretrained)
            except DataError as error:
                error.what = f"{series.noun} {number}: {error.what}"
                raise
    plan = as_json(plan)
    with replaced(folder_of_runs, accelerator):
        finished = _finished(series, output_dir, plan, recipe, count)
        if finished and "data" not in series.read(output_dir).get("plan", {}):
            del plan["data"]  # of 0.1.0, or without its summary: they may have been trained on other rows
        _refuse_changed_inputs(series, finished, output_dir)
        runs: dict[int, dict[str, Any]] = {}
        if more := sorted({*finished} - {*range(1, count + 1)}):
            progress.note(f"{output_dir} has more {series.nouns}, which the summary leaves out: {listed([*map(str, more)])}")
        remarks_shown = is_part  # else the first run shows those on rows that all runs share
        metrics_tried = False
        for number in range(1, count + 1):
            folder = output_dir / f"{series.noun}-{number}"
            if number in finished:
                progress.note(f"{series.noun} {number}: finished in {folder}")
                if accelerator.is_main_process:
                    RUN.tidy(folder)
                runs[number] = finished[number]
                continue
            progress.note(f"{series.noun} {number} of {count}")
            own = series.run(recipe, number, count)
            rows = read_splits(own.resolved(), read=read) if series.own_rows else data
            runs[number] = finetune(
                request.with_recipe(own),
                folder,
                baselines=baselines and (series.own_rows or number == 1),
                is_part=is_part,
                given=Given(rows, chosen, remarks_shown, metrics_tried),
            )
            metrics_tried = True
            remarks_shown = is_part or not series.own_rows
            _refuse_changed_inputs(series, finished | runs, output_dir)
            if accelerator.is_main_process and len(runs) == 1:
                write_json(series.summary(output_dir), {"plan": plan})
        summary = {"plan": plan, **describe_runs(series, runs)}
        if accelerator.is_main_process:
            write_json(series.summary(output_dir), summary)
            show(report_series(series, summary, output_dir, published_scores(resolved, request.model)))
        accelerator.wait_for_everyone()
        return summary


def _begun(series: Series, folder: Path) -> dict[str, Any]:
    """The run.json of a run in the folder, which stands in for a plan that was never written; empty if there is no run."""
    runs = map(read_run_file, series.begun_in(folder))
    return next((run for run in runs if run is not None), {})


def _finished(series: Series, folder: Path, plan: Mapping[str, Any], recipe: Recipe, count: int) -> dict[int, dict[str, Any]]:
    """The finished runs of a folder by number. Raises UsageError if they have different settings, or are of other data or
    another model.
    """
    hint = f"repeat their command on the same data and model, or {NEW_FOLDER}"
    earlier = series.read(folder).get("plan", plan)
    refuse_changed({**earlier, "recipe": without_derived(earlier["recipe"])}, plan, series.nouns, folder, hint=hint)
    runs: dict[int, dict[str, Any]] = {}
    model = {name: value for name, value in plan["model"].items() if value}  # a model without a head always gets a fresh one
    for path in series.begun_in(folder):
        number = int(path.name.rpartition("-")[2])
        own = as_json(series.changes(recipe, number, count))
        # of the recipe, only what the run changes: bertkit 0.1 saved resolved values there
        wanted = {"recipe": {}, "model": model, **own, "training": {**plan["training"], **own.get("training", {})}}
        if (run := finished_run(path, wanted, hint)) is not None:
            runs[number] = run
    return runs


def _refuse_changed_inputs(series: Series, runs: Mapping[int, Mapping[str, Any]], folder: Path) -> None:
    """Raise UsageError if the model, or data that the runs share, changed while they were trained."""
    for number, run in runs.items():
        first = next(iter(runs))
        for part in ("model",) if series.own_rows else ("model", "data"):
            if changed_settings({part: runs[first][part]}, {part: run[part]}):
                what = f"the {part} changed between {series.noun} {first} and {series.noun} {number}"
                raise UsageError(what, where=str(folder), hint=NEW_FOLDER)


def describe_runs(series: Series, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The best scores of each run, summarized; and the runs that make the same prediction for every row."""
    scores = {number: run["best"]["scores"] for number, run in runs.items()}
    names = dict.fromkeys(name for best in scores.values() for name in best if not name.endswith(CONSTANT))
    return {
        series.nouns: list(runs),
        "scores": {name: summarize([best.get(name) for best in scores.values()], name) for name in names},
        "baselines": _mean_of_baselines([run.get("baselines") or {} for run in runs.values()]),
        "constant": [number for number, best in scores.items() if any(name.endswith(CONSTANT) for name in best)],
    }


def _mean_of_baselines(runs: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The mean score of each baseline over the runs that have baselines."""
    fitted = [run for run in runs if run]
    return {name: summarize([run.get(name) for run in fitted])["mean"] for name in dict.fromkeys(chain.from_iterable(fitted))}


def report_series(series: Series, summary: Mapping[str, Any], folder: Path, published: Mapping[str, float]) -> Report:
    """A table of the scores, and a warning about runs that failed to learn."""
    columns = ["score", "median", "mean", "std", "95% interval", f"each {series.noun}", *(["published"] if published else [])]
    rows = [
        [
            name,
            score["median"],
            score["mean"],
            score["std"],
            progress.format_interval(score["interval"]),
            " ".join("-" if value is None else f"{value:.4f}" for value in score["each"]),
            *([published.get(name)] if published else []),
        ]
        for name, score in summary["scores"].items()
    ]
    count = len(summary[series.nouns])
    parts: list[Table | Finding] = [Table(f"{folder}: {plural(count, series.noun)}", columns, rows)]
    if to_beat := summary["baselines"]:
        first, score = next(iter(summary["scores"].items()))
        compared = [["the runs", score["mean"]], *map(list, to_beat.items())]
        parts.append(Table(f"baselines to beat: {first}", ["predictions", "mean"], compared))
    if constant := summary["constant"]:
        which = ", ".join(map(str, constant))
        make = "makes" if len(constant) == 1 else "make"
        what = f"{len(constant)} of {plural(count, 'run')} {make} the same prediction for every row: {series.noun} {which}"
        parts.append(Finding("warning", what))
    return Report(parts, summary)
