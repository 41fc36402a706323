"""`bertkit reproduce`: a table of a paper, from its runs to its page."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from bertkit.errors import UsageError, listed, plural
from bertkit.files.output_folder import Kind, OutputFolder
from bertkit.report import Finding, Report, Table, show
from bertkit.reproduce.results import Cell, describe, write_page
from bertkit.reproduce.runs import Main, Run, all_of, pull, runs_of_cell
from bertkit.reproduce.table import TABLES, PaperTable, Scale, read_scale, read_table, tables_at

_RUNS = "runs"
_PARTS = re.compile(rf"{_RUNS}|({'|'.join(map(re.escape, TABLES))})\.(md|json|html)")
REPRODUCTIONS = Kind("folder of reproduced tables", None, _PARTS)


def reproduce(
    name: str,
    *,
    output_dir: Path,
    main: Main,
    scale: str = "smoke",
    seeds: int | None = None,
    data: Path | None = None,
    dry_run: bool = False,
) -> None:
    """Make the runs of a table in output_dir/runs, and write its page into output_dir.

    The same command, started again or at the same time, shares the work. seeds: for fine-tuning. data: the folder of the data
    sets that a scale reads. dry_run: only show what there is to do. Raises UsageError, UserError for a run that fails, and
    Stopped.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        what = "reproduce executes each run in one process, but was launched with several"
        raise UsageError(what, hint="start the same command several times: its processes share the runs")
    of_scale = read_scale(scale)
    table = read_table(name, of_scale)
    _refuse_wrong_data(of_scale, data)
    OutputFolder.prepare(output_dir, REPRODUCTIONS, resume=True, reads=[data])
    folder = output_dir / _RUNS
    with_seeds = seeds or of_scale.seeds
    cells = cells_of(table, seeds=with_seeds, folder=folder, data=data)
    runs = _runs_of(cells)
    if dry_run:
        others = [each for each in tables_at(of_scale) if each.name != name]
        of_others = (cells_of(other, seeds=with_seeds, folder=folder, data=data) for other in others)
        show(_plan(table, runs, [run for cells in of_others for run in _runs_of(cells)]))
        return
    if data is not None:
        _refuse_missing_files(runs, data.resolve())
    pull(runs, main)
    show(write_page(describe(table, cells), output_dir))


def cells_of(table: PaperTable, *, seeds: int, folder: Path, data: Path | None) -> list[Cell]:
    """The cells of a table with their runs. folder: of all runs. data: the folder of {data}."""
    return [
        Cell(row, column, runs_of_cell(table, row, column, seeds=seeds, folder=folder, data=data))
        for row in table.rows
        for column in table.columns
        if row.columns is None or column.name in row.columns
    ]


def _runs_of(cells: Sequence[Cell]) -> list[Run]:
    return all_of(run for cell in cells for run in cell.runs)


def _refuse_wrong_data(scale: Scale, data: Path | None) -> None:
    """Raise UsageError if --data is missing, superfluous, or not a folder."""
    reads = any("{data}" in step.words for step in scale.steps.values())
    if reads and data is None:
        what = f"--scale {scale.name} reads data sets from a folder, but --data is missing"
        raise UsageError(what, hint="add --data DIR, with a folder for each data set; --scale smoke needs none")
    if data is not None and not reads:
        raise UsageError(f"--data is given, but --scale {scale.name} reads no folder", hint="leave it out")
    if data is not None and not data.is_dir():
        raise UsageError("--data is not a folder", where=str(data), hint="expected a folder with a subfolder for each data set")


def _refuse_missing_files(runs: Sequence[Run], data: Path) -> None:
    """Raise UsageError for files that runs read but the folder of --data lacks."""
    words = dict.fromkeys(word for run in runs for word in run.words if word.startswith(f"{data}/"))
    if missing := [word.removeprefix(f"{data}/") for word in words if not Path(word).exists()]:
        raise UsageError(f"--data lacks {listed(missing)}", where=str(data), hint="put the published data sets there")


def _plan(table: PaperTable, runs: Sequence[Run], others: Sequence[Run]) -> Report:
    """The report of --dry-run. others: the runs of the other tables."""
    elsewhere = {run.folder for run in others}
    done = {run.folder for run in runs if run.finished}
    rows: list[list[object]] = []
    for step in dict.fromkeys(run.name for run in runs):
        own = [run for run in runs if run.name == step]
        left = [run for run in own if run.folder not in done]
        shared = sum(run.folder in elsewhere for run in own)
        hours, disk = sum(run.step.minutes for run in left) / 60, sum(run.step.megabytes for run in left) / 1000
        rows.append([step, own[0].words[0], len(own), shared, len(own) - len(left), len(left), hours, disk])
    totals = [sum(column) for column in list(zip(*rows, strict=True))[2:]]
    columns = ["step", "command", "runs", "shared", "done", "to do", "hours", "GB"]
    legend = f"{plural(len(runs), 'run')}; hours: expected, of one process; shared: with other tables of this scale"
    title = f"{table.title}, --scale {table.scale.name}"
    return Report(
        [Table(title, columns, [*rows, ["all", "", *totals]]), Finding("note", legend), Finding("note", table.scale.note)]
    )
