"""Any file of words and tags: CoNLL columns, CoNLL-U, JSON, a table, files side by side, or plain text to predict."""

from __future__ import annotations

from pathlib import Path

from bertkit.errors import UsageError
from bertkit.readers import Examples
from bertkit.readers.conll import looks_like_conll, parse_conll
from bertkit.readers.files import parse_file
from bertkit.readers.lines import extension, parse_lines, read_text, source_name
from bertkit.readers.parallel import read_parallel

_CONLL = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes", ".bmes", ".bilou")
_TABLES = (".csv", ".json", ".jsonl", ".jsonlines", ".json-lines", ".ndjson")
ENDINGS = (*_CONLL, ".txt", ".tsv", *_TABLES)


def read_tagged(
    path: str | Path, *, separator: str | None = None, column: str | None = None, columns: tuple[str, ...] | None = None
) -> Examples:
    """The rows of a file, of the standard input for "-", or of a folder with seq.in and seq.out.

    column: that of the tag in CoNLL columns. columns: the names of a table's columns. What is neither by its name nor by its
    look a table, JSON or columns is plain text, with the column `text`. Raises DataError.
    """
    if Path(path).is_dir():
        return read_parallel(Path(path))
    text, source = read_text(path), source_name(path)
    kind = extension(source)
    if column and kind in _TABLES:
        raise UsageError(f"--column {column} is for CoNLL columns; of JSON and tables --tags names the column", where=source)
    asked = column or (separator and kind == ".txt")
    if kind in _CONLL or (kind not in _TABLES and not columns and (asked or looks_like_conll(text))):
        return parse_conll(text, source, separator=separator, column=column)
    if kind == ".txt" and not columns:
        return parse_lines(text, source)
    return parse_file(text, source, separator=separator, columns=columns)
