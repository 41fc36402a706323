"""Flat arrays with offsets: features of a task, and shards of a corpus.

A ragged array is one flat array of values and the offsets at which its rows begin; nothing is padded, and rows are picked
without a loop.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

IGNORED = -100  # a target that no loss counts, as in torch and transformers
IN_MEMORY = 2**24  # bytes of a growing array to keep in memory; beyond this, it is in a file
BLOCK = 2**20  # values that are computed at once


class Growing:
    """An array to which blocks are added: in memory while it is small, else mapped from a file in $TMPDIR.

    The file has no name, so nothing is left of it, however the process ends.
    """

    def __init__(self, dtype: type) -> None:
        self._dtype = dtype
        self._blocks: list[NDArray] = []
        self._size = 0  # in bytes, of the blocks that are not in the file
        self._file: BinaryIO | None = None

    def add(self, block: NDArray) -> None:
        self._blocks.append(block.astype(self._dtype, copy=False))
        self._size += self._blocks[-1].nbytes
        if self._size > IN_MEMORY:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as its map
            self._write(self._file)

    def array(self) -> NDArray:
        """All blocks in order, to be read; no more can be added."""
        if self._file is None:
            return np.concatenate([np.zeros(0, dtype=self._dtype), *self._blocks])
        with self._file as file:
            self._write(file)
            return np.asarray(np.memmap(file, self._dtype, "r"))

    def _write(self, file: BinaryIO) -> None:
        try:
            for block in self._blocks:
                file.write(np.ascontiguousarray(block).data)
            file.flush()
        except OSError as error:
            error.filename = tempfile.gettempdir()  # the file has no name, and the user must know which disk is full
            raise
        self._blocks, self._size = [], 0


@dataclass(frozen=True)
class Ragged:
    """Rows of unequal length in one flat array: row i is values[offsets[i]:offsets[i + 1]]."""

    values: NDArray
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: type = np.int32) -> Ragged:
        """The rows of a list of lists."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        values: NDArray = np.fromiter(chain.from_iterable(rows), dtype=dtype, count=int(lengths.sum()))
        return cls(values, offsets_of(lengths))

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of one or more, in order."""
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.values for part in parts]), offsets_of(lengths))

    @classmethod
    def column(cls, values: Iterable, dtype: type = np.int64) -> Ragged:
        """Rows of one value each."""
        flat: NDArray = np.asarray(values, dtype=dtype)
        return cls(flat, np.arange(len(flat) + 1))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """The given rows in the given order."""
        return self.spans(self.offsets[:-1][rows], self.lengths[rows])

    def spans(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Ragged:
        """Parts of the flat array, which need not be whole rows."""
        return Ragged(self.values[ranges(begins, lengths)], offsets_of(lengths))


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where rows of these lengths begin in a flat array, and where the last one ends: (len(lengths) + 1,)."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def blocks_of(values: NDArray) -> Iterator[NDArray]:
    """A flat array in parts, to be processed one at a time, so that intermediate results stay small."""
    return (values[at : at + BLOCK] for at in range(0, len(values), BLOCK))


def ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """starts[0] .. starts[0] + lengths[0] - 1, starts[1] .., one after the other."""
    begins = offsets_of(lengths)
    return np.arange(begins[-1]) + np.repeat(np.asarray(starts) - begins[:-1], lengths)


@dataclass(frozen=True)
class Features:
    """A split as a model sees it: F features, of one sequence or several (choices), and S sequences in all.

    input_ids, token_type_ids: S rows of tokens. sequences: (F + 1,) offsets of the sequences that make up a feature;
    None where each has one. rows: the positions within each sequence that the head reads; None = all.
    labels: for each loss term, one row of targets per feature, possibly IGNORED. examples: (F,) the example that each feature
    comes from. extras: values that only decoding reads, one row per feature. class_weights: for loss terms of classes, (C,) the
    weight of each class's targets; 1 for other terms.
    """

    input_ids: Ragged
    token_type_ids: Ragged
    examples: NDArray[np.int64]
    sequences: NDArray[np.int64] | None = None
    rows: Ragged | None = None
    labels: dict[str, Ragged] = field(default_factory=dict)
    extras: dict[str, Ragged] = field(default_factory=dict)
    class_weights: dict[str, NDArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """(F + 1,) where the sequences of each feature begin."""
        return np.arange(len(self) + 1) if self.sequences is None else self.sequences

    @cached_property
    def num_tokens(self) -> NDArray[np.int64]:
        """(F,) tokens of each feature, over all its sequences."""
        return np.diff(self.input_ids.offsets[self.offsets])

    def mean_by_example(self, values: NDArray, num_examples: int) -> NDArray:
        """The mean of (F, D) values over the features of each example: (num_examples, D)."""
        sums = np.zeros((num_examples, values.shape[1]), dtype=values.dtype)
        np.add.at(sums, self.examples, values)
        return sums / np.bincount(self.examples, minlength=num_examples)[:, None]

    def with_targets(self) -> Features:
        """The features that have something to learn: some target that is not IGNORED."""
        learned = np.zeros(len(self), dtype=bool)
        for targets in self.labels.values():
            is_class = np.issubdtype(targets.values.dtype, np.integer)  # a score may be -100
            counts = targets.values != IGNORED if is_class else np.ones(len(targets.values))
            learned |= np.bincount(np.repeat(np.arange(len(self)), targets.lengths), counts, len(self)) > 0
        return self if learned.all() else self.take(np.flatnonzero(learned))

    def take(self, chosen: NDArray[np.int64]) -> Features:
        """The given features in the given order."""
        counts = np.diff(self.offsets)[chosen]
        sequences = ranges(self.offsets[:-1][chosen], counts)
        return replace(
            self,
            input_ids=self.input_ids.take(sequences),
            token_type_ids=self.token_type_ids.take(sequences),
            examples=self.examples[chosen],
            sequences=None if self.sequences is None else offsets_of(counts),
            rows=None if self.rows is None else self.rows.take(sequences),
            labels={term: targets.take(chosen) for term, targets in self.labels.items()},
            extras={name: values.take(chosen) for name, values in self.extras.items()},
        )

    @staticmethod
    def joined(parts: Sequence[Features]) -> Features:
        """The features of all parts, in order. The parts must have the same loss terms, extras and class weights; either all or
        none may have `sequences`, and likewise `rows`.
        """
        several = [part.sequences for part in parts if part.sequences is not None]
        rows = [part.rows for part in parts if part.rows is not None]
        return replace(
            parts[0],
            input_ids=Ragged.joined([part.input_ids for part in parts]),
            token_type_ids=Ragged.joined([part.token_type_ids for part in parts]),
            examples=np.concatenate([part.examples for part in parts]),
            sequences=offsets_of(np.concatenate([np.diff(offsets) for offsets in several])) if several else None,
            rows=Ragged.joined(rows) if rows else None,
            labels={term: Ragged.joined([part.labels[term] for part in parts]) for term in parts[0].labels},
            extras={name: Ragged.joined([part.extras[name] for part in parts]) for name in parts[0].extras},
        )

    def _arrays(self) -> dict[str, NDArray]:
        ragged = {"input_ids": self.input_ids, "token_type_ids": self.token_type_ids}
        if self.rows is not None:
            ragged["rows"] = self.rows
        ragged |= {f"labels.{term}": labels for term, labels in self.labels.items()}
        ragged |= {f"extras.{name}": values for name, values in self.extras.items()}
        arrays = {f"{name}.{part}": getattr(array, part) for name, array in ragged.items() for part in ("values", "offsets")}
        arrays |= {f"class_weights.{term}": weights for term, weights in self.class_weights.items()}
        arrays["examples"] = self.examples
        if self.sequences is not None:
            arrays["sequences"] = self.sequences
        return arrays

    def fingerprint(self) -> str:
        """sha256 over every array: equal for the same features in the same order."""
        digest = sha256()
        for name, array in sorted(self._arrays().items()):
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()
