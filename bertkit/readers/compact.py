"""Columns of many rows in little memory: texts as one run of bytes, and line numbers as C integers.

A list needs 57 bytes and more beside each text, and 40 for a number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from bertkit.features import Growing, Ragged, offsets_of

MANY = 4096  # rows beyond which columns are compact; smaller ones are lists, which are faster

Lines = Sequence[int | str]


class Texts(Sequence[str]):
    """Texts as one run of UTF-8, mapped from a file if it has many megabytes."""

    def __init__(self, encoded: Ragged) -> None:
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._encoded)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Texts: ...
    def __getitem__(self, at: int | slice) -> str | Texts:
        begin, end, step = (at if isinstance(at, slice) else slice(None)).indices(len(self))
        if not isinstance(at, slice):
            return _decoded(self._encoded[range(len(self))[at]].tobytes())
        if step != 1:
            return self.take(np.arange(begin, end, step))
        return Texts(Ragged(self._encoded.values, self._encoded.offsets[begin : max(begin, end) + 1]))

    def __iter__(self) -> Iterator[str]:
        for at in range(0, len(self), MANY):
            offsets = self._encoded.offsets[at : at + MANY + 1]
            data = self._encoded.values[offsets[0] : offsets[-1]].tobytes()
            text = _decoded(data)
            places = pairwise((offsets - offsets[0]).tolist())
            if len(text) == len(data):  # each character is one byte
                yield from (text[begin:end] for begin, end in places)
            else:
                yield from (_decoded(data[begin:end]) for begin, end in places)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, Texts)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: NDArray[np.int64]) -> Texts:
        """The given texts in the given order."""
        growing = _GrowingTexts()
        for at in range(0, len(rows), MANY):
            part = self._encoded.take(rows[at : at + MANY])
            growing.add_encoded(part.values, part.lengths)
        return growing.texts()


class _GrowingTexts:
    """Texts to which blocks are added."""

    def __init__(self) -> None:
        self._values, self._lengths = Growing(np.uint8), Growing(np.int64)

    def add(self, block: Iterable[str]) -> None:
        encoded = [text.encode("utf-8", "surrogatepass") for text in block]  # JSON may hold half a character
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        self.add_encoded(np.frombuffer(b"".join(encoded), dtype=np.uint8), lengths)

    def add_encoded(self, values: NDArray, lengths: NDArray[np.int64]) -> None:
        self._values.add(values)
        self._lengths.add(lengths)

    def texts(self) -> Texts:
        return Texts(Ragged(self._values.array(), offsets_of(self._lengths.array())))


class GrowingColumn:
    """A column to which blocks of values are added. missing: rows before the first block, which hold None."""

    def __init__(self, missing: int = 0) -> None:
        self._values: list[Any] = [None] * missing
        self._texts: _GrowingTexts | None = None
        self._is_list = missing > 0

    def add(self, block: Sequence[Any]) -> None:
        are_texts = not self._is_list and all(type(value) is str for value in block)
        if self._texts is not None and not are_texts:
            self._values, self._texts = [*self._texts.texts()], None
        self._is_list = not are_texts
        if self._texts is not None:
            self._texts.add(block)
            return
        self._values += block
        if are_texts and len(self._values) > MANY:
            self._texts = _GrowingTexts()
            self._texts.add(self._values)
            self._values = []

    def values(self) -> Sequence[Any]:
        return self._values if self._texts is None else self._texts.texts()


def compact_lines(lines: Lines) -> Lines:
    """The same line numbers; a range, which needs no memory, if they are consecutive."""
    if isinstance(lines, list) and lines and all(type(line) is int for line in lines):
        following = range(lines[0], lines[0] + len(lines))
        return following if all(map(int.__eq__, lines, following)) else array("q", lines)
    return lines


def join_lines(blocks: Sequence[Lines]) -> Lines:
    """The lines of all blocks in order. blocks: of `compact_lines`."""
    ranges = [lines for lines in blocks if isinstance(lines, range)]
    total = sum(map(len, blocks))
    if len(ranges) == len(blocks) and all(before.stop == after.start for before, after in pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop)
    lines = chain.from_iterable(blocks)
    return array("q", map(int, lines)) if total > MANY and _are_numbers(blocks) else [*lines]


def take_lines(lines: Lines, rows: NDArray[np.int64]) -> Lines:
    """The lines of the given rows."""
    if len(rows) > MANY and _are_numbers([lines]):
        return array("q", (int(lines[row]) for row in rows))
    return [lines[row] for row in rows]


def _are_numbers(blocks: Sequence[Lines]) -> bool:
    return all(isinstance(lines, (range, array)) for lines in blocks)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
