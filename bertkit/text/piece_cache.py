"""Tokenize texts word by word: each word between spaces is tokenized only once, however often it occurs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from bertkit.features import Ragged, offsets_of

MOST_CHARACTERS = 2**24  # of cached words; with more the cache is emptied


class PieceCache:
    """Caches the pieces of words from `encode`, which must tokenize a text as its words between spaces.

    Running text has few new words; looking words up takes a tenth of the time of tokenizing them.
    """

    def __init__(self, encode: Callable[[list[str]], Ragged]) -> None:
        self._encode = encode
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._pieces = Ragged.of([])
        self._characters = 0

    def pieces(self, texts: Sequence[str]) -> Ragged:
        """The pieces of each text."""
        words = [text.split(" ") for text in texts]
        flat = list(chain.from_iterable(words))
        if self._characters > MOST_CHARACTERS:
            self._forget()
        if fresh := list(set(flat).difference(self._numbers)):
            self._numbers.update(zip(fresh, range(len(self._numbers), len(self._numbers) + len(fresh))))
            self._pieces = Ragged.joined([self._pieces, self._encode(fresh)])
            self._characters += sum(map(len, fresh))
        numbers = np.fromiter(map(self._numbers.__getitem__, flat), dtype=np.int64, count=len(flat))
        pieces = self._pieces.take(numbers)
        return Ragged(pieces.values, pieces.offsets[offsets_of(np.fromiter(map(len, words), dtype=np.int64, count=len(words)))])
