"""Tables of text: CSV (RFC 4180) and TSV. Every value is text exactly as it stands; no spelling means "missing"."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from bertkit import progress
from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples
from bertkit.readers.lines import extension, split_lines

_SEPARATORS = (",", ";", "\t", "|")
_LONGEST_FIELD = 2**31 - 1


def parse_delimited(
    text: str,
    source: str,
    *,
    separator: str | None = None,
    columns: tuple[str, ...] | None = None,
    quoting: bool | None = None,
    ragged: float = 0.0,
) -> Examples:
    """The rows of a CSV or TSV file's text.

    separator: between fields; by default "," for .csv, else a tab. columns: their names, where the file has no header.
    quoting: whether a field may stand in double quotes; by default not in tab-separated files, unless they are called
    .csv: GLUE's hold unbalanced quotes. ragged: the share of the rows that may have too few or too many fields; they are left
    out and counted. Raises DataError, with file and line, for what is not such a table.
    """
    is_csv = extension(source) == ".csv"
    if (said := re.match(r"\ufeff?sep=(.)\r?\n", text)) and separator in (None, said[1]):  # Excel's own first line
        separator, text = said[1], text[said.end() - 1 :]
    # A shell passes '\t' on as a backslash and a t.
    between = {None: "," if is_csv else "\t", "\\t": "\t"}.get(separator, separator)
    if quoting is None:
        quoting = is_csv or between != "\t"
    if not between or (quoting and (len(between) > 1 or between in '"\r\n')):
        raise UsageError(f"--separator is {separator!r}; expected one character", hint="for example --separator ';'")
    if columns and len(set(columns)) < len(columns):
        raise UsageError(f"--columns {','.join(columns)} names a column twice")

    rows, lines = _quoted_rows(text, between, source) if quoting else _plain_rows(text, between)
    if not rows:
        raise DataError("the file is empty", where=source)
    if columns:
        names = columns
        if tuple(rows[0]) == columns:  # a header after all, which says the same
            rows, lines = rows[1:], lines[1:]
    else:
        names = _header(rows[0], f"{source}:{lines[0]}", separator)
        rows, lines = rows[1:], lines[1:]
        if not rows:
            hint = f"if the file has no header, name its columns: --columns {_ask_names(len(names))}"
            raise DataError("the file holds a header and no rows", where=source, hint=hint)
    width = len(names)
    broken = [i for i, row in enumerate(rows) if len(row) != width]
    if len(broken) > ragged * len(rows):
        row, line = rows[broken[0]], lines[broken[0]]
        what = f"found {_count(len(row), 'field')}, expected {width}: {_excerpt(', '.join(names), 80)}"
        raise DataError(what, where=f"{source}:{line}", hint=_ragged_hint(row, width, between, quoting))
    if broken:
        counted = f"{len(broken)} of {len(rows)} rows left out"
        progress.note(f"{source}: {counted}, not of {width} fields, as in line {lines[broken[0]]}")
        whole = [i for i, row in enumerate(rows) if len(row) == width]
        rows, lines = [rows[i] for i in whole], [lines[i] for i in whole]
    values = map(list, zip(*rows, strict=True))
    return Examples(columns=dict(zip(names, values, strict=True)), source=source, lines=lines)


def _plain_rows(text: str, separator: str) -> tuple[list[list[str]], Sequence[int]]:
    """Rows and their lines (from 1) without quoting."""
    lines = split_lines(text)
    rows = [line.split(separator) for line in lines]
    width = next((len(row) for row, line in zip(rows, lines, strict=True) if line), 0)
    if width == 1 or "" not in lines:
        return rows, range(1, len(rows) + 1)
    # Where a row has several fields, an empty line is none.
    filled = [i for i, line in enumerate(lines) if line]
    return [rows[i] for i in filled], [i + 1 for i in filled]


def _quoted_rows(text: str, separator: str, source: str) -> tuple[list[list[str]], list[int]]:
    """Rows and the lines (from 1) at which they begin, where fields may be quoted.

    An empty line is a row only of one column, and not at the end.
    """
    rows: list[list[str]] = []
    lines: list[int] = []
    begin, end = 1, 0  # the line of the next row; how many rows there are up to the last that is no empty line
    limit = csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=separator, strict=True)
    try:
        for row in reader:
            if row or (rows and len(rows[0]) == 1):
                rows.append(row or [""])
                lines.append(begin)
            if row:
                end = len(rows)
            begin = reader.line_num + 1
    except csv.Error as error:
        if "new-line" in str(error):
            hint = "if lines end so (old Macintosh), convert the file: tr '\\r' '\\n' < OLD > NEW"
            what = "a carriage return inside an unquoted field"
            raise DataError(what, where=f"{source}:{reader.line_num}", hint=hint) from None
        raise _quote_error(text, separator, source, begin) from None
    finally:
        csv.field_size_limit(limit)
    return rows[:end], lines[:end]


def _quote_error(text: str, separator: str, source: str, begin: int) -> DataError:
    """What is wrong with the quotes of the row at line `begin`, named by the line at which the faulty field opens.

    The csv module notices much later: an open quote swallows the lines up to the next one.
    """
    row = text.split("\n", begin - 1)[-1]
    field_end = re.compile(f"[{re.escape(separator)}\n]")
    quoted = re.compile(r'"[^"]*(?:""[^"]*)*"(?!")')
    hint = 'close it, and double each quote that belongs to the text: ""'
    at = 0
    while True:
        if row.startswith('"', at):
            opened = begin + row.count("\n", 0, at)
            where = f"{source}:{opened}"
            field = quoted.match(row, at)
            if field is None:
                return DataError("a quoted field opens here and never closes", where=where, hint=hint)
            at = field.end()
            if row[at : at + 1] not in ("", separator, "\r", "\n"):
                closed = begin + row.count("\n", 0, at)
                place = "" if closed == opened else f" in line {closed}"
                rest = _excerpt(row[at : at + 80].partition("\n")[0])
                what = f"a quoted field that opens here closes{place} before {rest}; expected {separator!r} or the line's end"
                return DataError(what, where=where, hint=hint)
        end = field_end.search(row, at)
        assert end, "the csv module found a fault in this row"
        at = end.end()


def _header(row: list[str], where: str, separator: str | None) -> tuple[str, ...]:
    """The names of the columns. Raises DataError where they cannot be names."""
    names = [name.strip() for name in row]
    if len(names) == 1 and separator is None:
        other = max(_SEPARATORS, key=names[0].count)
        if other in names[0]:
            what = f"one column, {_excerpt(names[0])}, whose name holds {other!r}"
            raise DataError(what, where=where, hint=_separator_hint(other))
    if names[0] == "" and len(names) > 1 and len(names) == len(set(names)):
        names[0] = "Unnamed: 0"  # the row numbers that pandas writes, under the name it reads them by
    hint = f"if the file has no header, name its columns: --columns {_ask_names(len(names))}"
    for i, name in enumerate(names):
        if name == "":
            raise DataError(f"column {i + 1} of the header has no name", where=where, hint=hint)
        if name in names[:i]:
            raise DataError(f"the header names column {_excerpt(name)} twice", where=where, hint=hint)
    return tuple(names)


def _ragged_hint(row: list[str], width: int, separator: str, quoting: bool) -> str:
    if len(row) == 1 and (other := next((s for s in _SEPARATORS if row[0].count(s) == width - 1), None)):
        return _separator_hint(other)
    if len(row) < width:
        return "is a field missing, or a text broken over two lines?"
    if quoting:
        return f'put a text that holds {separator!r} in quotes: "..."'
    return f"a text that holds {separator!r} is cut there: take the {separator!r} out of it"


def _separator_hint(separator: str) -> str:
    return f"say what separates the columns: --separator {separator!r}"


def _ask_names(count: int) -> str:
    usual = {2: "label,text", 3: "text,text_pair,label"}
    return usual.get(count, ",".join(f"name{i + 1}" for i in range(count)))


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _excerpt(text: str, width: int = 40) -> str:
    """Text as one short line with control characters escaped."""
    return repr(text if len(text) <= width else text[: width - 3] + "...")
