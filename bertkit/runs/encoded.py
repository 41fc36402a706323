"""A split of the data, encoded: its rows with their features, and what identifies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from typing import Any

import numpy as np

from bertkit import progress
from bertkit.errors import plural
from bertkit.features import Features, offsets_of
from bertkit.readers import Examples
from bertkit.runs.remarks import report_remarks
from bertkit.tasks.counts import lines_of
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer

_WRONG_VOCABULARY = 0.1  # share of [UNK] above which the vocabulary does not fit the data


@dataclass(frozen=True)
class Split:
    """A split of the data, as rows and as features."""

    examples: Examples
    features: Features

    def part(self, begin: int, end: int) -> Split:
        """The rows from `begin` to before `end`, counted from 0."""
        own = self.features.take(np.flatnonzero((self.features.examples >= begin) & (self.features.examples < end)))
        return Split(self.examples.select(range(begin, end)), replace(own, examples=own.examples - begin))

    @classmethod
    def joined(cls, splits: Sequence[Split]) -> Split:
        """The rows of several splits with the same columns as one, numbered from 0, without targets."""
        if len(splits) == 1:
            return splits[0]
        begins = offsets_of(np.array([len(split.examples) for split in splits]))
        parts = [
            replace(split.features, examples=split.features.examples + begin)
            for split, begin in zip(splits, begins, strict=False)
        ]
        first = splits[0].examples
        columns: dict[str, Sequence[Any]] = {
            name: [*chain.from_iterable(split.examples.columns[name] for split in splits)] for name in first.columns
        }
        return cls(Examples(columns, first.source, range(begins[-1])), Features.joined(parts))

    def describe(self, task: Task) -> dict[str, Any]:
        """Its entry in run.json: with the sha256 of the features, and of the rows' texts."""
        return {
            "source": self.examples.source,
            "rows": len(np.unique(self.features.examples)),  # for training, only rows that have something to learn
            "sha256": self.features.fingerprint(),
            "rows_sha256": hash_of_rows(task.recipe, self.examples),
        }


def hash_of_rows(recipe: Recipe, examples: Examples) -> str:
    """sha256 of every row's texts, in order."""
    digest = sha256()
    for row in recipe.texts_of(examples):
        digest.update(f"{row!r}\n".encode())
    return digest.hexdigest()


def encode_split(task: Task, split: str, rows: Examples, tokenizer: Tokenizer, *, checked: bool = False) -> Split:
    """Encode a split's rows; report the length of its sequences and what was truncated or dropped; also remarks and [UNK],
    unless the rows were already `checked`.
    """
    examples = task.examples(rows, labelled=True)
    features, counts = task.encode(examples, tokenizer)
    if not checked:
        report_remarks(examples.remarks, f"{split}: ")
    mean = len(features.input_ids.values) / max(1, len(features.input_ids))
    progress.note(", ".join([f"{split}: {plural(len(examples), 'row')}, {mean:.0f} tokens on average", *lines_of(counts)]))
    unknown = float((features.input_ids.values == tokenizer.unk_token_id).mean()) if len(features.input_ids.values) else 0.0
    if unknown > _WRONG_VOCABULARY and not checked:
        hint = "does the model's vocabulary match the data's language, alphabet and case? `bertkit check` shows examples"
        progress.warn(f"{split}: {unknown:.0%} of the tokens are [UNK]; {hint}")
    return Split(examples, features)
