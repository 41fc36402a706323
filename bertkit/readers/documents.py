"""Running text as documents, streamed: plain text, JSONL and Parquet; files, folders, globs, standard input and the hub.

Memory holds the first megabyte of a file at most, a block and one document, whatever the input's size.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.errors import DataError
from bertkit.readers.content import extension, nearest_files, open_content, source_name, split_lines
from bertkit.readers.formats import JSON
from bertkit.readers.hub import stream_hub
from bertkit.readers.jsonl import objects_by_line

HUB = "hub:"
LAYOUTS = ("auto", "blank-lines", "lines")

_PLAIN = (".txt", ".text", "")
_PARQUET = (".parquet",)
_SURROGATE = re.compile("[\ud800-\udfff]")
_HEAD = 16  # blocks that tell the layout: a megabyte
_GLOB = frozenset("*?[")


class Document(NamedTuple):
    """A document: its lines as they came, none of them empty, and where it begins, as "file:line"."""

    lines: list[str]
    where: str


@dataclass(frozen=True)
class Source:
    """A file, the standard input ("-") or a data set of the hub ("hub:owner/name:configuration")."""

    name: str
    size: int = 0  # bytes on disk; 0 if unknown


def find_sources(names: Sequence[str]) -> list[Source]:
    """The sources that a command's arguments name: files, folders of text files, globs, "-" and data sets of the hub.

    A folder's files are those that end in .txt, .jsonl, .parquet and the like, packed or not, in the order of their paths.
    A source named twice is read once. Raises DataError for a name without files.
    """
    sources: dict[str, Source] = {}
    for name in names:
        path = Path(name).expanduser()
        if name == "-" or name.startswith(HUB):
            sources[name] = Source(name)
            continue
        if path.is_dir():
            files = [file for file in sorted(path.rglob("*")) if file.is_file() and _is_text(file.relative_to(path))]
            if not files:
                raise DataError("the folder holds no .txt, .jsonl or .parquet file", where=name)
        elif path.is_file():
            files = [path]
        elif _GLOB & set(name):
            files = [file for file in map(Path, sorted(glob.glob(str(path), recursive=True))) if file.is_file()]
            if not files:
                raise DataError("no file matches", where=name)
        else:
            raise DataError("no such file", where=name, hint=nearest_files(path))
        sources |= {str(file): Source(str(file), file.stat().st_size) for file in files}
    return list(sources.values())


def _is_text(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and bool(path.suffix) and extension(path.name) in (*_PLAIN[:-1], *JSON.endings, *_PARQUET)


class Documents:
    """The documents of a source, one after the other.

    text_column: where JSONL, Parquet and the hub keep a document's text. layout: what separates the documents of plain text,
    "blank-lines" (lines within a document are its sentences or paragraphs; Google's format) or "lines" (each is a document);
    "auto" takes blank lines where its first megabyte has any. position: bytes of the source on disk that are read.
    found_layout: which of the two the plain text has, once it is known.
    Iterating raises DataError, with the line, for what is not UTF-8 text or not JSON or lacks the column.
    """

    def __init__(self, source: Source, *, text_column: str = "text", layout: str = "auto") -> None:
        self.source, self.text_column, self.layout = source, text_column, layout
        self.position = 0
        self.found_layout: str | None = None

    def __iter__(self) -> Iterator[Document]:
        name, ending = self.source.name, extension(self.source.name)
        if name.startswith(HUB):
            return self._of_rows(enumerate(stream_hub(name.removeprefix(HUB))))
        if ending in _PARQUET:
            return self._of_rows(self._parquet_rows())
        return self._of_rows(self._json_rows()) if ending in JSON.endings else self._of_plain_text()

    def _of_plain_text(self) -> Iterator[Document]:
        source = source_name(self.source.name)
        document: list[str] = []
        begin = 0
        layout = self.layout
        with open_content(self.source.name) as content:
            blocks = content.lines()
            head = [*islice(blocks, _HEAD)]
            if layout == "auto":
                text = "\n".join(line.strip() for _, lines in head for line in lines).strip("\n")
                layout = "blank-lines" if "\n\n" in text else "lines"
            self.found_layout = layout
            for first, lines in chain(head, blocks):
                self.position = content.position
                for number, line in enumerate(map(str.strip, lines), start=first):
                    if line:
                        begin = begin if document else number
                        document.append(line)
                    if document and (not line or layout == "lines"):
                        yield Document(document, f"{source}:{begin}")
                        document = []
        if document:
            yield Document(document, f"{source}:{begin}")

    def _of_rows(self, rows: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[Document]:
        for number, row in rows:
            where = f"{source_name(self.source.name)}:{number}"
            text = row.get(self.text_column)
            if text is None and self.text_column not in row:
                hint = f"it has {', '.join(map(str, row))}; name the column of the text: --text-column NAME"
                raise DataError(f"there is no column {self.text_column!r}", where=where, hint=hint)
            if text is not None and not isinstance(text, str):
                raise DataError(f"{self.text_column} is {text!r:.60}; expected text", where=where)
            # half a character, which JSON can hold and UTF-8 cannot
            text = _SURROGATE.sub("\ufffd", text or "")
            if lines := [line for each in split_lines(text) if (line := each.strip())]:
                yield Document(lines, where)

    def _json_rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        with open_content(self.source.name) as content:
            for numbers, rows, _ in objects_by_line(content, "expected one object a line"):
                self.position = content.position
                yield from zip(numbers, rows, strict=True)

    def _parquet_rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        import pyarrow
        import pyarrow.parquet

        name = self.source.name
        try:
            with pyarrow.parquet.ParquetFile(name) as file:
                names = file.schema_arrow.names
                columns = [self.text_column] if self.text_column in names else names
                number, rows = 0, max(1, file.metadata.num_rows)
                for batch in file.iter_batches(batch_size=1024, columns=columns):
                    self.position = self.source.size * (number + len(batch)) // rows
                    yield from enumerate(batch.to_pylist(), start=number)
                    number += len(batch)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"cannot read the Parquet file: {error}", where=name) from None
