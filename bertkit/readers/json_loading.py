"""Parse JSON, naming the place of each error: invalid JSON, or half a character, which no tokenizer takes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from bertkit.errors import DataError

_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


def kind_of(value: Any) -> str:
    """What a JSON value is, for an error message."""
    return _KINDS.get(type(value), "a number")


def load_json(text: str, source: str, hint: str) -> Any:
    """The one value of a file. hint: which form it should have. Raises DataError."""
    if not text.strip():
        raise DataError("the file is empty", where=source)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise broken_json(error, text, source + line, hint) from None


def broken_json(error: Exception, text: str, where: str, hint: str) -> DataError:
    """An error of the json module, for a user."""
    if not isinstance(error, json.JSONDecodeError):
        return DataError(f"cannot read the JSON: {error}", where=where)
    what = f"{error.msg.removesuffix(' at')} at character {error.colno}"  # some messages of the library already end in "at"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        hint = f"{hint}; is the file cut off? copy or download it again"
        return DataError(f"the JSON ends too early: {what}", where=where, hint=hint)
    return DataError(f"this is not JSON: {what}", where=where, hint=hint)


def refuse_lone_surrogates(text: str, values: Iterable[tuple[Any, str, str]]) -> None:
    """Raise DataError for a lone surrogate, which JSON can escape.

    values: what was read from the text, each with its place in the JSON and the error's `where`.
    """
    if "\\ud" not in text and "\\uD" not in text:
        return
    for value, place, where in values:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise DataError(f"a lone surrogate in {place}; expected valid Unicode", where=where) from None
