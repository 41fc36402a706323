"""Columns of many rows: the same values as lists, in less memory; files that grow and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from array import array
from pathlib import Path

import numpy as np
import pytest

from bertkit import features
from bertkit.features import Growing
from bertkit.readers import Examples, join_blocks
from bertkit.readers.compact import MANY, Texts

TEXTS = ["", "a good movie", "été", "中文", "\ud83d", "line\nbreak\0", "\U0001f600 x"]


def blocks(values: list, size: int = 1000, lines: list | None = None) -> list[Examples]:
    numbers = lines or [*range(2, len(values) + 2)]
    starts = range(0, len(values), size)
    return [Examples({"text": values[at : at + size]}, "a.csv", numbers[at : at + size]) for at in starts]


@pytest.fixture
def many() -> list[str]:
    return [f"{TEXTS[number % len(TEXTS)]}{number // 5}" for number in range(3 * MANY)]


@pytest.mark.parametrize("in_memory", [2**24, 1000])
def test_many_texts_are_the_same_as_in_a_list(many: list[str], in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "IN_MEMORY", in_memory)
    joined = join_blocks(blocks(many))
    texts = joined.columns["text"]
    assert isinstance(texts, Texts)
    assert [*texts] == many
    assert texts == many
    assert texts != many[::-1]
    assert texts != many[:-1]
    assert [texts[row] for row in (0, 4, MANY, -1)] == [many[row] for row in (0, 4, MANY, -1)]
    assert [*texts[MANY - 3 : MANY + 9]] == many[MANY - 3 : MANY + 9]
    assert [*texts[5:2]] == []
    assert [*texts[9:2:-2]] == many[9:2:-2]
    assert texts.index(many[7]) == 7
    with pytest.raises(IndexError):
        texts[len(many)]
    assert joined.lines == range(2, len(many) + 2)
    order = np.random.default_rng(0).permutation(len(many))
    chosen = joined.select(order)
    assert [*chosen.columns["text"]] == [many[row] for row in order]
    assert [*chosen.lines] == (order + 2).tolist()


def test_few_rows_are_lists(many: list[str]) -> None:
    joined = join_blocks(blocks(many[:MANY]))
    assert joined.columns["text"] == many[:MANY]
    assert isinstance(joined.columns["text"], list)


@pytest.mark.parametrize("row", [0, MANY - 1, 2 * MANY, 3 * MANY - 1])
@pytest.mark.parametrize("value", [None, 7, ["a"]])
def test_a_column_of_other_values_stays_a_list(many: list[str], row: int, value: object) -> None:
    values = [*many[:row], value, *many[row + 1 :]]
    assert join_blocks(blocks(values)).columns["text"] == values


def test_a_column_that_begins_later_or_ends_earlier_is_filled_with_none(many: list[str]) -> None:
    parts = blocks(many)
    late = Examples({"other": ["x"] * 10}, "a.csv", range(10**6, 10**6 + 10))
    joined = join_blocks([*parts, late])
    assert joined.columns == {"text": [*many, *[None] * 10], "other": [*[None] * len(many), *["x"] * 10]}


def test_lines_with_gaps_are_kept(many: list[str]) -> None:
    lines = [2 * row + (row > 5000) for row in range(len(many))]
    joined = join_blocks(blocks(many, lines=lines))
    assert isinstance(joined.lines, array)
    assert [*joined.lines] == lines
    assert joined.where(6000) == f"a.csv:{lines[6000]}"
    places = [f"1[{row}]" for row in range(len(many))]
    assert join_blocks(blocks(many, lines=places)).lines == places


def test_texts_need_their_bytes_and_sixteen_more() -> None:
    count, length = 50_000, 40
    tracemalloc.start()
    try:
        joined = join_blocks(
            Examples({"text": [f"{row:040d}" for row in range(at, at + 1000)]}, "a.csv", [*range(at, at + 1000)])
            for at in range(0, count, 1000)
        )
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(joined) == count
    assert kept < count * (length + 16)
    assert peak < count * 3 * (length + 16)


@pytest.mark.parametrize("in_memory", [2**24, 100, 1])
def test_what_grows_is_the_blocks_in_order(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "IN_MEMORY", in_memory)
    growing = Growing(np.int32)
    parts = [np.arange(length) for length in (0, 5, 300, 1)]
    for part in parts:
        growing.add(part)
    found = growing.array()
    assert (found.dtype, found.tolist()) == (np.dtype(np.int32), np.concatenate(parts).tolist())
    assert Growing(np.uint8).array().shape == (0,)


KILLED = """
import os, sys, numpy as np
from bertkit import features
features.IN_MEMORY = 1
growing = features.Growing(np.int64)
growing.add(np.arange(100_000))
assert growing.array().sum() == sum(range(100_000))
os.kill(os.getpid(), 9)
"""


@pytest.mark.e2e
@pytest.mark.skipif(os.name != "posix", reason="kills")
def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -9
    assert not [*tmp_path.iterdir()]
