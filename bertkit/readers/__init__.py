"""Readers of data files, of data sets on the hub and of running text; each row knows its file and line."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError
from bertkit.readers.compact import GrowingColumn, Lines, Texts, compact_lines, join_lines, take_lines
from bertkit.readers.faults import summary_of

SKIP_ROWS = "skip such rows with --on-error skip"  # a part of hints
FIX_ROW = f"correct or remove the row, or {SKIP_ROWS}"  # a hint
_UNNEST: dict[Any, str] = {
    list: "give each text of the list a row of its own",
    dict: "fields inside an object are not read: write the text as a column of its own",
}
ROWS = 4096  # of a block
MOST_UNLIKE = 100  # rows that are skipped because they are unlike the others: all rows are read again for each
T = TypeVar("T")


class Remarks(NamedTuple):
    """Remarks for the user about rows, or about how they were interpreted, one line each.

    left_out: what is wrong with each skipped row, with its place.
    """

    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, *, note: str | None = None, warning: str | None = None) -> Remarks:
        """At most one note and one warning."""
        return cls((note,) if note else (), (warning,) if warning else ())

    def without(self, known: Remarks) -> Remarks:
        """These remarks, but for those that are known."""
        return Remarks(*(tuple(line for line in own if line not in those) for own, those in zip(self, known, strict=True)))

    def summed(self) -> Remarks:
        """These remarks, with one warning for all skipped rows."""
        summary = (summary_of(self.left_out),) if self.left_out else ()
        return Remarks(self.notes, self.warnings + summary)

    def __add__(self, other: Any) -> Remarks:
        return Remarks(*(tuple(dict.fromkeys(mine + theirs)) for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Examples:
    """Rows of data as columns of equal length, each row with the place it came from.

    columns: values by column name; many texts are `Texts`, all else is a list. source: the file or hub data set. lines: the
    line (from 1) at which each row begins in `source`, with its number among all rows (from 0) where several begin on one line:
    1[7]; or its row number from 0 where the source has no lines, or the id that the source itself gives it.
    label_names: for a column that holds numbers of classes, the names of those that the source itself declares.
    own_names: the source's name of a column that is renamed here. remarks: about how the rows were read. first: the number of
    the first row among those of the source, from 0. done: the share of the source that is read with these rows, if known.
    """

    columns: dict[str, Sequence[Any]]
    source: str
    lines: Lines
    label_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    own_names: dict[str, str] = field(default_factory=dict)
    remarks: Remarks = field(default=Remarks(), compare=False)
    first: int = field(default=0, compare=False)
    done: float | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """The place of a row, for an error message: "file:line"."""
        return f"{self.source}:{self.lines[row]}"

    def places(self, rows: Sequence[int]) -> tuple[str, ...]:
        """The places of the first rows, for a message; a last "..." stands for more of them."""
        return (*map(self.where, rows[:3]), *(["..."] if len(rows) > 3 else []))

    def own_name(self, column: str) -> str:
        """The source's own name of a column, for an error message."""
        return self.own_names.get(column, column)

    def given(self, names: Iterable[str]) -> dict[str, Sequence[Any]]:
        """The columns with these names that exist, in this order."""
        return {name: self.columns[name] for name in names if name in self.columns}

    def with_remarks(self, more: Remarks) -> Examples:
        """The same rows, with more remarks."""
        return replace(self, remarks=self.remarks + more)

    def texts(self, column: str, *, may_be_empty: bool, may_be_number: bool = False) -> Sequence[str]:
        """The values of a column as text; numbers too, if allowed.

        Raises DataError with the row for any other value, and for a blank text unless allowed.
        """
        values = self.columns[column]
        numbers: dict[int, str] = {}
        for row, value in enumerate(values):
            if may_be_number and isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # not NaN
                value = numbers[row] = str(value)
            if not isinstance(value, str):
                what = f"column {column!r} contains {'null' if value is None else repr(value)}; expected text"
                hint = _UNNEST.get(type(value), FIX_ROW)
                raise DataError(what, where=self.where(row), hint=hint)
            if is_blank(value) and not may_be_empty:
                raise DataError(f"the text in column {column!r} is empty", where=self.where(row), hint=FIX_ROW)
        return [numbers.get(row, value) for row, value in enumerate(values)] if numbers else values

    def with_joined_texts(self, name: str, parts: Sequence[str]) -> Examples:
        """The rows with a column of this name, added if missing: the texts of other columns, joined by spaces.

        Raises DataError with the row for a value that is not text.
        """
        if name in self.columns:
            return self
        filled: dict[str, Sequence[Any]] = {
            part: ["" if value is None else value for value in self.columns[part]] for part in parts
        }
        rows = replace(self, columns=filled)
        texts = [rows.texts(part, may_be_empty=True, may_be_number=True) for part in parts]
        joined = [" ".join(text for text in row if text.strip()) for row in zip(*texts, strict=True)]
        return replace(self, columns=self.columns | {name: joined})

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> Examples:
        """The given rows in the given order."""
        chosen: NDArray[np.int64] = np.asarray(rows, dtype=np.int64)
        columns: dict[str, Sequence[Any]] = {
            name: values.take(chosen) if isinstance(values, Texts) else [values[row] for row in chosen]
            for name, values in self.columns.items()
        }
        return replace(self, columns=columns, lines=take_lines(self.lines, chosen))

    def without(self, faults: Mapping[int, str]) -> Examples:
        """The rows without those that have a fault, which a remark lists."""
        if not faults:
            return self
        rest = self.select([row for row in range(len(self)) if row not in faults])
        return rest.with_remarks(Remarks(left_out=tuple(faults.values())))

    def part(self, begin: int, end: int) -> Examples:
        """The rows from `begin` up to `end`."""
        columns = {name: values[begin:end] for name, values in self.columns.items()}
        return replace(self, columns=columns, lines=self.lines[begin:end])


@contextmanager
def explained_by(rows: Examples) -> Iterator[None]:
    """Give a DataError about these rows the warnings of their reader."""
    try:
        yield
    except DataError as error:
        error.warnings = error.warnings or rows.remarks.warnings
        raise


def refused_rows(rows: Examples, read: Callable[[Examples], object]) -> dict[int, str]:
    """The rows that `read` refuses, by themselves or only beside the others, and why; of the latter, at most MOST_UNLIKE.

    Raises its DataError about all rows if that is no row's fault.
    """
    found: dict[int, str] = {}
    parts = [(0, len(rows))]  # a refused part is halved until one row is left
    was_refused = False
    while parts:
        begin, end = parts.pop()
        try:
            read(rows.part(begin, end))
        except DataError as error:
            was_refused = True
            middle = (begin + end) // 2
            if error.where == rows.source and end - begin == len(rows):
                raise  # no row is at fault; for a part, it may only mean that too few rows tell what their labels are
            if end - begin > 1:
                parts += [(middle, end), (begin, middle)]
            elif error.where != rows.source:
                found[begin] = str(error)
    if not was_refused:
        return found
    for _ in range(min(MOST_UNLIKE, len(rows) - len(found))):
        try:
            read(rows.select([row for row in range(len(rows)) if row not in found]))
            break
        except DataError as error:  # about a row unlike most of the others
            row = next((row for row in range(len(rows)) if row not in found and rows.where(row) == error.where), None)
            if row is None:
                break
            found[row] = str(error)
    return found


def is_blank(text: str) -> bool:
    """Whether a text holds only white space and invisible characters."""
    return all(character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text)


def batched(rows: Iterable[T], sizes: Iterable[int] | None = None) -> Iterator[list[T]]:
    """Lists of rows, of the given sizes, by default ROWS each; the last one may be shorter."""
    remaining = iter(rows)
    for size in repeat(ROWS) if sizes is None else sizes:
        if not (block := list(islice(remaining, size))):
            return
        yield block


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
    """Rows as columns; a row without one has None there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def join_blocks(blocks: Iterable[Examples]) -> Examples:
    """The rows of one or more blocks of a source, which are read one at a time. A row whose block lacks a column has None
    there.
    """
    remaining = iter(blocks)
    first, second = next(remaining), next(remaining, None)
    if second is None:
        return first
    columns: dict[str, GrowingColumn] = {}
    lines: list[Lines] = []
    remarks, total = Remarks(), 0
    for block in chain((first, second), remaining):
        columns |= {name: GrowingColumn(total) for name in block.columns if name not in columns}
        for name, column in columns.items():
            column.add(block.columns.get(name) or [None] * len(block))
        lines.append(compact_lines(block.lines))
        remarks, total = remarks + block.remarks, total + len(block)
    joined = {name: column.values() for name, column in columns.items()}
    return replace(first, columns=joined, lines=join_lines(lines), remarks=remarks)
