"""The files for GLUE's leaderboard: predictions for every row of the unlabelled test sets, and a zip of them."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.config import TrainConfig, options_for
from bertkit.errors import DataError, UsageError, plural
from bertkit.files import MOVED_ASIDE, write_files
from bertkit.files.output_folder import Kind, OutputFolder
from bertkit.readers import Examples
from bertkit.report import Report, Table, show
from bertkit.runs.glue.benchmark import AX, DIAGNOSTIC, TASKS, GlueTask
from bertkit.runs.inference.task_predictor import predict_with_progress
from bertkit.runs.run_file import read_recipe, read_run_file, require_run
from bertkit.runs.series import SEEDS
from bertkit.runs.target import Opened, open_target
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.presentation import Prediction

ZIP = "submission.zip"
_PARTS = re.compile("|".join(map(re.escape, (ZIP, *(f"{file}.tsv" for task in (*TASKS.values(), AX) for file in task.files)))))
SUBMISSION = Kind(
    "submission", lambda folder: any(_PARTS.fullmatch(path.name) for path in folder.iterdir()) or None, _PARTS, at_once=True
)


def write_submission(
    runs: Sequence[str], output_dir: Path, *, data: str | None = None, overwrite: bool = False
) -> dict[str, str]:
    """Write NAME.tsv for every task of the leaderboard, and a zip of them; returns the source of each file.

    runs: run folders, folders of seeds, where the best on dev is used (Devlin et al., 2019, section 4.1), or folders of either,
    as `finetune glue` writes them. data: the folder of GLUE's download; default: each run's own. A task without a run gets a
    constant prediction and a warning. overwrite: move the old content of output_dir aside. Raises UsageError and, before the
    first prediction, DataError if a test set does not have the leaderboard's number of rows.
    """
    output = OutputFolder.prepare(output_dir, SUBMISSION, overwrite=overwrite, reads=[*runs, data])
    by_task = _by_task(runs)
    inputs: dict[str, tuple[Opened, Examples]] = {}
    columns: dict[str, list[str]] = {}
    sources: dict[str, str] = {}
    files = {file: (name, task) for name, task in {**TASKS, DIAGNOSTIC: AX}.items() for file in task.files}
    for file, (name, task) in files.items():
        if (run := by_task.get("mnli" if name == DIAGNOSTIC else name)) is not None:
            inputs[file], sources[file] = _open(run, name, task, *task.files[file], data), str(run)
    for file, (name, task) in files.items():
        if file in inputs:
            columns[file] = _format_predictions(name, task, predict_with_progress(*inputs[file]))
        else:
            (constant,) = _format_predictions(name, task, [None])
            columns[file], sources[file] = [constant] * task.files[file][1], f"no run: the constant {constant}"
    if not progress.is_main_process():
        return sources
    tables = {
        f"{file}.tsv": "index\tprediction\n" + "".join(f"{index}\t{value}\n" for index, value in enumerate(column))
        for file, column in columns.items()
    }
    with output.open():
        write_files(output_dir, {**tables, ZIP: partial(_pack, tables)})
    rows = [[f"{file}.tsv", len(columns[file]), sources[file]] for file in columns]
    show(Report([Table(str(output_dir), ["file", "rows", "from"], rows)]))
    if missing := [file for file in files if file not in inputs]:
        progress.warn(f"no run for {', '.join(missing)}: every row gets the same label")
    return sources


def _pack(tables: Mapping[str, str], path: Path) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in tables.items():
            packed.writestr(_entry(name), content, zipfile.ZIP_DEFLATED)


def _by_task(runs: Sequence[str]) -> dict[str, Path]:
    by_task: dict[str, Path] = {}
    for name in runs:
        inside = (path for path in sorted(Path(name).glob("*/")) if not MOVED_ASIDE.search(path.name))
        folders = _run_of(Path(name)) or [run for path in inside for run in _run_of(path)]
        if not folders:
            raise UsageError("this is not a bertkit run, nor a folder of runs", where=name)
        for folder in folders:
            values = require_run(folder)
            task = values["recipe"].get("name")
            if values["status"] != "finished":
                raise UsageError("the run is not finished", where=str(folder), hint="repeat its command to resume it")
            if task not in TASKS:
                hint = f"the tasks of GLUE: {', '.join(TASKS)}"
                raise UsageError(f"this is a run of {task}, which is not a GLUE task", where=str(folder), hint=hint)
            if task in by_task:
                raise UsageError(f"two runs of {task}: {by_task[task]} and {folder}", hint="leave out one of the two")
            by_task[task] = folder
    return by_task


def _run_of(folder: Path) -> list[Path]:
    """The run folder itself, the best run of a folder of seeds, or none."""
    if seeds := SEEDS.runs_in(folder):
        return [max(seeds, key=_dev_score)]
    if SEEDS.summary(folder).is_file():
        raise UsageError("the seeds are not finished", where=str(folder), hint="repeat their command to resume them")
    return [folder] if read_run_file(folder) is not None else []


def _dev_score(run: Path) -> float:
    """The score that selected the run's best step, negated if lower is better."""
    values = require_run(run)
    score = next(iter(values["best"]["scores"].values()))
    if score is None:
        return -math.inf
    return score if read_recipe(values, run).resolved().greater_is_better else -score


def _open(run: Path, name: str, task: GlueTask, split: str, count: int, data: str | None) -> tuple[Opened, Examples]:
    """A run, with the recipe for a test set, and this test set."""
    values = require_run(run)
    own = values["recipe"].get("data")
    options: dict[str, Any] = {}
    if name == DIAGNOSTIC:  # its data is next to the run's data
        data = data or (str(Path(own).parent) if own else None)
        options |= {name: values["training"][name] for name in options_for("predict", TrainConfig)}
    if data is not None:
        options["data"] = str(Path(data) / task.folder)
    target = open_target(str(run), name if name == DIAGNOSTIC else None, options).resolved()
    examples = target.task.examples(target.read([split])[split], labelled=False)
    if len(examples) != count:
        what = f"the test set of {name} has {plural(len(examples), 'row')}; the leaderboard expects {count}"
        raise DataError(what, where=examples.source, hint="use GLUE's own download")
    return target, examples


def _format_predictions(name: str, task: GlueTask, predictions: Sequence[Prediction | None]) -> list[str]:
    """Predictions as the leaderboard expects them; None: the constant for a task without a run."""
    labels: Sequence[str] | None = getattr(load_recipe(name), "labels", None)
    if not labels:  # of STS-B; the leaderboard accepts only 0 to 5
        return [f"{0.0 if prediction is None else min(max(prediction.value, 0.0), 5.0):.3f}" for prediction in predictions]
    values = [labels[0] if prediction is None else prediction.value for prediction in predictions]
    if unknown := next((label for label in values if label not in labels), None):
        raise DataError(f"{name}: the run predicts {unknown!r}; expected {', '.join(labels)}")
    return [str(labels.index(label)) if task.numbered else label for label in values]


def _entry(name: str) -> zipfile.ZipInfo:
    """A zip entry without a date, readable by everyone."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o644 << 16
    return entry
