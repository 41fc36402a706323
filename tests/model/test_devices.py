"""The device of a process; the settings for freed memory that glibc is given, and their effect."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from bertkit.model.devices import keep_freed_memory, start_accelerator

TRIM, MMAP = -1, -3  # of malloc.h


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in a program of ours; in somebody's what glibc keeps after a block of 32 MiB, unless the environment sets it."""
    told: dict[int, int] = {}
    largest = 2**40

    class Glibc:
        def __init__(self, name: None) -> None:
            assert name is None

        def mallopt(self, option: int, value: int) -> int:
            if option == MMAP and value > largest:
                return 0
            told[option] = value
            return 1

    def settings(*, of_library: bool) -> dict[int, int]:
        told.clear()
        keep_freed_memory(of_library=of_library)
        return {**told}

    for name in [*os.environ]:
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)
    monkeypatch.setattr(ctypes, "CDLL", Glibc)
    assert settings(of_library=False) == {MMAP: 2**30, TRIM: -1}
    assert settings(of_library=True) == {MMAP: 2**25, TRIM: 2**26}
    largest = 2**25  # as in older ones
    assert settings(of_library=False) == {MMAP: 2**25, TRIM: -1}
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert settings(of_library=True) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_memory_is_returned() -> None:
    """In a process of its own, as `keep_freed_memory` is for the whole of it."""
    code = """
import ctypes, resource
from bertkit.model.devices import keep_freed_memory, return_freed_memory

def resident():
    with open("/proc/self/statm") as counts:
        return int(counts.read().split()[1]) * resource.getpagesize() / 2**20

def filled():
    block = glibc.malloc(2**20)
    ctypes.memset(block, 1, 2**20)
    return block

keep_freed_memory()
glibc = ctypes.CDLL(None)
glibc.malloc.restype, glibc.malloc.argtypes, glibc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
blocks = [filled() for _ in range(200)]
full = resident()
for block in blocks:
    glibc.free(block)
kept = resident()
return_freed_memory()
print(full - kept, kept - resident())
"""
    kept, returned = map(float, subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert kept < 20
    assert returned > 180


def test_a_process_keeps_its_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a run that was trained with --device cpu is compared with one that was trained on a GPU."""
    from accelerate.state import AcceleratorState, PartialState

    start_accelerator("cpu")
    for state in (PartialState, AcceleratorState):
        monkeypatch.setitem(state._shared_state, "device", torch.device("meta"))
    assert start_accelerator("cpu").device.type == "meta"
