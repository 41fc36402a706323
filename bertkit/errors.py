"""Errors that the user can fix: one line that says what is wrong, what was expected, and what to do.

The exit codes of every command: 0 success, 1 a bug in bertkit, 2 usage or configuration, 3 data,
4 model, 5 environment (disk, memory, network, packages), 130 interrupted (Ctrl-C), 138 stopped by a scheduler (SIGUSR1 on
Linux), 143 terminated (SIGTERM).
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class UserError(Exception):
    """An error outside bertkit that the user can fix.

    what: what is wrong, with the offending value and, where it helps, what was expected; no full stop.
    where: the place, as "file:row", a folder or an option.
    hint: how to fix it.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.what}{place}"

    @property
    def line(self) -> str:
        """The error with its hint, on one line."""
        return f"{self}; {self.hint}" if self.hint else str(self)


class UsageError(UserError):
    """An invalid command, option or configuration value."""

    exit_code = 2


class DataError(UserError):
    """A file or data set that cannot be used as it is. warnings: what its reader noticed, which may say why."""

    exit_code = 3
    warnings: tuple[str, ...] = ()


class ModelError(UserError):
    """A model folder, configuration or tokenizer that cannot be used as it is."""

    exit_code = 4


class MachineError(UserError):
    """The machine lacks something: disk, memory, network, a package, a device."""

    exit_code = 5


@contextmanager
def packages_of(extra: str) -> Iterator[None]:
    """Report a failed import inside the block as MachineError, with the extra to install."""
    try:
        yield
    except ImportError as error:
        what, hint = f"{extra} needs the package {error.name}", f'python -m pip install "bertkit[{extra}]"'
        raise MachineError(what, hint=hint) from None


class Stopped(KeyboardInterrupt):
    """The command was stopped by a signal: SIGINT (Ctrl-C), SIGTERM or SIGUSR1. what: one line for the user."""

    def __init__(self, what: str = "stopped", *, number: int = signal.SIGINT) -> None:
        super().__init__(what)
        self.exit_code = 128 + number


def flag_of(name: str) -> str:
    """An option's name on the command line."""
    return "--" + name.replace("_", "-")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint: the known names closest to `name`, or all of them if none is close."""
    names = sorted(set(known))
    close = _closest(name, names)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"


def not_a_choice(flag: str, value: str, choices: Sequence[str]) -> UsageError:
    """The error for an option's value that is none of its choices."""
    hint = did_you_mean(value, choices) if _closest(value, choices) else None
    return UsageError(f"{flag} is {value!r}; expected {' or '.join(choices)}", hint=hint)


def _closest(name: str, names: Sequence[str]) -> list[str]:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    ratios = [difflib.SequenceMatcher(None, each, name).ratio() for each in close]
    return [each for each, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - 0.2]


def listed(items: Sequence[str], most: int = 5, separator: str = ", ", *, total: int | None = None) -> str:
    """The first items, and how many more there are. total: the number of all items, if `items` has only the first."""
    shown = [*items[:most]]
    if more := (len(items) if total is None else total) - len(shown):
        shown.append(f"and {more} more")
    return separator.join(shown)


def quoted(name: str) -> str:
    """A name; in quotes if it is empty, or begins or ends with white space."""
    return name if name.strip() == name != "" else repr(name)


def excerpt(text: str, width: int) -> str:
    """A text of at most `width` characters; a longer one ends in "..."."""
    return text if len(text) <= width else text[: width - 3] + "..."


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """A count with its noun: "1 row", "2 rows". nouns: an irregular plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"
