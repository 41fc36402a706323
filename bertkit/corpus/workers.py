"""Worker processes of a build, which end with it."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import starmap
from multiprocessing import get_context, parent_process
from typing import Any

from bertkit.errors import MachineError

# A function and the arguments of its calls -> the results, in order. Only a few calls are in memory at once.
CallEach = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterator[Any]]


@contextmanager
def worker_processes(count: int, set_up: Callable[..., object] = tuple, *arguments: object) -> Iterator[CallEach]:
    """Yields a function that runs calls in `count` processes, or in this one if it is 1; each first calls `set_up`.

    Raises MachineError if a worker was killed.
    """
    if count <= 1:
        set_up(*arguments)
        yield starmap
        return
    executor = ProcessPoolExecutor(count, get_context("spawn"), initializer=_start, initargs=(set_up, arguments))

    def call_each(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        pending: deque[Future[Any]] = deque()
        for call in calls:
            with _without_ctrl_c():  # for workers, which a call may start: they end with this process
                pending.append(executor.submit(function, *call))
            if len(pending) > count + 1:  # one more may be prepared in advance
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    try:
        yield call_each
    except BrokenProcessPool:
        hint = "repeat the command with fewer --num-processes; a build from files resumes"
        raise MachineError("a worker process was killed, perhaps for lack of memory", hint=hint) from None
    finally:
        with _ignoring_ctrl_c():
            executor.shutdown(cancel_futures=True)


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Ignore SIGINT: a second one would leave workers that wait for a call, and the exit would wait for them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Delay SIGINT in this thread; a process started inside never gets it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(set_up: Callable[..., object], arguments: tuple[object, ...]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per core already
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    set_up(*arguments)


def _exit_with_parent() -> None:
    """Exit when the parent dies: workers of a killed build would wait forever, and write during the next build."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
