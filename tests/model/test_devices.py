"""The device of a process; the settings for freed memory that glibc is given, and their effect."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bertkit.model import devices
from bertkit.model.devices import keep_freed_memory, prepare_memory, start_accelerator

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
        kept = keep_freed_memory(of_library=of_library)
        assert kept == told.get(MMAP, 0)
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


@pytest.mark.parametrize(
    ("kept", "limited", "overcommit", "blocks"),
    [
        (2**30, None, "0", [2**29]),
        (2**25, None, "1", [2**24]),
        (2**30, resource.RLIMIT_STACK, "0", [2**29]),
        (2**30, resource.RLIMIT_AS, "0", []),
        (2**30, resource.RLIMIT_DATA, "0", []),
        (2**30, None, "2", []),
        (0, None, "0", []),
    ],
)
def test_huge_pages_take_no_addresses_that_are_limited(
    kept: int, limited: int | None, overcommit: str, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(devices, "keep_freed_memory", lambda: kept)
    monkeypatch.setattr(devices, "advise_huge_pages", asked.append)
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (2**33, 2**33) if what == limited else unlimited)
    monkeypatch.setattr(Path, "read_text", lambda path: {"/proc/sys/vm/overcommit_memory": f"{overcommit}\n"}[str(path)])
    prepare_memory()
    assert asked == blocks


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


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs transparent huge pages")
@pytest.mark.parametrize("megabytes", [1, 300], ids=["many blocks", "large blocks"])
def test_memory_is_in_huge_pages(megabytes: int) -> None:
    """The kernel says of the memory of every block whether it was asked for huge pages; and none is resident before its use."""
    code = f"""
import sys
import torch
from bertkit.model.devices import advise_huge_pages, keep_freed_memory

def resident():
    with open("/proc/self/statm") as counts:
        return int(counts.read().split()[1]) * 4096

def advised(addresses):
    found = {{}}
    with open("/proc/self/smaps") as maps:
        for line in maps:
            name, *rest = line.split()
            if "-" in name:
                begin, end = (int(part, 16) for part in name.split("-"))
            elif name == "VmFlags:":
                found |= {{address: "hg" in rest for address in addresses if begin <= address < end}}
    return [found[address] for address in addresses]

before = resident()
elsewhere = torch.ones(2**20)
advise_huge_pages(keep_freed_memory() // 2)
print((resident() - before) // 2**20, *advised([elsewhere.data_ptr()]))
blocks = [torch.empty(2**20 * {megabytes}, dtype=torch.uint8) for _ in range(600 // {megabytes})]
print(sum(advised([block.data_ptr() + len(block) // 2 for block in blocks])) / len(blocks))
"""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    first, share = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).splitlines()
    grown, was_advised = first.split()
    assert int(grown) < 20
    assert was_advised == "False"
    assert float(share) > 0.98  # a page between two of the blocks that were advised is left out


def test_a_process_keeps_its_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a run that was trained with --device cpu is compared with one that was trained on a GPU."""
    from accelerate.state import AcceleratorState, PartialState

    start_accelerator("cpu")
    for state in (PartialState, AcceleratorState):
        monkeypatch.setitem(state._shared_state, "device", torch.device("meta"))
    assert start_accelerator("cpu").device.type == "meta"
