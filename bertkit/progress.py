"""Output of a running command: notes, progress bars and tables on stderr, results on stdout. Other ranks print only what
rank 0 does not know."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

SECONDS_BETWEEN_LINES = 15.0  # of progress, where stderr is not a terminal

_BORDER = 3  # of a column of a table: a line and two spaces
_LONGEST_WORD = 20  # characters of a cell that are not broken over lines
_WIDE = 1000  # columns where stderr is not a terminal: one line per row, nothing is wrapped

Item = TypeVar("Item")


class _Console(Console):
    is_main = True  # this process

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError instead of ending the process, as rich does."""
        raise  # rich calls this while it handles the error


console = _Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def on_main_process(*, is_main: bool) -> Iterator[None]:
    """Print in the main process only. is_main: whether this is it."""
    before = console.is_main, console.quiet
    console.is_main, console.quiet = is_main, console.quiet or not is_main
    try:
        yield
    finally:
        console.is_main, console.quiet = before


@contextmanager
def on_every_process() -> Iterator[None]:
    """Print in this process even if it is not the main one."""
    before, console.quiet = console.quiet, False
    try:
        yield
    finally:
        console.quiet = before


def is_main_process() -> bool:
    """Whether this is the main process, the one of rank 0."""
    return console.is_main


def plain(text: object) -> Text:
    """Text shown literally: markup is not interpreted, control characters are escaped."""
    return Text("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(text)))


def escaped(text: Text) -> Text:
    """Text with its styles, and with control characters escaped: labels and tags are data, like texts."""
    marks = [at for at, character in enumerate(text.plain) if not (character.isprintable() or character == "\n")]
    pieces = text.divide([edge for at in marks for edge in (at, at + 1)]) if marks else [text]
    return Text().join(piece if piece.plain.isprintable() or "\n" in piece.plain else plain(piece.plain) for piece in pieces)


def note(text: str) -> None:
    """Print one line."""
    console.print(plain(text))


def warn(text: str) -> None:
    """Print one line about something the user may not expect."""
    console.print(Text("warning: ", style="yellow") + plain(text))


@cache
def warn_once(text: str) -> None:
    """Print a warning unless this process has printed it before."""
    warn(text)


def print_results(texts: Iterable[Text]) -> None:
    """Print results on stdout, in colour if it is a terminal."""
    out = _Console(highlight=False, soft_wrap=True)
    for text in texts:
        out.print(escaped(text))


def error(text: str) -> None:
    """Print one line about something the user must fix."""
    console.print(Text("error: ", style="red") + plain(text))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, stdout: bool = False) -> None:
    """Print a table; numbers are aligned right, and a missing value is a dash. stdout: print it there, as a result.

    In a terminal that is too narrow, columns continue in tables below that repeat the first column: no number is cut.
    """
    rows = [list(row) for row in rows]
    to = _Console(highlight=False, quiet=console.quiet) if stdout else console
    wide = to if to.is_terminal else _Console(file=to.file, width=_WIDE, quiet=to.quiet)
    cells = [[format_cell(cell) for cell in column] for column in zip(columns, *rows, strict=True)]
    fits = sum(_BORDER + max(map(cell_len, column)) for column in cells) < wide.width
    needed = [min(_LONGEST_WORD, max(cell_len(word) for cell in column for word in cell.split(" "))) for column in cells]
    for part in [range(len(cells))] if fits else _parts_that_fit(needed, wide.width):
        grid = Table(title=plain(title), title_justify="left", title_style="bold")
        for number in part:
            right = is_numeric(rows, number)
            width = needed[number] if right and not fits else None
            grid.add_column(plain(cells[number][0]), justify="right" if right else "left", width=width, overflow="fold")
        for row in range(1, 1 + len(rows)):
            grid.add_row(*(plain(cells[number][row]) for number in part))
        wide.print(grid)


def _parts_that_fit(needed: Sequence[int], width: int) -> list[list[int]]:
    """The columns of each table, if none may be wider than this. needed: the width of each column."""
    parts, left = [[0]], width - 1 - _BORDER - needed[0]
    for number in range(1, len(needed)):
        if needed[number] + _BORDER > left and len(parts[-1]) > 1:
            parts, left = [*parts, [0]], width - 1 - _BORDER - needed[0]
        parts[-1].append(number)
        left -= needed[number] + _BORDER
    return parts


def is_numeric(rows: Sequence[Sequence[Any]], column: int) -> bool:
    """Whether a table column has only numbers and missing values."""
    return bool(rows) and all(isinstance(row[column], (int, float, type(None))) for row in rows)


def format_interval(bounds: Sequence[float] | None, spec: str = ".4f") -> str | None:
    """An interval as a table cell."""
    return None if bounds is None else " to ".join(f"{bound:{spec}}" for bound in bounds)


def format_cell(value: Any) -> str:
    """A value as shown in a table; text is quoted if surrounded by white space, which would be invisible."""
    if value is None:
        return "-"
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if text == text.strip() else repr(text)


class Bar(Protocol):
    def advance(self, amount: int = 1, **values: str) -> None: ...


@contextmanager
def bar(description: str, total: int, *, done: int = 0) -> Iterator[Bar]:
    """A progress bar in a terminal; elsewhere an occasional line."""
    if not console.is_terminal:
        yield _Lines(description, total, done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[values]}"),
    )
    with Progress(*columns, console=console, transient=False) as progress:
        task = progress.add_task(description, total=total, completed=done, values="")

        class Drawn:
            def advance(self, amount: int = 1, **values: str) -> None:
                progress.advance(task, amount)
                if values:
                    progress.update(task, values="  ".join(f"{k} {v}" for k, v in values.items()))

        yield Drawn()


def with_bar(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """The items, with a bar that advances by one each."""
    with bar(description, total) as drawn:
        for item in items:
            yield item
            drawn.advance()


class _Nothing:
    def advance(self, amount: int = 1, **values: str) -> None:
        pass


NO_BAR: Bar = _Nothing()


class Rate:
    """The number of rows done, rows per second and, if the size of the input is known, the time left."""

    def __init__(self, description: str, show: Callable[[str, float | None], None]) -> None:
        self.description, self._show = description, show
        self._start, self._before, self._rows = time.monotonic(), 0.0, 0.0
        self.share: float | None = 0.0  # of the input that is done

    def skip(self, share: float | None) -> None:
        """Skip rows that an earlier command did; they do not count for the speed."""
        self._start, self._before, self._rows, self.share = time.monotonic(), share or 0.0, 0.0, share

    def move(self, rows: float, share: float | None) -> None:
        """Count more rows as done; share: of the input, if known."""
        self._rows, self.share = self._rows + rows, share
        seconds = max(1e-9, time.monotonic() - self._start)
        line = f"{self.description} {self._rows:,.0f} rows  {self._rows / seconds:,.0f} rows/s"
        if share is not None and share > self._before:
            line += f"  {seconds * (1 - share) / (share - self._before):.0f} s left"
        self._show(line, share)


@contextmanager
def rate(description: str, *, shown: bool = True) -> Iterator[Rate]:
    """A bar with a Rate in a terminal; elsewhere an occasional line."""
    if not shown:
        yield Rate(description, lambda line, share: None)
    elif not console.is_terminal:
        last = time.monotonic()

        def show(line: str, share: float | None) -> None:
            nonlocal last
            if (now := time.monotonic()) - last >= SECONDS_BETWEEN_LINES and share != 1:
                last = now
                note(line)

        yield Rate(description, show)
    else:
        with Progress(BarColumn(bar_width=24), TextColumn("{task.description}"), console=console) as drawn:
            task = drawn.add_task(description, total=None)

            def draw(line: str, share: float | None) -> None:
                drawn.update(task, description=line, total=None if share is None else 1.0, completed=share or 0.0)

            yield Rate(description, draw)


class _Lines:
    def __init__(self, description: str, total: int, done: int) -> None:
        self.description, self.total, self.done_before, self.done = description, total, done, done
        self.start = self.last = time.monotonic()

    def advance(self, amount: int = 1, **values: str) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_LINES and self.done < self.total:
            self.last = now
            left = (now - self.start) / max(1, self.done - self.done_before) * (self.total - self.done)
            details = "".join(f"  {k} {v}" for k, v in values.items())
            note(f"{self.description} {self.done}/{self.total}{details}  {left:.0f} s left")
