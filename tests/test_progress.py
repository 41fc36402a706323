"""metrics.jsonl is valid JSON whatever is logged, and text of data is shown as it stands."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bertkit import progress
from bertkit.progress import MetricsLog

HOSTILE = (
    "[/INST] [bold]x[/bold] [link=file:///etc/passwd]y[/link]",
    "\x1b[2J\x1b]0;title\x07",
    "a\x00b\rc\td",
    "\u202eabc",
    "[red",
    "[/]",
)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal with colours would get."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=200, highlight=False, soft_wrap=True, color_system="standard")
    monkeypatch.setattr(progress, "console", console)
    return text


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a file would get."""
    text = io.StringIO()
    monkeypatch.setattr(
        progress, "console", Console(file=text, force_terminal=False, width=200, highlight=False, soft_wrap=True)
    )
    return text


def strict_json(line: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_log_is_valid_json_with_null_for_what_is_not_finite(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert log.read() == []
    log.append(
        {
            "step": 1,
            "loss": float("nan"),
            "up": float("inf"),
            "down": float("-inf"),
            "none": None,
            "text": "a\nb\u2028c",
            "ok": 0.1,
        }
    )
    log.append({"step": 2, "loss": 1e-30})
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    events = [strict_json(line) for line in text.splitlines()]
    expected = {"step": 1, "loss": None, "up": None, "down": None, "none": None, "text": "a\nb\u2028c", "ok": 0.1}
    assert events == [expected, {"step": 2, "loss": 1e-30}]
    assert log.read() == events


def test_cut_drops_later_steps_and_a_half_written_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
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


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_and_control_characters_are_shown_and_not_obeyed(text: str, screen: io.StringIO) -> None:
    progress.note(text)
    progress.warn(text)
    progress.table(text, [text, "b"], [[text, 1.5], ["x", None]])
    with progress.bar("train", 3) as bar:
        bar.advance(1, loss="0.1")
    shown = screen.getvalue()
    visible = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    assert shown.count(visible) == 5  # in the note, the warning, the title, the header and the row
    assert "\x1b[2J" not in shown
    assert "\x1b]0" not in shown
    assert "\u202e" not in shown
    assert "\x00" not in shown


def test_table_shows_numbers_to_four_places_and_a_dash_for_none(lines: io.StringIO) -> None:
    progress.table("scores", ["score", "best", "count"], [["accuracy", 0.123456, 3], ["f1", None, 12]])
    rows = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines.getvalue().splitlines()]
    assert ["score", "best", "count"] in rows
    assert ["accuracy", "0.1235", "3"] in rows
    assert ["f1", "-", "12"] in rows


def test_without_a_terminal_a_line_now_and_then(lines: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))  # ten seconds between two looks at it
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with progress.bar("train", 8, done=2) as bar:
        for step in range(6):
            bar.advance(0 if step == 9 else 1, loss=f"0.{step}")
    shown = lines.getvalue().splitlines()
    assert shown == ["train 4/8  loss 0.1  40 s left", "train 6/8  loss 0.3  20 s left"]


def test_silence_shows_nothing(lines: io.StringIO) -> None:
    progress.silence()
    progress.note("a")
    progress.warn("b")
    progress.table("c", ["d"], [["e"]])
    with progress.bar("f", 1) as bar:
        bar.advance(1)
    assert lines.getvalue() == ""
