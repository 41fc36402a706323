"""The output columns of predictions: those of a family, and those that options add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from bertkit.config import convert_values, option
from bertkit.errors import UsageError, did_you_mean, flag_of
from bertkit.readers import Examples

NUMBER, ALL = "row", "all"  # --id row, --keep all


class OutputColumns(NamedTuple):
    """The columns of a family's predictions. inputs: columns that repeat the input. predicted: the others."""

    inputs: tuple[str, ...]
    predicted: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class OutputLayout:
    """The columns that an output row has besides those it always has, and how much detail."""

    id: str | None = option(
        None, "column with each row's id, or row for the row's number, from 0; default: the column id if there is one, else row"
    )
    keep: tuple[str, ...] | None = option(None, "input columns to copy to the output, or all")
    top_k: int | None = option(
        None, "how many classes to write, each with its probability; for each [MASK], how many tokens (default: 5)", minimum=1
    )
    probabilities: bool = option(False, "write the probability of every class")
    uncertain: int | None = option(
        None, "write only this many rows, those to label next: uncertain ones that differ from each other", minimum=1
    )
    n_best: int | None = option(None, "how many ranked answers to write; default: 1", minimum=1)
    safe_csv: bool = option(
        False, "for spreadsheets: mark the file as UTF-8, and put ' before text that they would treat as a formula"
    )

    def __post_init__(self) -> None:
        convert_values(self)

    def refuse_others(self, details: Mapping[str, str], what: str) -> None:
        """Raise UsageError for a detail option that is not among `details`, the ones that apply to `what`."""
        for name in ("top_k", "probabilities", "n_best", "uncertain"):
            if getattr(self, name) and name not in details:
                raise UsageError(f"{flag_of(name)} does not apply to {what}", hint="leave it out")

    def arrange(self, rows: Examples, examples: Examples, columns: OutputColumns, details: Mapping[str, str]) -> Arrangement:
        """The output's columns. rows: as read; examples: the same rows under a task's names; details: see `Task.details`.

        Raises UsageError for a column that the rows lack.
        """
        predicted = (*columns.predicted, *(name for option, name in details.items() if getattr(self, option)))
        own = (*columns.inputs, *predicted)
        wanted = tuple(rows.columns) if self.keep == (ALL,) else self.keep or ()
        for flag, names in (("--id", () if self.id in (None, NUMBER) else (self.id,)), ("--keep", wanted)):
            if missing := next((name for name in names if name not in rows.columns), None):
                alone = f"--keep {ALL} cannot be combined with column names" if missing == ALL else None
                hint = alone or did_you_mean(str(missing), rows.columns)
                raise UsageError(f"no column {missing!r} for {flag}", where=rows.source, hint=hint)
        named = self.id or "id"
        kept: dict[str, str] = {}
        for name in wanted:
            repeated = name in columns.inputs and name in examples.columns and examples.own_name(name) == name
            if not repeated and name != named:
                shown, taken = name, {"id", *own, *kept}
                while shown in taken:
                    shown = f"input_{shown}"
                    taken |= {*rows.columns}
                kept[shown] = name
        all_columns = tuple(dict.fromkeys(("id", *own, *kept)))
        return Arrangement(all_columns, predicted, id=named if named in rows.columns else None, kept=kept)


@dataclass(frozen=True)
class Arrangement:
    """columns: of the output, in order; predicted: those not from the input. id: the input column with the ids; None: the row
    numbers. kept: from output columns to input columns.
    """

    columns: tuple[str, ...]
    predicted: tuple[str, ...]
    id: str | None = None
    kept: Mapping[str, str] = field(default_factory=dict)

    def rows(self, predicted: Sequence[dict[str, Any]], rows: Examples, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Output rows: the predictions with their ids (by default `numbers`) and the input columns that are kept."""
        ids = numbers if self.id is None else rows.columns[self.id]
        kept = [[*column] for column in zip(*(rows.columns[name] for name in self.kept.values()), strict=True)]
        return [
            {"id": each}
            | {name: value for name, value in row.items() if name != "id"}
            | dict(zip(self.kept, more, strict=True))
            for each, row, more in zip(ids, predicted, kept or [[]] * len(rows), strict=True)
        ]

    @property
    def read(self) -> set[str]:
        """The input columns that appear in the output."""
        return {*chain([self.id] if self.id else [], self.kept.values())}
