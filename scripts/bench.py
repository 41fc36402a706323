"""Speed and memory of fine-tuning beside the Trainer of transformers, and start-up time; writes results/bench.json.

Every side is a fresh process, one at a time and in turn, on the same rows, weights, batch size, steps and seeds. What counts is
the ratio of the medians over the rounds. Run it by `make bench`; a machine that does other work gives other numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from provenance import ROOT, provenance, write_result
from timed_training import TRAINERS

TIMED_TRAINING = ROOT / "scripts" / "timed_training.py"
GLUE_FOLDERS = {"mrpc": "MRPC", "sst2": "SST-2"}
MODEL, BATCH_SIZE, MAX_LENGTH = "minilm", 32, 128
MEASURES = ("examples_per_s", "real_tokens_per_s", "peak_rss_mib")

NAMES = {
    "bertkit": "bertkit",
    "bertkit-fp32": "bertkit, fp32",
    "default": f"(a) Trainer as run_glue sets it: {TRAINERS['default']}",
    "dynamic": f"(b) Trainer: {TRAINERS['dynamic']}",
    "best": f"(e) Trainer: {TRAINERS['best']}",
}
# One round: ours and theirs in turn.
ORDER = ("default", "bertkit", "best", "bertkit-fp32", "dynamic")
COMPARED = (
    ("bertkit", "default"),
    ("bertkit", "dynamic"),
    ("bertkit", "best"),
    ("bertkit-fp32", "default"),
    ("bertkit-fp32", "dynamic"),
)
# The least ratio of examples/s that we ask of ourselves, and the most of start-up time.
NEEDED = {("mrpc", "bertkit", "default"): 3.0, ("mrpc", "bertkit", "best"): 0.9, ("sst2", "bertkit", "default"): 8.0}
STARTUP_NEEDED = 0.2
STEPS_OF_ONE_SHAPE = 10  # (a) pads every batch to the same shape: more timed steps would say no more, and take minutes


def write_rows(task: str, data: str | None, path: Path) -> int:
    """The training rows of a GLUE task as JSON lines that both sides read; labels as numbers. Returns how many."""
    from bertkit.recipe import load_recipe, override
    from bertkit.tasks.labels import label_ids

    recipe = override(load_recipe(task), {"data": str(Path(data) / GLUE_FOLDERS[task])} if data else {})
    examples = recipe.load(recipe.train_split)
    recipe = recipe.with_labels(examples)
    columns: dict[str, list] = {name: examples.columns[name] for name in ("text", "text_pair") if name in examples.columns}
    columns["label"] = label_ids(examples, "label", recipe.labels).tolist()  # type: ignore[attr-defined]
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*columns.values()):
            file.write(json.dumps(dict(zip(columns, row))) + "\n")
    return len(examples)


def run_side(side: str, *, model: Path, data: Path, steps: int, warmup: int, seed: int) -> dict[str, float]:
    """One timed training in a fresh process."""
    named = {"model": model, "data": data, "steps": steps, "warmup": warmup, "seed": seed}
    named |= {"batch-size": BATCH_SIZE, "max-length": MAX_LENGTH}
    options = [part for name, value in named.items() for part in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, str(TIMED_TRAINING), side, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr[-3000:]}\nerror: the side {side} failed with exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_task(
    run: Callable[[str, int], dict[str, float]], rounds: int, said: Callable[[str], None]
) -> dict[str, dict[str, list[float]]]:
    """side -> measure -> one value a round. Sides take turns, in the opposite order every second round. run: (side, seed)."""
    found: dict[str, dict[str, list[float]]] = {side: {measure: [] for measure in MEASURES} for side in NAMES}
    for number in range(1, rounds + 1):
        for side in ORDER if number % 2 else ORDER[::-1]:
            values = run(side, number)
            for measure in MEASURES:
                found[side][measure].append(round(values[measure], 2))
            said(f"round {number}/{rounds}  {values['examples_per_s']:7.1f} examples/s  {NAMES[side]}")
    return found


def compare(task: str, sides: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Ratios of medians, ours to theirs, for every pair of COMPARED; and what was asked of it."""
    rows = []
    for ours, theirs in COMPARED:
        ratios = {m: statistics.median(sides[ours][m]) / statistics.median(sides[theirs][m]) for m in MEASURES}
        needed = NEEDED.get((task, ours, theirs))
        rows.append({"ours": ours, "theirs": theirs, **{m: round(r, 3) for m, r in ratios.items()}, "needed": needed})
    return rows


def time_startup(commands: dict[str, Sequence[str]], times: int) -> dict[str, list[float]]:
    """Seconds until a command has ended, in turn, after one run each that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(times + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            if number:
                seconds[name].append(round(time.perf_counter() - start, 4))
    return seconds


def startup_commands() -> dict[str, Sequence[str]]:
    """`bertkit --help` and `transformers --help`, from this environment."""
    scripts = Path(sys.executable).parent
    own = [str(scripts / "bertkit")] if (scripts / "bertkit").is_file() else [sys.executable, "-m", "bertkit"]
    return {"bertkit": [*own, "--help"], "transformers": [str(scripts / "transformers"), "--help"]}


def side_rows(values: Mapping[str, Any]) -> list[list[Any]]:
    """Task, side, and the median of every measure: a row each for a table."""
    return [
        [task, NAMES[side], *(statistics.median(measured[measure]) for measure in MEASURES)]
        for task, found in values["tasks"].items()
        for side, measured in found["sides"].items()
    ]


def ratio_rows(values: Mapping[str, Any]) -> list[list[Any]]:
    """Task, sides, ratio of every measure, and the least ratio of examples/s that was asked for: a row each for a table."""

    def pair(row: Mapping[str, Any]) -> str:
        return f"{NAMES[row['ours']]} to {NAMES[row['theirs']].partition(' ')[0]}"

    return [
        [task, pair(row), *(row[measure] for measure in MEASURES), row["needed"]]
        for task, found in values["tasks"].items()
        for row in found["ratios"]
    ]


def show(values: dict[str, Any]) -> None:
    from bertkit import progress

    units = ("examples/s", "real tokens/s", "peak MiB")
    rows = [[*row[:2], round(row[2], 1), round(row[3]), round(row[4])] for row in side_rows(values)]
    progress.table("medians", ["task", "side", *units], rows)
    progress.table("ratios of medians", ["task", "ratio", *units, "needed"], ratio_rows(values))
    startup = values["startup"]
    progress.note(
        f"--help: bertkit {startup['median']['bertkit']} s, transformers {startup['median']['transformers']} s, "
        f"ratio {startup['ratio']} (needed: at most {startup['needed']})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tests = os.environ.get("BERTKIT_TEST_DATA")
    glue = str(Path(tests) / "GLUE") if tests else None
    parser.add_argument("--data", default=glue, help="folder of GLUE's MRPC and SST-2 [$BERTKIT_TEST_DATA/GLUE, else the hub]")
    parser.add_argument("--tasks", default=",".join(GLUE_FOLDERS), help="comma-separated [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; round N has seed N [%(default)s]")
    # Batches grouped by length come from long to short, up to 50 a time: of 50 timed steps as many are long as short.
    parser.add_argument("--steps", type=int, default=53, help="optimizer steps of a run [%(default)s]")
    parser.add_argument("--warmup", type=int, default=3, help="of these, steps that do not count [%(default)s]")
    parser.add_argument("--startups", type=int, default=7, help="runs of each --help [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="1 round of 4 steps: does it work at all? Nothing is written")
    options = parser.parse_args()
    tasks = options.tasks.split(",")
    if unknown := sorted(set(tasks) - set(GLUE_FOLDERS)):
        parser.error(f"unknown tasks {', '.join(unknown)}; known: {', '.join(GLUE_FOLDERS)}")
    if options.quick:
        options.rounds, options.steps, options.warmup, options.startups = 1, 4, 1, 1
    if options.steps <= options.warmup or min(options.rounds, options.startups) < 1:
        parser.error("expected more steps than warm-up, and at least one round and one start-up")

    from bertkit import progress
    from bertkit.errors import UserError
    from bertkit.model_directory import MINILM_SHA256, resolve

    chosen = " ".join(f"--{name} {getattr(options, name)}" for name in ("tasks", "rounds", "steps", "warmup"))
    values: dict[str, Any] = {
        "name": "bench",
        "command": [f"python scripts/bench.py {chosen}"],
        **provenance(),
        "seeds": list(range(1, options.rounds + 1)),
        "model": {"name": MODEL, "sha256": MINILM_SHA256},
        "batch_size": BATCH_SIZE,
        "max_length": MAX_LENGTH,
        "timed_steps": options.steps - options.warmup,
        "timed_steps_of_a": min(options.steps - options.warmup, STEPS_OF_ONE_SHAPE),
        "tasks": {},
    }
    seconds = time_startup(startup_commands(), options.startups)
    median = {name: round(statistics.median(each), 3) for name, each in seconds.items()}
    ratio = round(statistics.median(seconds["bertkit"]) / statistics.median(seconds["transformers"]), 3)
    values["startup"] = {"seconds": seconds, "median": median, "ratio": ratio, "needed": STARTUP_NEEDED}
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            data = Path(folder) / f"{task}.jsonl"
            try:
                model = resolve(MODEL)
                count = write_rows(task, options.data, data)
            except UserError as error:
                raise SystemExit(f"error: {error}\nhint: {error.hint or 'name a folder with --data'}") from None
            progress.note(f"{task}: {count} rows; {options.rounds} round(s) of {len(NAMES)} sides, {options.steps} steps each")

            def run(side: str, seed: int, data: Path = data, model: Path = model) -> dict[str, float]:
                timed = min(options.steps - options.warmup, STEPS_OF_ONE_SHAPE if side == "default" else options.steps)
                return run_side(side, model=model, data=data, steps=options.warmup + timed, warmup=options.warmup, seed=seed)

            sides = measure_task(run, options.rounds, progress.note)
            values["tasks"][task] = {"rows": count, "sides": sides, "ratios": compare(task, sides)}
    show(values)
    if not options.quick:
        progress.note(f"wrote {write_result('bench', values).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
