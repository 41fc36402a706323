"""The other processes of a run: if one fails, the rest end too, instead of waiting for it forever.

Each process watches, in a thread, the store that connects them, where the first to fail leaves its error. A collective may hang
in code that Python's signal handlers cannot interrupt, so the thread also watches for signals that ask to stop.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import time
from contextlib import suppress
from threading import Lock, Thread, current_thread, main_thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

_POLL = 1.0  # seconds
_OWN = 5.0  # seconds for a process to end by itself, so that a shared error is reported only once
_STORE = 10.0  # time for the others to end after the process that hosts the store
_SIGNAL = 25.0  # torchrun kills silently 30 seconds after the signal
# Keys: the first failure; the number of processes that failed or were ended. torchrun keeps the store when it restarts them.
_FAILURE, _ENDED = (f"bertkit/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}" for name in ("failure", "ended"))

_watch: _Watch | None = None


def watch(store: Store, rank: int, num_processes: int) -> None:
    """From now on, end this process with an error line if another one fails."""
    global _watch
    if _watch is None:
        _watch = _Watch(store, rank, num_processes)


def failed(line: str, *, wait: bool) -> None:
    """Tell the others why this process ends. wait: for them to end too, but not for long.

    Once this process has ended, a launcher ends the others silently.
    """
    if _watch is not None:
        _watch.failed(line, wait=wait)


def failure() -> str | None:
    """The error that another process has failed with, if any."""
    with suppress(RuntimeError):
        return None if _watch is None else _watch.failure()
    return None


def stopping() -> None:
    """Record that all processes have agreed to stop: none hangs, so they may take their time to write."""
    if _watch is not None:
        _watch.patient = True


class _Watch:
    def __init__(self, store: Store, rank: int, num_processes: int) -> None:
        self.store: Store = store.clone()  # type: ignore[attr-defined]  # its own connection: a wait on a shared one locks it
        self.rank, self.num_processes = rank, num_processes
        self.patient = "TORCHELASTIC_RUN_ID" not in os.environ  # other launchers may leave more time after a signal
        self._ending = Lock()  # its holder ends the process
        self._signals, written = socket.socketpair()
        written.setblocking(False)
        self._written = written
        if current_thread() is main_thread():
            signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        self._signals.settimeout(_POLL)
        self._thread = Thread(target=self._run, name="peers", daemon=True)
        self._thread.start()
        atexit.register(self._close)

    def _close(self) -> None:
        """End the thread: if it is inside torch's code when Python exits, the process is aborted."""
        self._ending.acquire(blocking=False)
        with suppress(OSError):
            self._written.send(b"\0")
        self._thread.join(_OWN)

    def failure(self) -> str | None:
        """The error that another process has failed with, if any. Raises RuntimeError if the store is gone."""
        if not self.store.check([_FAILURE]):
            return None
        rank, line = json.loads(self.store.get(_FAILURE))
        return f"process {rank} of {self.num_processes} failed: {line}"

    def failed(self, line: str, *, wait: bool) -> None:
        self._ending.acquire(blocking=False)
        with suppress(RuntimeError):  # the store is gone, and the others see it
            if self.store.add(_ENDED, 1) == 1:
                self.store.set(_FAILURE, json.dumps([self.rank, line]))
            until = time.monotonic() + _OWN + 3 * _POLL
            while wait and self.store.add(_ENDED, 0) < self.num_processes and time.monotonic() < until:
                time.sleep(_POLL / 10)

    def _run(self) -> None:
        due: dict[str, float] = {}  # why to end the process -> when
        while not self._ending.locked():
            now = time.monotonic()
            if self._stop_requested() and not self.patient:
                due.setdefault("stop requested, but no step has finished since: another process may have ended", now + _SIGNAL)
            try:
                if (line := self.failure()) is not None:
                    due.setdefault(line, now + _OWN)
            except RuntimeError:
                due.setdefault("the launcher or the first process has ended", now + _STORE)
            late = [line for line, when in due.items() if when <= now]
            if late and self._ending.acquire(blocking=False):
                os.write(2, f"error: {late[0]}\n".encode())
                with suppress(RuntimeError):
                    self.store.add(_ENDED, 1)
                os._exit(1)

    def _stop_requested(self) -> bool:
        """Whether a signal arrives within one polling interval."""
        try:
            return bool({signal.SIGINT, signal.SIGTERM} & {*self._signals.recv(64)})
        except TimeoutError:
            return False
