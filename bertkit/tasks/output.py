"""The output of predictions: its columns, and how its rows are written: JSON lines, CSV, TSV, Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from bertkit.config import check_values, option
from bertkit.errors import DataError, UsageError, did_you_mean, flag_of
from bertkit.readers import Examples

NUMBER, ALL = "row", "all"  # --id row, --keep all
_USED = ("predict",)


class OutputColumns(NamedTuple):
    """The columns of a family's predictions. inputs: those that repeat the input. predicted: the others."""

    inputs: tuple[str, ...]
    predicted: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a row of the output has beside the columns that it always has, and how much detail."""

    id: str | None = option(
        None,
        "column with each row's id, or row for the row's number, from 0; default: the column id if there is one, else row",
        used=_USED,
    )
    keep: tuple[str, ...] | None = option(None, "input columns to copy to the output, or all", used=_USED)
    top_k: int | None = option(
        None,
        "how many classes to write, each with its probability; for a [MASK], how many tokens (default: 5)",
        minimum=1,
        used=_USED,
    )
    probabilities: bool = option(False, "write the probability of every class", used=_USED)
    uncertain: int | None = option(
        None, "write only this many rows, those to label next: uncertain, and unlike each other", minimum=1, used=_USED
    )
    n_best: int | None = option(None, "how many ranked answers to write; default: 1", minimum=1, used=_USED)
    safe_csv: bool = option(False, "put ' before text that a spreadsheet would treat as a formula", used=_USED)

    def __post_init__(self) -> None:
        check_values(self)

    def refuse_others(self, details: Mapping[str, str], what: str) -> None:
        """Raise UsageError for an option of detail that is not among `details`, those of `what`."""
        for name in ("top_k", "probabilities", "n_best", "uncertain"):
            if getattr(self, name) and name not in details:
                raise UsageError(f"{flag_of(name)} does not apply to {what}", hint="leave it out")

    def arrange(self, rows: Examples, examples: Examples, columns: OutputColumns, details: Mapping[str, str]) -> Arrangement:
        """The output's columns. rows: as they are read; examples: the same under a task's names; details: see `Task.details`.

        Raises UsageError for a column that the rows lack.
        """
        predicted = (*columns.predicted, *(name for option, name in details.items() if getattr(self, option)))
        own = (*columns.inputs, *predicted)
        for flag, names in (("--id", {self.id} - {None, NUMBER}), ("--keep", {*(self.keep or ())} - {ALL})):
            if missing := next((name for name in names if name not in rows.columns), None):
                hint = did_you_mean(str(missing), rows.columns)
                raise UsageError(f"no column {missing!r} for {flag}", where=rows.source, hint=hint)
        named = self.id or "id"
        kept: dict[str, str] = {}
        for name in rows.columns if self.keep == (ALL,) else self.keep or ():
            repeated = name in columns.inputs and examples.own_name(name) == name
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
    """columns: of the output, in order; predicted: those that are no input. id: the column of the input that has the ids, None
    for the numbers of rows. kept: for columns of the output, those of the input.
    """

    columns: tuple[str, ...]
    predicted: tuple[str, ...]
    id: str | None = None
    kept: Mapping[str, str] = field(default_factory=dict)

    def rows(self, predicted: Sequence[dict[str, Any]], rows: Examples, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Rows of predictions with their ids, by default their `numbers`, and with what is kept of the input."""
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
        """The columns of the input that are in the output."""
        return {*chain([self.id] if self.id else [], self.kept.values())}


# --- formats -----------------------------------------------------------------------------------------------------------

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what begins a formula, or is skipped before it

Rows = Sequence[dict[str, Any]]


class Writer(ABC):
    """A file format. A file is the bytes of `begin`, then of `write` for each window of rows with `between` between two
    windows, then `end`. `finished` turns these into the final file where a format needs it (Parquet).

    columns: of every row, in order. predicted: the columns that are not copied from the input. safe: for spreadsheets, of CSV
    alone. is_text: whether a terminal or a pipe can take it. suffix: of its files, where their names do not tell the format.
    """

    is_text: ClassVar[bool] = True
    suffix: ClassVar[str | None] = None
    between: ClassVar[bytes] = b""
    end: ClassVar[bytes] = b""

    def __init__(self, columns: Sequence[str], predicted: Sequence[str] = (), *, safe: bool = False) -> None:
        self.columns, self.predicted, self.safe = tuple(columns), tuple(predicted), safe

    def begin(self) -> bytes:
        return b""

    @abstractmethod
    def write(self, rows: Rows) -> bytes:
        """The bytes of a window of rows."""

    def finished(self, windows: Path) -> Path:
        """The file of this format, beside the one that holds all windows, or that one itself."""
        return windows


class Jsonl(Writer):
    """An object a line."""

    def write(self, rows: Rows) -> bytes:
        return as_jsonl(rows).encode("utf-8", "surrogatepass")


class Csv(Writer):
    """A table with a header; lists and objects in a cell are JSON. safe: no spreadsheet takes a cell's text for a formula."""

    def begin(self) -> bytes:
        return self._lines([self.columns])

    def write(self, rows: Rows) -> bytes:
        return self._lines([[_cell(row.get(name)) for name in self.columns] for row in rows])

    def _lines(self, lines: Sequence[Sequence[Any]]) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([map(self._escaped, line) for line in lines])
        return text.getvalue().encode("utf-8", "surrogatepass")

    def _escaped(self, value: Any) -> Any:
        return f"'{value}" if self.safe and isinstance(value, str) and value.startswith(_FORMULA) else value


class Tsv(Csv):
    """A table without quoting, as bertkit and GLUE read it: what would break it becomes a space."""

    def _lines(self, lines: Sequence[Sequence[Any]]) -> bytes:
        cells = ([" ".join(re.split(r"[\t\r\n]", str(cell))) for cell in line] for line in lines)
        return "".join("\t".join(line) + "\n" for line in cells).encode("utf-8", "surrogatepass")


class Parquet(Writer):
    """A Parquet file of a row group a window; until then each window is an Arrow stream."""

    is_text = False

    def write(self, rows: Rows) -> bytes:
        import pyarrow

        table = pyarrow.table({name: _array([row.get(name) for row in rows]) for name in self.columns})
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return bytes(sink.getvalue())

    def finished(self, windows: Path) -> Path:
        import pyarrow
        import pyarrow.parquet

        fields = {name: pyarrow.field(name, pyarrow.null()) for name in self.columns}
        for table in _tables(windows):
            fields = {name: _common(fields[name], table.schema.field(name)) for name in fields}
        for table in _tables(windows):
            fields = {name: field if _holds(field.type, table[name]) else _text(name) for name, field in fields.items()}
        path = windows.with_suffix(".converted")
        with pyarrow.parquet.ParquetWriter(path, pyarrow.schema(fields.values())) as writer:
            for table in _tables(windows):
                arrays = {name: _array(table[name].to_pylist(), fields[name].type) for name in fields}
                writer.write_table(pyarrow.table(arrays))
        return path


def as_jsonl(rows: Rows) -> str:
    """An object a line; a date or another value that JSON lacks is text."""
    return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (list, dict)) else value


def _array(values: list[Any], kind: Any = None) -> Any:
    """Values of a column; of several kinds, as JSON may have them, or where `kind` is text, all are text."""
    import pyarrow

    if kind != pyarrow.string():
        try:
            found = pyarrow.array(values, kind)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
            pass
        else:
            if not pyarrow.types.is_struct(found.type) or found.type.num_fields:  # Parquet has no empty objects
                return found
    told = [value if value is None or isinstance(value, str) else str(_cell(value)) for value in values]
    return pyarrow.array(told, pyarrow.string())


def _common(one: Any, other: Any) -> Any:
    """A field that holds the values of both; text where nothing else does."""
    import pyarrow

    try:
        schemas = [pyarrow.schema([one]), pyarrow.schema([other])]
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(0)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        return _text(one.name)


def _text(name: str) -> Any:
    import pyarrow

    return pyarrow.field(name, pyarrow.string())


def _holds(kind: Any, column: Any) -> bool:
    """Whether values of a column lose nothing as this kind, as whole numbers beyond 2^53 do as floats."""
    import pyarrow

    if kind == pyarrow.string():
        return True
    try:
        column.cast(kind)
    except pyarrow.ArrowException:
        return False
    return True


def _tables(windows: Path) -> Iterator[Any]:
    import pyarrow

    with windows.open("rb") as file:
        while file.peek(1):
            try:
                with pyarrow.ipc.open_stream(file) as stream:
                    yield stream.read_all()
            except pyarrow.ArrowException as error:
                raise DataError(f"cannot read the windows: {error}", where=str(windows)) from None


WRITERS: dict[str, type[Writer]] = {".jsonl": Jsonl, ".csv": Csv, ".tsv": Tsv, ".parquet": Parquet}
PACKED = ".gz"
