"""Readers: one file a format, each row known by its file and line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Examples:
    """Rows of data as columns of equal length, each row with the place it came from.

    columns: values by column name. source: the file or hub data set. lines: the line (from 1) at which each row begins in
    `source`, or its row number from 0 where the source has no lines, or the id that the source itself gives it.
    label_names: for a column that holds numbers of classes, the names of those that the source itself declares.
    own_names: what the source calls a column that stands here under another name.
    """

    columns: dict[str, list[Any]]
    source: str
    lines: Sequence[int | str]
    label_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    own_names: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """The place of a row, for an error message: "file:line"."""
        return f"{self.source}:{self.lines[row]}"

    def own_name(self, column: str) -> str:
        """What the source calls a column, for an error message."""
        return self.own_names.get(column, column)

    def select(self, rows: Sequence[int]) -> Examples:
        """The given rows in the given order."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[row] for row in rows])
