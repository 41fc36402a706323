"""The windows in which rows are predicted: their bounds depend on the rows' numbers alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from bertkit.readers import Examples, batched
from bertkit.runs.inference.windows import window_sizes, windows


def block(first: int, count: int, **more: list) -> Examples:
    numbers = range(first, first + count)
    return Examples({"text": [f"t{number}" for number in numbers], **more}, "rows", numbers)


def blocks(count: int, size: int) -> Iterator[Examples]:
    for first in range(0, count, size):
        yield block(first, min(size, count - first))


def test_windows_begin_small_and_become_whole_blocks() -> None:
    assert [*islice(window_sizes(), 6)] == [64, 192, 768, 3072, 4096, 4096]
    assert [len(each) for each in batched(range(300), window_sizes())] == [64, 192, 44]


@pytest.mark.parametrize("size", [1, 37, 64, 100, 5000, 10_000])
def test_bounds_do_not_depend_on_the_blocks(size: int) -> None:
    found = [*windows(blocks(9000, size))]
    assert [len(window) for window in found] == [64, 192, 768, 3072, 4096, 808]
    assert [window.first for window in found] == [0, 64, 256, 1024, 4096, 8192]
    assert [text for window in found for text in window.columns["text"]] == [f"t{number}" for number in range(9000)]
    assert [*found[2].lines] == [*range(256, 1024)]


def test_a_window_is_given_before_more_rows_are_read() -> None:
    read = []

    def noted() -> Iterator[Examples]:
        for each in blocks(1000, 64):
            read.append(each)
            yield each

    found = windows(noted())
    assert (len(next(found)), len(read)) == (64, 1)
    assert (len(next(found)), len(read)) == (192, 4)


def test_columns_are_those_of_the_first_block() -> None:
    parts = [block(0, 64, kind=["a"] * 64), block(64, 100), block(164, 10, kind=["b"] * 10, late=["c"] * 10)]
    first, second = windows(iter(parts))
    assert second.columns["kind"] == [None] * 100 + ["b"] * 10
    assert "late" not in second.columns
    assert (first.remarks.warnings, [("late" in line) for line in second.remarks.warnings]) == ((), [True])


def test_no_rows_make_no_window() -> None:
    assert [*windows(iter([]))] == []
    assert [*windows(iter([block(0, 0)]))] == []
