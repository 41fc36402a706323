"""What to do about lines and rows of text that cannot be read: fail, leave them out, or replace what is broken."""

from __future__ import annotations

from dataclasses import dataclass, field

from bertkit.errors import DataError, listed, plural

POLICIES = ("fail", "skip", "replace")
_SHOWN = 5


@dataclass
class Faults:
    """The faults of some text. policy: of POLICIES; "replace" also leaves out what cannot be replaced."""

    policy: str = "fail"
    count: int = 0
    without_text: int = 0  # rows whose text is empty or null: no faults, but left out too
    shown: list[str] = field(default_factory=list)

    def take(self, error: DataError) -> None:
        """Raise a fault, or count it."""
        if self.policy == "fail":
            raise error
        self.count += 1
        if len(self.shown) <= _SHOWN:
            self.shown.append(str(error))

    def summary(self) -> str:
        """How many there were, and the first of them with file and line."""
        verb = "left out" if self.policy == "skip" else "replaced or left out"
        shown = [*self.shown, *[""] * (self.count - len(self.shown))]
        return f"{verb} {plural(self.count, 'line or row', 'lines or rows')}: {listed(shown, _SHOWN, '; ')}"
