"""The runs whose figures the README and docs show: each becomes results/NAME.json, from which their tables are written.

    python scripts/results.py                 run what has no file yet, then rewrite the tables
    python scripts/results.py cola rte        run these again
    python scripts/results.py --tables        only rewrite the tables

Repeated after a stop, it skips finished entries and seeds, and resumes an unfinished run. Run it by `make results`.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bench_engines
import bench_gpu
import bench_serve
import bench_startup
import bench_tables
import budget_results as budget
import defaults_results as defaults
import growth_results as growth
import headlines
import label_error_results as label_errors
import markdown
import own_text_results as own_text
import pretraining_results as pretraining
import scale_results as scale
import trainer_results as trainer
from entries import BENCHES, BUDGET, ENGINES, ENTRIES, GPU, LEVERS, PREDICTION, SERVING, STARTUP, TABLES, Entry, execute
from provenance import RESULTS, ROOT, provenance, write_result

PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("results", "speed", "scale", "serve", "engines")))
RUNS = Path("runs/results")  # of the repository
# Results that another script measures and writes: its words.
BY_SCRIPTS = {
    **{name: ["scripts/bench.py", "--tasks", ",".join(tasks)] for name, tasks in BENCHES.items()},
    PREDICTION: ["scripts/bench_prediction.py"],
    LEVERS: ["scripts/bench_levers.py"],
    SERVING: ["scripts/bench_serve.py"],
    ENGINES: ["scripts/bench_engines.py"],
    BUDGET: ["scripts/budget_results.py"],
    GPU: ["scripts/bench_gpu.py"],
    STARTUP: ["scripts/bench_startup.py"],
}
ELSEWHERE = (GPU, ENGINES)  # only if they are named: they need a GPU, or packages and Java
OF_ONE_FILE = {
    PREDICTION: bench_tables.render_prediction,
    LEVERS: bench_tables.render_levers,
    SERVING: bench_serve.render,
    ENGINES: bench_engines.render,
    BUDGET: budget.render,
    GPU: bench_gpu.render,
    STARTUP: bench_startup.render,
}

# --- running ---------------------------------------------------------------------------------------------------------------


def commands(entry: Entry) -> list[str]:
    """The entry's command lines, with $SEED and $BERTKIT_TEST_DATA for the shell."""
    run = f"{RUNS}/{entry.name}/seed-$SEED"
    finetune = f"bertkit finetune {entry.finetune} --model {entry.model} --seed $SEED --output-dir {run}"
    return [finetune, *(f"bertkit eval {run} {options} --json".replace("  ", " ") for options in entry.evaluate.values())]


def run_seed(entry: Entry, seed: int, commit: str, *, force: bool, max_steps: str | None = None) -> dict[str, Any]:
    """What one seed gives. Kept beside its run folder, which goes away then, and taken from there the next time."""
    folder = ROOT / RUNS / entry.name
    folder.mkdir(parents=True, exist_ok=True)
    run, kept = folder / f"seed-{seed}", folder / f"seed-{seed}.json"
    made_by = {"command": commands(entry), "commit": commit, "max_steps": max_steps}
    before = _read(kept)
    if force or before is None or before["made_by"] != made_by:
        shutil.rmtree(run, ignore_errors=True)
        before = {"made_by": made_by}
        kept.write_text(json.dumps(before), encoding="utf-8")
    if "scores" in before:
        return before
    finetune, *evaluations = commands(entry)
    if (_read(run / "run.json") or {}).get("status") != "finished":
        execute(finetune, seed, *(("--max-steps", max_steps) if max_steps else ()))
    finished = json.loads((run / "run.json").read_text(encoding="utf-8"))
    scores = {} if evaluations else _main_scores(finished["best"]["scores"])
    for name, line in zip(entry.evaluate, evaluations):
        found = _main_scores(json.loads(execute(line, seed)))
        scores |= {f"{name}/{key.partition('/')[2]}" if name else key: value for key, value in found.items()}
    values = {
        "made_by": made_by,
        "scores": scores,
        "constant": any(name.endswith(CONSTANT) for name in finished["best"]["scores"]),
        "last": _main_scores(finished["last"]["scores"]),
        "seconds": finished["seconds"],
        "steps": {"best": finished["best"]["step"], "last": finished["last"]["step"]},
        "model": finished["model"],
        "training": {name: value for name, value in finished["training"].items() if name != "seed"},
        "rows": {split: data["rows"] for split, data in finished["data"].items()},
    }
    kept.write_text(json.dumps(values), encoding="utf-8")
    shutil.rmtree(run)
    return values


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


CONSTANT = "constant_predictions"  # the mark of a run that says the same of every row


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


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the mean, by Student's t."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def baseline_scores(entry: Entry) -> dict[str, dict[str, float | None]]:
    """What an entry's recipe must beat, without a model: {baseline: {"split/metric": score}}."""
    from bertkit.runs.baselines import baselines_of_data
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
        values["interval"] = {name: interval([run["scores"][name] for run in runs.values()]) for name in values["mean"]}
    if entry.note:
        values["note"] = entry.note
    return values


# --- tables ----------------------------------------------------------------------------------------------------------------


BLOCK = re.compile(r"<!-- results:(?P<name>\w+) -->\n(?P<table>.*?)<!-- /results:(?P=name) -->", re.DOTALL)


def table_of(name: str) -> str:
    """The Markdown of a block."""
    if name == headlines.NAME:
        return "\n".join([*markdown.table(headlines.HEADER, headlines.rows(), numbers_from=len(headlines.HEADER)), ""])
    if not load_results(name):
        target = name.replace("_", "-") if name in BY_SCRIPTS else f"results ARGS={name}"
        return f"Not measured yet: `make {target}` does it.\n"
    return render(load_results(name))


def load_results(table: str) -> list[dict[str, Any]]:
    """What has been run of the entries that a table shows, in its order."""
    found = [_read(RESULTS / f"{name}.json") for name in TABLES[table]]
    return [values for values in found if values is not None]


def rewrite(page: str) -> str:
    """A page with the table in every block made anew."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- results:{name} -->\n{table_of(name)}<!-- /results:{name} -->"

    return BLOCK.sub(block, page)


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown of results that share a table: those of bench.py, or any of the others; nothing for none."""
    if not results:
        return ""
    if any(values["name"] in BENCHES for values in results):
        return bench_tables.render_training(results)
    if results[0]["name"] in OF_ONE_FILE:
        return OF_ONE_FILE[results[0]["name"]](results[0])
    if results[0]["name"] == pretraining.NAME:
        return "\n".join([*pretraining.render(results[0]), "", *markdown.commands(results), ""])
    if any(values["name"] == trainer.NAME for values in results):
        return _render_trainer(results)
    if results[0]["name"] == scale.NAME:
        table = markdown.table(scale.HEADER, scale.rows(results[0]), numbers_from=3)
        return "\n".join([*table, "", scale.note(results[0]), ""])
    if results[0]["name"] == growth.NAME:
        tables = ((growth.BY_ROWS, growth.by_rows(results[0])), (growth.BY_LENGTH, growth.by_length(results[0])))
        lines = [line for header, rows in tables for line in (*markdown.table(header, rows, numbers_from=0), "")]
        return "\n".join([*lines, f"`{growth.COMMAND}`; {scale.note(results[0])}", ""])
    if results[0]["name"] == label_errors.NAME:
        table = markdown.table(label_errors.HEADER, label_errors.rows(results[0]), numbers_from=1)
        return "\n".join([*table, "", *markdown.commands(results), ""])
    if results[0]["name"] == defaults.NAME:
        return "\n".join(
            [*markdown.table(defaults.HEADER, defaults.rows(results[0]), numbers_from=4), "", *markdown.commands(results), ""]
        )
    if results[0]["name"] == own_text.NAME:
        split = markdown.table(own_text.SPLIT, own_text.split_rows(results[0]), numbers_from=1)
        lines = [*split, "", *markdown.table(own_text.SCORED, own_text.task_rows(results[0]), numbers_from=2), ""]
        return "\n".join([*lines, *markdown.commands(results), ""])
    if "constant" in results[0]:
        return _render_many(results)
    rows, notes = [], []
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
        for key, (low, high) in values.get("interval", {}).items():
            notes += [f"{name}: {key} over the folds, 95% interval {_percent(low)} to {_percent(high)} (Student's t).", ""]
        if "note" in values:
            notes += [f"{name}: {values['note']}", ""]
    header = ["task", "split", "metric", "mean, in percent", "std", "last step", "each seed"]
    return "\n".join([*markdown.table(header, rows, numbers_from=3), "", *notes, *markdown.commands(results), ""])


def _render_many(results: Sequence[Mapping[str, Any]]) -> str:
    """Runs of many seeds: median, spread, and how many predict the same for every row."""
    rows = []
    for values in results:
        for key, median in values["median"].items():
            each = [scores[key] for scores in values["scores"].values()]
            ends = f"{_percent(min(each))} to {_percent(max(each))}"
            constant = f"{len(values['constant'])} of {len(each)}"
            metric = key.partition("/")[2]
            rows.append([values["name"], metric, f"**{_percent(median)}**", _percent(values["std"][key]), ends, constant])
    header = ["runs", "metric", "median, in percent", "std", "lowest to highest", "constant predictions"]
    return "\n".join([*markdown.table(header, rows, numbers_from=2), "", *markdown.commands(results), ""])


def _render_trainer(results: Sequence[Mapping[str, Any]]) -> str:
    """bertkit's scores at the last step beside the Trainer's."""
    values = next(values for values in results if values["name"] == trainer.NAME)
    header = ["task", "bertkit (each seed)", "Trainer, fp32 (each seed)", "difference, points", "95% interval"]
    return "\n".join([*markdown.table(header, trainer.rows(values), numbers_from=1), "", *markdown.commands(results), ""])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


# --- the command -----------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries to run, whether or not they have a file")
    parser.add_argument("--force", action="store_true", help="run all again, from the beginning")
    parser.add_argument("--list", action="store_true", help="show the entries and their commands")
    parser.add_argument("--tables", action="store_true", help="only rewrite the tables of README and docs")
    parser.add_argument("--quick", action="store_true", help="2 steps of one seed, to see that all works; nothing is kept")
    options = parser.parse_args()
    entries = {entry.name: entry for entry in ENTRIES}
    others: dict[str, Any] = {each.NAME: each for each in (defaults, scale, growth, label_errors, own_text)}
    # the pre-trained model is what some entries begin with
    known = [pretraining.NAME, *entries, trainer.NAME, *others, *BY_SCRIPTS]
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown entries {', '.join(unknown)}; known: {', '.join(known)}")
    chosen = [
        name
        for name in options.names or [name for name in known if name not in ELSEWHERE]
        if options.names or options.force or options.quick or not (RESULTS / f"{name}.json").exists()
    ]
    if options.list:
        for name in known:
            if name in BY_SCRIPTS:
                lines = [shlex.join(["python", *BY_SCRIPTS[name]])]
            elif name == trainer.NAME:
                lines = [trainer.command(task) for task in trainer.TASKS]
            elif name in others:
                lines = others[name].commands()
            else:
                lines = commands(entries[name]) if name in entries else pretraining.commands()
            state = "done" if (RESULTS / f"{name}.json").exists() else "to do"
            print(f"{name} ({state}, {len(entries[name].seeds) if name in entries else 'own'} seeds)")
            print("".join(f"    {line}\n" for line in lines), end="")
        return
    if options.quick:
        for name in chosen:
            if name in entries:
                _quick(entries[name])
        return
    for name in [] if options.tables else chosen:
        if name in BY_SCRIPTS:
            subprocess.run([sys.executable, *BY_SCRIPTS[name]], cwd=ROOT, check=True)
        elif name == trainer.NAME:
            write_result(name, trainer.measure(force=options.force))
        elif name in (scale.NAME, growth.NAME):
            write_result(name, others[name].measure())
        elif name in (defaults.NAME, own_text.NAME):
            write_result(name, others[name].measure(execute, force=options.force))
        elif name == label_errors.NAME:
            write_result(name, label_errors.measure(execute))
        elif name == pretraining.NAME:
            values = pretraining.measure(execute, force=options.force)
            write_result(name, values)
            pretraining.write_picture(values)
        else:
            write_result(name, measure(entries[name], force=options.force))
    for page in PAGES:
        page.write_text(rewrite(page.read_text(encoding="utf-8")), encoding="utf-8")


def _quick(entry: Entry) -> None:
    import dataclasses

    trial = dataclasses.replace(entry, name=f"{entry.name}-quick", seeds=entry.seeds[:1])
    print(render([measure(trial, force=True, max_steps="2")]), flush=True)
    shutil.rmtree(ROOT / RUNS / trial.name)


if __name__ == "__main__":
    main()
