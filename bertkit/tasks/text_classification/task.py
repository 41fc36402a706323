"""Text classification: a class, several labels, or a number, for one sentence or two (Devlin et al., 2019, section 4.1)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from bertkit.errors import DataError, ModelError, UsageError, listed, plural
from bertkit.features import Features, Ragged
from bertkit.metrics.bootstrap import Scorer
from bertkit.metrics.classification import f1, measured
from bertkit.metrics.confident_learning import Judged
from bertkit.model.config import BertConfig
from bertkit.progress import plain
from bertkit.readers import Examples, Remarks
from bertkit.report import Finding, Piece, Table
from bertkit.tasks.baselines import BAG_OF_WORDS, LINEAR_PROBE, Frozen, bag_of_words, probe
from bertkit.tasks.block import KeptHead
from bertkit.tasks.class_loss import ClassLossTask, class_weights
from bertkit.tasks.counts import Count
from bertkit.tasks.labels import (
    FRESH_HEAD,
    derive_labels,
    in_model_order,
    labels_of_model,
    refuse_many_labels,
    refuse_one_number,
    refuse_repeated,
    renamed,
    spelling_warnings,
)
from bertkit.tasks.output import OutputColumns, OutputLayout
from bertkit.tasks.pooling import PoolingTask
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.task import Encoding, Logits
from bertkit.tasks.text_classification.label_sets import derive_set_labels
from bertkit.tasks.text_classification.recipe import INPUTS, TextClassification
from bertkit.tasks.text_classification.targets import COLUMN, ENOUGH, HALF, AnyOf, Number, OneOf, Target

if TYPE_CHECKING:
    from torch import nn

    from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TextClassificationTask(PoolingTask, ClassLossTask):
    """labels: see Task; empty for regression. numbers: the labels in the order of the numbers that the data may use; None: it
    uses names. positive: the one of two labels that f1 counts. thresholds: by label, for several labels per text; None until
    tuned.
    """

    hf_class: ClassVar[str] = "BertForSequenceClassification"
    recipe_class: ClassVar[type[TextClassification]] = TextClassification
    input_roles: ClassVar[tuple[str, ...]] = INPUTS
    untruncated_by: ClassVar[str | None] = "--truncate windows"
    refuses_only_blank: ClassVar[bool] = True
    labels_are_classes: ClassVar[bool] = True

    recipe: TextClassification
    numbers: tuple[str, ...] | None = None
    positive: str | None = None
    thresholds: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if f1 in self.recipe.metrics and not self.recipe.multi_label and self.labels and len(self.labels) != 2:
            what = f"the metric f1 scores the second of two classes; there are {len(self.labels)} labels"
            raise UsageError(what, hint="macro_f1 is the mean over classes, as in --metric macro_f1")

    @property
    def reader(self) -> TextClassification:
        if self.recipe.multi_label and not {"0", "1"}.isdisjoint(self.labels):  # few lists of these may look like marks
            return replace(self.recipe, labels=self.recipe.labels or self.labels)
        return self.recipe

    # --- fitting and restoring ---

    @classmethod
    def fit_examples(cls, recipe: TextClassification, examples: Examples, kept: KeptHead | None = None) -> Self:
        if recipe.regression:
            refuse_one_number(examples, COLUMN)
            return cls._fit_number(recipe, kept and kept.config)
        is_whole = recipe.held_out_share is None and recipe.set_aside is None  # else all were judged before some were held out
        are_classes = recipe.classes or not is_whole
        derive = derive_set_labels if recipe.multi_label else partial(derive_labels, are_classes=are_classes)
        # an order that the data declares takes precedence over a derived one
        stated = recipe.labels or tuple(examples.label_names.get(COLUMN, ()))
        data_labels = stated or derive(examples, COLUMN)
        if not (stated or recipe.multi_label or are_classes):
            refuse_many_labels(examples, COLUMN)
        refuse_repeated(data_labels)
        if len(data_labels) < 2 and not recipe.multi_label:
            raise DataError(f"the only label is {data_labels[0]!r}; expected two or more labels", where=examples.source)
        labels, warning = (data_labels, None) if kept is None else in_model_order(data_labels, kept.config, some=not stated)
        changed = _label_count_warning(recipe, kept)
        task = cls(
            recipe=recipe,
            labels=labels,
            numbers=recipe.labels,
            positive=data_labels[1] if len(data_labels) == len(labels) == 2 else None,
            remarks=Remarks(warnings=spelling_warnings(data_labels)) + Remarks.of(warning=warning) + changed,
        )
        if recipe.class_weights is None:
            return task
        target = task._target
        return replace(task, weights=class_weights(recipe.class_weights, target.as_array(target.read(examples)), target.order))

    @classmethod
    def _restore(
        cls, recipe: TextClassification, config: BertConfig, block: Mapping[str, Any], where: str
    ) -> TextClassificationTask:
        if recipe.regression:
            return cls._fit_number(recipe, config, where)
        has_format = "format" in block  # else flat keys of bertkit 0.1, or a plain model
        labels, warning = (known := labels_of_model(config)), None
        if recipe.labels is not None:
            labels, warning = in_model_order(recipe.labels, config, where)
        numbers = recipe.labels or (tuple(block["numbers"]) if "numbers" in block else None if has_format else labels)
        positive = block.get("positive_label") if recipe.labels is None else None
        thresholds = dict.fromkeys(labels, HALF) | renamed(block.get("thresholds") or {}, known, labels)
        weights = renamed(block["class_weights"], known, labels) if "class_weights" in block else None
        if weights is None and not has_format and recipe.class_weights not in (None, ("balanced",)):  # a run of bertkit 0.1
            weights = class_weights(recipe.class_weights or (), np.zeros(0, dtype=np.int64), numbers or labels)
        return cls(
            recipe=recipe,
            labels=labels,
            numbers=numbers,
            positive=positive or ((numbers or labels)[1] if len(labels) == 2 else None),
            thresholds=thresholds if recipe.multi_label else None,
            weights=weights,
            remarks=Remarks.of(warning=warning),
        )

    @classmethod
    def _fit_number(cls, recipe: TextClassification, config: BertConfig | None, where: str = "the model") -> Self:
        """A task of regression. Raises ModelError for a head with more than one output."""
        if config is not None and config.num_labels != 1:
            raise ModelError(
                f"the model has {config.num_labels} labels; regression has one output", where=where, hint=FRESH_HEAD
            )
        return cls(recipe=recipe)

    # --- the model ---

    def configure(self, config: BertConfig) -> BertConfig:
        return self._target.configure(super().configure(config))

    def fitted(self) -> dict[str, Any]:
        return {
            "numbers": self.numbers and list(self.numbers),
            "positive_label": self.positive,
            "class_weights": self.weights and dict(self.weights),
            "thresholds": self.thresholds and dict(self.thresholds),
        }

    def build(self, config: BertConfig) -> nn.Module:
        from bertkit.model.heads import BertForSequenceClassification

        return BertForSequenceClassification(
            config,
            pooling=self.recipe.pooling,
            layers=self.recipe.layers,
            class_weights=self.output_weights,
            label_smoothing=self.recipe.label_smoothing,
        )

    @cached_property
    def _target(self) -> Target:
        if self.recipe.regression:
            return Number()
        if self.recipe.multi_label:
            return AnyOf(self.labels, self.thresholds)
        return OneOf(self.labels, self.numbers, self.positive)

    # --- rows, features, predictions ---

    @property
    def input_columns(self) -> dict[str, str | tuple[str, ...]]:
        columns = super().input_columns
        if self.recipe.text and not self.recipe.text_pair:  # trained on single texts
            del columns["text_pair"]
        return columns

    @property
    def needs_pairs(self) -> bool:
        return self.recipe.text_pair is not None

    @property
    def function_to_apply(self) -> str:
        return self._target.function_to_apply

    def name_labels(self, examples: Examples) -> Examples:
        return replace(examples, columns=examples.columns | {COLUMN: self._target.read(examples)})

    def refuses_labels(self, new: Collection[str], known: Collection[str]) -> bool:
        return not set(new) <= set(self.recipe.labels or ())

    def check(self, examples: Examples) -> Iterator[Finding]:
        """Rows with the label -1, which by convention means unlabelled, though the user may mean a class."""
        if self.recipe.regression or "-1" in (self.recipe.labels or ()):
            return
        values = examples.columns[COLUMN]
        rows = [row for row, value in enumerate(values) if isinstance(value, (int, str)) and str(value) == "-1"]
        if 0 < len(rows) < len(values):
            what = f"{plural(len(rows), 'row')} with the label -1, which means unlabelled"
            yield Finding("warning", what, examples.places(rows), "if it is a class, name all classes: --labels=-1,0,1")

    def encode(
        self, examples: Examples, tokenizer: Tokenizer, *, max_length: float | None = None, labelled: bool = True
    ) -> Encoding:
        """One feature per example, or per window of one; its head reads [CLS]."""
        longest = self.max_tokens(max_length)
        pairs = examples.columns.get("text_pair")
        encoded = tokenizer.encode(examples.columns["text"], pairs, max_length=longest, truncate=self.recipe.truncate)
        features = Features(
            input_ids=encoded.input_ids,
            token_type_ids=encoded.token_type_ids,
            examples=encoded.examples,
            rows=Ragged.column(np.zeros(len(encoded.examples))),
        )
        if labelled:
            targets = self._target.encode(self.truth(examples)).take(encoded.examples)
            features = replace(features, labels={"labels": targets}, class_weights=self.loss_weights)
        truncated = int(encoded.truncated.sum())
        split = Count(len(encoded.examples), "longer ones split into windows: {} features", beyond=len(examples))
        return Encoding(features, (Count(truncated, f"{{}} longer than {longest} truncated"), split))

    def decode(
        self, outputs: Logits, features: Features, examples: Examples, others: Sequence[Logits] = ()
    ) -> list[Prediction]:
        """One prediction per example, from the mean logits of its windows: a class, a list of labels, or a number."""
        of_models = []
        for each in (outputs, *others):
            logits = np.stack([rows[0] for rows in each["logits"]]).astype(np.float64)  # (F, C)
            of_models.append(self._target.decode(features.mean_by_example(logits, len(examples))))
        return [self._target.average(own) for own in zip(*of_models, strict=True)] if others else of_models[0]

    def averaged_with(self, others: Sequence[Self]) -> Self:
        averaged = super().averaged_with(others)
        if self.thresholds is None:
            return averaged
        each = [task.thresholds or {} for task in (self, *others)]
        mean = {label: float(np.mean([thresholds.get(label, HALF) for thresholds in each])) for label in self.labels}
        return replace(averaged, thresholds=mean)

    def judge(self, outputs: Logits, features: Features, examples: Examples) -> dict[str, Judged]:
        probabilities = np.stack([each.probabilities for each in self.decode(outputs, features, examples)])
        return self._target.judge(self.truth(examples), probabilities)

    def truth(self, examples: Examples) -> Sequence[Any]:
        return examples.columns[COLUMN]

    def scorer(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> Scorer:
        predicted, references = self._target.arrays(predictions, truth)
        return lambda rows: measured(self.recipe.metrics, predicted[rows], references[rows])

    def baselines(self, train: Examples, examples: Examples, model: Frozen | None) -> dict[str, list[Prediction]]:
        """The most frequent label (for numbers, the mean), word counts, and for single texts a linear probe."""
        truth = self.truth(train)
        targets = self._target.as_array(truth)
        columns, new = ([*each.given(INPUTS).values()] for each in (train, examples))
        fitted = {BAG_OF_WORDS: bag_of_words(columns, targets, new)}
        if model is not None and len(columns) == 1:
            fitted[LINEAR_PROBE] = probe(model, train, targets, examples)
        name, constant = self._target.constant(truth)
        return {name: [constant] * len(examples)} | {
            name: [Prediction(value) for value in self._target.from_array(values)]
            for name, values in fitted.items()
            if values is not None
        }

    def tuned(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> Self:
        thresholds = self._target.best_thresholds(predictions, truth)
        return self if thresholds is None else replace(self, thresholds=thresholds)

    def remarks_on_tuning(self, truth: Sequence[Any]) -> tuple[str, ...]:
        if not (few := self._target.too_few(truth)):
            return ()
        which = f"labels that fewer than {ENOUGH} rows have, or that fewer than {ENOUGH} rows lack"
        return (f"the threshold stays {HALF} for {which}: {listed(few, 12)}",)

    def thresholds_tuned(self) -> dict[str, float]:
        return {f"threshold_{label}": value for label, value in (self.thresholds or {}).items()}

    def decide(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        return self._target.decide(predictions)

    def error(self, prediction: Prediction, truth: Any) -> float:
        return self._target.error(prediction, truth)

    # --- as people and files see it ---

    def report(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> list[Table | Finding]:
        return self._target.tables(predictions, truth)

    def confidences(
        self, predictions: Sequence[Prediction], truth: Sequence[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
        return self._target.confidences(predictions, truth) or super().confidences(predictions, truth)

    def classes_of(self, examples: Examples) -> Sequence[Collection[str]]:
        return [()] * len(examples) if self.recipe.regression else super().classes_of(examples)

    def label_order_warning(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> str | None:
        return self._target.label_order_warning(predictions, truth)

    def row(self, prediction: Prediction, examples: Examples, row: int) -> dict[str, Any]:
        texts = {name: values[row] for name, values in examples.given(INPUTS).items()}
        return texts | self._target.row(prediction)

    def columns(self, examples: Examples) -> OutputColumns:
        return OutputColumns(tuple(examples.given(INPUTS)), self._target.columns)

    @property
    def details(self) -> Mapping[str, str]:
        return {"top_k": "top", "probabilities": "probabilities", "uncertain": "certainty"} if self.labels else {}

    def detail(self, prediction: Prediction, layout: OutputLayout) -> dict[str, Any]:
        found: dict[str, Any] = {}
        probabilities = self._target.probabilities(prediction)
        if layout.top_k:
            likeliest = sorted(probabilities, key=lambda label: -probabilities[label])[: layout.top_k]
            found["top"] = [{"label": label, "probability": probabilities[label]} for label in likeliest]
        if layout.uncertain:
            found["certainty"] = self._target.certainty(prediction)
        return found | ({"probabilities": probabilities} if layout.probabilities else {})

    @property
    def kind(self) -> str:
        return f"{self.family} with --regression" if self.recipe.regression else self.family

    def evaluated_row(self, prediction: Prediction, truth: Any, examples: Examples, row: int) -> dict[str, Any]:
        probabilities = self._target.probabilities(prediction)
        detail = {"probabilities": probabilities} if probabilities else {}
        return self.row(prediction, examples, row) | detail | {"gold": self._target.as_field(truth)}

    def format_truth(self, truth: Any, examples: Examples, row: int) -> str:
        return self._target.format_truth(truth)

    def laid_out(self, prediction: Prediction, truth: Any, examples: Examples, row: int) -> dict[str, list[Piece]]:
        texts = {name: [Piece(values[row])] for name, values in examples.given(INPUTS).items()}
        expected, predicted = self.format_truth(truth, examples, row), self._target.format(prediction)
        return texts | {"expected": [Piece(expected)], "predicted": [Piece(predicted)]}

    def format_prediction(self, prediction: Prediction, examples: Examples, row: int) -> Text:
        texts = [values[row] for values in examples.given(INPUTS).values()]
        return Text(plain(self._target.format(prediction)).plain, style="bold green") + "  " + plain(" | ".join(texts))

    def describe_targets(self, features: Features, feature: int) -> list[dict[int, str]]:
        return [{0: self._target.describe(features.labels["labels"][feature])}]


def _label_count_warning(recipe: TextClassification, kept: KeptHead | None) -> Remarks:
    """A warning if a head that gave one label goes on with several, or the other way round."""
    learns = {"single_label_classification": "one label", "multi_label_classification": "any number of labels"}
    before = learns.get(str(kept.config.problem_type)) if kept is not None else None
    now = learns["multi_label_classification" if recipe.multi_label else "single_label_classification"]
    changed = before is not None and before != now
    return Remarks.of(warning=f"the model learned to give each text {before}; it now learns to give {now}" if changed else None)
