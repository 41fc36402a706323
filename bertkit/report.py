"""The output of a command: tables, findings and text for the user, a value for --json, and the function that prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.text import Text

from bertkit import progress

SEVERITIES = ("error", "warning", "note")


class Table(NamedTuple):
    """A table; floats are printed with four decimals."""

    title: str
    columns: list[str]
    rows: list[list[Any]]


class Matrix(Table):
    """A table whose first column names its rows and whose other cells are counts; a page shades them by share of their row."""


class Piece(NamedTuple):
    """A piece of text. mark: what it is, such as a chunk's type; "" for nothing special. weight: from -1 to 1, how much it
    supports a prediction.
    """

    text: str
    mark: str = ""
    weight: float = 0.0


@dataclass(frozen=True)
class Finding:
    """One error, warning or note. places: the first rows it is about, as "file:line"; a last "..."
    stands for more."""

    severity: str
    what: str
    places: tuple[str, ...] = ()
    hint: str | None = None


class Report(NamedTuple):
    """parts: what is printed, in order. json: what --json writes."""

    parts: Sequence[Table | Finding | Text]
    json: Any = None

    @property
    def on_page(self) -> list[Table | Finding]:
        """The parts that a page shows: all except text for the terminal."""
        return [part for part in self.parts if isinstance(part, (Table, Finding))]


def show(report: Report) -> None:
    """Print a report on stderr, in the main process only."""
    printers = {"error": progress.error, "warning": progress.warn, "note": progress.note}
    for part in report.parts:
        if isinstance(part, Table):
            progress.table(*part)
        elif isinstance(part, Finding):
            places = f" ({', '.join(part.places)})" if part.places else ""
            printers[part.severity](f"{part.what}{places}{f'; {part.hint}' if part.hint else ''}")
        else:
            progress.console.print(progress.escaped(part))
