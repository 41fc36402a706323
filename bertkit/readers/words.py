"""The words of plain text, each with its place: what a tagger is asked about where nobody has split the text before."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise

Place = tuple[int, int]  # first character, the one after the last

CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"  # each a word, as in BERT's tokenizer
_CHUNK = re.compile(f"[{CJK}]|[^\\s{CJK}]+")
_APOSTROPHE = "\u2019"
# John's is two words in the Penn Treebank and CoNLL-2003
_CLITIC = re.compile(f"(?<=[^\\W\\d_])['{_APOSTROPHE}]s$", re.IGNORECASE)


def split_words(text: str, boundaries: Iterable[int] = ()) -> list[Place]:
    """Where the words are: at white space, before and after punctuation at a word's ends ("U.N.", "1,000" stay whole), each
    Chinese character and non-ASCII mark (the apostrophe is as in ASCII) for itself; and nowhere across the `boundaries`, such
    as an entity's ends.
    """
    cuts = sorted(set(boundaries))
    places: list[Place] = []
    for chunk in _CHUNK.finditer(text):
        for start, end in _parts(chunk[0], chunk.start()):
            inner = [cut for cut in cuts if start < cut < end] if cuts else []
            places += zip([start, *inner], [*inner, end], strict=True)
    return places


def _parts(chunk: str, offset: int) -> Iterator[Place]:
    """The words of a text without white space that begins at `offset`."""
    marks = set() if chunk.isascii() else {i for i, c in enumerate(chunk) if c > "\x7f" and c != _APOSTROPHE and _is_mark(c)}
    if marks:
        edges = sorted({0, len(chunk), *marks, *(i + 1 for i in marks)})
        for start, end in pairwise(edges):
            yield from [(offset + start, offset + end)] if start in marks else _parts(chunk[start:end], offset + start)
        return
    start, end = 0, len(chunk)
    while start < end and _is_mark(chunk[start]):
        yield offset + start, offset + start + 1
        start += 1
    tail: list[Place] = []
    while start < end and _is_mark(chunk[end - 1]) and not re.fullmatch(r"(?:\w\.){2,}", chunk[start:end]):  # U.N.
        end -= 1
        tail.append((offset + end, offset + end + 1))
    if clitic := _CLITIC.search(chunk, start, end):
        tail.append((offset + clitic.start(), offset + end))
        end = clitic.start()
    if start < end:
        yield offset + start, offset + end
    yield from reversed(tail)


def _is_mark(character: str) -> bool:
    """Whether it is punctuation or a symbol."""
    return unicodedata.category(character)[0] in "PS"
