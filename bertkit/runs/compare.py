"""Runs side by side: their scores, the settings in which they differ, and whether the difference is more than chance.

The interval of a difference is that of the paired bootstrap (Efron and Tibshirani, 1993; Koehn, 2004): rows are drawn with
replacement, the same for both sides. Of a side of several seeds one is drawn too, so that the interval holds their chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.errors import UsageError
from bertkit.metrics.bootstrap import RESAMPLES, Scorer, interval, resampled
from bertkit.readers import Examples
from bertkit.runs.directory import default_settings, flat, require_run
from bertkit.runs.predict import evaluate_target, open_target
from bertkit.runs.seeds import read_seeds

_COMPARED = ("recipe", "training", "model")
_NO_SETTINGS = ("training.seed", "recipe.thresholds")  # the latter follow from the training


@dataclass(frozen=True)
class Side:
    """A run, or several that differ in their seed alone: what each predicts for the same rows."""

    name: str
    run: Mapping[str, Any]  # run.json of the first
    scorers: list[Scorer]  # of each run

    def scores(self, run: int, rows: NDArray[np.int64]) -> dict[str, float]:
        """The scores of one of its runs on some rows, nan where one is undefined."""
        return {name: np.nan if value is None else float(value) for name, value in self.scorers[run](rows).items()}


def compare(names: Sequence[str], *, split: str | None = None, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Every side beside the first one: scores, differing settings, and each difference with its 95% interval.

    names: run folders, or folders of seeds. split: of their own data; default: the first that the first side is evaluated on.
    Raises UsageError for runs that are evaluated on different rows.
    """
    sides, examples, split = _open(names, split)
    rows = np.arange(len(examples))
    means = [_means([side.scores(run, rows) for run in range(len(side.scorers))]) for side in sides]
    rng = np.random.default_rng(seed)
    drawn: list[list[dict[str, float]]] = [[] for _ in sides]
    for rows in resampled(len(examples), resamples, rng):
        for side, scores in zip(sides, drawn, strict=True):
            scores.append(side.scores(int(rng.integers(len(side.scorers))), rows))
    shared = [name for name in means[0] if all(name in mean for mean in means)]
    return {
        "split": split,
        "rows": len(examples),
        "sides": [
            {"name": side.name, "runs": len(side.scorers), "scores": mean} for side, mean in zip(sides, means, strict=True)
        ],
        "settings": _differing(sides),
        "differences": [
            {
                "side": side.name,
                "score": name,
                "difference": _less(mean[name], means[0][name]),
                **_interval(scores, drawn[0], name),
            }
            for side, mean, scores in zip(sides[1:], means[1:], drawn[1:], strict=True)
            for name in shared
        ],
    }


def _open(names: Sequence[str], split: str | None) -> tuple[list[Side], Examples, str]:
    sides: list[Side] = []
    first: Examples | None = None
    for name, runs in [(name, _runs(name)) for name in names]:  # all are looked up before any is evaluated
        scorers: list[Scorer] = []
        for folder in runs:
            target = open_target(str(folder), None, {})
            recipe = target.recipe.settled()
            split = split or recipe.eval_splits[0]
            scored, examples = evaluate_target(target, (split,))
            if first is None:
                first = examples[split]
            if others := _other_columns(examples[split], first):
                what = f"its {split} rows are others than those of {names[0]}, in the {' and the '.join(others)}"
                raise UsageError(what, where=str(folder), hint="compare runs of the same data, split alike")
            scorers.append(recipe.scorer(scored.predictions[split], examples[split]))
        sides.append(Side(name, next(iter(runs.values())), scorers))
    assert first is not None
    assert split is not None
    return sides, first, split


def _runs(name: str) -> dict[Path, dict[str, Any]]:
    """run.json of a run, or of each of a folder of seeds."""
    return {folder: require_run(folder) for folder in read_seeds(Path(name)) or [Path(name)]}


def _other_columns(examples: Examples, first: Examples) -> list[str]:
    """The columns, under their standard names, that differ."""
    names = dict.fromkeys((*first.columns, *examples.columns))
    return [name for name in names if examples.columns.get(name) != first.columns.get(name)]


def _means(scores: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """The mean of each score over a side's runs; None where one of them is undefined."""
    names = dict.fromkeys(name for found in scores for name in found)
    means = {name: float(np.mean([found.get(name, np.nan) for found in scores])) for name in names}
    return {name: None if np.isnan(mean) else mean for name, mean in means.items()}


def _less(mine: float | None, theirs: float | None) -> float | None:
    return None if mine is None or theirs is None else mine - theirs


def _interval(scores: Sequence[Mapping[str, float]], of_first: Sequence[Mapping[str, float]], name: str) -> dict[str, Any]:
    pairs = zip(scores, of_first, strict=True)  # what no drawn row has, has no score there
    differences = np.array([mine.get(name, np.nan) - theirs.get(name, np.nan) for mine, theirs in pairs])
    differences = differences[~np.isnan(differences)]
    found = interval(differences.tolist())
    return {"interval": found and list(found), "higher": float(np.mean(differences > 0)) if found else None}


def _differing(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """By name, the settings that are not the same on all sides."""
    settings = [{key: value for part in _COMPARED for key, value in flat(side.run[part], part)} for side in sides]
    for each in settings:
        if each.pop("recipe.threshold_tuned", False):
            each.pop("recipe.null_threshold")
    names = dict.fromkeys(key for each in settings for key in each if not key.startswith(_NO_SETTINGS))
    known = default_settings()
    values = {name: [each.get(name, known.get(name)) for each in settings] for name in names}
    return {name: its for name, its in values.items() if any(value != its[0] for value in its)}


def show_comparison(found: Mapping[str, Any]) -> None:
    """Tables of the scores, of the settings that differ, and of the differences."""
    sides = found["sides"]
    names = [f"{side['name']} ({side['runs']} seeds)" if side["runs"] > 1 else side["name"] for side in sides]
    rows = [[name, *(side["scores"].get(name) for side in sides)] for name in sides[0]["scores"]]
    progress.table(f"{found['split']}: {found['rows']} rows", ["score", *names], rows)
    if found["settings"]:
        shown = [[name, *map(str, values)] for name, values in found["settings"].items()]
        progress.table("settings that differ", ["setting", *names], shown)
    columns = ["side", "score", f"more than {sides[0]['name']}", "95% interval", "higher in"]
    differences = [
        [
            row["side"],
            row["score"],
            row["difference"],
            progress.between(row["interval"], "+.4f"),
            None if row["higher"] is None else f"{100 * row['higher']:.1f}%",
        ]
        for row in found["differences"]
    ]
    progress.table("paired bootstrap over rows and seeds", columns, differences)
