"""The gain of one set of runs over another, by seed and row, from `bertkit compare`, as stored and shown in the results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bertkit.files import read_json
from bertkit.runs.series import summarize
from scripts.provenance import ROOT
from scripts.results.command_lines import execute


def compare(first: str, second: str, options: str = "") -> dict[str, Any]:
    """The first score of two sets of runs, in their folders: score, scores, and the difference with its 95% interval."""
    compared = json.loads(execute(command(first, second, options), 0))
    score = next(iter(compared["sides"][0]["scores"]))
    (difference,) = [row for row in compared["differences"] if row["score"] == score]
    return {
        "rows": compared["rows"],
        "score": score,
        "scores": [side["scores"][score] for side in compared["sides"]],
        "difference": difference["difference"],
        "interval": difference["interval"],
    }


def seed_difference(first: str, second: str, score: str) -> dict[str, Any]:
    """How much higher the second side's validation score is with each seed; `summarize` of that. The rows are not drawn."""
    scores = [
        [read_json(path)["best"]["scores"][f"validation/{score}"] for path in sorted((ROOT / side).glob("seed-*/run.json"))]
        for side in (first, second)
    ]
    return summarize([after - before for before, after in zip(*scores, strict=True)])


def command(first: str, second: str, options: str = "") -> str:
    return " ".join(["bertkit compare", first, second, *options.split(), "--json"])


def difference_text(gain: Mapping[str, Any]) -> str:
    """A difference in points with its 95% interval."""
    low, high = (100 * bound for bound in gain["interval"])
    return f"{100 * gain['difference']:+.1f} ({low:+.1f} to {high:+.1f})"
