"""Rows with the same texts, within a split and across splits: a model has seen what it is evaluated on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from bertkit.errors import plural
from bertkit.readers import Examples
from bertkit.readers.splitting import alike
from bertkit.report import Finding
from bertkit.tasks.recipe import Recipe

LEAKED = 0.01  # share of a split's rows above which those that training has too are worth a warning


def rows_by_text(recipe: Recipe, examples: Examples) -> dict[tuple[str, ...], list[int]]:
    """The rows of `standardize` by text, ignoring case, white space and the encoding of accents; without rows of no text."""
    rows: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, texts in enumerate(recipe.texts_of(examples)):
        rows[tuple(map(alike, texts))].append(row)
    return {texts: numbers for texts, numbers in rows.items() if any(texts)}


def leaks(recipe: Recipe, training: str, splits: Mapping[str, Examples]) -> Iterator[Finding]:
    """For each split, its rows whose texts the split `training` has too. splits: rows of `standardize`.

    Memory grows with the other splits, not with the training rows.
    """
    if training not in splits:
        return
    others = {split: rows_by_text(recipe, examples) for split, examples in splits.items() if split != training}
    known: dict[str, dict[tuple[str, ...], set[tuple[str, ...]]]] = {split: defaultdict(set) for split in others}
    for texts, names in zip(recipe.texts_of(splits[training]), recipe.labels_of(splits[training]), strict=True):
        text = tuple(map(alike, texts))
        for split, rows in others.items():
            if text in rows:
                known[split][text].add(names)
    for split, examples in splits.items():
        if not known.get(split):
            continue
        rows, labels = others[split], recipe.labels_of(examples)
        leaked = [(row, in_training) for text, in_training in known[split].items() for row in rows[text]]
        relabelled = sum(1 for row, in_training in leaked if labels[row] and labels[row] not in in_training)
        what = f"{split}: {len(leaked)} of {plural(len(examples), 'row')} also in {training}"
        what += f", {relabelled} of them with another label" if relabelled else ""
        severity = "warning" if len(leaked) > LEAKED * len(examples) else "note"
        places = examples.places(sorted(row for row, _ in leaked))
        yield Finding(severity, what, places, "scores on these rows are too high; remove them from one of the two splits")
