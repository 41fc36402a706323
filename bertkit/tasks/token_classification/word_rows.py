"""Tables with one word per row, grouped into sentences by a column that distinguishes these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import Examples, join_blocks
from bertkit.readers.columns import guess_column

_SPACED = 0.1  # share of the cells that may hold a space, such as "10 000"; more are sentences


def gather_blocks(blocks: Iterator[Examples], named: Mapping[str, str | None]) -> Iterator[Examples]:
    """Like `gather_words`, block by block; a table of words is one block, because sentences may continue in the next block."""
    for block in blocks:
        if _columns_of_words(block, named) is None:
            yield block
        else:
            yield gather_words(join_blocks([block, *blocks]), named)


def _columns_of_words(rows: Examples, named: Mapping[str, str | None]) -> tuple[str, str] | None:
    """The sentence and word columns of a table of words; None if it is not one."""
    sentence = guess_column(rows.columns, "sentence")
    words = named["tokens"] or guess_column(rows.columns, "tokens")
    if sentence is None or words is None or sentence in named.values() or words not in rows.columns:
        return None
    cells = rows.columns[words]
    if not all(word is None or isinstance(word, str) for word in cells):
        return None
    spaced = sum(" " in word for word in cells if word)
    return (sentence, words) if spaced <= len(cells) * _SPACED else None


def gather_words(rows: Examples, named: Mapping[str, str | None]) -> Examples:
    """The rows of a table grouped into sentences if each row is a word; otherwise unchanged.

    A column with a usual name, such as `Sentence #` or sentence_id, distinguishes sentences: a filled cell that differs from
    the last filled one begins a new sentence. Every other column then holds lists of its cells. named: the columns that the
    user names for tokens and tags. Raises DataError for a row without a word.
    """
    if (found := _columns_of_words(rows, named)) is None:
        return rows
    sentence, words = found
    cells = rows.columns[words]
    begins, last = [], None
    for row, value in enumerate(rows.columns[sentence]):
        filled = value is not None and value == value and str(value).strip() != ""  # NaN is nothing
        if not row or (filled and value != last):
            begins.append(row)
        last = value if filled else last
    if len(begins) == len(rows):  # sentences of one word, or not a table of words
        return rows
    if (bad := next((row for row, word in enumerate(cells) if not word), None)) is not None:
        hint = "correct or remove the row"  # skipping it would change the sentence
        raise DataError(f"column {words!r} is empty; expected a word", where=rows.where(bad), hint=hint)
    spans = [*pairwise([*begins, len(rows)])]
    columns: dict[str, Sequence[Any]] = {}
    for name, cells in rows.columns.items():
        values = [*cells]  # of which every slice is a list
        columns[name] = [values[start:end] for start, end in spans]
    del columns[sentence]
    return replace(rows, columns=columns, lines=[rows.lines[row] for row in begins])
