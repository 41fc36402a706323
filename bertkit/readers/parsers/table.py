"""Rows of fields under a header, from CSV, TSV or a sheet, as examples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import chain, count
from typing import Any

from bertkit.errors import DataError, UsageError, excerpt, listed, plural
from bertkit.readers import Examples, Remarks
from bertkit.readers.columns import header_hint, is_usual_name

Rows = tuple[Sequence[int], list[list[Any]]]  # a block of rows: the line, from 1, at which each begins; its fields

IF_TITLE = "if the first line is a title above the header, remove it"
# The name of a column, of up to three words; the first of pandas's has none.
NAME = re.compile(r"\s*[\w#./-]+( [\w#./-]+){0,2}\s*|")


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
    where, full = f"{source}:{first[0][0]}", first[1][0]
    header = _without_trailing(full)
    if refuse_header and not columns:
        refuse_header(header, where)
    names, remarks = (columns, Remarks()) if columns else _header(header, where)
    if not columns or tuple(header) == columns:  # a header equal to `columns` is not a row either
        first = first[0][1:], first[1][1:]
    elif _is_like_header(header, first[1][1:]):
        what = f"the first row, {in_quotes(', '.join(header), 80)}, is read as data; if it is a header, omit --columns"
        remarks = Remarks(warnings=(f"{what} ({where})",))
    width, empty, told = len(names), True, False
    for lines, rows in chain([first], blocks):
        if not rows:
            continue
        empty = False
        if len(full) > width:
            rows = [row if any(map(str.strip, row[width:])) else row[:width] for row in rows]
        if set(map(len, rows)) != {width} or (broken and keep_broken):
            error = _misfit(lines, rows, names, source, hint, unnamed=0 if columns else len(full) - width)
            if error is not None and not keep_broken:
                raise error
            if error is not None and not told:
                remarks, told = remarks + Remarks.of(warning=error.line), True
            whole = [len(row) == width and line not in broken for line, row in zip(lines, rows, strict=True)]
            rows = [row if is_whole else [None] * width for row, is_whole in zip(rows, whole, strict=True)]
        if not columns and header in rows:
            line = lines[rows.index(header)]
            remarks += Remarks.of(warning=f"a row repeats the header: are these several files in one? ({source}:{line})")
        values = map(list, zip(*rows, strict=True))
        yield Examples(columns=dict(zip(names, values, strict=True)), source=source, lines=lines, remarks=remarks)
    if empty:
        raise DataError("the file has a header but no rows", where=source, hint=header_hint(names))


def _misfit(
    lines: Sequence[int],
    rows: list[list[str]],
    names: Sequence[str],
    source: str,
    hint: Callable[[list[str], int], str],
    *,
    unnamed: int,
) -> DataError | None:
    """The error for the first row with more or fewer fields than names. unnamed: columns at the header's end without a name."""
    width = len(names)
    misfits = ((line, row) for line, row in zip(lines, rows, strict=True) if len(row) != width)
    if (first := next(misfits, None)) is None:
        return None
    line, row = first
    what, to_do = f"found {plural(len(row), 'field')}, expected {width}: {in_quotes(', '.join(names), 80)}", hint(row, width)
    if width < len(row) <= width + unnamed:
        place = next(place for place, field in enumerate(row[width:], start=width + 1) if field.strip())
        what = f"column {place} of the header has no name, but here it has a value"
        to_do = f"name each column in the header; else {to_do}"
    return DataError(what, where=f"{source}:{line}", hint=to_do)


def _without_trailing(header: list[str]) -> list[str]:
    """A header without empty fields at its end, as spreadsheets write them, if two names are left."""
    named = max((place for place, name in enumerate(header, start=1) if name.strip()), default=0)
    return header[:named] if named > 1 else header


def _is_like_header(row: list[str], others: list[list[str]]) -> bool:
    """Whether a row has a usual name of a column, only short names, and no value that other rows have in its place."""
    if not any(map(is_usual_name, row)) or not all(map(NAME.fullmatch, row)):
        return False
    return not any(name == other for fields in others for name, other in zip(row, fields, strict=False))


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
        what = f"the header has the name {in_quotes(shared[0])} {len(numbers)} times, in columns {listed(numbers)}"
        raise DataError(what, where=where, hint=f"{hint}; else give each column its own name")
    for each in shared:
        places = [place for place, name in enumerate(names) if name == each]
        free = (name for name in (f"{each} ({number})" for number in count(1)) if name not in names)
        for place, name in zip(places, free, strict=False):
            names[place] = name
        new_names = listed([names[place] for place in places])
        notes.append(f"the header names column {in_quotes(each)} {times[each]} times: read as {new_names} ({where})")
    return tuple(names), Remarks(tuple(notes))


def in_quotes(text: str, width: int = 40) -> str:
    """Text as one short line with control characters escaped."""
    return repr(excerpt(text, width))
