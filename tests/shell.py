"""Command lines as a shell runs them, in processes of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from conftest import Ran

ROOT = Path(__file__).parents[1]


def run_in_shell(line: str, folder: Path, **environment: str) -> Ran:
    """Run a line of bash, in which `bertkit` is this package's; SIGINT is not ignored there."""
    bertkit = f'bertkit() {{ {shlex.quote(sys.executable)} -m bertkit "$@"; }}; set -o pipefail; '
    done = subprocess.run(
        ["bash", "-c", bertkit + line],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
