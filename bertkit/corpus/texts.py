"""Text read from sources, with a progress bar: repeatedly for a vocabulary, once for a corpus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from bertkit import progress
from bertkit.errors import UsageError
from bertkit.readers.documents import Document, Documents, Source, find_sources

_MILLION = 10**6


class Texts:
    """The documents of files, folders and globs, each as its list of lines; can be iterated repeatedly.

    Raises DataError for a name that matches nothing, UsageError for standard input, which can be read only once.
    """

    def __init__(self, names: Sequence[str], *, text_column: str = "text") -> None:
        if "-" in names:
            raise UsageError("the text is read twice, which standard input cannot be", hint="give a file or a folder")
        self.sources = find_sources(names)
        self.text_column = text_column

    def __iter__(self) -> Iterator[list[str]]:
        for _, documents in read_sources(self.sources, text_column=self.text_column):
            yield from (document.lines for document in documents)


def read_sources(
    sources: Sequence[Source], *, text_column: str, layout: str = "auto"
) -> Iterator[tuple[Documents, Iterator[Document]]]:
    """The reader of each source and its documents; reading them advances a bar of megabytes on disk."""
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
            reader = Documents(source, text_column=text_column, layout=layout)
            yield reader, documents_of(reader, before)
            before += source.size
