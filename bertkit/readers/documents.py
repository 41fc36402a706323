"""Running text as a stream of documents: plain text, tables, JSON, Parquet, pages; from a source of text_sources.py.

Memory holds at most the first megabyte of a file, a block and one document, whatever the input's size; except for a JSON list
or a compressed Parquet file, which is read whole.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, NamedTuple, cast
from zipfile import BadZipFile, ZipFile, ZipInfo

from bertkit.errors import DataError, plural
from bertkit.readers.content import (
    MAX_FILE_SIZE,
    Content,
    extension,
    open_content,
    source_name,
    split_lines,
    too_large,
)
from bertkit.readers.faults import Faults
from bertkit.readers.formats import DELIMITED, JSON
from bertkit.readers.hub import stream_hub
from bertkit.readers.markup import ARTICLE, articles, lines_of_page
from bertkit.readers.parsers.arrow import arrow_errors
from bertkit.readers.parsers.delimited import parse_delimited
from bertkit.readers.parsers.jsonl import objects_of
from bertkit.readers.text_sources import HUB, MARKDOWN, PAGES, PARQUET, ZIP, Source, is_read_in_archives

LAYOUTS = ("auto", "blank-lines", "lines")

_SURROGATE = re.compile("[\ud800-\udfff]")
_HEAD = 16  # blocks that decide the layout: a megabyte


class Document(NamedTuple):
    """A document: its lines, unchanged and without empty ones, and where it begins, as "file:line"."""

    lines: list[str]
    where: str


class Documents:
    """The documents of a source, one after another.

    text_column: the column or key of a document's text in JSON, tables, Parquet and the hub. layout: what separates documents
    in plain text, "blank-lines" (lines within a document are its sentences or paragraphs; Google's format) or "lines" (each
    line is a document); "auto" means blank lines if the first megabyte has any. A page or Markdown file is one document.
    encoding: of text that is not UTF-8. faults: what to do about lines and rows that cannot be read. max_file_size: as in
    `open_content`.
    position: bytes of the source on disk read so far. found_layout: which of the two the plain text has, once known.
    Iterating passes a DataError to `faults`, which by default raises it, for anything that is not text or JSON, or lacks the
    column. If a file, or one in an archive, cannot be read to its end, the documents before that place are kept.
    """

    _stored: Content  # the source as it is on disk

    def __init__(
        self,
        source: Source,
        *,
        text_column: str = "text",
        layout: str = "auto",
        encoding: str | None = None,
        faults: Faults | None = None,
        max_file_size: float | None = None,
    ) -> None:
        self.source, self.text_column, self.layout, self.encoding = source, text_column, layout, encoding
        self.faults = faults or Faults()
        self.max_file_size = max_file_size
        self.position = 0
        self.found_layout: str | None = None

    def __iter__(self) -> Iterator[Document]:
        yield from self._until_fault(self._documents())

    def _until_fault(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents of one file, up to the place where it can no longer be read."""
        are_any = False
        try:
            for document in documents:
                yield document
                are_any = True
        except DataError as error:
            if self.faults.policy != "fail":
                error.what += f"; the {'rest of the ' if are_any else ''}file is left out"
            self.faults.take(error, of_file=True)

    def _documents(self) -> Iterator[Document]:
        name, ending = self.source.name, extension(self.source.name)
        if name.startswith(HUB):
            yield from self._of_rows(enumerate(stream_hub(name.removeprefix(HUB))), name)
        elif ending in PARQUET:
            yield from self._of_rows(self._parquet_rows(), name)
        elif ending in ZIP:
            yield from self._of_archive()
        else:
            how: dict[str, Any] = {"encoding": self.encoding, "max_file_size": self.max_file_size, "faults": self.faults}
            with open_content(name, **how) as self._stored:
                yield from self._of_content(self._stored)

    def _of_archive(self) -> Iterator[Document]:
        """The documents in the text files of a ZIP archive."""
        name = self.source.name
        with _zip_errors(name), open_content(name) as self._stored, ZipFile(self._stored.file()) as archive:
            limit = MAX_FILE_SIZE if self.max_file_size is None else self.max_file_size
            if sum(member.file_size for member in archive.infolist()) > limit * 10**9:  # of each, no more is unpacked
                raise too_large("the archive", name, limit)
            for member in archive.infolist():
                if not member.is_dir() and is_read_in_archives(member.filename):
                    yield from self._until_fault(self._of_member(archive, member, limit))

    def _of_member(self, archive: ZipFile, member: ZipInfo, limit: float) -> Iterator[Document]:
        name = f"{self.source.name}/{member.filename}"
        with _zip_errors(name), archive.open(member) as stored:
            unpacked = io.BufferedReader(cast("io.RawIOBase", stored))
            content = Content(name, unpacked, encoding=self.encoding, max_file_size=limit, faults=self.faults)
            yield from self._of_content(content)

    def _of_content(self, content: Content) -> Iterator[Document]:
        source, ending = content.source, content.extension
        if ending in JSON.endings or (not ending and JSON.looks_like(content)):
            numbered = (pair for first, block in self._lines(content) for pair in enumerate(block, start=first))
            yield from self._of_rows(objects_of(content, numbered, self.faults), source)
        elif ending in DELIMITED.endings:
            yield from self._of_rows(self._table_rows(content), source)
        elif ARTICLE.match(content.beginning):
            for number, lines in articles(self._lines(content)):
                yield Document(lines, f"{source}:{number}")
        elif ending in (*PAGES, *MARKDOWN):
            text = "\n".join(line for _, lines in self._lines(content) for line in lines)
            if lines := lines_of_page(text) if ending in PAGES else _lines_of(text):
                yield Document(lines, f"{source}:1")
            else:
                self.faults.without_text += 1
        else:
            yield from self._of_plain_text(content)

    def _blocks(self, content: Content) -> Iterator[tuple[int, list[str]]]:
        for block in content.lines():
            self.position = self._stored.position
            yield block

    def _lines(self, content: Content) -> Iterator[tuple[int, list[str]]]:
        return _without(content.broken, self._blocks(content))

    def _of_plain_text(self, content: Content) -> Iterator[Document]:
        document: list[str] = []
        begin = 0
        layout = self.layout
        blocks = self._blocks(content)
        head: list[tuple[int, list[str]]] = []
        fault = None
        try:
            head.extend(islice(blocks, _HEAD))
        except DataError as error:
            if self.layout == "auto" and self.faults.policy == "fail":
                raise  # the layout would be guessed from less text than without the fault
            fault = error  # of what follows these blocks
        if layout == "auto":
            text = "\n".join(line.strip() for _, lines in head for line in lines).strip("\n")
            layout = "blank-lines" if "\n\n" in text else "lines"
        self.found_layout = layout if head else None
        for first, lines in _without(content.broken, chain(head, blocks)):
            for number, line in enumerate(map(str.strip, lines), start=first):
                if line:
                    begin = begin if document else number
                    document.append(line)
                if document and (not line or layout == "lines"):
                    yield Document(document, f"{content.source}:{begin}")
                    document = []
        if fault:
            raise fault
        if document:
            yield Document(document, f"{content.source}:{begin}")

    def _of_rows(self, rows: Iterable[tuple[int | str, dict[str, Any]]], source: str) -> Iterator[Document]:
        for number, row in rows:
            where = f"{source_name(source)}:{number}"
            text = row.get(self.text_column)
            if text is None and self.text_column not in row:
                hint = f"it has {', '.join(map(str, row))}; name the text column: --text-column NAME, or add --on-error skip"
                self.faults.take(DataError(f"there is no column {self.text_column!r}", where=where, hint=hint))
            elif text is not None and not isinstance(text, str):
                what = f"column {self.text_column!r} contains {text!r:.60}; expected text"
                self.faults.take(DataError(what, where=where, hint="correct the row, or skip such rows with --on-error skip"))
            # half a character, which JSON can hold and UTF-8 cannot
            elif lines := _lines_of(_SURROGATE.sub("\ufffd", text or "")):
                yield Document(lines, where)
            else:
                self.faults.without_text += 1

    def _table_rows(self, content: Content) -> Iterator[tuple[int | str, dict[str, Any]]]:
        for rows in parse_delimited(content, keep_broken=self.faults.policy != "fail"):
            self.position = self._stored.position
            self.faults.warnings |= dict.fromkeys(rows.remarks.warnings)
            names = [*rows.columns]
            for number, values in zip(rows.lines, zip(*rows.columns.values(), strict=True), strict=True):
                if values[0] is not None:
                    yield number, dict(zip(names, values, strict=True))
                elif number not in content.broken:  # a row of too few or too many fields
                    what = f"the row has too few or too many fields; the header has {plural(len(names), 'field')}"
                    self.faults.take(DataError(what, where=f"{content.source}:{number}"))

    def _parquet_rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        import pyarrow.parquet

        name = self.source.name
        with arrow_errors(name), open_content(name) as content, pyarrow.parquet.ParquetFile(content.file()) as file:
            names = file.schema_arrow.names
            columns = [self.text_column] if self.text_column in names else names
            number, rows = 0, max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                batch.validate(full=True)  # else a damaged one crashes whoever reads its values
                self.position = self.source.size * (number + len(batch)) // rows
                yield from enumerate(batch.to_pylist(), start=number)
                number += len(batch)


@contextmanager
def _zip_errors(where: str) -> Iterator[None]:
    """Raise DataError in place of zipfile's errors for an archive, or a file in one, that cannot be unpacked."""
    try:
        yield
    except (BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, zlib.error) as error:
        hint = "the file is cut off or damaged, or has a password: copy or download it again"
        raise DataError(f"cannot unpack the ZIP archive: {error}", where=where, hint=hint) from None


def _without(broken: Set[int], blocks: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """The blocks without the lines with these numbers, which can grow with each block; each line is then a block."""
    for first, lines in blocks:
        if broken:
            yield from ((number, [line]) for number, line in enumerate(lines, start=first) if number not in broken)
        else:
            yield first, lines


def _lines_of(text: str) -> list[str]:
    """The lines of a text that are not blank; lines of old Macintosh files end with CR."""
    return [line for each in split_lines(text if "\n" in text else text.replace("\r", "\n")) if (line := each.strip())]
