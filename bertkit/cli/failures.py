"""How a failed command ends: a one-line error for the user, and an exit code."""

from __future__ import annotations

import errno
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from bertkit.errors import DataError, MachineError, Stopped, UsageError, UserError
from bertkit.model import peers
from bertkit.progress import console, on_main_process, plain, warn

BUG = 1
_LONGEST = 2000  # characters of an error, which may quote a value of any length


class InterruptedCommand(Exception):
    """Wraps a KeyboardInterrupt, its cause, of which Typer would keep only an exit code."""


class _Failure(NamedTuple):
    """How to report an error of the operating system. what: None: the system's own message."""

    kind: Callable[..., UserError]
    what: str | None
    hint: str | None


_FULL = _Failure(MachineError, None, "free some space or choose another folder")
_FILES = _Failure(
    MachineError, "too many open files", "raise the limit (ulimit -n 4096) or, for a corpus, use fewer --num-processes"
)
_NAMED = _Failure(UsageError, None, "choose another file or folder")
_GONE = _Failure(UsageError, "a file or folder is gone", "was it moved or removed while the command ran? repeat the command")
_ENDED = "its messages or the system log give the reason, such as lack of memory; repeat the command: it resumes"
_BY_NUMBER = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS), _FULL),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FILES),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR), _NAMED),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ESTALE), _GONE),
    **dict.fromkeys((errno.EACCES, errno.EPERM), _Failure(MachineError, None, "change permissions, or choose another place")),
    errno.EBADF: _Failure(UsageError, "standard input or output is closed", "open it, or name a file instead"),
    errno.ENOMEM: _Failure(
        MachineError,
        "out of memory",
        "halve --micro-batch-tokens (for a corpus: --num-processes) and repeat; an unfinished predict needs --overwrite",
    ),
    errno.EIO: _Failure(MachineError, "reading or writing failed on the disk or network", "copy the data to another disk"),
}


@contextmanager
def printing_on_main_only() -> Iterator[None]:
    """Print in the main process only."""
    with on_main_process(is_main=os.environ.get("RANK", "0") in ("", "0")):
        yield


@printing_on_main_only()
def end(error: BaseException) -> int:
    """Tell the user why a command ends, in one line and a hint; returns the exit code. Re-raises SystemExit and the like."""
    if isinstance(error, InterruptedCommand) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, KeyboardInterrupt):
        _say(str(error) or "stopped")
        peers.failed("stopped by a signal", wait=False)
        return getattr(error, "exit_code", Stopped().exit_code)
    if isinstance(error, SystemExit):
        if not isinstance(error.__context__, BrokenPipeError):
            raise error
        return 0  # of Typer or rich, which have closed standard output
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        return 0  # as of `| head`
    if not isinstance(error, Exception):
        raise error
    failure = explain(error)
    if failure is None:
        return _fail(f"{type(error).__name__}: {error}", "this is a bug in bertkit; BERTKIT_DEBUG=1 shows the traceback", BUG)
    for line in failure.warnings if isinstance(failure, DataError) else ():
        warn(line)
    return _fail(str(failure), failure.hint, failure.exit_code)


def explain(error: Exception) -> UserError | None:
    """What the user can fix about an error; None for a bug."""
    words = str(error)
    if isinstance(error, UserError):
        return error
    if isinstance(error, RecursionError):
        return DataError("a file is nested too deeply", hint="is the file damaged?")
    marks = ("can't start new thread", "can't allocate memory", "cannot allocate memory", "failed to map segment")
    of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if of_memory or any(mark in words.lower() for mark in marks):
        error = OSError(errno.ENOMEM, "")
    if isinstance(error, RuntimeError) and words.startswith("Symlink loop"):  # Path.resolve before Python 3.13
        error = OSError(errno.ELOOP, os.strerror(errno.ELOOP), words.partition("'")[2].rstrip("'"))
    if isinstance(error, RuntimeError) and "gloo/transport" in words:  # a connection that is closed
        return MachineError(peers.failure() or "another process has ended", hint=_ENDED)
    if type(error).__name__ in ("DistNetworkError", "DistStoreError", "DistBackendError"):  # of torch
        hint = "are all processes started, and do MASTER_ADDR and MASTER_PORT name the first one's machine and a free port?"
        return MachineError(f"the processes cannot reach each other: {words}", hint=hint)
    if "Too many open files" in words and not isinstance(error, OSError):  # of a library that has its own exception
        error = OSError(errno.EMFILE, "")
    if not isinstance(error, OSError) or error.errno is None:
        return None
    failure = _BY_NUMBER.get(error.errno, _Failure(MachineError, None, None))
    place = error.filename if isinstance(error.filename, (str, bytes, os.PathLike)) else None
    verb = "read" if place is not None and os.path.exists(place) and not os.access(place, os.R_OK) else "open"
    verb = "write" if failure is _FULL else verb
    return failure.kind(
        failure.what or f"cannot {verb}: {error.strerror}",
        where=None if place is None else os.fsdecode(place),
        hint=failure.hint,
    )


def _reader_is_gone() -> bool:
    """Whether another program has closed the pipe that is standard output or standard error."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            poll.register(stream.fileno(), 0)
        except (OSError, ValueError, AttributeError):
            return True  # not a file, but a test's stream
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _fail(what: str, hint: str | None, code: int) -> int:
    if os.environ.get("BERTKIT_DEBUG") == "1":
        traceback.print_exc()
    line = what.replace("\n", " ")
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
    rank = os.environ.get("RANK", "0")
    if code in (BUG, MachineError.exit_code) and rank not in ("", "0"):  # the main process does not know of it
        console.quiet, line = False, f"rank {rank}: {line}"
    _say(f"error: {line}", style="red")
    if hint:
        _say(f"hint: {hint}")
    peers.failed(what.replace("\n", " ")[:_LONGEST], wait=True)
    return code


def _say(line: str, style: str | None = None) -> None:
    with suppress(OSError):  # standard error is on a full disk too
        console.print(plain(line), style=style)
