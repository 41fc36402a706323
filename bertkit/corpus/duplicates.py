"""Documents that repeat an earlier one, found by their hashes in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.features import offsets_of

BUCKET = 2**21  # documents of a bucket, about
AT_ONCE = 2**20  # documents in memory while they are dealt out or compared


def bounds_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """The byte offset at which each part's bits begin, then the end of the last; every part begins on a new byte."""
    return offsets_of((np.array(sizes, dtype=np.int64) + 7) // 8)


def find_repeated(parts: Iterable[NDArray[np.uint64]], sizes: Sequence[int], folder: Path) -> NDArray[np.uint8]:
    """A bit for each document, packed as by np.packbits: 1 if an earlier document has the same hash. `bounds_of` gives the
    places.

    parts: the hashes of each part's documents; only one part is in memory at a time. sizes: how many each part has. folder: a
    temporary folder to create, with 16 bytes per document.

    The hashes are distributed to buckets by their upper bits, each with its document's place, and compared bucket by bucket.
    Memory is thus one bit per document, about 150 MB for a bucket of BUCKET different hashes (however often each occurs), and
    the memory of the largest part.
    """
    bounds = bounds_of(sizes)
    bits = max(1, min(16, (sum(sizes) // BUCKET).bit_length()))
    buckets = [folder / str(number) for number in range(2**bits)]
    folder.mkdir()
    held: list[NDArray[np.uint64]] = []
    count = 0
    for begin, hashes in zip(bounds[:-1], progress.with_bar(parts, "hashes, by parts", len(sizes)), strict=True):
        places = 8 * np.uint64(begin) + np.arange(len(hashes), dtype=np.uint64)
        held.append(np.stack([hashes, places], axis=1))
        count += len(hashes)
        if count >= AT_ONCE:
            _deal_out(np.concatenate(held), bits, buckets)
            held, count = [], 0
    if held:
        _deal_out(np.concatenate(held), bits, buckets)
    del held
    repeated = np.zeros(bounds[-1], dtype=np.uint8)
    for bucket in progress.with_bar(buckets, "duplicates, by buckets", len(buckets)):
        if bucket.exists():
            _mark(bucket, repeated)
            bucket.unlink()
    folder.rmdir()
    return repeated


def _deal_out(pairs: NDArray[np.uint64], bits: int, buckets: Sequence[Path]) -> None:
    """Append pairs of hash and place to the files of their buckets, in their order."""
    numbers = (pairs[:, 0] >> np.uint64(64 - bits)).astype(np.uint16)
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(len(buckets) + 1)).tolist()
    for bucket, (begin, end) in zip(buckets, pairwise(bounds), strict=True):
        if begin < end:
            with bucket.open("ab") as file:
                file.write(pairs[order[begin:end]].tobytes())


def _mark(bucket: Path, repeated: NDArray[np.uint8]) -> None:
    """Set the bits of the documents of a bucket that repeat an earlier one, which is in the same bucket."""
    seen: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)  # sorted
    with bucket.open("rb") as file:
        while len(values := np.fromfile(file, dtype=np.uint64, count=2 * AT_ONCE)):
            hashes, places = values[::2], values[1::2]
            different, first = np.unique(hashes, return_index=True)
            at = np.searchsorted(seen, different)
            is_new = np.ones(len(different), dtype=bool)
            inside = at < len(seen)
            is_new[inside] = seen[at[inside]] != different[inside]
            is_repeated = np.ones(len(hashes), dtype=bool)
            is_repeated[first[is_new]] = False
            marked = places[is_repeated]
            np.bitwise_or.at(repeated, marked >> 3, np.right_shift(128, marked & 7).astype(np.uint8))
            seen = np.insert(seen, at[is_new], different[is_new])
