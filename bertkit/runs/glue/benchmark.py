"""GLUE (Wang et al., 2019): every task with one command, and the average that Devlin et al. (2019) report.

Their table 1 excludes WNLI, and counts the two test sets of MNLI separately.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.config import filled, options_of
from bertkit.errors import DataError, UsageError, did_you_mean
from bertkit.files import as_json
from bertkit.model.directory import weights_hash
from bertkit.readers.formats import SPLITS
from bertkit.report import Finding, Report, Table, show
from bertkit.runs.directory import NEW_FOLDER
from bertkit.runs.request import Request
from bertkit.runs.run_file import finished_run
from bertkit.runs.target import open_model_or_run
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import to_json

NAME = "glue"


@dataclass(frozen=True)
class GlueTask:
    """folder: in GLUE's own download. columns: of the paper's table, with their scores. files: in the leaderboard's zip, with
    their splits and numbers of rows. numbered: whether the leaderboard expects label numbers instead of names.
    """

    folder: str
    columns: Mapping[str, str]
    files: Mapping[str, tuple[str, int]]
    numbered: bool = True


TASKS = {
    "mnli": GlueTask(
        "MNLI",
        {"MNLI-m": "validation_matched/accuracy", "MNLI-mm": "validation_mismatched/accuracy"},
        {"MNLI-m": ("test_matched", 9796), "MNLI-mm": ("test_mismatched", 9847)},
        numbered=False,
    ),
    "qqp": GlueTask("QQP", {"QQP": "validation/f1"}, {"QQP": ("test", 390965)}),
    "qnli": GlueTask("QNLI", {"QNLI": "validation/accuracy"}, {"QNLI": ("test", 5463)}, numbered=False),
    "sst2": GlueTask("SST-2", {"SST-2": "validation/accuracy"}, {"SST-2": ("test", 1821)}),
    "cola": GlueTask("CoLA", {"CoLA": "validation/matthews_correlation"}, {"CoLA": ("test", 1063)}),
    "stsb": GlueTask("STS-B", {"STS-B": "validation/spearmanr"}, {"STS-B": ("test", 1379)}),
    "mrpc": GlueTask("MRPC", {"MRPC": "validation/f1"}, {"MRPC": ("test", 1725)}),
    "rte": GlueTask("RTE", {"RTE": "validation/accuracy"}, {"RTE": ("test", 3000)}, numbered=False),
    "wnli": GlueTask("WNLI", {}, {"WNLI": ("test", 146)}),
}
DIAGNOSTIC = "ax"  # the recipe with which an MNLI model predicts the diagnostic set
AX = GlueTask("diagnostic", {}, {"AX": ("test", 1104)}, numbered=False)


def finetune_glue(
    tasks: Sequence[str],
    options: Mapping[str, Any],
    run: Callable[..., dict[str, Any]],
    output_dir: Path,
    *,
    several: bool = False,
    model: str,
    overwrite: bool = False,
    fresh_head: bool | None = False,
    baselines: bool = False,
) -> dict[str, float | None]:
    """Fine-tune on every task into output_dir/TASK; print and return the paper's columns with their average.

    options: for every recipe; `data` is the folder of GLUE's download. run: `finetune` or, with `several`, a function that
    trains several runs, whose mean scores count. Finished runs are kept. Data is checked before the first task: UsageError,
    DataError.
    """
    recipes = {task: _recipe(task, options) for task in tasks or TASKS}
    for task, recipe in recipes.items():
        try:
            recipe.resolved()
        except UsageError as error:
            raise UsageError(f"{task}: {error.what}", hint="choose the tasks that have it with --tasks") from None
    _refuse_missing_splits(recipes)
    columns: dict[str, float | None] = {}
    for task, recipe in recipes.items():
        folder = output_dir / task
        result = None if overwrite or several else _finished(folder, recipe, model, fresh_head)
        if result is None:
            progress.note(f"{task}: {list(recipes).index(task) + 1} of {len(recipes)}")
            request = Request(recipe, task, model, fresh_head)
            result = run(request, folder, overwrite=overwrite, baselines=baselines)
        else:
            progress.note(f"{task}: finished in {folder}")
        columns |= {column: _score(result, name) for column, name in TASKS[task].columns.items()}
    all_columns = [column for task in TASKS.values() for column in task.columns]
    values = [columns.get(column) for column in all_columns]
    scores = [value for value in values if value is not None]
    average = statistics.fmean(scores) if len(scores) == len(all_columns) else None
    parts: list[Table | Finding] = [Table(f"{output_dir}: dev sets", [*columns, "average"], [[*columns.values(), average]])]
    if average is None:
        missing = [column for column, value in zip(all_columns, values, strict=True) if value is None]
        parts.append(Finding("note", f"no average, because of missing scores: {', '.join(missing)}"))
    if outside := [task for task in recipes if not TASKS[task].columns]:
        parts.append(
            Finding("note", f"the paper's table has no column for {', '.join(outside)}; the scores are in {output_dir}")
        )
    show(Report(parts, columns))
    return columns | {"average": average}


def _recipe(task: str, options: Mapping[str, Any]) -> Recipe:
    if task not in TASKS:
        raise UsageError(f"GLUE has no task {task!r}", hint=did_you_mean(task, TASKS))
    for name in SPLITS:
        if name in options:
            raise UsageError(f"--{name} is a file for one task", hint="give the folder of GLUE's download: --data glue")
    own = {"data": str(Path(str(options["data"])) / TASKS[task].folder)} if "data" in options else {}
    return load_recipe(task).overridden({**options, **own})


def _refuse_missing_splits(recipes: Mapping[str, Recipe]) -> None:
    """Raise DataError if data folders lack a split that training needs; one line names all such tasks."""
    incomplete = {}
    for task, recipe in recipes.items():
        splits = (recipe.train_split, *recipe.eval_splits) if recipe.data else ()
        if missing := [split for split in splits if not recipe.has_split(split)]:
            incomplete[task] = f"{task}: no file for {' and '.join(missing)} ({recipe.data})"
    if incomplete:
        rest = [task for task in recipes if task not in incomplete]
        hint = f"train only the other tasks: --tasks {','.join(rest)}" if rest else None
        raise DataError("; ".join(incomplete.values()), hint=hint)


def _finished(folder: Path, recipe: Recipe, model: str, fresh_head: bool | None) -> dict[str, Any] | None:
    """The run.json of a finished run, or None. Raises UsageError if it has different settings, or the model has changed."""
    own = as_json(to_json(recipe.resolved(), name=NAME))
    compared = set(options_of(recipe)) - {"class_weights"}  # bertkit 0.1 saved the resolved value
    wanted = {
        "training": dataclasses.asdict(filled(recipe.training)),
        "model": {"name": model, **({"fresh_head": True} if fresh_head else {})},
        "recipe": {name: own[name] for name in own if name in compared},
    }
    if finished_run(folder, wanted, NEW_FOLDER) is None:
        return None
    return finished_run(folder, {"model": {"sha256": weights_hash(open_model_or_run(model).folder)}}, NEW_FOLDER)


def _score(result: Mapping[str, Any], name: str) -> float | None:
    """A score of a run, or its mean over seeds."""
    if "scores" in result:
        return result["scores"].get(name, {}).get("mean")
    return result["best"]["scores"].get(name)
