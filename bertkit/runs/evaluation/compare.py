"""Runs side by side: their scores, the settings that differ, and whether the difference is significant.

Intervals of differences use the paired bootstrap (Efron and Tibshirani, 1993; Koehn, 2004): rows are drawn with replacement,
the same for both sides. If a side has several seeds, one of them is drawn too: the interval is that of training once, so it
includes the variance of seeds and, unlike that of `mean_difference`, does not narrow with their number. If a side has folds,
every row is scored by the run that did not train on it, all rows together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.errors import UsageError, plural
from bertkit.metrics import bootstrap
from bertkit.metrics.bootstrap import Scorer, difference, interval
from bertkit.metrics.classification import LOWER_IS_BETTER
from bertkit.model.precision import precision_of
from bertkit.readers import Examples, join_blocks
from bertkit.report import Finding, Report, Table
from bertkit.runs.evaluation.evaluate import Predicted, evaluate_target
from bertkit.runs.run_file import RUN_FILE, default_settings, flat, refuse_different_tasks, require_run
from bertkit.runs.series import FOLDS, SEEDS
from bertkit.runs.target import open_target

HELD_OUT = "validation"  # the split that differs from fold to fold
_COMPARED = ("recipe", "training", "model")
_VARIED = {"training.seed"}  # settings that may vary within a side


@dataclass(frozen=True)
class Side:
    """A run, several runs that differ only in their seed, or folds as one run, with predictions for the same rows."""

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
    resamples: int | None = None,
    known: Mapping[Path, Predicted] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compare every side to the first: scores, settings that differ, and each difference with its 95% interval.

    names: run folders, or folders of seeds or folds. split: of their own data; default: the first side's first
    evaluation split. recipe_name: the file of the runs' own recipe, if they need its code. known: predictions for the split
    that have been made already, by run folder. overrides: of the runs' recipe options; with "test", that file is the default
    split. Raises UsageError for runs that are evaluated on different rows.
    """
    sides = [(name, _runs(name)) for name in names]  # all names are checked before the first evaluation
    refuse_different_tasks({name: next(iter(runs.values())) for name, runs in sides})
    return compare_sides(*open_sides(sides, split, recipe_name, known, overrides), resamples=resamples)


def compare_sides(sides: Sequence[Side], examples: Examples, split: str, *, resamples: int | None = None) -> dict[str, Any]:
    """The result of `compare`, for runs that have predicted the same rows of a split.

    same: the sides that are the first side itself, or have its scores on every draw.
    """
    rows = np.arange(len(examples))
    means = [_means([side.scores(run, rows) for run in range(len(side.scorers))]) for side in sides]
    rng, resamples = np.random.default_rng(0), bootstrap.RESAMPLES if resamples is None else resamples
    drawn: list[list[dict[str, float]]] = [[] for _ in sides]
    for rows in progress.with_bar(bootstrap.resampled(len(examples), resamples, rng), "resample", resamples):
        for side, scores in zip(sides, drawn, strict=True):
            scores.append(side.scores(int(rng.integers(len(side.scorers))), rows))
    shared = [name for name in means[0] if all(name in mean for mean in means)]
    first = Path(sides[0].name).resolve()
    same = [
        side.name
        for side, scores in zip(sides[1:], drawn[1:], strict=True)
        if scores == drawn[0] or Path(side.name).resolve() == first
    ]
    return {
        "split": split,
        "rows": len(examples),
        "sides": [
            {"name": side.name, "runs": len(side.scorers), "scores": mean} for side, mean in zip(sides, means, strict=True)
        ],
        "settings": _differing(sides),
        "same": same,
        "differences": [
            {
                "side": side.name,
                "score": name,
                "difference": difference(mean[name], means[0][name]),
                **_interval(scores, drawn[0], name),
            }
            for side, mean, scores in zip(sides[1:], means[1:], drawn[1:], strict=True)
            for name in shared
        ],
    }


def mean_difference(side: Side, other: Side, score: str, rows: int) -> dict[str, Any]:
    """How much higher the mean of a score is over one side's runs than over the other's, and its 95% bootstrap interval.

    Rows and pairs of runs are drawn with replacement: the first run of one side is paired with the first of the other, because
    both have the same seed.
    """

    def mean(runs: Iterable[int], drawn: NDArray[np.int64]) -> float | None:
        found = float(np.mean([side.scores(run, drawn)[score] - other.scores(run, drawn)[score] for run in runs]))
        return None if np.isnan(found) else found  # undefined for one of them

    count, rng = len(side.scorers), np.random.default_rng(0)
    bounds = interval([mean(rng.integers(0, count, count), each) for each in bootstrap.resampled(rows, rng=rng)])
    return {"difference": mean(range(count), np.arange(rows)), "interval": bounds and list(bounds)}


def open_sides(
    named: Sequence[tuple[str, Mapping[Path, Mapping[str, Any]]]],
    split: str | None,
    recipe_name: str | None = None,
    known: Mapping[Path, Predicted] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[list[Side], Examples, str]:
    """The sides with their predictions, the rows that they share, and their split. named: each side's runs and their run.json.
    known, overrides: as in `compare`.

    Raises UsageError for runs that are evaluated on different rows.
    """
    overrides = overrides or {}
    split = split or ("test" if "test" in overrides else None)
    sides: list[Side] = []
    first: Examples | None = None
    for name, runs in named:
        scored: list[Predicted] = []
        folds = FOLDS.runs_in(Path(name))  # whose rows differ
        for folder in runs:
            if known and folder in known:
                scored.append(known[folder])
                continue
            target = open_target(str(folder), recipe_name, overrides)
            split = split or target.task.recipe.resolved().first_eval_split
            scored.append(evaluate_target(target, (split,), checked=bool(sides or (scored and not folds))).of(split))
        if split == HELD_OUT and folds:
            scored = [_together(scored)]
        assert split is not None
        for each in scored:
            first = first or each.examples
            refuse_other_rows(each.examples, first, split, name=name, first_name=named[0][0])
        sides.append(Side(name, next(iter(runs.values())), [each.scorer() for each in scored]))
    assert first is not None
    assert split is not None
    return sides, first, split


def _together(folds: Sequence[Predicted]) -> Predicted:
    """The held-out rows of all folds, sorted by their values: the same for any number of folds."""
    examples = join_blocks(fold.examples for fold in folds)
    order = sorted(range(len(examples)), key=lambda row: repr([values[row] for values in examples.columns.values()]))
    predictions = [prediction for fold in folds for prediction in fold.predictions]
    truth = [value for fold in folds for value in fold.truth]
    return Predicted(
        folds[0].task.scored_with([fold.task for fold in folds[1:]]),
        [predictions[row] for row in order],
        [truth[row] for row in order],
        examples.select(order),
    )


def _runs(name: str) -> dict[Path, dict[str, Any]]:
    """The run.json of a run, or of each run in a folder of seeds or folds. Raises UsageError if they are not finished."""
    folder = Path(name)
    for series in (SEEDS, FOLDS):
        if runs := series.runs_in(folder):
            return {run: require_run(run) for run in runs}
        if begun := [run for run in series.begun_in(folder) if (run / RUN_FILE).is_file()]:
            what = f"not all {series.nouns} in this folder are finished ({plural(len(begun), 'run')} so far)"
            raise UsageError(what, where=name, hint=f"repeat its command to finish them, or compare {begun[0]}")
    return {folder: require_run(folder)}


def refuse_other_rows(examples: Examples, first: Examples, split: str, *, name: str, first_name: str) -> None:
    """Raise UsageError for a run that was evaluated on different rows than the first one."""
    columns = dict.fromkeys((*first.columns, *examples.columns))
    differ = [column for column in columns if examples.columns.get(column) != first.columns.get(column)]
    if others := dict.fromkeys(map(examples.own_name, differ)):
        what = f"the {split} rows differ from those of {first_name} in these columns: {', '.join(others)}"
        hint = (
            "compare runs with the same data and split, folds only with folds; or take other rows: compare RUN RUN --test FILE"
        )
        raise UsageError(what, where=name, hint=hint)


def _means(scores: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """The mean of each score over a side's runs; None if it is undefined for one of them."""
    names = dict.fromkeys(name for run_scores in scores for name in run_scores)
    means = {name: float(np.mean([run_scores.get(name, np.nan) for run_scores in scores])) for name in names}
    return {name: None if np.isnan(mean) else mean for name, mean in means.items()}


def _interval(scores: Sequence[Mapping[str, float]], first_scores: Sequence[Mapping[str, float]], name: str) -> dict[str, Any]:
    pairs = zip(scores, first_scores, strict=True)  # a score is missing if no drawn row has the class
    differences = np.array([drawn.get(name, np.nan) - first.get(name, np.nan) for drawn, first in pairs])
    differences = differences[~np.isnan(differences)]
    bounds = interval(differences.tolist())
    return {"interval": bounds and list(bounds), "higher": float(np.mean(differences > 0)) if bounds else None}


def _differing(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """The settings that differ: by name, the value of each side."""
    settings = [_settings(side.run) for side in sides]
    varied = _VARIED if any(len(side.scorers) > 1 for side in sides) else set()
    names = dict.fromkeys(key for each in settings for key in each if key not in varied)
    defaults = default_settings()
    names = {name: None for name in names if not name.startswith("model.config.")}  # the model's name says it
    values = {name: [each.get(name, defaults.get(name)) for each in settings] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def _settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run by name, as they took effect: the precision that "auto" chose, no epochs if max_steps is set."""
    settings = {key: value for part in _COMPARED for key, value in flat(run[part], part)}
    if settings.get("training.precision") == "auto" and run.get("dtype"):
        settings["training.precision"] = precision_of(run["dtype"])
    if settings.get("training.max_steps"):
        settings["training.num_epochs"] = None
    return settings


def report_comparison(comparison: Mapping[str, Any]) -> Report:
    """Tables of the scores, of the settings that differ, and of the differences."""
    sides = comparison["sides"]
    names = [f"{side['name']} ({side['runs']} runs)" if side["runs"] > 1 else side["name"] for side in sides]
    scores = dict.fromkeys(name for side in sides for name in side["scores"])
    rows = [[name, *(side["scores"].get(name) for side in sides)] for name in scores]
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
        if row["side"] not in comparison["same"]
    ]
    lower = [name for name in scores if name in LOWER_IS_BETTER]
    notes = [Finding("note", f"lower is better: {', '.join(lower)}")] if lower else []
    several = any(side["runs"] > 1 for side in sides)
    drawn = f"paired bootstrap over rows{' and one run of each side' if several else ''}"
    tested = [Table(drawn, columns, differences)] if differences else []
    none = [] if comparison["differences"] else [Finding("warning", "the runs have no score in common: nothing is compared")]
    same = [Finding("note", f"{name} has exactly the same scores as {sides[0]['name']}") for name in comparison["same"]]
    return Report([*parts, *tested, *notes, *none, *same], comparison)
