"""metrics.jsonl is valid JSON whatever is logged, and what is damaged is dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.training.metrics_log import LOG_FILE, MetricsLog


def strict_json(line: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_log_is_valid_json_with_null_for_numbers_that_are_not_finite(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    assert log.read() == []
    kept = {"step": 1, "none": None, "text": "a\nb\u2028c", "ok": 0.1}
    log.append({**kept, "loss": float("nan"), "up": float("inf"), "down": float("-inf")})
    log.append({"step": 2, "loss": 1e-30})
    events = [strict_json(line) for line in (tmp_path / LOG_FILE).read_text(encoding="utf-8").splitlines()]
    assert events == [{**kept, "loss": None, "up": None, "down": None}, {"step": 2, "loss": 1e-30}]
    assert log.read() == events


def test_later_steps_and_an_incomplete_line_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / LOG_FILE
    log = MetricsLog(tmp_path)
    for step in (10, 20, 20, 30):
        log.append({"step": step, "loss": 1 / step})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 40, "lo')
    log.drop_after(20)
    log.append({"step": 25})
    assert [strict_json(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()] == [10, 20, 20, 25]
    assert [event.get("loss") for event in log.read()] == [0.1, 0.05, 0.05, None]
    log.drop_after(0)
    assert log.read() == []
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_damaged_lines_of_the_log_are_dropped_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / LOG_FILE
    path.write_bytes(b'{"step": 1, "loss": 2.0}\n\x00\xff\xfe\n{"step": "2"}\n[3]\n{"step": 4}\n{"step": 5, "lo')
    log = MetricsLog(tmp_path)
    assert log.read() == [{"step": 1, "loss": 2.0}, {"step": 4}]
    log.drop_after(4)
    assert path.read_text(encoding="utf-8") == '{"step": 1, "loss": 2.0}\n{"step": 4}\n'
    assert "4 of 6 lines cannot be read and are dropped: 2, 3, 4, 6" in capsys.readouterr().err
    log.drop_after(4)
    assert "dropped" not in capsys.readouterr().err
