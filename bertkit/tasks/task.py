"""What every task family shares: where its examples come from, how it is scored, and what the commands ask of it."""

from __future__ import annotations

import json
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray  # not for type checkers alone: options_of evaluates the annotations

from bertkit import progress
from bertkit.config import TrainConfig, convert, option, options_of
from bertkit.errors import DataError, UsageError, UserError, did_you_mean
from bertkit.metrics.classification import Metric, greater_is_better
from bertkit.model.config import BertConfig
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.readers.formats import TEXTS, endings_of, read_file
from bertkit.readers.splitting import parse_held_out, split_examples
from bertkit.tasks.class_report import Table
from bertkit.tasks.output import FORMATS, as_jsonl
from bertkit.tasks.sources import Embedded, Folder, Hub

if TYPE_CHECKING:
    from rich.text import Text
    from torch import nn

    from bertkit.features import Features
    from bertkit.text.tokenizer import Tokenizer

NOTHING_CUT = 10**6  # a max_length that no text reaches
_NO_DATA = "give --train FILE [--validation FILE|10%], or --data FOLDER"


class Encoding(NamedTuple):
    """features: in the examples' order. remarks: what a user should know of how they came about, such as what was cut."""

    features: Features
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A recipe; each family is a subclass. Fields made by `option` are options of the command line too.

    dataset: where examples come from unless --data or --train says otherwise: `hub(...)`, `embedded(...)`, or a function from a
    split's name to rows (dicts). folder: the layout of --data. metrics: the first one on the first of eval_splits decides which
    step is best. reference: published scores by model, as {"split/metric": value in percent}; reference_source says whose.
    """

    family: ClassVar[str]
    hf_class: ClassVar[str]  # the class of transformers with this family's usual head
    file_endings: ClassVar[tuple[str, ...]] = endings_of(TEXTS)  # of data files, by which a folder's splits are found
    inputs: ClassVar[tuple[str, ...]] = ()  # the options that say where in a file `bertkit predict` finds its input
    cut_by: ClassVar[str] = "--max-length"  # the option by which a text loses tokens
    not_for_input: ClassVar[tuple[str, ...]] = ()  # options of how training data is read that mean nothing for other input
    prediction_endings: ClassVar[tuple[str, ...]] = tuple(FORMATS)

    dataset: Hub | Embedded | Callable[[str], Iterable[Mapping[str, Any]]] | None = None
    folder: Folder = Folder()
    data: str | None = option(None, "folder with train, dev/validation and test files, instead of the hub's data")
    train: str | None = option(None, "file to train on: CSV, TSV, JSONL, CoNLL, SQuAD JSON or text; plain, .gz or .xz")
    validation: str | None = option(
        None, "file to evaluate on, or a share of the training rows such as 10%, or a fold of them such as 1/5"
    )
    test: str | None = option(None, "file of the test split")
    columns: tuple[str, ...] | None = option(None, "names of the columns of files without a header")
    separator: str | None = option(None, "what separates the columns of files; default: by their ending")
    split_seed: int = option(0, "decides which rows --validation 10% holds out, and which --max-train-samples takes", minimum=0)
    max_train_samples: int | None = option(None, "train on this many rows, drawn at random", unit="rows", minimum=1)
    metrics: tuple[Metric, ...] = ()
    train_split: str = "train"
    eval_splits: tuple[str, ...] = ("validation",)
    training: TrainConfig = TrainConfig()
    eval_those_there: bool = False  # whether a folder may lack some of eval_splits
    held_out: str | None = None  # what of the training rows is the validation split of data that has none, as in "10%"
    reference: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reference_source: str = ""

    def __post_init__(self) -> None:
        for name, declared in options_of(self).items():  # a recipe's file is as fallible as a command line
            object.__setattr__(self, name, convert(declared, getattr(self, name)))
        for name, kind in (("folder", Folder), ("training", TrainConfig)):  # what a recipe's file most likely gets wrong
            if not isinstance(value := getattr(self, name), kind):
                raise UsageError(f"{name} is {value!r}; expected {kind.__name__}(...)")

        names = [getattr(metric, "__name__", None) for metric in self.metrics]
        if unfit := next((metric for metric in self.metrics if not callable(metric) or not hasattr(metric, "__name__")), None):
            raise UsageError(f"metrics has {unfit!r}; expected functions, each with a name")
        if len(set(names)) < len(names):
            raise UsageError(f"metrics names one twice: {', '.join(map(str, names))}")

    # --- where the rows come from ---

    def settled(self) -> Self:
        """This recipe with the defaults filled in that depend on other fields: splits of the user's own files, absolute paths.

        Raises UsageError where no data is named, or two kinds of it.
        """
        if not (self.train or self.validation or self.test):
            if self.dataset is None and self.data is None:
                raise UsageError("no data is named", hint=_NO_DATA)
            return replace(self, data=_absolute(self.data), eval_splits=self._splits_there())
        if self.data is not None:
            raise UsageError("--data names a folder and --train or --validation a file; expected one of the two")
        if self.train == "-":
            raise UsageError("--train is -; the training data is read more than once", hint="save it to a file first")
        validation = self.validation or ("10%" if self.train else None)
        if validation and re.fullmatch(r"[\d.]+", validation) and not Path(validation).exists():
            what = f"--validation is {validation}; expected a file, a share such as 10%, or a fold such as 1/5"
            raise UsageError(what, hint="a share is a percentage" if self.train else None)
        named = [split for split, file in (("validation", validation), ("test", self.test)) if file]
        return replace(
            self,
            train=_absolute(self.train),
            validation=_absolute(validation),
            test=_absolute(self.test),
            eval_splits=tuple(named[:1] if self.train else named),
            reference={},  # published scores are of the recipe's own data
        )

    def settled_to_train(self) -> Self:
        """`settled`, of a recipe that is to be trained: raises UsageError for an option that it has no use for."""
        return self.settled()

    def _splits_there(self) -> tuple[str, ...]:
        if self.data is None or not self.eval_those_there:
            return self.eval_splits
        there = tuple(split for split in self.eval_splits if self.folder.has(Path(self.data), split, self.file_endings))
        return there or self.eval_splits

    @property
    def greater_is_better(self) -> bool:
        """Whether the first metric, which decides the best step, is the better the greater it is."""
        return greater_is_better(self.metrics[0])

    @classmethod
    def asked_for(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Of what run.json says of a recipe, the options that ask for the same run again; what its data settled is left out."""
        derived = {"labels"} if saved.get("labels_derived") else set()
        return {name: saved[name] for name in options_of(cls) if name in saved and name not in derived}

    def with_data_typed(self, typed: Collection[str], written: Task | None = None) -> Self:
        """This recipe without what it said of other data, where a user typed data: a folder and files exclude each other.

        written: the recipe as its file has it, whose own columns and separator hold for any file of its kind.
        """
        if not {"data", "train", "validation", "test"} & set(typed):
            return self
        forgotten = dict.fromkeys({"data", "train", "validation", "test"} - set(typed), None)
        own = {name: getattr(written, name, None) for name in {"columns", "separator"} - set(typed)}
        return replace(self, **forgotten, **own)  # type: ignore[arg-type]

    def read(self, split: str) -> Examples:
        """The rows of a split as they stand in the data."""
        examples = self._read_all(split)
        for remark in examples.remarks:
            progress.note(remark)
        if split != self.train_split or self.max_train_samples is None or self.max_train_samples >= len(examples):
            return examples
        order = np.random.default_rng(self.split_seed).permutation(len(examples))
        return examples.select(sorted(order[: self.max_train_samples].tolist()))

    def read_file(self, path: str | Path, *, columns: tuple[str, ...] | None = None) -> Examples:
        """The rows of a file of one of this family's kinds; columns: their names, where the file has no header."""
        return read_file(path, separator=self.separator, columns=columns or self.columns)

    def _read_all(self, split: str) -> Examples:
        own = {"train": self.train, "validation": self.validation, "test": self.test}
        if any(own.values()):
            return self._read_own(split, own.get(split))
        if self.held_out is not None and split in (self.train_split, "validation"):
            return self._held_out(self._read_source(self.train_split), self.held_out, split)
        return self._read_source(split)

    def _read_source(self, split: str) -> Examples:
        if self.data is not None:
            name = self.dataset.name if isinstance(self.dataset, Hub) else None
            return self.folder.read(Path(self.data), split, name, self.read_file, self.file_endings, self.columns)
        if isinstance(self.dataset, Embedded):
            return self.dataset.read(split, self.read_file, self.file_endings)
        if isinstance(self.dataset, Hub):
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
        held_out = parse_held_out(self.validation) if self.validation else None
        if file is None:
            own = ("train", "validation", "test")
            hint = f"--{split} FILE names one; predict takes any file" if split in own else did_you_mean(split, own)
            raise UsageError(f"no file is named for split {split!r}", hint=hint)
        if held_out is None or split == "test":
            return self.read_file(file)
        if self.train is None:
            raise UsageError(f"--validation {self.validation} is a share of the training rows, and --train is missing")
        return self._held_out(self.read_file(self.train), self.validation or "", split)

    def _held_out(self, rows: Examples, share: str, split: str) -> Examples:
        """The training rows without a share or fold of them, or that part, as the split asks."""
        held_out = parse_held_out(share)
        assert held_out is not None, share
        text, labels = self.split_by(rows)
        kept, taken = split_examples(rows, held_out, seed=self.split_seed, labels=labels, text=text)
        return kept if split == self.train_split else taken

    # --- what a family brings ---

    def architecture(self, config: BertConfig) -> str:
        """The class of transformers that opens this task's model with equal logits; "BertModel" for a head of our own."""
        return self.hf_class

    def has_head(self, config: BertConfig) -> bool:
        """Whether a model has this task's kind of head, trained."""
        own = self.architecture(config)
        return own in (config.extra.get("architectures") or [own])

    def as_trained(self, config: BertConfig) -> Self:
        """This recipe with what a model's own configuration says of its head, where the user says nothing."""
        return self

    @property
    def needed_head(self) -> str:
        """What `has_head` asks for, in words."""
        return self.hf_class

    def describe_head(self, config: BertConfig) -> str:
        """What kind of model it is, in words."""
        return ", ".join(config.extra.get("architectures") or ["model without a head"])

    @abstractmethod
    def split_by(self, examples: Examples) -> tuple[tuple[str, ...], list[tuple[Hashable, ...]] | None]:
        """The columns whose equal values must stay on one side of a held-out split, and each row's labels, to have on both."""

    @abstractmethod
    def load(self, split: str, *, to_predict: bool = False) -> Examples:
        """The examples of a split under standard column names; to_predict: every row, whatever it lacks for training."""

    def with_columns_found(self) -> Self:
        """This recipe with the columns named that it found in the training data, so that other data is read alike."""
        return self

    def with_labels(self, examples: Examples, config: BertConfig | None = None) -> Self:
        """This recipe with its labels settled: given, or derived from training data; in the model's order where it has them."""
        return self

    def with_model_labels(self, config: BertConfig, where: str) -> Self:
        """This recipe with the labels of a trained model, matched by name. Raises ModelError where they are others."""
        return self

    def with_scores(self, scores: Mapping[str, float | None]) -> Self:
        """This recipe with what the best evaluation ("split/metric") found out that predictions need, such as a threshold."""
        return self

    def check_head(self, config: BertConfig, where: str) -> None:  # noqa: B027, most families have nothing to check
        """Raise ModelError where a trained model's head is not one for this task."""

    def model_config(self, config: BertConfig) -> BertConfig:
        """The architecture with this task's labels and problem_type."""
        return config.without_head()

    @abstractmethod
    def build_model(self, config: BertConfig) -> nn.Module:
        """A module from Batch to Outputs, with Hugging Face's parameter names."""

    @abstractmethod
    def encode(self, examples: Examples, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoding:
        """The features of examples, in the examples' order."""

    @abstractmethod
    def decode(self, outputs: Mapping[str, Sequence[NDArray]], features: Features, examples: Examples) -> list[dict[str, Any]]:
        """One prediction an example, from one array of logits a feature; token numbers in the features may be others."""

    @abstractmethod
    def outcomes(self, predictions: Sequence[Mapping[str, Any]]) -> set[Any]:
        """The different things that are predicted; where it is one, the model says the same of everything."""

    @abstractmethod
    def score(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, float | None]:
        """Every metric of the recipe by its name; the first decides which step is best."""

    @abstractmethod
    def scorer(
        self, predictions: Sequence[Mapping[str, Any]], examples: Examples
    ) -> Callable[[NDArray[np.int64]], dict[str, float | None]]:
        """The scores of any rows of these, maybe drawn more than once: what a bootstrap asks for a thousand times."""

    # --- what a user sees ---

    def report(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[Table]:
        """What the scores hide, as tables."""
        return []

    def doubts(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[str]:
        """What speaks against these scores, a line each."""
        return []

    @abstractmethod
    def wrongness(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> NDArray[np.float64]:
        """(E,) how wrong each prediction is; 0 where it is right."""

    @abstractmethod
    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        """All texts of each row, by which rows are told to be equal."""

    @abstractmethod
    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        """The labels of each row as they stand in the data; none where it has none."""

    @abstractmethod
    def gold(self, examples: Examples) -> list[str]:
        """What each prediction should have been, for a person."""

    def uncut(self) -> Self:
        """This recipe without limits of its own beside max_length: with NOTHING_CUT as that, `encode` keeps every token."""
        return self

    @abstractmethod
    def describe_labels(self, features: Features, at: int) -> list[dict[int, str]]:
        """For each sequence of a feature what its labels say, by the position that they stand at."""

    @abstractmethod
    def rows(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[dict[str, Any]]:
        """What `bertkit predict` writes for each example: the input as it came, and the prediction."""

    def show(self, prediction: Mapping[str, Any], examples: Examples, at: int) -> Text:
        """A prediction for a person at a terminal."""
        return plain(json.dumps(self.rows([prediction], examples.select([at]))[0], ensure_ascii=False))

    def files(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, str]:
        """What `bertkit eval --output` writes: contents by file name."""
        return {"predictions.jsonl": as_jsonl(self.rows(predictions, examples))}

    def formatted(self, predictions: Sequence[Mapping[str, Any]], examples: Examples, ending: str) -> str:
        """Predictions as one of `prediction_endings`."""
        return FORMATS[ending](self.rows(predictions, examples))


def _absolute(path: str | None) -> str | None:
    """A path that means the same from another folder, as run.json needs; a share such as 10% stays what it is."""
    return path if path is None or path == "-" or parse_held_out(path) else str(Path(path).resolve())
