"""scripts/bench.py and scripts/timed_training.py: what is timed, compared and divided by what."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import bench
import timed_training
from timed_training import Step, Timed, since_warmup, summary


def test_the_warm_up_is_left_out_and_every_later_step_is_whole() -> None:
    steps = [Step(32, 100), Step(32, 200), Step(32, 300), Step(4, 20)]
    timed = since_warmup([0.0, 10.0, 15.0, 18.0, 19.0], steps, 2)
    assert timed == Timed([3.0, 1.0], steps[2:])
    assert summary(timed) == {"timed_steps": 2, "examples_per_s": 9.0, "real_tokens_per_s": 80.0, "step_s": 2.0}


@pytest.mark.parametrize(("stamps", "warmup"), [([0.0, 1.0], 0), ([0.0, 1.0, 2.0], 2)])
def test_missing_stamps_and_too_few_steps_are_refused(stamps: list[float], warmup: int) -> None:
    with pytest.raises(SystemExit, match="expected more steps"):
        since_warmup(stamps, [Step(1, 1), Step(1, 1)], warmup)


def test_sides_take_turns_with_the_seed_of_the_round() -> None:
    calls: list[tuple[str, int]] = []

    def run(side: str, seed: int) -> dict[str, float]:
        calls.append((side, seed))
        return dict.fromkeys(bench.MEASURES, float(len(calls)))

    found = bench.measure_task(run, 3, lambda line: None)
    assert sorted(calls) == sorted((side, seed) for side in bench.NAMES for seed in (1, 2, 3))
    order = [side for side, _ in calls]
    assert order[:5] == list(bench.ORDER) == order[10:]
    assert order[5:10] == list(bench.ORDER)[::-1]
    ours = [side.startswith("bertkit") for side in bench.ORDER]
    assert ours == [False, True, False, True, False]
    for side, measured in found.items():
        assert measured["examples_per_s"] == [at + 1.0 for at, name in enumerate(order) if name == side]


def test_ratios_are_of_medians_and_know_what_is_needed() -> None:
    rates = {"default": [10.0, 99.0, 1.0], "dynamic": [20.0] * 3, "best": [40.0] * 3, "bertkit": [5.0, 80.0, 50.0]}
    rates["bertkit-fp32"] = [30.0] * 3
    sides = {side: {"examples_per_s": each, "real_tokens_per_s": each, "peak_rss_mib": [100.0]} for side, each in rates.items()}
    rows = bench.compare("mrpc", sides)
    found = {(row["ours"], row["theirs"]): (row["examples_per_s"], row["peak_rss_mib"], row["needed"]) for row in rows}
    assert found == {
        ("bertkit", "default"): (5.0, 1.0, 3.0),
        ("bertkit", "dynamic"): (2.5, 1.0, None),
        ("bertkit", "best"): (1.25, 1.0, 0.9),
        ("bertkit-fp32", "default"): (3.0, 1.0, None),
        ("bertkit-fp32", "dynamic"): (1.5, 1.0, None),
    }
    assert [row["needed"] for row in bench.compare("sst2", sides)] == [8.0, None, None, None, None]


def test_start_up_runs_alternate_and_the_first_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import sys, time; open(sys.argv[1], 'a').write(sys.argv[2]); time.sleep(float(sys.argv[3]))"
    commands = {name: [sys.executable, "-S", "-c", script, str(log), name, wait] for name, wait in (("a", "0"), ("b", "0.3"))}
    seconds = bench.time_startup(commands, 2)
    assert log.read_text(encoding="utf-8") == "ababab"
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2}
    assert min(seconds["b"]) >= 0.3


def test_both_sides_are_called_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.append(command[2:])
        return subprocess.CompletedProcess(command, 0, 'noise\n{"examples_per_s": 1.0}\n', "")

    monkeypatch.setattr(bench.subprocess, "run", fake)
    for side in bench.NAMES:
        assert bench.run_side(side, model=Path("m"), data=Path("d"), steps=9, warmup=3, seed=5) == {"examples_per_s": 1.0}
    assert [command[0] for command in seen] == list(bench.NAMES)
    assert len({tuple(command[1:]) for command in seen}) == 1
    options = dict(zip(seen[0][1::2], seen[0][2::2]))
    assert options == {
        "--model": "m",
        "--data": "d",
        "--steps": "9",
        "--warmup": "3",
        "--seed": "5",
        "--batch-size": "32",
        "--max-length": "128",
    }


def test_rows_of_glue_have_numbers_for_labels(data_dir: Path, tmp_path: Path) -> None:
    count = bench.write_rows("mrpc", str(data_dir / "GLUE"), tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert count == len(rows) == 3668
    assert sum(row["label"] for row in rows) == 2474  # equivalent pairs, as SOURCES.md counts them
    assert set(rows[0]) == {"text", "text_pair", "label"}
    assert bench.write_rows("sst2", str(data_dir / "GLUE"), tmp_path / "rows.jsonl") == 67349


@pytest.mark.parametrize("side", ["bertkit", "best"])
def test_a_side_counts_real_tokens_only(
    side: str, make_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides, in processes of their own, over texts of known lengths: 1 or 9 words, so 3 or 11 tokens."""
    rows = [{"text": "ticket" if at % 2 else " ".join(["good"] * 9), "label": at % 2} for at in range(16)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.setattr(bench, "BATCH_SIZE", 16)
    monkeypatch.setattr(bench, "MAX_LENGTH", 32)
    found = bench.run_side(side, model=make_model_dir(), data=data, steps=4, warmup=1, seed=1)
    assert found["timed_steps"] == 3
    assert found["real_tokens_per_s"] / found["examples_per_s"] == pytest.approx(7.0)
    assert 50 < found["peak_rss_mib"] < 8000
    assert found["step_s"] > 0


def test_the_peers_settings() -> None:
    assert set(timed_training.TRAINERS) == {"default", "dynamic", "best"}
    assert (bench.BATCH_SIZE, bench.MAX_LENGTH, bench.MODEL) == (32, 128, "minilm")
    assert set(bench.NAMES) == {*timed_training.TRAINERS, *timed_training.BERTKIT} == set(bench.ORDER)
    assert timed_training.BERTKIT == {"bertkit": "auto", "bertkit-fp32": "fp32"}
