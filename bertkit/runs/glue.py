"""GLUE as a whole (Wang et al., 2019): every task by one command, with the average that Devlin et al. (2019) report.

Their table 1 leaves WNLI out, and counts the two test sets of MNLI as two.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.config import options_of
from bertkit.errors import DataError, UsageError, did_you_mean
from bertkit.runs.directory import finished_run
from bertkit.tasks.recipe import Recipe, load_recipe, override, to_json

NAME = "glue"


@dataclass(frozen=True)
class GlueTask:
    """folder: of GLUE's own download. columns: those of the paper's table, and the scores they show. files: of the
    leaderboard's zip, each with its split and rows. numbered: whether the leaderboard takes a label's number for its name.
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
DIAGNOSTIC = "ax"  # the recipe by which an MNLI model is asked the diagnostic set
AX = GlueTask("diagnostic", {}, {"AX": ("test", 1104)}, numbered=False)


def finetune_glue(
    tasks: Sequence[str],
    options: Mapping[str, Any],
    run: Callable[..., dict[str, Any]],
    *,
    several: bool = False,
    model: str,
    output_dir: Path,
    overwrite: bool = False,
    fresh_head: bool | None = False,
) -> dict[str, float | None]:
    """Fine-tune on every task into output_dir/TASK, and show the paper's columns with their average, which are returned.

    options: of every recipe alike; their `data` is the folder of GLUE's download. run: `finetune`, or with `several` of several
    seeds `finetune_seeds`, whose means count. What is finished is kept. Raises UsageError, or DataError where a task has no
    data, before the first is begun.
    """
    recipes = {task: _recipe(task, options) for task in tasks or TASKS}
    for task, recipe in recipes.items():
        try:
            recipe.settled_to_train()
        except UsageError as error:
            raise UsageError(f"{task}: {error.what}", hint="--tasks says which tasks to train with it") from None
    _check_data(recipes)
    columns: dict[str, float | None] = {}
    for task, recipe in recipes.items():
        folder = output_dir / task
        found = None if overwrite or several else _finished(folder, recipe, model, fresh_head)
        if found is None:
            progress.note(f"{task}: {list(recipes).index(task) + 1} of {len(recipes)}")
            found = run(recipe, name=task, model=model, output_dir=folder, overwrite=overwrite, fresh_head=fresh_head)
        else:
            progress.note(f"{task}: finished in {folder}")
        columns |= {column: _score(found, name) for column, name in TASKS[task].columns.items()}
    all_columns = [column for task in TASKS.values() for column in task.columns]
    values = [columns.get(column) for column in all_columns]
    known = [value for value in values if value is not None]
    average = statistics.fmean(known) if len(known) == len(all_columns) else None
    progress.table(f"{output_dir}: dev sets", [*columns, "average"], [[*columns.values(), average]])
    if average is None:
        missing = [column for column, value in zip(all_columns, values, strict=True) if value is None]
        progress.note(f"no average: {', '.join(missing)} are missing")
    return columns | {"average": average}


def _recipe(task: str, options: Mapping[str, Any]) -> Recipe:
    if task not in TASKS:
        raise UsageError(f"GLUE has no task {task!r}", hint=did_you_mean(task, TASKS))
    for name in ("train", "validation", "test"):
        if name in options:
            raise UsageError(f"--{name} names a file of one task", hint="give the folder of GLUE's download: --data glue")
    own = {"data": str(Path(str(options["data"])) / TASKS[task].folder)} if "data" in options else {}
    return override(load_recipe(task), {**options, **own})


def _check_data(recipes: Mapping[str, Recipe]) -> None:
    """Raise DataError where a task's folder of data lacks a split that its training needs; all such tasks in one line."""
    lacking = {}
    for task, recipe in recipes.items():
        splits = (recipe.train_split, *recipe.eval_splits) if recipe.data else ()
        lacks = [split for split in splits if not recipe.folder.has(Path(str(recipe.data)), split, recipe.file_endings)]
        if lacks:
            lacking[task] = f"the split{'s' if len(lacks) > 1 else ''} {' and '.join(lacks)} ({recipe.data})"
    if lacking:
        rest = [task for task in recipes if task not in lacking]
        what = "; ".join(f"{task}: no file for {lacks}" for task, lacks in lacking.items())
        raise DataError(
            what, hint=f"leave {'it' if len(lacking) == 1 else 'them'} out: --tasks {','.join(rest)}" if rest else None
        )


def _finished(folder: Path, recipe: Recipe, model: str, fresh_head: bool | None) -> dict[str, Any] | None:
    """run.json of a finished run, or None. Raises UsageError where it was made with other settings."""
    own = json.loads(json.dumps(to_json(recipe.settled(), name=NAME)))
    compared = set(options_of(recipe)) - {"class_weights"}  # of which "balanced" was settled by the data
    wanted = {
        "training": dataclasses.asdict(recipe.training),
        "model": {"name": model, **({"fresh_head": True} if fresh_head else {})},
        "recipe": {name: own[name] for name in own if name in compared},
    }
    return finished_run(folder, wanted, "give another --output-dir, or --overwrite")


def _score(found: Mapping[str, Any], name: str) -> float | None:
    """A score of a run, or the mean of it over seeds."""
    if "seeds" in found:
        return found["scores"].get(name, {}).get("mean")
    return found["best"]["scores"].get(name)
