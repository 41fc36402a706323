"""Excel workbooks (.xlsx), through openpyxl: the first sheet as a table, every cell as the text that CSV would hold.

Formats of numbers are not applied: 10% is 0.1. Formulas are their results, as the program that saved the file left them.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, time
from typing import Any
from zipfile import ZipFile

from bertkit.errors import DataError, MachineError
from bertkit.readers import Examples, Remarks, batched
from bertkit.readers.content import Content, too_large
from bertkit.readers.parsers.table import IF_TITLE, Rows, parse_table, without_empty_rows

_ZIP = b"PK\x03\x04"


def looks_like_xlsx(content: Content) -> bool:
    return content.start.startswith(_ZIP) and b"xl/" in content.start


def parse_xlsx(content: Content, *, columns: tuple[str, ...] | None = None) -> Iterator[Examples]:
    """The rows of the first sheet, by their numbers in it. columns: their names, where there is no header.

    Raises DataError, with the row, for anything that is not such a table; MachineError if openpyxl is not installed.
    """
    try:
        from openpyxl import load_workbook
    except ImportError:
        hint = 'python -m pip install "bertkit[xlsx]", or save it as CSV'
        raise MachineError("reading .xlsx needs the package openpyxl", where=content.source, hint=hint) from None
    data = io.BytesIO(content.data())
    with _quiet(content.source), ZipFile(data) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > content.max_file_size * 10**9:
        raise too_large("the workbook", content.source, content.max_file_size)
    with _quiet(content.source):
        workbook = load_workbook(data, read_only=True, data_only=True, keep_links=False)
    sheet, *others = workbook.worksheets or [None]
    if sheet is None:
        raise DataError("the workbook has no worksheet", where=content.source)
    remark = f"{content.source}: only the sheet {sheet.title!r} is read, not {', '.join(repr(other.title) for other in others)}"
    sheet.reset_dimensions()  # what some programs write there is wrong
    rows = _padded(without_empty_rows(_rows(sheet, content.source)), columns)
    try:
        for block in parse_table(rows, content.source, columns=columns, hint=_hint):
            yield replace(block, remarks=Remarks.of(warning=remark if others else None) + block.remarks)
    except DataError as error:
        if others and error.where == content.source:  # of the whole sheet
            error.what += f" (sheet {sheet.title!r}, the only one that is read)"
        raise


def _rows(sheet: Any, source: str) -> Iterator[Rows]:
    """Every row up to its last cell with text."""
    blocks = batched(enumerate(sheet.iter_rows(values_only=True), start=1))
    while True:
        with _quiet(source):
            block = next(blocks, None)
        if block is None:
            return
        rows = [[*map(_text, values)] for _, values in block]
        for fields in rows:
            while fields and not fields[-1]:
                fields.pop()
        yield [number for number, _ in block], rows


def _padded(blocks: Iterator[Rows], columns: tuple[str, ...] | None) -> Iterator[Rows]:
    """Rows as wide as the header, unless they are wider."""
    width = len(columns or ())
    for numbers, rows in blocks:
        width = width or next(map(len, rows), 0)
        yield numbers, [fields + [""] * (width - len(fields)) for fields in rows]


def _text(value: Any) -> str:
    """A cell's value as CSV would have it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime):
        return str(value.date() if value.time() == time() else value)
    return str(value)


def _hint(row: list[str], width: int) -> str:
    title = f"{IF_TITLE}; else " if width == 1 else ""
    cell = next(filter(None, row[width:]))
    return f"{title}clear the cell {cell!r:.40}, right of the header's last column, or name its column"


@contextmanager
def _quiet(source: str) -> Iterator[None]:
    """Use openpyxl without warnings about styles and extensions, which hold no text. Its errors become DataError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:  # from zipfile, XML or openpyxl, which do not document theirs
            hint = "is it damaged, password-protected, or from an older Excel? save it as .xlsx again"
            what = f"cannot read the workbook: {' '.join(str(error).split())}"
            raise DataError(what, where=source, hint=hint) from None
