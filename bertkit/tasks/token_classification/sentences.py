"""Reads sentences to tag, given as words and tags or as text and entities, into columns with standard names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import NoneType
from typing import Any

from bertkit.errors import DataError, UsageError, plural
from bertkit.readers import FIX_ROW, Examples, Remarks
from bertkit.readers.columns import guess_column, listed_columns, require_column
from bertkit.readers.parsers.conll import COLUMNS, CONLLU_LINES, is_column_of_conll
from bertkit.tasks.labels import class_name
from bertkit.tasks.list_cells import looks_like_list, refuse_broken_list, value_in
from bertkit.tasks.token_classification.tags import tags_of
from bertkit.tasks.token_classification.whole_words import WHOLE
from bertkit.text.words import CJK, split_words

GIVEN = "given"  # a column of the original words, if a recipe changed them
LISTS = ("label", "labels")  # columns of entities if they hold lists, as doccano and Label Studio write them
_ENOUGH_ROWS = 10  # of a single word each, to distinguish a table of words from one of sentences
_CHINESE_WORD = re.compile(f"[{CJK}]+")
_SEVERAL = 0.1  # share of the Chinese words
_HINT = 'expected [start, end, label] or {"start": ..., "end": ..., "label": ...}, in characters'


def standard_columns(
    examples: Examples,
    *,
    named: Mapping[str, str | None],
    intent: str | None,
    to_predict: bool,
    cut: str | None = None,
    labels: Sequence[str] = (),
) -> Examples:
    """Columns `tokens`, `tags` (unless to predict) and possibly `intent`; for plain text `text` and the `places` of its words.

    named: the columns that the user names for tokens, tags, text and entities. intent: the column of the intent, "" for the
    usual names, None without intents. cut: how Chinese text is split into words, as in `split_words`. labels: what the
    numbers of tags mean, if the data does not name them. For prediction, columns that the output shows are kept: `given`, the
    words before a recipe changed them, and the lines of CoNLL-U. Raises DataError.
    """
    shown = examples.given((GIVEN, CONLLU_LINES))
    examples = replace(examples, columns={name: values for name, values in examples.columns.items() if name not in shown})
    named = _named_in(examples, named)
    by_role = columns_by_role(examples, named)
    if by_role.get("tokens", "") == by_role.get("tags"):
        raise UsageError(f"column {by_role['tokens']!r} is named for both the words and the tags", where=examples.source)
    columns: dict[str, Any] = {}
    remarks = Remarks()
    if "tokens" in by_role:
        words = enumerate(examples.columns[by_role["tokens"]])
        columns["tokens"] = [_words(value, examples, row) for row, value in words]
        columns |= {name: values for name, values in shown.items() if to_predict or name == GIVEN}
        if (column := by_role["tokens"]) and _are_single_words(examples.columns[column], columns["tokens"]):
            what = f"each row of column {column!r} is a single word; expected a sentence"
            hint = "add a column sentence_id, equal for the words of a sentence, or save it in CoNLL columns"
            if not to_predict:
                raise DataError(what, where=examples.source, hint=hint)
            remarks += Remarks(warnings=(f"{what}, so each word is tagged by itself ({examples.source}); {hint}",))
        if not to_predict:
            if not named["tags"] and [*examples.columns] == ["tokens"]:
                hint = "to train, give each word its tag; to predict them: bertkit predict RUN FILE"
                raise DataError("the words have no tags", where=examples.source, hint=hint)
            column = by_role.get("tags") or require_column(examples, named["tags"] or "tags", option="--tags")
            names = examples.label_names.get(column) or _without_numbers(labels)
            values = enumerate(examples.columns[column])
            columns["tags"] = [_tags(value, names, columns["tokens"][row], examples, row) for row, value in values]
            examples = replace(examples, own_names={"tags": column} | examples.own_names)
    elif "text" in by_role and (to_predict or "entities" in by_role):
        remarks = _split_texts(examples, by_role, columns, to_predict, cut)
    elif list(examples.columns) == ["text"] and not any(named.values()):
        hint = "train on CoNLL columns (word and tag on each line), CoNLL-U, or JSONL with tokens and tags or text and entities"
        raise DataError("the rows are text without tags", where=examples.source, hint=hint)
    else:
        missing = "text" if named["text"] else "entities" if "text" in by_role and named["tokens"] is None else "tokens"
        if missing == "tokens" and not any(named.values()):
            what = f"no column 'tokens' or 'text'; columns: {listed_columns([*examples.columns])}"
            hint = "name it: --text NAME, or --tokens NAME for lists of words; to train, also --entities NAME, or --tags NAME"
            raise DataError(what, where=examples.source, hint=hint)
        require_column(examples, named[missing] or missing, option=f"--{missing}")
    if intent is not None:
        column = intent_column(examples, intent)
        if not intent and set(examples.columns) == {"tokens", "tags"}:
            hint = "expected a file label beside seq.in and seq.out, or JSONL with tokens, tags and intent; or --no-intent"
            raise DataError("the data has no intents", where=examples.source, hint=hint)
        require_column(examples, column, option="--intent-column")
        names = examples.label_names.get(column)
        columns["intent"] = [_intent(value, names, examples, row) for row, value in enumerate(examples.columns[column])]
    if to_predict:
        kind = "texts, which are split into words" if "places" in columns else "words"
        remarks += Remarks((f"read as {kind}",))
    own = examples.own_names | {role: by_role[role] for role in ("tokens", "text") if role in by_role}
    if "places" in columns:  # of words that are read out of the text
        own |= dict.fromkeys(("places", WHOLE), by_role["text"])
    return replace(examples, columns=columns, label_names={}, own_names=own, remarks=examples.remarks + remarks)


def _named_in(examples: Examples, named: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """The named columns, without names that do not occur in a file whose columns have no names of their own."""
    if set(examples.columns) <= {"tokens", "tags", "label"}:
        return {role: name if name in examples.columns else None for role, name in named.items()}
    return named


def columns_by_role(examples: Examples, named: Mapping[str, str | None]) -> dict[str, str]:
    """The columns of tokens, tags, text and entities: the named ones, else those with usual names."""
    named = _named_in(examples, named)
    by_role: dict[str, str] = {}
    names_text = named["tokens"] is None and {named["text"], named["entities"]} & examples.columns.keys()
    for role, wanted in named.items():
        if role == "tokens" and names_text:  # the user says which of two forms the rows have
            continue
        name = wanted if wanted in examples.columns else guess_column(examples.columns, role) if wanted is None else None
        if name is not None:
            by_role[role] = name
    if "text" in by_role and "tokens" not in by_role and named["entities"] is None:
        lists = [name for name in LISTS if _are_lists(examples.columns.get(name, []))]
        by_role |= {"entities": lists[0]} if lists and "entities" not in by_role else {}
    return by_role


def _are_lists(values: Sequence[Any]) -> bool:
    """Whether some values are lists and all others are missing."""
    return any(isinstance(value, list) for value in values) and all(isinstance(value, (list, NoneType)) for value in values)


def intent_column(examples: Examples, named: str | None) -> str:
    """The column of the intent: the named one, else one with a usual name."""
    return named or guess_column(examples.columns, "intent") or "intent"


def refuse_unknown_tags_column(examples: Examples, tags: str) -> None:
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


def _without_numbers(labels: Sequence[str]) -> Sequence[str] | None:
    """The labels; None if any is a number, so that a number in the data is a name."""
    return None if any(map(str.isdecimal, labels)) else labels or None


def _tags(value: Any, names: Sequence[str] | None, words: list[str], examples: Examples, row: int) -> list[str]:
    if value is None:
        is_conllu = examples.own_name("tags") in COLUMNS
        what = (
            f"no word of the sentence has a tag: its {examples.own_name('tags')} is '_'" if is_conllu else "the row has no tags"
        )
        hint = "annotate the words, or choose another column: --column" if is_conllu else FIX_ROW
        raise DataError(what, where=examples.where(row), hint=hint)
    tags = _items(value, examples, row)
    if not isinstance(tags, (list, tuple)):
        raise DataError(f"the tags are {value!r}; expected a list of tags", where=examples.where(row))
    if len(tags) != len(words):
        what = f"{plural(len(words), 'word')} and {plural(len(tags), 'tag')}; expected one tag per word"
        raise DataError(what, where=examples.where(row), hint="is a word or a tag missing, or does one contain a space?")
    if names is not None:
        tags = [int(tag) if isinstance(tag, str) and tag not in names and tag.isdecimal() else tag for tag in tags]
        if outside := [tag for tag in tags if isinstance(tag, int) and not 0 <= tag < len(names)]:
            what = f"the tag number is {outside[0]}; expected 0 to {len(names) - 1}"
            hint = "name all tags, in the order of their numbers: --labels O,B-PER,..."
            if outside[0] < 0:
                hint = "is this a split without tags?"
            elif names in examples.label_names.values():  # the data names them itself
                hint = FIX_ROW
            raise DataError(what, where=examples.where(row), hint=hint)
        tags = [names[tag] if isinstance(tag, int) else tag for tag in tags]
    for word, tag in zip(words, tags, strict=True):
        if not isinstance(tag, (str, int)) or isinstance(tag, bool) or tag == "":
            raise DataError(f"the word {word!r} has the tag {tag!r}; expected text", where=examples.where(row))
    return [str(tag) for tag in tags]


def _items(value: Any, examples: Examples, row: int) -> Any:
    """The items in a cell: a list, or separated by spaces."""
    if not isinstance(value, str):
        return value
    hint = "save the data as JSONL, or with words and tags separated by spaces"
    if looks_like_list(value):
        if isinstance(items := value_in(value), list):
            return items
        refuse_broken_list(value, examples.where(row), hint)
    return [item for item in value.split(" ") if item]


def _are_single_words(cells: Sequence[Any], words: list[list[str]]) -> bool:
    """Whether a table has one word per row."""
    return len(words) >= _ENOUGH_ROWS and all(len(row) < 2 for row in words) and isinstance(cells[0], str)


def _intent(value: Any, names: Sequence[str] | None, examples: Examples, row: int) -> str:
    if names is not None and not isinstance(value, str):
        value = class_name(value, names, examples.where(row))
    if not isinstance(value, (str, int)) or value == "":
        raise DataError(f"the intent is {value!r}; expected text", where=examples.where(row), hint=FIX_ROW)
    return str(value)


def _split_texts(
    examples: Examples, by_role: Mapping[str, str], columns: dict[str, Any], to_predict: bool, cut: str | None
) -> Remarks:
    """Fill in words, their places and, from the entities, their tags. Words are cut at the ends of entities; the places of
    whole words are kept.
    """
    columns |= {"tokens": [], "places": [], "text": []} | ({} if to_predict else {"tags": [], WHOLE: []})
    inside_words: list[str] = []  # entities that begin or end inside a word
    count = 0
    given = [] if to_predict else examples.columns[by_role["entities"]]
    unmarked = given.count(None) if by_role.get("entities") in LISTS else 0  # Label Studio leaves an empty list out
    if unmarked:
        given = [[] if value is None else value for value in given]
    for row, text in enumerate(examples.columns[by_role["text"]]):
        if not isinstance(text, str):
            content = "nothing" if text is None else repr(text)
            raise DataError(f"column {by_role['text']!r} holds {content}; expected text", where=examples.where(row))
        entities = [] if to_predict else _entities(given[row], text, examples.where(row))
        places = whole = split_words(text, cut=cut)
        if entities:
            count += len(entities)
            inner = {place for start, end in places for place in range(start + 1, end)}
            inside_words += [f"{[*e]} ({examples.where(row)})" for e in entities if inner & set(e[:2])]
            places = split_words(text, {edge for start, end, _ in entities for edge in (start, end)}, cut)
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
            columns[WHOLE].append(whole)
    notes = (f"{plural(unmarked, 'row')} without {by_role['entities']}, read as texts that have none",) if unmarked else ()
    if not inside_words:
        return Remarks(notes)
    what = f"{len(inside_words)} of {count} entities begin or end inside a word, such as {inside_words[0]}"
    why = "start counts from 0, end is the character after the last; only whole words are predicted, so these count as missed"
    return Remarks(notes, (f"{what}; {why}",))


def _entities(value: Any, text: str, where: str) -> list[tuple[int, int, str]]:
    """Entities in order. Raises DataError for one that is malformed, outside the text, or overlaps another."""
    if value is None:  # as in a task of Label Studio that nobody has annotated
        hint = f"a text without entities has an empty list; {FIX_ROW}"
        raise DataError("the text is not annotated", where=where, hint=hint)
    listed = (value_in(value) if value.strip() else []) if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise DataError(f"the entities are {value!r}; expected a list, empty if there are none", where=where, hint=_HINT)
    entities = []
    for entity in listed:
        parts = _parts(entity) if isinstance(entity, dict) else entity
        if not isinstance(parts, (list, tuple)) or list(map(type, parts)) != [int, int, str] or not parts[2]:
            raise DataError(f"{entity!r} is not an entity", where=where, hint=_HINT)
        start, end, label = parts
        if not 0 <= start < end <= len(text):
            outside = f"lies outside its text of {len(text)} characters"
            what = f"the entity {entity!r} {'has no character' if 0 <= start == end <= len(text) else outside}"
            raise DataError(what, where=where, hint="start counts from 0; end is the character after the last")
        if isinstance(entity, dict) and entity.get("text", covered := text[start:end]) != covered:
            what = f"the entity {entity!r} says {entity['text']!r}, but its text there is {covered!r}"
            raise DataError(what, where=where, hint="start and end count characters; an emoji is one or more of them")
        entities.append((start, end, label))
    entities = sorted({*entities})  # duplicates count once
    for before, after in pairwise(entities):
        if after[0] < before[1]:
            what = f"the entities {list(before)} and {list(after)} overlap; a word has only one tag"
            raise DataError(what, where=where, hint="keep one of the two")
    return entities


def _parts(entity: Mapping[str, Any]) -> list[Any]:
    """Start, end and label of an object, as bertkit, doccano or Label Studio writes them."""
    labels = entity.get("labels")
    only = labels[0] if isinstance(labels, list) and len(labels) == 1 else None
    return [
        entity.get("start", entity.get("start_offset")),
        entity.get("end", entity.get("end_offset")),
        entity.get("label", only),
    ]


def with_tags(examples: Examples, tags: Sequence[list[str]]) -> Examples:
    """The same sentences with these tags."""
    return replace(examples, columns=examples.columns | {"tags": tags})


def usual_cut(examples: Examples) -> str | None:
    """How to split plain text into words like those of these sentences: "jieba" if Chinese words have several characters."""
    if "places" in examples.columns:  # plain text, already cut
        return None
    chinese = Counter(len(word) > 1 for words in examples.columns["tokens"] for word in words if _CHINESE_WORD.fullmatch(word))
    return "jieba" if chinese[True] > _SEVERAL * chinese.total() else None
