"""The formats of data files: a table of them, and how a file's format is recognized, by its name or else its content.

A task family declares its formats as a tuple of rows, in the order in which a file's content is compared with them. A new
format is a module of `parsers/` with its `parse`, and a row here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples, Remarks, join_blocks
from bertkit.readers.content import Content, open_content, plain_name
from bertkit.readers.faults import Faults
from bertkit.readers.parsers.arrow import looks_like_arrow, parse_arrow
from bertkit.readers.parsers.c3 import looks_like_c3, parse_c3
from bertkit.readers.parsers.conll import looks_like_conll, parse_conll
from bertkit.readers.parsers.delimited import header_note, parse_delimited, quoted_lines_warning, sniff_separator
from bertkit.readers.parsers.doccano import looks_like_doccano, parse_doccano
from bertkit.readers.parsers.fasttext import looks_like_fasttext, parse_fasttext
from bertkit.readers.parsers.jsonl import parse_jsonl
from bertkit.readers.parsers.label_studio import looks_like_label_studio, parse_label_studio
from bertkit.readers.parsers.parallel import is_parallel, parse_parallel
from bertkit.readers.parsers.prodigy import looks_like_prodigy, parse_prodigy
from bertkit.readers.parsers.squad import looks_like_squad, parse_squad
from bertkit.readers.parsers.xlsx import looks_like_xlsx, parse_xlsx

SPLITS = ("train", "validation", "test")  # each may have a file of its own
ANY_WORDS = "*"  # among the endings of a folder's files
# File names for a split that has another name in data sets on the hub.
_SPLIT_NAMES = {"validation": ("validation", "valid", "val", "dev")}
# What an option of the command line is for, and what to do if a file's format does not take it.
_USES = {
    "separator": ("CSV, TSV and CoNLL files", "omit it"),
    "columns": ("tables without a header", "omit it: the file names its own columns"),
    "column": ("CoNLL columns", "for JSON and tables, --tags names the column"),
    "rows": ("JSON that holds the rows inside", "omit it"),
}


@dataclass(frozen=True)
class Format:
    """A format of data files.

    endings: of file names, in lower case, ignoring .gz. looks_like: whether the beginning of a file looks like it, which
    decides between formats with the same ending, or if the ending says nothing. parse: from the content of a file (or, if
    is_folder, the path of a folder) to blocks of rows; a format that is read as a whole is one block. options: the keywords
    that it takes; those in _USES are command-line options, and any others are ignored by formats that do not take them.
    """

    name: str
    endings: tuple[str, ...]
    looks_like: Callable[[Content], bool]
    parse: Callable[..., Iterator[Examples]]
    options: frozenset[str] = frozenset()
    is_folder: bool = False


def parse_lines(content: Content, *, keep_broken: bool = False) -> Iterator[Examples]:
    """One row per line, also for empty lines, in the column `text`, or the one that a lone header names. keep_broken: None for
    a line that is not text. Raises DataError for an empty file.
    """
    if not content.start:
        raise DataError("the file is empty", where=content.source)
    column = content.lone_header or "text"
    remarks = header_note(content) if content.lone_header else quoted_lines_warning(content)
    if content.extension in _CONLL:
        remarks += Remarks.of(warning=f"{content.source}: CoNLL columns are for tags; here each line is a text")
    for number, lines in content.lines():
        if number == 1 and content.lone_header:
            number, lines = 2, lines[1:]
        numbers = range(number, number + len(lines))
        texts = [None if number in content.broken else line for number, line in zip(numbers, lines, strict=True)]
        columns: dict[str, Sequence[Any]] = {column: texts if keep_broken else lines}
        yield Examples(columns=columns, source=content.source, lines=numbers, remarks=remarks)


def _looks_like_json(content: Content) -> bool:
    return re.match(r'\s*(\[?\s*\{\s*"|\[{1,2}\s*".*\{)', content.first_line) is not None


_JSON = (".json", ".jsonl", ".jsonlines", ".json-lines", ".ndjson")
_CONLL = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes", ".bmes", ".bilou")

JSON = Format("JSON", _JSON, _looks_like_json, parse_jsonl, frozenset({"rows", "columns", "keep_broken"}))
DELIMITED = Format(
    "a CSV or TSV table",
    (".csv", ".tsv"),
    lambda content: sniff_separator(content) is not None and not _looks_like_json(content),
    parse_delimited,
    frozenset({"separator", "columns", "keep_broken"}),
)
ARROW = Format("Parquet or Arrow", (".parquet", ".arrow", ".feather"), looks_like_arrow, parse_arrow)
XLSX = Format("an Excel workbook", (".xlsx", ".xlsm"), looks_like_xlsx, parse_xlsx, frozenset({"columns"}))
FASTTEXT = Format("fastText's lines", (), looks_like_fasttext, parse_fasttext)
LINES = Format("plain text", (), lambda content: True, parse_lines, frozenset({"keep_broken"}))
SQUAD = Format("SQuAD's JSON", _JSON, looks_like_squad, parse_squad)
C3 = Format("C3's JSON", _JSON, looks_like_c3, parse_c3)
LABEL_STUDIO = Format("Label Studio's JSON", _JSON, looks_like_label_studio, parse_label_studio, frozenset({"labelled"}))
DOCCANO = Format("doccano's JSONL", _JSON, looks_like_doccano, parse_doccano, frozenset({"keep_broken", "labelled"}))
PRODIGY = Format("Prodigy's JSONL", _JSON, looks_like_prodigy, parse_prodigy, frozenset({"keep_broken", "labelled"}))
CONLL = Format(
    "CoNLL columns", (*_CONLL, ".txt", ".tsv"), looks_like_conll, parse_conll, frozenset({"separator", "column", "tags"})
)
PARALLEL = Format("seq.in and seq.out", ("/",), lambda content: False, parse_parallel, is_folder=True)

TABLES = (DELIMITED, JSON, ARROW, XLSX)
ANNOTATED = (LABEL_STUDIO, DOCCANO, PRODIGY)
TEXTS = (FASTTEXT, *ANNOTATED, *TABLES, LINES)
CHOICES = (C3, *TEXTS)
# A .txt file is CoNLL columns or sentences, tabs or not; with --columns a table.
TAGGED = (
    replace(DELIMITED, endings=(".txt",), looks_like=lambda content: False),
    CONLL,
    *ANNOTATED,
    *TABLES,
    PARALLEL,
    replace(LINES, endings=(".txt",)),
)


def read_file(path: str | Path, formats: Sequence[Format] = TEXTS, **options: Any) -> Examples:
    """All rows of a file; see `read_blocks`."""
    return join_blocks(read_blocks(path, formats, **options))


def read_blocks(
    path: str | Path,
    formats: Sequence[Format] = TEXTS,
    *,
    encoding: str | None = None,
    max_file_size: float | None = None,
    on_error: str | None = None,
    column_names: Collection[str] = (),
    **options: Any,
) -> Iterator[Examples]:
    """The rows of a file in one of these formats, block by block; "-" is standard input.

    Compressed files are unpacked. The file's ending decides the format; if several formats, or none, have that ending, its
    content does, and a file that looks like none is in the last format. encoding, max_file_size: as in `open_content`.
    on_error: "skip" keeps unreadable rows, with None in every column, in formats with one row per line, JSON object or table
    row. column_names: names by which a header is recognized. options: keywords of the formats, such as
    separator, columns, column and labelled; None counts as not given. Raises DataError, and UsageError for an option that the
    format does not take.
    """
    given = {name: value for name, value in options.items() if value is not None}
    folder = next((form for form in formats if form.is_folder), None)
    if folder is not None and Path(path).is_dir():
        how: dict[str, Any] = {"encoding": encoding, "max_file_size": max_file_size}
        yield from folder.parse(Path(path), **how, **_taken(given, folder, str(path)))
        return
    with open_content(path, encoding=encoding, max_file_size=max_file_size) as content:
        content.column_names = frozenset(column_names)
        form = _choose(content, formats, given.keys() & _USES.keys())
        if on_error == "skip" and "keep_broken" in form.options:
            given["keep_broken"], content.faults = True, Faults("skip")
        for block in form.parse(content, **_taken(given, form, content.source)):
            why = Remarks.of(warning=content.faults.first)
            done = content.share if block.done is None else block.done
            yield replace(block, done=done, remarks=block.remarks + why)


def recognize(path: str | Path, formats: Sequence[Format], **how: Any) -> Format:
    """The format of a file, one of `formats`. how: as in `open_content`.

    Raises DataError for a file that cannot be opened.
    """
    with open_content(path, **how) as content:
        return _choose(content, formats, frozenset())


def endings_of(formats: Sequence[Format]) -> tuple[str, ...]:
    """The file endings of the formats."""
    return tuple(dict.fromkeys(ending for form in formats for ending in form.endings))


def kind_of_split(split: str) -> str:
    """A split's name without its variant: "validation" for "validation_matched"."""
    return split.partition("_")[0]


def find_split_file(folder: Path, split: str, endings: Sequence[str] = endings_of(TEXTS)) -> Path | None:
    """The data file of a split in a folder: train.tsv, dev.csv.gz, validation_matched.jsonl; None if there is none.

    "validation" may also be called valid, val or dev. endings: accepted ones, in lower case and without .gz; "/" is a folder
    with a split's seq.in. With ANY_WORDS, if no file has exactly that name, the name may be one of the words in a file's name:
    quora_train.tsv, train_few_all.csv, news.train. Raises DataError if several files match.
    """
    first, _, rest = split.partition("_")
    stems = {name + (f"_{rest}" if rest else "") for name in _SPLIT_NAMES.get(first, (first,))}
    wanted = {stem + ending for stem in stems for ending in endings}
    names = {path: plain_name(path.name).lower() + ("/" if path.is_dir() else "") for path in folder.iterdir()}
    names = {path: name for path, name in names.items() if path.is_file() or is_parallel(path)}
    paths = sorted(path for path, name in names.items() if name in wanted)
    if not paths and ANY_WORDS in endings:
        paths = sorted(path for path, name in names.items() if _is_named_after(name, first, rest, endings))
    if len(paths) > 1:
        found = " or ".join(path.name for path in paths)
        hint = "name the files yourself: --train FILE --validation FILE"
        raise DataError(f"several files could be the split {split}: {found}", where=str(folder), hint=hint)
    return paths[0] if paths else None


def _is_named_after(name: str, split: str, rest: str, endings: Sequence[str]) -> bool:
    """Whether a split's name, and no other split's, is among the words of a file's name."""
    if re.search(r"-\d+-of-\d+\.", name):  # one of several files of a split
        return False
    ending = next((ending for ending in sorted(endings, key=len, reverse=True) if name.endswith(ending)), "")
    words = re.split(r"[\W_]+", name.removesuffix(ending))
    of_splits = [kind for kind in SPLITS if {*_SPLIT_NAMES.get(kind, (kind,))} & {*words}]
    named_so = bool({*_SPLIT_NAMES.get(split, (split,))} & {words[-1]})  # news.train, which has no other ending
    return of_splits == [split] and {*rest.split("_")} - {""} <= {*words} and bool(ending or named_so)


def _choose(content: Content, formats: Sequence[Format], given: Set[str]) -> Format:
    """The format of a file. given: the command-line options to take into account."""
    named = [form for form in formats if content.extension in form.endings] or formats
    able = [form for form in named if given <= form.options] or named
    # The last format takes any content. If it has no names of columns, the first one that has is a table of text.
    other = able[0] if "columns" in given and able[-1] is not named[-1] else able[-1]
    return next((form for form in able if form.looks_like(content)), other)


def _taken(given: dict[str, Any], form: Format, source: str) -> dict[str, Any]:
    """The options that a format takes. Raises UsageError for a command-line option that it does not take."""
    for name in given.keys() & _USES.keys() - form.options:
        use, hint = _USES[name]
        raise UsageError(f"--{name} is for {use}; this is {form.name}", where=source, hint=hint)
    return {name: value for name, value in given.items() if name in form.options}
