"""The folder of predictions (--output-dir): shared by processes and commands, begun with one command's settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.errors import UsageError, listed
from bertkit.files import disk_errors, flush, json_text, write_files
from bertkit.files.output_folder import lock, refuse_locked
from bertkit.readers.content import STDIN
from bertkit.readers.remote import is_url, look_up
from bertkit.runs.prediction.destination import Destination
from bertkit.runs.prediction.outputs import START_OVER, OutputState, unfinished

SETTINGS, SUCCESS = "_settings.json", "_SUCCESS"  # engines that read such folders skip names that begin with "_"


@dataclass(frozen=True)
class PredictionFolder(Destination):
    """A folder with the output of each source, the settings of all of them, and _SUCCESS once all are there."""

    files: Mapping[str, Path]
    folder: Path

    def has(self, source: str) -> bool:
        return self.files[source].exists()

    @property
    def recorded(self) -> OutputState | None:
        return OutputState.read(self.folder / SETTINGS)

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Start over: the finished and unfinished output of earlier commands is moved to a subfolder, and back if this command
        writes nothing.
        """
        aside = self._move_aside() if self.folder.is_dir() else None
        try:
            yield
        finally:
            if aside is not None and aside.is_dir():
                self._move_back(aside)

    def _move_aside(self) -> Path | None:
        """Move the output of earlier commands to a subfolder; None if there is none."""
        folder = self.folder
        with lock(folder, wait=True):  # so no command can claim an output meanwhile
            outputs = dict.fromkeys([*self._described, *self._recorded_sources])
            known = [*(part for name in outputs for part in _parts(folder / name)), folder / SUCCESS, folder / SETTINGS]
            names = [path.name for path in known if path.exists()]
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

    def _move_back(self, aside: Path) -> None:
        """Move the old output back if nothing was written in its place."""
        folder = self.folder
        with lock(folder, wait=True), disk_errors(folder):
            if any(part.exists() for path in self.files.values() for part in _parts(path)):
                return
            is_of_others = not self._recorded_sources.keys() <= self._described.keys()
            if is_of_others or aside.name != f".old-{_last_old(folder)}":
                progress.note(f"the old predictions stay in {aside}, because another command has started in this folder")
            else:
                (folder / SETTINGS).unlink(missing_ok=True)
                _restore(aside, folder)
                progress.note(f"nothing was written: moved {aside} back")

    def refuse_other_content(self, state: OutputState, sources: Iterable[str] | None = None) -> None:
        """Raise UsageError if the folder's content was begun with other settings, or the output of one of these sources (by
        default, of all) is there from another one.
        """
        before = self.recorded or state
        described = self._described  # even if no output is there yet: a file may be changed after its rows are read
        before.refuse_other(state, "the predictions there", str(self.folder))
        for source in self.files if sources is None else sources:
            path = self.files[source]
            if not path.exists():
                continue
            was, now = before.sources.get(path.name), described[path.name]
            if was is None or now is None:
                raise UsageError(
                    f"{path} already exists, and there is no record that it was made from {source}", hint=START_OVER
                )
            if was != now:
                is_same = was[0] in (source, str(Path(source).resolve()))
                what = f"{path} already exists, from {f'an earlier {source}' if is_same else was[0]}"
                raise UsageError(what, where=source, hint=f"choose another --output-dir; or {START_OVER}")

    @contextmanager
    def claimed(self, state: OutputState, sources: Sequence[str]) -> Iterator[None]:
        """Make the folder, and at the end of the block record the settings and sources in it. Until then other commands wait,
        so the output that is opened in the block is theirs or this command's, never both's.

        Entered when the first rows are read: a command that fails before then leaves nothing that would bind a later one.
        sources: those of this process that it is about to predict. Raises the errors of `refuse_other_content` for these if
        another command has begun since then.
        """
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with lock(self.folder, wait=True):
            before = self.recorded or state
            own = {name: self._described[name] for name in (self.files[source].name for source in sources)}
            try:
                self.refuse_other_content(state, sources)
                for name, source in own.items():
                    partial = unfinished(self.folder / name)[0]
                    if before.sources.get(name) not in (None, source) and partial.exists():
                        refuse_locked(partial)
            except UsageError as error:
                error.hint = "another command has started in this folder: repeat this one, or choose another --output-dir"
                raise
            yield
            with disk_errors(self.folder):
                (self.folder / SUCCESS).unlink(missing_ok=True)
            begun = before._replace(sources={**self._described, **before.sources, **own})
            if begun != before:
                # Some network file systems lack locks: then at least no process takes another's temporary file.
                write_files(self.folder, {SETTINGS: json_text(begun.content())}, locked=False)

    @cached_property
    def _described(self) -> dict[str, Any]:
        """What identified the sources when the command began, by their outputs' names."""
        return {path.name: _describe(source) for source, path in self.files.items()}

    @property
    def _recorded_sources(self) -> Mapping[str, Any]:
        """The sources of all outputs that were begun here, by the outputs' names; none if their record is damaged."""
        with suppress(UsageError):
            begun = self.recorded
            return begun.sources if begun is not None else {}
        return {}

    def close(self) -> None:
        """Write _SUCCESS into the folder once every file exists, whichever process or command was to write it."""
        if not all(path.exists() for path in self.files.values()):
            return
        with lock(self.folder, wait=True), disk_errors(self.folder):
            begun = self.recorded
            names = begun.sources if begun is not None else ()
            if missing := [name for name in names if not (self.folder / name).exists()]:
                (self.folder / SUCCESS).unlink(missing_ok=True)
                what = f"{self.folder} is not complete (no {SUCCESS}): {listed(missing)}, begun by another command, is missing"
                progress.note(f"{what}; finish that command, or start over with --overwrite")
                return
            (self.folder / SUCCESS).touch()
            flush(self.folder)


def _parts(path: Path) -> tuple[Path, Path, Path]:
    """A finished output, and what is there while it is unfinished."""
    return (path, *unfinished(path))


def _last_old(folder: Path) -> int:
    """The highest number of the subfolders with old output; 0 without any."""
    return max((int(path.name.removeprefix(".old-")) for path in folder.glob(".old-*") if path.name[5:].isdecimal()), default=0)


def _rank(name: str) -> int:
    """The order in which to move an output aside: _SUCCESS first and _settings.json last, so that a kill never leaves _SUCCESS
    beside missing files, or an output without its settings. Moved back in the opposite order.
    """
    return {SUCCESS: 0, SETTINGS: 2}.get(name, 1)


def _move(names: Iterable[str], folder: Path, to: Path) -> None:
    for name in names:
        os.rename(folder / name, to / name)


def _restore(aside: Path, folder: Path) -> None:
    _move(sorted(os.listdir(aside), key=_rank, reverse=True), aside, folder)
    aside.rmdir()


def _describe(source: str) -> list[Any] | None:
    """What identifies a file and its version; None for standard input, which cannot be read again."""
    if source == STDIN:
        return None
    if is_url(source):
        return [file for found in look_up(source).files for file in found]
    if not Path(source).is_file():  # a split of the run's own data, or a folder
        return [source]
    stat = Path(source).stat()
    return [str(Path(source).resolve()), stat.st_size, stat.st_mtime_ns]
