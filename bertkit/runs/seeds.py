"""Several seeds as one protocol: a run each, that goes on where it was stopped, and what they come to together.

One seed is no result: on small data the best and the worst of ten are points apart (Devlin et al., 2019, section 4.1; Dodge et
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
from bertkit.errors import ModelError, UsageError
from bertkit.files import Kind, OutputFolder, write_json
from bertkit.model.devices import start_accelerator
from bertkit.model.pretrained import open_pretrained
from bertkit.runs.directory import changed_settings, finished_run
from bertkit.runs.evaluate import CONSTANT
from bertkit.runs.finetune import finetune, input_paths
from bertkit.tasks.recipe import Recipe, published_scores, to_json

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
    """Fine-tune once for each of the seeds 1 to `seeds`, into output_dir/seed-N; returns what seeds.json says at the end.

    Seeds that are finished there are kept, so that a stopped protocol goes on and a finished one can be given more. Raises
    UsageError where what is there was made with other settings, model or data.
    """
    settled = to_json(recipe.settled(), name=name)
    plan = {"recipe": settled, "training": dataclasses.asdict(recipe.training) | {"seed": None}}
    plan = json.loads(json.dumps(plan | {"model": {"name": model, "fresh_head": fresh_head}}))
    reads = [open_pretrained(model).folder, *input_paths(recipe, name)]  # a wrong model is found before anything is moved
    accelerator = start_accelerator(recipe.training.device)
    folder_of_seeds = OutputFolder.prepare(output_dir, SEEDS, resume=True, overwrite=overwrite, reads=reads)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        folder_of_seeds.move_aside()
    accelerator.wait_for_everyone()
    finished = _finished(output_dir, plan)
    runs: dict[int, dict[str, Any]] = {}
    for seed in range(1, seeds + 1):
        folder = output_dir / f"seed-{seed}"
        if seed in finished:
            progress.note(f"seed {seed}: finished in {folder}")
            runs[seed] = finished[seed]
            continue
        progress.note(f"seed {seed} of {seeds}")
        chosen = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, seed=seed))
        runs[seed] = finetune(chosen, name=name, model=model, output_dir=folder, fresh_head=fresh_head)
        _check_alike(runs, output_dir)
        if accelerator.is_main_process and len(runs) == 1:
            write_json(output_dir / SEEDS_FILE, {"plan": plan})
    found = {"plan": plan, **describe_seeds(runs)}
    if accelerator.is_main_process:
        write_json(output_dir / SEEDS_FILE, found)
        show_seeds(found, output_dir, published_scores(recipe.settled(), model))
    accelerator.wait_for_everyone()
    return found


def _is_finished(folder: Path) -> bool | None:
    """Never: it takes more seeds."""
    return None if SEEDS.foreign(path.name for path in folder.iterdir()) else False


SEEDS = Kind("run of several seeds", _is_finished, re.compile(r"seeds\.json|seed-\d+"))


def read_seeds(folder: Path) -> list[Path]:
    """The runs of a folder of seeds; none where it is no such folder, or not finished. Raises ModelError for a damaged one."""
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
        raise ModelError(f"seeds.json is damaged: {error}", where=str(path), hint="remove it: the runs are beside it") from None


def _finished(folder: Path, plan: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The finished runs of a folder by their seed. Raises UsageError where they have other settings."""
    hint = "repeat their command, or give another --output-dir, or --overwrite"
    if changed := changed_settings(_read(folder).get("plan", plan), plan):
        raise UsageError(f"the folder holds seeds of other settings: {changed}", where=str(folder), hint=hint)
    found: dict[int, dict[str, Any]] = {}
    training = {name: value for name, value in plan["training"].items() if name != "seed"}
    model = {name: value for name, value in plan["model"].items() if value}  # a head may be fresh without being asked for
    wanted = {"training": training, "model": model}  # the recipe was settled by the data
    for each in sorted(folder.glob("seed-*")):
        if (run := finished_run(each, wanted, hint)) is not None:
            found[run["training"]["seed"]] = run
    return found


def _check_alike(runs: Mapping[int, Mapping[str, Any]], folder: Path) -> None:
    first = next(iter(runs))
    for seed, run in runs.items():
        for part in ("model", "data"):
            if changed_settings({part: runs[first][part]}, {part: run[part]}):
                what = f"seed {first} and seed {seed} saw different {part}: what lies at its path has changed"
                raise UsageError(what, where=str(folder), hint="give another --output-dir, or --overwrite")


def describe_seeds(runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The best evaluation's scores of each seed, what they come to, and the seeds that say the same of every row."""
    scores = {seed: run["best"]["scores"] for seed, run in runs.items()}
    names = dict.fromkeys(name for found in scores.values() for name in found if not name.endswith(CONSTANT))
    return {
        "seeds": list(runs),
        "scores": {name: summarize([found.get(name) for found in scores.values()]) for name in names},
        "constant": [seed for seed, found in scores.items() if any(name.endswith(CONSTANT) for name in found)],
    }


def summarize(values: Sequence[float | None]) -> dict[str, Any]:
    """Median, mean, standard deviation (n - 1) and the 95% interval of the mean, by Student's t; "each" has them all."""
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "mean": None, "std": None, "interval": None, "each": list(values)}
    mean, std, interval = statistics.fmean(known), None, None
    if len(known) > 1:
        std = statistics.stdev(known)
        half = float(stats.t.ppf(0.975, len(known) - 1)) * std / len(known) ** 0.5
        interval = [mean - half, mean + half]
    return {"median": statistics.median(known), "mean": mean, "std": std, "interval": interval, "each": list(values)}


def show_seeds(found: Mapping[str, Any], folder: Path, published: Mapping[str, float]) -> None:
    """The table at the end, and a warning of seeds that came to nothing."""
    columns = ["score", "median", "mean", "std", "95% interval", "each seed", *(["published"] if published else [])]
    rows = [
        [
            name,
            its["median"],
            its["mean"],
            its["std"],
            progress.between(its["interval"]),
            " ".join("-" if value is None else f"{value:.4f}" for value in its["each"]),
            *([published.get(name)] if published else []),
        ]
        for name, its in found["scores"].items()
    ]
    progress.table(f"{folder}: {len(found['seeds'])} seeds", columns, rows)
    if constant := found["constant"]:
        which = ", ".join(map(str, constant))
        progress.warn(f"{len(constant)} of {len(found['seeds'])} runs say the same of every row: seed {which}")
