"""A split of the data, encoded: its rows with their features, and what identifies them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from bertkit import progress
from bertkit.errors import plural
from bertkit.features import Features
from bertkit.readers import Examples
from bertkit.runs.remarks import report_remarks
from bertkit.tasks.presentation import lines_of
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer

_WRONG_VOCABULARY = 0.1  # share of [UNK] above which the vocabulary does not fit the data


@dataclass(frozen=True)
class Split:
    """A split of the data, as rows and as features."""

    examples: Examples
    features: Features

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
