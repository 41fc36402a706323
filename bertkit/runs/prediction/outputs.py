"""Output of predictions: to standard output, or to a file that the same command continues after a kill."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bertkit import progress
from bertkit.errors import UsageError, listed, plural
from bertkit.files import as_json, disk_errors, flush, write_json
from bertkit.files.output_folder import lock
from bertkit.readers import Examples
from bertkit.readers.faults import Faults
from bertkit.runs.prediction.annotation import ANNOTATIONS, FORMATS
from bertkit.runs.prediction.writers import Writer
from bertkit.runs.run_file import flat
from bertkit.tasks.counts import Count, summed

TEXT = "text"
_COMPRESSED = ".gz"
START_OVER = "repeat the first command unchanged, or start over with --overwrite"


class OutputFormat(NamedTuple):
    """An output format: its file ending, or TEXT for people; and whether it is compressed."""

    ending: str
    compressed: bool = False

    @property
    def compression(self) -> str:
        """The ending that compression adds to names."""
        return _COMPRESSED if self.compressed else ""

    @property
    def suffix(self) -> str:
        """The ending of such files' names, without that of the compression."""
        return ANNOTATIONS[self.ending].suffix if self.ending in ANNOTATIONS else self.ending

    @classmethod
    def of(cls, name: str) -> OutputFormat:
        """The form for a file name such as "said.jsonl.gz", or just an ending such as ".csv"."""
        bare = name.removesuffix(_COMPRESSED)
        return cls(os.path.splitext(f"x{bare}" if bare.startswith(".") else bare)[1], bare != name)

    def refuse_outside(self, given: str, endings: Sequence[str]) -> None:
        """Raise UsageError if its ending is not among these. given: as the user wrote it."""
        if self.ending not in endings or (self.compressed and not is_text(self.ending)):
            named = [f"{ending}[{_COMPRESSED}]" if is_text(ending) else ending for ending in endings]
            raise UsageError(f"{given}; expected {', '.join(named[:-1])} or {named[-1]}")


def is_text(ending: str) -> bool:
    return ending not in FORMATS or FORMATS[ending].is_text


class Output:
    """Takes windows of predictions one after another; this class shows them at once, on standard output or a device."""

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.windows, self.rows = path, 0, 0
        self.faults = Faults("skip")  # of skipped rows
        self.counts: list[Count] = []
        self._file: BinaryIO | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.path is not None:
                with disk_errors(self.path):
                    self._file = stack.enter_context(self.path.open("wb", buffering=0))
            yield

    def begin(self, window: Examples) -> bool:
        """Count the next window; whether an earlier command has already written it."""
        self.windows, self.rows = self.windows + 1, self.rows + len(window)
        return False

    @property
    def predictions(self) -> int:
        return self.rows - self.faults.count

    def write(self, data: bytes, counts: Sequence[Count] = ()) -> None:
        """Write the window's predictions; counts: to report at the end."""
        self.counts = summed([*self.counts, *counts])
        if self._file is not None:
            self._file.write(data)
        elif data:
            sys.stdout.write(data.decode("utf-8", "surrogatepass"))
            sys.stdout.flush()

    def finish(self, writer: Writer | None) -> None:
        """Finish the output, after all windows are written."""
        if writer is not None and writer.end:
            self.write(writer.end)


class OutputState(NamedTuple):
    """How far OUT.partial is written. settings: what the predictions depend on. how: how they are computed. size: of
    OUT.partial, in bytes. sha256: of the rows in these windows. sources: for a folder, the source of each output.
    """

    settings: Mapping[str, Any]
    how: Mapping[str, Any]
    windows: int = 0
    rows: int = 0
    faults: Sequence[Any] = (0, [])
    size: int = 0
    sha256: str = ""
    counts: Sequence[Sequence[Any]] = ()
    sources: Mapping[str, Any] = {}

    @classmethod
    def read(cls, path: Path) -> OutputState | None:
        """What a file of `content` holds; None if it does not exist. Raises UsageError for a file with any other content."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):  # of any other JSON, or none
            values = json.loads(content.decode("utf-8"))
            if values.pop("checksum") == _checksum(values):
                return cls(**values)
        what = "the record of the predictions there is damaged, or was written by another version of bertkit"
        raise UsageError(what, where=str(path), hint="start over with --overwrite")

    def content(self) -> dict[str, Any]:
        """The values and their checksum, for a file."""
        values = as_json(self._asdict())
        return {**values, "checksum": _checksum(values)}

    def refuse_other(self, state: OutputState, named: str, where: str) -> None:
        """Raise UsageError if settings or how differ from those of the earlier predictions. named: what to call these."""
        sides = ({**self.settings, **self.how}, {**as_json(state.settings), **state.how})
        before, now = ({key: value for name, part in side.items() for key, value in flat(part, name)} for side in sides)
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        differences: dict[str, str] = {}
        for key in changed:
            name, pair = key.partition(".")[2] or key, (before.get(key), now.get(key))
            is_long = any(isinstance(value, (list, dict)) for value in pair)
            # an option of the recipe is recorded twice: it is listed once
            was, now_is = ("not set" if value is None else repr(value) for value in pair)
            differences.setdefault(name, f"another {name}" if is_long else f"{name} was {was}, now {now_is}")
        if differences:
            what = f"{named} were made with different settings: {listed([*differences.values()], 4, '; ')}"
            raise UsageError(what, where=where, hint=START_OVER)


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("utf-8")).hexdigest()


class OutputFile(Output):
    """A file that is complete or absent: windows are written to OUT.partial, with the progress in OUT.progress.json.

    writes: whether this process writes. resumes: whether the same rows can be read again.
    """

    def __init__(self, path: Path, form: OutputFormat, state: OutputState, *, writes: bool, resumes: bool) -> None:
        super().__init__(path.resolve())
        self.form, self.state, self.writes, self.resumes = form, state, writes, resumes
        self.partial, self.progress = unfinished(path)
        self._was_finished = path.exists()
        self._size = self.partial.stat().st_size if self.partial.exists() else None  # None: there is nothing to continue
        before = OutputState.read(self.progress) if self._size is not None else None
        if before is not None and (self._size or 0) < before.size:
            before = None  # OUT.partial was cut off: it starts over
        if before is not None:
            before.refuse_other(state, "the unfinished predictions", str(self.partial))
            self.counts = [Count(*each) for each in before.counts]
            self.faults.count, self.faults.shown = before.faults
        self._found, self.before = before, before or state
        self._sha256 = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.writes:
                with disk_errors(self.partial), suppress(FileExistsError if self._size is None else FileNotFoundError):
                    self._file = stack.enter_context(self.partial.open("xb" if self._size is None else "r+b"))
                if self._file is not None:
                    stack.enter_context(lock(self.partial))
                    stack.callback(self._leave_nothing_empty)
                if self._file is None or not self._is_as_found(self._file):
                    what = "another process has just begun or finished these predictions"
                    raise UsageError(what, where=str(self.path), hint="repeat the command")
                if self.before.windows:
                    progress.note(f"{self.path}: continuing after {plural(self.before.rows, 'row')}")
                self._file.truncate(self.before.size)
                self._file.seek(self.before.size)
            yield

    def _is_as_found(self, partial: BinaryIO) -> bool:
        """Whether OUT, OUT.partial and its progress are unchanged since the command began, now that OUT.partial is locked."""
        assert self.path is not None
        here = os.fstat(partial.fileno())
        is_there = self.partial.exists() and os.path.samestat(here, self.partial.stat())
        is_alike = here.st_size == (self._size or 0) and self._found in (None, OutputState.read(self.progress))
        return is_there and is_alike and self.path.exists() == self._was_finished

    def _leave_nothing_empty(self) -> None:
        """Remove OUT.partial if it is empty because the first window failed, or all rows so far were skipped."""
        if self.partial.exists() and not self.partial.stat().st_size:
            self.partial.unlink()
            self.progress.unlink(missing_ok=True)

    def begin(self, window: Examples) -> bool:
        super().begin(window)
        values = {name: [*column] for name, column in window.columns.items()}
        self._sha256 = hashlib.sha256(f"{self._sha256} {values!r}".encode("utf-8", "surrogatepass")).hexdigest()
        if self.windows == self.before.windows and (self._sha256, self.rows) != (self.before.sha256, self.before.rows):
            raise self._changed(window.source)
        return self.windows <= self.before.windows

    def _changed(self, source: str) -> UsageError:
        what = f"the rows have changed since {plural(self.before.rows, 'row')} of them were predicted ({self.partial})"
        return UsageError(what, where=source, hint="add --overwrite, which starts over")

    def write(self, data: bytes, counts: Sequence[Count] = ()) -> None:
        self.counts = summed([*self.counts, *counts])
        if self._file is None:
            return
        with disk_errors(self.partial):
            self._file.write(self._stored(data))
            self._file.flush()
            os.fsync(self._file.fileno())
            size = self._file.tell()
        if self.resumes:
            recorded: list[Any] = [list(count) for count in self.counts]
            done: dict[str, Any] = {"windows": self.windows, "rows": self.rows, "size": size}
            state = self.state._replace(
                **done, sha256=self._sha256, counts=recorded, faults=[self.faults.count, self.faults.shown]
            )
            write_json(self.progress, state.content())

    def _stored(self, data: bytes) -> bytes:
        return gzip.compress(data, mtime=0) if self.form.compressed else data

    def finish(self, writer: Writer | None) -> None:
        assert self.path is not None
        if self.windows < self.before.windows:
            raise self._changed(str(self.path))
        if self._file is None:
            return
        with disk_errors(self.path):
            if writer is not None and writer.end:
                self._file.write(self._stored(writer.end))
                self._file.flush()
            whole = self.partial if writer is None else writer.finished(self.partial)
            flush(whole)
            os.replace(whole, self.path)
            if whole != self.partial:
                self.partial.unlink(missing_ok=True)
            if not self.partial.exists():  # another command with --overwrite may have begun one since
                self.progress.unlink(missing_ok=True)
            flush(self.path.parent)


def unfinished(path: Path) -> tuple[Path, Path]:
    """OUT.partial and OUT.progress.json."""
    path = path.resolve()
    return path.with_name(f"{path.name}.partial"), path.with_name(f"{path.name}.progress.json")
