"""The role of each column: given by the user, or guessed from its name if that leaves no doubt."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertkit.errors import DataError, excerpt, listed
from bertkit.readers import Examples

# As `_plain` spells them: "Sentence 1", "sentence_1" and "sentence1" are one name.
_USUAL_NAMES = {
    "text": """text texta text1 sentence sentence1 sentencea question question1 premise review message content tweet body
        title headline comment document post query utterance input sms email""",
    "text_pair": "textpair textb text2 sentence2 sentenceb question2 hypothesis",
    "label": """label labels class classes category kind target goldlabel sentiment score rating stars team intent topic
        emotion isduplicate""",
    "tokens": "tokens words token word",
    "tags": "tags nertags postags upos labels tag ner pos slots",
    "sentence": "sentence sentenceid sentenceno sentencenumber sentencenr sentenceindex sentid",
    "entities": "entities spans",
    "intent": "intent label",
    "context": "context ctx passage article story document paragraph prompt premise goal text sentence sentence1 sent1",
    "question": "question questionstem query sent2",
    "answer": "label labels answer answerkey correctanswer right correct gold goldlabel",
}
_SECOND = {"tags": frozenset({"postags", "upos", "pos"})}  # of a table that also has entities
_USUAL = {role: frozenset(names.split()) for role, names in _USUAL_NAMES.items()}


def guess_column(names: Iterable[str], role: str) -> str | None:
    """The column for a role ("text", "label", "tokens" ...) by its usual names; None unless exactly one would fit.

    Of tags, parts of speech count only where no other column fits.
    """
    fitting = [name for name in names if _plain(name) in _USUAL[role]]
    fitting = [name for name in fitting if _plain(name) not in _SECOND.get(role, ())] or fitting
    return fitting[0] if len(fitting) == 1 else None


def is_usual_name(name: str) -> bool:
    """Whether this is a usual name for a column of any role."""
    return any(_plain(name) in names for names in _USUAL.values())


def names_in(values: Iterable[str | None]) -> set[str]:
    """The columns that options may name: each value, and its parts between commas."""
    given = [value for value in values if value]
    return {*given, *(part.strip() for value in given for part in value.split(","))}


def columns_named(value: str, names: Iterable[str]) -> tuple[str, ...]:
    """The columns that an option names: one, or several separated by commas; a name may itself contain commas. Empty unless all
    exist.
    """
    names = {*names}
    if value in names:
        return (value,)
    for comma in re.finditer(",", value):
        head, tail = value[: comma.start()].strip(), value[comma.end() :].strip()
        if head in names and (others := columns_named(tail, names)):
            return head, *others
    return ()


def require_columns(examples: Examples, value: str, *, option: str) -> None:
    """Raise DataError unless `value` names one or several columns."""
    if columns_named(value, examples.columns):
        return
    parts = [part.strip() for part in value.split(",")]
    found = any(part in examples.columns for part in parts)
    require_column(examples, next(part for part in parts if part not in examples.columns) if found else value, option=option)


def require_column(examples: Examples, name: str, *, option: str) -> str:
    """`name`, which must be a column. option: the option that sets it, such as "--label". Raises DataError."""
    names = list(examples.columns)
    if name in names:
        return name
    numbered = [each for each in names if re.fullmatch(re.escape(name) + r" \(\d+\)", each)]  # as parsers read equal names
    if len(numbered) > 1:
        places = listed([f"{each} is column {names.index(each) + 1}" for each in numbered])
        hint = f"name one, such as {option} {shlex.quote(numbered[0])}, or give each column its own name"
        raise DataError(f"no column {name!r}, but several of this name: {places}", where=examples.source, hint=hint)
    if near := similar_name(name, names):
        hint = f"did you mean {near}? rename it, or set it with {option} {shlex.quote(near)}"
    else:
        hint = data_hint(names, name) or f"name the column: {option} NAME"
    raise DataError(f"no column {name!r}; columns: {listed_columns(names)}", where=examples.source, hint=hint)


def listed_columns(names: Iterable[str]) -> str:
    """The names of columns, on one line; a long one, such as a text of a file without a header, is shortened."""
    return listed([*map(_short, names)], 12)


def _short(name: str) -> str:
    """A column's name of at most 40 characters; one with line breaks and the like in quotes."""
    name = excerpt(name, 40)
    return name if name.isprintable() else repr(name)


def data_hint(names: Sequence[str], wanted: str) -> str:
    """What to do if the names of the columns look like a row of data; "" if they do not. wanted: names to give, in words."""
    return f"the first row looks like data: {header_hint(names, wanted)}" if any(map(_looks_like_data, names)) else ""


def header_hint(row: Sequence[Any], wanted: str = "") -> str:
    """What to do if a file has no header. row: its first one. wanted: names to give, in words."""
    return f"if the file has no header, name its columns: {columns_option(row, wanted)}"


def columns_option(row: Sequence[Any], wanted: str = "") -> str:
    """--columns with names for the values of a row; of two, the label is the shorter one. More have no guess, as one may be an
    id. wanted: names to give, in words.
    """
    if len(row) > 2:
        return f"--columns A,B,... with {len(row)} names{f', among them {wanted}' if wanted else ''}"
    first, last = (len(str(value).encode("utf-8", "replace")) for value in (row[0], row[-1]))  # Chinese is short in characters
    names = ["label", "text"] if first < last else ["text", "label"][: len(row)]
    return f"--columns {','.join(names)}"


def similar_name(name: str, names: Sequence[str]) -> str | None:
    """The name that is probably meant, or None."""
    same = next((known for known in names if _plain(known) == _plain(name)), None)
    return same or next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.6)), None)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def _looks_like_data(name: str) -> bool:
    """Whether a column's name looks like a value: a number, a sentence, or several lines."""
    if re.fullmatch(r"[-+]?[\d.]+", name) or re.search(r"[\r\n,;!?\u3001\u3002\uff01\uff0c\uff1f]|[.] ", name):
        return True
    return len(name) > 40 or len(name.split()) > 3


def guessed(options: Any, named: Mapping[str, Any]) -> tuple[str, ...]:
    """A note listing the columns that were found by name, as `options` do not name them."""
    found = {role: name for role, name in named.items() if name is not None and getattr(options, role) is None}
    pairs = [f"{role} = {name if isinstance(name, str) else ','.join(name)}" for role, name in found.items()]
    return (f"columns found by name: {', '.join(pairs)}",) if pairs else ()
