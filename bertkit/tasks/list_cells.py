"""Lists in the cells of a table, as pandas and others write them: ["a", "b"], ['a', 'b'], [1, 0], ('a',) or {'a', 'b'}."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Any

from bertkit.errors import DataError

_LIST = re.compile(r"""\[(['"].*['"]|-?\d+(\.\d*)?([,\s]+-?\d+(\.\d*)?)*)?\]$""", re.DOTALL)
_QUOTED = re.compile(r"""(\[|\(|\{)\s*(nan\s*,\s*)*\{?\s*['"].*(\]|\)|\})$""", re.DOTALL)


def looks_like_list(cell: str) -> bool:
    """Whether a cell is written like a list of texts or numbers."""
    return _LIST.match(cell.strip()) is not None


def looks_like_labels(cell: str) -> bool:
    """Whether a cell is written like a list, tuple or set of texts, of which some may be missing, or a list of numbers."""
    return looks_like_list(cell) or _QUOTED.match(cell.strip()) is not None


def items_in(cell: str, where: str, hint: str) -> list[Any] | None:
    """The items of a cell that is a list; None for any other cell. where, hint: for the DataError about one that looks like a
    list but cannot be read, such as one of numpy, which has no commas.
    """
    text = cell.strip()
    items = _read_list(text) if text[:1] in ("[", "(", "{") or text == "set()" else None
    if items is None and looks_like_labels(text):
        raise DataError(f"the cell {text[:40]!r} looks like a list but cannot be read", where=where, hint=hint)
    return items


def _read_list(text: str) -> list[Any] | None:
    """A list of literals; None for anything else, such as strings without commas between them, which Python would join."""
    try:
        tree = ast.parse(text, mode="eval")
        items = ast.literal_eval(tree)
        strings = sum(token.type == tokenize.STRING for token in tokenize.generate_tokens(io.StringIO(text).readline))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    read = sum(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in ast.walk(tree))
    if strings != read or not isinstance(items, (list, tuple, set)):
        return None
    return sorted(items, key=str) if isinstance(items, set) else [*items]
