"""Runs side by side: their scores, the settings that differ, and whether the difference is significant.

Intervals of differences are by the paired bootstrap (Efron and Tibshirani, 1993; Koehn, 2004): rows are drawn with replacement,
the same for both sides. If a side has several seeds, one is drawn too, so that the interval includes their variance.
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
from bertkit.report import Report, Table
from bertkit.runs.directory import default_settings, flat, require_run
from bertkit.runs.predict import evaluate_target
from bertkit.runs.series import SEEDS
from bertkit.runs.target import open_target

_COMPARED = ("recipe", "training", "model")


@dataclass(frozen=True)
class Side:
    """A run, or several that differ only in their seed, with their predictions for the same rows."""

    name: str
    run: Mapping[str, Any]  # run.json of the first
    scorers: list[Scorer]  # of each run

    def scores(self, run: int, rows: NDArray[np.int64]) -> dict[str, float]:
        """The scores of one run on some rows; nan for an undefined one."""
        return {name: np.nan if value is None else float(value) for name, value in self.scorers[run](rows).items()}


def compare(
    names: Sequence[str],
    *,
    split: str | None = None,
    recipe_name: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare every side to the first: scores, settings that differ, and each difference with its 95% interval.

    names: run folders, or folders of seeds. split: of their own data; default: the first evaluation split of the first side.
    recipe_name: the file of the runs' own recipe, if they need its code.
    Raises UsageError for runs that are evaluated on different rows.
    """
    sides, examples, split = _open(names, split, recipe_name)
    rows = np.arange(len(examples))
    means = [_means([side.scores(run, rows) for run in range(len(side.scorers))]) for side in sides]
    rng = np.random.default_rng(seed)
    drawn: list[list[dict[str, float]]] = [[] for _ in sides]
    for rows in progress.with_bar(resampled(len(examples), resamples, rng), "resample", resamples):
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
                "difference": _difference(mean[name], means[0][name]),
                **_interval(scores, drawn[0], name),
            }
            for side, mean, scores in zip(sides[1:], means[1:], drawn[1:], strict=True)
            for name in shared
        ],
    }


def _open(names: Sequence[str], split: str | None, recipe_name: str | None) -> tuple[list[Side], Examples, str]:
    sides: list[Side] = []
    first: Examples | None = None
    for name, runs in [(name, _runs(name)) for name in names]:  # all names are checked before the first evaluation
        scorers: list[Scorer] = []
        for folder in runs:
            target = open_target(str(folder), recipe_name, {})
            split = split or target.task.recipe.resolved().eval_splits[0]
            scored, examples = evaluate_target(target, (split,))
            if first is None:
                first = examples[split]
            if others := _differing_columns(examples[split], first):
                what = f"the {split} rows differ from those of {names[0]}, in the {' and the '.join(others)}"
                raise UsageError(what, where=str(folder), hint="compare runs of the same data and split")
            scorers.append(scored.task.scorer(scored.predictions[split], scored.truth[split]))
        sides.append(Side(name, next(iter(runs.values())), scorers))
    assert first is not None
    assert split is not None
    return sides, first, split


def _runs(name: str) -> dict[Path, dict[str, Any]]:
    """The run.json of a run, or of each run in a folder of seeds."""
    return {folder: require_run(folder) for folder in SEEDS.runs_in(Path(name)) or [Path(name)]}


def _differing_columns(examples: Examples, first: Examples) -> list[str]:
    """The standard names of the columns that differ."""
    names = dict.fromkeys((*first.columns, *examples.columns))
    return [name for name in names if examples.columns.get(name) != first.columns.get(name)]


def _means(scores: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """The mean of each score over a side's runs; None if it is undefined for one of them."""
    names = dict.fromkeys(name for run_scores in scores for name in run_scores)
    means = {name: float(np.mean([run_scores.get(name, np.nan) for run_scores in scores])) for name in names}
    return {name: None if np.isnan(mean) else mean for name, mean in means.items()}


def _difference(score: float | None, first: float | None) -> float | None:
    return None if score is None or first is None else score - first


def _interval(scores: Sequence[Mapping[str, float]], first_scores: Sequence[Mapping[str, float]], name: str) -> dict[str, Any]:
    pairs = zip(scores, first_scores, strict=True)  # a score is missing if no drawn row has the class
    differences = np.array([drawn.get(name, np.nan) - first.get(name, np.nan) for drawn, first in pairs])
    differences = differences[~np.isnan(differences)]
    bounds = interval(differences.tolist())
    return {"interval": bounds and list(bounds), "higher": float(np.mean(differences > 0)) if bounds else None}


def _differing(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """The settings that differ: by name, the value of each side."""
    settings = [{key: value for part in _COMPARED for key, value in flat(side.run[part], part)} for side in sides]
    names = dict.fromkeys(key for each in settings for key in each if key != "training.seed")
    defaults = default_settings()
    values = {name: [each.get(name, defaults.get(name)) for each in settings] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def report_comparison(comparison: Mapping[str, Any]) -> Report:
    """Tables of the scores, of the settings that differ, and of the differences."""
    sides = comparison["sides"]
    names = [f"{side['name']} ({side['runs']} seeds)" if side["runs"] > 1 else side["name"] for side in sides]
    rows = [[name, *(side["scores"].get(name) for side in sides)] for name in sides[0]["scores"]]
    parts = [Table(f"{comparison['split']}: {comparison['rows']} rows", ["score", *names], rows)]
    if comparison["settings"]:
        settings = [[name, *map(str, values)] for name, values in comparison["settings"].items()]
        parts.append(Table("settings that differ", ["setting", *names], settings))
    columns = ["side", "score", f"minus {sides[0]['name']}", "95% interval", "higher in"]
    differences = [
        [
            row["side"],
            row["score"],
            row["difference"],
            progress.format_interval(row["interval"], "+.4f"),
            None if row["higher"] is None else f"{100 * row['higher']:.1f}%",
        ]
        for row in comparison["differences"]
    ]
    return Report([*parts, Table("paired bootstrap over rows and seeds", columns, differences)], comparison)
