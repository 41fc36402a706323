"""scripts/bench/serving.py and its clients: what they count, and what they say of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import listening, serving

from scripts.bench import serve_load
from scripts.bench import serving as bench

SIDES = {
    "predict": {"per_s": [200.0, 210.0, 190.0], "one_p50_ms": [10.0, 10.5, 9.5]},
    "serve": {"per_s": [160.0, 150.0, 170.0], "one_p50_ms": [11.5, 11.0, 12.0], "unexpected": [0, 0, 0]},
    "pipeline1": {"per_s": [60.0, 61.0, 59.0], "one_p50_ms": [20.0, 20.0, 20.0], "unexpected": [0, 0, 0]},
    "pipeline2": {"per_s": [64.0, 64.0, 64.0], "one_p50_ms": [19.0, 19.0, 19.0], "unexpected": [0, 0, 0]},
}
VALUES: dict[str, Any] = {
    "name": "bench_serve",
    "command": ["python -m scripts.bench.serving --rounds 3"],
    "commit": "0" * 40,
    "date": "2026-01-01",
    "seeds": [1],
    "machine": "one, 2 cores",
    "versions": {"bertkit": "0", "torch": "1", "transformers": "2", "fastapi": "3"},
    "model": {"name": "minilm"},
    "precision": "bf16",
    "clients": 64,
    "sides": SIDES,
    "ratios": bench.compare(SIDES),
    "soak": {"requests": 100_000, "unexpected": 0, "growth": 1.012},
}


def test_ratios_are_those_of_medians_to_the_best_peer() -> None:
    assert bench.compare(SIDES) == {"share": 0.8, "times": 2.5, "above_ms": 1.5}


def test_the_block_has_a_row_each_side_and_every_figure_that_is_asked_for() -> None:
    block = bench.render(VALUES)
    assert block.count("\n| ") == 1 + len(SIDES)
    assert "| FastAPI + pipeline, threads: 2 | 64.0 | - |" in block
    for figure in ("**0.80** of predict's rate", "**2.50** times", "**1.5 ms**", "100,000 requests", "1.012 times"):
        assert figure in block


@pytest.mark.e2e
def test_clients_ask_so_often_and_count_what_is_answered(make_model_dir: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model_dir("BertForSequenceClassification", seed=3, labels=("a", "b"))
    rows = [{"text": "the good movie", "text_pair": "a book", "label": "a"}, {"text": "no", "text_pair": "yes", "label": "b"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving({"m": model}) as served, listening(served.app) as url:
        options = argparse.Namespace(
            url=url, rows=tmp_path / "rows.jsonl", clients=8, requests=400, malformed=0.25, pid=os.getpid()
        )
        found = asyncio.run(serve_load.measure(options))
    assert found["unexpected"] == 0
    assert sum(found["statuses"].values()) == 400
    assert found["statuses"]["200"] == 400 - sum(serve_load.Load(options).malformed)
    assert {"400", "415", "422"} <= found["statuses"].keys()
    assert found["requests_per_s"] > 0
    assert 0 < found["p50_ms"] <= found["p99_ms"]
