"""Batches made ahead in a thread: in order, never more than asked, and its end, its errors and signals in the main thread."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext

import pytest
import torch

from bertkit.training import prefetch
from bertkit.training.prefetch import READY, prefetched

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def until(true: Callable[[], bool]) -> None:
    """Wait, at most a minute."""
    for _ in range(6000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


def test_batches_come_in_order_and_from_one_thread() -> None:
    makers = set()

    def batches(step: int) -> list:
        makers.add(threading.current_thread())
        return [step]

    with closing(prefetched(batches, range(3, 40), CPU)) as ready:
        assert [made[0] for made in ready] == list(range(3, 40))
    assert len(makers) == 1
    assert threading.main_thread() not in makers


def test_two_steps_are_kept_ready_and_no_more_are_made() -> None:
    made: list[int] = []
    with closing(prefetched(lambda step: made.append(step) or [], range(100), CPU)) as ready:
        next(ready)
        until(lambda: len(made) == 1 + READY + 1)  # one is taken, two are ready, the next waits for room
        time.sleep(0.05)
        assert made == [0, 1, 2, 3]
    assert made == [0, 1, 2, 3], "nothing is made after the end"


def test_nothing_is_started_where_nothing_is_asked_for() -> None:
    prefetched(lambda step: pytest.fail("made"), range(5), CPU).close()
    assert list(prefetched(lambda step: pytest.fail("made"), range(0), CPU)) == []


class Broken(Exception):
    pass


def broken_reader(step: int) -> list:
    if step == 4:
        raise Broken("row 7")
    return [step]


def test_an_error_comes_at_its_step_with_its_type_and_traceback() -> None:
    ready = prefetched(broken_reader, range(9), CPU)
    assert [next(ready)[0] for _ in range(4)] == [0, 1, 2, 3], "the steps before it are whole"
    with pytest.raises(Broken, match="row 7") as caught:
        next(ready)
    assert "broken_reader" in "".join(traceback.format_tb(caught.value.__traceback__))


def test_even_an_exit_of_the_maker_arrives() -> None:
    def batches(step: int) -> list:
        raise SystemExit(3)

    with pytest.raises(SystemExit), closing(prefetched(batches, range(2), CPU)) as ready:
        next(ready)


def test_an_interrupt_while_waiting_ends_it() -> None:
    """The signal comes while the main thread waits for a batch that takes long."""
    release = threading.Event()

    def batches(step: int) -> list:
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
            release.wait(60)
        return [step]

    def interrupt(*_: object) -> None:
        release.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), closing(prefetched(batches, range(9), CPU)) as ready:
            list(ready)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_of_the_one_who_takes_them_ends_the_thread() -> None:
    with pytest.raises(ZeroDivisionError), closing(prefetched(lambda step: [step], range(1000), CPU)) as ready:
        next(ready)[0] / 0


def test_for_a_gpu_batches_are_pinned_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []

    class Pinnable:
        def pinned(self) -> str:
            return f"pinned after {used}"

    monkeypatch.setattr(prefetch.torch.cuda, "device", lambda device: used.append(device) or nullcontext())
    for device in (torch.device("cuda"), torch.device("cuda", 3)):
        assert list(prefetched(lambda step: [Pinnable()], range(1), device)) == [[f"pinned after {used}"]]
    assert used == [torch.device("cuda"), torch.device("cuda", 3)]
