"""Text read from sources, with a progress bar: repeatedly for a vocabulary, once for a corpus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from bertkit import progress
from bertkit.errors import UsageError, listed, plural
from bertkit.readers.documents import Document, Documents
from bertkit.readers.faults import POLICIES, Faults
from bertkit.readers.text_sources import Source, look_for

_MILLION = 10**6


class TextSources:
    """The documents of files, folders and globs, each as its list of lines; can be iterated repeatedly.

    Raises DataError for a name that matches nothing, UsageError for an unknown `on_error`, and for standard input, which can be
    read only once.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        text_column: str = "text",
        include: Sequence[str] = (),
        encoding: str | None = None,
        on_error: str = "fail",
        max_file_size: float | None = None,
    ) -> None:
        if on_error not in POLICIES:
            raise UsageError(f"--on-error is {on_error!r}; expected {' or '.join(POLICIES)}")
        if "-" in names:
            raise UsageError("the text is read twice, but standard input can be read only once", hint="give a file or a folder")
        self.sources = sources_of(names, include=include, text_column=text_column, encoding=encoding)
        self.on_error = on_error
        self.how = {"text_column": text_column, "encoding": encoding, "max_file_size": max_file_size}
        self.faults = Faults(on_error)

    def __iter__(self) -> Iterator[list[str]]:
        self.faults = Faults(self.on_error)  # of one reading
        for _, documents in read_sources(self.sources, faults=self.faults, **self.how):
            yield from (document.lines for document in documents)


def sources_of(names: Sequence[str], *, include: Sequence[str], text_column: str, encoding: str | None) -> list[Source]:
    """The sources of text; notes which other files in folders are skipped, and why. include: endings, or as in `look_for`."""
    patterns = [f"*{pattern}" if pattern.startswith(".") else pattern for pattern in include]
    found = look_for(names, include=patterns, text_column=text_column, encoding=encoding)
    for why, files in found.skipped.items():
        progress.note(f"skipped {listed(files, 4)}: {why}")
    return [*found.sources.values()]


def read_sources(sources: Sequence[Source], *, faults: Faults, **how: Any) -> Iterator[tuple[Documents, Iterator[Document]]]:
    """The reader of each source and its documents; reading them advances a bar of megabytes on disk. how: as in Documents."""
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
            reader = Documents(source, faults=faults, **how)
            yield reader, documents_of(reader, before)
            before += source.size


def report_left_out(faults: Faults) -> None:
    """Report what part of the text was not read."""
    if faults.count:
        progress.warn(faults.summary())
    if faults.without_text:
        progress.note(f"skipped {plural(faults.without_text, 'document')} whose text is empty or null")
