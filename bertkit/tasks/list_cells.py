"""Lists in the cells of a table, as pandas and others write them: ["a", "b"], ['a', 'b'] or [1, 0]."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Any

from bertkit.errors import DataError

_LIST = re.compile(r"""\[(['"].*['"]|-?\d+([,\s]+-?\d+)*)?\]$""", re.DOTALL)


def looks_like_list(cell: str) -> bool:
    """Whether a cell is written like a list of texts or integers."""
    return _LIST.match(cell.strip()) is not None


def items_in(cell: str, where: str, hint: str) -> list[Any] | None:
    """The items of a cell that looks like a list; None for any other cell. where, hint: for the DataError about one that cannot
    be read, such as a list of numpy, which has no commas.
    """
    if not looks_like_list(cell):
        return None
    if (items := _read_list(cell.strip())) is None:
        raise DataError(f"the cell {cell.strip()[:40]!r} looks like a list but cannot be read", where=where, hint=hint)
    return items


def _read_list(text: str) -> list[Any] | None:
    """A list of literals; None for anything else, such as strings without commas between them, which Python would join."""
    try:
        items = ast.literal_eval(text)
        strings = sum(token.type == tokenize.STRING for token in tokenize.generate_tokens(io.StringIO(text).readline))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    return items if strings in (0, len(items)) else None
