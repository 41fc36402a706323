"""Freed memory is kept for the next batch."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from bertkit.model.devices import keep_freed_memory

if sys.argv[1] != "glibc":
    keep_freed_memory(of_library=sys.argv[1] == "library")

def cycle():
    blocks = [torch.ones(3 * 2**20) for _ in range(2)]  # of 12 MiB

faults = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cycle()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
def test_freed_memory_is_kept() -> None:
    faults = {}
    for how in ("glibc", "library", "own"):
        done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        faults[how] = int(done.stdout)
    assert faults["glibc"] > 1000, "by itself it returns one block or both, and maps pages of 4 KiB again"
    assert max(faults["library"], faults["own"]) < 100
