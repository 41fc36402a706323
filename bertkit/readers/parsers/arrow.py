"""Parquet and Arrow files, read with datasets, which knows the class names that a file declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import ROWS, Examples, batched, join_blocks
from bertkit.readers.content import Content

_PARQUET, _ARROW = b"PAR1", b"ARROW1"  # what files begin with; a stream of Arrow begins with a length


def looks_like_arrow(content: Content) -> bool:
    return content.start.startswith((_PARQUET, _ARROW))


def parse_arrow(content: Content) -> Iterator[Examples]:
    """The rows of a file; their places are row numbers from 0. Raises DataError for a damaged or empty file."""
    from datasets import Features

    first = 0
    with arrow_errors(content.source):
        schema, batches, count = _opened(content)
        label_names = _class_names(Features.from_arrow_schema(schema))
        for batch in batches:
            batch.validate(full=True)  # else a damaged one crashes whoever reads its values
            lines = range(first, first := first + batch.num_rows)
            done = first / count if count else None
            yield Examples(batch.to_pydict(), content.source, lines, label_names=label_names, done=done)
    if not first:
        raise DataError("there are no rows", where=content.source)


@contextmanager
def arrow_errors(source: str) -> Iterator[None]:
    """Raise DataError in place of pyarrow's errors, and of Python's for the values of a damaged file."""
    import pyarrow

    try:
        yield
    except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read the file: {' '.join(str(error).split())}", where=source) from None


def _opened(content: Content) -> tuple[Any, Iterable[Any], int]:
    """The schema of a file, its rows in batches (one at a time in memory), and the number of rows, 0 if unknown."""
    import pyarrow
    import pyarrow.parquet

    file = content.file()
    if content.extension == ".parquet" or content.start.startswith(_PARQUET):
        opened = pyarrow.parquet.ParquetFile(file)
        return opened.schema_arrow, opened.iter_batches(batch_size=ROWS), opened.metadata.num_rows
    if content.start.startswith(_ARROW):
        opened = pyarrow.ipc.open_file(file)
        return opened.schema, map(opened.get_batch, range(opened.num_record_batches)), 0
    opened = pyarrow.ipc.open_stream(file)  # as datasets writes it
    return opened.schema, opened, 0


def _class_names(features: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The class names of each column that has classes, or lists of classes, such as tags."""
    from datasets import ClassLabel

    each = {column: getattr(feature, "feature", feature) for column, feature in features.items()}
    return {column: tuple(feature.names) for column, feature in each.items() if isinstance(feature, ClassLabel)}


def as_examples(dataset: Any, source: str) -> Examples:
    """A split from datasets as rows, with its class names. Raises DataError if it is empty."""
    if not len(dataset):
        raise DataError("there are no rows", where=source)
    label_names, plain = _class_names(dataset.features), dataset.with_format(None)
    blocks = batched(range(len(dataset)))  # so that few rows at a time are Python objects
    return join_blocks(Examples(plain[rows[0] : rows[-1] + 1], source, rows, label_names=label_names) for rows in blocks)
