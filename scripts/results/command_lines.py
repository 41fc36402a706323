"""bertkit's commands as a user types them, and functions that run them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

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


def run_commands(commands: Mapping[str, str], folder: Path, *, force: bool) -> dict[str, dict[str, str]]:
    """Run each command whose file is not there, and resume one that was stopped; returns the command and the commit that made
    each file, which are kept in the folder."""
    commit = provenance()["commit"]
    kept = folder / "made_by.json"
    made_by = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for made, line in commands.items():
        unfinished = made_by.get(made, {}).get("command") == line and not force
        if unfinished and (ROOT / made).is_file():
            continue
        made_by[made] = made_by[made] if unfinished else {"command": line, "commit": commit}
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(made_by, indent=2), encoding="utf-8")
        execute(line if unfinished else f"{line} --overwrite", SEED)
    return made_by
