"""The results of a table's runs: its figures next to the published ones, its claims, and a page with both."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bertkit import progress
from bertkit.errors import MachineError, plural
from bertkit.files import json_text, read_json, write_files
from bertkit.html.page import Section, render, require_packages
from bertkit.report import Finding, Report, Table
from bertkit.reproduce.runs import Run, all_of
from bertkit.reproduce.table import Column, PaperTable, Row
from bertkit.runs.evaluation.compare import mean_difference, open_sides
from bertkit.runs.pretraining.course import Course
from bertkit.runs.run_file import require_run
from bertkit.runs.series import summarize

AVERAGE = "average"  # a column of its own
OWN = "a model pre-trained for this table"
OF_ALL_ROWS = ("seeds", "layers x hidden size", "starts from", "selected by", "pre-training tokens")  # if they agree


class Cell(NamedTuple):
    """A row's runs in a column, by seed."""

    row: Row
    column: Column
    runs: Sequence[Run]

    @property
    def values(self) -> list[float | None]:
        return [run.record["scores"].get(self.column.score) for run in self.runs]


def describe(table: PaperTable, cells: Sequence[Cell]) -> dict[str, Any]:
    """The content of TABLE.json; all runs must be finished."""
    described = []
    for row in table.rows:
        own = [cell for cell in cells if cell.row == row]
        described += [_describe(row, cell.column.name, cell.column.score, cell.values, cell.runs) for cell in own]
        if table.average:
            each = [None if None in values else fmean(values) for values in zip(*(cell.values for cell in own), strict=True)]
            described.append(_describe(row, AVERAGE, "mean of the tasks", each, [run for cell in own for run in cell.runs]))
    return {
        "table": table.name,
        "title": table.title,
        "source": table.source,
        "scale": table.scale.name,
        "note": table.scale.note,
        "cells": described,
        "claims": _judge(table, cells),
    }


def _describe(row: Row, task: str, score: str, each: Sequence[float | None], runs: Sequence[Run]) -> dict[str, Any]:
    """One figure. each: its values, by seed. runs: the runs that it comes from."""
    trained = runs[0].needs[-1] if runs[0].words[0] == "eval" else runs[0]
    found, (start, tokens) = summarize(each, score), _origin(trained)
    selected_by = next(iter(require_run(trained.output)["best"]["scores"]))
    return {
        "row": row.name,
        "task": task,
        "score": score,
        "seeds": len(each),
        "pretrained": sum(run.words[0] == "pretrain" for run in all_of(runs)) or None,
        **{name: found[name] for name in ("mean", "std", "interval", "each")},
        "published": row.published.get(task),
        "model": _size(trained),
        "start": start,
        "selected_by": None if task == AVERAGE else selected_by,
        "tokens": tokens,
        "core_hours": sum(run.record["core_seconds"] for run in all_of(runs)) / 3600,
        "commands": [shlex.join(run.command) for run in runs],
    }


def _size(run: Run) -> str:
    """The size of the model that a run trained."""
    config = read_json(run.output / "config.json")
    return f"{config['num_hidden_layers']} x {config['hidden_size']}, {plural(config['num_attention_heads'], 'head')}"


def _origin(run: Run) -> tuple[str, int | None]:
    """The checkpoint that a run starts from, and the maximum number of tokens it was pre-trained on, None if unknown."""
    start = run.words[run.words.index("--model") + 1] if "--model" in run.words else "fresh weights"
    pretrained = next((each for each in all_of([run]) if each.words[0] == "pretrain"), None)
    if pretrained is None:
        return start, None
    values, place = require_run(pretrained.output), Path(start).name
    step = int(place.rpartition("-")[2]) if place.startswith("checkpoint-") else values["best"]["step"]
    return f"{OWN}, at step {step}" if place.startswith("checkpoint-") else OWN, Course.of(values).tokens_before(step)


def _judge(table: PaperTable, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Each claim with its paired interval: over rows and seeds for fine-tuned runs, else over seeds."""
    judged = []
    for column in table.columns:
        claims = [claim for claim in table.claims if claim.column == column.name]
        named = {name for claim in claims for name in (claim.higher, claim.lower)}
        compared = {cell.row.name: cell for cell in cells if cell.column == column and cell.row.name in named}
        fine_tuned = all(run.words[0] == "finetune" for cell in compared.values() for run in cell.runs)
        difference = (_over_rows if fine_tuned and claims else _over_seeds)(compared, column.score)
        for claim in claims:
            found = difference(claim.higher, claim.lower)
            over = "rows and seeds" if fine_tuned else "seeds"
            verdict = _verdict(found["interval"]) if table.scale.judges else None
            judged.append({**claim._asdict(), **found, "over": over, "verdict": verdict})
    return judged


def _verdict(interval: Sequence[float] | None) -> str:
    """What the interval of a difference says about the claim that it is above 0."""
    if interval is None or interval[0] <= 0 <= interval[1]:
        return "not shown"
    return "shown" if interval[0] > 0 else "opposite shown"


Difference = Callable[[str, str], dict[str, Any]]  # of two rows: how much higher the first one's mean is, and its interval


def _over_rows(compared: Mapping[str, Cell], score: str) -> Difference:
    split, _, metric = score.rpartition("/")
    named = [(name, {run.output: require_run(run.output) for run in cell.runs}) for name, cell in compared.items()]
    opened, examples, _ = open_sides(named, split)
    sides = {side.name: side for side in opened}
    return lambda higher, lower: mean_difference(sides[higher], sides[lower], metric, len(examples))


def _over_seeds(compared: Mapping[str, Cell], score: str) -> Difference:
    def difference(higher: str, lower: str) -> dict[str, Any]:
        pairs = zip(compared[higher].values, compared[lower].values, strict=True)
        found = summarize([None if one is None or other is None else one - other for one, other in pairs])
        return {"difference": found["mean"], "interval": found["interval"]}

    return difference


def report_table(found: Mapping[str, Any]) -> Report:
    """The page of a table. found: of `describe`."""
    rows = [
        {
            "row": cell["row"],
            "task": cell["task"],
            "score": cell["score"],
            "mean": cell["mean"],
            "std": cell["std"],
            "95% interval": progress.format_interval(cell["interval"]),
            "published": cell["published"],
            "seeds": cell["seeds"],
            "pre-trained": cell["pretrained"],
            "layers x hidden size": cell["model"],
            "starts from": cell["start"],
            "selected by": None if cell["selected_by"] is None else f"best {cell['selected_by']}",
            "pre-training tokens": None if cell["tokens"] is None else f"{cell['tokens'] / 1e6:.3g}M",
            "core hours": cell["core_hours"],
        }
        for cell in found["cells"]
    ]
    known = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    shared = [name for name in OF_ALL_ROWS if name in known and all(row[name] == rows[0][name] for row in rows)]
    columns = [name for name in known if name not in shared]
    shared_settings = f"all rows: {'; '.join(f'{name} {rows[0][name]}' for name in shared)}"
    claims = [
        [
            claim["says"],
            f"{claim['higher']} - {claim['lower']}",
            claim["column"],
            claim["difference"],
            progress.format_interval(claim["interval"], "+.4f"),
            claim["over"],
            claim["verdict"],
        ]
        for claim in found["claims"]
    ]
    compared = ["claim", "difference of", "task", "difference", "95% interval", "paired over", "verdict"]
    title = f"{found['title']}, --scale {found['scale']}"
    parts: list[Table | Finding] = [Table(title, columns, [[row[name] for name in columns] for row in rows])]
    parts += [Table("claims", compared, claims)] if claims else []
    notes = [*([shared_settings] if shared else []), found["note"], f"the paper's table: {found['source']}"]
    return Report([*parts, *(Finding("note", note) for note in notes)], found)


def write_page(found: Mapping[str, Any], folder: Path) -> Report:
    """Write TABLE.md, TABLE.json and, if the packages of the extra `report` are installed, TABLE.html."""
    report, name = report_table(found), found["table"]
    files = {f"{name}.md": _markdown(report), f"{name}.json": json_text(found)}
    try:
        require_packages()
        files[f"{name}.html"] = render(f"{name}, {found['scale']}", [Section(found["title"], report.on_page)])
    except MachineError as error:
        progress.note(f"no {name}.html: {error.line}")
    write_files(folder, files, locked=False)
    progress.note(f"wrote {', '.join(files)} into {folder}")
    return report


def _markdown(report: Report) -> str:
    lines: list[str] = []
    for part in report.parts:
        if isinstance(part, Table):
            cells = [
                part.columns,
                ["---"] * len(part.columns),
                *([progress.format_cell(cell) for cell in row] for row in part.rows),
            ]
            lines += [f"## {part.title}", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
        elif isinstance(part, Finding):
            lines += [part.what, ""]
    return "\n".join(lines)
