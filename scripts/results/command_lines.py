"""bertkit's commands as a user types them, and functions that run them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.files import read_json, write_json
from scripts.provenance import ROOT, provenance

DATA = "$BERTKIT_TEST_DATA"
SEED = 42  # of commands that name none


def filled_in(words: Iterable[str]) -> list[str]:
    """Words of a command with the shell's variables filled in. Raises SystemExit for one that is not set."""
    found = [os.path.expandvars(word) for word in words]
    if missing := next((word for word in found if "$" in word), None):
        raise SystemExit(f"error: {missing} is not set\nhint: BERTKIT_TEST_DATA names the folder of the data sets")
    return found


def execute(line: str, seed: int, *more: str, stdin: str | None = None) -> str:
    """Run a command line of bertkit; returns its standard output. Raises SystemExit with its exit code when it fails."""
    words = [word.replace("$SEED", str(seed)) for word in shlex.split(line)]
    print(f"\n$ {shlex.join([*words, *more])}", flush=True)
    command = [sys.executable, "-m", "bertkit", *filled_in(words[1:]), *more]
    done = subprocess.run(command, cwd=ROOT, input=stdin, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def run_commands(
    commands: Mapping[str, str], folder: Path, *, force: bool, after: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """Run each command whose file is missing, and resume one that was stopped. A command is run anew if one before it was.

    Returns the command line of each file and its origin (`provenance`), which are kept in the folder. after: what an earlier
    call returned.
    """
    before = {made: _identity(each) for made, each in (after or {}).items()}
    kept = folder / "made_by.json"
    made_by = read_json(kept)
    folder.mkdir(parents=True, exist_ok=True)
    for made, line in commands.items():
        entry = made_by.get(made, {})
        is_same = entry.get("command") == line and entry["after"] == before and not force
        made_by[made] = entry if is_same else {"command": line, "origin": provenance(), "after": {**before}}
        write_json(kept, made_by)
        if not (is_same and (ROOT / made).is_file()):
            execute(line if is_same else f"{line} --overwrite", SEED)
        before[made] = _identity(made_by[made])
    return made_by


def _identity(entry: Mapping[str, Any]) -> list[str]:
    return [entry["command"], entry["origin"]["commit"]]


class Measured(NamedTuple):
    """values: what a function measured. origin: its command lines, and the `provenance` of that time."""

    values: dict[str, Any]
    origin: dict[str, Any]


def measured_once(kept: Path, lines: Sequence[str], measure: Callable[[], dict[str, Any]], *, force: bool) -> Measured:
    """What a function measures by these command lines; if a file has kept what they gave before, that, with its origin."""
    if kept.is_file() and not force:
        found = read_json(kept)
        if found.keys() == {*Measured._fields} and found["origin"]["command"] == [*lines]:
            return Measured(**found)
    kept.parent.mkdir(parents=True, exist_ok=True)
    measured = Measured(measure(), {"command": [*lines], **provenance()})
    write_json(kept, measured._asdict())
    return measured
