"""Prediction in Ray Data and Spark, compared with one process with as many threads, on this machine.

Writes results/bench_engines.json. The sides take turns reading the same Parquet files, each in a fresh process. Run it with
`make bench-engines`, on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripts import markdown
from scripts.bench.prediction_inputs import read_rows
from scripts.bench.prediction_models import DEV, MODEL, RUN, SEED, WORK
from scripts.bench.prediction_sides import threads
from scripts.bench.timed_engine import ONE, RAY, SIDES, SPARK
from scripts.provenance import PACKAGES, provenance
from scripts.turns import add_data, keep, run_script, take_turns, typed

NAME, TASK = "bench_engines", "sst2"
ROWS, ROUNDS = 200_000, 3
FILES = 16
WARM_UP = 4096  # rows at most
LABELS = {ONE: "one process", RAY: "Ray Data", SPARK: "Spark"}


def write_files(rows: list[dict[str, Any]], column: str, count: int, folder: Path) -> Path:
    """So many rows as Parquet files, unless they are there: these texts again and again."""
    import pyarrow as pa
    import pyarrow.parquet

    texts = [row["text"] for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(FILES):
        path, partial = folder / f"{part}.parquet", folder / f"_{part}.partial"
        ids = [*range(part, count, FILES)]
        if not path.exists():
            pyarrow.parquet.write_table(pa.table({"id": ids, column: [texts[at % len(texts)] for at in ids]}), partial)
            os.replace(partial, path)
    return folder


def overheads(sides: Mapping[str, Mapping[str, list[float]]]) -> dict[str, float]:
    """How much more time an engine takes than one process, as a share of that: medians."""
    rates = {side: statistics.median(found["per_s"]) for side, found in sides.items()}
    return {side: round(rates[ONE] / rates[side] - 1, 3) for side in rates if side != ONE}


# --- for docs/engines.md ---------------------------------------------------------------------------------------------------


HEADER = ["setting, medians", "rows/s", "overhead, in percent"]


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    found = []
    for side, measured in values["sides"].items():
        overhead = values["overheads"].get(side)
        more = "-" if overhead is None else f"**{100 * overhead:.1f}**"
        found.append([LABELS[side], f"{statistics.median(measured['per_s']):.1f}", more])
    return found


def note(values: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {values['versions'][name]}" for name in ("ray", "pyspark"))
    each = f"{values['threads']} threads in one process, {values['threads']} workers of one thread in an engine"
    return f"SST-2's sentences, {values['rows']:,} rows, {values['precision']}; {each}; {packages}."


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/engines.md."""
    return markdown.block([values], markdown.table(HEADER, rows(values), numbers_from=1), [note(values)])


# --- the command -----------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from bertkit import load, progress
    from bertkit.model.directory import MINILM_SHA256

    run_script("scripts.bench.prediction_models", [TASK, *typed({"work": options.work, "data": options.data, "graphs": ""})])
    folder = options.work / TASK
    texts, column = read_rows(folder / DEV), load(folder / RUN, "cpu").task.recipe.text
    counts = {"warm-up": min(WARM_UP, max(1, options.rows // 10)), "files": options.rows}
    files = {name: write_files(texts, column, count, folder / f"rows-{count}") for name, count in counts.items()}

    def run(side: str, number: int) -> dict[str, Any]:
        return run_script("scripts.bench.timed_engine", [side, *typed({"run": folder / RUN, "threads": threads(), **files})])

    def show_round(number: int, side: str, found: Mapping[str, Any]) -> None:
        progress.note(f"round {number}/{options.rounds}  {found['per_s']:7.1f} rows/s  {LABELS[side]}")

    found = take_turns(run, list(SIDES), options.rounds, {"per_s": 1, "precision": None}, show_round)
    (precision,) = {each for side in found.values() for each in side.pop("precision")}
    return {
        "name": NAME,
        "command": [" ".join(["python -m scripts.bench.engines", *typed({"rows": options.rows, "rounds": options.rounds})])],
        **provenance((*PACKAGES, "ray", "pyspark")),
        "seeds": [SEED],
        "model": {"name": MODEL, "sha256": MINILM_SHA256},
        "rows": options.rows,
        "precision": precision,
        "threads": threads(),
        "sides": found,
        "overheads": overheads(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, "GLUE/SST-2")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of what is made once [%(default)s]")
    parser.add_argument("--rows", type=int, default=ROWS, help="to predict; of fewer nothing is written [%(default)s]")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="runs of each side; of fewer nothing is written [%(default)s]"
    )
    options = parser.parse_args()
    if missing := [name for name in ("ray", "pyspark") if find_spec(name) is None]:
        raise SystemExit(f"error: {' and '.join(missing)} missing\nhint: make bench-engines installs what it needs")

    from bertkit import progress

    values = measure(options)
    progress.table("medians", HEADER, rows(values))
    progress.note(note(values))
    is_whole = options.rows >= ROWS and options.rounds >= ROUNDS
    keep(values, unless="" if is_whole else f"{ROWS:,} rows and {ROUNDS} rounds")


if __name__ == "__main__":
    main()
