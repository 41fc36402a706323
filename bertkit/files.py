"""Files that are whole or absent, and the folders that commands write: who may write, what resumes, what is moved aside."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertkit import progress
from bertkit.errors import MachineError, UsageError

UNFINISHED = ".unfinished-"  # begins the name of what is being written
MOVED_ASIDE = re.compile(r"\.old-\d+$")  # ends the name of what --overwrite moved
_OTHER_FOLDER = "give another --output-dir"


def files_in(folder: Path) -> list[Path]:
    """Every file below a folder, in order of name."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Have the disk hold a file or folder before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file, whole or not at all."""
    with disk_errors(path):
        aside = path.with_name(UNFINISHED + path.name)
        aside.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        flush(aside)
        os.replace(aside, path)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a full or read-only disk raises, OSError or safetensors' error, into one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "free some space or choose another place, then repeat the command: what trains goes on from its last checkpoint"
        raise MachineError(f"cannot write: {reason}", where=str(path), hint=hint) from error


class Kind(NamedTuple):
    """What a command writes into its output folder.

    name: as messages have it. finished: of a folder that is not empty, whether what it holds is finished; None where it holds
    none of this kind. parts: the names that belong to one.
    """

    name: str
    finished: Callable[[Path], bool | None]
    parts: re.Pattern[str] = re.compile(r".*", re.DOTALL)

    def foreign(self, names: Iterable[str]) -> list[str]:
        """The names that are no part of one, such as a file of the user's own."""
        return [name for name in names if not name.startswith(UNFINISHED) and not self.parts.fullmatch(name)]


Content = tuple[tuple[str, int], ...]  # the names in a folder, and when each was last written


@dataclass(frozen=True)
class OutputFolder:
    """The folder that a command writes. `prepare` decides what becomes of it and changes nothing, `open` does it.

    resumes: the command resumes what is there. moves_to: where --overwrite moves what is there. content: what `prepare` saw.
    """

    path: Path
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
        """Look at a folder before any work. overwrite: move what is there aside, where it is one of this kind.

        reads: files and folders that the command reads, which are never moved. Raises UsageError for a file, for a folder that
        holds something else, or without overwrite something finished, MachineError for one that cannot be written.
        """
        _refuse_unwritable(path)
        with _as_machine_error(path):
            content = _content_of(path)
        names = [name for name, _ in content]
        if all(name.startswith(UNFINISHED) for name in names):
            return cls(path, content=content)
        if overwrite:
            refuse_overlap(path, reads)
        finished = kind.finished(path)
        if finished is None:
            what = f"the output folder is not empty and holds no {kind.name} of bertkit"
            raise UsageError(what, where=str(path), hint=_OTHER_FOLDER)
        if overwrite:
            if foreign := kind.foreign(names):
                what = f"--overwrite would move {foreign[0]}, which is no part of a {kind.name}"
                raise UsageError(what, where=str(path), hint=_OTHER_FOLDER)
            return cls(path, moves_to=_free_name(path), content=content)
        if finished or not resume:
            state = f"a finished {kind.name}" if finished else f"an unfinished {kind.name} and --resume is never"
            hint = f"{_OTHER_FOLDER}, or --overwrite, which moves it aside"
            raise UsageError(f"the output folder holds {state}", where=str(path), hint=hint)
        return cls(path, resumes=True, content=content)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Move aside what is to be moved, make the folder, and lock it. Raises UsageError as `lock` does, MachineError."""
        self.move_aside()
        with _as_machine_error(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with lock(self.path):
            self._refuse_changed(() if self.moves_to else self.content)
            with _as_machine_error(self.path):
                probe = self.path / f"{UNFINISHED}probe"
                probe.touch()
                probe.unlink()
            yield

    def move_aside(self) -> None:
        """Rename the folder to `moves_to`, if it is to be moved. Raises UsageError while a process writes into it."""
        if self.moves_to is None:
            return
        with lock(self.path):
            for folder in self.path.glob("*/"):  # of several seeds, one may be in training
                with lock(folder):
                    pass
            self._refuse_changed(self.content)
            with _as_machine_error(self.path):
                os.rename(self.path, self.moves_to)
        progress.note(f"moved the old content of {self.path} to {self.moves_to}")

    def _refuse_changed(self, content: Content) -> None:
        if _content_of(self.path) != content:
            what = "another process has written into the output folder since this command began"
            raise UsageError(what, where=str(self.path), hint=f"repeat the command, or {_OTHER_FOLDER}")


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder, not a file in it, which a kill would leave behind. Raises UsageError while another process has it."""
    with _as_machine_error(folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(ImportError, OSError):  # neither Windows nor some network file systems have such locks
            import fcntl

            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = f"wait for it, or {_OTHER_FOLDER}"
                raise UsageError("another process is writing into the output folder", where=str(folder), hint=hint) from None
        yield
    finally:
        os.close(descriptor)


def refuse_overlap(folder: Path, reads: Iterable[str | Path | None]) -> None:
    """Raise UsageError where a folder that --overwrite would move is, or holds, a file or folder that the command reads."""
    here = folder.resolve()
    for path in (Path(path) for path in reads if path):
        if path.exists() and path.resolve().is_relative_to(here):
            what = f"--overwrite would move {path}, which the command reads"
            raise UsageError(what, where=str(folder), hint=_OTHER_FOLDER)


def _content_of(folder: Path) -> Content:
    return tuple(sorted((path.name, path.lstat().st_mtime_ns) for path in folder.iterdir())) if folder.is_dir() else ()


def _free_name(folder: Path) -> Path:
    """A name beside the folder, with the first free number. Raises UsageError for the working folder, or one around it."""
    if Path.cwd().is_relative_to(folder.resolve()):
        what = "--overwrite would move the folder that the command runs in"
        raise UsageError(what, where=str(folder), hint="run the command from another folder")
    names = (folder.with_name(f"{folder.name}.old-{number}") for number in range(1, 10**6))
    return next(name for name in names if not name.exists())


def _refuse_unwritable(folder: Path) -> None:
    hint = "choose another --output-dir"
    try:
        nearest = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    except OSError as error:  # one may be a folder of someone else
        what = f"the output folder cannot be reached: {error.strerror}"
        raise MachineError(what, where=str(folder), hint=hint) from None
    if not nearest.is_dir():
        raise UsageError("the output folder is a file", where=str(nearest), hint=hint)
    if not os.access(nearest, os.W_OK):
        raise MachineError("the output folder cannot be written", where=str(nearest), hint=hint)


@contextmanager
def _as_machine_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"the output folder cannot be written: {error.strerror}"
        raise MachineError(what, where=str(folder), hint="choose another --output-dir") from None
