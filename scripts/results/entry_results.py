"""Runs that differ only in their seed, and tables of their scores.

Each seed's result is kept beside its run folder: if stopped, finished seeds are skipped and an unfinished run resumes.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.files import read_json, write_json
from bertkit.runs import series
from bertkit.runs.scoring import CONSTANT
from scripts import markdown
from scripts.provenance import ROOT, provenance
from scripts.results.command_lines import execute
from scripts.results.entries import Entry

RUNS = Path("runs/results")  # of the repository


def commands(entry: Entry) -> list[str]:
    """The entry's command lines, with $SEED and $BERTKIT_TEST_DATA for the shell."""
    run = f"{RUNS}/{entry.name}/seed-$SEED"
    finetune = f"bertkit finetune {entry.finetune} --model {entry.model} --seed $SEED --output-dir {run}"
    return [finetune, *([f"bertkit eval {run} {entry.evaluate} --json"] if entry.evaluate else [])]


def run_seed(entry: Entry, seed: int, commit: str, *, force: bool, max_steps: str | None = None) -> dict[str, Any]:
    """What one seed gives. Kept beside its run folder, which goes away then, and taken from there the next time."""
    folder = ROOT / RUNS / entry.name
    folder.mkdir(parents=True, exist_ok=True)
    run, kept = folder / f"seed-{seed}", folder / f"seed-{seed}.json"
    made_by = {"command": commands(entry), "commit": commit, "max_steps": max_steps}
    before = read_json(kept)
    if force or before.get("made_by") != made_by:
        shutil.rmtree(run, ignore_errors=True)
        before = {"made_by": made_by}
        write_json(kept, before)
    if "scores" in before:
        return before
    finetune, *evaluation = commands(entry)
    if read_json(run / "run.json").get("status") != "finished":
        execute(finetune, seed, *(("--max-steps", max_steps) if max_steps else ()))
    finished = read_json(run / "run.json")
    scores = json.loads(execute(evaluation[0], seed)) if evaluation else finished["best"]["scores"]
    values = {
        "made_by": made_by,
        "scores": _main_scores(scores),
        "constant": any(name.endswith(CONSTANT) for name in finished["best"]["scores"]),
        "last": _main_scores(finished["last"]["scores"]),
        "seconds": finished["seconds"],
        "steps": {"best": finished["best"]["step"], "last": finished["last"]["step"]},
        "model": finished["model"],
        "training": {name: value for name, value in finished["training"].items() if name != "seed"},
        "rows": {split: data["rows"] for split, data in finished["data"].items()},
    }
    write_json(kept, values)
    shutil.rmtree(run)
    return values


def _main_scores(scores: Mapping[str, float | None]) -> dict[str, float | None]:
    """All but losses, the mark of constant predictions, and the F1 of single types, of which ATIS has eighty."""
    left_out = ("loss", CONSTANT)
    return {name: value for name, value in scores.items() if not name.endswith(left_out) and "/f1_" not in name}


def summarize(scores: Sequence[Mapping[str, float | None]]) -> dict[str, dict[str, float | None]]:
    """Mean, median and sample standard deviation of each score over the seeds; None where it is not defined."""
    found: dict[str, dict[str, float | None]] = {"mean": {}, "median": {}, "std": {}}
    for name in scores[0]:
        values = [value for one in scores if (value := one[name]) is not None]
        whole = len(values) == len(scores)
        found["mean"][name] = statistics.fmean(values) if whole else None
        found["median"][name] = statistics.median(values) if whole else None
        found["std"][name] = statistics.stdev(values) if whole and len(values) > 1 else None
    return found


def baseline_scores(entry: Entry) -> dict[str, dict[str, float | None]]:
    """What an entry's recipe must beat, without a model: {baseline: {"split/metric": score}}."""
    from bertkit.runs.finetuning.baselines import baselines_of_data
    from bertkit.tasks.catalog import load_recipe

    recipe = load_recipe(entry.finetune.split()[0]).resolved()
    found: dict[str, dict[str, float | None]] = {}
    for split in entry.baselines:
        to_beat = baselines_of_data(recipe, split)
        for who, scores in to_beat.scores().items() if to_beat is not None else ():
            found.setdefault(who, {}).update({f"{split}/{metric}": score for metric, score in scores.items()})
    return found


def measure(entry: Entry, *, force: bool, max_steps: str | None = None) -> dict[str, Any]:
    """All seeds of an entry, as results/NAME.json keeps them."""
    origin = provenance()
    runs = {seed: run_seed(entry, seed, origin["commit"], force=force, max_steps=max_steps) for seed in entry.seeds}
    first = runs[entry.seeds[0]]
    values = {
        "name": entry.name,
        "command": commands(entry),
        **origin,
        "seeds": list(entry.seeds),
        **{name: first[name] for name in ("model", "training", "rows")},
        **{name: {str(seed): run[name] for seed, run in runs.items()} for name in ("scores", "last", "steps", "seconds")},
        **summarize([run["scores"] for run in runs.values()]),
    }
    if entry.baselines:
        values["baselines"] = baseline_scores(entry)
    if entry.many:
        values["constant"] = [seed for seed, run in runs.items() if run["constant"]]
    if entry.folds:
        scores = {name: [run["scores"][name] for run in runs.values()] for name in values["mean"]}
        values["interval"] = {name: series.summarize(each, name)["interval"] for name, each in scores.items()}
    if entry.note:
        values["note"] = entry.note
    return values


# --- for docs/results.md ---------------------------------------------------------------------------------------------------


def render(*results: Mapping[str, Any]) -> str:
    """The scores of entries on each split: mean, standard deviation, and each seed."""
    rows: list[list[str]] = []
    notes: list[list[str]] = []
    for values in results:
        name = values["name"]
        for key, mean in values["mean"].items():
            split, _, metric = key.partition("/")
            if metric.endswith("_thresh"):  # of a score, and no share
                continue
            each = " ".join(_percent(values["scores"][str(seed)][key]) for seed in values["seeds"])
            last = [scores.get(key) for scores in values["last"].values()]
            ended = "-" if None in last else _percent(statistics.fmean(last))
            rows.append([name, split, metric, f"**{_percent(mean)}**", _percent(values["std"][key]), ended, each])
        for who, scores in values.get("baselines", {}).items():
            for key, value in scores.items():
                split, _, metric = key.partition("/")
                rows.append([f"{name}, {who}", split, metric, _percent(value), "-", "-", "-"])
        for key, interval in values.get("interval", {}).items():
            ends = " to ".join(map(_percent, interval)) if interval else "unknown, for all scores are equal"
            notes.append([f"{name}: {key} over the folds, 95% interval {ends} (Student's t)."])
        if "note" in values:
            notes.append([f"{name}: {values['note']}"])
    header = ["task", "split", "metric", "mean, in percent", "std", "last step", "each seed"]
    return markdown.block(results, markdown.table(header, rows, numbers_from=3), *notes)


def render_many(*results: Mapping[str, Any]) -> str:
    """Runs of many seeds: median, spread, and how many predict the same for every row."""
    rows = []
    for values in results:
        for key, median in values["median"].items():
            each = [scores[key] for scores in values["scores"].values()]
            ends = f"{_percent(min(each))} to {_percent(max(each))}"
            constant = f"{len(values['constant'])} of {len(each)}"
            metric = key.partition("/")[2]
            last = _percent(statistics.median(scores[key] for scores in values["last"].values()))
            rows.append([values["name"], metric, f"**{_percent(median)}**", _percent(values["std"][key]), ends, last, constant])
    header = ["runs", "metric", "median, in percent", "std", "lowest to highest", "median at the last step"]
    header.append("constant predictions")
    return markdown.block(results, markdown.table(header, rows, numbers_from=2))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
