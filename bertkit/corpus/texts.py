"""The lines of many documents, to learn a vocabulary from: read as often as asked, with a bar that shows how far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bertkit import progress
from bertkit.errors import UsageError
from bertkit.readers.documents import Documents, find_sources

_MEGABYTE = 2**20


class Texts:
    """The documents of all sources that `names` lead to, each as its list of lines, each time it is iterated.

    Raises DataError for a name that leads to nothing, UsageError for the standard input, which can be read only once.
    """

    def __init__(self, names: Sequence[str], *, text_column: str = "text") -> None:
        if "-" in names:
            raise UsageError("the text is read twice, which the standard input cannot be", hint="name a file or a folder")
        self.sources = find_sources(names)
        self.text_column = text_column

    def __iter__(self) -> Iterator[list[str]]:
        total = sum(source.size for source in self.sources) // _MEGABYTE
        before = shown = 0
        with progress.bar("read, MB", max(1, total)) as bar:
            for source in self.sources:
                documents = Documents(source, text_column=self.text_column)
                for document in documents:
                    yield document.lines
                    if (done := (before + documents.position) // _MEGABYTE) > shown:
                        bar.advance(done - shown)
                        shown = done
                before += source.size
