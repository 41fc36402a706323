"""How the cost of fine-tuning grows with the rows of a file, and with the length of its texts.

Files repeat the sentences of SST-2 with a number after each, so that no two rows are equal. Each run is its own process:
`finetune text-classification` up to the last step, without evaluations. data_s is the time from reading the file to the first
step; us_per_token is that of the fastest step after the warm-up, because other work on a machine only slows steps down; peak_mb
is the peak memory of the process. Texts for --lengths are concatenated sentences, all long enough to be truncated;
linear_us_per_token is a step's time times the share of its operations outside attention. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

from scripts.turns import run_script, typed

ROWS = (1_000, 10_000, 100_000, 1_000_000, 5_000_000)
LENGTHS = (64, 128, 256, 512)
STEPS, WARMUP = 30, 5
SST2 = "$BERTKIT_TEST_DATA/GLUE/SST-2/train.tsv.gz"
HELD_OUT = 1000  # rows of the file to evaluate on, which is read and encoded
TOKENS = 2048  # of a step, whatever the length

Row = tuple[str, str]  # text and label


def numbered(sentences: Sequence[Row], count: int) -> Iterator[Row]:
    """So many rows, each with its number."""
    rows = islice(cycle(sentences), count)
    return ((f"{text.strip()} {number}", label) for number, (text, label) in enumerate(rows))


def of_length(sentences: Sequence[Row], count: int, words: int) -> Iterator[Row]:
    """Rows of at least so many words, and so many tokens or more."""
    endless = cycle(sentences)
    for number in range(count):
        text, label = sentences[number % len(sentences)]
        while text.count(" ") < words:
            text += f" {next(endless)[0]}"
        yield f"{number} {text}", label


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        writer.writerows(rows)


def timed_run(options: argparse.Namespace) -> dict[str, Any]:
    """One run in this process."""
    from bertkit.model.flops import flop_counter
    from bertkit.runs.finetuning import finetune, training
    from bertkit.runs.request import Request
    from bertkit.tasks.catalog import load_recipe
    from bertkit.training import loop
    from scripts.bench.timed_training import peak_rss_mib

    train, with_totals, read = training.train, loop.with_totals, finetune.read_splits
    stamps: dict[str, float] = {}
    steps: list[list[Any]] = []
    ends: list[float] = []
    modules: list[Any] = []

    def stamped(*arguments: Any) -> Iterator[Any]:
        for step in with_totals(*arguments):
            ends.append(time.perf_counter())
            steps.append(step.micro_batches)
            yield step

    def begun(*arguments: Any, **more: Any) -> Any:
        stamps["read"] = time.perf_counter()
        return read(*arguments, **more)

    def alone(module: Any, *rest: Any, total_steps: int, run_dir: Path, **more: Any) -> Any:
        stamps["train"] = time.perf_counter()
        modules.append(module)
        state = train(module, *rest, total_steps=total_steps, run_dir=run_dir)
        ends.append(time.perf_counter())
        more["save_model"](total_steps)(run_dir, module.state_dict())  # as a run has one
        return state

    loop.with_totals, training.train, finetune.read_splits = stamped, alone, begun  # type: ignore[assignment]
    typed = {"train": str(options.one), "validation": str(options.one.with_name("held-out.csv")), "max_steps": options.steps}
    typed |= {"batch_size": options.batch_size, "max_length": options.max_length, "learning_rate": 5e-5, "seed": 1}
    recipe = load_recipe("text-classification").overridden(typed)
    with tempfile.TemporaryDirectory() as folder:
        values = finetune.finetune(Request(recipe, "text-classification", options.model), Path(folder) / "run")
    whole, linear = flop_counter(modules[0]), flop_counter(modules[0], attention=False)
    timed = list(zip(steps, pairwise(ends), strict=True))[WARMUP:]
    tokens = [sum(len(batch.input_ids) for batch in batches) for batches, _ in timed]
    per_token = [(end - begin) / count * 1e6 for (_, (begin, end)), count in zip(timed, tokens, strict=True)]
    shares = [sum(map(linear, batches)) / sum(map(whole, batches)) for batches, _ in timed]
    found = {
        "rows": values["data"]["train"]["rows"],
        "max_length": options.max_length,
        "data_s": round(stamps["train"] - stamps["read"], 1),
        "us_per_token": round(min(per_token), 1),
        "linear_us_per_token": round(min(a * b for a, b in zip(per_token, shares, strict=True)), 1),
        "tokens_of_a_step": round(statistics.fmean(tokens)),
        "peak_mb": round(peak_rss_mib() * 2**20 / 1e6),
    }
    return found | {"data_us_per_row": round((stamps["train"] - stamps["read"]) / found["rows"] * 1e6, 1)}


def run(folder: Path, options: argparse.Namespace, rows: Iterable[Row], *, batch_size: int, max_length: int) -> dict[str, Any]:
    """One run in a process of its own."""
    data = folder / "train.csv"
    write_csv(data, rows)
    named = {"one": data, "model": options.model, "steps": options.steps, "batch-size": batch_size, "max-length": max_length}
    found = run_script("scripts.results.timed_growth", typed(named))
    print(found, file=sys.stderr, flush=True)
    return found


def measure(sentences: Sequence[Row], options: argparse.Namespace) -> dict[str, Any]:
    """All runs: by rows, each the memory that it takes above that of the fewest; and by length."""
    found: dict[str, Any] = {"steps": options.steps}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_csv(folder / "held-out.csv", numbered(sentences, HELD_OUT))
        found["lengths"] = []
        for length in options.lengths:
            batch = max(1, TOKENS // length)
            rows = of_length(sentences, batch * options.steps, length)
            found["lengths"].append(run(folder, options, rows, batch_size=batch, max_length=length))
        found["rows"] = [
            run(folder, options, numbered(sentences, count), batch_size=32, max_length=options.max_length)
            for count in options.rows
        ]
        for each in found["rows"]:
            each["above_mb"] = each["peak_mb"] - found["rows"][0]["peak_mb"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--data", default=SST2, help="a file of sentences and labels")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, default=32, help=argparse.SUPPRESS)
    parser.add_argument("--max-length", type=int, default=128, help="of the runs by rows")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(timed_run(options)))
        return
    from bertkit.readers.formats import read_file

    columns = read_file(os.path.expandvars(options.data)).columns
    print(json.dumps(measure([*zip(*columns.values(), strict=True)], options)))


if __name__ == "__main__":
    main()
