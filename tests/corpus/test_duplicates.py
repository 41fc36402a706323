"""Duplicates of documents against a Python set; what finding them needs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bertkit.corpus import duplicates as module
from bertkit.corpus.duplicates import bounds_of, find_repeated

LAST = 2**64 - 1


def repeated_in(parts: list[list[int]], folder: Path) -> list[list[bool]]:
    """Of each part which documents are marked; and that nothing is left in the folder."""
    sizes = [len(part) for part in parts]
    bits = find_repeated((np.array(part, dtype=np.uint64) for part in parts), sizes, folder / "hashes")
    assert not list(folder.iterdir())
    bounds = bounds_of(sizes)
    assert len(bits) == bounds[-1]
    marked = [np.unpackbits(bits[begin:end]).astype(bool) for begin, end in pairwise(bounds)]
    assert not any(each[size:].any() for each, size in zip(marked, sizes)), "of no document"
    return [each[:size].tolist() for each, size in zip(marked, sizes)]


def by_a_set(parts: list[list[int]]) -> list[list[bool]]:
    seen: set[int] = set()
    found = []
    for part in parts:
        found.append([])
        for value in part:
            found[-1].append(value in seen)
            seen.add(value)
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKET", 64)
    monkeypatch.setattr(module, "AT_ONCE", 50)


@pytest.mark.parametrize(
    "parts",
    [
        [[7]],
        [[0, LAST, 0], [], [LAST, 0, 1]],
        [[], [5, 5, 5, 5, 5, 5, 5, 5, 5], [5], []],
        [[3] * 1000, [2**63] * 1000, [3, 2**63, 4]],  # of one bucket more than is compared at once
    ],
)
def test_by_hand(parts: list[list[int]], tmp_path: Path, small: None) -> None:
    assert repeated_in(parts, tmp_path) == by_a_set(parts)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("at_once", [1, 50, 2**20])
def test_random_parts(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch, seed: int, at_once: int) -> None:
    """Hashes of the whole range, near its ends, and many of few; parts of any size."""
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    rng = np.random.default_rng(seed)
    pool = rng.integers(0, LAST, 10 ** (seed % 3 + 1), dtype=np.uint64, endpoint=True).tolist() + [*range(9), LAST, LAST - 1]
    parts = []
    for size in rng.integers(0, 90, 20):
        fresh = rng.integers(0, LAST, size, dtype=np.uint64, endpoint=True).tolist()
        parts.append([value if rng.random() < 0.5 else pool[rng.integers(len(pool))] for value in fresh])
    expected = by_a_set(parts)
    assert any(map(any, expected))
    assert repeated_in(parts, tmp_path) == expected


@pytest.mark.parametrize("different", [10, 2**62])
def test_memory_grows_by_less_than_a_byte_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, different: int) -> None:
    """Also where most of them repeat a few, which are all in few buckets."""
    monkeypatch.setattr(module, "BUCKET", 2**15)
    monkeypatch.setattr(module, "AT_ONCE", 2**14)

    def parts(count: int) -> Iterator[NDArray[np.uint64]]:
        rng = np.random.default_rng(0)
        for _ in range(count):
            yield rng.integers(0, different, 1000, dtype=np.uint64) * np.uint64(4)

    def peak(count: int) -> int:
        tracemalloc.start()
        find_repeated(parts(count), [1000] * count, tmp_path / "hashes")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = peak(400), peak(2400)
    assert many - few < 2_000_000
