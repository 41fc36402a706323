"""Scores of slices of a split: rows of similar length, of a class, of a source, with more or fewer unknown tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.metrics import bootstrap
from bertkit.report import Table
from bertkit.runs.evaluation.evaluate import Evaluated

SOURCE = "source"  # a column of the data
_MOST = 12  # classes, and sources, the most frequent ones
_MUCH_UNKNOWN = 0.05

Slices = dict[tuple[str, str], NDArray[np.int64]]  # (what the rows are sliced by, the slice's name) -> its rows


def describe_slices(found: Evaluated, split: str) -> Table:
    """The first score of each slice and the share of its rows that are right, unless these are equal or the predictions are
    numbers; with 95% intervals.
    """
    predicted = found.of(split)
    score, right, are_numbers = predicted.scorer(), predicted.errors() == 0, predicted.task.recipe.predicts_numbers
    first = next(iter(score(np.arange(len(right)))))
    table = []
    slices = slices_of(found, split)
    for (by, name), rows in progress.with_bar(slices.items(), f"{split}: resample slices", len(slices)):

        def scores(drawn: NDArray[np.int64], rows: NDArray[np.int64] = rows) -> dict[str, float | None]:
            found = {first: score(rows[drawn]).get(first)}
            return found if are_numbers else found | {"right": float(right[rows[drawn]].mean())}

        own = scores(np.arange(len(rows)))
        bounds = bootstrap.intervals(scores, bootstrap.resampled(len(rows), bootstrap.FEWER))
        cells = [[value, progress.format_interval(bounds[key])] for key, value in own.items()]
        table.append([by, name, len(rows), *chain(*cells)])
    columns = ["by", "slice", "rows", first, "95% interval", "rows correct", "95% interval"]
    if are_numbers or all(row[3] == row[5] for row in table):
        columns, table = columns[:5], [row[:5] for row in table]
    return Table("slices", columns, table)


def slices_of(found: Evaluated, split: str) -> Slices:
    """The rows of each slice of a split, without properties that are the same for all rows."""
    data, rows = found.splits[split], found.rows[split]
    features, examples = data.features, data.examples
    count = len(examples)
    tokens = np.bincount(features.examples, features.num_tokens, count).astype(np.int64)
    example_of = np.repeat(np.repeat(features.examples, np.diff(features.offsets)), features.input_ids.lengths)  # of each token
    is_unknown = features.input_ids.values == found.predictor.pretrained.tokenizer.unk_token_id
    unknown = np.bincount(example_of, is_unknown, count) / np.maximum(tokens, 1)
    source_of = dict(zip(rows.lines, rows.columns.get(SOURCE, ()), strict=False))
    by = {
        "tokens": _quarters(tokens),
        "class": _most_frequent(found.scored.task.classes_of(examples)),
        SOURCE: _most_frequent([[] if source is None else [str(source)] for source in map(source_of.get, examples.lines)]),
        "[UNK]": {
            "none": np.flatnonzero(unknown == 0),
            f"up to {_MUCH_UNKNOWN:.0%}": np.flatnonzero((unknown > 0) & (unknown <= _MUCH_UNKNOWN)),
            f"more than {_MUCH_UNKNOWN:.0%}": np.flatnonzero(unknown > _MUCH_UNKNOWN),
        },
    }
    there = {key: {name: rows for name, rows in groups.items() if len(rows)} for key, groups in by.items()}
    return {(key, name): rows for key, groups in there.items() if len(groups) > 1 for name, rows in groups.items()}


def _quarters(tokens: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Rows by length, in groups of about equal size."""
    group = np.searchsorted(np.unique(np.quantile(tokens, (0.25, 0.5, 0.75), method="lower")), tokens)
    groups = [np.flatnonzero(group == number) for number in np.unique(group)]
    ends = [(int(tokens[rows].min()), int(tokens[rows].max())) for rows in groups]
    return {
        str(first) if first == last else f"{first} to {last}": rows for (first, last), rows in zip(ends, groups, strict=True)
    }


def _most_frequent(names: Sequence[Any]) -> dict[str, NDArray[np.int64]]:
    """Rows by each of the most frequent names, in alphabetical order. names: any number for each row."""
    counts = Counter(name for row in names for name in {*row})
    most = sorted(sorted(counts, key=lambda name: (-counts[name], name))[:_MOST])
    return {name: np.array([row for row, own in enumerate(names) if name in own]) for name in most}
