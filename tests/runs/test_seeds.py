"""Several seeds: a run each as if trained alone, going on, and what they come to against scipy and by hand."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bertkit.files import lock
from bertkit.runs.seeds import describe_seeds, summarize
from bertkit.training import loop as training


@pytest.fixture
def finetune(run_bertkit, make_model_dir, tmp_path: Path):
    rng = np.random.default_rng(0)
    words = "the movie book was good bad fine plays read one two".split()
    lines = "".join(f"{'good bad'.split()[at % 2]},{' '.join(rng.choice(words, 5))}\n" for at in range(40))
    (tmp_path / "rows.csv").write_text("label,text\n" + lines, encoding="utf-8")
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--device", "cpu", "--batch-size", 8)

    def finetune(output: str, *options: Any) -> Any:
        return run_bertkit("finetune", "text-classification", *data, "-m", model, "-o", output, "--num-epochs", 1, *options)

    return finetune


@contextmanager
def stopped_in_the_second_seed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    seed_dropout = training.seed_dropout

    def stopping(module: Any, seed: int, step: int, *place: int) -> None:
        if (seed, step) == (2, 3):
            os.kill(os.getpid(), signal.SIGTERM)
        seed_dropout(module, seed, step, *place)

    with monkeypatch.context() as patch:
        patch.setattr(training, "seed_dropout", stopping)
        yield


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_each_seed_is_the_run_it_would_be_alone(finetune, tmp_path: Path) -> None:
    ran = finetune("several", "--seeds", 3)
    assert ran.code == 0, ran.err
    assert finetune("alone", "--seed", 2).code == 0
    assert weights(tmp_path / "several" / "seed-2") == weights(tmp_path / "alone")
    assert len({weights(tmp_path / "several" / f"seed-{seed}") for seed in (1, 2, 3)}) == 3
    found = read(tmp_path / "several" / "seeds.json")
    each = [read(tmp_path / "several" / f"seed-{seed}" / "run.json")["best"]["scores"] for seed in (1, 2, 3)]
    assert found["seeds"] == [1, 2, 3]
    for name in ("validation/accuracy", "validation/loss"):
        assert found["scores"][name] == summarize([scores[name] for scores in each])
    assert "several: 3 seeds" in ran.err
    assert "95% interval" in ran.err
    assert sorted(path.name for path in (tmp_path / "several").iterdir()) == ["seed-1", "seed-2", "seed-3", "seeds.json"]


def test_it_goes_on_and_takes_more_seeds(finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finetune("whole", "--seeds", 3).code == 0
    with stopped_in_the_second_seed(monkeypatch):
        assert finetune("cut", "--seeds", 2).code == 130
    first = (tmp_path / "cut" / "seed-1" / "model.safetensors").stat().st_mtime_ns
    ran = finetune("cut", "--seeds", 2)
    assert ran.code == 0, ran.err
    assert "seed 1: finished in cut/seed-1" in ran.err
    assert (tmp_path / "cut" / "seed-1" / "model.safetensors").stat().st_mtime_ns == first
    assert finetune("cut", "--seeds", 3).code == 0
    for seed in (1, 2, 3):
        assert weights(tmp_path / "cut" / f"seed-{seed}") == weights(tmp_path / "whole" / f"seed-{seed}")
    assert read(tmp_path / "cut" / "seeds.json")["scores"] == read(tmp_path / "whole" / "seeds.json")["scores"]


def test_a_stopped_overwrite_leaves_no_run_of_other_settings(finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finetune("several", "--seeds", 3).code == 0
    with stopped_in_the_second_seed(monkeypatch):
        assert finetune("several", "--seeds", 3, "--learning-rate", 1e-3, "--overwrite").code == 130
    assert (tmp_path / "several.old-1" / "seed-3" / "run.json").is_file()
    # memory and what is logged may change between two seeds; what is learned may not
    ran = finetune("several", "--seeds", 3, "--learning-rate", 1e-3, "--micro-batch-tokens", 64, "--logging-steps", 1)
    assert ran.code == 0, ran.err
    rates = {read(tmp_path / "several" / f"seed-{seed}" / "run.json")["training"]["learning_rate"] for seed in (1, 2, 3)}
    assert rates == {1e-3}
    # of a folder whose summary is gone each run speaks for itself
    (tmp_path / "several" / "seeds.json").unlink()
    ran = finetune("several", "--seeds", 3)
    assert ran.code == 2
    assert "learning_rate was 0.001, is 5e-05 (several/seed-1)" in ran.err
    (tmp_path / "several" / "seeds.json").write_text("{", encoding="utf-8")
    ran = finetune("several", "--seeds", 3, "--learning-rate", 1e-3)
    assert (ran.code, "seeds.json is damaged" in ran.err) == (4, True)
    (tmp_path / "several" / "seeds.json").write_text('{"seeds": 3}', encoding="utf-8")
    ran = finetune("several", "--seeds", 3, "--learning-rate", 1e-3)
    assert (ran.code, "seeds.json is damaged: it does not list seeds" in ran.err) == (4, True)
    (tmp_path / "several" / "seeds.json").rename(tmp_path / "several" / ".unfinished-seeds.json")  # as a full disk leaves it
    assert finetune("several", "--seeds", 3, "--learning-rate", 1e-3).code == 0


def test_overwriting_moves_nothing_before_all_is_known(finetune, tmp_path: Path) -> None:
    assert finetune("several", "--seeds", 2).code == 0
    ran = finetune("several", "--seeds", 2, "--overwrite", "-m", tmp_path / "nowhere")
    assert ran.code == 4, ran.err
    with lock(tmp_path / "several" / "seed-2"):
        ran = finetune("several", "--seeds", 2, "--overwrite")
    assert (ran.code, ran.err.splitlines()[0].endswith("(several/seed-2)")) == (2, True), ran.err
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir() and "several" in path.name) == ["several"]


def test_the_same_file_by_another_path_is_the_same(finetune, tmp_path: Path) -> None:
    assert finetune("several", "--seeds", 2).code == 0
    ran = finetune("several", "--seeds", 2, "--train", tmp_path / "rows.csv", "--validation", f"{tmp_path}/./rows.csv")
    assert (ran.code, "seed 2: finished in several/seed-2" in ran.err) == (0, True), ran.err


def test_what_is_refused(finetune, tmp_path: Path) -> None:
    for options, what in (
        (("--seed", 3), "--seeds trains several runs, and --seed is for one"),
        (("--resume", "never"), "--seeds trains several runs, and --resume never is for one"),
        (("--dry-run",), "--seeds trains several runs, and --dry-run is for one"),
        (("--learning-rate", "x"), "--learning-rate"),
    ):
        ran = finetune("none", "--seeds", 2, *options)
        assert (ran.code, what in ran.err) == (2, True), ran.err
        assert not (tmp_path / "none").exists()
    assert finetune("several", "--seeds", 2).code == 0
    ran = finetune("several", "--seeds", 2, "--learning-rate", 1e-3)
    assert ran.code == 2
    assert "learning_rate was 5e-05, is 0.001 (several)" in ran.err
    (tmp_path / "rows.csv").write_text("label,text\n" + "a,the movie\nb,the book\n" * 20, encoding="utf-8")
    ran = finetune("several", "--seeds", 3)
    assert ran.code == 2
    assert "data changed between seed 1 and seed 3" in ran.err
    assert finetune("single").code == 0
    for overwrite in ((), ("--overwrite",)):
        ran = finetune("single", "--seeds", 2, *overwrite)
        assert (ran.code, "--output-dir" in ran.err.splitlines()[-1]) == (2, True), ran.err


def test_a_model_that_says_one_thing_is_counted(finetune, tmp_path: Path) -> None:
    runs = {
        1: {"best": {"scores": {"validation/accuracy": 0.5, "validation/constant_predictions": 1.0}}},
        2: {"best": {"scores": {"validation/accuracy": 0.75, "validation/f1_A": 0.5}}},
    }
    found = describe_seeds(runs)
    assert found["constant"] == [1]
    assert list(found["scores"]) == ["validation/accuracy", "validation/f1_A"]
    assert found["scores"]["validation/f1_A"]["each"] == [None, 0.5]
    # of rows that are all alike every model says the same
    (tmp_path / "rows.csv").write_text("label,text\n" + "a,the movie\nb,the movie\n" * 20, encoding="utf-8")
    ran = finetune("alike", "--seeds", 2)
    assert ran.code == 0, ran.err
    assert "2 of 2 runs predict the same for every row: seed 1, 2" in ran.err
    assert read(tmp_path / "alike" / "seeds.json")["constant"] == [1, 2]


def test_what_values_come_to() -> None:
    values = [0.61, 0.55, 0.7, 0.52, 0.66]
    found = summarize(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found["interval"] == pytest.approx([low, high])
    assert (found["median"], found["each"]) == (0.61, values)
    assert (found["mean"], found["std"]) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert summarize([0.5, None]) == {"median": 0.5, "mean": 0.5, "std": None, "interval": None, "each": [0.5, None]}
    assert summarize([None])["mean"] is None
