"""bertkit.integrations.ray on a cluster of this machine: every row as one process predicts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from engines import CASES, MARKS, assert_predicted, model_of, ray_cluster, rows_of

from bertkit.errors import DataError
from bertkit.integrations.ray import predict_dataset

pytestmark = MARKS


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_predicted_as_by_one_process(name: str, ray, make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    case = CASES[name]
    model, rows = model_of(case, make_model_dir), rows_of(case)
    for part in range(6):
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows[part::6]), tmp_path / f"{part}.parquet")
    ds = ray.data.read_parquet(str(tmp_path)).repartition(6)
    found = predict_dataset(model, ds, num_actors=2, batch_size=16, precision="fp32")
    assert_predicted(case, model, found.take_all())


def test_it_is_lazy_and_a_written_data_set_has_one_schema(ray, make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    """Some batches have no answer with a place, and no types of their own for it."""
    model = model_of(CASES["answers"], make_model_dir)
    contexts = [{"question": "the", "context": ("" if number < 40 else "good movie")} for number in range(80)]
    ds = ray.data.from_items(contexts).repartition(4)
    before = ds.stats()
    found = predict_dataset(model, ds, batch_size=20, precision="fp32")
    assert ds.stats() == before
    found.write_parquet(str(tmp_path / "out"))
    assert len(pyarrow.parquet.read_table(tmp_path / "out")) == 80


def test_actors_share_threads_and_precision(ray, make_model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What "auto" is here, where bf16 is made to look fast, holds for actors, which would not resolve it so."""
    from bertkit.integrations import ray as module

    class Telling(module.TablePredictor):
        def __call__(self, table: pa.Table) -> pa.Table:
            import torch

            told = f"{torch.get_num_threads()} threads, {self.predictor.precision.name}"
            return table.append_column("told", pa.array([told] * len(table)))

    monkeypatch.setattr(module, "TablePredictor", Telling)
    monkeypatch.setattr("bertkit.model.precision._COMPUTED", {"fp32": lambda: True, "bf16": lambda: True})
    monkeypatch.setattr("bertkit.model.precision._rates", lambda *_, **__: {"fp32": 1.0, "bf16": 3.0})
    ds = ray.data.from_items([{"text": "no"}])
    (row,) = predict_dataset(model_of(CASES["classes"], make_model_dir), ds, num_cpus=2).take_all()
    assert row["told"] == "2 threads, bf16"


def test_what_is_wrong_is_named(ray, make_model_dir: Callable[..., Path]) -> None:
    model = model_of(CASES["tags"], make_model_dir)
    with pytest.raises(DataError, match="tokens"):
        predict_dataset(model, ray.data.from_items([{"id": 1, "other": "no"}]), precision="fp32")
    ds = ray.data.from_items([{"id": 7, "tokens": ["no"]}, {"id": 8, "tokens": None}])
    with pytest.raises(Exception, match=r"DataError: the words are None.*\(id:8\)"):
        predict_dataset(model, ds, precision="fp32").take_all()


def test_a_pool_that_leaves_no_cpu_to_read_is_a_warning(ray, make_model_dir: Callable[..., Path]) -> None:
    ds = ray.data.from_items([{"text": "no"}])
    with pytest.warns(UserWarning, match="reserve 4 CPUs of the 3"):
        predict_dataset(model_of(CASES["classes"], make_model_dir), ds, num_actors=2, num_cpus=2, precision="fp32")
