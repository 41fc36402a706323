"""The files of GLUE's leaderboard: a label, or a number, for every row of the unlabelled test sets, and a zip of them."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.config import INFERENCE
from bertkit.errors import DataError, UsageError
from bertkit.files import MOVED_ASIDE, Kind, OutputFolder, disk_errors
from bertkit.readers import Examples
from bertkit.runs.directory import read_recipe, read_run_file, require_run
from bertkit.runs.glue import AX, DIAGNOSTIC, TASKS, GlueTask
from bertkit.runs.predict import Opened, open_target, predict_rows
from bertkit.runs.seeds import SEEDS_FILE, read_seeds
from bertkit.tasks.recipe import Recipe, load_recipe

ZIP = "submission.zip"
_PARTS = re.compile("|".join(map(re.escape, (ZIP, *(f"{file}.tsv" for task in (*TASKS.values(), AX) for file in task.files)))))
SUBMISSION = Kind("submission", lambda folder: any(_PARTS.fullmatch(path.name) for path in folder.iterdir()) or None, _PARTS)


def write_submission(
    runs: Sequence[str], output_dir: Path, *, data: str | None = None, overwrite: bool = False
) -> dict[str, str]:
    """Write NAME.tsv for every task of the leaderboard, and a zip of them; returns for each where it comes from.

    runs: run folders, folders of seeds, of which the best on the dev set is taken (Devlin et al., 2019, section 4.1), or
    folders of either, such as `finetune glue` makes. data: the folder of GLUE's download; without it each run's own. A task
    without a run is filled with one constant, and said to be. overwrite: move what is in output_dir aside. Raises UsageError,
    or before anything is predicted DataError where a test set has another number of rows than the leaderboard's.
    """
    output = OutputFolder.prepare(output_dir, SUBMISSION, overwrite=overwrite, reads=[*runs, data])
    by_task = _by_task(runs)
    asked: dict[str, tuple[Opened, Recipe, Examples]] = {}
    columns: dict[str, list[str]] = {}
    sources: dict[str, str] = {}
    files = {file: (name, task) for name, task in {**TASKS, DIAGNOSTIC: AX}.items() for file in task.files}
    for file, (name, task) in files.items():
        if (run := by_task.get("mnli" if name == DIAGNOSTIC else name)) is not None:
            asked[file], sources[file] = _open(run, name, task, *task.files[file], data), str(run)
    for file, (name, task) in files.items():
        if file in asked:
            columns[file] = _written(name, task, predict_rows(*asked[file]))
        else:
            (constant,) = _written(name, task, [None])
            columns[file], sources[file] = [constant] * task.files[file][1], f"no run: the constant {constant}"
    if progress.console.quiet:  # one process writes
        return sources
    with output.open(), disk_errors(output_dir), zipfile.ZipFile(output_dir / ZIP, "w") as packed:
        for file, column in columns.items():
            content = "index\tprediction\n" + "".join(f"{at}\t{value}\n" for at, value in enumerate(column))
            (output_dir / f"{file}.tsv").write_text(content, encoding="utf-8")
            packed.writestr(_entry(f"{file}.tsv"), content, zipfile.ZIP_DEFLATED)
    progress.table(str(output_dir), ["file", "rows", "from"], [[f"{f}.tsv", len(columns[f]), sources[f]] for f in columns])
    if constant_ones := [file for file, source in sources.items() if source.startswith("no run")]:
        progress.warn(f"filled with a constant, for want of a run: {', '.join(constant_ones)}")
    return sources


def _by_task(runs: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name in runs:
        inside = (each for each in sorted(Path(name).glob("*/")) if not MOVED_ASIDE.search(each.name))
        folders = _run_of(Path(name)) or [run for each in inside for run in _run_of(each)]
        if not folders:
            raise UsageError("this is no run of bertkit, nor a folder of runs", where=name)
        for folder in folders:
            values = require_run(folder)
            task = values["recipe"].get("name")
            if values["status"] != "finished":
                raise UsageError("the run is not finished", where=str(folder), hint="repeat its command, which goes on")
            if task not in TASKS:
                hint = f"GLUE's are {', '.join(TASKS)}"
                raise UsageError(f"this is a run of {task}, which is no task of GLUE's", where=str(folder), hint=hint)
            if task in found:
                raise UsageError(f"two runs of {task}: {found[task]} and {folder}", hint="leave out one of the two")
            found[task] = folder
    return found


def _run_of(folder: Path) -> list[Path]:
    """A run's folder itself, the best run of a folder of seeds, or none."""
    if seeds := read_seeds(folder):
        return [max(seeds, key=_dev_score)]
    if (folder / SEEDS_FILE).is_file():
        raise UsageError("the seeds are not finished", where=str(folder), hint="repeat their command, which goes on")
    return [folder] if read_run_file(folder) is not None else []


def _dev_score(run: Path) -> float:
    """The score that chose the run's best step, with its sign turned where lower is better."""
    values = require_run(run)
    score = next(iter(values["best"]["scores"].values()))
    if score is None:
        return -math.inf
    return score if read_recipe(values, run).settled().greater_is_better else -score


def _open(run: Path, name: str, task: GlueTask, split: str, count: int, data: str | None) -> tuple[Opened, Recipe, Examples]:
    """A run with the recipe that reads a test set, and the set."""
    values = require_run(run)
    own = values["recipe"].get("data")
    options: dict[str, Any] = {}
    if name == DIAGNOSTIC:  # another recipe, whose data lies beside the run's
        data = data or (str(Path(own).parent) if own else None)
        options |= {option: values["training"][option] for option in INFERENCE}
    if data is not None:
        options["data"] = str(Path(data) / task.folder)
    target = open_target(str(run), name if name == DIAGNOSTIC else None, options)
    recipe = target.recipe.settled()
    examples = recipe.load(split, to_predict=True)
    if len(examples) != count:
        what = f"the test set of {name} has {len(examples)} rows; the leaderboard expects {count}"
        raise DataError(what, where=examples.source, hint="take GLUE's own download")
    return target, recipe, examples


def _written(name: str, task: GlueTask, predictions: Sequence[dict[str, Any] | None]) -> list[str]:
    """Predictions as the leaderboard has them; None: the constant of a task without a run."""
    labels: Sequence[str] | None = getattr(load_recipe(name), "labels", None)
    if not labels:
        return [f"{0.0 if found is None else found['prediction']:.3f}" for found in predictions]
    chosen = [labels[0] if found is None else found["label"] for found in predictions]
    if other := next((label for label in chosen if label not in labels), None):
        raise DataError(f"{name}: the run predicts {other!r}; expected {', '.join(labels)}")
    return [str(labels.index(label)) if task.numbered else label for label in chosen]


def _entry(name: str) -> zipfile.ZipInfo:
    """A file of the zip, of no date, that who unpacks it may read."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o644 << 16
    return entry
