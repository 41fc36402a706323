"""Rows with the same texts, within a split and across splits: a model has seen what it is evaluated on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain

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

    Memory grows with the largest other split, not with the training rows.
    """
    if training not in splits:
        return
    labels_in_training = recipe.labels_of(splits[training])
    for split, examples in splits.items():
        if split == training:
            continue
        rows = rows_by_text(recipe, examples)
        known: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)  # labels in training, by text
        for row, texts in enumerate(recipe.texts_of(splits[training])):
            if (text := tuple(map(alike, texts))) in rows:
                known[text].add(labels_in_training[row])
        leaked = sorted(chain.from_iterable(rows[text] for text in known))
        if not leaked:
            continue
        labels = recipe.labels_of(examples)
        relabelled = sum(1 for text, own in known.items() for row in rows[text] if labels[row] and labels[row] not in own)
        what = f"{split}: {len(leaked)} of {plural(len(examples), 'row')} also in {training}"
        what += f", {relabelled} of them with another label" if relabelled else ""
        severity = "warning" if len(leaked) > LEAKED * len(examples) else "note"
        places = tuple(examples.where(row) for row in leaked[:3])
        yield Finding(severity, what, places, "scores on them are too high; remove them from one of the two")
