"""Parquet and Arrow files, through datasets, which knows the names of classes that a file declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import Examples, batched, join_blocks
from bertkit.readers.content import Content

_PARQUET, _ARROW = b"PAR1", b"ARROW1"  # what files begin with; a stream of Arrow begins with a length


def looks_like_arrow(content: Content) -> bool:
    return content.start.startswith((_PARQUET, _ARROW))


def parse_arrow(content: Content) -> Iterator[Examples]:
    """The rows of a file; their places are row numbers from 0. Raises DataError for one that is damaged or empty."""
    import pyarrow
    import pyarrow.parquet
    from datasets import Dataset
    from datasets.table import InMemoryTable

    buffer = pyarrow.BufferReader(content.data())
    try:
        if content.extension == ".parquet" or content.start.startswith(_PARQUET):
            table = pyarrow.parquet.read_table(buffer)
        elif content.start.startswith(_ARROW):
            table = pyarrow.ipc.open_file(buffer).read_all()
        else:  # Arrow's stream, as datasets writes it
            table = pyarrow.ipc.open_stream(buffer).read_all()
        table.validate(full=True)  # else a damaged one crashes whoever reads its values
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read the file: {' '.join(str(error).split())}", where=content.source) from None
    return dataset_blocks(Dataset(InMemoryTable(table)), content.source)


def dataset_blocks(dataset: Any, source: str) -> Iterator[Examples]:
    """A split of datasets as rows, with the names of its classes. Raises DataError where it is empty."""
    from datasets import ClassLabel

    label_names = {}
    for column, feature in dataset.features.items():
        feature = getattr(feature, "feature", feature)  # of a list of classes, as tags are
        if isinstance(feature, ClassLabel):
            label_names[column] = tuple(feature.names)
    if not len(dataset):
        raise DataError("there are no rows", where=source)
    plain = dataset.with_format(None)
    for lines in batched(range(len(dataset))):
        yield Examples(columns=plain[lines[0] : lines[-1] + 1], source=source, lines=lines, label_names=label_names)


def as_examples(dataset: Any, source: str) -> Examples:
    """As `dataset_blocks`, all rows at once."""
    return join_blocks([*dataset_blocks(dataset, source)])
