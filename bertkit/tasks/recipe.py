"""A recipe: where a task's data comes from, its columns, and how the task is scored and trained."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from numpy.typing import NDArray  # noqa: F401, Metric refers to it, and options_of evaluates the annotations

from bertkit.config import DATA, USE, TrainConfig, convert, convert_values, filled, option, options_of
from bertkit.errors import DataError, UsageError, did_you_mean, flag_of, listed, plural
from bertkit.metrics.classification import Metric, greater_is_better
from bertkit.readers import Examples, Remarks, explained_by, join_blocks, refused_rows
from bertkit.readers.columns import names_in
from bertkit.readers.content import MAX_FILE_SIZE, STDIN
from bertkit.readers.faults import summary_of
from bertkit.readers.formats import ANY_WORDS, SPLITS, TEXTS, Format, endings_of, kind_of_split, read_blocks
from bertkit.readers.remote import is_url
from bertkit.readers.splitting import Fold, parse_held_out
from bertkit.tasks.sources import Embedded, Folder, Hub, refuse_url

_READING = ("separator", "encoding", "rows", "max_file_size", "on_error")  # options that say how files are read
_UNREAD = "the row is empty or cannot be read"


class Columns(NamedTuple):
    """named: options for columns and how to read them, found in training rows. remarks: what was guessed."""

    named: dict[str, Any]
    remarks: Remarks = Remarks()


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """A task's data, columns, scoring and training; each task family is a subclass. Fields made by `option` are also options of
    the command line.

    dataset: where examples come from unless --data or --train says otherwise: `hub(...)`, `embedded(...)`, or a function from a
    split's name to rows (dicts). folder: the layout of --data. prepare: a function (rows, split) -> rows that cleans this data
    (dataset or --data, but not --train and such); broken rows reach it with None in every column; for a finished run, a user's
    own function is used only if --recipe names its file. metrics: the first one, on the first of eval_splits, decides which
    step is best. reference: published scores by model, as {"split/metric": percent}; reference_source: their source.
    """

    family: ClassVar[str]
    families: ClassVar[dict[str, type[Recipe]]] = {}
    formats: ClassVar[tuple[Format, ...]] = TEXTS  # of data files
    in_order: ClassVar[tuple[str, ...]] = ()  # the options for the values of a row without names, such as (text, text_pair)
    usual_length: ClassVar[int] = 128  # the default max_length, if it is enough
    has_classes: ClassVar[bool] = True  # whether `labels_of` returns learned names, which may be rare or misspelled

    dataset: Hub | Embedded | Callable[[str], Iterable[Mapping[str, Any]]] | None = None
    folder: Folder = Folder()
    data: str | None = option(
        None, "folder with files named train, validation or dev, and test", unit="folder", commands=USE, replaces=SPLITS
    )
    train: str | None = option(
        None,
        "file to train on, or its URL: CSV, TSV, JSONL, Parquet, Excel, CoNLL, SQuAD JSON or text; also compressed",
        unit="file",
        commands=DATA,
        replaces=("data",),
    )
    validation: str | None = option(
        None, "file to evaluate on, or a share of the training rows (10%) or a fold of them (1/5)", unit="file", commands=DATA
    )
    test: str | None = option(None, "file of the test split", unit="file", commands=DATA)
    columns: tuple[str, ...] | None = option(None, "names of the columns of files without a header", commands=USE)
    separator: str | None = option(
        None,
        "column separator; a space if each line begins with its label; default: detected from the file's ending and content",
        commands=USE,
    )
    encoding: str | None = option(
        None, "encoding of text files, such as latin-1, utf-16, gb18030; default: UTF-8", commands=USE
    )
    rows: str | None = option(
        None, "path to the rows inside one JSON document: keys joined by dots, such as data.train", commands=USE
    )
    max_file_size: float = option(
        MAX_FILE_SIZE, "refuse compressed files that unpack to more than this", unit="GB", minimum=0, commands=USE
    )
    on_error: str = option(
        "fail",
        "what to do with rows that cannot be used: fail, or skip them; skipped rows are counted and the first ones named",
        choices=("fail", "skip"),
        commands=USE,
    )
    language: tuple[str, ...] | None = option(
        None, "languages of the texts for the model card, as codes such as en", commands=("finetune",)
    )
    split_seed: int = option(
        0, "seed that decides which rows --validation 10% holds out and --max-train-samples takes", minimum=0, commands=DATA
    )
    max_train_samples: int | None = option(
        None, "train on this many rows, drawn at random", unit="rows", minimum=1, commands=DATA
    )
    prepare: Callable[[Examples, str], Examples] | None = None
    metrics: tuple[Metric, ...] = ()
    train_split: str = "train"
    eval_splits: tuple[str, ...] = ("validation",)
    training: TrainConfig = TrainConfig()
    held_out: str | None = None  # the share of training rows, such as "10%", that is the validation split of data without one
    set_aside: str | None = None  # the share of training rows that first becomes the separate split "set_aside"
    reference: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reference_source: str = ""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "family" in cls.__dict__:  # some subclasses only hold the options of several families
            cls.families[cls.family] = cls

    def __post_init__(self) -> None:
        convert_values(self)
        for name, kind in (("folder", Folder), ("training", TrainConfig)):  # the most likely mistakes in a recipe file
            if not isinstance(value := getattr(self, name), kind):
                raise UsageError(f"{name} is {value!r}; expected {kind.__name__}(...)")
        for metric in self.metrics:
            if not callable(metric) or not hasattr(metric, "__name__"):
                raise UsageError(f"metrics has {metric!r}; expected functions, each with a name")
        names = [metric.__name__ for metric in self.metrics]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise UsageError(f"the same metric is given twice: {', '.join(twice)}")

    @property
    def greater_is_better(self) -> bool:
        """Whether a higher score of the first metric, which decides the best step, is better."""
        return not self.metrics or greater_is_better(self.metrics[0])

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits for training and evaluation."""
        return tuple(dict.fromkeys((self.train_split, *self.eval_splits)))

    @property
    def first_eval_split(self) -> str:
        """The split whose first score decides the best step. Raises UsageError if there is none."""
        if not self.eval_splits:
            raise UsageError("there is no split to evaluate on", hint="a recipe names its splits in eval_splits")
        return self.eval_splits[0]

    @property
    def file_endings(self) -> tuple[str, ...]:
        """The endings of data files, to find a folder's splits; in a user's folder, any word of a file's name can match."""
        own = () if self.dataset is not None or self.folder.files else (".txt", ANY_WORDS)
        return tuple(dict.fromkeys((*endings_of(self.formats), *own)))

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` applies: to the recipe's own data and folders laid out like it, not to the user's files."""
        return self.prepare is not None and not self.names_files

    @property
    def names_files(self) -> bool:
        """Whether the splits are the user's files: --train, --validation, --test. A share for --validation names none."""
        return self.data is None and bool(self._named_files)

    @property
    def _named_files(self) -> dict[str, str]:
        named = ((split, getattr(self, split) or "") for split in SPLITS)
        return {split: file for split, file in named if file and (split != "validation" or parse_held_out(file) is None)}

    @property
    def reading(self) -> dict[str, Any]:
        """How files are read, as keyword arguments of `readers.formats.read_file`."""
        names = names_in(["text", *(getattr(self, role) for role in self.in_order)])
        return {name: getattr(self, name) for name in _READING} | {"column_names": names}

    @property
    def truncates(self) -> bool:
        """Whether texts longer than max_length lose tokens; otherwise they are read in windows."""
        return False

    @property
    def held_out_share(self) -> float | Fold | None:
        """The share or fold of the training rows that is the validation split, if any."""
        return parse_held_out(self.validation or (None if self.names_files else self.held_out) or "")

    # --- resolving ---

    def resolved(self) -> Self:
        """This recipe with defaults filled in, absolute paths, and the splits that exist.

        The training settings are left to `choose_settings`, which needs rows. Raises UsageError if no data, or two kinds of
        data, are named, and for options that exclude each other.
        """
        recipe = filled(self)
        refuse_without_effect(recipe)
        validation = recipe.validation or ("10%" if recipe.train else None)
        if validation and re.fullmatch(r"[\d.]+", validation) and not Path(validation).exists():
            what = f"--validation is {validation}; expected a file, a share such as 10%, or a fold such as 1/5"
            has_rows = recipe.train or recipe.data or recipe.dataset
            raise UsageError(what, hint="write a share as a percentage, such as 10%" if has_rows else None)
        if not recipe.names_files:
            if recipe.dataset is None and recipe.data is None:
                raise UsageError("the data is missing", hint="give --train FILE [--validation FILE|10%], or --data FOLDER")
            if split := next(iter(recipe._named_files), None):
                raise UsageError(f"--data and --{split} FILE cannot be combined", hint="leave out --data, or the file")
            refuse_url(recipe.data)
            there, reference = recipe._splits_there(), recipe.reference
            if recipe.validation:
                there, reference = ("validation", *(each for each in there if kind_of_split(each) != "validation")), {}
            return replace(recipe, data=_absolute(recipe.data), eval_splits=there, reference=reference)
        if recipe.train == STDIN:
            raise UsageError("--train cannot be standard input (-): it is read more than once", hint="save it to a file first")
        files = {"train": recipe.train, "validation": validation, "test": recipe.test}
        named = tuple(split for split in ("validation", "test") if files[split])
        return replace(
            recipe,
            **{split: _absolute(file) for split, file in files.items()},
            eval_splits=named[:1] if recipe.train else named,
            reference={},  # published scores hold for the recipe's own data only
        )

    def has_split(self, split: str) -> bool:
        """Whether the folder of --data has this split."""
        return self.data is not None and self.folder.has(Path(self.data), split, self.file_endings)

    def _splits_there(self) -> tuple[str, ...]:
        """The splits to evaluate on; of several variants of one split, such as fifteen languages, those that the folder has."""
        there = {*filter(self.has_split, self.eval_splits)}
        names = {*map(kind_of_split, there)}
        return tuple(split for split in self.eval_splits if split in there or kind_of_split(split) not in names)

    def overridden(self, overrides: Mapping[str, Any]) -> Self:
        """This recipe with the options of a command line or file in place of its own, or of its training settings; what they
        replace is unset. Raises UsageError for an unknown option, or one of another family.
        """
        own, training = options_of(self), options_of(self.training)
        values = {name.replace("-", "_"): value for name, value in overrides.items()}
        if unknown := next((name for name in values if name not in own | training), None):
            raise _no_option(unknown, self.family, [*own, *training])
        replaced = {other for name, value in values.items() if value is not None for other in (own | training)[name].replaces}
        values = dict.fromkeys(replaced & (own | training).keys()) | values
        of_training = {name: convert(training[name], value) for name, value in values.items() if name in training}
        changes = {name: convert(own[name], value) for name, value in values.items() if name in own}
        return replace(self, **changes, training=replace(self.training, **of_training))

    def with_other_data(self, overrides: Collection[str], written: Recipe | None = None) -> Self:
        """This recipe without its own data if the overrides name data: a folder and files exclude each other.

        written: the recipe before any override, as in its file; its options for reading files are kept.
        """
        if not {"data", "train", "test", *self._named_files} & set(overrides):  # but perhaps a share of the same training rows
            return self
        before = filled(written or type(self)())
        values = {name: getattr(before, name) for name in ("columns", *_READING)} | dict.fromkeys(("data", *SPLITS))
        return replace(self, **{name: value for name, value in values.items() if name not in overrides})

    def with_file(self, file: str, overrides: Collection[str], written: Recipe | None = None) -> Self:
        """This recipe with a file to predict as its test split. overrides, written: as in `with_other_data`."""
        return self.overridden({"test": file}).with_other_data({"test", *overrides}, written)

    # --- what a family defines ---

    def read_file(self, path: str | Path, *, columns: tuple[str, ...] | None = None) -> Examples:
        """All rows of a file; see `read_blocks`."""
        return join_blocks(self.read_blocks(path, columns=columns))

    def read_blocks(
        self, path: str | Path, *, columns: tuple[str, ...] | None = None, labelled: bool = True
    ) -> Iterator[Examples]:
        """The rows of a file in one of this family's formats, block by block. columns: the names of those without a header.
        labelled: whether rows that annotators skipped or rejected are left out.
        """
        return read_blocks(
            path,
            self.formats,
            columns=columns or self.columns,
            keep_broken=self.is_prepared or None,
            labelled=labelled,
            **self.reading,
        )

    def row_of(self, row: Any) -> Mapping[str, Any]:
        """A Python row as columns: a mapping unchanged; a text, or a pair, as the columns that `in_order` names.

        Raises ValueError for any other row.
        """
        if isinstance(row, Mapping):
            return row
        texts = (row,) if isinstance(row, str) else row
        fits = isinstance(texts, (list, tuple)) and 1 <= len(texts) <= len(self.in_order)
        if not fits or not all(isinstance(text, str) for text in texts):
            ways = ["a dict of columns", *["a text", "a pair"][: len(self.in_order)]]
            raise ValueError(f"the row is {row!r}; expected {' or '.join(ways)}")
        return {self.column_of(role): text for role, text in zip(self.in_order, texts, strict=False)}

    def column_of(self, role: str) -> str:
        """The column name of a text role in rows to predict."""
        return getattr(self, role) or role

    def find_columns(self, rows: Examples) -> Columns:
        """Find, in training rows, the columns that the recipe does not name. Raises DataError."""
        return Columns({})

    @abstractmethod
    def columns_read(self, rows: Examples, *, labelled: bool) -> set[str]:
        """The columns that a recipe with known columns reads; labelled: in training. Raises DataError if one is missing."""

    def refuse_unlikely_labels(self, rows: Examples) -> None:
        """Raise DataError for training rows, before any are held out, whose labels do not look like classes."""
        return

    @abstractmethod
    def split_by(self, rows: Examples) -> tuple[tuple[str, ...], list[tuple[Hashable, ...]] | None]:
        """How to hold out rows: the columns whose equal values must stay on one side, and the labels to stratify by."""

    def standardize(self, rows: Examples, *, labelled: bool) -> Examples:
        """The rows under standard column names, with labels as the data spells them; without `refused` rows.

        labelled: require everything that training needs; otherwise, for prediction, empty texts are accepted. Raises DataError
        with the row.
        """
        with explained_by(rows):
            return self._standardize(self.usable(rows, labelled=labelled), labelled=labelled)

    def usable(self, rows: Examples, *, labelled: bool) -> Examples:
        """The rows without `refused` ones. Raises DataError if none is left to train on."""
        faults = self.refused(rows, labelled=labelled)
        if labelled and faults and len(faults) == len(rows):
            raise DataError(f"no row can be used: {summary_of([*faults.values()])}", where=rows.source)
        rest = self._numbered(rows).without(faults)
        unread = [why for why in faults.values() if why.startswith(_UNREAD)]
        if labelled and len(unread) > len(rows) / 2:
            what = f"{len(unread)} of {len(rows)} rows are empty or cannot be read; are encoding and separator right?"
            rest = rest.with_remarks(Remarks.of(warning=f"{rows.source}: {what}"))
        return rest

    def _numbered(self, rows: Examples) -> Examples:
        """The rows with any ids that depend on row numbers, set before some rows are left out."""
        return rows

    def refused(self, rows: Examples, *, labelled: bool) -> dict[int, str]:
        """With --on-error skip, the rows that cannot be used, and why; else none, as `standardize` raises at the first one."""
        if self.on_error != "skip":
            return {}
        found = refused_rows(rows, partial(self._standardize, labelled=labelled))
        # `_standardize` may accept an empty row, as columns that are joined may be empty
        empty = (row for row in range(len(rows)) if all(values[row] is None for values in rows.columns.values()))
        return dict(sorted((found | {row: f"{_UNREAD} ({rows.where(row)})" for row in empty}).items()))

    @abstractmethod
    def _standardize(self, rows: Examples, *, labelled: bool) -> Examples:
        """`standardize`, but raising for rows that cannot be used."""

    @abstractmethod
    def texts_of(self, examples: Examples) -> Iterable[tuple[str, ...]]:
        """All texts of each row of `standardize`; rows with the same texts count as equal."""

    @property
    def predicts_numbers(self) -> bool:
        """Whether it predicts numbers, which are closer or farther but never exactly right."""
        return False

    def num_learned(self, examples: Examples) -> int:
        """How many labelled rows of `standardize` have something to learn."""
        return len(examples)

    @abstractmethod
    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        """The labels of each row of `standardize` by name; empty for a row without."""


def settle_columns(recipe: Recipe, rows: Examples) -> Columns:
    """`find_columns`, and a note about unread columns, unless the data is the recipe's own. Raises DataError."""
    with explained_by(rows):
        columns = recipe.find_columns(rows)
    unused = unread_columns(replace(recipe, **columns.named), rows, labelled=True)
    notes = (f"{plural(len(unused), 'column')} not used: {listed(unused, 12)}",) if unused else ()
    return columns._replace(remarks=columns.remarks + Remarks(notes))


def unread_columns(recipe: Recipe, rows: Examples, *, labelled: bool) -> list[str]:
    """The columns of a user's data that a recipe with known columns does not read. labelled: whether in training."""
    if not recipe.names_files and (recipe.dataset is not None or recipe.folder.files):
        return []
    try:
        read = recipe.columns_read(rows, labelled=labelled)
    except DataError:  # a missing column, which `standardize` reports
        return []
    return [name for name in rows.columns if name not in read]


def refuse_without_effect(recipe: Any) -> None:
    """Raise UsageError for an option that has no effect because another one is off."""
    declared = options_of(recipe)
    for name, each in declared.items():
        if each.needs is not None and getattr(recipe, name) not in (None, False) and not getattr(recipe, each.needs):
            needed = declared[each.needs].flag
            raise UsageError(f"{each.flag} has no effect without {needed}", hint=f"add {needed}, or leave it out")


def _no_option(name: str, family: str, known: Sequence[str]) -> UsageError:
    flag = flag_of(name)
    if having := sorted(family for family, each in Recipe.families.items() if name in options_of(each)):
        return UsageError(f"{flag} is an option of {', '.join(having)}; this recipe is {family}")
    return UsageError(f"no option {flag}", hint=did_you_mean(flag, [*map(flag_of, known)]))


def _absolute(path: str | None) -> str | None:
    """An absolute path, so that run.json is valid from any folder; a share such as 10%, or a URL, is returned unchanged."""
    return path if path is None or path == STDIN or is_url(path) or parse_held_out(path) else str(Path(path).resolve())
