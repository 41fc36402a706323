"""What to do about lines and rows that cannot be read: fail, skip them, or replace what is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bertkit.errors import DataError, listed, plural

POLICIES = ("fail", "skip", "replace")
_SHOWN = 5


@dataclass
class Faults:
    """The faults in some text. policy: one of POLICIES; "replace" also skips what cannot be replaced. first: with its hint.
    warnings: of the readers of tables.
    """

    policy: str = "fail"
    count: int = 0
    without_text: int = 0  # documents whose text is empty or null: no faults, but left out too
    shown: list[str] = field(default_factory=list)
    files: int = 0  # whole files, whose faults are shown first
    first: str | None = None
    warnings: dict[str, None] = field(default_factory=dict)

    def take(self, error: DataError, *, of_file: bool = False) -> None:
        """Raise a fault, or count it. of_file: of (the rest of) a whole file, which is named before lines and rows."""
        if self.policy == "fail":
            raise error
        self.first = self.first or error.line
        if of_file:
            self.count += 1
            self.shown.insert(self.files, str(error))
            self.files += 1
            del self.shown[_SHOWN + 1 :]
        else:
            self.add([str(error)])

    def add(self, faults: Sequence[str]) -> None:
        """Count faults, given in words."""
        self.count += len(faults)
        self.shown += faults[: max(0, _SHOWN + 1 - len(self.shown))]

    def summary(self) -> str:
        """How many there were, and the first of them with file and line."""
        return summary_of(self.shown, self.count, "skipped" if self.policy == "skip" else "repaired or skipped")


def summary_of(faults: Sequence[str], count: int | None = None, verb: str = "skipped") -> str:
    """The number of faults, and the first of them with file and line. count: of all, if `faults` does not have all."""
    count = len(faults) if count is None else count
    return f"{verb} {plural(count, 'row')}: {listed(faults, _SHOWN, '; ', total=count)}"
