"""Any data file: its format from its name, or else from its first line; and the file of a split in a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples
from bertkit.readers.arrow import ENDINGS as ARROW_ENDINGS
from bertkit.readers.arrow import is_arrow, read_arrow
from bertkit.readers.delimited import parse_delimited
from bertkit.readers.jsonl import parse_jsonl
from bertkit.readers.lines import extension, parse_lines, read_text, source_name, unpacked_name

_FORMATS = {
    ".csv": "delimited",
    ".tsv": "delimited",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".jsonlines": "jsonl",
    ".json-lines": "jsonl",
    ".ndjson": "jsonl",
}
ENDINGS = (*_FORMATS, *ARROW_ENDINGS)
# What files call a split that data sets on the hub call otherwise.
_SPLIT_NAMES = {"validation": ("validation", "valid", "val", "dev")}


def read_file(
    path: str | Path, *, separator: str | None = None, columns: tuple[str, ...] | None = None, ragged: float = 0.0
) -> Examples:
    """The rows of a CSV, TSV, JSON or plain text file, plain, .gz or .xz, of the standard input for "-", of Parquet or Arrow.

    separator, columns and ragged are for tables; see `parse_delimited`. A name without a known extension leaves it to the first
    line: "{" or "[{" begins JSON, a tab (or either argument) a table; all else is plain text. Raises DataError.
    """
    if is_arrow(path):
        if separator or columns:
            option = "--separator" if separator else "--columns"
            raise UsageError(f"{option} is for tables of text; this file names its own columns", where=str(path))
        return read_arrow(path)
    return parse_file(read_text(path), source_name(path), separator=separator, columns=columns, ragged=ragged)


def parse_file(
    text: str, source: str, *, separator: str | None = None, columns: tuple[str, ...] | None = None, ragged: float = 0.0
) -> Examples:
    """As `read_file`, of text read already."""
    kind = file_format(text, source, table=bool(separator or columns))
    if kind == "jsonl":
        if separator or columns:
            option = "--separator" if separator else "--columns"
            raise UsageError(f"{option} is for tables; JSON names its own columns", where=source)
        return parse_jsonl(text, source)
    if kind == "delimited":
        return parse_delimited(text, source, separator=separator, columns=columns, ragged=ragged)
    return parse_lines(text, source)


def file_format(text: str, source: str, *, table: bool = False) -> str:
    """Which format text is in, by its source or first line: "jsonl", "delimited" or "lines". table: it is no plain text."""
    return _FORMATS.get(extension(source)) or _look(text, table=table)


def find_split_file(folder: Path, split: str, endings: Sequence[str] = ENDINGS) -> Path | None:
    """The data file of a split in a folder: train.tsv, dev.csv.gz, validation_matched.jsonl; None where there is none.

    "validation" is also called valid, val or dev. endings: those that will do, in small letters and without .gz or .xz. Raises
    DataError where several files would do.
    """
    first, _, rest = split.partition("_")
    stems = {name + (f"_{rest}" if rest else "") for name in _SPLIT_NAMES.get(first, (first,))}
    wanted = {stem + ending for stem in stems for ending in endings}
    found = sorted(path for path in folder.iterdir() if path.is_file() and unpacked_name(path.name).lower() in wanted)
    if len(found) > 1:
        names = " or ".join(path.name for path in found)
        raise DataError(f"the split {split} could be {names}", where=str(folder), hint="keep one of them in the folder")
    return found[0] if found else None


def _look(text: str, *, table: bool) -> str:
    """The format by the first line."""
    first = text.lstrip("\r\n").partition("\n")[0]
    if table:
        return "delimited"
    if re.match(r'\s*\[?\s*\{\s*"', first):
        return "jsonl"
    return "delimited" if "\t" in first else "lines"
