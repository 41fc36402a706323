"""bertkit.integrations.spark in two worker processes: every row as one process predicts it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engines import CASES, MARKS, assert_predicted, model_of, rows_of, spark_session

from bertkit.errors import DataError
from bertkit.integrations import spark as module
from bertkit.integrations.spark import predict_dataset

pytestmark = MARKS


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session() as session:
        yield session


# What Spark cannot infer where the first rows have no value.
SCHEMAS = {
    "classes": "text string",
    "labels": "text string",
    "number": "text string, text_pair string",
    "tags": "tokens array<string>",
    "answers": "question string, context string",
    "choices": "context string, choices array<string>",
    "masks": "text string",
}


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_predicted_as_by_one_process(name: str, spark, make_model_dir: Callable[..., Path]) -> None:
    case = CASES[name]
    model = model_of(case, make_model_dir)
    df = spark.createDataFrame(rows_of(case), f"id bigint not null, {SCHEMAS[name]}, label string, gap bigint").repartition(6)
    found = predict_dataset(model, df, precision="fp32")
    assert_predicted(case, model, [row.asDict(recursive=True) for row in found.collect()])


def test_other_columns_are_untouched(spark, make_model_dir: Callable[..., Path]) -> None:
    model = model_of(CASES["classes"], make_model_dir)
    df = spark.createDataFrame(
        [("no", float("nan"), {"a": 1}), ("no", None, None)], "text string, x double, m map<string, int>"
    )
    found = predict_dataset(model, df, precision="fp32")
    assert found.select(df.columns).schema == df.schema
    assert sorted(repr(row) for row in found.select("x", "m").collect()) == ["Row(x=None, m=None)", "Row(x=nan, m={'a': 1})"]


def test_the_schema_is_known_before_it_runs(spark, make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    df = spark.createDataFrame([("the", "", "x")] * 3, "question string, context string, answer string")
    found = predict_dataset(model_of(CASES["answers"], make_model_dir), df, precision="fp32")
    assert found.columns == "question context input_answer answer start end probability nbest".split()
    kinds = dict(found.dtypes)
    assert (kinds["start"], kinds["probability"], kinds["answer"]) == ("bigint", "double", "string")
    found.write.parquet(str(tmp_path / "out"))
    assert spark.read.parquet(str(tmp_path / "out")).dtypes == found.dtypes


def test_a_worker_opens_the_model_once_with_its_threads_and_the_precision_of_here(
    spark, make_model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What "auto" is here, where bf16 is made to look fast, holds for workers, which would not resolve it so."""
    monkeypatch.setattr("bertkit.model.precision._COMPUTED", {"fp32": lambda: True, "bf16": lambda: True})
    monkeypatch.setattr("bertkit.model.precision._rates", lambda *_, **__: {"fp32": 1.0, "bf16": 3.0})
    model = model_of(CASES["classes"], make_model_dir)
    df = spark.createDataFrame([(f"the {number}",) for number in range(400)], "text string").repartition(16)

    def telling(**opening: Any) -> Callable[[pa.Table], pa.Table]:
        """In place of `opened`, in the worker: tells of it in the column of the labels."""
        import torch

        from bertkit.integrations.spark import opened

        worker = opened(**opening)
        told = f"{torch.get_num_threads()} thread, {worker.predictor.precision.name}"

        def tell(table: pa.Table) -> pa.Table:
            found = worker(table)
            values = pa.array([f"{os.getpid()}/{id(worker)}/{told}"] * len(table))
            return found.set_column(found.column_names.index("label"), "label", values)

        return tell

    monkeypatch.setattr(module, "opened", telling)
    found = predict_dataset(model, df)
    told = [each.split("/") for each in {row["label"] for row in found.collect()}]
    processes = {process for process, _, _ in told}
    assert len(told) == len(processes) < found.rdd.getNumPartitions() == 16  # a process is often free again in time
    assert {what for _, _, what in told} == {"1 thread, bf16"}


def test_what_is_wrong_is_named(spark, make_model_dir: Callable[..., Path]) -> None:
    model = model_of(CASES["tags"], make_model_dir)
    with pytest.raises(DataError, match="tokens"):
        predict_dataset(model, spark.createDataFrame([("no",)], "other string"), precision="fp32")
    df = spark.createDataFrame([(7, ["no"]), (8, None)], "id bigint, tokens array<string>")
    with pytest.raises(Exception, match=r"DataError: the words are None.*\(id:8\)"):
        predict_dataset(model, df, precision="fp32").collect()
