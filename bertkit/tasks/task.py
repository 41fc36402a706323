"""A task: a recipe fitted to training rows, or restored from a trained model. It encodes, builds the head, decodes and scores.

It does not know about files, the command line or the terminal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.config import TrainConfig, filled, options_of
from bertkit.errors import ModelError, UsageError, flag_of, listed, quoted
from bertkit.files import jsonl_text
from bertkit.metrics.bootstrap import Scorer
from bertkit.metrics.confident_learning import Judged
from bertkit.model.config import BLOCK_KEY, BertConfig
from bertkit.readers import Examples, Remarks, explained_by, is_blank
from bertkit.report import Finding, Piece, Table
from bertkit.tasks.baselines import Frozen
from bertkit.tasks.block import PLAIN_HEAD, KeptHead, block_is_stale, own_parts, read_block
from bertkit.tasks.counts import Count
from bertkit.tasks.presentation import Prediction, Presentation
from bertkit.tasks.recipe import Recipe, settle_columns

if TYPE_CHECKING:
    from torch import nn

    from bertkit.features import Features
    from bertkit.text.tokenizer import Tokenizer

FINETUNE = "fine-tune it first: bertkit finetune RECIPE --model ..."

Logits = Mapping[str, Sequence[NDArray]]  # of one model, by name: an array for each feature


class Encoding(NamedTuple):
    """features: in the order of the examples. counts: to report to the user, such as how many examples were truncated."""

    features: Features
    counts: tuple[Count, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task(Presentation):
    """A fitted recipe; each family is a subclass.

    recipe: with every option filled in, including training settings; columns are named as in the training data. fresh_head:
    whether a new head replaces the model's. labels: in the order of the model's outputs; empty if these are not classes.
    """

    hf_class: ClassVar[str]  # the transformers class with this family's usual head
    recipe_class: ClassVar[type[Recipe]]
    families: ClassVar[dict[str, type[Task]]] = {}
    input_roles: ClassVar[tuple[str, ...]]  # of the columns that a row to predict may have
    truncated_by: ClassVar[str] = "--max-length"  # the option that truncates texts
    untruncated_by: ClassVar[str | None] = None  # the option that keeps all of a long text, if there is one
    by_word: ClassVar[bool] = False  # whether each word of an example has its own prediction
    refuses_only_blank: ClassVar[bool] = False  # whether training refuses rows only for lack of text
    labels_are_classes: ClassVar[bool] = False  # whether misspelt labels are looked for; tags are too short and too alike

    recipe: Recipe
    fresh_head: bool = False
    labels: tuple[str, ...] = ()
    remarks: Remarks = field(default=Remarks(), compare=False)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "recipe_class" in cls.__dict__:
            cls.family = cls.recipe_class.family
            cls.families[cls.family] = cls

    # --- fitting and restoring ---

    @staticmethod
    def fit(
        recipe: Recipe,
        rows: Examples,
        config: BertConfig | None = None,
        *,
        fresh_head: bool | None = False,
        where: str = "the model",
    ) -> Task:
        """Fit a resolved recipe to its training rows; if the model's head is kept, labels take its order.

        Training settings that are not set get their defaults. rows: as in the data. config: of the model to train, if any.
        fresh_head: replace the model's head; None: only if its kind or its number of labels does not fit. Raises DataError for
        rows without labels, ModelError for a head with other labels.
        """
        cls = Task.families[recipe.family]
        with explained_by(rows):
            columns = settle_columns(recipe, rows)
            named = replace(recipe, training=filled(recipe.training), **columns.named)
            examples = named.standardize(rows, labelled=True)
            block = read_block(config, where) if config is not None else None
            head = KeptHead(config, block) if config is not None and block is not None and cls.fits(block, named) else None
            if head is not None and fresh_head is None:
                fresh_head = cls.fit_examples(named, examples).configure(head.config).num_labels != head.config.num_labels
            if head is None or fresh_head:
                task = replace(cls.fit_examples(named, examples), fresh_head=True)
            else:
                try:
                    task = cls.fit_examples(named, examples, head)
                except ModelError as error:
                    error.where = where
                    raise
        return replace(task, remarks=columns.remarks + task.remarks)

    @staticmethod
    def restore(
        config: BertConfig,
        recipe: Recipe | None = None,
        overrides: Mapping[str, Any] | None = None,
        *,
        where: str = "the model",
    ) -> Task:
        """The task that a model was trained for.

        Each option comes from the first that sets it: the overrides, the recipe, the model's block (see block.py), the
        defaults. Raises ModelError for a missing head, one of another task, or one with other labels.
        """
        block = read_block(config, where)
        family = recipe.family if recipe is not None else (block or {}).get("family")
        cls = Task.families[family or "text-classification"]
        default = cls.recipe_class()
        recipe = (recipe or replace(default, training=TrainConfig())).overridden(overrides or {})
        if block is None or not cls.fits(block, recipe):
            needed = f"{cls.family} needs {cls.hf_class}" if family else "expected a model with a task head"
            what = f"the model is a {describe_head(block, config)}; {needed}"
            raise ModelError(what, where=where, hint=FINETUNE)
        known = {name: block[name] for name in _kept(recipe) if name in block}
        try:
            kept = {name: block[name] for name in _KEPT_OF_TRAINING if name in block}
            training = filled(recipe.training, kept, asdict(default.training))
            explicit = {name for name, value in asdict(recipe.training).items() if value is not None}
            if "max_length" not in explicit | kept.keys():  # not set: at most the model's maximum
                training = replace(training, max_length=min(training.max_length, config.max_position_embeddings))
            recipe = filled(replace(recipe, training=training), known)
        except UsageError as error:  # a bad value in config.json
            raise ModelError(f'config["{BLOCK_KEY}"]: {error.what}', where=where) from None
        task = cls._restore(recipe, config, block, where)
        if not block_is_stale(config):
            return task
        warning = f'{where}: config.json has changed since training; its "{BLOCK_KEY}" block is ignored'
        return replace(task, remarks=Remarks(warnings=(warning,)) + task.remarks)

    @staticmethod
    def unfitted(recipe: Recipe) -> Task:
        """A task without labels, which can only encode, without targets."""
        return Task.families[recipe.family](recipe=replace(filled(recipe), training=filled(recipe.training)))

    @classmethod
    def fits(cls, block: Mapping[str, Any], recipe: Recipe) -> bool:
        """Whether a model's head, described by its block, is of the kind that the recipe needs."""
        wanted = {name: getattr(recipe, name, None) for name in PLAIN_HEAD}
        same = all(wanted[name] in (None, block.get(name, plain)) for name, plain in PLAIN_HEAD.items())
        return same and block["family"] in (None, cls.family)

    @classmethod
    @abstractmethod
    def fit_examples(cls, recipe: Any, examples: Examples, kept: KeptHead | None = None) -> Self:
        """Fit a recipe to examples from `standardize`, and to a head if one is kept."""

    @classmethod
    @abstractmethod
    def _restore(cls, recipe: Any, config: BertConfig, block: Mapping[str, Any], where: str) -> Task:
        """Restore the labels of a trained model, matched by name with those of the recipe."""

    # --- the model ---

    def architecture(self, config: BertConfig) -> str:
        """The transformers class with the same logits; "BertModel" for heads that transformers does not have."""
        return "BertModel" if own_parts(self._options()) else self.hf_class

    def configure(self, config: BertConfig) -> BertConfig:
        """The architecture with this task's labels and config["bertkit"], which has everything needed to use the model."""
        config = config.without_head()
        block = {"format": 1, "family": self.family, **self._options(), **self.fitted()}
        return replace(config, extra=config.extra | {BLOCK_KEY: {k: v for k, v in block.items() if v is not None}})

    def _options(self) -> dict[str, Any]:
        """The options that reading, encoding and decoding need, by name."""
        values = {name: getattr(self.recipe, name) for name in _kept(self.recipe)}
        values |= {name: getattr(self.recipe.training, name) for name in _KEPT_OF_TRAINING}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def fitted(self) -> dict[str, Any]:
        """The fitted state besides the labels in id2label, as JSON values."""
        return {}

    @abstractmethod
    def build(self, config: BertConfig) -> nn.Module:
        """A module from Batch to Outputs, with Hugging Face's parameter names; config: from `configure`."""

    # --- rows, features, predictions ---

    @property
    def input_columns(self) -> dict[str, str | tuple[str, ...]]:
        """The columns of a row to predict by role, as named in training; several for choices with a column each."""
        return {role: self.recipe.column_of(role) for role in self.input_roles}

    @property
    def needs_pairs(self) -> bool:
        """Whether it was trained on pairs of texts; models of other tools do not say so."""
        return False

    @property
    def function_to_apply(self) -> str:
        """The function that turns logits into predictions: softmax, sigmoid or none."""
        return "softmax"

    @property
    def reader(self) -> Recipe:
        """The recipe that reads rows, which may need to know the labels."""
        return self.recipe

    def examples(self, rows: Examples, *, labelled: bool) -> Examples:
        """Rows under standard column names; labelled: with labels, by name. Raises DataError with the row."""
        examples = self.reader.standardize(rows, labelled=labelled)
        return self.name_labels(examples) if labelled else examples

    def name_labels(self, examples: Examples) -> Examples:
        """Examples from `standardize` with this task's label names. Raises DataError with the row for an unknown label."""
        return examples

    def refuses_labels(self, new: Collection[str], known: Collection[str]) -> bool:
        """Whether training refuses new labels, which no training row has, next to the known ones; the task may be unfitted."""
        return False

    @staticmethod
    def no_row_has(labels: Sequence[str]) -> str:
        """A note on one or more labels, as in the recipe's `labels_of`, of which a split has no row."""
        if len(labels) == 1:
            return f"no row has the label {quoted(labels[0])}; the scores do not cover it"
        return f"no row has the labels {listed([*map(quoted, labels)], 12)}; the scores do not cover them"

    def check(self, examples: Examples) -> Iterator[Finding]:
        """What `bertkit check` finds only for this family in labelled examples of `standardize`; the task may be unfitted."""
        yield from ()

    @abstractmethod
    def encode(
        self, examples: Examples, tokenizer: Tokenizer, *, max_length: float | None = None, labelled: bool = True
    ) -> Encoding:
        """The features of examples, in order. max_length: by default the recipe's; math.inf: nothing is truncated."""

    def lacking(self, examples: Examples) -> tuple[Count, ...]:
        """Counts of rows to predict without text, or without a part of it, unless `encode` counts them."""
        blank = [tuple(map(is_blank, texts)) for texts in self.recipe.texts_of(examples)]
        half = sum(len(row) == 2 and any(row) for row in blank if not all(row))
        return Count(sum(map(all, blank)), "{} without text"), Count(half, "{} with one of two texts empty")

    def max_tokens(self, max_length: float | None) -> int:
        """The max_length of `encode` in tokens; math.inf becomes a number that no text exceeds."""
        return int(min(self.recipe.training.max_length if max_length is None else max_length, 10**6))

    @abstractmethod
    def decode(
        self, outputs: Logits, features: Features, examples: Examples, others: Sequence[Logits] = ()
    ) -> list[Prediction]:
        """One prediction per example, from one array of logits per feature. The features' token ids may be renumbered.

        others: outputs of further models, whose probabilities are averaged with these. Raises ModelError for a family whose
        predictions have no mean.
        """

    def averaged_with(self, others: Sequence[Self]) -> Self:
        """This task, to decode the mean probabilities of its model and others. Raises ModelError if their outputs differ."""
        self._refuse_unlike(others, [task.output_names() for task in (self, *others)])
        return self

    def scored_with(self, others: Sequence[Self]) -> Self:
        """This task, to score rows that are divided among its model and others. Raises ModelError if they cannot be."""
        self._refuse_unlike(others, [task.comparable_by() for task in (self, *others)])
        return self

    def _refuse_unlike(self, others: Sequence[Self], kinds: Sequence[tuple[Any, ...]]) -> None:
        for other, kind in zip(others, kinds[1:], strict=True):
            if kind != kinds[0]:
                what = f"the outputs of the runs differ: {kinds[0]} and {kind}"
                if self.labels != other.labels:
                    what = f"the runs have different labels: {listed(self.labels)} and {listed(other.labels)}"
                raise ModelError(what, hint="choose one of the runs, or train them with the same --labels")

    def output_names(self) -> tuple[Any, ...]:
        """What the outputs of the model stand for."""
        return self.labels

    def comparable_by(self) -> tuple[Any, ...]:
        """What models must have in common for the rows of one to be scored beside another's."""
        return self.output_names()

    def judged_words(self, examples: Examples) -> Sequence[list[str]] | None:
        """The words of each example, if `judge` has a label for each word; otherwise None."""
        return None

    def judge(self, outputs: Logits, features: Features, examples: Examples) -> dict[str, Judged]:
        """The labels with their probabilities, by what they label; only for families with classes."""
        raise NotImplementedError(self.family)

    @abstractmethod
    def truth(self, examples: Examples) -> Sequence[Any]:
        """The references that predictions are compared with: all accepted answers; tags in the task's scheme."""

    @abstractmethod
    def scorer(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> Scorer:
        """A function that scores any selection of these rows, with repeats, as a bootstrap draws them."""

    def score(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> dict[str, float | None]:
        """The scores of all rows by name; the first one decides which step is best."""
        return self.scorer(predictions, truth)(np.arange(len(truth)))

    def baselines(self, train: Examples, examples: Examples, model: Frozen | None) -> dict[str, list[Prediction]]:
        """Baselines by name: predictions for `examples`, fitted to `train` in seconds.

        model: for a linear probe.
        """
        return {}

    def tuned(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> Self:
        """This task with thresholds tuned on these rows; thresholds set by the user are kept."""
        return self

    def remarks_on_tuning(self, truth: Sequence[Any]) -> tuple[str, ...]:
        """Remarks for the user about tuning on these rows, one line each."""
        return ()

    def thresholds_tuned(self) -> dict[str, float]:
        """The tuned thresholds by name, for listing among the scores."""
        return {}

    def decide(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        """The predictions with values decided by this task's thresholds."""
        return list(predictions)

    def distinct(self, predictions: Sequence[Prediction]) -> int:
        """The number of distinct values; 1 if the model predicts the same for every row."""
        return len({repr(prediction.value) for prediction in predictions})

    def decisions(self, prediction: Prediction) -> list[Any]:
        """The single decisions of a prediction."""
        return [prediction.value]

    @abstractmethod
    def error(self, prediction: Prediction, truth: Any) -> float:
        """How wrong a prediction is; 0 if it is right."""

    def confidences(
        self, predictions: Sequence[Prediction], truth: Sequence[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
        """(N,) the probability of each decision, and (N,) whether it is right; None if decisions have no probability."""
        if any(prediction.probability is None for prediction in predictions):
            return None
        right = [self.error(*pair) == 0 for pair in zip(predictions, truth, strict=True)]
        return np.array([prediction.probability for prediction in predictions]), np.array(right)

    def classes_of(self, examples: Examples) -> Sequence[Collection[str]]:
        """The classes of each example, for scores by class."""
        return self.recipe.labels_of(examples)

    def label_order_warning(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> str | None:
        """A warning if another order of the model's labels would score far better."""
        return None

    def report(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> list[Table | Finding]:
        """Details beyond the scores."""
        return []

    # --- as people and files see it ---

    def evaluated_row(self, prediction: Prediction, truth: Any, examples: Examples, row: int) -> dict[str, Any]:
        """The row that `bertkit eval --output-dir` writes for an example."""
        return self.row(prediction, examples, row) | {"gold": truth}

    @abstractmethod
    def format_truth(self, truth: Any, examples: Examples, row: int) -> str:
        """The reference of an example, formatted for display."""

    @abstractmethod
    def laid_out(self, prediction: Prediction, truth: Any, examples: Examples, row: int) -> dict[str, list[Piece]]:
        """An example for an HTML page, by name: the model's inputs, then "expected" and "predicted"."""

    @abstractmethod
    def describe_targets(self, features: Features, feature: int) -> list[dict[int, str]]:
        """For each sequence of a feature, its targets by position, in words."""

    def files(self, predictions: Sequence[Prediction], truth: Sequence[Any], examples: Examples) -> dict[str, str]:
        """The files that `bertkit eval --output-dir` writes: contents by file name."""
        pairs = enumerate(zip(predictions, truth, strict=True))
        rows = [{"row": examples.lines[row], **self.evaluated_row(*pair, examples, row)} for row, pair in pairs]
        return {"predictions.jsonl": jsonl_text(rows)}

    def to_json(self) -> dict[str, Any]:
        """The fitted state as stored in run.json."""
        return self._options() | self.fitted() | {"labels": list(self.labels) or None}


_KEPT_OF_TRAINING = ("max_length", "precision", "micro_batch_tokens")
# id2label has the labels, metrics are only for scoring, and a column's number is valid for one CoNLL file.
_NOT_KEPT = ("labels", "metric", "column")


def _kept(recipe: Recipe) -> list[str]:
    """The family's own options that a model's block stores: those needed to use the model."""
    left_out = {*options_of(Recipe), *_NOT_KEPT}
    return [name for name, declared in options_of(recipe).items() if "eval" in declared.commands and name not in left_out]


def describe_head(block: Mapping[str, Any] | None, config: BertConfig) -> str:
    """The kind of a model, in words."""
    kind = ", ".join(config.extra.get("architectures") or ["model without a head"])
    if block is None:
        return kind
    options = [f"{flag_of(name)} {value}" for name, value in own_parts(block).items()]
    return kind + (f" trained for {block['family']} with {' '.join(options)}" if options else "")
