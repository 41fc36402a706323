"""What every task family shares: where its examples come from, how it is scored, and what the commands ask of it."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from numpy.typing import NDArray  # not for type checkers alone: options_of evaluates the annotations

from bertkit.config import BertConfig, TrainConfig, option
from bertkit.errors import DataError, UsageError, UserError
from bertkit.metrics import LOWER_IS_BETTER, Metric
from bertkit.readers import Examples
from bertkit.readers.files import read_file
from bertkit.readers.splitting import parse_fraction, split_examples
from bertkit.tasks.sources import Embedded, Folder, Hub

if TYPE_CHECKING:
    from torch import nn

    from bertkit.store import Features
    from bertkit.tokenizer import Tokenizer

_NO_DATA = "give --train FILE [--validation FILE|10%], or --data FOLDER"


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A recipe; each family is a subclass. Fields made by `option` are options of the command line too.

    dataset: where examples come from unless --data or --train says otherwise: `hub(...)`, `embedded(...)`, or a function from a
    split's name to rows (dicts). folder: the layout of --data. metrics: the first one on the first of eval_splits decides which
    step is best. reference: published scores by model, as {"split/metric": value in percent}; reference_source says whose.
    """

    family: ClassVar[str]
    architecture: ClassVar[str]

    dataset: Hub | Embedded | Callable[[str], Iterable[Mapping[str, Any]]] | None = None
    folder: Folder = Folder()
    data: str | None = option(None, "folder with train, dev/validation and test files, instead of the hub's data")
    train: str | None = option(None, "file to train on: CSV, TSV, JSONL or text, plain or .gz")
    validation: str | None = option(None, "file to evaluate on, or a share of the training rows such as 10%")
    test: str | None = option(None, "file of the test split")
    columns: tuple[str, ...] | None = option(None, "names of the columns of files without a header")
    separator: str | None = option(None, "what separates the columns of files; default: by their ending")
    split_seed: int = option(0, "decides which rows --validation 10% holds out", minimum=0)
    metrics: tuple[Metric, ...] = ()
    train_split: str = "train"
    eval_splits: tuple[str, ...] = ("validation",)
    training: TrainConfig = TrainConfig()
    reference: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reference_source: str = ""

    # --- where the rows come from ---

    def settled(self) -> Self:
        """This recipe with the defaults filled in that depend on other fields: splits of the user's own files, absolute paths.

        Raises UsageError where no data is named, or two kinds of it.
        """
        if not (self.train or self.validation or self.test):
            if self.dataset is None and self.data is None:
                raise UsageError("no data is named", hint=_NO_DATA)
            return replace(self, data=_absolute(self.data))
        if self.data is not None:
            raise UsageError("--data names a folder and --train or --validation a file; expected one of the two")
        if self.train == "-":
            raise UsageError("--train is -; the training data is read more than once", hint="save it to a file first")
        validation = self.validation or ("10%" if self.train else None)
        named = [split for split, file in (("validation", validation), ("test", self.test)) if file]
        return replace(
            self,
            train=_absolute(self.train),
            validation=_absolute(validation),
            test=_absolute(self.test),
            eval_splits=tuple(named[:1] if self.train else named),
            reference={},  # published scores are of the recipe's own data
        )

    @property
    def greater_is_better(self) -> bool:
        """Whether the first metric, which decides the best step, is the better the greater it is."""
        return self.metrics[0].__name__ not in LOWER_IS_BETTER

    def with_data_typed(self, typed: Collection[str]) -> Self:
        """This recipe without what it said of other data, where a user typed data: a folder and files exclude each other."""
        if not {"data", "train", "validation", "test"} & set(typed):
            return self
        forgotten = {"data", "train", "validation", "test", "columns", "separator"} - set(typed)
        return replace(self, **dict.fromkeys(forgotten, None))  # type: ignore[arg-type]

    def read(self, split: str) -> Examples:
        """The rows of a split as they stand in the data."""
        own = {"train": self.train, "validation": self.validation, "test": self.test}
        if any(own.values()):
            return self._read_own(split, own.get(split))
        if self.data is not None:
            name = self.dataset.name if isinstance(self.dataset, Hub) else None
            return self.folder.read(Path(self.data), split, name, separator=self.separator, columns=self.columns)
        if isinstance(self.dataset, (Hub, Embedded)):
            return self.dataset.read(split)
        if self.dataset is None:
            raise UsageError("no data is named", hint=_NO_DATA)
        try:
            rows = [dict(row) for row in self.dataset(split)]
        except UserError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            what = f"the recipe's dataset fails for split {split!r}: {type(error).__name__}: {error}"
            raise DataError(what, where=f"{frame.filename}:{frame.lineno}") from error
        names = dict.fromkeys(name for row in rows for name in row)
        return Examples({name: [row.get(name) for row in rows] for name in names}, f"{split} of the recipe", range(len(rows)))

    def _read_own(self, split: str, file: str | None) -> Examples:
        fraction = parse_fraction(self.validation) if self.validation else None
        if file is None:
            raise UsageError(f"no file is named for split {split!r}", hint=f"give --{split} FILE")
        if fraction is None or split == "test":
            return read_file(file, separator=self.separator, columns=self.columns)
        if self.train is None:
            raise UsageError(f"--validation {self.validation} is a share of the training rows, and --train is missing")
        rows = read_file(self.train, separator=self.separator, columns=self.columns)
        text, label = self.columns_to_split_by(rows)
        kept, held_out = split_examples(rows, fraction, seed=self.split_seed, label=label, text=text)
        return kept if split == "train" else held_out

    # --- what a family brings ---

    @abstractmethod
    def columns_to_split_by(self, examples: Examples) -> tuple[tuple[str, ...], str | None]:
        """The columns whose equal values must stay on one side of a held-out split, and the one to stratify by."""

    @abstractmethod
    def load(self, split: str, *, to_predict: bool = False) -> Examples:
        """The examples of a split under standard column names; to_predict: every row, whatever it lacks for training."""

    @abstractmethod
    def with_columns_found(self) -> Self:
        """This recipe with the columns named that it found in the training data, so that other data is read alike."""

    @abstractmethod
    def with_labels(self, examples: Examples, config: BertConfig | None = None) -> Self:
        """This recipe with its labels settled: given, or derived from training data; in the model's order where it has them."""

    @abstractmethod
    def with_model_labels(self, config: BertConfig, where: str) -> Self:
        """This recipe with the labels of a trained model, matched by name. Raises ModelError where they are others."""

    @abstractmethod
    def check_head(self, config: BertConfig, where: str) -> None:
        """Raise ModelError where a trained model's head is not one for this task."""

    @abstractmethod
    def model_config(self, config: BertConfig) -> BertConfig:
        """The architecture with this task's labels and problem_type."""

    @abstractmethod
    def build_model(self, config: BertConfig) -> nn.Module:
        """A module from Batch to Outputs, with Hugging Face's parameter names."""

    @abstractmethod
    def encode(
        self, examples: Examples, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True
    ) -> tuple[Features, int]:
        """The features of examples, and how many of these lost something to max_length."""

    @abstractmethod
    def decode(self, outputs: Mapping[str, Sequence[NDArray]], features: Features, examples: Examples) -> list[dict[str, Any]]:
        """One prediction an example, from one array of logits a feature; token numbers in the features may be others."""

    @abstractmethod
    def score(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, float | None]:
        """Every metric of the recipe by its name."""


def _absolute(path: str | None) -> str | None:
    """A path that means the same from another folder, as run.json needs; a share such as 10% stays what it is."""
    return path if path is None or path == "-" or parse_fraction(path) else str(Path(path).resolve())
