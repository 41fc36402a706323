"""Writers for rows of predictions: JSON lines, CSV, TSV, Parquet."""

from __future__ import annotations

import codecs
import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from bertkit.errors import DataError
from bertkit.files import json_line, jsonl_text

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # characters that begin a formula, or are skipped before one

Rows = Sequence[dict[str, Any]]


class Writer(ABC):
    """A file format. A file is the bytes of `begin`, then of `write` for each window of rows with `between` between two
    windows, then `end`. `finished` turns these into the final file where a format needs it (Parquet).

    columns: of every row, in order. predicted: the columns that are not copied from the input. safe: for spreadsheets; only for
    CSV. is_text: whether it can go to a terminal or a pipe.
    """

    is_text: ClassVar[bool] = True
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
        """The file in this format: a new one next to the file that holds all windows, or that file itself."""
        return windows


class Jsonl(Writer):
    """One object per line."""

    def write(self, rows: Rows) -> bytes:
        return jsonl_text(rows).encode("utf-8", "surrogatepass")


class Csv(Writer):
    """A table with a header; lists and objects in a cell are JSON. safe: its first bytes tell spreadsheets that it is UTF-8,
    and they take no text for a formula.
    """

    def begin(self) -> bytes:
        return (codecs.BOM_UTF8 if self.safe else b"") + self._lines([self.columns])

    def write(self, rows: Rows) -> bytes:
        return self._lines([[_cell(row.get(name)) for name in self.columns] for row in rows])

    def _lines(self, lines: Sequence[Sequence[Any]]) -> bytes:
        rows: list[str] = []
        lines_of = SimpleNamespace(write=lambda row: rows.append(row.removesuffix("\r\n") + "\n"))
        # with this terminator, it quotes cells that have either of its characters
        csv.writer(lines_of, lineterminator="\r\n").writerows(map(self._escaped, line) for line in lines)
        return "".join(rows).encode("utf-8", "surrogatepass")

    def _escaped(self, value: Any) -> Any:
        return f"'{value}" if self.safe and isinstance(value, str) and value.startswith(_FORMULA) else value


class Tsv(Csv):
    """A table without quoting, as bertkit and GLUE read it: tabs and line ends become spaces."""

    def _lines(self, lines: Sequence[Sequence[Any]]) -> bytes:
        cells = ([" ".join(re.split(r"[\t\r\n]", str(cell))) for cell in line] for line in lines)
        return "".join("\t".join(line) + "\n" for line in cells).encode("utf-8", "surrogatepass")


class Parquet(Writer):
    """A Parquet file with one row group per window; until it is finished, each window is an Arrow stream."""

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


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json_line(value) if isinstance(value, (list, dict)) else value


def _array(values: list[Any], kind: Any = None) -> Any:
    """The values of a column; if they have several types, as in JSON, or `kind` is text, all become text."""
    import pyarrow

    if kind != pyarrow.string():
        try:
            found = pyarrow.array(values, kind)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
            pass
        else:
            if not pyarrow.types.is_struct(found.type) or found.type.num_fields:  # Parquet has no empty objects
                return found
    texts = [value if value is None or isinstance(value, str) else str(_cell(value)) for value in values]
    return pyarrow.array(texts, pyarrow.string())


def _common(one: Any, other: Any) -> Any:
    """A field that can hold the values of both; text if nothing else can."""
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
    """Whether a column's values lose nothing in this type; integers beyond 2^53, for example, do as floats."""
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
