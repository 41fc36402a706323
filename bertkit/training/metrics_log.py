"""metrics.jsonl: one object per log event of a training, appended."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.errors import listed
from bertkit.files import UNFINISHED

LOG_FILE = "metrics.jsonl"


class MetricsLog:
    """The log in a run folder; a resumed run first drops the events after its checkpoint."""

    def __init__(self, run: Path) -> None:
        self.path = run / LOG_FILE

    def append(self, event: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({key: _finite(value) for key, value in event.items()}) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """The events, without damaged lines."""
        return [event for event in self._lines() if event is not None]

    def drop_after(self, step: int) -> None:
        """Drop the events of later steps, and damaged lines, with a warning for the latter."""
        lines = self._lines()
        kept = [event for event in lines if event is not None and event["step"] <= step]
        aside = self.path.with_name(f"{UNFINISHED}{LOG_FILE}")
        aside.write_text("".join(json.dumps(event) + "\n" for event in kept), encoding="utf-8")
        os.replace(aside, self.path)
        if lost := [number for number, event in enumerate(lines, start=1) if event is None]:
            which = listed([*map(str, lost)])
            progress.warn(f"{self.path}: {len(lost)} of {len(lines)} lines cannot be read and are dropped: {which}")

    def _lines(self) -> list[dict[str, Any] | None]:
        """The event of each line; None for one that is cut or damaged."""
        return [_event(line) for line in self.path.read_bytes().split(b"\n") if line] if self.path.exists() else []


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("step"), int) else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
