"""The figures on growth in docs/speed.md: measurements of timed_growth.py, as one table by rows and one by length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scripts import markdown
from scripts.provenance import provenance
from scripts.turns import run_script

NAME = "growth"
COMMAND = "python -m scripts.results.timed_growth"
BY_ROWS = ("rows", "reading and encoding, s", "a step, us a token", "memory above that of 1,000 rows, MB")
BY_LENGTH = ("max_length", "a step, us a token", "without attention's operations")


def commands() -> list[str]:
    return [COMMAND]


def measure(*, force: bool) -> dict[str, Any]:
    found = run_script("scripts.results.timed_growth", [], quiet=False)
    return {"name": NAME, "command": commands(), **found, **provenance()}


def by_rows(values: Mapping[str, Any]) -> list[list[str]]:
    return [
        [f"{each['rows']:,}", f"{each['data_s']:.1f}", f"{each['us_per_token']:.0f}", f"{each['above_mb']:,}"]
        for each in values["rows"]
    ]


def by_length(values: Mapping[str, Any]) -> list[list[str]]:
    return [
        [str(each["max_length"]), f"{each['us_per_token']:.0f}", f"{each['linear_us_per_token']:.0f}"]
        for each in values["lengths"]
    ]


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/speed.md."""
    tables = ((BY_ROWS, by_rows(values)), (BY_LENGTH, by_length(values)))
    lines = [line for header, rows in tables for line in (*markdown.table(header, rows, numbers_from=0), "")]
    return "\n".join([*lines, f"`{COMMAND}`; {markdown.measured_with(values, ('bertkit', 'torch'))}.", ""])
