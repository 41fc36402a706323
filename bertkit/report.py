"""What `bertkit check` found: as JSON, and as tables and lines for a person."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

from bertkit import progress
from bertkit.readers import Examples

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """What was found. places: the first rows it holds of, as "file:line"."""

    severity: str
    what: str
    places: tuple[str, ...] = ()
    hint: str | None = None


@dataclass(frozen=True)
class Checked:
    """splits: the examples of those that could be read. numbers: what regression is to predict. lengths: tokens of their
    sequences, where a model was given.
    """

    splits: dict[str, Examples]
    findings: list[Finding]
    labels: dict[str, Counter[str]]
    numbers: dict[str, dict[str, float]]
    lengths: dict[str, dict[str, float]]

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": {split: len(examples) for split, examples in self.splits.items()},
            "labels": {split: dict(counts.most_common()) for split, counts in self.labels.items()},
            **({"numbers": self.numbers} if self.numbers else {}),
            "lengths": self.lengths,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }


def show_checked(title: str, checked: Checked) -> None:
    """Tables of labels and lengths, and the findings by severity."""
    splits = list(checked.labels)
    names = list(dict.fromkeys(name for counts in checked.labels.values() for name, _ in counts.most_common()))
    for split, its in checked.numbers.items():
        progress.table(f"{title}: numbers of {split}", list(its), [[f"{value:g}" for value in its.values()]])
    if names:
        shown = [[name, *(checked.labels[split].get(name, 0) for split in splits)] for name in names[:30]]
        more = f": the commonest 30 of {len(names)}" if len(names) > 30 else ""
        progress.table(f"{title}: labels{more}", ["label", *splits], shown)
    if checked.lengths:
        columns = list(next(iter(checked.lengths.values())))
        rows = [[split, *(round(its[column], 1) for column in columns)] for split, its in checked.lengths.items()]
        progress.table(f"{title}: tokens a sequence", ["split", *columns], [[row[0], *map(str, row[1:])] for row in rows])
    show = {"error": progress.error, "warning": progress.warn, "note": progress.note}
    for finding in checked.findings:
        places = f" ({', '.join(finding.places)})" if finding.places else ""
        hint = f"; {finding.hint}" if finding.hint else ""
        show[finding.severity](f"{finding.what}{places}{hint}")
    counts = Counter(finding.severity for finding in checked.findings)
    progress.note(", ".join(f"{counts[severity]} {severity}{'s' * (counts[severity] != 1)}" for severity in SEVERITIES))
