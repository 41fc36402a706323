"""Files for tests: read from a text, or as CoNLL columns whatever their name; and how they are refused."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertkit.errors import DataError, UserError
from bertkit.readers import Examples, join_blocks
from bertkit.readers.content import Content
from bertkit.readers.formats import CONLL, read_file


def content_of(text: str | bytes, source: str = "f") -> Content:
    data = text.encode("utf-8-sig") if isinstance(text, str) else text  # so that a mark of the text's own stays
    return Content(source, io.BufferedReader(io.BytesIO(data)))


def parsed(parse: Callable[..., Iterator[Examples]], text: str | bytes, source: str = "f", **options: Any) -> Examples:
    """All rows of a text that stands in a file of that name."""
    return join_blocks([*parse(content_of(text, source), **options)])


def read_conll(path: Path, **options: Any) -> Examples:
    return read_file(path, (CONLL,), **options)


def refused(read: Callable[..., Any], *args: Any, kind: type[UserError] = DataError, **kwargs: Any) -> UserError:
    """The error of a call, which must be one line."""
    with pytest.raises(kind) as caught:
        read(*args, **kwargs)
    assert "\n" not in f"{caught.value} {caught.value.hint}"
    return caught.value


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
