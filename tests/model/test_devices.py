"""Freed memory is kept for the next batch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from bertkit.model.devices import keep_freed_memory

how, count = sys.argv[1], int(sys.argv[2])
if how != "glibc":
    keep_freed_memory(of_library=how == "library")
faults = []
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2 * 2**20) for _ in range(count)]  # of 8 MiB
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


def faults(how: str, count: int) -> int:
    """Page faults of a process that allocates so many blocks and frees them, over and over."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS, how, str(count)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
def test_freed_memory_is_kept() -> None:
    by_itself = faults("glibc", 20)
    assert by_itself > 100, "it returns all but 16 MiB, and maps the pages again"
    assert faults("own", 20) < by_itself / 10
    assert faults("library", 3) < 100
