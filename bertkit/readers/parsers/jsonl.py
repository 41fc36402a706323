"""JSON: one object per line, or one list of rows, perhaps inside a document; numbers, strings and booleans as JSON gives them.

[text, {...}], as spaCy has its training data, is the object with this text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from bertkit.errors import DataError, UsageError, listed, plural
from bertkit.readers import Examples
from bertkit.readers.columns import columns_option, is_usual_name
from bertkit.readers.content import Content
from bertkit.readers.faults import Faults
from bertkit.readers.json_loading import broken_json, kind_of, load_json, refuse_lone_surrogates

Block = tuple[Sequence[int | str], list[dict[str, Any]], str]  # the place of each object; the objects; their escaped text
AsRow = Callable[[Any, str], dict[str, Any]]  # from a value and its place

_MOST_CELLS = 4 * 10**6  # maximum number of cells in a table of rows with different keys
_HINT = "expected one object per line, or one list of objects"
_MANY = 10  # lists or objects in a list: more than a single row holds
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def parse_jsonl(
    content: Content, *, rows: str | None = None, columns: tuple[str, ...] | None = None, keep_broken: bool = False
) -> Iterator[Examples]:
    """The objects of a file as rows. A block's columns are the keys that any of its rows has; a row without one holds None.

    rows: the path to the list of rows in the file's one object, as keys joined by dots. columns: names for the values of rows
    that are lists. keep_broken: anything that cannot be such a row becomes None in every column. Raises DataError, with file
    and line, for anything that is not JSON or not such a row.
    """
    source = content.source
    as_row: AsRow = partial(_as_row, columns=columns)
    of_line: AsRow = partial(_of_line, as_row)
    if keep_broken:
        as_row, of_line = partial(_or_nothing, as_row), partial(_or_nothing, of_line)
    is_list = is_one_list(content)
    if rows is not None:
        text = content.text()
        blocks = _list(text, source, _find(text, rows, source), as_row, inside=True)
    elif is_list:
        text = content.text()
        blocks = _list(text, source, _skip(text, 0), as_row)
    else:
        blocks = _refuse_document(_by_line(content, of_line), content)
    empty, values, count = True, 0, 0
    seen: set[str] = set()
    for numbers, objects, text in blocks:
        empty = False
        places = ((row, "an object", f"{source}:{line}") for line, row in zip(numbers, objects, strict=True))
        if keep_broken and "\\u" in text:
            objects = [_or_nothing(partial(_whole, text), row, where) for row, _, where in places]
        else:
            refuse_lone_surrogates(text, places)
        values, count = values + sum(map(len, objects)), count + len(objects)
        seen.update(names := dict.fromkeys(chain.from_iterable(objects)))
        if len(seen) * count > max(_MOST_CELLS, 20 * values):  # as a table they would fill the memory with nothing
            what = f"{count:,} rows have {len(seen):,} different keys; expected rows with the same keys"
            raise DataError(
                what, where=f"{source}:{numbers[-1]}", hint="move the keys that differ into one nested object, which is ignored"
            )
        yield Examples({name: [row.get(name) for row in objects] for name in names}, source=source, lines=numbers)
    if empty:
        raise DataError("the list is empty" if is_list or rows is not None else "the file is empty", where=source)


def objects_of(
    content: Content, lines: Iterable[tuple[int, str]], faults: Faults
) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """Each object in a file with its place, from its single list or else these numbered lines. `faults` gets the others."""
    if is_one_object(content):
        raise DataError("the file is one JSON object", where=content.source, hint=_HINT)
    if is_one_list(content):
        text = content.text()
        blocks = _list(text, content.source, _skip(text, 0), lambda value, where: value)
        values = ((place, partial(_as_object, value)) for places, found, _ in blocks for place, value in zip(places, found))
    else:
        values = ((number, partial(_object_of_line, line)) for number, line in lines if line.strip())
    for place, read in values:
        try:
            row = read(f"{content.source}:{place}")
        except DataError as error:
            faults.take(error)
        else:
            yield place, row


def _object_of_line(line: str, where: str) -> dict[str, Any]:
    return _as_object(_value_of(line, where), where)


def _as_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"found {kind_of(value)}; expected an object", where=where, hint=_HINT)
    return value


def _of_line(as_row: AsRow, line: str, where: str) -> dict[str, Any]:
    return as_row(_value_of(line, where), where)


def _or_nothing(read: AsRow, value: Any, where: str) -> dict[str, Any]:
    """The row that `read` returns for a value; an empty row if it refuses the value."""
    try:
        return read(value, where)
    except DataError:
        return {}


def _whole(text: str, row: Any, where: str) -> dict[str, Any]:
    refuse_lone_surrogates(text, [(row, "an object", where)])
    return row


def _value_of(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise broken_json(error, line, where, _HINT) from None


def _as_row(value: Any, where: str, *, columns: tuple[str, ...] | None) -> dict[str, Any]:
    """A row that is an object, or, with names for its values, a list."""
    if columns is None:
        match value:
            case dict():
                return value
            case [str(text), dict(annotations)]:
                return {"text": text, **annotations}
        hint = f"name the values of these lists: {columns_option(value)}" if isinstance(value, list) and value else _HINT
        raise DataError(f"found {kind_of(value)}; expected an object", where=where, hint=hint)
    if isinstance(value, dict):
        what = "--columns is for rows that are lists of values; these rows are objects"
        raise UsageError(what, where=where, hint="omit it: the file names its own columns")
    if not isinstance(value, list) or len(value) != len(columns):
        found = plural(len(value), "value") if isinstance(value, list) else kind_of(value)
        raise DataError(f"found {found}; expected a list of {len(columns)}: {', '.join(columns)}", where=where)
    return dict(zip(columns, value, strict=True))


# --- one object per line ---------------------------------------------------------------------------------------------------


def _by_line(content: Content, of_line: AsRow) -> Iterator[Block]:
    for first, lines in content.lines():
        numbers, rows = [], []
        for number, line in enumerate(lines, start=first):
            if line.strip():
                where = f"{content.source}:{number}"
                rows.append({} if number in content.broken else of_line(line, where))
                numbers.append(number)
        if rows:
            yield numbers, rows, "".join(line for line in lines if "\\u" in line)


def _refuse_document(blocks: Iterator[Block], content: Content) -> Iterator[Block]:
    """The blocks of a file read by line. Raises DataError if the file is actually one object with rows inside."""
    text = content.beginning.strip()
    if is_one_object(content):
        whole = content.text()
        try:
            value = json.loads(whole)
        except (ValueError, RecursionError):
            line = whole.count("\n", 0, _skip(whole, 0)) + 1
            value = _value_of(content.first_line, f"{content.source}:{line}")  # which is no JSON: it raises
        raise _no_rows(value, content.source)
    for block in blocks:
        first, *others = block[1]
        if "\n" not in text and not others and _is_of_pandas(first):
            raise _no_rows(first, content.source)
        alone = "\n" not in text and not others and not any(map(is_usual_name, first))
        if alone and any(len(rows) >= _MANY or any(map(is_usual_name, _names(rows[0]))) for _, rows in _lists_in(first)):
            raise _no_rows(first, content.source)
        yield block


def is_one_object(content: Content) -> bool:
    """Whether a file is a single object that spans several lines."""
    text = content.beginning.strip()
    return "\n" in text and text.startswith("{") and _ends_early(content.first_line) and not _has_row_below(text)


def _has_row_below(text: str) -> bool:
    """Whether the second line is an object of its own: then the first line, which is none, is only damaged."""
    try:
        return isinstance(json.loads(text.split("\n", 2)[1]), dict)
    except (ValueError, RecursionError):
        return False


def _names(row: Any) -> Iterable[str]:
    return row if isinstance(row, dict) else ()


def _ends_early(line: str) -> bool:
    """Whether a line is the beginning of a JSON value that continues on later lines."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.pos >= len(line.rstrip())
    except (ValueError, RecursionError):
        return False
    return False


# --- a list of rows --------------------------------------------------------------------------------------------------------


def is_one_list(content: Content) -> bool:
    """Whether a file is one list of rows; lists that are themselves rows are one per line, or begin with a text."""
    if not re.match(r'\s*\[(?!\s*")', content.beginning):
        return False
    try:
        values = json.loads(content.first_line)
    except (ValueError, RecursionError):
        return True
    more = content.start.partition(content.first_line.encode())[2].strip()
    return not more or all(isinstance(value, dict) for value in values)


def _list(text: str, source: str, position: int, as_row: AsRow, *, inside: bool = False) -> Iterator[Block]:
    """The rows of the list at a position, one block; read one by one, because json.loads does not tell their lines.

    inside: whether more may follow the list. A row's place is its line and, if several rows begin on one line, its number in
    the list, from 0: 1[7].
    """
    text = text.rstrip(" \t\r\n")
    lines: list[int] = []
    values = []
    line, counted = 1, 0
    position = _skip(text, position + 1)
    mark = "," if text[position : position + 1] != "]" else "]"
    if mark == "]":
        position = _skip(text, position + 1)
    while mark == ",":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = _DECODER.raw_decode(text, position)
            position = _skip(text, position)
            mark = text[position : position + 1]
            if mark not in ("]", ","):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, position)
        except (ValueError, RecursionError) as error:
            raise broken_json(error, text, f"{source}:{getattr(error, 'lineno', line)}", _HINT) from None
        values.append(value)
        lines.append(line)
        position = _skip(text, position + 1)
    if position < len(text) and not inside:
        extra = json.JSONDecodeError("Extra data", text, position)
        raise broken_json(extra, text, f"{source}:{extra.lineno}", _HINT)
    if values:
        beginning = Counter(lines)
        places = [line if beginning[line] == 1 else f"{line}[{row}]" for row, line in enumerate(lines)]
        yield places, [as_row(value, f"{source}:{place}") for value, place in zip(values, places, strict=True)], text


def _find(text: str, path: str, source: str) -> int:
    """Where the list that `path` names begins in a document. Raises DataError."""
    document = load_json(text, source, "expected one JSON object")
    keys = _keys(document, path)
    value = document
    for key in keys or ():
        value = value[key]
    if not keys or not isinstance(value, list):
        what = f"--rows {path} is {kind_of(value)}" if keys else f"the file has no --rows {path}"
        raise _no_rows(document, source, f"{what}; expected a list of rows")
    position = _skip(text, 0)
    for key in keys:
        name = None
        while name != key:
            name, position = _DECODER.raw_decode(text, _skip(text, position + 1))  # after { or ,
            begin = position = _skip(text, _skip(text, position) + 1)  # after :
            if name != key:
                position = _skip(text, _DECODER.raw_decode(text, begin)[1])
    return position


def _keys(value: Any, path: str) -> tuple[str, ...]:
    """The nested keys that a path names, which may themselves contain dots; empty if they do not exist."""
    if not isinstance(value, dict):
        return ()
    if path in value:
        return (path,)
    for dot in re.finditer(r"\.", path):
        if (key := path[: dot.start()]) in value and (more := _keys(value[key], path[dot.end() :])):
            return key, *more
    return ()


def _no_rows(document: Any, source: str, what: str = "the file is one JSON object; expected rows") -> DataError:
    """The error for a document, naming the lists inside that could be the rows."""
    found = dict(_lists_in(document))
    if not found:
        of_pandas = 'if pandas wrote it: df.to_json(FILE, orient="records")'
        return DataError(what, where=source, hint=of_pandas if _is_of_pandas(document) else _HINT)
    longest = max(found, key=lambda path: len(found[path]))
    hint = f"if these are the rows: --rows {longest}"
    if len(found) > 1:
        shown = listed([f"{path} ({plural(len(rows), 'row')})" for path, rows in found.items()])
        hint = f"say which list has the rows: --rows {longest}; the file has {shown}"
    return DataError(what, where=source, hint=hint)


def _is_of_pandas(document: Any) -> bool:
    """Whether an object holds columns, or rows by their index, as pandas writes them unasked: objects with the same keys."""
    inner = list(document.values()) if isinstance(document, dict) else []
    keys = [each.keys() if isinstance(each, dict) else None for each in inner]
    return len(keys) > 1 and keys[0] is not None and all(each == keys[0] for each in keys)


def _lists_in(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """The lists of objects, or of lists, inside an object, each with its path."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        own = f"{path}.{key}" if path else str(key)
        if isinstance(inner, dict):
            yield from _lists_in(inner, own)
        elif isinstance(inner, list) and inner and set(map(type, inner)) in ({dict}, {list}):
            yield own, inner


def _skip(text: str, position: int) -> int:
    """The next position that is not white space."""
    space = _SPACE.match(text, position)
    return space.end() if space else position
