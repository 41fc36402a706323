"""The last pass of a build: it decides and records which documents to keep, then turns each part into shards of the splits.

The corpus's own parts are deleted once their shards exist, so no second copy of the corpus is needed, and a killed build can
resume: a part whose shards exist is done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.corpus.directory import BUILDING, DECIDED, META, SPLITS
from bertkit.corpus.duplicates import bounds_of, find_repeated
from bertkit.corpus.shard import CORPUS_FILES, Shard
from bertkit.corpus.workers import CallEach
from bertkit.errors import DataError
from bertkit.files import UNFINISHED, disk_errors, json_text, remove_folder, sha256_of, write_files
from bertkit.manifest import MANIFEST, Manifest, Owner, verify, write_folder
from bertkit.text.tokenizer import Tokenizer

_DECIDED = Owner("unfinished corpus", DataError, "--overwrite builds it again", strict=True)
_PARTS, _REPEATED = "parts.json", "repeated.npy"


@dataclass(frozen=True)
class PartKept:
    """What is kept of a part. folder: its path, relative to the folder of the parts unless absolute. source: the number of its
    source. documents: how many it has in all. shards: the name of the shard of kept documents, for each split that has any."""

    folder: str
    source: int
    documents: int
    shards: dict[str, str]

    def is_done(self, corpus: Path) -> bool:
        return all((corpus / name).is_dir() for name in self.shards.values())


@dataclass(frozen=True)
class Decision:
    """Which documents are kept, and where. documents: counts of read and dropped ones. hashes: the xor of the kept ones'."""

    documents: dict[str, int]
    hashes: str
    parts: list[PartKept]

    @classmethod
    def read(cls, building: Path) -> Decision | None:
        """The recorded decision; None if there is none yet. Raises DataError for a damaged one."""
        folder = building / DECIDED
        if not folder.is_dir():
            return None
        verify(folder, owner=_DECIDED, now=True)  # parts are deleted according to it
        values = json.loads((folder / _PARTS).read_text(encoding="utf-8"))
        return cls(**{**values, "parts": [PartKept(**part) for part in values["parts"]]})

    def missing(self, building: Path) -> set[str]:
        """The parts that neither exist nor are done, such as damaged ones that were deleted."""
        return {
            part.folder for part in self.parts if not (building / part.folder).is_dir() and not part.is_done(building.parent)
        }


def decide(
    building: Path, parts: Sequence[tuple[int, Path]], counts: dict[str, int], *, held_out: float, min_tokens: int
) -> Decision:
    """Drop documents that repeat an earlier one, hold out a share of the others, and record what is kept of each part.

    parts: each with the number of its source. counts: of documents, without the duplicates among these parts. Uses the memory
    of `find_repeated`, and some hundred bytes per part. Raises DataError if no document is left.
    """
    sizes = [len(Shard.load_hashes(folder)) for _, folder in parts]
    if not sum(sizes):
        what = f"all {counts['read']} documents have fewer than {min_tokens} tokens"
        raise DataError(what, where=str(building.parent), hint="lower --min-tokens, or change --layout")
    with disk_errors(building):
        all_hashes = (np.asarray(Shard.load_hashes(folder)) for _, folder in parts)
        repeated = find_repeated(all_hashes, sizes, building / f"{UNFINISHED}hashes")
    kept, xor, numbers = [], np.uint64(0), dict.fromkeys(SPLITS, 0)
    duplicates = 0
    for (source, folder), size, (begin, end) in zip(parts, sizes, pairwise(bounds_of(sizes)), strict=True):
        hashes = np.asarray(Shard.load_hashes(folder))
        rows = _rows_of_splits(hashes, repeated[begin:end], held_out)
        shards = {}
        for split, chosen in rows.items():
            xor ^= np.bitwise_xor.reduce(hashes[chosen])
            duplicates -= len(chosen)
            if len(chosen):
                shards[split] = f"{split}-{numbers[split]:05d}"
                numbers[split] += 1
        duplicates += size
        name = folder.name if folder.parent == building else str(folder)
        kept.append(PartKept(name, source, size, shards))
    decided = Decision({**counts, "duplicates": counts["duplicates"] + duplicates}, f"{xor:016x}", kept)

    def write(folder: Path) -> None:
        np.save(folder / _REPEATED, repeated)
        values = {**vars(decided), "parts": [vars(part) for part in kept]}
        (folder / _PARTS).write_text(json_text(values), encoding="utf-8")

    write_folder(building / DECIDED, write)
    return decided


def _rows_of_splits(hashes: NDArray[np.uint64], repeated: NDArray[np.uint8], held_out: float) -> dict[str, NDArray[np.int64]]:
    """The documents of a part in each split, by their hashes and the bits of those that repeat earlier ones."""
    is_first = np.unpackbits(repeated, count=len(hashes)) == 0
    is_held_out = hashes % np.uint64(10**6) < np.uint64(round(held_out * 10**6))
    chosen = (is_first & ~is_held_out, is_first & is_held_out)
    return {split: np.flatnonzero(each) for split, each in zip(SPLITS, chosen, strict=True)}


def write_splits(
    decided: Decision, plan: dict[str, Any], tokenizer: Tokenizer, output_dir: Path, call_each: CallEach, *, own_parts: bool
) -> dict[str, Any]:
    """Write the shards that do not exist yet, then the tokenizer, and meta.json last; returns its content.

    own_parts: whether the parts belong to this corpus; each is then deleted once its shards exist.
    """
    building = output_dir / BUILDING
    repeated = np.load(building / DECIDED / _REPEATED, mmap_mode="r")
    bounds = pairwise(bounds_of([part.documents for part in decided.parts]))
    how = (building, plan["held_out"], own_parts)
    calls = ((part, repeated[begin:end].tobytes(), *how) for part, (begin, end) in zip(decided.parts, bounds, strict=True))
    written: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    of_shards: dict[str, str] = {}  # the sha256 of each one's own manifest
    with disk_errors(output_dir):
        results = progress.with_bar(call_each(_write_shards, calls), "shards, by parts", len(decided.parts))
        for part, found in zip(decided.parts, results, strict=True):
            for split, (counts, digest) in found.items():
                written[split].append({"name": part.shards[split], "source": part.source, **counts})
                of_shards[f"{part.shards[split]}/{MANIFEST}"] = digest
        meta = {**plan, "documents": decided.documents, "hashes": decided.hashes}  # compared when a run is resumed
        for split in SPLITS:
            totals = {name: sum(shard[name] for shard in written[split]) for name in ("documents", "sentences", "tokens")}
            meta[split] = {**totals, "shards": written[split]}
        files = {**tokenizer.files(), META: json_text(meta)}
        of_files = {name: sha256(text.encode()).hexdigest() for name, text in files.items()}
        write_files(output_dir, {MANIFEST: Manifest(output_dir, {**of_shards, **of_files}).text, **files})
        remove_folder(building)  # a kill from here on leaves a complete corpus
    return meta


def _write_shards(
    part: PartKept, repeated: bytes, building: Path, held_out: float, own_parts: bool
) -> dict[str, tuple[dict[str, int], str]]:
    """Write the shards of a part; returns, by split, the shard's counts and the sha256 of its manifest."""
    folder, corpus = building / part.folder, building.parent
    if not part.is_done(corpus):
        shard = _whole(folder, part.documents, own_parts)
        rows = _rows_of_splits(np.asarray(shard.hashes), np.frombuffer(repeated, dtype=np.uint8), held_out)
        for split, name in part.shards.items():
            if not (corpus / name).is_dir():
                write_folder(corpus / name, shard.take(rows[split]).save)
        del shard  # the files are mapped
    if own_parts and folder.is_dir():
        remove_folder(folder)
    shards = {split: corpus / name for split, name in part.shards.items()}
    return {split: (Shard.opened(shard).counts(), sha256_of(shard / MANIFEST)) for split, shard in shards.items()}


def _whole(folder: Path, documents: int, own_parts: bool) -> Shard:
    """The shard in a part's folder, all of it compared with its manifest. Raises DataError; a damaged part is deleted."""
    try:
        verify(folder, owner=CORPUS_FILES, now=True)  # the part may be deleted soon
        shard = Shard.load(folder)
        if len(shard.hashes) != documents:
            what = f"the part has {len(shard.hashes)} documents; expected {documents}"
            raise DataError(what, where=str(folder), hint=CORPUS_FILES.hint)
        return shard
    except DataError as error:
        if not own_parts:
            raise
        if folder.is_dir():
            remove_folder(folder)
        hint = "repeat the command to rebuild the part"
        raise DataError(f"a part of the unfinished corpus was damaged: {error.what}", where=error.where, hint=hint) from None
