"""A shard of a corpus: tokens, and the words, sentences and documents that they make up, in flat memory-mapped arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.store import offsets_of, ranges


@dataclass(frozen=True)
class Shard:
    """N tokens of S sentences of D documents.

    input_ids: (N,) uint16, or int32 for a vocabulary of more than 65,536. word_starts: (N / 8,) bits, 1 where a token begins a
    word. sentences: (S + 1,) where each begins among the tokens. documents: (D + 1,) where each begins among the sentences.
    hashes: (D,) uint64 of each document's text, by which duplicates are found.
    """

    input_ids: NDArray
    word_starts: NDArray[np.uint8]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    hashes: NDArray[np.uint64]

    @property
    def num_documents(self) -> int:
        return len(self.hashes)

    def counts(self) -> dict[str, int]:
        return {"documents": len(self.hashes), "sentences": len(self.sentences) - 1, "tokens": len(self.input_ids)}

    def starts_of_words(self) -> NDArray[np.bool_]:
        """(N,) whether a token begins a word."""
        return np.unpackbits(self.word_starts, count=len(self.input_ids)).astype(bool)

    def begins_word(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of these tokens begins a word."""
        return (self.word_starts[tokens >> 3] >> (7 - (tokens & 7)).astype(np.uint8) & 1).astype(bool)

    def take(self, documents: NDArray[np.int64]) -> Shard:
        """The given documents in the given order."""
        numbers = np.diff(self.documents)[documents]  # of sentences
        rows = ranges(self.documents[:-1][documents], numbers)
        lengths = np.diff(self.sentences)[rows]
        tokens = ranges(self.sentences[:-1][rows], lengths)
        return Shard(
            input_ids=self.input_ids[tokens],
            word_starts=np.packbits(self.starts_of_words()[tokens]),
            sentences=offsets_of(lengths),
            documents=offsets_of(numbers),
            hashes=self.hashes[documents],
        )

    def save(self, folder: Path) -> None:
        """One .npy file an array."""
        folder.mkdir(parents=True, exist_ok=True)
        for field in fields(self):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name))

    @classmethod
    def load(cls, folder: Path) -> Shard:
        """The shard that `save` wrote, memory-mapped."""
        return cls(**{field.name: np.load(folder / f"{field.name}.npy", mmap_mode="r") for field in fields(cls)})
