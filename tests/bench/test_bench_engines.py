"""scripts/bench/engines.py and timed_engine.py: what they count, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from engines import CASES, MARKS, model_of

from scripts.bench import engines, timed_engine
from scripts.turns import run_script, typed

SIDES = {
    "predict": {"per_s": [200.0, 210.0, 190.0]},
    "ray": {"per_s": [180.0, 160.0, 170.0]},
    "spark": {"per_s": [250.0, 240.0, 260.0]},
}
VALUES: dict[str, Any] = {
    "name": "bench_engines",
    "command": ["python -m scripts.bench.engines --rows 200000 --rounds 3"],
    "commit": "0" * 40,
    "date": "2026-01-01",
    "seeds": [1],
    "machine": "one, 2 cores",
    "versions": {"bertkit": "0", "torch": "1", "transformers": "2", "ray": "3", "pyspark": "4"},
    "model": {"name": "minilm"},
    "rows": 200_000,
    "precision": "bf16",
    "threads": 2,
    "sides": SIDES,
    "overheads": engines.overheads(SIDES),
}


def test_overheads_are_those_of_medians_to_one_process() -> None:
    assert engines.overheads(SIDES) == {"ray": 0.176, "spark": -0.2}


def test_the_block_has_a_row_each_side() -> None:
    block = engines.render(VALUES)
    assert "| one process | 200.0 | - |" in block
    assert "| Ray Data | 170.0 | **17.6** |" in block
    assert "| Spark | 250.0 | **-20.0** |" in block
    assert "200,000 rows, bf16; 2 threads in one process" in block


@pytest.mark.parametrize("warm", [True, False])
def test_start_up_is_left_out(warm: bool, tmp_path: Path) -> None:
    """A made-up engine of 10 rows/s that needs 100 s to start: once, or before every call."""
    now, started = [0.0], [False]
    files = {tmp_path / "warm-up": 20, tmp_path / "files": 300}

    def predict(folder: Path) -> None:
        now[0] += files[folder] / 10 + (0 if warm and started[0] else 100)
        started[0] = True

    found = timed_engine.rate(timed_engine.Timed(predict, warm), *files.items(), clock=lambda: now[0])
    assert found == pytest.approx(10)


def test_files_hold_the_texts_again_and_again(tmp_path: Path) -> None:
    rows = [{"text": text} for text in ("a", "b", "c")]
    folder = engines.write_files(rows, "ask", 50, tmp_path / "rows")
    table = pyarrow.parquet.read_table(folder).sort_by("id")
    assert table["id"].to_pylist() == [*range(50)]
    assert table["ask"].to_pylist() == ["abc"[at % 3] for at in range(50)]


@pytest.mark.parametrize(
    "side", [timed_engine.ONE, *(pytest.param(side, marks=MARKS[0]) for side in (timed_engine.RAY, timed_engine.SPARK))]
)
@pytest.mark.e2e
def test_a_side_predicts_the_files(side: str, make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    rows = [{"text": "the good movie"}, {"text": "no"}]
    named = {
        name: engines.write_files(rows, "text", count, tmp_path / name) for name, count in (("warm-up", 20), ("files", 400))
    }
    words = typed({"run": model_of(CASES["classes"], make_model_dir), "threads": 1, **named})
    found = run_script("scripts.bench.timed_engine", [side, *words])
    assert found["precision"] in ("fp32", "bf16")
    assert found["per_s"] != 0
