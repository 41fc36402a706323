"""Predictions as text: JSON lines, CSV, TSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what begins a formula, or is skipped before it

Rows = Sequence[dict[str, Any]]


def as_jsonl(rows: Rows) -> str:
    """An object a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def as_csv(rows: Rows, *, safe: bool = False) -> str:
    """A table with a header; lists and objects in a cell are JSON. safe: no spreadsheet takes a cell's text for a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for values in (rows[0], *(map(_cell, row.values()) for row in rows)):
        writer.writerow([f"'{v}" if safe and isinstance(v, str) and v.startswith(_FORMULA) else v for v in values])
    return text.getvalue()


def as_tsv(rows: Rows) -> str:
    """A table without quoting, as bertkit and GLUE read it: what would break it becomes a space."""
    lines = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    return "".join("\t".join(" ".join(re.split(r"[\t\r\n]", str(cell))) for cell in line) + "\n" for line in lines)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value


FORMATS: dict[str, Callable[[Rows], str]] = {".jsonl": as_jsonl, ".csv": as_csv, ".tsv": as_tsv}
