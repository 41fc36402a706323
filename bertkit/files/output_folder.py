"""The output folders of commands: locked while written, resumed, or moved aside by --overwrite."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bertkit import progress
from bertkit.errors import DataError, MachineError, ModelError, UsageError, UserError
from bertkit.files import LEFTOVER, UNFINISHED, disk_errors, sweep

_OTHER_FOLDER = "choose another --output-dir"


class Kind(NamedTuple):
    """The kind of content that a command writes into its output folder.

    name: for messages. finished: tells of a folder that is not empty whether its content is finished, or None if it is of
    another kind; without this function it never counts as finished, because repeating the command costs little. parts: a
    pattern for the file names that belong to it. at_once: whether it is written by one `write_files`, so that it is unfinished
    while temporary files are left. more: other things to do with a finished one, for hints. tidy: deletes what a kill at the
    very end left.
    """

    name: str
    finished: Callable[[Path], bool | None] | None
    parts: re.Pattern[str] = re.compile(r".*", re.DOTALL)
    at_once: bool = False
    more: str = ""
    tidy: Callable[[Path], object] = sweep

    def foreign(self, names: Iterable[str]) -> list[str]:
        """The names that do not belong to it, such as a file of the user's own."""
        return [name for name in names if not LEFTOVER.fullmatch(name) and not self.parts.fullmatch(name)]


Content = tuple[tuple[str, int], ...]  # the names in a folder, each with its modification time in ns


@dataclass(frozen=True)
class OutputFolder:
    """The output folder of a command. `prepare` decides what to do with its content, without changing it; `open` does it.

    kind: its name. resumes: whether the command resumes its content. moves_to: where --overwrite moves it. content: as in
    `prepare`.
    """

    path: Path
    kind: str = "output"
    resumes: bool = False
    moves_to: Path | None = None
    content: Content = ()

    @classmethod
    def prepare(
        cls,
        path: Path,
        kind: Kind,
        *,
        resume: bool = False,
        overwrite: bool = False,
        reads: Iterable[str | Path | None] = (),
    ) -> OutputFolder:
        """Check a folder before any work. overwrite: whether to move content of this kind aside.

        reads: files and folders that the command reads, which are never moved. Raises UsageError for a file, for a folder with
        other content, or without overwrite with finished content; MachineError for one that cannot be written.
        """
        refuse_unwritable(path)
        refused = partial(UsageError, where=str(path), hint=_OTHER_FOLDER)
        with disk_errors(path):
            content = _content_of(path)
            if path.is_dir():
                refuse_locked(path, kind.name)
        names = [name for name, _ in content]
        if all(LEFTOVER.fullmatch(name) for name in names):
            return cls(path, kind.name, content=content)
        if overwrite:
            refuse_moved_inputs(path, reads)
        foreign = kind.foreign(names)
        try:
            finished = (None if foreign else False) if kind.finished is None else kind.finished(path)
        except (DataError, ModelError, UsageError):
            if not overwrite:
                raise
            finished = True  # it is damaged, and moved aside as it is
        if finished is None:
            raise refused(f"the output folder is not empty and is not a bertkit {kind.name}")
        if kind.at_once and any(name.startswith(UNFINISHED) for name in names) and not foreign:
            finished, resume = False, True
        if overwrite:
            if foreign:
                raise refused(f"--overwrite would move {foreign[0]}, which does not belong to a {kind.name}")
            return cls(path, kind.name, moves_to=_free_name(path), content=content)
        if finished or not resume:
            if finished:
                with suppress(UsageError), lock(path, kind.name):  # another process may be doing the same
                    kind.tidy(path)
            state = f"a finished {kind.name}" if finished else f"an unfinished {kind.name}, which this command does not resume"
            more = [kind.more] if finished and kind.more else []
            hint = "; ".join([f"{_OTHER_FOLDER}, or --overwrite, which moves it aside", *more])
            raise refused(f"the output folder holds {state}", hint=hint)
        return cls(path, kind.name, resumes=True, content=content)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Move the old content aside if needed, create the folder and lock it. If bad input leaves the folder empty, the old
        content is moved back. Raises UsageError, MachineError.
        """
        self.move_aside()
        is_new = not self.path.exists()
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with lock(self.path, self.kind):
            self._refuse_changed(() if self.moves_to else self.content)
            sweep(self.path)
            with disk_errors(self.path):
                probe = self.path / f"{UNFINISHED}probe"
                probe.touch()
                probe.unlink()
            try:
                yield
            except UserError:
                if is_new:
                    with suppress(OSError):  # it is not empty
                        self.path.rmdir()
                self._move_back()
                raise

    def move_aside(self) -> None:
        """Rename the folder to `moves_to`, if that is set. Raises UsageError while another process writes into it."""
        if self.moves_to is None:
            return
        with ExitStack() as locks:
            for folder in (self.path, *self.path.glob("*/")):  # one of several seeds may still be training
                locks.enter_context(lock(folder, self.kind))
            self._refuse_changed(self.content)
            with disk_errors(self.path):
                os.rename(self.path, self.moves_to)
        progress.note(f"moved the old content of {self.path} to {self.moves_to}")

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Move the old content aside, and back if nothing was written in its place, as when bad input is refused later."""
        self.move_aside()
        try:
            yield
        finally:
            self._move_back()

    def _move_back(self) -> None:
        """Move the old content back to its place, if nothing has taken it."""
        if self.moves_to is not None and not self.path.exists():
            with disk_errors(self.path):
                os.rename(self.moves_to, self.path)
            progress.note(f"nothing was written: moved {self.moves_to} back to {self.path}")

    def _refuse_changed(self, content: Content) -> None:
        if _content_of(self.path) != content:
            what = "another process has changed the output folder since this command started"
            raise UsageError(what, where=str(self.path), hint=f"repeat the command, or {_OTHER_FOLDER}")


@contextmanager
def lock(folder: Path, kind: str = "output", *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Lock the folder itself: a killed process would leave a lock file behind. Raises UsageError if another process has it.

    shared: only make sure that nobody writes; several processes may do this at once. wait: for the other process instead.
    """
    what = f"another process has just finished or moved this {kind}"
    gone = UsageError(what, where=str(folder), hint="repeat the command")
    with disk_errors(folder):
        try:
            descriptor = os.open(folder, os.O_RDONLY if folder.is_dir() else os.O_RDWR)  # NFS locks only what can be written
        except FileNotFoundError:
            raise gone from None
    try:
        try:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                what = f"another process is currently writing this {kind}"
                if not wait:
                    raise UsageError(what, where=str(folder), hint=f"wait for it, or {_OTHER_FOLDER}") from None
                if not _is_free_soon(descriptor):
                    progress.note(f"{what} ({folder}): waiting for it")
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no such locks
            if not shared:
                why = f"the file system cannot lock it: {error.strerror}"
                progress.warn(f"nothing keeps another command from writing this {kind} too ({folder}); {why}")
        if not _is_at(descriptor, folder):  # it was moved between the two steps
            raise gone
        yield
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file or folder still has this path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _is_free_soon(descriptor: int) -> bool:
    """Try to take the lock for about a second; returns whether it was taken."""
    for seconds in (0.01, 0.1, 0.9):
        time.sleep(seconds)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def refuse_locked(path: Path, kind: str = "output") -> None:
    """Raise UsageError if another process is writing this file or folder. Several processes may ask at once."""
    with lock(path, kind, shared=True):
        pass


def refuse_moved_inputs(folder: Path, reads: Iterable[str | Path | None]) -> None:
    """Raise UsageError if the folder that --overwrite would move is, or contains, an input of the command."""
    here = folder.resolve()
    for path in (Path(path) for path in reads if path):
        if path.exists() and path.resolve().is_relative_to(here):
            what = f"--overwrite would move {path}, which the command reads"
            raise UsageError(what, where=str(folder), hint=_OTHER_FOLDER)


def _content_of(folder: Path) -> Content:
    return tuple(sorted((path.name, path.lstat().st_mtime_ns) for path in folder.iterdir())) if folder.is_dir() else ()


def _free_name(folder: Path) -> Path:
    """FOLDER.old-N, with the first free N. Raises UsageError for the working directory and its parents."""
    if Path.cwd().is_relative_to(folder.resolve()):
        what = "--overwrite would move the working directory"
        raise UsageError(what, where=str(folder), hint="run the command from another directory")
    names = (folder.with_name(f"{folder.name}.old-{number}") for number in count(1))
    return next(name for name in names if not name.exists())


def refuse_unwritable(folder: Path) -> None:
    with disk_errors(folder):  # a parent may belong to someone else
        nearest = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not nearest.is_dir():
        raise UsageError("the output folder is a file", where=str(nearest), hint=_OTHER_FOLDER)
    if not os.access(nearest, os.W_OK):
        raise MachineError("the output folder cannot be written", where=str(nearest), hint=_OTHER_FOLDER)
