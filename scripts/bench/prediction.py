"""Speed of prediction, compared with transformers, ONNX Runtime and OpenVINO, on the same fine-tuned weights and dev rows.

Writes results/bench_prediction.json, or bench_prediction_fp32.json where --precision auto is fp32. Every side runs in a fresh
process; sides take turns, and the results are medians over the rounds, with the score of the predictions next to the speed.
Fine-tuned runs and the peers' graphs are made once and kept in --work. Run it with `make bench-predict`, on an otherwise idle
machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import markdown
from scripts.bench.prediction_inputs import read_rows
from scripts.bench.prediction_models import DEV, MODEL, RUN, SEED, TASKS, TRAIN, WORK
from scripts.bench.prediction_sides import SIDES, available
from scripts.provenance import PACKAGES, PEERS, named_here, provenance
from scripts.turns import add_data, bertkit_command, keep, run_script, take_turns, time_commands, typed

NAME = "bench_prediction"
PIPELINE = Path(__file__).with_name("pipeline_predict.py")
MEASURES = {"texts_per_s": 1, "p50_ms": 2, "p99_ms": 2, "score": 4}
LIMIT = {"products_per_s": 1}  # of bertkit's sides alone: texts/s if nothing but their matrix products took time
# bertkit's sides whose score is lower than that of transformers in float32 by more do not count.
REFERENCE, MOST_LOST = "torch", 0.01


@dataclass(frozen=True)
class Comparison:
    """bertkit's best side of these kinds beside the peers' best of them, or beside `peer`.

    needed: the least ratio of rates, or the most of times.
    """

    label: str
    measure: str
    needed: float
    kinds: tuple[str, ...] = ("float", "int8")
    peer: str | None = None

    @property
    def higher_is_better(self) -> bool:
        return self.measure.endswith("_per_s")


COMPARED = (
    Comparison("texts/s, the fastest side of each", "texts_per_s", 1.2),
    Comparison("texts/s, the fastest in floating point", "texts_per_s", 1.2, kinds=("float",)),
    Comparison("p50 of one text, to ONNX Runtime in int8", "p50_ms", 1.5, peer="onnx-int8"),
)


TEXTS, LINE = 10_000, "A film that is better than its title."


@dataclass(frozen=True)
class Command:
    """A whole `bertkit predict` beside pipeline_predict.py. needed: how many times as fast it has to be at least; or with
    at_most the most of the other's time.

    of_file: it reads TEXTS texts; else LINE from the shell.
    """

    label: str
    of_file: bool
    needed: float
    at_most: bool


COMMANDS = {
    "file": Command(f"{TEXTS:,} texts of SST-2, the whole command, times as fast", True, 2.5, False),
    "line": Command("one line from the shell to its answer, share of the time", False, 0.5, True),
}


def compare(sides: Mapping[str, Mapping[str, list[float]]]) -> list[dict[str, Any]]:
    """A row for each of COMPARED whose sides were run."""
    medians = {side: {measure: statistics.median(each) for measure, each in found.items()} for side, found in sides.items()}
    rows = []
    for comparison in COMPARED:
        of_kind = [side for side in medians if SIDES[side].kind in comparison.kinds]
        worst = medians[REFERENCE]["score"] - MOST_LOST if REFERENCE in medians else 0.0
        ours = [side for side in of_kind if SIDES[side].ours and medians[side]["score"] >= worst]
        theirs = [side for side in of_kind if not SIDES[side].ours and comparison.peer in (None, side)]
        if not ours or not theirs:
            continue
        best = max if comparison.higher_is_better else min
        one, other = (best(each, key=lambda side: medians[side][comparison.measure]) for each in (ours, theirs))
        ratio = medians[one][comparison.measure] / medians[other][comparison.measure]
        row = {"what": comparison.label, "ours": one, "theirs": other, "ratio": round(ratio, 3), "needed": comparison.needed}
        rows.append({**row, "at_most": not comparison.higher_is_better})
    return rows


def measure_commands(folder: Path, times: int, texts: int) -> dict[str, Any]:
    """Seconds of whole commands, bertkit's and those of a script with transformers' pipeline, in turn."""
    run, file = str(folder / RUN), folder / "texts.jsonl"
    lines = [json.dumps({"sentence": row["text"]}) + "\n" for row in read_rows(folder / TRAIN)[:texts]]
    file.write_text("".join(lines), encoding="utf-8")
    sides = {
        "bertkit": [*bertkit_command(), "predict", run, "--format", "jsonl"],
        "pipeline": [sys.executable, str(PIPELINE), run],
    }
    from_shell = {who: ["sh", "-c", f"echo {shlex.quote(LINE)} | {shlex.join(words)}"] for who, words in sides.items()}
    of_file = {who: [*words, str(file)] for who, words in sides.items()}
    found = {}
    for name, command in COMMANDS.items():
        seconds = time_commands(of_file if command.of_file else from_shell, times)
        medians = {who: statistics.median(each) for who, each in seconds.items()}
        share = medians["bertkit"] / medians["pipeline"]
        ratio = round(share if command.at_most else 1 / share, 3)
        found[name] = {"seconds": seconds, "median": medians, "ratio": ratio, "needed": command.needed}
    return found


# --- for docs/speed.md -----------------------------------------------------------------------------------------------------


HEADER = ["task", "setting", "texts/s, batch 32", "one text: p50, ms", "p99, ms", "dev score, percent"]
RATIOS = ["what", "ratio"]


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    """A row each task and side."""
    found = []
    for task, of_task in values["tasks"].items():
        for side, measured in of_task["sides"].items():
            rate, p50, p99, score = (statistics.median(measured[measure]) for measure in MEASURES)
            named = f"{of_task['score']} {100 * score:.1f}"
            found.append([task, SIDES[side].label, f"{rate:.1f}", f"{p50:.1f}", f"{p99:.1f}", named])
    return found


def ratio_rows(values: Mapping[str, Any]) -> list[list[str]]:
    """A row each comparison of each task, and each whole command."""
    found = []
    for task, of_task in values["tasks"].items():
        for row in of_task["ratios"]:
            what = f"{task}: {row['what']}: {SIDES[row['ours']].label} to {SIDES[row['theirs']].label}"
            found.append([what, f"**{row['ratio']:.2f}**"])
    for name, row in values["commands"].items():
        ours, theirs = row["median"]["bertkit"], row["median"]["pipeline"]
        what = f"{COMMANDS[name].label}: bertkit {ours:.1f} s, transformers pipeline {theirs:.1f} s"
        found.append([what, f"**{row['ratio']:.2f}**"])
    return found


def note(values: Mapping[str, Any]) -> str:
    """What the sides were given."""
    counts = ", ".join(f"{task} {of_task['rows']}" for task, of_task in values["tasks"].items())
    packages = ", ".join(f"{name} {values['versions'][name]}" for name in PEERS if name in values["versions"])
    sides = [side for of_task in values["tasks"].values() for side in of_task["sides"].values()]
    rounds = sorted({len(side[measure]) for side in sides for measure in MEASURES})
    made = "One round" if rounds == [1] else f"Medians of {' or '.join(map(str, rounds))} rounds"
    return f"Validation rows: {counts}. {made}. {packages}.{limits(values)}"


def limits(values: Mapping[str, Any]) -> str:
    """How fast bertkit would be if nothing but its matrix products took time; empty for older figures, which lack that."""
    of_tasks = []
    for task, of_task in values["tasks"].items():
        rates = {side: each["products_per_s"] for side, each in of_task["sides"].items() if "products_per_s" in each}
        named = [f"{side.removeprefix('bertkit-')} {statistics.median(each):.0f}" for side, each in rates.items()]
        of_tasks += [f"{task} {', '.join(named)}"] if named else []
    return f" bertkit's matrix products alone would make, in texts/s: {'; '.join(of_tasks)}." if of_tasks else ""


# --- the command -----------------------------------------------------------------------------------------------------------


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/speed.md."""
    sides = markdown.table(HEADER, rows(values), numbers_from=2)
    ratios = markdown.table(RATIOS, ratio_rows(values), numbers_from=1)
    return markdown.block([values], sides, ratios, [note(values)])


def measure(options: argparse.Namespace, tasks: Sequence[str], sides: Sequence[str]) -> dict[str, Any]:
    from bertkit import progress
    from bertkit.model.directory import MINILM_SHA256, read_config, resolve
    from bertkit.model.precision import measure_rates

    flags = {"tasks": ",".join(tasks), "sides": ",".join(sides), "rounds": options.rounds}
    config = read_config(resolve(MODEL))
    rates = measure_rates(config.hidden_size, config.intermediate_size, training=False)[0]
    values: dict[str, Any] = {
        "name": named_here(NAME, rates),
        "command": [" ".join(["python -m scripts.bench.prediction", *typed(flags)])],
        **provenance((*PACKAGES, *PEERS)),
        "seeds": [SEED],
        "model": {"name": MODEL, "sha256": MINILM_SHA256},
        "rates": rates,
        "tasks": {},
        "commands": {},
    }
    graphs = list(dict.fromkeys(graph for side in sides for graph in SIDES[side].graphs))
    for task in tasks:
        making = typed({"work": options.work, "data": options.data, "graphs": ",".join(graphs)})
        made = run_script("scripts.bench.prediction_models", [task, *making])["made"]
        progress.note(f"{task}: made {', '.join(made) or 'nothing anew'}")
        folder = options.work / task

        def run(side: str, number: int, task: str = task, folder: Path = folder) -> dict[str, Any]:
            words = typed({"family": TASKS[task].family, "folder": folder, "rows": options.rows})
            return run_script("scripts.bench.timed_prediction", [side, *words])

        def show_round(number: int, side: str, found: Mapping[str, Any]) -> None:
            figures = f"{found['texts_per_s']:7.1f} texts/s  {found['p50_ms']:6.1f} ms  score {found['score']:.4f}"
            progress.note(f"round {number}/{options.rounds}  {figures}  {SIDES[side].label}")

        found = take_turns(run, sides, options.rounds, MEASURES | LIMIT, show_round)
        count = min(len(read_rows(folder / DEV)), options.rows or sys.maxsize)
        values["tasks"][task] = {"rows": count, "score": TASKS[task].score, "sides": found, "ratios": compare(found)}
    if "sst2" in tasks:
        values["commands"] = measure_commands(options.work / "sst2", options.rounds, options.texts)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folders = ", ".join(task.folder for task in TASKS.values())
    add_data(parser, folders)
    parser.add_argument("--work", type=Path, default=WORK, help="folder of what is made once [%(default)s]")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated; results are written of all [%(default)s]")
    known = available()
    parser.add_argument("--sides", default=",".join(known), help="comma-separated; results are written of all [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side, and of each whole command [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="1 round of 64 rows: does it work at all? Nothing is written")
    options = parser.parse_args()
    options.rows, options.texts = (64, 200) if options.quick else (None, TEXTS)
    options.rounds = 1 if options.quick else options.rounds
    tasks, sides = options.tasks.split(","), options.sides.split(",")
    if unknown := [name for name in (*tasks, *sides) if name not in (*TASKS, *known)]:
        parser.error(f"unknown: {', '.join(unknown)}; tasks: {', '.join(TASKS)}; sides: {', '.join(known)}")

    needed = dict.fromkeys(package for side in sides for package in SIDES[side].packages)
    if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
        raise SystemExit(f"error: missing packages: {', '.join(missing)}\nhint: make bench-predict installs them")

    from bertkit import progress

    values = measure(options, tasks, sides)
    progress.table("medians", HEADER, rows(values))
    progress.table("ratios of medians", RATIOS, ratio_rows(values))
    is_whole = not options.quick and tasks == [*TASKS] and sides == known
    keep(values, unless="" if is_whole else "a whole run of all tasks and sides")


if __name__ == "__main__":
    main()
