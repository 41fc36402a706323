"""Arrow tables with predictions, as every engine's workers make them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from engines import CASES, FP32, assert_predicted, model_of, rows_of
from trained import train

import bertkit
from bertkit.errors import DataError, MachineError, UsageError
from bertkit.integrations import ray, spark
from bertkit.integrations.tables import TablePredictor, open_here, predicted_fields

pytestmark = pytest.mark.e2e
ENGINES = {"ray": ray.predict_dataset, "spark": spark.predict_dataset}


@pytest.mark.parametrize("name", CASES)
def test_a_table_has_the_predictions_of_one_process_in_known_types(name: str, make_model_dir: Callable[..., Path]) -> None:
    case = CASES[name]
    model = model_of(case, make_model_dir)
    table = pa.Table.from_pylist(rows_of(case))
    threads = torch.get_num_threads()
    predictor = TablePredictor(str(model), *FP32, threads)
    found = predictor(table)
    assert_predicted(case, model, found.to_pylist())
    inputs, fields = predicted_fields(bertkit.load(model, *FP32), table.column_names)
    assert found.schema == pa.schema([*(pa.field(name, of.type) for name, of in zip(inputs, table.schema)), *fields])
    assert predictor(table.slice(0, 0)).schema == found.schema
    assert predictor(table.slice(0, 1)).schema == found.schema


def test_intents_have_types_too(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    rows = "".join(f'{{"tokens": ["the", "movie"], "tags": ["O", "B-X"], "intent": "{"ab"[row % 2]}"}}\n' for row in range(8))
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    model = make_model_dir("BertModel")
    run = train(tmp_path / "run", model, tmp_path / "rows.jsonl", family="token-classification", intent=True)
    found = TablePredictor(str(run), *FP32, torch.get_num_threads())(pa.table({"tokens": [["the", "movie"]]}))
    assert [found.schema.field(name).type for name in ("intent", "intent_probability")] == [pa.string(), pa.float64()]
    predictor = bertkit.load(str(run), *FP32)
    ((row,), (prediction,)) = found.to_pylist(), predictor.predict([["the", "movie"]])
    wanted = predictor.presentation.row(prediction, predictor.examples([["the", "movie"]]), 0)
    assert (row["intent"], row["intent_probability"]) == (wanted["intent"], wanted["intent_probability"])


def test_questions_that_may_have_no_answer_have_types_too(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    answers = ('{"text": ["the"], "answer_start": [0]}', '{"text": [], "answer_start": []}')
    rows = "".join(f'{{"question": "why", "context": "the movie", "answers": {answers[row % 2]}}}\n' for row in range(8))
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    how = {"family": "question-answering", "doc_stride": 4}
    run = train(tmp_path / "run", make_model_dir("BertModel"), tmp_path / "rows.jsonl", **how)
    predictor = TablePredictor(str(run), *FP32, torch.get_num_threads())
    found = predictor(pa.table({"question": ["why"], "context": ["the movie"]}))
    assert found.schema.field("null_odds").type == pa.float64()


def test_auto_is_resolved_where_workers_are_started(
    make_model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(CASES["classes"], make_model_dir)
    monkeypatch.setattr("bertkit.model.precision._rates", lambda *_, **__: {"fp32": 1.0, "bf16": 3.0})
    monkeypatch.setattr("bertkit.model.precision._COMPUTED", {"fp32": lambda: True, "bf16": lambda: True})
    monkeypatch.chdir(model.parent)
    predictor, opening = open_here(model.name, "cpu", "auto")
    assert opening == {"model": str(model), "device": "cpu", "precision": predictor.precision.name} | {"precision": "bf16"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about a machine without a GPU")
def test_workers_with_gpus_are_told_the_precision(make_model_dir: Callable[..., Path]) -> None:
    model = model_of(CASES["classes"], make_model_dir)
    with pytest.raises(UsageError, match="auto"):
        open_here(model, "cuda", "auto")
    assert open_here(model, "cuda", "bf16")[1] == {"model": str(model), "device": "cuda", "precision": "bf16"}


@pytest.mark.parametrize(("extra", "package"), [("ray", "ray"), ("spark", "pyspark")])
def test_without_the_extra_it_is_named(extra: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (package, f"{package}.data", f"{package}.sql"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MachineError) as error:
        ENGINES[extra]("no-model", None)  # type: ignore[arg-type]
    assert error.value.hint == f'python -m pip install "bertkit[{extra}]"'
    assert package in error.value.what


def test_bad_rows_and_columns_are_named(make_model_dir: Callable[..., Path]) -> None:
    predictor = TablePredictor(str(model_of(CASES["tags"], make_model_dir)), *FP32, torch.get_num_threads())
    with pytest.raises(DataError) as error:
        predictor(pa.table({"id": [7, 8], "tokens": [["a"], None]}))
    assert error.value.where == "id:8"
    with pytest.raises(DataError, match="tokens"):
        predictor(pa.table({"id": [7, 8]}))
