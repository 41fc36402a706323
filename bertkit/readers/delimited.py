"""Tables: rows of fields under a header. CSV (RFC 4180) and TSV: values are text exactly as they stand; none is "missing"."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from itertools import chain, islice

from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples, batched
from bertkit.readers.content import Content

Row = tuple[int, list[str]]  # the line, from 1, at which it begins; its fields

_SEPARATORS = (",", ";", "\t", "|")
_LONGEST_FIELD = 2**31 - 1


def parse_delimited(
    content: Content,
    *,
    separator: str | None = None,
    columns: tuple[str, ...] | None = None,
    keep_broken: bool = False,
) -> Iterator[Examples]:
    """The rows of a CSV or TSV file.

    separator: between fields; by default "," for .csv, else a tab. columns, keep_broken: see `parse_table`. A field may be
    quoted, but not in tab-separated files, unless they are called .csv: GLUE's hold unbalanced quotes. Raises DataError, with
    file and line, for what is not such a table.
    """
    is_csv = content.extension == ".csv"
    skipped = 0
    if (excel := re.match(r"sep=(.)\r?\n", content.beginning)) and separator in (None, excel[1]):  # its own first line
        separator, skipped = excel[1], 1
    # A shell passes '\t' on as a backslash and a t.
    between = {None: "," if is_csv else "\t", "\\t": "\t"}.get(separator, separator)
    quoting = is_csv or between != "\t"
    if not between or (quoting and (len(between) > 1 or between in '"\r\n')):
        raise UsageError(f"--separator is {separator!r}; expected one character", hint="for example --separator ';'")

    if quoting:
        rows = without_empty_rows(_quoted_rows(content, between, skipped))
    else:
        rows = _plain_rows(content, between, skipped)
    if separator is None and columns is None:
        rows = _with_header_checked(rows, content.source)
    return parse_table(
        rows,
        content.source,
        columns=columns,
        keep_broken=keep_broken,
        hint=lambda row, width: _ragged_hint(row, width, between, quoting),
    )


def parse_table(
    rows: Iterator[Row],
    source: str,
    *,
    hint: Callable[[list[str], int], str],
    columns: tuple[str, ...] | None = None,
    keep_broken: bool = False,
) -> Iterator[Examples]:
    """Rows of fields as examples, the first row their header.

    columns: the names of the columns, where there is no header. keep_broken: rows of too few or too many fields
    are kept, with None in every column. hint: what to do about such a row, given the right
    number of fields. Raises DataError with the row.
    """
    if columns and len(set(columns)) < len(columns):
        raise UsageError(f"--columns {','.join(columns)} names a column twice")
    first = next(rows, None)
    if first is None:
        raise DataError("the file is empty", where=source)
    names = columns or _header(first[1], f"{source}:{first[0]}")
    if columns and tuple(first[1]) != columns:  # else a header after all, which says the same
        rows = chain([first], rows)
    empty = True
    for block in batched(rows):
        empty = False
        yield _block(block, names, source, keep_broken, hint)
    if empty:
        asked = f"if the file has no header, name its columns: --columns {_ask_names(len(names))}"
        raise DataError("the file holds a header and no rows", where=source, hint=asked)


def _block(
    rows: list[Row], names: tuple[str, ...], source: str, keep_broken: bool, hint: Callable[[list[str], int], str]
) -> Examples:
    width = len(names)
    broken = next((row for row in rows if len(row[1]) != width), None)
    if broken is not None and not keep_broken:
        line, fields = broken
        what = f"found {_count(len(fields), 'field')}, expected {width}: {_excerpt(', '.join(names), 80)}"
        raise DataError(what, where=f"{source}:{line}", hint=hint(fields, width))
    values = [fields if len(fields) == width else [None] * width for _, fields in rows]
    columns = dict(zip(names, map(list, zip(*values, strict=True)), strict=True))
    return Examples(columns=columns, source=source, lines=[line for line, _ in rows])


def _plain_rows(content: Content, separator: str, skipped: int) -> Iterator[Row]:
    """Rows without quoting, after a number of lines. Where rows have several fields, an empty line is none."""
    width = 0
    empty: list[Row] = []  # before the first row that is not
    for number, line in enumerate(islice(content.lines(), skipped, None), start=skipped + 1):
        fields = line.split(separator)
        if line and not width:
            width = len(fields)
            yield from empty if width == 1 else []
        if line or width == 1:
            yield number, fields
        elif not width:
            empty.append((number, fields))


def _quoted_rows(content: Content, separator: str, skipped: int) -> Iterator[Row]:
    """Rows whose fields may be quoted, after a number of lines; of an empty line without any."""
    unread: list[str] = []  # the lines of the row that is being read

    def lines() -> Iterator[str]:
        texts = (io.StringIO(text, newline="\n") for text in content.texts())
        for line in islice(chain.from_iterable(texts), skipped, None):
            unread.append(line)
            yield line

    reader = csv.reader(lines(), delimiter=separator, strict=True)
    begin = skipped + 1
    while True:
        limit = csv.field_size_limit(_LONGEST_FIELD)
        try:
            fields = next(reader, None)
        except csv.Error as error:
            if "new-line" in str(error):
                hint = "if lines end so (old Macintosh), convert the file: tr '\\r' '\\n' < OLD > NEW"
                what = "a carriage return inside an unquoted field"
                raise DataError(what, where=f"{content.source}:{skipped + reader.line_num}", hint=hint) from None
            raise _quote_error("".join(unread), separator, content.source, begin) from None
        finally:
            csv.field_size_limit(limit)
        if fields is None:
            return
        yield begin, fields
        unread.clear()
        begin = skipped + reader.line_num + 1


def without_empty_rows(rows: Iterator[Row]) -> Iterator[Row]:
    """Rows without those that have no fields; in a file of one column, these are empty texts unless they end the file."""
    width = 0
    empty: list[Row] = []
    for line, fields in rows:
        if fields:
            width = width or len(fields)
            yield from empty
            yield line, fields
            empty.clear()
        elif width == 1:
            empty.append((line, [""]))


def _quote_error(row: str, separator: str, source: str, begin: int) -> DataError:
    """What is wrong with the quotes of a row that begins at line `begin`, named by the line at which the faulty field opens.

    The csv module notices much later: an open quote swallows the lines up to the next one.
    """
    field_end = re.compile(f"[{re.escape(separator)}\n]")
    quoted = re.compile(r'"[^"]*(?:""[^"]*)*"(?!")')
    hint = 'close it, and double each quote that belongs to the text: ""'
    position = 0
    while True:
        if row.startswith('"', position):
            opened = begin + row.count("\n", 0, position)
            where = f"{source}:{opened}"
            field = quoted.match(row, position)
            if field is None:
                return DataError("a quoted field opens here and never closes", where=where, hint=hint)
            position = field.end()
            if row[position : position + 1] not in ("", separator, "\r", "\n"):
                closed = begin + row.count("\n", 0, position)
                place = "" if closed == opened else f" in line {closed}"
                rest = _excerpt(row[position : position + 80].partition("\n")[0])
                what = f"a quoted field that opens here closes{place} before {rest}; expected {separator!r} or the line's end"
                return DataError(what, where=where, hint=hint)
        end = field_end.search(row, position)
        assert end, "the csv module found a fault in this row"
        position = end.end()


def _with_header_checked(rows: Iterator[Row], source: str) -> Iterator[Row]:
    """The rows. Raises DataError where the header is one name that holds another separator."""
    for line, fields in islice(rows, 1):
        name = fields[0].strip()
        other = max(_SEPARATORS, key=name.count)
        if len(fields) == 1 and other in name:
            what = f"one column, {_excerpt(name)}, whose name holds {other!r}"
            raise DataError(what, where=f"{source}:{line}", hint=_separator_hint(other))
        yield line, fields
    yield from rows


def _header(row: list[str], where: str) -> tuple[str, ...]:
    """The names of the columns. Raises DataError where they cannot be names."""
    names = [name.strip() for name in row]
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
