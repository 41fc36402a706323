"""A table at a scale: its rows, columns and claims, read from tables/*.toml, and the steps that make them, from scales/*.toml.

A value in a table's row can depend on the scale; a row that lacks a value at a scale is left out there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.errors import UsageError, did_you_mean, not_a_choice

HERE = Path(__file__).parent
TABLES = tuple(sorted(path.stem for path in (HERE / "tables").glob("*.toml")))
SCALES = ("smoke", "laptop", "paper")


class Step(NamedTuple):
    """words: of a command, with {placeholders} for values, or for the folders of other steps. minutes, megabytes: expected."""

    words: str
    minutes: float
    megabytes: float


class Scale(NamedTuple):
    """seeds: of fine-tuning, which share pretraining_seeds. values: of placeholders. note: what its figures mean.

    judges: whether they say anything about a paper's claims.
    """

    name: str
    note: str
    seeds: int
    pretraining_seeds: int
    values: Mapping[str, str]
    steps: Mapping[str, Step]
    judges: bool = True


class Column(NamedTuple):
    """score: of the step's run, such as "validation/accuracy"."""

    name: str
    step: str
    score: str


class Row(NamedTuple):
    """values: of placeholders, overriding the scale's. published: figures by column. columns: those it has; None: all."""

    name: str
    values: Mapping[str, str]
    published: Mapping[str, float]
    columns: list[str] | None


class Claim(NamedTuple):
    """A claim that one row has a higher score than another in a column."""

    says: str
    higher: str
    lower: str
    column: str


class PaperTable(NamedTuple):
    """A table of a paper, at a scale. source: of the published figures. average: whether there is a mean over the columns."""

    name: str
    title: str
    source: str
    scale: Scale
    columns: list[Column]
    rows: list[Row]
    claims: list[Claim]
    average: bool


def read_scale(name: str) -> Scale:
    """The scale of this name. Raises UsageError for an unknown one."""
    if name not in SCALES:
        raise not_a_choice("--scale", name, SCALES)
    read = _read("scales", name)
    return Scale(name, **{**read, "steps": {step: Step(*values) for step, values in read["steps"].items()}})


def read_table(name: str, scale: Scale) -> PaperTable:
    """The table of this name at a scale. Raises UsageError for an unknown one, or one that does not exist at this scale."""
    if name not in TABLES:
        raise UsageError(f"no table {name!r}", hint=did_you_mean(name, TABLES))
    read = _read("tables", name)
    if scale.name not in read["columns"]:
        scales = " or ".join(read["columns"])
        raise UsageError(f"{name} has no --scale {scale.name}: {read['why']}", hint=f"choose --scale {scales}")
    columns = [Column(column, *words.split()) for column, words in read["columns"][scale.name].items()]
    rows = []
    for row in read["rows"]:
        values = {name: _at(scale, value) for name, value in row.get("values", {}).items()}
        known = {name: value for name, value in values.items() if value is not None}
        if known.keys() == values.keys():
            rows.append(Row(row["name"], known, row.get("published", {}), row.get("columns")))
    there = {row.name for row in rows}
    claims = [
        Claim(claim["says"], claim["higher"], claim["lower"], column.name)
        for claim in read["claims"]
        for column in columns
        if {claim["higher"], claim["lower"]} <= there and column.name in claim["columns"]
    ]
    return PaperTable(name, read["title"], read["source"], scale, columns, rows, claims, read.get("average", False))


def tables_at(scale: Scale) -> list[PaperTable]:
    """All tables that a scale has."""
    return [read_table(name, scale) for name in TABLES if scale.name in _read("tables", name)["columns"]]


def _read(folder: str, name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / folder / f"{name}.toml").read_text(encoding="utf-8"))


def _at(scale: Scale, value: Any) -> str | None:
    return value.get(scale.name) if isinstance(value, dict) else value
