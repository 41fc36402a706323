"""The papers' tables at a scale for two cores: the results of `bertkit reproduce`, and their form in docs/results.md.

A table takes hours; its runs are kept in runs/results/tables, and the same command continues where it was stopped.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from bertkit.files import read_json
from bertkit.reproduce.table import read_scale, tables_at
from scripts import markdown
from scripts.provenance import ROOT, provenance
from scripts.results.command_lines import DATA, execute, filled_in

SCALE = "laptop"
FOLDER = "runs/results/tables"
# result -> table
TABLES = {f"table_{table.name.replace('-', '_')}": table.name for table in tables_at(read_scale(SCALE))}


def commands(name: str) -> list[str]:
    """The command line of a result, as a user types it."""
    return [f"bertkit reproduce {TABLES[name]} --scale {SCALE} --data {DATA} --output-dir {FOLDER}"]


def measure(name: str, *, force: bool) -> dict[str, Any]:
    """What results/NAME.json keeps: what the command writes, without the commands of its runs.

    Finished runs are kept. force: once a process, the runs of all tables are removed before, as these share some.
    """
    if force:
        _forget()
    origin, (line,) = provenance(), commands(name)
    execute(line, 0)
    found = read_json(ROOT / FOLDER / f"{TABLES[name]}.json")
    cells = [{key: value for key, value in cell.items() if key != "commands"} for cell in found["cells"]]
    seeds = list(range(1, max(cell["seeds"] for cell in cells) + 1))
    starts = ", ".join(dict.fromkeys(re.sub(r", at step \d+$", "", cell["start"]) for cell in cells))
    own = {"name": name, "command": [line], **origin, "seeds": seeds, "model": {"name": starts}}
    return {**own, **found, "cells": cells}


@cache
def _forget() -> None:
    filled_in([DATA])  # refused before anything is lost
    shutil.rmtree(ROOT / FOLDER, ignore_errors=True)


def render(*results: Mapping[str, Any]) -> str:
    """The block of docs/results.md: each table with its claims."""
    from bertkit import progress
    from bertkit.report import Finding, Table
    from bertkit.reproduce.results import report_table

    parts: list[Sequence[str]] = []
    notes = dict.fromkeys(values["note"] for values in results)
    for values in results:
        parts.append([f"### {values['title']}"])
        for part in report_table(values).parts:
            if isinstance(part, Table):
                rows = [[progress.format_cell(cell) for cell in row] for row in part.rows]
                parts.append(markdown.table(part.columns, rows, numbers_from=3))
            elif isinstance(part, Finding):
                parts += [[_sentence(part.what)]] if part.what not in notes else []
    return markdown.block(results, *([_sentence(note)] for note in notes), *parts)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
