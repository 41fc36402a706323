"""Batches side by side: in order, each once, by threads that share torch's."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from bertkit.model.streams import MOST, num_streams, side_by_side

CPU = torch.device("cpu")


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def threads_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.usefixtures("four_threads")
def test_items_are_computed_at_once_and_come_in_order() -> None:
    together = threading.Barrier(2, timeout=30)  # passed only if two are computed at once

    def compute(item: int) -> tuple[int, int, int]:
        together.wait()
        return item, torch.get_num_threads(), threading.get_ident()

    items, threads, by = zip(*side_by_side(compute, iter(range(20)), 2), strict=True)
    assert items == tuple(range(20))
    assert set(threads) == {2}, "two batches share four threads"
    assert (len(set(by)), threading.get_ident() in by) == (2, False)
    assert torch.get_num_threads() == threads_of_a_new_thread() == 4, "other threads keep what they have"


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize(("count", "streams"), [(1, 4), (3, 1), (0, 4)])
def test_one_batch_or_one_stream_has_all_threads(count: int, streams: int) -> None:
    def compute(item: int) -> tuple[int, int, int]:
        return item, torch.get_num_threads(), threading.get_ident()

    assert [*side_by_side(compute, range(count), streams)] == [(item, 4, threading.get_ident()) for item in range(count)]


@pytest.mark.usefixtures("four_threads")
def test_few_are_begun_before_they_are_asked_for_and_none_after_an_error() -> None:
    begun: list[int] = []

    def compute(item: int) -> int:
        if item == 5:
            raise ValueError("five")
        return item

    def items() -> Iterator[int]:
        for item in range(100):
            begun.append(item)
            yield item

    found = side_by_side(compute, items(), 2)
    assert next(found) == 0
    assert len(begun) <= 5
    with pytest.raises(ValueError, match="five"):
        list(found)
    assert len(begun) < 12
    assert threads_of_a_new_thread() == 4


@pytest.mark.usefixtures("four_threads")
def test_a_thread_that_the_system_refuses_is_an_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def refusing(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    with pytest.raises(RuntimeError, match="can't start"):
        list(side_by_side(abs, range(9), 2))
    monkeypatch.undo()
    assert threads_of_a_new_thread() == 4


def test_streams_are_for_cpus_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, streams in ((1, 1), (2, 2), (64, MOST)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert num_streams(CPU) == streams
    assert num_streams(torch.device("cuda")) == 1
