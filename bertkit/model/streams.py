"""Batches computed in parallel on a CPU, each by its own threads.

Threads that share a batch wait for each other at the end of each product, and small operations keep only one of them busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Barrier, Lock
from typing import TypeVar

import torch

MOST = 8  # more would wait for the GIL
_starting = Lock()  # a thread's setting becomes the default for threads started later

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_streams(device: torch.device) -> int:
    """How many batches to compute at once: on a CPU one for each of torch's threads, up to MOST."""
    with _starting:
        return min(torch.get_num_threads(), MOST) if device.type == "cpu" else 1


def side_by_side(compute: Callable[[Item], Result], items: Iterable[Item], streams: int) -> Iterator[Result]:
    """`map` with `streams` threads, which share torch's threads. A single item gets all of these, in the calling thread."""
    items = iter(items)
    first = [*islice(items, streams)]
    if len(first) < 2:
        yield from map(compute, first)
        yield from map(compute, items)
        return
    streams, threads = len(first), torch.get_num_threads()
    started = Barrier(streams + 1)
    with ThreadPoolExecutor(streams, initializer=_begin, initargs=(threads // streams,)) as pool:
        try:
            with _starting:  # other threads that start meanwhile would get this share
                try:
                    for _ in range(streams):
                        pool.submit(started.wait)
                    started.wait()
                finally:
                    torch.set_num_threads(threads)
            waiting = deque(pool.submit(compute, item) for item in first)
            waiting.extend(pool.submit(compute, item) for item in islice(items, streams))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(compute, item) for item in islice(items, 1))
        finally:
            started.abort()  # or threads that started would wait for one that the system refused
            pool.shutdown(cancel_futures=True)


def _begin(threads: int) -> None:
    torch.get_num_threads()  # or torch would later reset this thread to the process's number
    torch.set_num_threads(threads)
