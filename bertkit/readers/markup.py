"""Text in markup: the paragraphs of a web page, and the articles that WikiExtractor writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

ARTICLE = re.compile(r"<doc [^>]*>")  # the line before an article of WikiExtractor
_END = "</doc>"
_HIDDEN = frozenset("title script style template noscript svg".split())
_INLINE = frozenset(
    "a abbr b bdi bdo cite code data del dfn em font i ins kbd mark q s samp small span strong sub sup time u var wbr".split()
)


class _Page(HTMLParser):
    """Collects what a page shows; every tag that is not within a line ends one."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in _HIDDEN
        self._end_line(tag)

    def handle_endtag(self, tag: str) -> None:
        self.hidden = max(0, self.hidden - (tag in _HIDDEN))
        self._end_line(tag)

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(re.sub(r"\s+", " ", data))

    def _end_line(self, tag: str) -> None:
        if tag not in _INLINE:
            self.parts.append("\n")


def lines_of_page(text: str) -> list[str]:
    """The lines of text that a web page shows."""
    page = _Page()
    page.feed(text)
    page.close()
    return [line for each in "".join(page.parts).split("\n") if (line := each.strip())]


def articles(blocks: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """The articles of a file of WikiExtractor, each with the number of its first line; blocks: as of `Content.lines`."""
    begin = 0
    article: list[str] = []
    for first, lines in blocks:
        for number, line in enumerate(map(str.strip, lines), start=first):
            if ARTICLE.fullmatch(line) or line == _END:
                if article:
                    yield begin, article
                begin, article = number + 1, []
            elif line:
                article.append(line)
    if article:
        yield begin, article
