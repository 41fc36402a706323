"""Train with several seeds, one run each, and summarize their scores.

One seed is not enough: on small data the best and worst of ten differ by points (Devlin et al., 2019, section 4.1; Dodge et
al., 2020; Mosbach et al., 2021).
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from bertkit import progress
from bertkit.config import filled
from bertkit.errors import ModelError, UsageError
from bertkit.files import MOVED_ASIDE, Kind, OutputFolder, write_json
from bertkit.model.devices import start_accelerator
from bertkit.model.pretrained import open_pretrained
from bertkit.report import Finding, Report, Table, show
from bertkit.runs.directory import NEW_FOLDER, changed_settings, finished_run
from bertkit.runs.evaluate import CONSTANT
from bertkit.runs.finetune import finetune, input_paths
from bertkit.tasks.defaults import Settings, resolve_training
from bertkit.tasks.recipe import Recipe, published_scores
from bertkit.tasks.saved import as_asked, to_json
from bertkit.tasks.splits import read_splits

SEEDS_FILE = "seeds.json"


def finetune_seeds(
    recipe: Recipe,
    *,
    seeds: int,
    name: str,
    model: str,
    output_dir: Path,
    overwrite: bool = False,
    fresh_head: bool | None = False,
) -> dict[str, Any]:
    """Fine-tune with each of the seeds 1 to `seeds`, into output_dir/seed-N; returns the final content of seeds.json.

    Finished seeds are kept: the same command resumes a stopped one, and more seeds can be added later. Raises UsageError if the
    existing runs have different settings, model or data.
    """
    resolved, pretrained = recipe.resolved(), open_pretrained(model)
    reads = [pretrained.folder, *input_paths(recipe, name)]
    accelerator = start_accelerator(recipe.training.device or "auto")
    folder_of_seeds = OutputFolder.prepare(output_dir, SEEDS, resume=True, overwrite=overwrite, reads=reads)
    earlier = {} if overwrite else _read(output_dir).get("plan", {})
    data = None
    if earlier:  # what nobody states is as in the first seeds
        settings = Settings(filled(recipe.training, earlier["training"]), earlier.get("chosen"))
    else:
        data = read_splits(resolved)
        settings = resolve_training(resolved, data.rows[recipe.train_split], pretrained)
    plan = {
        "recipe": to_json(resolved, name=name),
        "training": dataclasses.asdict(settings.training) | {"seed": None},
        "model": {"name": model, "fresh_head": fresh_head},
        "chosen": settings.chosen,
    }
    plan = json.loads(json.dumps(plan))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        folder_of_seeds.move_aside()
    accelerator.wait_for_everyone()
    finished = _finished(output_dir, plan)
    runs: dict[int, dict[str, Any]] = {}
    if data is None and len(finished) < seeds:
        data = read_splits(resolved)  # once for all seeds
    for seed in range(1, seeds + 1):
        folder = output_dir / f"seed-{seed}"
        if seed in finished:
            progress.note(f"seed {seed}: finished in {folder}")
            runs[seed] = finished[seed]
            continue
        progress.note(f"seed {seed} of {seeds}")
        seeded = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, seed=seed))
        runs[seed] = finetune(
            seeded, name=name, model=model, output_dir=folder, fresh_head=fresh_head, data=data, settings=settings
        )
        _refuse_changed_inputs(runs, output_dir)
        if accelerator.is_main_process and len(runs) == 1:
            write_json(output_dir / SEEDS_FILE, {"plan": plan})
    summary = {"plan": plan, **describe_seeds(runs)}
    if accelerator.is_main_process:
        write_json(output_dir / SEEDS_FILE, summary)
        show(report_seeds(summary, output_dir, published_scores(resolved, model)))
    accelerator.wait_for_everyone()
    return summary


def _is_finished(folder: Path) -> bool | None:
    """Never: more seeds can be added."""
    return None if SEEDS.foreign(path.name for path in folder.iterdir()) else False


SEEDS = Kind("run of several seeds", _is_finished, re.compile(r"seeds\.json|seed-\d+(\.old-\d+)?"))


def read_seeds(folder: Path) -> list[Path]:
    """The runs in a folder of seeds; none for other or unfinished folders. Raises ModelError for a damaged seeds.json."""
    return [folder / f"seed-{seed}" for seed in _read(folder).get("seeds", [])]


def _read(folder: Path) -> dict[str, Any]:
    path = folder / SEEDS_FILE
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or not isinstance(values.get("seeds", []), list):
            raise ValueError("it does not list seeds")
        return values
    except ValueError as error:
        raise ModelError(
            f"seeds.json is damaged: {error}", where=str(path), hint="remove it: the runs beside it are kept"
        ) from None


def _finished(folder: Path, plan: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The finished runs of a folder by seed. Raises UsageError if they have different settings."""
    hint = f"repeat their command, or {NEW_FOLDER}"
    earlier = _read(folder).get("plan", plan)
    if changed := changed_settings({**earlier, "recipe": as_asked(earlier["recipe"])}, plan):
        raise UsageError(f"the folder holds seeds with different settings: {changed}", where=str(folder), hint=hint)
    runs: dict[int, dict[str, Any]] = {}
    training = {name: value for name, value in plan["training"].items() if name != "seed"}
    model = {name: value for name, value in plan["model"].items() if value}  # a model without a head gets a fresh one by itself
    wanted = {"training": training, "model": model}  # not the recipe: bertkit 0.1 saved resolved values there
    for path in sorted(path for path in folder.glob("seed-*") if not MOVED_ASIDE.search(path.name)):
        if (run := finished_run(path, wanted, hint)) is not None:
            runs[run["training"]["seed"]] = run
    return runs


def _refuse_changed_inputs(runs: Mapping[int, Mapping[str, Any]], folder: Path) -> None:
    """Raise UsageError if the model or the data have changed between seeds."""
    first = next(iter(runs))
    for seed, run in runs.items():
        for part in ("model", "data"):
            if changed_settings({part: runs[first][part]}, {part: run[part]}):
                what = f"the {part} changed between seed {first} and seed {seed}"
                raise UsageError(what, where=str(folder), hint=NEW_FOLDER)


def describe_seeds(runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The best scores of each seed, summarized; and the seeds that predict the same for every row."""
    scores = {seed: run["best"]["scores"] for seed, run in runs.items()}
    names = dict.fromkeys(name for best in scores.values() for name in best if not name.endswith(CONSTANT))
    return {
        "seeds": list(runs),
        "scores": {name: summarize([best.get(name) for best in scores.values()]) for name in names},
        "constant": [seed for seed, best in scores.items() if any(name.endswith(CONSTANT) for name in best)],
    }


def summarize(values: Sequence[float | None]) -> dict[str, Any]:
    """Median, mean, standard deviation (n - 1), the 95% interval of the mean by Student's t, and the values themselves."""
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "mean": None, "std": None, "interval": None, "each": list(values)}
    mean, std, interval = statistics.fmean(known), None, None
    if len(known) > 1:
        std = statistics.stdev(known)
        half = float(stats.t.ppf(0.975, len(known) - 1)) * std / len(known) ** 0.5
        interval = [mean - half, mean + half]
    return {"median": statistics.median(known), "mean": mean, "std": std, "interval": interval, "each": list(values)}


def report_seeds(summary: Mapping[str, Any], folder: Path, published: Mapping[str, float]) -> Report:
    """A table of the scores, and a warning about seeds that failed to learn."""
    columns = ["score", "median", "mean", "std", "95% interval", "each seed", *(["published"] if published else [])]
    rows = [
        [
            name,
            score["median"],
            score["mean"],
            score["std"],
            progress.format_interval(score["interval"]),
            " ".join("-" if value is None else f"{value:.4f}" for value in score["each"]),
            *([published.get(name)] if published else []),
        ]
        for name, score in summary["scores"].items()
    ]
    parts: list[Table | Finding] = [Table(f"{folder}: {len(summary['seeds'])} seeds", columns, rows)]
    if constant := summary["constant"]:
        which = ", ".join(map(str, constant))
        what = f"{len(constant)} of {len(summary['seeds'])} runs predict the same for every row: seed {which}"
        parts.append(Finding("warning", what))
    return Report(parts, summary)
