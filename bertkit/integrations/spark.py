"""Predictions of a Spark DataFrame: one model in each of Spark's Python workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bertkit.errors import packages_of
from bertkit.integrations.tables import TablePredictor, open_here, predicted_fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def predict_dataset(model: str | Path, df: DataFrame, *, device: str = "cpu", precision: str = "auto") -> DataFrame:
    """A lazy DataFrame with the columns of `df` and those of the predictions.

    model: a run folder or any Hugging Face BERT, by a path that all executors see, or a hub id. device: cpu or cuda.
    precision: as in bertkit.load; auto is resolved here, once for all workers. Each worker computes with spark.task.cpus
    threads.

    A column with the same name as a predicted one is renamed input_NAME. Raises ModelError, MachineError, UsageError; DataError
    for a column that the model needs and `df` lacks. A worker's DataError names a row by its `id`.
    """
    with packages_of("spark"):
        from pyspark import TaskContext
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructField, StructType

    predictor, opening = open_here(model, device, precision)
    inputs, fields = predicted_fields(predictor, df.columns)
    kept = [StructField(name, of.dataType, of.nullable, of.metadata) for name, of in zip(inputs, df.schema, strict=True)]

    def predict(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None  # this runs in a task
        worker = opened(**opening, num_threads=context.cpus())
        for batch in batches:
            yield from worker(pa.Table.from_batches([batch])).to_batches()

    # Not mapInPandas, which turns NaN in other columns into null.
    return df.mapInArrow(predict, StructType([*kept, *from_arrow_schema(pa.schema(fields))]))


@cache
def opened(model: str, device: str, precision: str, num_threads: int) -> TablePredictor:
    """The model, opened once for all partitions of a worker process, because Spark reuses processes for later partitions."""
    return TablePredictor(model, device, precision, num_threads)
