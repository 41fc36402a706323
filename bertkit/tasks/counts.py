"""Counts of what happened to rows, such as truncated texts, which commands report at their end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bertkit.errors import plural


class Count(NamedTuple):
    """A count to report to the user. what: a sentence with {} for the number. noun: what is counted, if {} includes it. beyond:
    numbers up to this are not reported.
    """

    number: int
    what: str
    noun: str = ""
    beyond: int = 0

    def __str__(self) -> str:
        return self.what.replace("{}", plural(self.number, self.noun) if self.noun else str(self.number), 1)


def summed(counts: Iterable[Count]) -> list[Count]:
    """The counts, with those of one kind added up, in order of first appearance."""
    sums: dict[tuple[str, str], Count] = {}
    for count in counts:
        before = sums.get((count.what, count.noun), count._replace(number=0, beyond=0))
        number, beyond = before.number + count.number, before.beyond + count.beyond
        sums[count.what, count.noun] = count._replace(number=number, beyond=beyond)
    return [*sums.values()]


def lines_of(counts: Iterable[Count]) -> list[str]:
    """A line for each count above its `beyond`; counts of one kind are summed first."""
    return [str(count) for count in summed(counts) if count.number > count.beyond]
