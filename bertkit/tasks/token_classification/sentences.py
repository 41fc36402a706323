"""Read sentences to tag, words and tags or text and entities, into columns with standard names."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from bertkit.errors import DataError, UsageError, did_you_mean, plural
from bertkit.readers import FIX_ROW, Examples, Remarks
from bertkit.readers.columns import guess_column, require_column
from bertkit.readers.conll import is_column_of_conll
from bertkit.readers.words import split_words
from bertkit.tasks.labels import refuse_repeated
from bertkit.tasks.token_classification.tags import tags_of

GIVEN = "given"  # a column of the original words, if a recipe changed them
_ENOUGH_ROWS = 10  # of a single word each, to tell a table of words from one of sentences
_HINT = 'expected [start, end, label] or {"start": ..., "end": ..., "label": ...}, in characters'


def standard_columns(
    examples: Examples,
    *,
    named: Mapping[str, str | None],
    intent: str | None,
    to_predict: bool,
) -> Examples:
    """Columns `tokens`, `tags` (unless to predict) and maybe `intent`; for plain text `text` and the `places` of its words.

    named: the columns that the user names for tokens, tags, text and entities. intent: that of the intent, "" for the usual
    names, None without intents. `given`: the words that predictions show, if a recipe changed them. Raises DataError.
    """
    given = examples.columns.get(GIVEN)
    examples = replace(examples, columns={name: values for name, values in examples.columns.items() if name != GIVEN})
    named = _named_in(examples, named)
    by_role = columns_by_role(examples, named)
    if by_role.get("tokens", "") == by_role.get("tags"):
        raise UsageError(f"column {by_role['tokens']!r} is named for both the words and the tags", where=examples.source)
    columns: dict[str, list] = {}
    remarks = Remarks()
    if "tokens" in by_role:
        words = enumerate(examples.columns[by_role["tokens"]])
        columns["tokens"] = [_words(value, examples, row) for row, value in words]
        if given is not None:
            columns[GIVEN] = given
        if not to_predict:
            _refuse_single_words(examples, by_role["tokens"], columns["tokens"])
            column = by_role.get("tags") or require_column(examples, named["tags"] or "tags", option="--tags")
            names = examples.label_names.get(column)
            values = enumerate(examples.columns[column])
            columns["tags"] = [_tags(value, names, columns["tokens"][row], examples, row) for row, value in values]
    elif "text" in by_role and (to_predict or "entities" in by_role):
        remarks = _split_texts(examples, by_role, columns, to_predict)
    elif list(examples.columns) == ["text"] and not any(named.values()):
        hint = "train on CoNLL columns (word and tag on each line), CoNLL-U, or JSONL with tokens and tags or text and entities"
        raise DataError("the rows are text without tags", where=examples.source, hint=hint)
    else:
        missing = "text" if named["text"] else "entities" if "text" in by_role and named["tokens"] is None else "tokens"
        require_column(examples, named[missing] or missing, option=f"--{missing}")
    if intent is not None:
        column = intent_column(examples, intent)
        if not intent and set(examples.columns) == {"tokens", "tags"}:
            hint = "expected a file label beside seq.in and seq.out, or JSONL with tokens, tags and intent; or --no-intent"
            raise DataError("the data has no intents", where=examples.source, hint=hint)
        require_column(examples, column, option="--intent-column")
        columns["intent"] = [_intent(value, examples, row) for row, value in enumerate(examples.columns[column])]
    if to_predict:
        kind = "plain text, one sentence per line" if "places" in columns else "words"
        counts = f"{plural(len(examples), 'sentence')}, {plural(sum(map(len, columns['tokens'])), 'word')}"
        remarks += Remarks((f"read as {kind}: {counts}",))
    return replace(examples, columns=columns, label_names={}, remarks=examples.remarks + remarks)


def _named_in(examples: Examples, named: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """The columns that are named, except for other names in a file whose columns have none of their own."""
    if set(examples.columns) <= {"tokens", "tags", "label"}:
        return {role: name if name in examples.columns else None for role, name in named.items()}
    return named


def columns_by_role(examples: Examples, named: Mapping[str, str | None]) -> dict[str, str]:
    """The columns of tokens, tags, text and entities: those that are named, else those with usual names."""
    named = _named_in(examples, named)
    by_role: dict[str, str] = {}
    names_text = named["tokens"] is None and {named["text"], named["entities"]} & examples.columns.keys()
    for role, wanted in named.items():
        if role == "tokens" and names_text:  # the user says which of two forms the rows have
            continue
        name = wanted if wanted in examples.columns else guess_column(examples.columns, role) if wanted is None else None
        if name is not None:
            by_role[role] = name
    return by_role


def intent_column(examples: Examples, named: str | None) -> str:
    """The column of the intent: the one that is named, else one with a usual name."""
    return named or guess_column(examples.columns, "intent") or "intent"


def check_tags_named(examples: Examples, tags: str) -> None:
    """Raise UsageError if --tags names no column of data whose columns have standard names."""
    if tags not in examples.columns and {*examples.columns} <= {"tokens", "tags", "label"} and not is_column_of_conll(tags):
        what = f"no column {tags!r} for the tags; columns: {', '.join(examples.columns)}"
        raise UsageError(what, where=examples.source, hint="for CoNLL columns use --column, a number from 1")


def _words(value: Any, examples: Examples, row: int) -> list[str]:
    words = _items(value, examples, row)
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        what = f"the words are {value!r}; expected a list of texts, or words separated by spaces"
        raise DataError(what, where=examples.where(row), hint=FIX_ROW)
    return list(words)


def _tags(value: Any, names: Sequence[str] | None, words: list[str], examples: Examples, row: int) -> list[str]:
    if value is None:
        raise DataError("the row has no tags", where=examples.where(row), hint=FIX_ROW)
    tags = _items(value, examples, row)
    if not isinstance(tags, (list, tuple)):
        raise DataError(f"the tags are {value!r}; expected a list of tags", where=examples.where(row))
    if len(tags) != len(words):
        what = f"{len(words)} words and {len(tags)} tags; expected one tag per word"
        raise DataError(what, where=examples.where(row), hint="is a word or a tag missing, or does one contain a space?")
    if names is not None:
        if outside := [tag for tag in tags if isinstance(tag, int) and not 0 <= tag < len(names)]:
            what = f"the tag number {outside[0]}; expected 0 to {len(names) - 1}"
            raise DataError(what, where=examples.where(row), hint="is this a split without tags?")
        tags = [names[tag] if isinstance(tag, int) else tag for tag in tags]
    for word, tag in zip(words, tags, strict=True):
        if not isinstance(tag, (str, int)) or isinstance(tag, bool) or tag == "":
            raise DataError(f"the word {word!r} has the tag {tag!r}; expected text", where=examples.where(row))
    return [str(tag) for tag in tags]


def _items(value: Any, examples: Examples, row: int) -> Any:
    """The items of a cell: separated by spaces, or a list in JSON or Python, as tables made from lists have it."""
    if not isinstance(value, str):
        return value
    if re.match(r"""\[(['"].*['"]|-?\d+([,\s]+-?\d+)*)?\]$""", text := value.strip(), re.DOTALL):
        if (items := _read_list(text)) is not None:
            return items
        what = f"the cell {text[:40]!r} looks like a list but cannot be read"
        hint = "save the data as JSONL, or with words and tags separated by spaces"
        raise DataError(what, where=examples.where(row), hint=hint)
    return [item for item in value.split(" ") if item]


def _read_list(text: str) -> list | None:
    """A list of literals; None for anything else, such as numpy's lists without commas, whose texts Python would join."""
    try:
        items = ast.literal_eval(text)
        strings = sum(token.type == tokenize.STRING for token in tokenize.generate_tokens(io.StringIO(text).readline))
    except (ValueError, SyntaxError, tokenize.TokenError):
        return None
    return items if strings in (0, len(items)) else None


def _refuse_single_words(examples: Examples, column: str, words: list[list[str]]) -> None:
    """Raise DataError for a table of one word per row."""
    if len(words) >= _ENOUGH_ROWS and all(len(row) < 2 for row in words) and isinstance(examples.columns[column][0], str):
        hint = "save it in CoNLL columns: one word and its tag per line, a blank line after each sentence"
        what = f"each row of column {column!r} is a single word; expected a sentence"
        raise DataError(what, where=examples.source, hint=hint)


def _intent(value: Any, examples: Examples, row: int) -> str:
    if not isinstance(value, (str, int)) or value == "":
        raise DataError(f"the intent is {value!r}; expected text", where=examples.where(row), hint=FIX_ROW)
    return str(value)


def _split_texts(examples: Examples, by_role: Mapping[str, str], columns: dict[str, list], to_predict: bool) -> Remarks:
    """Fill in words, their places and, from the entities, their tags; words are split at the ends of entities."""
    columns |= {"tokens": [], "places": [], "text": []} | ({} if to_predict else {"tags": []})
    inside_words: list[str] = []  # entities that begin or end inside a word
    count = 0
    for row, text in enumerate(examples.columns[by_role["text"]]):
        if not isinstance(text, str):
            content = "nothing" if text is None else repr(text)
            raise DataError(f"column {by_role['text']!r} holds {content}; expected text", where=examples.where(row))
        entities = [] if to_predict else _entities(examples.columns[by_role["entities"]][row], text, examples.where(row))
        places = split_words(text)
        if entities:
            count += len(entities)
            inner = {place for start, end in places for place in range(start + 1, end)}
            inside_words += [f"{[*e]} ({examples.where(row)})" for e in entities if inner & set(e[:2])]
            places = split_words(text, {edge for start, end, _ in entities for edge in (start, end)})
        columns["text"].append(text)
        columns["places"].append(places)
        columns["tokens"].append([text[start:end] for start, end in places])
        if not to_predict:
            spans = []
            for start, end, label in entities:
                inside = [word for word, (first, last) in enumerate(places) if start <= first and last <= end]
                if not inside:
                    raise DataError(f"the entity {[start, end, label]} contains no word", where=examples.where(row))
                spans.append((inside[0], inside[-1] + 1, label))
            columns["tags"].append(tags_of(spans, len(places), "iob2"))
    if not inside_words:
        return Remarks()
    what = f"{len(inside_words)} of {count} entities begin or end inside a word, such as {inside_words[0]}"
    why = "start counts from 0, end is the character after the last; such words are split there, which predictions cannot do"
    return Remarks(warnings=(f"{what}; {why}",))


def _entities(value: Any, text: str, where: str) -> list[tuple[int, int, str]]:
    """Entities in order. Raises DataError for one that is malformed, outside the text, or overlaps another."""
    if not isinstance(value, list):
        raise DataError(f"the entities are {value!r}; expected a list, empty if there are none", where=where, hint=_HINT)
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
            what = f"the entities {list(before)} and {list(after)} overlap; a word has only one tag"
            raise DataError(what, where=where, hint="keep one of the two")
    return entities


def settle_labels(tags: Sequence[Sequence[str]], given: tuple[str, ...] | None, examples: Examples) -> tuple[str, ...]:
    """The labels for the tags of the training data: those given, or all that occur, O first. Raises UsageError, DataError."""
    labels = given or tuple(sorted({tag for row in tags for tag in row}, key=lambda tag: (tag != "O", tag)))
    refuse_repeated(labels)
    for row, sentence in enumerate(tags):
        if unknown := next((tag for tag in sentence if tag not in labels), None):
            what = f"unknown tag {unknown!r}; expected one of {', '.join(labels[:12])}"
            raise DataError(what, where=examples.where(row), hint=f"{did_you_mean(unknown, labels)} (--labels sets them)")
    words = sum(map(len, tags))
    if given is None and len(labels) > 50 and len(labels) > words / 5:
        what = f"{len(labels)} distinct tags in {words} words, such as {labels[-1]!r}: is this the column of the words?"
        hint = "--column (CoNLL) or --tags (JSON, tables) says where the tags are"
        raise DataError(what, where=examples.source, hint=hint)
    if len(labels) < 2:
        raise DataError(f"every word has the tag {labels[0]!r}; expected two or more tags", where=examples.source)
    return labels
