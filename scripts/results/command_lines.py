"""bertkit's commands as a user types them, and functions that run them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    """Run each command whose file is not there, and resume one that was stopped; returns the command and the commit that made
    each file, which are kept in the folder. A command is run anew if one before it was. after: what an earlier call returned.
    """
    before = {made: [each["command"], each["commit"]] for made, each in (after or {}).items()}
    commit = provenance()["commit"]
    kept = folder / "made_by.json"
    made_by = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for made, line in commands.items():
        own = made_by.get(made, {})
        unfinished = own.get("command") == line and own.get("after", before) == before and not force
        if not (unfinished and (ROOT / made).is_file()):
            made_by[made] = own if unfinished else {"command": line, "commit": commit, "after": {**before}}
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(made_by, indent=2), encoding="utf-8")
            execute(line if unfinished else f"{line} --overwrite", SEED)
        before[made] = [line, made_by[made]["commit"]]
    return made_by


class Measured(NamedTuple):
    """values: what a function measured. origin: its command lines, and the `provenance` of that time."""

    values: dict[str, Any]
    origin: dict[str, Any]


def measured_once(kept: Path, lines: Sequence[str], measure: Callable[[], dict[str, Any]], *, force: bool) -> Measured:
    """What a function measures by these command lines; if a file has kept what they gave before, that, with its origin."""
    if kept.is_file() and not force:
        found = Measured(**json.loads(kept.read_text(encoding="utf-8")))
        if found.origin["command"] == [*lines]:
            return found
    kept.parent.mkdir(parents=True, exist_ok=True)
    found = Measured(measure(), {"command": [*lines], **provenance()})
    kept.write_text(json.dumps(found._asdict()), encoding="utf-8")
    return found
