"""Sentences to tag as they come in: words and tags, or text and entities, under standard column names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from bertkit import progress
from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples
from bertkit.readers.columns import guess_column, require_column
from bertkit.readers.words import split_words
from bertkit.tasks.tags import tags_of

_HINT = 'expected [start, end, label] or {"start": ..., "end": ..., "label": ...}, in characters'


def standard_columns(
    examples: Examples, *, named: Mapping[str, str | None], intent: bool, strip: str | None, to_predict: bool
) -> Examples:
    """Columns `tokens`, `tags` (unless to predict), `intent` if asked for; and of plain text `text`, and `places` of its words.

    named: the columns that the user names for tokens, tags, text and entities. Raises DataError.
    """
    found: dict[str, str] = {}
    if set(examples.columns) <= {"tokens", "tags", "label"}:  # a file whose columns have no names of their own
        named = {role: name if name in examples.columns else None for role, name in named.items()}
    for role, wanted in named.items():
        name = wanted if wanted in examples.columns else guess_column(examples.columns, role) if wanted is None else None
        if name is not None:
            found[role] = name
    if found.get("tokens", "") == found.get("tags"):
        raise UsageError(f"column {found['tokens']!r} is named for both the words and the tags", where=examples.source)
    columns: dict[str, list] = {}
    if "tokens" in found:
        columns["tokens"] = [_words(value, examples, row) for row, value in enumerate(examples.columns[found["tokens"]])]
        if strip is not None:
            pattern = re.compile(strip)
            columns["given"] = columns["tokens"]  # as they come back in a prediction
            columns["tokens"] = [[pattern.sub("", word) or word for word in words] for words in columns["tokens"]]
        if not to_predict:
            column = found.get("tags") or require_column(examples, named["tags"] or "tags", option="--tags")
            names = examples.label_names.get(column)
            values = enumerate(examples.columns[column])
            columns["tags"] = [_tags(value, names, columns["tokens"][row], examples, row) for row, value in values]
    elif "text" in found and (to_predict or "entities" in found):
        _split_texts(examples, found, columns, to_predict)
    elif list(examples.columns) == ["text"] and not any(named.values()):
        hint = "train on CoNLL columns (a word and its tag a line), CoNLL-U, or JSONL with tokens and tags or text and entities"
        raise DataError("the rows are text without tags", where=examples.source, hint=hint)
    else:
        missing = "text" if named["text"] else "entities" if "text" in found and named["tokens"] is None else "tokens"
        require_column(examples, named[missing] or missing, option=f"--{missing}")
    if intent:
        column = guess_column(examples.columns, "intent") or require_column(examples, "intent", option="--columns")
        columns["intent"] = [_intent(value, examples, row) for row, value in enumerate(examples.columns[column])]
    return replace(examples, columns=columns, label_names={})


def _words(value: Any, examples: Examples, row: int) -> list[str]:
    words = [word for word in value.split(" ") if word] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        what = f"the words are {value!r}; expected a list of texts, or words parted by spaces"
        raise DataError(what, where=examples.where(row), hint="mend or remove the row")
    return list(words)


def _tags(value: Any, names: Sequence[str] | None, words: list[str], examples: Examples, row: int) -> list[str]:
    if value is None:
        raise DataError("the row has no tags", where=examples.where(row), hint="mend or remove the row")
    tags = [tag for tag in value.split(" ") if tag] if isinstance(value, str) else value
    if not isinstance(tags, (list, tuple)):
        raise DataError(f"the tags are {value!r}; expected a list of tags", where=examples.where(row))
    if len(tags) != len(words):
        what = f"{len(words)} words and {len(tags)} tags; expected a tag a word"
        raise DataError(what, where=examples.where(row), hint="is a word or tag missing, or one that holds a space?")
    if names is not None:
        if outside := [tag for tag in tags if isinstance(tag, int) and not 0 <= tag < len(names)]:
            what = f"the tag number {outside[0]}; expected 0 to {len(names) - 1}"
            raise DataError(what, where=examples.where(row), hint="is this a split without tags?")
        tags = [names[tag] if isinstance(tag, int) else tag for tag in tags]
    for word, tag in zip(words, tags, strict=True):
        if not isinstance(tag, (str, int)) or isinstance(tag, bool) or tag == "":
            raise DataError(f"the word {word!r} has the tag {tag!r}; expected text", where=examples.where(row))
    return [str(tag) for tag in tags]


def _intent(value: Any, examples: Examples, row: int) -> str:
    if not isinstance(value, (str, int)) or value == "":
        raise DataError(f"the intent is {value!r}; expected text", where=examples.where(row), hint="mend or remove the row")
    return str(value)


def _split_texts(examples: Examples, found: Mapping[str, str], columns: dict[str, list], to_predict: bool) -> None:
    """Words, their places and, from the entities, their tags."""
    columns |= {"tokens": [], "places": [], "text": []} | ({} if to_predict else {"tags": []})
    cutting: list[str] = []  # entities that begin or end inside a word
    count = 0
    for row, text in enumerate(examples.columns[found["text"]]):
        if not isinstance(text, str):
            shown = "nothing" if text is None else repr(text)
            raise DataError(f"column {found['text']!r} holds {shown}; expected text", where=examples.where(row))
        entities = [] if to_predict else _entities(examples.columns[found["entities"]][row], text, examples.where(row))
        places = split_words(text)
        if entities:
            count += len(entities)
            inner = {place for start, end in places for place in range(start + 1, end)}
            cutting += [f"{[*e]} ({examples.where(row)})" for e in entities if inner & set(e[:2])]
            places = split_words(text, {edge for start, end, _ in entities for edge in (start, end)})
        columns["text"].append(text)
        columns["places"].append(places)
        columns["tokens"].append([text[start:end] for start, end in places])
        if not to_predict:
            spans = []
            for start, end, label in entities:
                inside = [at for at, (first, last) in enumerate(places) if start <= first and last <= end]
                if not inside:
                    raise DataError(f"the entity {[start, end, label]} holds no word", where=examples.where(row))
                spans.append((inside[0], inside[-1] + 1, label))
            columns["tags"].append(tags_of(spans, len(places), "iob2"))
    if cutting:
        what = f"{len(cutting)} of {count} entities begin or end inside a word, such as {cutting[0]}"
        progress.warn(f"{what}; start counts from 0, end is the character after the last")


def _entities(value: Any, text: str, where: str) -> list[tuple[int, int, str]]:
    """Entities in order. Raises DataError for one that is malformed, outside the text or over another."""
    if not isinstance(value, list):
        raise DataError(f"the entities are {value!r}; expected a list, empty where there are none", where=where, hint=_HINT)
    entities = []
    for entity in value:
        parts = [entity.get(key) for key in ("start", "end", "label")] if isinstance(entity, dict) else entity
        if not isinstance(parts, (list, tuple)) or list(map(type, parts)) != [int, int, str] or not parts[2]:
            raise DataError(f"the entity {entity!r}", where=where, hint=_HINT)
        start, end, label = parts
        if not 0 <= start < end <= len(text):
            what = f"the entity {entity!r} lies outside its text of {len(text)} characters"
            raise DataError(what, where=where, hint="start counts from 0; end is the character after the last")
        entities.append((start, end, label))
    entities.sort()
    for before, after in pairwise(entities):
        if after[0] < before[1]:
            what = f"the entities {list(before)} and {list(after)} overlap; a word has one tag"
            raise DataError(what, where=where, hint="keep one of the two")
    return entities
