"""`bertkit report`: everything about one or more runs, as an HTML page with the numbers of eval, compare and check."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.errors import ModelError, UsageError
from bertkit.files import relative, write_files
from bertkit.html.page import Section, render, require_packages
from bertkit.metrics.classification import EVALUATE
from bertkit.model.config import PRETRAINING
from bertkit.report import Report, Table
from bertkit.runs.checks.label_errors import FOUND as LABEL_ERRORS
from bertkit.runs.checks.label_errors import report_label_errors
from bertkit.runs.checks.learning_curve import FOUND as LEARNING_CURVE
from bertkit.runs.checks.learning_curve import report_learning_curve
from bertkit.runs.output_paths import refuse_unusable_file
from bertkit.runs.reporting.pretraining_report import describe_pretraining
from bertkit.runs.reporting.reported_run import ReportedRun
from bertkit.runs.reporting.task_report import describe_tasks
from bertkit.runs.run_file import PATHS, refuse_different_tasks, require_run
from bertkit.runs.series import FOLDS, SEEDS, runs_to_use
from bertkit.runs.tuning.study import TUNING_FILE, report_tuning


def write_report(
    names: Sequence[str], output: Path, *, rows: int = 20, recipe_name: str | None = None, overwrite: bool = False
) -> None:
    """Write the page of runs to a file. rows: number of worst errors to show. recipe_name: the file of the runs' own recipe.

    A name may also be an output folder of `check --label-errors`, `check --learning-curve` or `tune`, whose tables are shown.

    Raises MachineError if packages are missing, and UsageError for folders that are not runs, for runs of different tasks or
    rows, and for an output that exists.
    """
    require_packages()
    refuse_unusable_file(output, names, overwrite=overwrite)
    if output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--output is {output}; a report is HTML", hint="expected a name that ends in .html or .htm")
    found = {name: _found_in(Path(name), rows) for name in names}
    sections: list[Section] = []
    if runs := _open([name for name in names if not found[name]]):
        is_pretraining = runs[0].family == PRETRAINING
        described = describe_pretraining(runs, rows) if is_pretraining else describe_tasks(runs, rows, recipe_name)
        sections = [*described, Section("Settings", [_settings(runs)])]
    sections += chain.from_iterable(found.values())
    page = render(f"Report of {', '.join(found)}", sections, paths=_relative_paths(names, runs))
    if progress.is_main_process():
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
            sections.append(Section(f"{folder}: {title}", report.on_page))
    return sections


_PATHS = re.compile(rf"{PATHS.pattern}|recipe\.(name|metric)|resumed_from")  # keys of run.json whose values may be paths


def _relative_paths(names: Sequence[str], runs: Sequence[ReportedRun]) -> dict[str, str]:
    """What a report shows instead of absolute paths: the runs as typed, and their data, models and code."""
    recorded = [value for run in runs for name, value in run.flat().items() if _PATHS.fullmatch(name)]
    continued = (each for run in runs for each in run.values.get("continued") or ())
    recorded += [corpus["source"] for each in continued for corpus in each["data"].values()]
    texts = chain(names, *(value if isinstance(value, list) else [str(value)] for value in recorded))
    paths = (text.removeprefix(EVALUATE).rstrip(os.sep) for text in texts)
    return {path: relative(path) for path in paths if os.path.isabs(path)}


def _open(names: Sequence[str]) -> list[ReportedRun]:
    runs: list[ReportedRun] = []
    for name in dict.fromkeys(names):
        folder = Path(*runs_to_use(name))
        if runs and FOLDS.runs_in(Path(name)):  # rows are held out as in the first run
            folder = next((fold for fold in FOLDS.runs_in(Path(name)) if fold.name == runs[0].folder.name), folder)
        values = require_run(folder)
        if (seeds := SEEDS.runs_in(Path(name))) and not values.get("baselines"):  # the first has those of all
            values["baselines"] = require_run(seeds[0]).get("baselines")
        runs.append(ReportedRun(name, folder, values))
    refuse_different_tasks({run.name: run.values for run in runs})
    return runs


def _settings(runs: Sequence[ReportedRun]) -> Table:
    """All of run.json except the scores."""
    scores = re.compile(r"(best|last)(\..*)?")
    settings = [{name: value for name, value in run.flat().items() if not scores.fullmatch(name)} for run in runs]
    names = dict.fromkeys(chain.from_iterable(settings))

    def cell(value: Any) -> str | None:
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    rows = [[name, *(cell(own.get(name)) for own in settings)] for name in names]
    return Table("run.json", ["setting", *(run.name for run in runs)], rows)
