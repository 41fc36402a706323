"""Parquet and Arrow files, through datasets, which knows the names of classes that a file declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.readers.lines import nearest_files

ENDINGS = (".parquet", ".arrow", ".feather")


def is_arrow(path: str | Path) -> bool:
    """Whether a file is of these formats, by its name."""
    return str(path).lower().endswith(ENDINGS)


def read_arrow(path: str | Path) -> Examples:
    """The rows of a file; their places are row numbers from 0. Raises DataError for one that is missing, damaged or empty."""
    import pyarrow
    from datasets import Dataset
    from datasets.table import InMemoryTable

    if Path(path).is_dir():
        raise DataError("this is a folder; expected a file", where=str(path))
    try:
        table = _read(str(path))
    except FileNotFoundError:
        raise DataError("no such file", where=str(path), hint=nearest_files(Path(path))) from None
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"the file cannot be read: {' '.join(str(error).split())}", where=str(path)) from None
    return as_examples(Dataset(InMemoryTable(table)), str(path))


def _read(path: str) -> Any:
    import pyarrow
    import pyarrow.parquet

    if path.lower().endswith(".parquet"):
        return pyarrow.parquet.read_table(path)
    with pyarrow.memory_map(path) as source:
        try:
            return pyarrow.ipc.open_file(source).read_all()
        except pyarrow.ArrowInvalid:  # Arrow's stream, as datasets writes it
            source.seek(0)
            return pyarrow.ipc.open_stream(source).read_all()


def as_examples(dataset: Any, source: str) -> Examples:
    """A split of datasets as rows, with the names of its classes. Raises DataError where it is empty."""
    from datasets import ClassLabel

    label_names = {}
    for column, feature in dataset.features.items():
        feature = getattr(feature, "feature", feature)  # of a list of classes, as tags are
        if isinstance(feature, ClassLabel):
            label_names[column] = tuple(feature.names)
    if not len(dataset):
        raise DataError("the split holds no rows", where=source)
    columns = dataset.with_format(None)[:]
    return Examples(columns=columns, source=source, lines=range(len(dataset)), label_names=label_names)
