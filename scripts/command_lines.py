"""Commands of bertkit as a user types them, and how they are run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable

from provenance import ROOT

DATA = "$BERTKIT_TEST_DATA"


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
