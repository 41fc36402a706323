"""The destination of a command's predictions: standard output, or a file; a folder is in prediction_folder.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from bertkit import progress
from bertkit.errors import UsageError
from bertkit.files import disk_errors
from bertkit.files.output_folder import lock
from bertkit.readers.content import STDIN
from bertkit.runs.prediction.outputs import OutputFormat, OutputState, unfinished


@dataclass(frozen=True)
class Destination:
    """A command's sources and the places of their predictions.

    files: for each source its output, None for standard output.
    """

    files: Mapping[str, Path | None]
    form: OutputFormat

    def has(self, source: str) -> bool:
        """Whether the output of a source is finished, so that it need not be predicted; only a folder may have some."""
        return False

    @property
    def recorded(self) -> OutputState | None:
        """The progress of an earlier command here, if any."""
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
        """Start over: remove the unfinished output of an earlier command."""
        for partial, saved in map(unfinished, filter(None, self.files.values())):
            with lock(partial) if partial.exists() else nullcontext():
                for path in (partial, saved):
                    with disk_errors(path):
                        path.unlink(missing_ok=True)
        yield

    def refuse_other_content(self, state: OutputState, sources: Iterable[str] | None = None) -> None:
        """Raise UsageError for output of another command here, which this one would mix with its own."""

    def claimed(self, state: OutputState, sources: Sequence[str]) -> AbstractContextManager[None]:
        """In this context, no other command may open the output of these sources. Only a folder needs it: a file has a lock."""
        return nullcontext()

    def close(self) -> None:
        """Record that all is predicted."""
