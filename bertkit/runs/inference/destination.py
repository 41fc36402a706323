"""The output file for each source's predictions: checked before any work, shared by processes, moved aside by --overwrite."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.errors import DataError, MachineError, UsageError, listed
from bertkit.files import disk_errors, flush, json_text, write_files
from bertkit.files.output_folder import lock, refuse_locked, refuse_unwritable
from bertkit.readers.content import nearest_files, plain_name, source_name
from bertkit.readers.remote import is_url, look_up, path_of
from bertkit.runs.inference.outputs import START_OVER, TEXT, OutputFormat, OutputState, is_text, suffix_of, unfinished
from bertkit.runs.inference.writers import COMPRESSED

STDIN = "-"
SETTINGS, SUCCESS = "_settings.json", "_SUCCESS"  # of a folder of predictions; engines that read such folders skip "_"


@dataclass(frozen=True)
class Destination:
    """A command's sources and the places of their predictions: a file or the standard output for one source, or a folder.

    files: for each source its output, None for the standard output. folder: --output-dir, if it is given.
    """

    files: Mapping[str, Path | None]
    form: OutputFormat
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
        """The destination that options name. endings: of all formats. Raises UsageError for options that exclude each other,
        and UsageError or MachineError for a place that cannot be written.
        """
        usual = "jsonl" if folder is not None or not sys.stdout.isatty() else TEXT
        wanted = OutputFormat(TEXT) if (form or usual) == TEXT else OutputFormat.of(f".{form or usual}")
        if output is not None and ((form is not None and suffix_of(wanted.ending) is None) or folder is not None):
            other = "--format" if form is not None else "--output-dir"
            hint = "leave out --format: the file's ending decides" if form is not None else "leave out one of the two"
            if form is not None and wanted.ending not in (TEXT, *endings):
                known = " or ".join(ending.lstrip(".") for ending in endings if suffix_of(ending) is not None)
                raise UsageError(f"--format is {form!r}; expected {known} with --output", hint=hint)
            raise UsageError(f"--output cannot be combined with {other}", hint=hint)
        if len(sources) > 1 and folder is None:
            raise UsageError(f"{len(sources)} files to predict; expected one", hint="for several: --output-dir FOLDER")
        if output is not None:
            found = OutputFormat.of(output.name)
            ends = f"--output {output} has {f'the extension {found.ending}' if found.ending else 'no file extension'}"
            if form is None:
                found.refuse_outside(ends, [ending for ending in endings if suffix_of(ending) is None])
            elif found.ending != wanted.suffix:
                raise UsageError(f"{ends}; expected {wanted.suffix} for --format {form}")
            else:
                found = OutputFormat(wanted.ending, found.compressed)
            refuse_unusable_output(output, sources, overwrite=overwrite)
            return cls({sources[0]: output}, found, overwrite=overwrite)
        here = endings if folder is not None else [TEXT, *(ending for ending in endings if is_text(ending))]
        if wanted.ending not in here or (wanted.compressed and (folder is None or not is_text(wanted.ending))):
            raise UsageError(f"--format is {form!r}; expected {' or '.join(ending.lstrip('.') for ending in here)}")
        if folder is None:
            return cls({sources[0]: None}, wanted, overwrite=overwrite)
        refuse_unwritable(folder)
        return cls(_paths_in(folder, sources, wanted), wanted, folder, overwrite)

    def has(self, source: str) -> bool:
        """Whether a folder has the finished output of a source."""
        path = self.files[source]
        return self.folder is not None and path is not None and path.exists()

    @property
    def recorded(self) -> OutputState | None:
        """The progress of an earlier command here, if any."""
        if self.folder is not None:
            return OutputState.read(self.folder / SETTINGS)
        (path,) = self.files.values()
        if path is None or not unfinished(path)[0].exists():
            return None
        if STDIN in self.files:
            what = "the predictions there are not finished, and standard input cannot be read again"
            if unfinished(path)[1].exists():
                raise UsageError(what, where=str(unfinished(path)[0]), hint="add --overwrite, which starts over")
            progress.note(f"{what} ({unfinished(path)[0]}): starting over")
        return OutputState.read(unfinished(path)[1])

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Start over: remove an unfinished --output. In a folder, the finished and unfinished output of earlier commands is
        moved to a subfolder, and back if this command writes nothing.
        """
        if self.folder is None:
            for partial, saved in map(unfinished, filter(None, self.files.values())):
                with lock(partial) if partial.exists() else nullcontext():
                    for path in (partial, saved):
                        with disk_errors(path):
                            path.unlink(missing_ok=True)
            yield
            return
        aside = self._move_aside(self.folder) if self.folder.is_dir() else None
        try:
            yield
        finally:
            if aside is not None and aside.is_dir():
                self._move_back(self.folder, aside)

    def _move_aside(self, folder: Path) -> Path | None:
        """Move the output of earlier commands to a subfolder; None if there is none."""
        with lock(folder, wait=True):  # so no command can claim an output meanwhile
            before = None
            with suppress(UsageError):  # of a damaged one
                before = OutputState.read(folder / SETTINGS)
            earlier = [folder / name for name in (before.sources if before is not None else ())]
            known = [*self._own, *(part for path in earlier for part in (path, *unfinished(path)))]
            known += [folder / SUCCESS, folder / SETTINGS]
            names = [name for name in dict.fromkeys(path.name for path in known) if (folder / name).exists()]
            if not names:
                return None
            for name in names:
                if name.endswith(".partial"):
                    refuse_locked(folder / name)
            aside = folder / f".old-{1 + _last_old(folder)}"
            with disk_errors(aside):
                aside.mkdir()
                try:
                    _move(sorted(names, key=_rank), folder, aside)
                except BaseException:
                    _restore(aside, folder)
                    raise
        progress.note(f"moved the old predictions to {aside}")
        return aside

    def _move_back(self, folder: Path, aside: Path) -> None:
        """Move the old output back if nothing was written in its place."""
        with lock(folder, wait=True), disk_errors(folder):
            if any(path.exists() for path in self._own):
                return
            if self._is_begun_by_others or aside.name != f".old-{_last_old(folder)}":
                progress.note(f"the old predictions stay in {aside}: another command has begun meanwhile")
            else:
                (folder / SETTINGS).unlink(missing_ok=True)
                _restore(aside, folder)
                progress.note(f"nothing was written: moved {aside} back")

    def refuse_other_content(self, state: OutputState, sources: Iterable[str] | None = None) -> None:
        """Raise UsageError if the folder's content was begun with other settings, or the output of one of these sources (by
        default, of all) is there from another one.
        """
        if self.folder is not None:
            self._refuse_other(self.folder, self.recorded or state, state, self.files if sources is None else sources)

    def _refuse_other(self, folder: Path, before: OutputState, state: OutputState, sources: Iterable[str]) -> None:
        described = self._described  # even if no output is there yet: a file may be changed after its rows are read
        before.refuse_other(state.settings, state.how, "the predictions there", str(folder))
        for source in sources:
            path = self.files[source]
            if path is None or not path.exists():
                continue
            was, now = before.sources.get(path.name), described[path.name]
            if was is None or now is None:
                raise UsageError(f"{path} already exists, but is not known to be from {source}", hint=START_OVER)
            if was != now:
                is_same = was[0] in (source, str(Path(source).resolve()))
                what = f"{path} already exists, from {f'an earlier {source}' if is_same else was[0]}"
                raise UsageError(what, where=source, hint=f"choose another --output-dir; or {START_OVER}")

    @contextmanager
    def claimed(self, state: OutputState, sources: Sequence[str]) -> Iterator[None]:
        """Make the folder, and at the end of the block write into it what its content is begun with. Until then other commands
        wait, so the output that is opened in the block is theirs or this command's, never both's.

        Entered when the first rows are read: a command that fails before then leaves nothing that would bind a later one.
        sources: those of this process that it is about to predict. Raises the errors of `refuse_other_content` for these if
        another command has begun since then.
        """
        if self.folder is None:
            yield
            return
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with lock(self.folder, wait=True):
            before = self.recorded or state
            own = {path.name: self._described[path.name] for path in map(self.files.get, sources) if path is not None}
            try:
                self._refuse_other(self.folder, before, state, sources)
                for name, source in own.items():
                    partial = unfinished(self.folder / name)[0]
                    if before.sources.get(name) not in (None, source) and partial.exists():
                        refuse_locked(partial)
            except UsageError as error:
                error.hint = "another command has begun there meanwhile: repeat this one, or choose another --output-dir"
                raise
            yield
            with disk_errors(self.folder):
                (self.folder / SUCCESS).unlink(missing_ok=True)
            begun = before._replace(sources={**self._described, **before.sources, **own})
            if begun != before:
                # Some network file systems lack locks: then at least no process takes another's temporary file.
                write_files(self.folder, {SETTINGS: json_text(begun._asdict())}, locked=False)

    @cached_property
    def _described(self) -> dict[str, Any]:
        """What identified the sources when the command began, by their outputs' names."""
        return {path.name: _describe(source) for source, path in self.files.items() if path is not None}

    @property
    def _is_begun_by_others(self) -> bool:
        assert self.folder is not None
        with suppress(UsageError):  # of a damaged one
            begun = OutputState.read(self.folder / SETTINGS)
            return begun is not None and not begun.sources.keys() <= {path.name for path in self.files.values() if path}
        return False

    @property
    def _own(self) -> list[Path]:
        """The finished and unfinished output of this command."""
        return [part for path in self.files.values() if path is not None for part in (path, *unfinished(path))]

    def close(self) -> None:
        """Write _SUCCESS into the folder once every file exists, whichever process or command was to write it."""
        if self.folder is None or not all(path is None or path.exists() for path in self.files.values()):
            return
        with lock(self.folder, wait=True), disk_errors(self.folder):
            begun = self.recorded
            if missing := [name for name in (begun.sources if begun is not None else ()) if not (self.folder / name).exists()]:
                (self.folder / SUCCESS).unlink(missing_ok=True)
                what = f"{self.folder} is not complete (no {SUCCESS}): {listed(missing)}, begun by another command, is missing"
                progress.note(f"{what}; finish that command, or start over with --overwrite")
                return
            (self.folder / SUCCESS).touch()
            flush(self.folder)


def _last_old(folder: Path) -> int:
    """The highest number of the subfolders with old output; 0 without any."""
    return max((int(path.name.removeprefix(".old-")) for path in folder.glob(".old-*") if path.name[5:].isdecimal()), default=0)


def _rank(name: str) -> int:
    """The order in which to move an output aside: after a kill, no _SUCCESS is left over other files, and no file over none of
    the settings that it was begun with. Moved back in the opposite order.
    """
    return {SUCCESS: 0, SETTINGS: 2}.get(name, 1)


def _move(names: Iterable[str], folder: Path, to: Path) -> None:
    for name in names:
        os.rename(folder / name, to / name)


def _restore(aside: Path, folder: Path) -> None:
    _move(sorted(os.listdir(aside), key=_rank, reverse=True), aside, folder)
    aside.rmdir()


def _describe(source: str) -> list[Any] | None:
    """What identifies a file and its version; None for the standard input, which cannot be read again."""
    if source == STDIN:
        return None
    if is_url(source):
        return [file for found in look_up(source).files for file in found]
    if not Path(source).is_file():  # a split of the run's own data, or a folder
        return [source]
    stat = Path(source).stat()
    return [str(Path(source).resolve()), stat.st_size, stat.st_mtime_ns]


def expand(names: Sequence[str]) -> list[str]:
    """Files by name, URL or pattern. Raises UsageError for a pattern without matches, DataError for a missing file."""
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


def _paths_in(folder: Path, sources: Sequence[str], form: OutputFormat) -> dict[str, Path | None]:
    """An output file for each source, with its name and another ending. Raises UsageError if two sources get the same."""
    paths: dict[str, Path | None] = {}
    taken: dict[Path, str] = {}
    for source in sources:
        name = Path(plain_name(source_name(source))).stem + form.suffix + (COMPRESSED if form.compressed else "")
        path = paths[source] = folder / name
        if sources.count(source) > 1:
            raise UsageError(f"{source_name(source)} is given twice", hint="give each input once")
        if (other := taken.setdefault(path, source)) != source:
            raise UsageError(f"{other} and {source} would both be written to {path}", hint="write them to two folders")
        with suppress(OSError):
            if path.resolve() == path_of(source).resolve():
                raise UsageError(f"the output {path} is the input file", hint="choose another --output-dir")
    return paths


def refuse_unusable_output(output: Path, sources: Sequence[str], *, overwrite: bool) -> None:
    """Raise UsageError for an --output that cannot be written, or is finished, before any work; MachineError for its folder."""
    if not output.absolute().parent.is_dir():
        raise UsageError("the folder of --output does not exist", where=str(output.parent))
    if output.resolve() in (path_of(source).resolve() for source in sources):
        raise UsageError(f"--output {output} is the input file", hint="choose another name")
    if output.is_dir():
        raise UsageError("--output is a folder; expected a file", where=str(output), hint="for a folder: --output-dir")
    parent = output.resolve().parent
    if (output.is_file() or not output.exists()) and not os.access(parent, os.W_OK):  # not of a pipe
        raise MachineError("the folder of --output cannot be written", where=str(parent), hint="choose another place")
    if output.is_file() and not overwrite and not unfinished(output)[0].exists():
        raise UsageError("--output already exists", where=str(output), hint="choose another name, or add --overwrite")
