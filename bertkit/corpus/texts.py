"""Text read from sources, with a progress bar: repeatedly for a vocabulary, once for a corpus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bertkit import progress
from bertkit.errors import UsageError, listed, not_a_choice, plural
from bertkit.readers.content import STDIN
from bertkit.readers.documents import Document, Documents
from bertkit.readers.faults import POLICIES, Faults
from bertkit.readers.text_sources import Source, look_for

_MILLION = 10**6


@dataclass(frozen=True)
class TextOptions:
    """How text is read.

    include: more files in folders, by ending or by a pattern as in `look_for`. encoding: of text that is not UTF-8. on_error:
    what to do with unreadable text, one of POLICIES. max_file_size: gigabytes that a compressed file may unpack to. Raises
    UsageError for an unknown `on_error`.
    """

    include: Sequence[str] = ()
    encoding: str | None = None
    on_error: str = "fail"
    max_file_size: float | None = None

    def __post_init__(self) -> None:
        if self.on_error not in POLICIES:
            raise not_a_choice("--on-error", self.on_error, POLICIES)


class TextSources:
    """The documents of files, folders and globs, each as its list of lines; can be iterated repeatedly.

    Raises DataError for a name that matches nothing, UsageError for standard input, which can be read only once.
    """

    def __init__(self, names: Sequence[str], options: TextOptions = TextOptions(), *, text_column: str = "text") -> None:
        if STDIN in names:
            raise UsageError(
                "the text cannot come from standard input (-), which can be read only once", hint="give a file or a folder"
            )
        self.sources = sources_of(names, options, text_column)
        self.options, self.text_column = options, text_column
        self.faults = Faults(options.on_error)

    def __iter__(self) -> Iterator[list[str]]:
        self.faults = Faults(self.options.on_error)  # of one reading
        for _, documents in read_sources(self.sources, self.options, self.faults, text_column=self.text_column):
            yield from (document.lines for document in documents)


def sources_of(names: Sequence[str], options: TextOptions, text_column: str) -> list[Source]:
    """The sources of text; notes which other files in folders are skipped, and why."""
    patterns = [f"*{pattern}" if pattern.startswith(".") else pattern for pattern in options.include]
    found = look_for(names, include=patterns, text_column=text_column, encoding=options.encoding)
    for why, files in found.skipped.items():
        progress.note(f"skipped {listed(files, 4)}: {why}")
    return [*found.sources.values()]


def read_sources(
    sources: Sequence[Source], options: TextOptions, faults: Faults, *, text_column: str = "text", layout: str = "auto"
) -> Iterator[tuple[Documents, Iterator[Document]]]:
    """The reader of each source and its documents; reading them advances a bar of megabytes on disk.

    text_column, layout: as in Documents.
    """
    start = time.perf_counter()
    with progress.bar("text, MB on disk", max(1, sum(source.size for source in sources) // _MILLION)) as bar:

        def documents_of(reader: Documents, before: int) -> Iterator[Document]:
            shown = before // _MILLION
            for document in reader:
                yield document
                read = before + reader.position
                if read // _MILLION > shown:
                    bar.advance(read // _MILLION - shown, speed=f"{read / _MILLION / (time.perf_counter() - start):.1f} MB/s")
                    shown = read // _MILLION

        before = 0  # bytes of earlier sources
        for source in sources:
            reader = Documents(
                source,
                text_column=text_column,
                layout=layout,
                encoding=options.encoding,
                faults=faults,
                max_file_size=options.max_file_size,
            )
            yield reader, documents_of(reader, before)
            before += source.size


def report_left_out(faults: Faults) -> None:
    """Report what part of the text was not read, or perhaps misread."""
    for warning in faults.warnings:
        progress.warn(warning)
    if faults.count:
        progress.warn(faults.summary())
    if faults.without_text:
        progress.note(f"skipped {plural(faults.without_text, 'document')} whose text is empty or null")
