"""The corpora of a command, and the share of the sequences that each supplies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from bertkit.corpus.directory import read_metas
from bertkit.corpus.shard import CORPUS_FILES
from bertkit.errors import UsageError
from bertkit.manifest import MANIFEST, Manifest
from bertkit.readers.remote import is_url
from bertkit.text.tokenizer import Tokenizer

BLOCK = 10_000  # sequences; each corpus has exactly its share of them, in random order


class Corpus(NamedTuple):
    """A corpus of a mix. name: short and unique. share: its share of the mix's sequences."""

    name: str
    folder: Path
    meta: dict[str, Any]
    share: float = 1.0

    @property
    def has_validation(self) -> bool:
        """Whether the corpus has a validation split with text."""
        return bool(self.meta["validation"]["shards"])

    @property
    def shards_sha256(self) -> str | None:
        """sha256 of the shards' manifests, so of all that is read. None for a corpus without a manifest."""
        manifest = Manifest.read(self.folder, CORPUS_FILES)
        if manifest is None:
            return None
        shards = sorted(file for file in manifest.files.items() if file[0].endswith(f"/{MANIFEST}"))
        return sha256(repr(shards).encode()).hexdigest()

    def refuse_other_tokenizer(self, tokenizer: Tokenizer, model: str) -> None:
        """Raise UsageError if the tokenizer is not the corpus's. model: the model that it belongs to."""
        own = self.meta["tokenizer"]
        if tokenizer.fingerprint != own["fingerprint"]:
            what = f"the corpus was built with a different tokenizer than {model}'s"
            if tokenizer.vocab_hash == own["vocab_hash"]:
                what += ": with the same vocabulary, but different treatment of case, accents or Chinese characters"
            hint = f"build it again: bertkit corpus build TEXT... --tokenizer {quote(model)} --output-dir ..."
            raise UsageError(what, where=str(self.folder), hint=hint)


def open_corpora(names: Sequence[str | Path], *, to_train: bool = True) -> list[Corpus]:
    """The corpora of a command, each FOLDER or FOLDER:WEIGHT. A missing weight is 1; if all are missing, the number of tokens.

    Raises UsageError for a weight that is not a number above 0, a corpus given twice, corpora with different tokenizers, and,
    to train, a share of less than one sequence in a BLOCK.
    """
    folders, given = zip(*map(_weighted, map(str, names)), strict=True)
    metas = read_metas(folders)
    if twice := [folder for number, folder in enumerate(folders) if folder.resolve() in map(Path.resolve, folders[:number])]:
        raise UsageError("the corpus is given twice", where=str(twice[0]), hint="use a weight to set how often it is read")
    weights = [meta["train"]["tokens"] for meta in metas] if not any(given) else [weight or 1.0 for weight in given]
    shares = [weight / (sum(weights) or 1.0) if len(weights) > 1 else 1.0 for weight in weights]
    if to_train and BLOCK * (least := min(shares)) < 1:
        what = f"the corpus would have {least:.1e} of the sequences, less than one of {BLOCK}"
        hint = "give it a larger weight, as in corpora/own:3 corpora/general:1"
        raise UsageError(what, where=str(folders[shares.index(least)]), hint=hint)
    return [*map(Corpus, short_names([str(folder.resolve()) for folder in folders]), folders, metas, shares)]


def _weighted(name: str) -> tuple[Path, float | None]:
    """A folder and its weight, if it has one."""
    if is_url(name):
        raise UsageError("a corpus is a local folder, and this is a URL", where=name, hint="copy the folder here")
    folder, colon, weight = name.rpartition(":")
    if not colon or Path(name).exists():
        return Path(name), None
    with suppress(ValueError):
        if math.isfinite(value := float(weight)) and value > 0:
            return Path(folder), value
    raise UsageError(f"the weight of {folder} is {weight!r}; expected a number above 0", hint="as in corpora/own:3")


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ending of each path that distinguishes it from the others; equal ones are numbered: "a.txt", "a.txt (2)"."""
    split = [Path(path).parts for path in paths]

    def shortest(own: tuple[str, ...]) -> str:
        endings = (own[-count:] for count in range(1, len(own)))
        return str(Path(*next((end for end in endings if [other[-len(end) :] for other in split].count(end) == 1), own)))

    times = [split[: at + 1].count(path) for at, path in enumerate(split)]
    return [shortest(path) + (f" ({number})" if number > 1 else "") for path, number in zip(split, times, strict=True)]
