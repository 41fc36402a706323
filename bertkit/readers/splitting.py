"""Holding out rows for evaluation, by share or by fold: stratified by label, with no text on both sides."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

import numpy as np

from bertkit.errors import DataError, UsageError, plural
from bertkit.readers import Examples


class Fold(NamedTuple):
    """Part `number` (from 1) of `of` parts of the rows; every row is in exactly one fold."""

    number: int
    of: int


def parse_held_out(value: str) -> float | Fold | None:
    """0.1 for "10%", Fold(1, 5) for "1/5"; None for anything else. Raises UsageError for an impossible share or fold."""
    match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", value)
    if not match:
        return parse_fraction(value)
    fold = Fold(int(match[1]), int(match[2]))
    if not 1 <= fold.number <= fold.of or fold.of < 2:
        raise UsageError(f"{value.strip()} is not a fold; expected 1/N to N/N with N of at least 2")
    return fold


def parse_fraction(value: str) -> float | None:
    """0.1 for "10%"; None if it is not a percentage. Raises UsageError unless it is above 0% and below 100%."""
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
    """Split rows into (kept, held out), where held out is about this share of all rows and of each label's, or this fold. Order
    is preserved.

    labels: one or several per row, the first of which counts for the share; None to ignore labels.

    Rows whose columns `text` differ only in case and white space stay together. A label with two or more texts is on both
    sides, beyond the share if needed, unless texts with several labels prevent it; a single text is kept. Only the seed, the
    texts and the labels decide what is held out, so adding rows moves few others; but folds change completely. Raises DataError
    if nothing can be held out.
    """
    keys = zip(*(map(alike, examples.columns[name]) for name in text), strict=True)
    labels = [row_labels or (None,) for row_labels in labels or [()] * len(examples)]
    hashes = np.fromiter((_hash((seed, key)) for key in keys), dtype=np.uint64, count=len(examples))
    order = np.argsort(hashes, kind="stable")  # the rows of a text one after the other
    begins = np.flatnonzero(np.diff(hashes[order], prepend=~hashes[order[:1]]))
    sizes = np.diff(begins, append=len(examples))
    parts = held_out.of if isinstance(held_out, Fold) else 2
    if len(begins) < parts:
        what = f"cannot split {plural(len(examples), 'row')} with {plural(len(begins), 'different text')}"
        hint = f"add rows, or {'use fewer folds' if parts > 2 else 'give a separate file for evaluation'}"
        raise DataError(f"{what}; expected at least {parts}", where=examples.source, hint=hint)

    group_labels = [
        labels[order[begin]]
        if size == len(labels[order[begin]]) == 1  # most of many rows, whose labels are few objects
        else tuple(dict.fromkeys(name for row in order[begin : begin + size] for name in labels[row]))
        for begin, size in zip(begins, sizes, strict=True)
    ]
    held = (
        _hold_out(sizes.tolist(), group_labels, held_out) if isinstance(held_out, float) else _hold_fold(group_labels, held_out)
    )
    if not any(held):
        what = f"cannot split {len(examples)} rows: each text has a label that no other text has"
        raise DataError(
            what, where=examples.source, hint="is this the label column? if so, give a separate file for evaluation"
        )
    is_held = np.zeros(len(examples), dtype=bool)
    is_held[order] = np.repeat(held, sizes)
    return examples.select(np.flatnonzero(~is_held)), examples.select(np.flatnonzero(is_held))


def why_another_share(share: float, kept: Sequence[Sequence[Hashable]], held: Sequence[Sequence[Hashable]]) -> str:
    """Why `split_examples` held out a different share than this. kept, held: the labels of each row on either side."""
    taken = Counter(labels[0] if labels else None for labels in held)
    rows = taken + Counter(labels[0] if labels else None for labels in kept)
    excess = taken.total() - share * rows.total()
    of_few = sum(taken[label] - share * count for label, count in rows.items() if share * count < 1)
    if of_few / excess < 0.5:
        return "rows with the same text stay together"
    return "at least one row of each label is held out" if excess > 0 else "the only row of a label stays in the training data"


def _hold_fold(labels: list[tuple], fold: Fold) -> list[bool]:
    """For each group of rows, whether it is in the fold. Groups are dealt out in rotation, label by label: each counts for its
    rarest label, or rather for the rarest that another group has too.
    """
    counts = Counter(chain.from_iterable({*of_group} for of_group in labels))
    names = [str(min(of_group, key=lambda name: (counts[name] < 2, counts[name], str(name)))) for of_group in labels]
    number = {name: number for number, name in enumerate(sorted(set(names)))}
    order = np.argsort([number[name] for name in names], kind="stable")
    held = np.zeros(len(labels), dtype=bool)
    held[order[fold.number - 1 :: fold.of]] = True
    return held.tolist()


def _hold_out(sizes: list[int], labels: list[tuple], fraction: float) -> list[bool]:
    """For each group of rows, given by size, whether it is held out. labels: of each group's rows, the first row's first."""
    held = [False] * len(sizes)
    of_label: dict[object, array[int]] = defaultdict(partial(array, "q"))
    strata: dict[object, array[int]] = defaultdict(partial(array, "q"))
    for group, names in enumerate(labels):
        strata[names[0]].append(group)
        for name in names:
            of_label[name].append(group)

    owed = 0.0  # the rounding error, carried to the next label so that it does not add up over many small ones
    for groups in strata.values():
        want = fraction * sum(sizes[group] for group in groups) + owed
        taken = 0
        for group in groups:
            # Taking the group brings the count nearer to `want`; a label with one text stays where it is trained on.
            if taken + sizes[group] / 2 <= want and all(len(of_label[name]) > 1 for name in labels[group]):
                held[group] = True
                taken += sizes[group]
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
                group = min(free, key=lambda g: (sizes[g], len(labels[g])))
                held[group] = side
                count[side].update(labels[group])
                count[not side].subtract(labels[group])
    return held


def _hash(key: object) -> int:
    digest = blake2b(repr(key).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def alike(value: object) -> str:
    """A text without the differences that a model may not see: case, white space, and how accents are encoded."""
    return " ".join(unicodedata.normalize("NFC", str(value)).casefold().split())
