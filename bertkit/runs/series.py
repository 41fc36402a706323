"""Several runs of a recipe that differ in one option, such as its seed or its fold; and a summary of their scores.

One seed is not enough: on small data the best and worst of ten differ by points (Devlin et al., 2019, section 4.1; Dodge et
al., 2020; Mosbach et al., 2021). Folds evaluate on every row once (Kohavi, 1995).
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.errors import ModelError, UsageError
from bertkit.files import MOVED_ASIDE, read_json
from bertkit.files.output_folder import Kind
from bertkit.metrics.classification import range_of
from bertkit.tasks.recipe import Recipe

Changes = dict[str, dict[str, Any]]  # fields of the recipe and of its training settings


@dataclass(frozen=True)
class Series:
    """noun: the word for a run; run folders are noun-N, with the summary nouns.json beside them. changes: (recipe, number of
    the run, count of runs) -> what differs in this run. own_rows: whether each run has its own training rows.
    """

    noun: str
    changes: Callable[[Recipe, int, int], Changes]
    own_rows: bool

    @property
    def nouns(self) -> str:
        return f"{self.noun}s"

    @property
    def kind(self) -> Kind:
        """The kind of its output folder. The same command rewrites the summary, and more seeds can be added."""
        parts = re.compile(rf"{self.nouns}\.json|{self.noun}-\d+(\.old-\d+)?")
        return Kind(f"run of several {self.nouns}", None, parts)

    def run(self, recipe: Recipe, number: int, count: int) -> Recipe:
        """The recipe of one of its runs."""
        changes = self.changes(recipe, number, count)
        training = dataclasses.replace(recipe.training, **changes.get("training", {}))
        return dataclasses.replace(recipe, **changes.get("recipe", {}), training=training)

    def summary(self, folder: Path) -> Path:
        return folder / f"{self.nouns}.json"

    def read(self, folder: Path) -> dict[str, Any]:
        """The summary; empty without one. Raises ModelError for a damaged one."""
        path, hint = self.summary(folder), "remove it: the runs beside it are kept"
        values = read_json(path, hint)
        if not isinstance(values.get(self.nouns, []), list):
            raise ModelError(f"{path.name} is damaged: it does not list {self.nouns}", where=str(path), hint=hint)
        return values

    def begun_in(self, folder: Path) -> list[Path]:
        """Its runs in a folder, finished or not, without those that were moved aside."""
        return sorted(path for path in folder.glob(f"{self.noun}-*") if not MOVED_ASIDE.search(path.name))

    def runs_in(self, folder: Path) -> list[Path]:
        """The runs that the summary in a folder lists; none for other or unfinished folders."""
        return [folder / f"{self.noun}-{number}" for number in self.read(folder).get(self.nouns, [])]


def _fold(recipe: Recipe, number: int, count: int) -> Changes:
    return {"recipe": {"validation": f"{number}/{count}", "eval_splits": ("validation",)}}


SEEDS = Series("seed", lambda recipe, number, count: {"training": {"seed": number}}, own_rows=False)
FOLDS = Series("fold", _fold, own_rows=True)


def runs_to_use(name: str, *, ensemble: bool | None = None) -> list[str]:
    """The runs that a folder stands for: the folder itself or, for a series, the median run by the first score, with a note;
    with ensemble, all runs of the series. ensemble: None for a command that has no such option. Raises UsageError for an
    ensemble if the folder is not a series.
    """
    folder = Path(name)
    series = next((series for series in (SEEDS, FOLDS) if series.runs_in(folder)), None)
    if series is None:
        if ensemble:
            what = "--ensemble averages the runs in a folder of --seeds or --folds, but this is not one"
            raise UsageError(what, where=name, hint="leave out --ensemble; if finetune was stopped, repeat it to finish")
        return [name]
    runs, scores = series.runs_in(folder), series.read(folder).get("scores") or {}
    if ensemble:
        return [*map(str, runs)]
    first = next(iter(scores), None)
    each = scores[first]["each"] if first else [None] * len(runs)
    ranked = sorted((value, place) for place, value in enumerate(each) if value is not None) or [(0.0, 0)]
    median = runs[ranked[(len(ranked) - 1) // 2][1]]
    by = f", the {'' if len(ranked) % 2 else 'lower '}median by {first}" if first else ""
    where = ", on rows that none was trained on" if series is FOLDS else ""
    more = "" if ensemble is None else f"; --ensemble averages all{where}"
    progress.note(f"{name}: using {median.name} of {len(runs)} {series.nouns}{by}{more}")
    return [str(median)]


def summarize(values: Sequence[float | None], score: str = "") -> dict[str, Any]:
    """Median, mean, standard deviation (n - 1), the 95% interval of the mean by Student's t, and the values themselves.

    score: the score's name; the interval is clipped to its range, if known. The interval is None if all values are equal.
    """
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "mean": None, "std": None, "interval": None, "each": list(values)}
    mean, std, interval = statistics.fmean(known), None, None
    if len(known) > 1:
        from scipy import stats  # slow to import, and predict imports this module

        std = statistics.stdev(known)
        half = float(stats.t.ppf(0.975, len(known) - 1)) * std / len(known) ** 0.5
        lowest, highest = range_of(score)
        if not all(lowest <= value <= highest for value in known):  # a user's metric of the same name
            lowest, highest = -math.inf, math.inf
        interval = [max(lowest, mean - half), min(highest, mean + half)] if half else None
    return {"median": statistics.median(known), "mean": mean, "std": std, "interval": interval, "each": list(values)}
