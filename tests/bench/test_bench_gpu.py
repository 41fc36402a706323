"""The bench of GPUs, as far as it goes without one: its rows run, on a small model, and its table says what they gave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scripts.bench import gpu
from scripts.bench.gpu import Work
from scripts.results import __main__ as results

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench_gpu")


def make_it_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "VOCAB_SIZE", 2000)
    monkeypatch.setattr(gpu, "TEXTS", 64)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "side"), [(kind, side) for kind, sides in gpu.SIDES.items() for side in sides])
def test_a_row_is_measured(kind: str, side: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_it_small(monkeypatch)
    found = gpu.run_row(Work(kind, "minilm", 16, 4), side, steps=3, warmup=1, folder=folder)
    assert 0 < found["examples_per_s"] < found["real_tokens_per_s"] <= 16 * found["examples_per_s"]
    assert found.get("timed_steps", 2) == 2


def test_the_rows_are_those_that_are_asked_for() -> None:
    names = [f"{work.name}/{side}" for work, side in gpu.rows()]
    assert len(names) == len(set(names)) == 36
    assert {"pretrain-base-128/bertkit", "pretrain-large-512/bertkit", "finetune-large-384/best"} <= {*names}
    compiled = ["compiled" in name for name in names]
    assert compiled == sorted(compiled), "what takes longest comes last"
    assert {work.batch_size * work.max_length for work, _ in gpu.rows()} <= {32768, 16384, 85 * 384, 42 * 384}


def test_the_table_names_the_card_and_compares_the_fastest() -> None:
    def row(rate: float) -> dict[str, object]:
        return {
            "examples_per_s": rate / 100,
            "real_tokens_per_s": rate,
            "gpu": "NVIDIA A100",
            "matrix_share": 0.42,
            "tflops": 99.6,
        }

    rows = {"pretrain-base-128/bertkit": row(1000.0), "pretrain-base-128/bertkit-compiled": row(3000.0)}
    rows |= {"pretrain-base-128/bf16": row(1500.0), "pretrain-base-128/compiled": row(1200.0)}
    versions = dict.fromkeys(("bertkit", "torch", "transformers"), "1")
    values = {
        "name": gpu.NAME,
        "command": ["python -m scripts.bench.gpu"],
        "commit": "abc",
        "date": "2026-01-01",
        "machine": "CPU",
    }
    table = gpu.render({**values, "versions": versions, "tests": "9 passed", "rows": rows})
    assert "| pretrain-base-128 | bertkit, --compile | 30 | 3000 | 100 | 42% | NVIDIA A100 |" in table
    assert "| pretrain-base-128 | bertkit, --compile to Trainer: pad to max_length, bf16 | **2.00** |" in table
    rows["pretrain-base-128/bertkit"] = row(1000.0) | {"gpu": "NVIDIA H100"}
    assert "**" not in gpu.render({**values, "versions": versions, "tests": "9 passed", "rows": rows}), "of two cards"
    assert "4 of 36 rows are measured. The tests marked gpu: 9 passed." in table


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured_or_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    with pytest.raises(SystemExit, match="no GPU here"):
        gpu.main()
    if not (results.RESULTS / f"{gpu.NAME}.json").exists():
        assert "Not measured yet: `make bench-gpu`." in results.table_of(gpu.NAME)
