"""A part of the rows held out for evaluation, by share or by fold: stratified by label, and never a text on both sides."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from bertkit.errors import DataError, UsageError, plural
from bertkit.readers import Examples


class Fold(NamedTuple):
    """One of `of` parts of the rows, `number` counting from 1; together the folds are all rows, each in one."""

    number: int
    of: int


def parse_held_out(value: str) -> float | Fold | None:
    """0.1 for "10%", Fold(1, 5) for "1/5"; None for what is neither. Raises UsageError for a share or fold that cannot be."""
    match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", value)
    if not match:
        return parse_fraction(value)
    fold = Fold(int(match[1]), int(match[2]))
    if not 1 <= fold.number <= fold.of or fold.of < 2:
        raise UsageError(f"{value.strip()} is not a fold; expected 1/N to N/N with N of at least 2")
    return fold


def parse_fraction(value: str) -> float | None:
    """0.1 for "10%"; None for what is not a percentage. Raises UsageError unless it is above 0% and below 100%."""
    match = re.fullmatch(r"\s*([-+]?\d*\.?\d+)\s*%\s*", value)
    if not match:
        return None
    fraction = float(match[1]) / 100
    if not 0 < fraction < 1:
        raise UsageError(f"{value.strip()} cannot be held out; expected more than 0% and less than 100%")
    return fraction


def split_examples(
    examples: Examples, held_out: float | Fold, *, seed: int, labels: Sequence[Sequence[Hashable]] | None, text: tuple[str, ...]
) -> tuple[Examples, Examples]:
    """The rows as (kept, held out), about that share of them, and of each label's, held out, or that fold; order is kept.

    labels: those of each row, one or several, the first of which counts for the share; None to ignore labels.

    Rows whose columns `text` differ only in case and white space stay together. A label with two or more texts is on both
    sides, beyond the share if need be, unless texts of several labels prevent it; one with a single text is kept. The seed
    and the texts alone decide what is held out, so rows added later move few others; folds are dealt anew. Raises DataError
    where nothing can be held out.
    """
    keys = zip(*(map(_alike, examples.columns[name]) for name in text), strict=True)
    labels = [row_labels or (None,) for row_labels in labels or [()] * len(examples)]
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        groups[key].append(row)
    parts = held_out.of if isinstance(held_out, Fold) else 2
    if len(groups) < parts:
        what = f"cannot split {plural(len(examples), 'row')} with {plural(len(groups), 'different text')}"
        raise DataError(
            f"{what}; expected at least {parts}", where=examples.source, hint="add rows, or give a separate file for evaluation"
        )

    order = sorted(groups, key=lambda key: blake2b(repr((seed, key)).encode("utf-8", "replace"), digest_size=8).digest())
    members = [groups[key] for key in order]
    group_labels = [tuple(dict.fromkeys(name for row in rows for name in labels[row])) for rows in members]
    held = _hold_out(members, group_labels, held_out) if isinstance(held_out, float) else _hold_fold(group_labels, held_out)
    if not any(held):
        what = f"cannot split {len(examples)} rows: each text is the only one of some label"
        raise DataError(
            what, where=examples.source, hint="is this the column of the labels? or give a separate file for evaluation"
        )
    sides: dict[bool, list[int]] = {False: [], True: []}
    for rows, is_held in zip(members, held, strict=True):
        sides[is_held] += rows
    return examples.select(sorted(sides[False])), examples.select(sorted(sides[True]))


def why_another_share(share: float, kept: Sequence[Sequence[Hashable]], held: Sequence[Sequence[Hashable]]) -> str:
    """Why `split_examples` held out another share than this. kept, held: the labels of each row on either side."""
    taken = Counter(labels[0] if labels else None for labels in held)
    rows = taken + Counter(labels[0] if labels else None for labels in kept)
    excess = taken.total() - share * rows.total()
    of_few = sum(taken[label] - share * count for label, count in rows.items() if share * count < 1)
    if of_few / excess < 0.5:
        return "equal texts stay together"
    return "each label gives at least one row" if excess > 0 else "the only row of a label is trained on"


def _hold_fold(labels: list[tuple], fold: Fold) -> list[bool]:
    """For each group of rows whether it is in the fold: dealt out in turn, label by label."""
    order = sorted(range(len(labels)), key=lambda group: str(labels[group][0]))
    turn = {group: place % fold.of for place, group in enumerate(order)}
    return [turn[group] == fold.number - 1 for group in range(len(labels))]


def _hold_out(members: list[list[int]], labels: list[tuple], fraction: float) -> list[bool]:
    """For each group of rows whether it is held out. labels: those of each group's rows, the first row's first."""
    held = [False] * len(members)
    of_label: dict[object, list[int]] = defaultdict(list)
    strata: dict[object, list[int]] = defaultdict(list)
    for group, names in enumerate(labels):
        strata[names[0]].append(group)
        for name in names:
            of_label[name].append(group)

    owed = 0.0  # what rounding left over, handed on so that many small classes do not add up to too many or too few
    for groups in strata.values():
        want = fraction * sum(len(members[group]) for group in groups) + owed
        taken = 0
        for group in groups:
            # Taking the group brings the count nearer to `want`; a label with one text stays where it is trained on.
            if taken + len(members[group]) / 2 <= want and all(len(of_label[name]) > 1 for name in labels[group]):
                held[group] = True
                taken += len(members[group])
        owed = max(-1.0, min(1.0, want - taken))

    count: dict[bool, Counter] = {False: Counter(), True: Counter()}
    for group, names in enumerate(labels):
        count[held[group]].update(names)
    # A label wholly on one side gets its smallest group on the other, unless that would take another label from a side.
    for side in (True, False):
        for name in sorted(of_label, key=lambda name: len(of_label[name])):
            if count[side][name] or len(of_label[name]) < 2:
                continue
            free = [g for g in of_label[name] if all(count[not side][other] > 1 for other in labels[g])]
            if free:
                group = min(free, key=lambda g: (len(members[g]), len(labels[g])))
                held[group] = side
                count[side].update(labels[group])
                count[not side].subtract(labels[group])
    return held


def _alike(value: object) -> str:
    return " ".join(str(value).casefold().split())
