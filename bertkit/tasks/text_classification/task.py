"""Text classification: a class, several labels, or a number, for one sentence or two (Devlin et al., 2019, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from bertkit import progress
from bertkit.config import option
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.features import Features, Ragged
from bertkit.metrics.classification import (
    OF_NUMBERS,
    OF_SEVERAL_LABELS,
    accuracy,
    f1,
    macro_f1,
    measured,
    micro_f1,
    pearson,
    refuse_others,
    spearmanr,
)
from bertkit.model.config import THRESHOLDS_KEY, BertConfig
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.readers.formats import read_file
from bertkit.tasks.class_report import Table, describe_calibration, describe_classes, describe_confusions, doubt_order
from bertkit.tasks.labels import (
    FRESH_HEAD,
    check_labels,
    check_model_labels,
    class_weights,
    derive_labels,
    in_the_models_order,
    is_missing,
    label_ids,
    label_name,
    spelt_alike,
)
from bertkit.tasks.output import as_jsonl
from bertkit.tasks.pooling import PoolingTask
from bertkit.tasks.task import Encoding
from bertkit.tasks.text_classification.columns import TEXTS, TextColumns
from bertkit.tasks.text_classification.label_sets import derive_set_labels, find_separator
from bertkit.tasks.text_classification.targets import HALF, AnyOf, Number, OneOf, Target
from bertkit.text.truncation import TRUNCATIONS

if TYPE_CHECKING:
    from torch import nn

    from bertkit.text.tokenizer import Tokenizer

_THRESHOLD = "threshold_"  # what begins the name under which a label's tuned threshold stands among the scores


@dataclass(frozen=True, kw_only=True)
class TextClassification(PoolingTask):
    """A recipe of this family; see Task for where its data comes from."""

    family: ClassVar[str] = "text-classification"
    hf_class: ClassVar[str] = "BertForSequenceClassification"
    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair", "truncate")

    text: str | None = option(None, "column of the text (of a pair: the first one)")
    text_pair: str | None = option(None, "column of the second text of a pair")
    label: str | None = option(None, "column of the label; with --multi-label also A,B,...: columns of 0 and 1")
    labels: tuple[str, ...] | None = option(None, "names of the labels in the order of their numbers; default: from the data")
    regression: bool = option(False, "predict a number instead of a class")
    multi_label: bool = option(False, "a text has any number of labels: a list, names parted by | ; or , or columns of 0 and 1")
    label_separator: str | None = option(
        None, "what parts several labels in a cell; default: the first of | ; , that stands in any"
    )
    truncate: str = option(
        "head",
        "what stays of a longer text: its head, its tail, head+tail (a quarter and the rest), or all of it in windows, over "
        "which logits are averaged",
        choices=TRUNCATIONS,
    )
    class_weights: tuple[str, ...] | None = option(
        None, "what each class counts for in the loss, in the order of the labels; or balanced, the rarer the more"
    )
    label_smoothing: float = option(
        0.0, "share of the target that is spread over all classes in training (Szegedy et al., 2016)", minimum=0, maximum=1
    )
    no_label: str | None = None  # what stands for the label of rows that have none, which are left out
    ragged: float = 0.0  # share of the published rows that may have too few or too many fields, and are left out
    empty_texts: bool = False  # whether a text may be empty, for data that is published so
    model_labels: tuple[str, ...] | None = None  # the labels in the order of the model's outputs, once they are settled
    weights_balanced: bool = False  # whether the class weights follow from the training data
    labels_derived: bool = False  # whether the labels come from the data: then their order means nothing to other data
    thresholds: tuple[float, ...] | None = None  # of each of several labels, in the order of `labels`

    def settled(self) -> Self:
        if self.regression and self.multi_label:
            raise UsageError("--regression predicts a number and --multi-label names", hint="leave out one of the two")
        own = (pearson, spearmanr) if self.regression else (micro_f1, macro_f1, accuracy) if self.multi_label else (accuracy,)
        recipe = super(TextClassification, replace(self, metrics=self.metrics or own)).settled()
        if self.regression:
            refuse_others(recipe.metrics, OF_NUMBERS, "numbers (--regression)")
        elif self.multi_label:
            refuse_others(recipe.metrics, OF_SEVERAL_LABELS, "several labels a text (--multi-label)")
        return recipe

    def settled_to_train(self) -> Self:
        if self.regression and self.labels:
            raise UsageError("--regression predicts a number, which --labels does not name", hint="leave out one of the two")
        if self.label_separator and not self.multi_label:
            raise UsageError("--label-separator parts several labels", hint="add --multi-label")
        other = "--regression" if self.regression else "--multi-label" if self.multi_label else None
        if other and (self.class_weights or self.label_smoothing):
            option = "--class-weights" if self.class_weights else "--label-smoothing"
            what = f"{option} is for one class a text, which {other} does not predict"
            raise UsageError(what, hint="leave out one of the two")
        return super().settled_to_train()

    # --- data ---

    def read_file(self, path: str | Path, *, columns: tuple[str, ...] | None = None) -> Examples:
        published = self.data is not None and Path(self.data) in Path(path).parents  # a file of one's own is to be mended
        ragged = self.ragged if published else 0.0
        return read_file(path, separator=self.separator, columns=columns or self.columns, ragged=ragged)

    def split_by(self, examples: Examples) -> tuple[tuple[str, ...], list[tuple[Any, ...]] | None]:
        columns = self._roles.found_in(examples)
        self._roles.require_texts(examples, columns)
        self._roles.require_label(examples, columns)
        texts = tuple(columns[role] for role in TEXTS if role in columns)
        if self.regression:
            return texts, None
        if self.multi_label:
            sets = self._roles.standard(examples, columns, empty_texts=True).columns["label"]
            return texts, [its or () for its in sets]
        check_labels(examples, columns["label"])
        return texts, [(label,) for label in examples.columns[columns["label"]]]

    def load(self, split: str, *, to_predict: bool = False) -> Examples:
        """The examples of a split, with the columns `text`, `text_pair` and `label` as far as the data has them.

        to_predict: empty texts are kept, so that every row has its prediction, and a file of plain lines will do for one text.
        Raises DataError with the row for a text that is missing.
        """
        examples = self.read(split)
        if len(examples) == 0:
            raise DataError(f"split {split!r} has no rows", where=examples.source)
        columns = self._roles.found_in(examples)
        if to_predict and self.text_pair is None and list(examples.columns) == ["text"]:
            columns = {"text": "text"}
        if not to_predict and self.no_label is not None and "label" in columns:
            examples = self._with_labels_alone(examples, columns["label"], split)
        standard = self._roles.standard(examples, columns, empty_texts=to_predict or self.empty_texts)
        if not to_predict:
            self._roles.require_label(examples, columns)
        return standard

    def _with_labels_alone(self, examples: Examples, column: str, split: str) -> Examples:
        rows = [row for row, value in enumerate(examples.columns[column]) if value != self.no_label]
        if left_out := len(examples) - len(rows):
            progress.note(f"{split}: {left_out} of {len(examples)} rows left out, whose label is {self.no_label!r}")
        return examples.select(rows)

    def with_columns_found(self) -> Self:
        examples = self.read(self.train_split)
        columns = self._roles.found_in(examples)
        if guessed := [f"{role} = {name}" for role, name in columns.items() if getattr(self, role) is None]:
            progress.note(f"columns by their names: {', '.join(guessed)}")
        named = {role: columns.get(role, getattr(self, role)) for role in ("text", "text_pair", "label")}
        separator = self.label_separator
        if self.multi_label and separator is None and "label" in columns:
            separator = find_separator(examples, columns["label"])
            if separator is not None:
                progress.note(f"labels in a cell are parted by {separator!r} (--label-separator says otherwise)")
        return replace(self, **named, label_separator=separator)

    @property
    def _roles(self) -> TextColumns:
        return TextColumns(self.text, self.text_pair, self.label, self.multi_label, self.label_separator, self.labels)

    @classmethod
    def asked_for(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        options = super().asked_for(saved)
        return options | ({"class_weights": "balanced"} if saved.get("weights_balanced") else {})

    # --- labels ---

    def with_labels(self, examples: Examples, config: BertConfig | None = None) -> Self:
        """This recipe with its labels settled: given, or derived from training data; and the order in which the model has them.

        Raises DataError where the training data gives no labels.
        """
        if self.regression:
            return self
        labels = self.labels or self._derived_labels(examples)
        if len(set(labels)) != len(labels):
            raise UsageError(f"--labels names a label twice: {', '.join(labels)}")
        self._refuse_f1_of(labels)
        for names in spelt_alike(labels):
            progress.warn(f"labels that differ in case or white space alone are learned apart: {', '.join(map(repr, names))}")
        outputs = labels if config is None else in_the_models_order(labels, config)
        derived = self.labels is None or self.labels_derived
        recipe = replace(self, labels=labels, model_labels=outputs, labels_derived=derived)
        if recipe.class_weights is None:
            return recipe
        ids = label_ids(examples, "label", labels, by_number=not derived)
        weights = class_weights(recipe.class_weights, ids, labels)
        return replace(recipe, class_weights=weights, weights_balanced=recipe.class_weights == ("balanced",))

    def _refuse_f1_of(self, labels: Sequence[str]) -> None:
        if f1 in self.metrics and not self.multi_label and len(labels) != 2:
            hint = "macro_f1 is the mean over classes, as in --metric macro_f1"
            raise UsageError(f"the metric f1 is that of the second of two classes, and here are {len(labels)}", hint=hint)

    def _derived_labels(self, examples: Examples) -> tuple[str, ...]:
        derive = derive_set_labels if self.multi_label else derive_labels
        found = derive(examples, "label")
        return examples.label_names.get("label", found)  # in the order that the data declares, where it does

    def as_trained(self, config: BertConfig) -> Self:
        recipe = super().as_trained(config)
        several = config.problem_type == "multi_label_classification"
        return replace(recipe, multi_label=True) if several and not self.regression else recipe

    def with_model_labels(self, config: BertConfig, where: str) -> Self:
        recipe = self._with_labels_of(config, where)
        if not recipe.regression:
            recipe._refuse_f1_of(recipe.labels or ())
        if recipe.multi_label and recipe.thresholds is None:
            own = config.extra.get(THRESHOLDS_KEY) or {}
            recipe = replace(recipe, thresholds=tuple(float(own.get(label, HALF)) for label in recipe.labels or ()))
        given = recipe.class_weights
        if given is None or recipe.regression or given == ("balanced",):  # which only training rows can settle
            return replace(recipe, class_weights=None)
        return replace(recipe, class_weights=class_weights(given, np.zeros(0, dtype=np.int64), recipe.labels or ()))

    def _with_labels_of(self, config: BertConfig, where: str) -> Self:
        labels = self.labels
        if labels is None and not self.multi_label and (config.problem_type == "regression" or config.num_labels == 1):
            return replace(self, regression=True)
        self.check_head(config, where)
        if self.regression:
            return self
        if labels is None:
            labels = tuple((config.id2label or {0: "LABEL_0", 1: "LABEL_1"}).values())
            return replace(self, labels=labels, model_labels=labels)
        return replace(self, model_labels=in_the_models_order(labels, config))

    def model_config(self, config: BertConfig) -> BertConfig:
        """The architecture with this task's labels and problem_type."""
        return self._target.configured(super().model_config(config))

    def check_head(self, config: BertConfig, where: str) -> None:
        """Raise ModelError where a fine-tuned model's labels are not this task's. LABEL_0 ... fit by their number."""
        if self.regression:
            if config.num_labels != 1:
                raise ModelError(
                    f"the model has {config.num_labels} labels; regression has one output", where=where, hint=FRESH_HEAD
                )
        elif self.labels is None:
            return
        else:
            check_model_labels(self.labels, config, where)

    def with_scores(self, scores: Mapping[str, float | None]) -> Self:
        tuned: dict[str, float] = {}
        for name, value in scores.items():
            label = name.partition("/")[2]
            if label.startswith(_THRESHOLD) and value is not None:
                tuned.setdefault(label.removeprefix(_THRESHOLD), value)
        if not self.multi_label or not tuned:
            return self
        return replace(self, thresholds=tuple(tuned[label] for label in self._settled_labels()[0]))

    @cached_property
    def _target(self) -> Target:
        if self.regression:
            return Number()
        if self.multi_label:
            return AnyOf(*self._settled_labels(), thresholds=self.thresholds)
        return OneOf(*self._settled_labels(), by_number=not self.labels_derived)

    def _settled_labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The labels in the order of their numbers in the data, and in that of the model's outputs."""
        assert self.labels is not None, "with_labels or with_model_labels comes first"
        assert self.model_labels is not None, "with_labels or with_model_labels comes first"
        return self.labels, self.model_labels

    # --- features, model, predictions ---

    def encode(self, examples: Examples, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoding:
        """One feature an example, or one each of its windows, reading [CLS]."""
        pairs = examples.columns.get("text_pair")
        encoded = tokenizer.encode(examples.columns["text"], pairs, max_length=max_length, truncate=self.truncate)
        features = Features(
            input_ids=encoded.input_ids,
            token_type_ids=encoded.token_type_ids,
            examples=encoded.examples,
            rows=Ragged.column(np.zeros(len(encoded.examples))),
            labels={"labels": self._target.of(examples).take(encoded.examples)} if labelled else {},
            class_weights={"labels": self._weights_of_outputs()} if labelled and self.class_weights else {},
        )
        truncated, more = int(encoded.truncated.sum()), len(encoded.examples) - len(examples)
        remarks = {
            f"{truncated} longer than {max_length} truncated": truncated,
            f"longer ones in windows: {len(encoded.examples)} features": more,
        }
        return Encoding(features, tuple(remark for remark, count in remarks.items() if count))

    def build_model(self, config: BertConfig) -> nn.Module:
        from bertkit.model.heads import BertForSequenceClassification

        weights = None if self.class_weights is None else tuple(self._weights_of_outputs().tolist())
        return BertForSequenceClassification(config, class_weights=weights, label_smoothing=self.label_smoothing)

    def _weights_of_outputs(self) -> NDArray[np.float64]:
        """(C,) the classes' weights in the order of the model's outputs."""
        labels, outputs = self._settled_labels()
        weight_of = dict(zip(labels, self.class_weights or (), strict=True))
        return np.array([float(weight_of[label]) for label in outputs])

    def decode(self, outputs: Mapping[str, Sequence[NDArray]], features: Features, examples: Examples) -> list[dict[str, Any]]:
        """One prediction an example, from the mean of its windows' logits: a label, labels or a number, with probabilities."""
        logits = np.stack([rows[0] for rows in outputs["logits"]]).astype(np.float64)  # (F, C)
        sums = np.zeros((len(examples), logits.shape[1]))
        np.add.at(sums, features.examples, logits)
        return self._target.decode(sums / np.bincount(features.examples, minlength=len(examples))[:, None])

    def outcomes(self, predictions: Sequence[Mapping[str, Any]]) -> set[Any]:
        return {self._target.outcome(prediction) for prediction in predictions}

    def score(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, float | None]:
        """Every metric of the recipe by its name. Raises DataError for examples without labels.

        Of several labels without thresholds, those of the best threshold of each on these rows, and these thresholds.
        """
        if not isinstance(self._target, AnyOf) or self._target.thresholds is not None:
            return self.scorer(predictions, examples)(np.arange(len(examples)))
        best = self._target.tuned(predictions, examples).thresholds or ()
        found = replace(self, thresholds=best).score(predictions, examples)
        return found | {f"{_THRESHOLD}{label}": value for label, value in zip(self._settled_labels()[0], best, strict=True)}

    def scorer(
        self, predictions: Sequence[Mapping[str, Any]], examples: Examples
    ) -> Callable[[NDArray[np.int64]], dict[str, float | None]]:
        predicted, gold = self._target.predicted(predictions), self._target.gold(examples)
        return lambda rows: measured(self.metrics, predicted[rows], gold[rows])

    # --- what a user sees ---

    def describe_labels(self, features: Features, at: int) -> list[dict[int, str]]:
        return [{0: self._target.describe(features.labels["labels"][at])}]

    def report(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[Table]:
        if isinstance(self._target, Number):
            return []
        predicted, gold = self._target.predicted(predictions), self._target.gold(examples)
        by_class = describe_classes(self._settled_labels()[0], predicted, gold)
        if isinstance(self._target, AnyOf):
            return [by_class]
        probability = np.array([found["probability"] for found in predictions])
        confusions = describe_confusions(self._settled_labels()[0], predicted, gold)
        return [by_class, confusions, describe_calibration(probability, predicted == gold)]

    def doubts(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[str]:
        if not isinstance(self._target, OneOf):
            return []
        labels, outputs = self._settled_labels()
        return doubt_order(labels, self._target.predicted(predictions), self._target.gold(examples), outputs)

    def wrongness(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> NDArray[np.float64]:
        return self._target.wrongness(predictions, examples)

    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        return list(zip(*(examples.columns[name] for name in TEXTS if name in examples.columns), strict=True))

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        values = examples.columns.get("label", [None] * len(examples))
        if self.multi_label:
            return [its or () for its in values]
        if self.regression:
            return [() if value is None or value == "" else (label_name(value),) for value in values]
        named = not self.labels or any(label_name(value) in self.labels for value in values)
        missing = [is_missing(value) and label_name(value) not in (self.labels or ()) for value in values]
        return [() if none else (self._named(label_name(v), named),) for v, none in zip(values, missing, strict=True)]

    def _named(self, label: str, named: bool) -> str:
        """The name of a label that the data may give by number."""
        labels = self.labels or ()
        return label if named or not label.isdecimal() or int(label) >= len(labels) else labels[int(label)]

    def gold(self, examples: Examples) -> list[str]:
        return [
            (", ".join(truth) or "none") if isinstance(truth, list) else f"{truth}" for truth in self._target.truths(examples)
        ]

    def rows(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[dict[str, Any]]:
        texts = {name: examples.columns[name] for name in TEXTS if name in examples.columns}
        return [
            {**{name: values[at] for name, values in texts.items()}, **self._target.row(found)}
            for at, found in enumerate(predictions)
        ]

    def files(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, str]:
        truths = zip(self.rows(predictions, examples), predictions, self._target.truths(examples), strict=True)
        whole = [{**row, "probabilities": self._target.probabilities(found), "gold": gold} for row, found, gold in truths]
        return {"predictions.jsonl": as_jsonl(whole)}

    def show(self, prediction: Mapping[str, Any], examples: Examples, at: int) -> Text:
        texts = [examples.columns[name][at] for name in TEXTS if name in examples.columns]
        return Text(plain(self._target.said(prediction)).plain, style="bold green") + "  " + plain(" | ".join(texts))
