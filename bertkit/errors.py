"""Errors that a user can mend: one line that says what was wrong, what was expected, and what to do.

Every command ends with one of these exit codes: 0 done, 1 a bug of bertkit, 2 usage or configuration, 3 data,
4 model, 5 environment (disk, memory, network, packages), 130 interrupted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """Something outside bertkit is wrong and the user can put it right.

    what: what was wrong, with the value found and, where it helps, what was expected; no full stop.
    where: the place, as "file:row", a folder or an option.
    hint: what to do about it.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.what}{place}"


class UsageError(UserError):
    """A command, option or configuration value that cannot be honoured."""

    exit_code = 2


class DataError(UserError):
    """A file or data set whose content cannot be used as it is."""

    exit_code = 3


class ModelError(UserError):
    """A model folder, configuration or tokenizer that cannot be used as it is."""

    exit_code = 4


class MachineError(UserError):
    """The machine lacks something: disk, memory, network, a package, a device."""

    exit_code = 5


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known names nearest to `name` as a hint, or all of them where none is near."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    ratios = [difflib.SequenceMatcher(None, each, name).ratio() for each in near]
    near = [each for each, ratio in zip(near, ratios, strict=True) if ratio > ratios[0] - 0.2]
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"


def listed(items: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """The first items, and how many more there are."""
    return separator.join(items[:most]) + (f"{separator}and {len(items) - most} more" if len(items) > most else "")
