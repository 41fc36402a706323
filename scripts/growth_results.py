"""The figures of docs/speed.md on growth: what timed_growth.py measures, as a table by rows and one by length."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import markdown
import scale_results as scale
from entries import GROWTH
from provenance import ROOT, provenance

NAME = GROWTH
COMMAND = "python scripts/timed_growth.py"
BY_ROWS = ("rows", "reading and encoding, s", "a step, us a token", "memory above that of 1,000 rows, MB")
BY_LENGTH = ("max_length", "a step, us a token", "without attention's operations")


def commands() -> list[str]:
    return [COMMAND]


def measure(*, force: bool) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "scripts" / "timed_growth.py")]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {"name": NAME, "command": commands(), **json.loads(out.splitlines()[-1]), **provenance()}


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
    return "\n".join([*lines, f"`{COMMAND}`; {scale.note(values)}", ""])
