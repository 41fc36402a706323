"""CSV (RFC 4180) and TSV: values are text exactly as they stand; none is "missing"."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples, Remarks
from bertkit.readers.columns import header_hint, is_usual_name
from bertkit.readers.content import Content, typed_separator
from bertkit.readers.parsers.table import IF_TITLE, NAME, Rows, in_quotes, parse_table, without_empty_rows

LABEL_FIRST = ("label", "text")  # the columns of lines such as "DESC:def What is an atom ?", at the first space
_SEPARATORS = (",", ";", "\t", "|")
_LONGEST_FIELD = 2**31 - 1
_NAME_IN_CSV = re.compile(r"\s*[\w#./()'?:%&-]+( [\w#./()'?:%&-]+){0,2}\s*|")
_QUOTED = re.compile(r'^"(?:[^"]|"")+"(?:,|$)|,"(?:[^"]|"")+"$')  # a line that begins or ends with a field in quotes
_SNIFFED = 20  # rows
_MOST_LINES = 4  # of a text, without suspicion


def parse_delimited(
    content: Content, *, separator: str | None = None, columns: tuple[str, ...] | None = None, keep_broken: bool = False
) -> Iterator[Examples]:
    """The rows of a CSV or TSV file.

    separator: between fields; by default detected, else "," for .csv and a tab for others; a space is for lines that begin with
    their label. columns, keep_broken: see `parse_table`. A field may be quoted, except in tab-separated files that are not
    called .csv: GLUE's have unbalanced quotes. Raises DataError, with file and line, for anything that is not such a table.
    """
    skipped, remarks = 0, Remarks()
    if (excel := re.match(r"sep=(.)\r?\n", content.beginning)) and separator in (None, excel[1]):  # its own first line
        separator, skipped = excel[1], 1
    between = _default_separator(content, columns) if separator is None else typed_separator(separator)
    if separator is None and between != "," and (between != "\t" or content.extension == ".csv"):
        remarks = Remarks((f"{content.source}: {between!r} separates the columns (change it with --separator)",))
    elif separator is None and columns and len(columns) == 1:
        remarks = _one_column_warning(content)
    if between == " ":
        columns = columns or LABEL_FIRST
    quoting = between not in ("\t", " ") or (content.extension == ".csv" and between == "\t")
    if not between or (quoting and (len(between) > 1 or between in '"\r\n')):
        raise UsageError(f"--separator is {separator!r}; expected one character", hint="for example --separator ';'")
    most = len(columns or ()) - 1 if between == " " else -1
    blocks = parse_table(
        without_empty_rows(
            _quoted_rows(content, between, skipped) if quoting else _plain_rows(content, between, skipped, most)
        ),
        content.source,
        columns=columns,
        keep_broken=keep_broken,
        broken=content.broken,
        refuse_header=partial(
            _refuse_misread_header,
            is_detected=separator is None,
            quoting=quoting,
            is_quoted=content.first_line.startswith('"'),
        ),
        hint=lambda row, width: _ragged_hint(row, width, between, quoting, has_header=not columns),
    )
    if content.lone_header and content.extension not in (".csv", ".tsv"):
        remarks += header_note(content)
    for block in blocks:
        yield replace(block, remarks=remarks + block.remarks + (_swallowed_rows(block, between) if quoting else Remarks()))


def header_note(content: Content) -> Remarks:
    """A note that a file's first line alone is taken for its header."""
    return Remarks((f"{content.source}: the first line, {content.lone_header!r}, is the name of the column",))


def sniff_separator(content: Content, columns: tuple[str, ...] | None = None) -> str | None:
    """The separator of a table, detected from its content; None if it does not look like a table.

    A tab in the first line is enough. Otherwise the first line must be a header, and half of the visible rows must have the
    same number of fields, because sentences have commas too. If several separators fit, the one with the most such rows is
    taken, and then the one with the fewest spaces after it. A header has one of `content.column_names`, or only short names,
    at least one of them usual. For a .csv file, any short names are accepted, or as many fields as `columns`, and a tab is
    treated like other separators. Separators in quotes do not count. A file with one column is a table only if its texts are
    in quotes where CSV needs them; otherwise it is plain text, perhaps with a header.
    """
    is_csv = content.extension == ".csv"
    if "\t" in content.first_line and not is_csv:
        return "\t"
    fitting: dict[str, tuple[float, float]] = {}
    for separator in _SEPARATORS:
        rows = _first_rows(content, separator)
        if len(rows) < 2:
            continue
        others = rows[1:]
        header = columns or rows[0]
        is_known = not content.column_names.isdisjoint(map(str.strip, header))
        are_names = all(map((_NAME_IN_CSV if is_csv else NAME).fullmatch, header))
        are_names = are_names and (is_csv or any(map(is_usual_name, header)))
        alike = fmean(len(fields) == len(header) for fields in others)
        if len(header) > 1 and (columns or is_known or are_names) and alike >= 0.5:
            like_prose = fmean(any(field.startswith(" ") for field in fields[1:]) for fields in others)
            fitting[separator] = alike, -like_prose
    if fitting:
        return max(fitting, key=lambda separator: fitting[separator])
    is_one = len(columns) == 1 if columns else content.lone_header is not None
    return "," if is_one and not is_csv and _is_one_quoted_column(_first_lines(content)) else None


def _first_lines(content: Content) -> list[str]:
    return content.beginning.lstrip("\r\n").split("\n")


def _first_rows(content: Content, separator: str) -> list[list[str]]:
    lines, rows = _first_lines(content), list[list[str]]()
    with suppress(csv.Error):  # the last row may continue beyond these lines
        rows.extend(islice((row for row in csv.reader(lines, delimiter=separator, strict=True) if row), _SNIFFED))
    return rows


def _one_column_warning(content: Content) -> Remarks:
    """A warning if each visible line of a file that is read as one column has as many fields by another separator."""
    for separator in _SEPARATORS[1:]:
        rows = _first_rows(content, separator)
        widths = {*map(len, rows)}
        if len(rows) > 1 and len(widths) == 1 and widths != {1}:
            named = f"if {separator!r} separates columns, name all {widths.pop()} with --columns"
            return Remarks(warnings=(f"{content.source}: each line is read as one text; {named}",))
    return Remarks()


def quoted_lines_warning(content: Content) -> Remarks:
    """A warning if most of the visible lines of a plain text have fields in quotes, as a CSV table without a header has."""
    lines = content.beginning.splitlines()[:_SNIFFED]
    if 2 * sum(_QUOTED.search(line) is not None for line in lines) <= len(lines):
        return Remarks()
    row = next(csv.reader(lines))
    what = "the lines are read as plain text, but look like CSV"
    return Remarks(warnings=(f"{content.source}: {what}; {header_hint(row)}",))


def _is_one_quoted_column(lines: list[str]) -> bool:
    """Whether the lines are a CSV table of one column, some of whose texts are in quotes."""
    try:
        rows = [*csv.reader(lines, strict=True)]
    except csv.Error:
        return False
    return any(line.startswith('"') for line in lines) and all(len(fields) <= 1 for fields in rows)


def _default_separator(content: Content, columns: tuple[str, ...] | None) -> str:
    """The separator of the columns if none is given."""
    if content.extension == ".csv":
        return sniff_separator(content, columns) or ","
    return "\t" if content.extension == ".tsv" else sniff_separator(content, columns) or "\t"


def _plain_rows(content: Content, separator: str, skipped: int, most: int) -> Iterator[Rows]:
    """Rows without quoting, after `skipped` lines, split at the first `most` separators (-1: all); an empty line becomes a row
    without fields.
    """
    for number, lines in content.lines():
        if number == 1:
            number, lines = 1 + skipped, lines[skipped:]
        yield range(number, number + len(lines)), [line.split(separator, most) if line else [] for line in lines]


def _quoted_rows(content: Content, separator: str, skipped: int) -> Iterator[Rows]:
    """Rows whose fields may be quoted, after `skipped` lines; an empty line becomes a row without fields."""
    held: list[tuple[int, str]] = []  # the blocks of text from the one in which a row may begin

    def opened(block: tuple[int, str]) -> io.StringIO:
        held.append(block)
        return io.StringIO(block[1], newline="\n")

    lines = islice(chain.from_iterable(map(opened, content.texts())), skipped, None)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    begin, ended = skipped + 1, False
    while not ended:
        numbers, rows, fault = [], [], None
        limit = csv.field_size_limit(_LONGEST_FIELD)
        try:
            for fields in reader:
                if not content.broken.isdisjoint(range(begin, skipped + reader.line_num + 1)):
                    content.broken.add(begin)
                numbers.append(begin)
                rows.append(fields)
                begin = skipped + reader.line_num + 1
                if len(held) > 1:
                    break
            else:
                ended = True
        except DataError as error:  # of the next block
            fault = error
        except csv.Error as error:
            if "new-line" in str(error):
                hint = 'put text that contains one in quotes: "..."'
                what = "a carriage return inside an unquoted field"
                fault = DataError(what, where=f"{content.source}:{skipped + reader.line_num}", hint=hint)
            else:
                text = "".join(text for _, text in held).split("\n", begin - held[0][0])[-1]
                fault = _quote_error(text, separator, content.source, begin)
        finally:
            csv.field_size_limit(limit)
        yield numbers, rows
        if fault:
            raise fault
        del held[:-1]


def _swallowed_rows(block: Examples, separator: str) -> Remarks:
    """A warning about each text of several lines of which nearly all look like rows: its quote may not be closed."""
    found, width = [], len(block.columns)
    begins: NDArray[np.int64] = np.asarray(block.lines)
    ends = np.append(begins[1:], begins[-1:] + _MOST_LINES + 1)  # where the last row ends is not known
    for row in np.flatnonzero(ends - begins > _MOST_LINES).tolist() if width > 1 else ():
        for name, values in block.columns.items():
            inner = (values[row] or "").split("\n")[1:-1]
            alike = sum(line.rstrip(f"{separator} ").count(separator) < width <= line.count(separator) + 1 for line in inner)
            if len(inner) >= _MOST_LINES - 1 and alike > 0.8 * len(inner):
                what = f"column {in_quotes(name)} has a text of {len(inner) + 2} lines that look like rows"
                found.append(f"{what}: is its quote closed in the right place? ({block.where(row)})")
    return Remarks(warnings=tuple(found))


def _quote_error(row: str, separator: str, source: str, begin: int) -> DataError:
    """What is wrong with the quotes of a row that begins at line `begin`; the error names the line where the bad field opens.

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
                rest = in_quotes(row[position : position + 80].partition("\n")[0])
                what = f"a quoted field that opens here closes{place} before {rest}; expected {separator!r} or the line's end"
                return DataError(what, where=where, hint=hint)
        end = field_end.search(row, position)
        assert end, "the csv module found a fault in this row"
        position = end.end()


def _refuse_misread_header(header: list[str], where: str, *, is_detected: bool, quoting: bool, is_quoted: bool) -> None:
    """Raise DataError if the header's names are in quotes that the format does not have, or if it is a single name that
    contains another separator than the detected one. is_quoted: whether it begins with a quote.
    """
    if not quoting and all(re.fullmatch('".*"', name.strip()) for name in header):
        what = f"the names of the columns are in quotes: {in_quotes(', '.join(header))}"
        raise DataError(what, where=where, hint="tab-separated files have no quotes: name the file .csv, or remove them")
    if not is_detected:
        return
    name = header[0].strip()
    other = max(_SEPARATORS, key=name.count)
    if len(header) == 1 and other in name:
        what = f"there is one column, {in_quotes(name)}, and its name contains {other!r}"
        raise DataError(what, where=where, hint=header_hint(header) if is_quoted else _separator_hint(other))


def _ragged_hint(row: list[str], width: int, separator: str, quoting: bool, *, has_header: bool) -> str:
    if not quoting and sum(field.count('"') for field in row) % 2:
        return "a quoted text continues on another line, but tab-separated files have no quotes: name the file .csv"
    if len(row) == 1 and (other := next((s for s in _SEPARATORS if row[0].count(s) == width - 1), None)):
        return _separator_hint(other)
    if len(row) == 1 < width and (count := row[0].count(other := max(_SEPARATORS, key=row[0].count))):
        return f"if {other!r} separates its fields, there are {count + 1}: name as many columns"
    if len(row) < width:
        return "is a field missing, or is a text split over two lines?"
    other = next((each for each in _SEPARATORS if each != separator and each in "".join(row)), separator)
    several = f"if {other!r} separates the columns, name each of them; else "
    title = "" if width > 1 else f"{IF_TITLE}; else " if has_header else several
    if quoting:
        return f'{title}put text that contains {separator!r} in quotes: "..."'
    return f"{title}text that contains {separator!r} is cut there: write such rows as JSON lines, or as CSV with quotes"


def _separator_hint(separator: str) -> str:
    return f"name the separator: --separator {separator!r}"
