"""The words of plain text with their places, for taggers whose input is not split into words."""

from __future__ import annotations

import logging
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from bertkit.errors import MachineError

Place = tuple[int, int]  # first character, the one after the last

CUTS = ("basic", "jieba")  # how Chinese text is cut into words: each character, or as jieba finds them
CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"  # each a word, as in BERT's tokenizer
# Characters that only modify the one before: joiners, variation selectors, keycaps, skin tones, tags of flags.
_EXTENDERS = "\u200d\u20d0-\u20f0\ufe00-\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f\U000e0100-\U000e01ef"
_EXTENDER = re.compile(f"[{_EXTENDERS}]")
_CHUNK = re.compile(f"[{CJK}][{CJK}{_EXTENDERS}]*|[^\\s{CJK}]+")
_CHINESE = re.compile(f"[{CJK}][{_EXTENDERS}]*")
# What belongs to the character before it, and after a joiner the next one: a family is one character.
_EXTENSION = re.compile(f"[{_EXTENDERS}]*(?:(?<=\u200d)[^\\w\\s][{_EXTENDERS}]*)*")
_APOSTROPHE = "\u2019"
# John's is two words in the Penn Treebank and CoNLL-2003
_CLITIC = re.compile(f"(?<=[^\\W\\d_])['{_APOSTROPHE}]s$", re.IGNORECASE)


def split_words(text: str, boundaries: Iterable[int] = (), cut: str | None = None) -> list[Place]:
    """The places of the words. Text is split at white space, around punctuation at a word's ends ("U.N.", "1,000" stay whole)
    and at the `boundaries`, such as an entity's ends; each Chinese character and each non-ASCII mark (other than the
    apostrophe) is a word. Invisible characters, such as variation selectors, are not words.

    cut: of CUTS, by default "basic". Raises MachineError for "jieba" if it is not installed and the text is Chinese.
    """
    cuts = sorted(set(boundaries))
    places: list[Place] = []
    for chunk in _CHUNK.finditer(text):
        chinese = _CHINESE.match(chunk[0]) is not None
        parts = _chinese_words(chunk[0], chunk.start(), cut) if chinese else _parts(chunk[0], chunk.start())
        for start, end in parts:
            inner = [edge for edge in cuts if start < edge < end] if cuts else []
            places += zip([start, *inner], [*inner, end], strict=True)
    return places if text.isascii() else [place for place in places if not _is_invisible(text[slice(*place)])]


def load_jieba() -> Any:
    """The module jieba. Raises MachineError if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own, those of other libraries, and of its syntax
            import jieba
    except ImportError:
        hint = 'python -m pip install "bertkit[chinese]", or jieba; or --words basic: each character is a word'
        raise MachineError("Chinese words (--words jieba) need the package jieba, which is not installed", hint=hint) from None
    jieba.setLogLevel(logging.WARNING)
    return jieba


def _chinese_words(chunk: str, offset: int, cut: str | None) -> Iterator[Place]:
    """The words of Chinese characters that begin at `offset`."""
    if cut != "jieba":
        yield from ((offset + found.start(), offset + found.end()) for found in _CHINESE.finditer(chunk))
        return
    for word in load_jieba().cut(chunk):
        yield offset, offset + len(word)
        offset += len(word)


def _parts(chunk: str, offset: int) -> Iterator[Place]:
    """The words of a text without white space that begins at `offset`."""
    if marks := [] if chunk.isascii() else [*_marks(chunk)]:
        edges = sorted({0, len(chunk), *(edge for mark in marks for edge in mark)})
        for place in pairwise(edges):
            start, end = place
            yield from [(offset + start, offset + end)] if place in marks else _parts(chunk[start:end], offset + start)
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


def _marks(chunk: str) -> Iterator[Place]:
    """The marks that are words in any position: non-ASCII ones, and others with an extender."""
    at = 0
    while at < len(chunk):
        end = at + 1
        if _is_mark(character := chunk[at]) and character != _APOSTROPHE:
            extension = _EXTENSION.match(chunk, end)
            end = extension.end() if extension else end
            if character > "\x7f" or end > at + 1:
                yield at, end
        at = end


def _is_invisible(word: str) -> bool:
    return all(unicodedata.category(character) == "Cf" or _EXTENDER.match(character) for character in word)


def _is_mark(character: str) -> bool:
    """Whether it is punctuation or a symbol."""
    return unicodedata.category(character)[0] in "PS"
