"""How much each optimization adds to the speed of bertkit's training: all of levers.py off, then turned on one by one.

Writes results/bench_levers.json. Every stage runs in a fresh process; stages take turns, on the same batches. The results are
medians over the rounds. Run it with `make bench-levers`, on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts import markdown
from scripts.bench import training
from scripts.bench.levers import LEVERS
from scripts.provenance import provenance
from scripts.turns import add_data, keep, take_turns, typed

NAME = "bench_levers"
TASKS = ("sst2", "pretrain_128")
MEASURES = {"real_tokens_per_s": 1, "precision": None}
NONE = "none"  # the stage before the first lever
STAGES = (NONE, *LEVERS)


def off_at(stage: str) -> list[str]:
    """The levers that are still off."""
    return [*LEVERS][STAGES.index(stage) :]


def header(values: Mapping[str, Any]) -> list[str]:
    cells = ("{}, real tokens/s", "gain", "lowest to highest", "with all before")
    return ["optimization", *(cell.format(task) for task in values["tasks"] for cell in cells)]


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    """A row each stage; gain: over the stage before it and over the first one, each the median over rounds of a ratio."""
    found = []
    for at, stage in enumerate(STAGES):
        row = [LEVERS[stage].label if stage in LEVERS else "none of these"]
        for of_task in values["tasks"].values():
            first, before, now = (of_task["stages"][STAGES[each]]["real_tokens_per_s"] for each in (0, max(0, at - 1), at))
            gains, in_all = ([ours / theirs for ours, theirs in zip(now, each, strict=True)] for each in (before, first))
            cells = [
                f"**{statistics.median(gains):.2f}**",
                f"{min(gains):.2f} to {max(gains):.2f}",
                f"{statistics.median(in_all):.2f}",
            ]
            row += [f"{statistics.median(now):.0f}", *(cells if at else "---")]
        found.append(row)
    return found


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/speed.md."""
    return markdown.block([values], markdown.table(header(values), rows(values), numbers_from=1))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from bertkit import progress
    from bertkit.model.directory import MINILM_SHA256, resolve

    tasks = options.tasks.split(",")
    flags = {"tasks": options.tasks, "rounds": options.rounds, "steps": options.steps, "warmup": options.warmup}
    values: dict[str, Any] = {
        "name": NAME,
        "command": [" ".join(["python -m scripts.bench.lever_gains", *typed(flags)])],
        **provenance(),
        "seeds": list(range(1, options.rounds + 1)),
        "model": {"name": training.MODEL, "sha256": MINILM_SHA256},
        "tasks": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            data, steps = Path(folder) / f"{task}.jsonl", options.steps or training.TASKS[task].steps
            training.write_rows(task, options.data, data)

            def run(stage: str, seed: int, task: str = task, data: Path = data, steps: int = steps) -> dict[str, Any]:
                how = {"steps": steps, "warmup": options.warmup, "seed": seed, "off": ",".join(off_at(stage)) or None}
                return training.run_side("bertkit", task, model=resolve(training.MODEL), data=data, **how)

            def show_round(number: int, stage: str, found: Mapping[str, Any]) -> None:
                progress.note(f"round {number}/{options.rounds}  {found['real_tokens_per_s']:7.0f} tokens/s  {stage}")

            values["tasks"][task] = {"steps": steps, "stages": take_turns(run, STAGES, options.rounds, MEASURES, show_round)}
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, "the data sets")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated; results are written of all [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each stage; round N has seed N [%(default)s]")
    parser.add_argument("--steps", type=int, help="optimizer steps of a run, where not the task's own of training.py")
    parser.add_argument("--warmup", type=int, default=3, help="of these, steps that do not count [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="1 round of 4 steps: does it work at all? Nothing is written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.warmup = 1, 4, 1
    if unknown := sorted(set(options.tasks.split(",")) - set(training.TASKS)):
        parser.error(f"unknown tasks {', '.join(unknown)}; known: {', '.join(training.TASKS)}")

    from bertkit import progress

    values = measure(options)
    progress.table("medians", header(values), rows(values))
    is_whole = options.rounds >= 3 and not options.steps and options.tasks == ",".join(TASKS)
    keep(values, unless="" if is_whole else f"three rounds of {', '.join(TASKS)}, without --steps")


if __name__ == "__main__":
    main()
