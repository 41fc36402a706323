"""The recipe of token classification: which columns hold words and tags, and what predicts the tags."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from bertkit.config import DATA, USE, option
from bertkit.errors import DataError, UsageError
from bertkit.metrics.classification import TAG_METRICS, refuse_others
from bertkit.readers import Examples
from bertkit.readers.columns import guess_column, require_column
from bertkit.readers.formats import TAGGED, Format, read_blocks
from bertkit.readers.parsers.conll import CONLLU_LINES
from bertkit.tasks.class_loss import ClassLossRecipe
from bertkit.tasks.pooling import LayersRecipe
from bertkit.tasks.recipe import Columns, Recipe
from bertkit.tasks.token_classification.sentences import (
    GIVEN,
    columns_by_role,
    intent_column,
    refuse_unknown_tags_column,
    standard_columns,
)
from bertkit.tasks.token_classification.tags import SCHEMES
from bertkit.tasks.token_classification.word_rows import gather_blocks
from bertkit.text.words import CUTS

HEADS = ("linear", "bilstm", "crf")


@dataclass(frozen=True, kw_only=True)
class TokenClassification(ClassLossRecipe, LayersRecipe):
    """A recipe of this family; see Recipe for where its data comes from."""

    family: ClassVar[str] = "token-classification"
    in_order: ClassVar[tuple[str, ...]] = ("text",)
    formats: ClassVar[tuple[Format, ...]] = TAGGED

    tokens: str | None = option(
        None, "column of the words in JSON or a table: a list, or text separated by spaces", unit="column", commands=USE
    )
    tags: str | None = option(None, "column of the tags, in the same form", unit="column", commands=DATA)
    text: str | None = option(None, "column of the text", unit="column", commands=USE)
    entities: str | None = option(
        None, "column of the entities of a text: a list of [start, end, label], in characters", unit="column", commands=DATA
    )
    words: str | None = option(
        None,
        "how to split Chinese text into words: basic, each character; jieba, by the package jieba; default: as in "
        "the training data",
        choices=CUTS,
        commands=USE,
    )
    column: str | None = option(
        None,
        "column of the tag in CoNLL files: a number from 1, or in CoNLL-U a name such as xpos; default: the last one; in "
        "CoNLL-U, upos",
        unit="column",
        commands=USE,
    )
    labels: tuple[str, ...] | None = option(
        None, "names of the labels in the order of their numbers; default: from the data", commands=DATA
    )
    scheme: str | None = option(
        None, "tag scheme to convert the data to; default: the data's own", choices=SCHEMES, commands=DATA
    )
    head: str = option(
        "linear", "what predicts the tags; only linear opens as a tagger in transformers", choices=HEADS, commands=DATA
    )
    lstm_layers: int = option(
        1, "layers of --head bilstm, each with half the model's hidden size per direction", minimum=1, commands=DATA
    )
    constrained: bool = option(False, "predict only sequences of tags that the scheme allows", commands=USE)
    intent: bool = option(False, "also learn and predict the intent of the whole sentence", commands=DATA)
    intent_column: str | None = option(
        None, "column of the intent; default: intent or label", unit="column", commands=DATA, needs="intent"
    )

    def resolved(self) -> Self:
        recipe = super().resolved()
        if recipe.lstm_layers > 1 and recipe.head != "bilstm":
            raise UsageError(f"--lstm-layers is for --head bilstm; the head is {recipe.head}")
        refuse_others(recipe.metrics, TAG_METRICS, "tags")
        return recipe

    @property
    def other_loss(self) -> str | None:
        return "for the tag of each word, and --head crf learns whole sequences" if self.head == "crf" else None

    def read_blocks(
        self, path: str | Path, *, columns: tuple[str, ...] | None = None, labelled: bool = True
    ) -> Iterator[Examples]:
        options: dict[str, Any] = {"column": self.column, "tags": self.tags, "columns": columns or self.columns}
        return gather_blocks(read_blocks(path, self.formats, labelled=labelled, **options, **self.reading), self._named)

    def with_file(self, file: str, overrides: Collection[str], written: Recipe | None = None) -> Self:
        recipe = super().with_file(file, overrides, written)
        return recipe if "column" in overrides else replace(recipe, column=None)  # it is a column number in training files

    def row_of(self, row: Any) -> Mapping[str, Any]:
        """As in every family; a list of words becomes the tokens."""
        if isinstance(row, (list, tuple)) and row and all(isinstance(word, str) for word in row):
            return {self.tokens or "tokens": list(row)}
        return super().row_of(row)

    def find_columns(self, rows: Examples) -> Columns:
        if self.dataset is None and self.tags:  # else it may name a column of the recipe's hub data
            refuse_unknown_tags_column(rows, self.tags)
        return Columns({})

    def columns_read(self, rows: Examples, *, labelled: bool) -> set[str]:
        roles = columns_by_role(rows, self._named)
        words = ("tokens", "tags") if "tokens" in roles else ("text", "entities")
        return {
            *(roles.get(role, self._named[role] or role) for role in words),
            GIVEN,
            CONLLU_LINES,
            *([intent_column(rows, self.intent_column)] if self.intent else []),
        }

    def split_by(self, rows: Examples) -> tuple[tuple[str, ...], None]:
        guesses = (guess_column(rows.columns, role) for role in ("tokens", "text"))
        found = next((name for name in (self.tokens, self.text, *guesses) if name in rows.columns), None)
        return (found or require_column(rows, self.tokens or "tokens", option="--tokens"),), None

    def _standardize(self, rows: Examples, *, labelled: bool) -> Examples:
        """Columns `tokens`; `tags` and possibly `intent`, if labelled; `text` and `places`, for raw text.

        Raises DataError if words and tags, or an entity and its text, do not match.
        """
        return standard_columns(
            rows,
            named=self._named,
            intent=(self.intent_column or "") if self.intent and labelled else None,
            to_predict=not labelled,
            cut=self.words,
            labels=self.labels or (),
        )

    def standardize(self, rows: Examples, *, labelled: bool) -> Examples:
        examples = super().standardize(rows, labelled=labelled)
        if labelled and not any(examples.columns["tokens"]):
            raise DataError("no row has a word", where=examples.source)
        return examples

    @property
    def _named(self) -> dict[str, str | None]:
        return {"tokens": self.tokens, "tags": self.tags, "text": self.text, "entities": self.entities}

    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        return [(" ".join(words),) for words in examples.columns["tokens"]]

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        tags = examples.columns.get("tags", [()] * len(examples))
        intents: list[tuple[str, ...]] = [(intent,) for intent in examples.columns.get("intent", ())]
        intents = intents or [()] * len(examples)
        return [(*row, *intent) for row, intent in zip(tags, intents, strict=True)]
