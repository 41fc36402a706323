"""What a person sees while a command works: notes, bars and tables on stderr, and metrics.jsonl. Silent on other ranks."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

SECONDS_BETWEEN_LINES = 15.0  # where there is no terminal to draw a bar in

_WIDE = 1000  # columns where there is no terminal: nothing is wrapped, a row is a line

console = Console(stderr=True, highlight=False, soft_wrap=True)


def silence() -> None:
    """Show nothing from here on: for every process but the main one."""
    console.quiet = True


def plain(text: object) -> Text:
    """Text of a data set as it stands: no markup is read, control characters are shown and not obeyed."""
    return Text("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(text)))


def note(text: str) -> None:
    """One line for the user."""
    console.print(plain(text))


def warn(text: str) -> None:
    """One line about something that is not as the user may think."""
    console.print(Text("warning: ", style="yellow") + plain(text))


def show(texts: Iterable[Text]) -> None:
    """Results for a person, on standard output: in colour where that is a terminal."""
    out = Console(highlight=False, soft_wrap=True)
    for text in texts:
        out.print(text)


def error(text: str) -> None:
    """One line about something that must be mended."""
    console.print(Text("error: ", style="red") + plain(text))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers are set to the right, and a missing value is a dash."""
    drawn = Table(title=plain(title), title_justify="left", title_style="bold")
    rows = [list(row) for row in rows]
    for at, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], (int, float, type(None))) for row in rows)
        drawn.add_column(plain(column), justify="right" if numeric else "left")
    for row in rows:
        drawn.add_row(*(plain(_shown(value)) for value in row))
    wide = console if console.is_terminal else Console(file=console.file, width=_WIDE, quiet=console.quiet)
    wide.print(drawn)


def between(bounds: Sequence[float] | None, form: str = ".4f") -> str | None:
    """An interval as a cell of a table."""
    return None if bounds is None else " to ".join(f"{bound:{form}}" for bound in bounds)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


class Bar(Protocol):
    def advance(self, amount: int = 1, **shown: str) -> None: ...


@contextmanager
def bar(description: str, total: int, *, done: int = 0) -> Iterator[Bar]:
    """A progress bar in a terminal; elsewhere a line now and then."""
    if not console.is_terminal:
        yield _Lines(description, total, done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[shown]}"),
    )
    with Progress(*columns, console=console, transient=False) as progress:
        task = progress.add_task(description, total=total, completed=done, shown="")

        class Drawn:
            def advance(self, amount: int = 1, **shown: str) -> None:
                progress.advance(task, amount)
                if shown:
                    progress.update(task, shown="  ".join(f"{k} {v}" for k, v in shown.items()))

        yield Drawn()


class _Lines:
    def __init__(self, description: str, total: int, done: int) -> None:
        self.description, self.total, self.begun, self.done = description, total, done, done
        self.start = self.last = time.monotonic()

    def advance(self, amount: int = 1, **shown: str) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_LINES and self.done < self.total:
            self.last = now
            left = (now - self.start) / max(1, self.done - self.begun) * (self.total - self.done)
            details = "".join(f"  {k} {v}" for k, v in shown.items())
            note(f"{self.description} {self.done}/{self.total}{details}  {left:.0f} s left")


class MetricsLog:
    """metrics.jsonl: one object a log event, appended; what lies after a step can be cut off when a run goes on from there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({key: _finite(value) for key, value in event.items()}) + "\n")

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]

    def cut_after(self, step: int) -> None:
        """Drop the events of later steps, and a line that a kill left half written."""
        kept = [event for event in self.read() if event["step"] <= step]
        aside = self.path.with_name(f".unfinished-{self.path.name}")
        aside.write_text("".join(json.dumps(event) + "\n" for event in kept), encoding="utf-8")
        os.replace(aside, self.path)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
