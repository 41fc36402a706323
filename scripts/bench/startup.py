"""Start-up time: `bertkit --help` compared with `transformers --help`, and finetune's first step with run_glue.py's imports.

Writes results/bench_startup.json. The sides take turns, each in its own process. Run it with `make bench-startup`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import markdown
from scripts.provenance import provenance
from scripts.turns import add_data, bertkit_command, keep, time_commands

NAME = "bench_startup"
TIMED = Path(__file__).with_name("timed_start.py")
MODEL, DATA = "minilm", "GLUE/MRPC"
HEADER = ["what", "bertkit, s", "theirs, s", "ratio of medians"]


@dataclass(frozen=True)
class Start:
    """commands: ours and theirs, by name. needed: the most of their time that ours may take."""

    what: str
    commands: Mapping[str, Sequence[str]]
    needed: float


def starts(data: str | None) -> dict[str, Start]:
    """data: the folder that holds the folders of the data sets; without it they come from the hub."""
    timed = (sys.executable, str(TIMED))
    own = ("bertkit", "mrpc", "--model", MODEL, *(("--data", str(Path(data) / DATA)) if data else ()))
    helps = {
        "bertkit": [*bertkit_command(), "--help"],
        "transformers": [str(Path(sys.executable).parent / "transformers"), "--help"],
    }
    steps = {"bertkit": [*timed, *own], "run_glue": [*timed, "run_glue"]}
    return {
        "help": Start("`--help`, beside that of transformers", helps, 0.15),
        "first_step": Start("`finetune mrpc` as far as its first step, beside run_glue.py's imports", steps, 1.0),
    }


def measure(times: int, data: str | None) -> dict[str, Any]:
    """Seconds of each start by side, their medians, and the ratio of these."""
    from bertkit.model.directory import MINILM_SHA256

    found = {}
    for name, start in starts(data).items():
        seconds = time_commands(start.commands, times)
        medians = {side: round(statistics.median(each), 3) for side, each in seconds.items()}
        ours, theirs = medians.values()
        found[name] = {"seconds": seconds, "median": medians, "ratio": round(ours / theirs, 3), "needed": start.needed}
    command = f"python -m scripts.bench.startup --times {times}"
    model = {"name": MODEL, "sha256": MINILM_SHA256}
    return {"name": NAME, "command": [command], "model": model, "seeds": [1], **provenance(), "starts": found}


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    lines = []
    for name, found in values["starts"].items():
        ours, theirs = found["median"].values()
        lines.append([starts(None)[name].what, f"{ours:.2f}", f"{theirs:.2f}", f"**{found['ratio']:.2f}**"])
    return lines


def render(values: Mapping[str, Any]) -> str:
    return markdown.block([values], markdown.table(HEADER, rows(values), numbers_from=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=7, help="runs of each side [%(default)s]")
    add_data(parser, DATA)
    options = parser.parse_args()
    from bertkit import progress

    values = measure(options.times, options.data)
    progress.table("medians", HEADER, rows(values))
    keep(values)


if __name__ == "__main__":
    main()
