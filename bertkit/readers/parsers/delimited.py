"""Tables: rows of fields under a header. CSV (RFC 4180) and TSV: values are text exactly as they stand; none is "missing"."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, UsageError, excerpt, listed, plural
from bertkit.readers import Examples, Remarks
from bertkit.readers.columns import header_hint, is_usual_name
from bertkit.readers.content import Content, typed_separator

Rows = tuple[Sequence[int], list[list[Any]]]  # a block of rows: the line, from 1, at which each begins; its fields

LABEL_FIRST = ("label", "text")  # the columns of lines such as "DESC:def What is an atom ?", at the first space
_SEPARATORS = (",", ";", "\t", "|")
_LONGEST_FIELD = 2**31 - 1
# The name of a column, of up to three words; the first of pandas's has none.
_NAME = re.compile(r"\s*[\w#./-]+( [\w#./-]+){0,2}\s*|")
_NAME_IN_CSV = re.compile(r"\s*[\w#./()'?:%&-]+( [\w#./()'?:%&-]+){0,2}\s*|")
_QUOTED = re.compile(r'^"(?:[^"]|"")+"(?:,|$)|,"(?:[^"]|"")+"$')  # a line that begins or ends with a field in quotes
_SNIFFED = 20  # rows
_MOST_LINES = 4  # of a text, without suspicion
IF_TITLE = "if the first line is a title above the header, remove it"


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
        are_names = all(map((_NAME_IN_CSV if is_csv else _NAME).fullmatch, header))
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


def parse_table(
    blocks: Iterator[Rows],
    source: str,
    *,
    hint: Callable[[list[str], int], str],
    columns: tuple[str, ...] | None = None,
    keep_broken: bool = False,
    broken: Set[int] = frozenset(),
    refuse_header: Callable[[list[str], str], None] | None = None,
) -> Iterator[Examples]:
    """Rows of fields as examples, the first row their header.

    columns: the names of the columns, if there is no header. keep_broken: rows with too few or too many fields are kept, with
    None in every column, as are rows that begin on the lines `broken`. refuse_header: raises DataError for a header that cannot
    be one, given its place. hint: what to do about a broken row, given the right number of fields. Raises DataError with the
    row.
    """
    if columns and len(set(columns)) < len(columns):
        raise UsageError(f"--columns {','.join(columns)} names a column twice")
    first = next((block for block in blocks if block[1]), None)
    if first is None:
        raise DataError("the file is empty", where=source)
    where, header = f"{source}:{first[0][0]}", first[1][0]
    if refuse_header and not columns:
        refuse_header(header, where)
    names, remarks = (columns, Remarks()) if columns else _header(_without_trailing(header), where)
    if not columns or tuple(header) == columns:  # a header equal to `columns` is not a row either
        first = first[0][1:], first[1][1:]
    elif _is_like_header(header, first[1][1:]):
        what = f"the first row, {_excerpt(', '.join(header), 80)}, is read as data; if it is a header, omit --columns"
        remarks = Remarks(warnings=(f"{what} ({where})",))
    width, empty = len(names), True
    for lines, rows in chain([first], blocks):
        if not rows:
            continue
        empty = False
        if len(header) > width:
            rows = [row if any(row[width:]) else row[:width] for row in rows]
        if set(map(len, rows)) != {width} or (broken and keep_broken):
            if not keep_broken:
                line, row = next(row for row in zip(lines, rows, strict=True) if len(row[1]) != width)
                what = f"found {plural(len(row), 'field')}, expected {width}: {_excerpt(', '.join(names), 80)}"
                raise DataError(what, where=f"{source}:{line}", hint=hint(row, width))
            whole = [len(row) == width and line not in broken for line, row in zip(lines, rows, strict=True)]
            rows = [row if is_whole else [None] * width for row, is_whole in zip(rows, whole, strict=True)]
        values = map(list, zip(*rows, strict=True))
        yield Examples(columns=dict(zip(names, values, strict=True)), source=source, lines=lines, remarks=remarks)
    if empty:
        raise DataError("the file has a header but no rows", where=source, hint=header_hint(names))


def _without_trailing(header: list[str]) -> list[str]:
    """A header without empty fields at its end, as spreadsheets write them, if two names are left."""
    named = max((place for place, name in enumerate(header, start=1) if name.strip()), default=0)
    return header[:named] if named > 1 else header


def _is_like_header(row: list[str], others: list[list[str]]) -> bool:
    """Whether a row has a usual name of a column, only short names, and no value that other rows have in its place."""
    if not any(map(is_usual_name, row)) or not all(map(_NAME.fullmatch, row)):
        return False
    return not any(name == other for fields in others for name, other in zip(row, fields, strict=False))


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
            if len(inner) >= _MOST_LINES - 1 and sum(line.count(separator) == width - 1 for line in inner) > 0.8 * len(inner):
                what = f"column {_excerpt(name)} has a text of {len(inner) + 2} lines that look like rows"
                found.append(f"{what}: is its quote closed in the right place? ({block.where(row)})")
    return Remarks(warnings=tuple(found))


def without_empty_rows(blocks: Iterator[Rows]) -> Iterator[Rows]:
    """Rows without those that have no fields; in a file with one column, these are empty texts, unless they end the file."""
    width = 0
    empty: list[tuple[int, list[str]]] = []  # texts since the last row with fields
    for lines, rows in blocks:
        if empty or not all(rows):
            filled = []
            for line, fields in zip(lines, rows, strict=True):
                if fields:
                    width = width or len(fields)
                    filled += [*empty, (line, fields)]
                    empty = []
                elif width == 1:
                    empty.append((line, [""]))
            lines, rows = [line for line, _ in filled], [fields for _, fields in filled]
        elif rows:
            width = width or len(rows[0])
        yield lines, rows


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
                rest = _excerpt(row[position : position + 80].partition("\n")[0])
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
        what = f"the names of the columns are in quotes: {_excerpt(', '.join(header))}"
        raise DataError(what, where=where, hint="tab-separated files have no quotes: name the file .csv, or remove them")
    if not is_detected:
        return
    name = header[0].strip()
    other = max(_SEPARATORS, key=name.count)
    if len(header) == 1 and other in name:
        what = f"there is one column, {_excerpt(name)}, and its name contains {other!r}"
        raise DataError(what, where=where, hint=header_hint(header) if is_quoted else _separator_hint(other))


def _header(row: list[str], where: str) -> tuple[tuple[str, ...], Remarks]:
    """The names of the columns, and remarks on changes to them: equal names are numbered. Raises DataError if they cannot be
    names.
    """
    names = [name.strip() for name in row]
    if names[0] == "" and len(names) > 1 and names.count("") == 1:
        names[0] = "Unnamed: 0"  # the row numbers that pandas writes, under the name it reads them by
    hint = header_hint(names)
    if "" in names:
        titled = (
            f"{IF_TITLE if names.count('') == len(names) - 1 else 'if the first line is a header, name each column'}; {hint}"
        )
        raise DataError(f"column {names.index('') + 1} of the header has no name", where=where, hint=titled)
    times, notes = Counter(names), []
    shared = [name for name in times if times[name] > 1]
    if len(shared) == len(times) or any(re.fullmatch(r"[\d.]+", name) for name in shared):  # a row, and no header
        numbers = [str(number) for number, name in enumerate(names, start=1) if name == shared[0]]
        what = f"the header has the name {_excerpt(shared[0])} {len(numbers)} times, in columns {listed(numbers)}"
        raise DataError(what, where=where, hint=f"{hint}; else give each column its own name")
    for each in shared:
        places = [place for place, name in enumerate(names) if name == each]
        free = (name for name in (f"{each} ({number})" for number in count(1)) if name not in names)
        for place, name in zip(places, free, strict=False):
            names[place] = name
        new_names = listed([names[place] for place in places])
        notes.append(f"the header names column {_excerpt(each)} {times[each]} times: read as {new_names} ({where})")
    return tuple(names), Remarks(tuple(notes))


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


def _excerpt(text: str, width: int = 40) -> str:
    """Text as one short line with control characters escaped."""
    return repr(excerpt(text, width))
