"""Prints what readers and tasks noticed about rows, with counts."""

from __future__ import annotations

from collections.abc import Iterable

from bertkit import progress
from bertkit.errors import plural
from bertkit.readers import Remarks
from bertkit.tasks.counts import Count, lines_of


def report_remarks(remarks: Remarks, prefix: str = "") -> None:
    """Print the remarks on rows or on a task."""
    summed = remarks.summed()
    for note in summed.notes:
        progress.note(prefix + note)
    for warning in summed.warnings:
        progress.warn(prefix + warning)


def report_counts(rows: int, counts: Iterable[Count], before: str = "") -> None:
    """Print the number of rows with their counts, if there is something to report. before: begins the line."""
    if words := lines_of(counts):
        progress.note(f"{before}{plural(rows, 'row')}, {', '.join(words)}")
