"""A shard of a corpus: its tokens, and where words, sentences and documents begin, in flat memory-mapped arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError
from bertkit.features import offsets_of, ranges
from bertkit.manifest import Owner, verify

JOINED = 2**20  # tokens up to which shards are joined, about
CORPUS_FILES = Owner("corpus", DataError, "copy the corpus again, or build it again", strict=True)
OPEN = 32  # shards open at once: two windows of the sampler; each has five files


@dataclass(frozen=True)
class Shard:
    """N tokens of S sentences of D documents.

    input_ids: (N,) uint16, or int32 for a vocabulary of more than 65,536. word_starts: (ceil(N / 8),) packed bits, 1 where a
    token begins a word. sentences: (S + 1,) the token at which each begins. documents: (D + 1,) the sentence at which each
    begins.
    hashes: (D,) uint64 of each document's text, for finding duplicates.
    """

    input_ids: NDArray
    word_starts: NDArray[np.uint8]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    hashes: NDArray[np.uint64]

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
        """Write one .npy file per array."""
        folder.mkdir(parents=True, exist_ok=True)
        for field in fields(self):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name))

    @classmethod
    def load(cls, folder: Path) -> Shard:
        """The shard that `save` wrote, memory-mapped. Raises DataError for a damaged one."""
        verify(folder, owner=CORPUS_FILES)
        return cls.opened(folder)

    @classmethod
    def opened(cls, folder: Path) -> Shard:
        """The shard that `save` wrote, memory-mapped, without checking its manifest. Raises DataError."""
        return cls(**{field.name: _mapped(folder, field.name) for field in fields(cls)})

    @staticmethod
    def load_hashes(folder: Path) -> NDArray[np.uint64]:
        """Only the hashes of the shard that `save` wrote, memory-mapped. Raises DataError for damaged ones."""
        verify(folder, lambda name: name == "hashes.npy", CORPUS_FILES)
        return _mapped(folder, "hashes")

    @classmethod
    def joined(cls, parts: Sequence[Shard]) -> Shard:
        """The documents of several shards, in memory."""
        sentences = np.concatenate([np.diff(part.sentences) for part in parts])
        return cls(
            input_ids=np.concatenate([part.input_ids for part in parts]),
            word_starts=np.packbits(np.concatenate([part.starts_of_words() for part in parts])),
            sentences=offsets_of(sentences),
            documents=offsets_of(np.concatenate([np.diff(part.documents) for part in parts])),
            hashes=np.concatenate([part.hashes for part in parts]),
        )


def _mapped(folder: Path, name: str) -> NDArray:
    """An array of a shard. Raises DataError."""
    try:
        return np.load(folder / f"{name}.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"the shard cannot be read: {error}", where=str(folder), hint=CORPUS_FILES.hint) from None


class Shards(Sequence[Shard]):
    """The shards of a split as training reads them: opened on demand, a few at a time.

    A shard of a single document, which has no other document to draw a segment from, is joined with the next shard; consecutive
    ones are joined up to JOINED tokens. listed: names and counts, as in meta.json.
    """

    def __init__(self, corpus: Path, listed: Sequence[Mapping[str, Any]]) -> None:
        self.corpus = corpus
        self.groups: list[list[str]] = []
        documents = tokens = 0  # of the last group
        singles = False  # whether each of its shards has one document
        for shard in listed:
            single = shard["documents"] == 1
            if documents != 1 and not (singles and single and tokens < JOINED):
                self.groups.append([])
                documents, tokens, singles = 0, 0, True
            self.groups[-1].append(shard["name"])
            documents, tokens, singles = documents + shard["documents"], tokens + shard["tokens"], singles and single
        if documents == 1 and len(self.groups) > 1:
            last = self.groups.pop()
            self.groups[-1] += last
        self._opened = lru_cache(maxsize=OPEN)(self._open)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: Any) -> Any:
        return self._opened(range(len(self))[number])

    def _open(self, number: int) -> Shard:
        parts = [Shard.load(self.corpus / name) for name in self.groups[number]]
        return parts[0] if len(parts) == 1 else Shard.joined(parts)
