"""What glibc is told of freed memory."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

from bertkit.model.devices import keep_freed_memory

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
    assert settings(of_library=False) == {MMAP: 2**30, TRIM: 2**31 - 1}
    assert settings(of_library=True) == {MMAP: 2**25, TRIM: 2**26}
    largest = 2**25  # as in older ones
    assert settings(of_library=False) == {MMAP: 2**25, TRIM: 2**31 - 1}
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert settings(of_library=True) == {}
