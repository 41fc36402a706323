"""What `make results` runs again, and what it takes from an earlier time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.results import command_lines
from scripts.results.command_lines import measured_once, run_commands


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command lines that were run; each writes the file that its last word names."""
    lines: list[str] = []

    def execute(line: str, seed: int, *more: str) -> str:
        lines.append(line)
        (tmp_path / line.removesuffix(" --overwrite").split()[-1]).write_text(line, encoding="utf-8")
        return ""

    monkeypatch.setattr(command_lines, "execute", execute)
    monkeypatch.setattr(command_lines, "ROOT", tmp_path)
    monkeypatch.setattr(command_lines, "provenance", lambda: {"commit": "0123", "date": f"after {len(lines)}"})
    return lines


def test_what_was_made_from_something_that_changed_is_made_again(ran: list[str], tmp_path: Path) -> None:
    commands = {"a": "pretrain a", "b": "finetune b"}
    made_by = run_commands(commands, tmp_path / "kept", force=False)
    assert ran == ["pretrain a --overwrite", "finetune b --overwrite"]
    assert run_commands(commands, tmp_path / "kept", force=False) == made_by
    assert len(ran) == 2
    (tmp_path / "b").unlink()  # stopped before its end
    run_commands(commands, tmp_path / "kept", force=False)
    assert ran[2:] == ["finetune b"]
    run_commands(commands | {"a": "pretrain longer a"}, tmp_path / "kept", force=False)
    assert ran[3:] == ["pretrain longer a --overwrite", "finetune b --overwrite"]


def test_what_comes_first_may_be_in_another_folder(ran: list[str], tmp_path: Path) -> None:
    for length in ("short", "long", "long"):
        first = run_commands({"a": f"pretrain {length} a"}, tmp_path / "first", force=False)
        run_commands({"b": "finetune b"}, tmp_path / "second", force=False, after=first)
    assert [line.split()[0] for line in ran] == ["pretrain", "finetune"] * 2


def test_a_measurement_keeps_the_origin_of_its_time(ran: list[str], tmp_path: Path) -> None:
    def measure() -> dict[str, Any]:
        ran.append("measure")
        return {"score": len(ran)}

    kept = tmp_path / "folder" / "result.json"
    kept.parent.mkdir()
    kept.write_text('{"command": ["one"], "score": 0}', encoding="utf-8")  # as before origins were kept
    first = measured_once(kept, ["one"], measure, force=False)
    assert first == ({"score": 1}, {"command": ["one"], "commit": "0123", "date": "after 1"})
    ran.append("something else")
    assert measured_once(kept, ["one"], measure, force=False) == first
    assert measured_once(kept, ["another"], measure, force=False).values == {"score": 3}
    assert measured_once(kept, ["another"], measure, force=True).values == {"score": 4}
