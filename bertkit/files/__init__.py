"""Files and folders on disk: atomic writes, JSON, checksums, and what a kill leaves behind."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from bertkit.errors import MachineError, ModelError

T = TypeVar("T")

UNFINISHED = ".unfinished-"  # prefix of files and folders that are being written, or deleted
# What a killed process leaves in an output folder; safetensors writes .tmpXXXXXX.
LEFTOVER = re.compile(rf"{re.escape(UNFINISHED)}.*|\.tmp\w{{6}}", re.DOTALL)
MOVED_ASIDE = re.compile(r"\.old-\d+$")  # suffix of folders that --overwrite moved


def files_in(folder: Path) -> list[Path]:
    """Every file below a folder, sorted by name."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def relative(path: str) -> str:
    """An absolute path as seen from the working directory; any other text as it is."""
    return os.path.relpath(path) if os.path.isabs(path) else path


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Sync a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def in_background(work: Callable[[], T]) -> Future[T]:
    """Start `work`, which may only read, in a daemon thread: unlike with an executor, the process can end before it."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


Fill = Callable[[Path], object]  # fills the file of this path


def write_files(folder: Path, files: Mapping[str, str | Fill], *, locked: bool = True) -> None:
    """Write files into a folder: first all under temporary names, flushed, then renamed in this order, so that none is ever
    seen half-written.

    Each gets the mode of the file that it replaces, or that of the umask. locked: whether no other process writes there;
    otherwise temporary names contain the machine's name and the process id. Raises MachineError.
    """
    asides = {name: folder / f"{UNFINISHED}{name}{'' if locked else f'.{_machine()}-{os.getpid()}'}" for name in files}
    renaming = False
    with disk_errors(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                aside = asides[name]
                if not locked:
                    _sweep_dead(folder, name)
                aside.unlink(missing_ok=True)
                aside.touch()
                mode = (folder / name).stat().st_mode if (folder / name).is_file() else aside.stat().st_mode
                if callable(content):
                    content(aside)
                else:
                    aside.write_text(content, encoding="utf-8", newline="")
                aside.chmod(mode)  # safetensors renames a file of mode 0600 over it
                flush(aside)
            renaming = True
            for name, aside in asides.items():
                os.replace(aside, folder / name)
            flush(folder)
        finally:
            if not renaming:  # otherwise the remaining ones mark the folder as unfinished
                for aside in asides.values():
                    with suppress(OSError):
                        aside.unlink(missing_ok=True)


def _sweep_dead(folder: Path, name: str) -> None:
    """Delete the temporary files that dead processes of this machine left of a file."""
    for left in folder.glob(f"{UNFINISHED}{glob.escape(name)}.*"):
        machine, _, process = left.name.rpartition(".")[2].rpartition("-")
        if machine == _machine() and not _runs(process):
            left.unlink(missing_ok=True)


def _machine() -> str:
    return platform.node().replace(".", "-")


def _runs(process: str) -> bool:
    """Whether a process with this id is running on this machine."""
    try:
        os.kill(int(process), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except OSError:  # another user's
        return True
    return True


def json_text(value: object) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def as_json(value: object, default: Callable[[Any], object] | None = None) -> Any:
    """The value as JSON gives it back: tuples as lists, keys as text. default: converts what JSON cannot hold."""
    return json.loads(json.dumps(value, default=default))


def jsonl_text(values: Iterable[object]) -> str:
    """One object per line. Of the values that JSON lacks, NaN and infinities become null, others, such as dates, text."""
    return "".join(f"{json_line(value)}\n" for value in values)


def json_line(value: object) -> str:
    """A value of `jsonl_text`, without the line feed."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:  # NaN or an infinity, which are rare
        known = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
        return json.dumps(known, ensure_ascii=False)


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file atomically."""
    write_files(path.parent, {path.name: json_text(value)})


def read_json(path: Path, hint: str | None = None) -> dict[str, Any]:
    """The object in a JSON file; empty without the file. Raises ModelError for a damaged one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if not isinstance(values, dict):
            raise ValueError(f"it holds a {type(values).__name__}")
        return values
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} is damaged: {error}", where=str(path), hint=hint) from None


def remove_folder(folder: Path) -> None:
    """Delete a folder so that a kill leaves nothing under its name."""
    aside = folder.with_name(UNFINISHED + folder.name)
    with disk_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Delete what killed processes have left in a folder that this one has locked."""
    with disk_errors(folder):
        for path in [path for path in folder.iterdir() if LEFTOVER.fullmatch(path.name)]:
            if not path.is_dir() or path.is_symlink():
                path.unlink(missing_ok=True)
            elif path.name.startswith(UNFINISHED):  # any other is the user's
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise MachineError in place of the errors for a full or read-only disk: OSError, or safetensors' own error."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "choose another place for the output"
        if getattr(error, "errno", errno.ENOSPC) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = "free some space, then repeat the command"
        raise MachineError(f"cannot write: {reason}", where=str(path), hint=hint) from error
