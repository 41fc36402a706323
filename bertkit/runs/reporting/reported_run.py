"""A run in a report, and the curves of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.html.charts import Line, draw_lines
from bertkit.html.page import Section
from bertkit.model.config import PRETRAINING
from bertkit.runs.pretraining.course import Course
from bertkit.runs.run_file import flat
from bertkit.training.metrics_log import MetricsLog
from bertkit.training.state import is_loss


class ReportedRun(NamedTuple):
    """A run: its name as typed, its folder and its run.json."""

    name: str
    folder: Path
    values: Mapping[str, Any]

    @property
    def family(self) -> str:
        return str(self.values["recipe"].get("family"))

    def flat(self) -> dict[str, Any]:
        """The values in run.json, under names such as training.seed."""
        return dict(chain.from_iterable(flat(value, part) for part, value in self.values.items()))

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events in metrics.jsonl."""
        return MetricsLog(self.folder).read()

    @property
    def course(self) -> Course:
        """What each step of pre-training reads."""
        return Course.of(self.values)


def draw_curves(runs: Sequence[ReportedRun]) -> Section:
    """Loss, learning rate and the first score by step, of all runs together."""
    lines: dict[str, list[Line]] = {"loss": [], "learning rate": []}
    for run in runs:
        events = run.events
        scores = [*run.values.get("best", {}).get("scores", {})]
        first = next((name for name in scores if not is_loss(name)), None)
        kinds = {"loss": ["loss", *(name for name in scores if is_loss(name))], "learning rate": ["learning_rate"]}
        if first is not None:
            kinds[first] = [name for name in scores if name.endswith(f"/{first.rpartition('/')[2]}")]
        for title, name in ((title, name) for title, names in kinds.items() for name in names):
            points = [(event["step"], event[name]) for event in events if event.get(name) is not None]
            if points:
                kind = {"loss": "training", "learning_rate": "learning rate"}.get(name, name)
                label = f"{run.name}: {kind}" if len(runs) > 1 else kind
                lines.setdefault(title, []).append(Line(label, *zip(*points, strict=True)))
    begins = {begin for run in runs if run.family == PRETRAINING for begin in run.course.begins}
    return Section("Curves", [draw_lines(title, own, marks=sorted(begins - {0})) for title, own in lines.items() if own])
