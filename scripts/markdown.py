"""Results as Markdown: tables, and the commands that measured them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def measured_with(values: Mapping[str, Any], packages: Sequence[str] = ("bertkit", "torch", "transformers")) -> str:
    """The versions, the machine, the commit and the day of a result."""
    commit, _, dirty = values["commit"].partition("-")
    versions = ", ".join(f"{package} {values['versions'][package]}" for package in packages)
    return f"{versions}; {values['machine']}; commit {commit[:12]}{' with changes' if dirty else ''}, {values['date']}"


def commands(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """A block of the command lines of each result, under a comment that says what they were run with."""
    lines = ["```sh"]
    for values in results:
        seeds = ", ".join(str(seed) for seed in values["seeds"])
        took = f", {statistics.median(values['seconds'].values()):.0f} s each" if "seconds" in values else ""
        run = f"{values['name']}: {values['model']['name']}, seed {seeds}{took}"
        lines += [f"# {run}; {measured_with(values)}", *values["command"]]
    return [*lines, "```"]


def block(results: Sequence[Mapping[str, Any]], *parts: Sequence[str]) -> str:
    """What a page shows of results: parts of some lines each, and the commands."""
    return "\n".join([line for part in (*parts, commands(results)) for line in (*part, "")])


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int) -> list[str]:
    rules = ["---" if at < numbers_from else "---:" for at in range(len(header))]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rules, *rows)]
