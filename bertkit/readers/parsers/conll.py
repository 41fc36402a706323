"""Tagged sentences in columns, one token per line: CoNLL-2003 and the like, and CoNLL-U (universaldependencies.org/format)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from bertkit.errors import DataError, UsageError, did_you_mean, plural
from bertkit.readers import Examples, Remarks, batched
from bertkit.readers.columns import guess_column, is_usual_name
from bertkit.readers.content import Content, split_lines, typed_separator

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # of CoNLL-U
CONLLU_LINES = "conllu lines"  # a column of the lines of each sentence of CoNLL-U, its comments first
_FORM, _UPOS = 1, 3
_MAY_BE_EMPTY = ("form", "lemma", "feats", "deps", "misc")  # where "_" is a value: the character itself, or "nothing to say"
_DOCUMENT = "-DOCSTART-"
# A comment as CoNLL-U, CoNLL-2012 and MultiCoNER write it, though it may have as many columns as a token: "# text = Hi".
_COMMENT = re.compile(r"#[ \t]*([\w.:-]+ = |(newdoc|newpar)\b|id [\w-]+\s+domain=)|#(begin|end) document\b")
# Only ASCII white space separates columns and makes lines blank: U+00A0, U+3000 and U+2028 are tokens in real files.
_BLANK = " \t\r\f\v"
_CHUNK = re.compile(r"O|[BIEOSMLU]-\S+")  # a chunk tag, or O
_LOOKED_AT = 200  # lines, to recognize the format
_ENOUGH = 10  # tokens needed to recognize tags by their repetition


def parse_conll(
    content: Content, *, separator: str | None = None, column: str | int | None = None, tags: str | None = None
) -> Iterator[Examples]:
    """The sentences in columns `tokens` and `tags`, lists of equal length; `lines` are those of the first tokens.

    CoNLL columns: the first is the token (the second, if the first numbers the tokens of each sentence, as in GermEval's
    files), the last the tag; blank lines separate sentences; -DOCSTART- lines are skipped, and comments before a sentence
    ("# text = ..." or "# 7"; but "# O" is a token with its tag), and so is a first line that names the columns ("word tag"),
    with a note; where it comes again, a sentence ends. CoNLL-U (.conllu, or by its look): comments, ranges (1-2) and empty
    nodes (8.1) are skipped; the tag is the UPOS. Its blocks also have the column CONLLU_LINES, and a sentence of which no word
    has a tag has None for its tags.

    separator: between columns; by default a tab if the first token's line has one, else spaces. column: the tag's column, a
    number from 1, or in CoNLL-U a name; tags: also its name, if it is one. A file with one column is text to predict, without
    `tags`. Raises DataError, with file and line, if lines differ in their columns, a token is empty or a tag is missing.
    """
    if column is None and is_column_of_conll(tags or ""):
        column = tags
    empty = True
    first_lines = _first_lines(content)
    may_be_conllu = separator is None or typed_separator(separator) == "\t"
    conllu = may_be_conllu and (content.extension == ".conllu" or _looks_like_conllu(first_lines))
    between = "\t" if conllu else _separator(first_lines, separator)
    layout = _layout(first_lines, between, conllu=conllu)
    for block in batched(_sentences(content, layout, separator, column)):
        empty = False
        columns: dict[str, Sequence[Any]] = {"tokens": [sentence.tokens for sentence in block]}
        if conllu or any(sentence.tags is not None for sentence in block):
            columns["tags"] = [sentence.tags for sentence in block]
        if conllu:
            columns[CONLLU_LINES] = [sentence.lines for sentence in block]
        own_names = {"tags": COLUMNS[block[0].tag_column]} if conllu else {}
        named = f"{content.source}: {layout.header!r} names the columns, and is no token" if layout.header else None
        remarks = Remarks.of(note=named)
        if layout.numbered:
            remarks += Remarks.of(note=f"{content.source}: column 1 numbers the tokens; column 2 holds them")
        yield Examples(columns, content.source, [each.begin for each in block], own_names=own_names, remarks=remarks)
    if empty:
        what = "the file holds no tokens" if content.beginning.strip() else "the file is empty"
        raise DataError(what, where=content.source)


class _Layout(NamedTuple):
    """between: what separates columns. width: how many columns a token has. header: a line that names them; or "".

    numbered: whether the first column counts the tokens of each sentence. chunked: whether the last one has chunk tags.
    """

    conllu: bool
    between: str
    width: int
    header: str
    numbered: bool
    chunked: bool

    @property
    def form(self) -> int:
        """The index of the token's column."""
        return _FORM if self.conllu or self.numbered else 0


class _Sentence(NamedTuple):
    """begin: the line of the first token. tags: None without any. lines: of CoNLL-U, all of the sentence's own."""

    begin: int
    tokens: list[str]
    tags: list[str] | None
    lines: list[str]
    tag_column: int


def _sentences(content: Content, layout: _Layout, separator: str | None, column: str | int | None) -> Iterator[_Sentence]:
    conllu, between = layout.conllu, layout.between
    tokens: list[str] = []
    tags: list[str] = []
    own: list[str] = []
    begin = width = tag_column = first = 0  # first: the line that set the width
    untagged: DataError | None = None
    lines = chain.from_iterable(lines for _, lines in content.lines())
    for number, line, fields in chain(_rows(lines, layout), [(0, "", [])]):
        if conllu and line:
            own.append(line)
        if fields is None:  # a comment
            continue
        if not fields:
            if tokens:
                if untagged is not None and any(tag != "_" for tag in tags):
                    raise untagged
                yield _Sentence(begin, tokens, tags if width > 1 and untagged is None else None, own, tag_column)
                tokens, tags, own, untagged = [], [], [], None
            continue
        where = f"{content.source}:{number}"
        if not width:
            width, first = (len(COLUMNS) if conllu else len(fields)), number
            tag_column = _tag_column(column, width, conllu, where)
            if width == 1 and separator is not None:
                _refuse_absent_separator(fields[0], separator, where)
        if len(fields) != width:
            raise _ragged(fields, width, between, where, None if conllu else first)
        if conllu and not fields[0].isdecimal():
            if re.fullmatch(r"[0-9]+[-.][0-9]+", fields[0]):
                continue
            raise DataError(f"the id is {fields[0]!r}; expected a number, a range (1-2) or an empty node (8.1)", where=where)
        token, tag = fields[layout.form], fields[tag_column].strip(_BLANK)
        if not token:
            what = "the token has no form" if conllu else f"the token is empty; expected it in column {layout.form + 1}"
            raise DataError(what, where=where)
        if not tag or (conllu and tag == "_" and COLUMNS[tag_column] not in _MAY_BE_EMPTY):
            name = COLUMNS[tag_column] if conllu else f"column {tag_column + 1}"
            hint = "annotate the word, or choose another column" if conllu else "tag every token, with O outside all entities"
            error = DataError(f"the token {token!r} has no tag: its {name} is {tag!r}", where=where, hint=hint)
            if tag != "_":
                raise error
            untagged = untagged or error  # a whole sentence without tags is no error: it may be there to be predicted
        begin = begin if tokens else number
        tokens.append(token)
        tags.append(tag)


def is_column_of_conll(name: str) -> bool:
    """Whether this can name a column of such a file: a number, or a name in CoNLL-U."""
    return re.fullmatch("[0-9]+", name) is not None or name.lower() in COLUMNS


def looks_like_conll(content: Content) -> bool:
    """Whether a file has tokens and tags in columns rather than sentences or a table, judging by its first lines.

    All tokens must have the same number of columns, two or more. One must have chunk tags or, if there are blank lines and
    enough tokens, the last one must have words that repeat. Short text without chunk tags counts as plain.
    """
    lines = _first_lines(content)
    if _looks_like_conllu(lines):
        return True
    rows = [(number, fields) for number, _, fields in _rows(lines, _layout(lines, _separator(lines, None)))]
    filled = [fields for _, fields in rows if fields]
    if not filled or len(filled[0]) < 2 or len({len(fields) for fields in filled}) > 1 or not all(map(all, filled)):
        return False
    columns = [[field.strip(_BLANK) for field in column] for column in zip(*filled, strict=True)]
    tags = columns[-1]
    if any(" " in tag for tag in tags):
        return False
    if any(set(column) != {"O"} and all(map(_CHUNK.fullmatch, column)) for column in columns[1:]):
        return True
    numbers = [number for number, fields in rows if fields]
    has_blank_lines = numbers[-1] - numbers[0] >= len(numbers)
    wordlike = any(character.isalnum() for tag in tags for character in tag)
    return has_blank_lines and wordlike and len(tags) >= _ENOUGH and 2 * len(set(tags)) <= len(tags)


def _first_lines(content: Content) -> list[str]:
    return split_lines("\n".join(content.beginning.split("\n", _LOOKED_AT)[:_LOOKED_AT]))


def _rows(lines: Iterable[str], layout: _Layout) -> Iterator[tuple[int, str, list[str] | None]]:
    """Each line's number from 1, the line and its fields: empty where a sentence ends, None for a comment."""
    inside = False
    header = _split(layout.header, layout.between) if layout.header else None
    for number, line in enumerate(lines, start=1):
        if not line.strip(_BLANK) or line.startswith(_DOCUMENT):
            inside = False
            yield number, "", []
        elif header is not None and _split(line, layout.between) == header:
            inside = False  # files that were joined may have no blank line between them
            yield number, line, []
        elif line.startswith("#") and _is_comment(line, layout, inside):
            yield number, line, None
        else:
            inside = True
            yield number, line, _split(line, layout.between)


def _is_comment(line: str, layout: _Layout, inside: bool) -> bool:
    """Whether a line that begins with "#" is a comment; outside CoNLL-U it must come before a sentence."""
    if layout.conllu or inside:
        return layout.conllu
    if layout.numbered or _COMMENT.match(line):
        return True
    fields = _split(line, layout.between)
    is_token = len(fields) == layout.width and (not layout.chunked or _CHUNK.fullmatch(fields[-1].strip(_BLANK)))
    return line.startswith(("# ", "#\t")) and not is_token


def _split(line: str, separator: str) -> list[str]:
    """The fields of a line. Several spaces count as one separator; leading spaces make the first field empty."""
    if separator != " ":
        return line.split(separator)
    fields = [field for field in line.rstrip(_BLANK).split(" ") if field]
    return ["", *fields] if line.startswith(" ") else fields


def _separator(lines: list[str], separator: str | None) -> str:
    if separator is not None:
        if not separator:
            raise UsageError("the separator is empty; expected one character", hint="for example --separator ' '")
        return typed_separator(separator)
    return "\t" if "\t" in _first_token(lines) else " "


def _first_token(lines: list[str]) -> str:
    """The line of the first token, of the first without "#" if there is one."""
    filled = [line for line in lines if line.strip(_BLANK) and not line.startswith(_DOCUMENT)]
    return next((line for line in filled if not line.startswith("#")), (filled or [""])[0])


def _layout(lines: list[str], separator: str, *, conllu: bool = False) -> _Layout:
    first = _first_token(lines)
    fields = _split(first, separator)
    are_names = len(fields) > 1 and guess_column(fields[:1], "tokens") and is_usual_name(fields[-1])
    header = first if are_names and not conllu else ""
    lines = ["" if header and _split(line, separator) == fields else line for line in lines]  # where a sentence ends
    numbered = not conllu and len(fields) > 2 and _are_numbered(lines, separator)
    rows = [_split(line, separator) for line in lines if line.strip(_BLANK) and not line.startswith(("#", _DOCUMENT))]
    chunked = all(_CHUNK.fullmatch(row[-1].strip(_BLANK)) for row in rows)
    return _Layout(conllu, separator, len(fields), header, numbered, chunked)


def _are_numbered(lines: list[str], separator: str) -> bool:
    """Whether the first fields of lines count the tokens of each sentence from 1; at least two must not be the first of one."""
    after_first = number = 0
    for line in lines:
        if not line.strip(_BLANK) or line.startswith(_DOCUMENT):
            number = 0
        elif not line.startswith("#"):
            number += 1
            if _split(line, separator)[0] != str(number):
                return False
            after_first += number > 1
    return after_first > 1


def _looks_like_conllu(lines: list[str]) -> bool:
    first = next((line for line in lines if line.strip(_BLANK) and not line.startswith("#")), "").split("\t")
    return len(first) == len(COLUMNS) and re.fullmatch(r"[0-9]+([-.][0-9]+)?", first[0]) is not None


def _tag_column(column: str | int | None, width: int, conllu: bool, where: str) -> int:
    """The index of the tag's column. Raises UsageError for a column that does not exist."""
    if column is None:
        return _UPOS if conllu else width - 1
    name = str(column).strip().lower()
    if conllu and name in COLUMNS:
        return COLUMNS.index(name)
    if re.fullmatch("[0-9]+", name):
        if width == 1:
            return 0  # text to predict has no tags, whatever their column in training
        if 1 <= int(name) <= width:
            return int(name) - 1
    if conllu:
        hint = did_you_mean(name, COLUMNS)
        raise UsageError(f"no column {column!r} in CoNLL-U; it has {', '.join(COLUMNS)}", where=where, hint=hint)
    hint = "only the columns of CoNLL-U have names; give a number, counted from 1"
    raise UsageError(f"no column {column!r}; the file has columns 1 to {width}", where=where, hint=hint)


def _refuse_absent_separator(line: str, separator: str, where: str) -> None:
    """Raise DataError where the given separator does not occur in the line and another one does."""
    other = next((name for mark, name in (("\t", "tabs"), (" ", "spaces")) if mark in line.strip(_BLANK)), None)
    if other:
        what = f"there is one column, {line[:40]!r}, without {separator!r}"
        raise DataError(what, where=where, hint=f"the line holds {other}: omit --separator")


def _ragged(fields: list[str], width: int, separator: str, where: str, first: int | None) -> DataError:
    expected = f"{width} as in line {first}" if first else f"the {width} of CoNLL-U"
    if len(fields) == 1 and separator == "\t" and " " in fields[0]:
        hint = "spaces separate its columns; expected tabs"
    elif separator == " " and any("\t" in field for field in fields):
        hint = "tabs separate its columns; expected spaces"
    elif len(fields) < width:
        hint = "is the tag missing, or the token?"
    else:
        hint = f"does a token hold {'a space' if separator == ' ' else repr(separator)}, or is a blank line missing?"
    what = f"found {plural(len(fields), 'column')}, expected {expected}: every token needs a tag"
    return DataError(what, where=where, hint=hint)
