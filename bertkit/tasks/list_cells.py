"""Lists and objects in the cells of a table, as JSON or as Python writes them: ["a", "b"], ['a', 'b'], [1, 0], ('a',)."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from typing import Any

from bertkit.errors import DataError, excerpt

_LIST = re.compile(r"""\[(['"].*['"]|-?\d+(\.\d*)?([,\s]+-?\d+(\.\d*)?)*)?\]$""", re.DOTALL)
_QUOTED = re.compile(r"""(\[|\(|\{)\s*(nan\s*,\s*)*\{?\s*['"].*(\]|\)|\})$""", re.DOTALL)


def looks_like_list(cell: str) -> bool:
    """Whether a cell is written like a list of texts or numbers."""
    return _LIST.match(cell.strip()) is not None


def looks_like_labels(cell: str) -> bool:
    """Whether a cell is written like a list, tuple or set of texts, of which some may be missing, or a list of numbers."""
    return looks_like_list(cell) or _QUOTED.match(cell.strip()) is not None


def refuse_broken_list(cell: str, where: str, hint: str) -> None:
    """Raise DataError if a cell in which `value_in` finds no list looks like one, such as numpy's, which has no commas."""
    if looks_like_labels(cell):
        raise DataError(f"the cell {excerpt(cell, 40)!r} looks like a list but cannot be read", where=where, hint=hint)


def value_in(cell: str) -> list[Any] | dict[Any, Any] | None:
    """The list or object in a cell, None for any other cell; tuples and sets become lists."""
    text = cell.strip()
    if text[:1] not in ("[", "(", "{") and text != "set()":
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = _read_literal(text)
    return value if isinstance(value, (list, dict)) else None


def holds_spans(value: Any) -> bool:
    """Whether a value, or what a cell holds, is the place of an entity in a text, such as [0, 4, "PER"] or an object with its
    start, or a list of them."""
    read = value_in(value) if isinstance(value, str) else value
    return _is_span(read) or (isinstance(read, list) and len(read) > 0 and _is_span(read[0]))


def _is_span(value: Any) -> bool:
    match value:
        case [int(), int(), str()] | {"start": int()} | {"start_offset": int()}:
            return True
    return False


def _read_literal(text: str) -> Any:
    """What Python writes; None for anything else, such as strings without commas between them, which Python would join."""
    try:
        tree = ast.parse(text, mode="eval")
        value = ast.literal_eval(tree)
        strings = sum(token.type == tokenize.STRING for token in tokenize.generate_tokens(io.StringIO(text).readline))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    read = sum(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in ast.walk(tree))
    if strings != read:
        return None
    return sorted(value, key=str) if isinstance(value, set) else [*value] if isinstance(value, tuple) else value
