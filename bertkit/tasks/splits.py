"""Read the rows of a recipe's splits, each file once, and hold out some of the training rows."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertkit.errors import DataError, UsageError, UserError, did_you_mean
from bertkit.readers import Examples, Remarks, columns_of, explained_by
from bertkit.readers.formats import SPLITS, kind_of_split
from bertkit.readers.hub import other_shards
from bertkit.readers.remote import path_of
from bertkit.readers.splitting import Fold, parse_held_out, split_examples
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.sources import Embedded, Hub

SET_ASIDE = "set_aside"  # the split of training rows that are used neither for training nor for evaluation


class Splits(NamedTuple):
    """rows: by split. training: all training rows, before max_train_samples; None if the split was not read."""

    rows: dict[str, Examples]
    training: Examples | None

    @property
    def sha256(self) -> str:
        """A hash of all rows, independent of their order and split: the same for every fold."""
        rows = (repr(row) for part in self.rows.values() for row in zip(*part.columns.values(), strict=True))
        total = sum(int.from_bytes(sha256(row.encode("utf-8", "replace")).digest()) for row in rows)
        return f"{total % 2**256:064x}"


def input_paths(recipe: Recipe, name: str) -> list[Path]:
    """The files and folders of a recipe's data, and its own file."""
    paths = [recipe.data, recipe.train, recipe.validation, recipe.test, name if name.endswith(".py") else None]
    return [path_of(path) for path in paths if path]


def read_splits(recipe: Recipe, splits: Iterable[str] | None = None, *, read: dict[str, Examples] | None = None) -> Splits:
    """The rows of a resolved recipe's splits, unchanged; default: the splits for training and evaluation.

    read: files and whole splits that a recipe on the same data has already read; what is read now is added. Raises DataError,
    and UsageError for a missing split.
    """
    source = _Source(recipe, {} if read is None else read)
    rows = {split: source.read(split) for split in dict.fromkeys(splits or recipe.splits)}
    training = rows.get(recipe.train_split)
    if training is not None:  # the training split also reports the remarks on the rows held out of it
        rows |= {split: replace(each, remarks=Remarks()) for split, each in rows.items() if source.is_held_out(split)}
    if training is not None and recipe.max_train_samples is not None and recipe.max_train_samples < len(training):
        training = usable_rows(recipe, training)
        order = np.random.default_rng(recipe.split_seed).permutation(len(training))
        rows[recipe.train_split] = training.select(sorted(order[: recipe.max_train_samples].tolist()))
    for each in rows.values():
        if not len(each):
            raise DataError("the split holds no rows", where=each.source)
    return Splits(rows, training)


def usable_rows(recipe: Recipe, training: Examples) -> Examples:
    """The rows, as read, that can be trained on: all of them unless --on-error skip leaves some out. Raises DataError."""
    return _with_columns(recipe, training).usable(training, labelled=True)


def _with_columns(recipe: Recipe, rows: Examples) -> Recipe:
    return replace(recipe, **recipe.find_columns(rows).named)


class _Source:
    """Reads the splits of one recipe, each file once."""

    def __init__(self, recipe: Recipe, whole: dict[str, Examples]) -> None:
        self.recipe = recipe
        self.whole = whole  # by the path of the file, or the name of the split

    def is_held_out(self, split: str) -> bool:
        """Whether a split's rows are some of the training rows."""
        shares = {SET_ASIDE: self.recipe.set_aside, "validation": self.recipe.held_out_share}
        return shares.get(split) is not None

    def read(self, split: str) -> Examples:
        if split == self.recipe.train_split:
            return self._parts[0]
        if not self.is_held_out(split):
            return self._read_whole(split)
        return self._remaining[1] if split == SET_ASIDE else self._parts[1]

    @cached_property
    def _parts(self) -> list[Examples]:
        """The rows to train on and, if some of the training rows are the validation split, those."""
        recipe = self.recipe
        kept, *held = self._split(self._remaining[0], recipe.held_out_share, whole=recipe.set_aside is None)
        known = ("validation", *(split for split in recipe.folder.files if kind_of_split(split) == "validation"))
        if held and recipe.validation and any(map(recipe.has_split, known)):
            note = f"the validation rows are held out of the training rows; those that {recipe.data} has are not read"
            kept = kept.with_remarks(Remarks.of(note=note))
        return [kept, *held]

    @cached_property
    def _remaining(self) -> list[Examples]:
        """The training rows that are not set aside and, if some are, those that are."""
        rows = self._read_whole(self.recipe.train_split)
        return self._split(rows, parse_held_out(self.recipe.set_aside or ""), whole=True)

    def _split(self, rows: Examples, share: float | Fold | None, *, whole: bool) -> list[Examples]:
        """Two parts, or with None the rows as they are. whole: whether they are all training rows."""
        if share is None:
            return [rows]
        with explained_by(rows):
            named = _with_columns(self.recipe, rows)
            rows = named.usable(rows, labelled=True)
            if whole:
                named.refuse_unlikely_labels(rows)
            text, labels = named.split_by(rows)
        kept, held = split_examples(rows, share, seed=self.recipe.split_seed, labels=labels, text=text)
        return [kept, replace(held, remarks=held.remarks._replace(left_out=()))]  # `kept` reports them

    def _read_whole(self, split: str) -> Examples:
        """A split that exists in the data itself."""
        recipe = self.recipe
        if recipe.names_files:
            return self._read_own(split)
        if split not in self.whole:
            self.whole[split] = self._read_split(split)
        return self.whole[split]

    def _read_split(self, split: str) -> Examples:
        """A split of the recipe's own data, or of a folder."""
        recipe = self.recipe
        if recipe.data is not None:
            name = recipe.dataset.name if isinstance(recipe.dataset, Hub) else None
            rows = recipe.folder.read(Path(recipe.data), split, name, recipe.read_file, recipe.file_endings, recipe.columns)
        elif isinstance(recipe.dataset, Embedded):
            rows = recipe.dataset.read(split, recipe.read_file, recipe.file_endings)
        elif isinstance(recipe.dataset, Hub):
            rows = recipe.dataset.read(split)
        else:
            rows = self._call(split)
        return rows if recipe.prepare is None else self._prepared(rows, split)

    def _read_own(self, split: str) -> Examples:
        """A split in one of the user's files."""
        recipe = self.recipe
        file = getattr(recipe, split) if split in SPLITS else None
        if file is None:
            known = [each for each in (*SPLITS, SET_ASIDE) if getattr(recipe, each) is not None]
            hint = f"--{split} FILE names one" if split in SPLITS else did_you_mean(split, known)
            if split == "train" and recipe.validation is not None and parse_held_out(recipe.validation) is not None:
                raise UsageError(
                    f"--validation {recipe.validation} is a share of training rows; expected --train or --data with it"
                )
            raise UsageError(f"no file is named for split {split!r}", hint=hint)
        if file not in self.whole:
            rows = recipe.read_file(file)
            if others := other_shards(Path(file)):
                what = f"{file} is one of {len(others) + 1} files with the rows of a split; the others are not read"
                rows = rows.with_remarks(Remarks.of(warning=f"{what} (--data FOLDER reads all of them)"))
            self.whole[file] = rows
        return self.whole[file]

    def _call(self, split: str) -> Examples:
        """The rows that the recipe's function returns."""
        dataset = self.recipe.dataset
        assert callable(dataset)
        with _located(f"the recipe's dataset fails for split {split!r}"):
            rows = [dict(row) for row in dataset(split)]
        return Examples(columns_of(rows), f"{split} of the recipe", range(len(rows)))

    def _prepared(self, rows: Examples, split: str) -> Examples:
        """Rows of the recipe's own data, cleaned by its `prepare`."""
        assert self.recipe.prepare is not None
        with _located(f"the recipe's prepare fails for split {split!r}"):
            prepared = self.recipe.prepare(rows, split)
        if not isinstance(prepared, Examples):
            raise DataError(f"the recipe's prepare returns {type(prepared).__name__}; expected rows", where=rows.source)
        if dropped := len(rows) - len(prepared):
            note = f"the recipe drops {dropped} of {len(rows)} rows"
            prepared = prepared.with_remarks(Remarks((note,)))
        return prepared


@contextmanager
def _located(what: str) -> Iterator[None]:
    """Name the line at which a recipe's function fails: raise DataError in place of any error that is not ours."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}:{frame.lineno}"
        raise DataError(f"{what}: {type(error).__name__}: {error}", where=where) from error
