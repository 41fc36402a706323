"""Sides that take turns being measured on one machine, each run in its own process; what their scripts share."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.provenance import ROOT, write_result


def run_script(
    module: str,
    words: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    seconds: float | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """What a script prints in its last line as JSON. module: its name. quiet: its stderr is shown only if it fails.

    Raises SystemExit where it fails, or takes more than so many seconds.
    """
    stderr = subprocess.PIPE if quiet else None
    command = [sys.executable, "-m", module, *words]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"error: {module} {' '.join(words[:1])} took more than {seconds:.0f} seconds") from None
    if done.returncode:
        raise SystemExit(
            f"{(done.stderr or '')[-3000:]}\nerror: {module} {' '.join(words[:1])} failed with exit code {done.returncode}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def typed(named: Mapping[str, Any]) -> list[str]:
    """Values by the names of their options, as words of a command line; those that are None are left out."""
    return [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]


def take_turns(
    run: Callable[[str, int], Mapping[str, Any]],
    order: Sequence[str],
    rounds: int,
    measures: Mapping[str, int | None],
    on_round: Callable[[int, str, Mapping[str, Any]], None],
) -> dict[str, dict[str, list[Any]]]:
    """side -> measure -> one value a round, of the measures that the side has. Every second round is in the opposite order.

    run: (side, number of the round). measures: to how many digits each is kept; None: as it is.
    """
    found: dict[str, dict[str, list[Any]]] = {side: {} for side in order}
    for number in range(1, rounds + 1):
        for side in order if number % 2 else order[::-1]:
            values = run(side, number)
            for measure, digits in measures.items():
                if measure in values:
                    value = values[measure] if digits is None else round(values[measure], digits)
                    found[side].setdefault(measure, []).append(value)
            on_round(number, side, values)
    return found


def keep(values: dict[str, Any], *, unless: str = "") -> None:
    """Write results/NAME.json and say so. unless: what a complete run needs, if this one was not; then nothing is written."""
    from bertkit import progress

    if unless:
        progress.note(f"results/{values['name']}.json is unchanged: that needs {unless}")
    else:
        progress.note(f"wrote {write_result(values['name'], values).relative_to(ROOT)}")


def time_commands(commands: Mapping[str, Sequence[str]], times: int) -> dict[str, list[float]]:
    """Seconds until a command has ended, in turn, after one run each that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(times + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            if number:
                seconds[name].append(round(time.perf_counter() - start, 4))
    return seconds


def bertkit_command() -> list[str]:
    """`bertkit` of this environment."""
    script = Path(sys.executable).parent / "bertkit"
    return [str(script)] if script.is_file() else [sys.executable, "-m", "bertkit"]


def add_data(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --data, the folder that holds these data sets."""
    place = f"folder that holds {what} [$BERTKIT_TEST_DATA, else the hub]"
    parser.add_argument("--data", default=os.environ.get("BERTKIT_TEST_DATA"), help=place)
