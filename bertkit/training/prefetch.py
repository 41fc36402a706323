"""The micro-batches of the next steps, made in the background while the model trains on the current ones."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from queue import Empty, Queue
from threading import Event, Thread

import torch

from bertkit.model.batch import Batch

READY = 2  # steps whose micro-batches are kept ready


def prefetched(batches: Callable[[int], list[Batch]], steps: range, device: torch.device) -> Generator[list[Batch]]:
    """Yield the micro-batches of each step; for a GPU in pinned memory, so that they can be copied asynchronously.

    An error in `batches` is raised at its step, with its traceback. The thread ends with the generator, so close it.
    """
    ready: Queue[list[Batch] | BaseException] = Queue(READY)
    ended = Event()
    on_gpu = device.type == "cuda"

    def make() -> None:
        try:
            with torch.cuda.device(device) if on_gpu else nullcontext():  # a new thread starts on GPU 0
                for step in steps:
                    if ended.is_set():
                        return
                    made = batches(step)
                    ready.put([batch.pinned() for batch in made] if on_gpu else made)
        except BaseException as error:
            ready.put(error)

    maker = Thread(target=make, name="batches", daemon=True)
    try:
        maker.start()
        for _ in steps:
            made = ready.get()
            if isinstance(made, BaseException):
                raise made
            yield made
    finally:
        ended.set()
        with suppress(Empty):
            while True:  # a full queue would hold up the thread
                ready.get_nowait()
        if maker.is_alive():
            maker.join()
