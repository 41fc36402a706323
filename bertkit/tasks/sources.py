"""Where a task's examples come from: a data set on the hub, files that ship with bertkit, or a folder with a known layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from bertkit.errors import DataError, UsageError, did_you_mean, listed
from bertkit.readers import Examples
from bertkit.readers.content import extension
from bertkit.readers.formats import PARALLEL, SPLITS, endings_of, find_split_file, kind_of_split
from bertkit.readers.hub import read_hub
from bertkit.readers.remote import is_url


def recipe_folder() -> Path:
    """The folder of the recipe files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    return package / "recipes" if (package / "recipes").is_dir() else package.parent / "recipes"


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub, or a local copy of one. path: its id, or its folder. name: of its configuration."""

    path: str
    name: str | None = None
    revision: str | None = field(default=None, kw_only=True)

    def read(self, split: str) -> Examples:
        return read_hub(self.path, self.name, split=split, revision=self.revision)


@dataclass(frozen=True)
class Embedded:
    """Files that ship with bertkit, one per split. folder: below recipes/data."""

    folder: str

    def read(self, split: str, read: Callable[[Path], Examples], endings: Sequence[str]) -> Examples:
        folder = recipe_folder() / "data" / self.folder
        if (path := find_split_file(folder, split, endings)) is None:
            raise DataError(f"no split {split!r}", where=str(folder))
        return read(path)


@dataclass(frozen=True)
class Folder:
    """The layout of a folder whose files do not have the usual names and headers.

    files: by split, a shell pattern for the file's name. headers: by split, the column names of a file without a header.
    rename: columns to rename.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split in (*self.files, *self.headers):
            if kind_of_split(split) not in SPLITS:
                expected = "train, validation or test, or one of them with a suffix, such as validation_matched"
                what = f"Folder(...) names the split {split!r}; expected {expected}"
                raise UsageError(what, hint=did_you_mean(split, SPLITS))

    def read(
        self,
        folder: Path,
        split: str,
        name: str | None,
        read: Callable[..., Examples],
        endings: Sequence[str],
        columns: tuple[str, ...] | None = None,
    ) -> Examples:
        """The rows of a split: those that `read` finds in its file, with one of `endings`; or those of a data set saved there,
        with the configuration `name`. Raises DataError.
        """
        if folder.is_file():
            raise DataError("--data is a file; expected a folder", where=str(folder), hint="give its folder, or --train FILE")
        if not folder.is_dir():
            raise DataError("the data folder does not exist", where=str(folder), hint="give --data the folder with the files")
        path = self._find(folder, split, endings)
        if path is not None:
            header = columns or self.headers.get(split)
            examples = read(path, columns=tuple(header) if header else None)
            renamed = {self.rename.get(own, own): values for own, values in examples.columns.items()}
            label_names = {self.rename.get(own, own): names for own, names in examples.label_names.items()}
            return replace(examples, columns=renamed, label_names=label_names)
        if (folder / "dataset_dict.json").is_file() or any(folder.rglob("*.parquet")):
            return read_hub(str(folder), name, split=split)
        names = sorted(path.name for path in folder.iterdir())
        likely = [ending for ending in endings if ending in map(extension, names)] or endings
        wanted = self.files.get(split) or " or ".join(f"{split}{ending}" for ending in likely[:3])
        what = f"no file for the split {split}, as {wanted}; the folder has {listed(names, 12) or 'nothing'}"
        hint = "name the files yourself: --train FILE --validation FILE, or --train FILE --validation 10%"
        if kind_of_split(split) == "validation" and self.has(folder, "train", endings):
            hint = f"hold out training rows: --data {folder} --validation 10%"
        if find_split_file(folder, split, endings_of([PARALLEL])):
            hint = f"seq.in and seq.out are sentences with tags: bertkit finetune token-classification --data {folder}"
        raise DataError(what, where=str(folder), hint=hint)

    def has(self, folder: Path, split: str, endings: Sequence[str]) -> bool:
        """Whether a folder has a file for the split, or a saved data set with it."""
        if not folder.is_dir():
            return False
        return self._find(folder, split, endings) is not None or split in _saved_splits(folder)

    def _find(self, folder: Path, split: str, endings: Sequence[str]) -> Path | None:
        """The file (or for a pattern that ends in /, the folder) of a split."""
        if split not in self.files:
            return find_split_file(folder, split, endings)
        found = sorted(folder.glob(self.files[split]))
        if len(found) > 1:
            names = " or ".join(path.name for path in found)
            hint = f"narrow the pattern {self.files[split]!r} in the recipe, or name the files: --train FILE --validation FILE"
            raise DataError(f"several files could be the split {split}: {names}", where=str(folder), hint=hint)
        return found[0] if found else None


def _saved_splits(folder: Path) -> set[str]:
    """The splits of a data set that `datasets` saved, or of Parquet files that are named after them."""
    if (saved := folder / "dataset_dict.json").is_file():
        with suppress(ValueError, TypeError):
            return set(json.loads(saved.read_text(encoding="utf-8"))["splits"])
    return {path.name.partition("-")[0].partition(".")[0] for path in folder.rglob("*.parquet")}


hub, embedded = Hub, Embedded  # their names in recipe files


def refuse_url(data: str | None) -> None:
    """Raise UsageError if --data is a URL: a folder's files can only be found locally."""
    if data is not None and is_url(data):
        raise UsageError(
            "--data is a URL; expected a local folder", where=data, hint="name its files: --train URL --validation URL"
        )
