"""Where predictions go: standard output, a file that the same command continues after a kill, or a folder of files."""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bertkit import progress
from bertkit.errors import DataError, UsageError, plural
from bertkit.files import disk_errors, flush, lock, write_json
from bertkit.readers import Examples
from bertkit.readers.content import nearest_files, source_name, unpacked_name
from bertkit.readers.faults import Faults
from bertkit.readers.remote import is_url, look_up, path_of
from bertkit.tasks.annotation import FORMATS
from bertkit.tasks.output import PACKED, Writer
from bertkit.tasks.presentation import Count, summed

STDIN, TEXT = "-", "text"
SETTINGS, SUCCESS = "_settings.json", "_SUCCESS"  # of a folder of predictions; engines that read such folders skip "_"
_START_OVER = "repeat the first command unchanged, or start over with --overwrite"


class Form(NamedTuple):
    """How predictions are written: a format by its ending, or TEXT for people; and whether they are packed."""

    ending: str
    packed: bool = False

    @property
    def suffix(self) -> str:
        """What names of such files end in, but for the packing's ending."""
        return _suffix(self.ending) or self.ending

    @classmethod
    def of(cls, name: str) -> Form:
        """That of a file's name, as "said.jsonl.gz"; an ending alone, as ".csv", will do."""
        bare = name.removesuffix(PACKED)
        return cls(os.path.splitext(f"x{bare}" if bare.startswith(".") else bare)[1], bare != name)

    def check(self, given: str, endings: Sequence[str]) -> None:
        """Raise UsageError for one that is not among these endings. given: as the user names it."""
        if self.ending not in endings or (self.packed and not _is_text(self.ending)):
            named = [f"{ending}[{PACKED}]" if _is_text(ending) else ending for ending in endings]
            raise UsageError(f"{given}; expected {', '.join(named[:-1])} or {named[-1]}")


def _suffix(ending: str) -> str | None:
    """That of files whose format their names do not tell."""
    return FORMATS[ending].suffix if ending in FORMATS else None


def _is_text(ending: str) -> bool:
    return ending not in FORMATS or FORMATS[ending].is_text


class Output:
    """Takes windows of predictions one after another; this one shows them at once, on the standard output or a device."""

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.windows, self.rows = path, 0, 0
        self.faults = Faults("skip")  # of rows that are left out
        self.counts: list[Count] = []
        self._file: BinaryIO | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.path is not None:
                with disk_errors(self.path):
                    self._file = stack.enter_context(self.path.open("wb", buffering=0))
            yield

    def has(self, window: Examples) -> bool:
        """Whether the next window of rows, which is this one, is there from an earlier command."""
        self.windows, self.rows = self.windows + 1, self.rows + len(window)
        return False

    @property
    def predictions(self) -> int:
        return self.rows - self.faults.count

    def write(self, data: bytes, counts: Sequence[Count] = ()) -> None:
        """Take the window's predictions, and what to tell of them at the end."""
        self.counts = summed([*self.counts, *counts])
        if self._file is not None:
            self._file.write(data)
        elif data:
            sys.stdout.write(data.decode("utf-8", "surrogatepass"))
            sys.stdout.flush()

    def finish(self, writer: Writer | None) -> None:
        """All windows are written."""
        if writer is not None and writer.end:
            self.write(writer.end)


class Progress(NamedTuple):
    """What OUT.progress.json says of OUT.partial. settings: what the predictions depend on. how: with what they are computed.
    size: of OUT.partial, in bytes. sha256: of the rows of these windows. sources: of a folder, what each output is of.
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
    def read(cls, path: Path) -> Progress | None:
        """None where there is none. Raises UsageError for another file."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"cannot read the progress of the predictions: {error}", where=str(path), hint=_START_OVER
            ) from None

    def refuse_other(self, settings: Mapping[str, Any], how: Mapping[str, Any], where: str) -> None:
        """Raise UsageError for a command that would not go on as this one began."""
        now = {**json.loads(json.dumps(settings)), **how}
        before = {**self.settings, **self.how}
        if changed := next((name for name in now if now[name] != before.get(name)), None):
            what = f"the predictions there were started with {'other' if changed.endswith('s') else 'another'} {changed}"
            if isinstance(now[changed], (str, int)):
                what += f": {before.get(changed)}, and now {now[changed]}"
            raise UsageError(what, where=where, hint=_START_OVER)


class OutputFile(Output):
    """A file that is whole or absent: windows go to OUT.partial, and OUT.progress.json says how far they are.

    writes: whether this process does. resumes: whether the same rows can be read again.
    """

    def __init__(self, path: Path, form: Form, state: Progress, *, writes: bool, resumes: bool) -> None:
        super().__init__(path.resolve())
        self.form, self.state, self.writes, self.resumes = form, state, writes, resumes
        self.partial, self.progress = unfinished(path)
        self._size = self.partial.stat().st_size if self.partial.exists() else 0
        before = Progress.read(self.progress) if self.partial.exists() else None
        if before is not None and self._size < before.size:
            before = None  # OUT.partial was cut off: it starts over
        if before is not None:
            before.refuse_other(state.settings, state.how, str(self.partial))
            self.counts = [Count(*each) for each in before.counts]
            self.faults.count, self.faults.shown = before.faults
        self._found, self.before = before, before or state
        self._sha256 = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.writes:
                with disk_errors(self.partial):
                    self._file = stack.enter_context(self.partial.open("ab"))
                stack.enter_context(lock(self.partial))
                if not self._is_as_found():
                    what = "another process has just written these predictions"
                    raise UsageError(what, where=str(self.path), hint="repeat the command")
                if self.before.windows:
                    progress.note(f"{self.path}: continuing after {plural(self.before.rows, 'row')}")
                self._file.truncate(self.before.size)
                stack.callback(self._leave_nothing_empty)
            yield

    def _is_as_found(self) -> bool:
        """Whether OUT.partial is still the file that was found when the command began: now it is locked."""
        assert self._file is not None
        here = os.fstat(self._file.fileno())
        is_there = self.partial.exists() and os.path.samestat(here, self.partial.stat())
        return is_there and here.st_size == self._size and self._found in (None, Progress.read(self.progress))

    def _leave_nothing_empty(self) -> None:
        """Remove OUT.partial where the first window has failed."""
        if self.partial.exists() and not self.partial.stat().st_size:
            self.partial.unlink()

    def has(self, window: Examples) -> bool:
        super().has(window)
        self._sha256 = hashlib.sha256(f"{self._sha256} {window.columns!r}".encode("utf-8", "surrogatepass")).hexdigest()
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
            told = [list(count) for count in self.counts]
            done: dict[str, Any] = {"windows": self.windows, "rows": self.rows, "size": size}
            state = self.state._replace(**done, sha256=self._sha256, counts=told, faults=[self.faults.count, self.faults.shown])
            write_json(self.progress, state._asdict())

    def _stored(self, data: bytes) -> bytes:
        return gzip.compress(data, mtime=0) if self.form.packed else data

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
            self.partial.unlink(missing_ok=True)
            self.progress.unlink(missing_ok=True)
            flush(self.path.parent)


def unfinished(path: Path) -> tuple[Path, Path]:
    """OUT.partial and OUT.progress.json."""
    path = path.resolve()
    return path.with_name(f"{path.name}.partial"), path.with_name(f"{path.name}.progress.json")


# --- which file goes where --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Destination:
    """What a command reads and where its predictions go: one source to a file or the standard output, or several to a folder.

    files: for each source its output, None for the standard output. folder: --output-dir, if it is given.
    """

    files: Mapping[str, Path | None]
    form: Form
    folder: Path | None = None
    overwrite: bool = False

    @classmethod
    def of(
        cls,
        sources: Sequence[str],
        output: Path | None,
        folder: Path | None,
        form: str | None,
        endings: Sequence[str],
        *,
        overwrite: bool,
    ) -> Destination:
        """endings: of all formats. Raises UsageError for options that exclude each other, and for what cannot be written."""
        usual = "jsonl" if folder is not None or not sys.stdout.isatty() else TEXT
        wanted = Form(TEXT) if (form or usual) == TEXT else Form.of(f".{form or usual}")
        if output is not None and ((form is not None and _suffix(wanted.ending) is None) or folder is not None):
            other = "--format" if form is not None else "--output-dir"
            hint = "leave out --format: the file's ending decides" if form is not None else "leave out one of the two"
            if form is not None and wanted.ending not in (TEXT, *endings):
                known = " or ".join(ending.lstrip(".") for ending in endings if _suffix(ending) is not None)
                raise UsageError(f"--format is {form!r}; expected {known} with --output", hint=hint)
            raise UsageError(f"--output cannot be combined with {other}", hint=hint)
        if len(sources) > 1 and folder is None:
            raise UsageError(f"{len(sources)} files to predict; expected one", hint="for several: --output-dir FOLDER")
        if output is not None:
            found = Form.of(output.name)
            ends = f"--output {output} has {f'the extension {found.ending}' if found.ending else 'no file extension'}"
            if form is None:
                found.check(ends, [ending for ending in endings if _suffix(ending) is None])
            elif found.ending != wanted.suffix:
                raise UsageError(f"{ends}; expected {wanted.suffix} for --format {form}")
            else:
                found = Form(wanted.ending, found.packed)
            check_output(output, sources, overwrite=overwrite)
            return cls({sources[0]: output}, found, overwrite=overwrite)
        here = endings if folder is not None else [TEXT, *(ending for ending in endings if _is_text(ending))]
        if wanted.ending not in here or (wanted.packed and (folder is None or not _is_text(wanted.ending))):
            raise UsageError(f"--format is {form!r}; expected {' or '.join(ending.lstrip('.') for ending in here)}")
        if folder is None:
            return cls({sources[0]: None}, wanted, overwrite=overwrite)
        return cls(_paths_in(folder, sources, wanted), wanted, folder, overwrite)

    @property
    def recorded(self) -> Progress | None:
        """What an earlier command has begun here."""
        if self.folder is not None:
            return Progress.read(self.folder / SETTINGS)
        (path,) = self.files.values()
        if path is None or not unfinished(path)[0].exists():
            return None
        if STDIN in self.files:
            what = "standard input cannot be read again, and the predictions there are not finished"
            if unfinished(path)[1].exists():
                raise UsageError(what, where=str(unfinished(path)[0]), hint="add --overwrite, which starts over")
            progress.note(f"{what} ({unfinished(path)[0]}): starting over")
        return Progress.read(unfinished(path)[1])

    def start_over(self) -> None:
        """Remove what an earlier command has written or begun."""
        if self.folder is not None and self.folder.is_dir():
            before = Progress.read(self.folder / SETTINGS)
            begun = [self.folder / name for name in (before.sources if before is not None else ())]
            for path in (self.folder / SUCCESS, self.folder / SETTINGS, *begun, *filter(None, self.files.values())):
                with disk_errors(path):
                    path.unlink(missing_ok=True)
        for path in filter(None, self.files.values()):
            for each in unfinished(path):
                with disk_errors(each):
                    each.unlink(missing_ok=True)

    def prepare(self, state: Progress) -> None:
        """Make the folder, or check that what is in it was begun alike, of the same sources. Raises UsageError."""
        if self.folder is None:
            return
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        before = self.recorded or state
        before.refuse_other(state.settings, state.how, str(self.folder))
        sources = {path.name: _describe(source) for source, path in self.files.items() if path is not None}
        for source, path in self.files.items():
            if path is None or not path.exists():
                with disk_errors(self.folder):
                    (self.folder / SUCCESS).unlink(missing_ok=True)
            elif path.name not in before.sources or None in (sources[path.name], before.sources[path.name]):
                raise UsageError(f"{path} already exists, but is not known to be from {source}", hint=_START_OVER)
            elif before.sources[path.name] != sources[path.name]:
                was = before.sources[path.name][0]
                is_same = was in (source, str(Path(source).resolve()))
                what = f"{path} already exists, from {f'an earlier {source}' if is_same else was}"
                raise UsageError(what, where=source, hint=f"choose another --output-dir; or {_START_OVER}")
        write_json(self.folder / SETTINGS, before._replace(sources={**before.sources, **sources})._asdict())

    def close(self) -> None:
        """Leave _SUCCESS in the folder once every file is there, whichever process wrote it."""
        if self.folder is not None and all(path is None or path.exists() for path in self.files.values()):
            with disk_errors(self.folder):
                (self.folder / SUCCESS).touch()
                flush(self.folder)


def _describe(source: str) -> list[Any] | None:
    """What tells a file from others, and from what it was; None for the standard input, which nobody can read again."""
    if source == STDIN:
        return None
    if is_url(source):
        return [file for found in look_up(source).files for file in found]
    if not Path(source).is_file():  # a split of the run's own data, or a folder
        return [source]
    stat = Path(source).stat()
    return [str(Path(source).resolve()), stat.st_size, stat.st_mtime_ns]


def expand(names: Sequence[str]) -> list[str]:
    """Files by name, URL or pattern. Raises UsageError for a pattern of none, DataError for a file that is missing."""
    found: list[str] = []
    for name in names:
        if is_url(name):
            files, is_folder = look_up(name)
            matches = [name] if is_folder else [file.url for file in files]
        elif name == STDIN or Path(name).exists():
            matches = [name]
        elif not glob.has_magic(name):
            raise DataError("no such file", where=name, hint=nearest_files(Path(name)))
        else:
            matches = sorted(match for match in glob.glob(name, recursive=True) if Path(match).is_file())
        if not matches:
            raise UsageError(f"no file matches {name}", hint=None if is_url(name) else nearest_files(Path(name)))
        found += matches
    return found


def _paths_in(folder: Path, sources: Sequence[str], form: Form) -> dict[str, Path | None]:
    """A file for each source, of its name with another ending. Raises UsageError where two have the same."""
    paths: dict[str, Path | None] = {}
    taken: dict[Path, str] = {}
    for source in sources:
        name = Path(unpacked_name(source_name(source))).stem + form.suffix + (PACKED if form.packed else "")
        path = paths[source] = folder / name
        if (other := taken.setdefault(path, source)) != source or sources.count(source) > 1:
            raise UsageError(f"{other} and {source} would both be written to {path}", hint="predict them into two folders")
        with suppress(OSError):
            if path.resolve() == path_of(source).resolve():
                raise UsageError(f"the output {path} is the input file", hint="choose another --output-dir")
    return paths


def check_output(output: Path, sources: Sequence[str], *, overwrite: bool) -> None:
    """Raise UsageError for an --output that cannot be written, or is finished, before any work."""
    if not output.absolute().parent.is_dir():
        raise UsageError("the folder of --output does not exist", where=str(output.parent))
    if output.resolve() in (path_of(source).resolve() for source in sources):
        raise UsageError(f"--output {output} is the input file", hint="choose another name")
    if output.is_dir():
        raise UsageError("--output is a folder; expected a file", where=str(output), hint="for a folder: --output-dir")
    if output.is_file() and not overwrite and not unfinished(output)[0].exists():
        raise UsageError("--output already exists", where=str(output), hint="choose another name, or add --overwrite")
