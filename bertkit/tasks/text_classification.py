"""Text classification: a class, or with `regression` a number, for one sentence or two (Devlin et al., 2019, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from bertkit import progress
from bertkit.bert_config import BertConfig
from bertkit.config import option
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.metrics import accuracy, pearson, spearmanr
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.readers.columns import guess_column, require_column, text_of
from bertkit.store import Features, Ragged
from bertkit.tasks.labels import (
    FRESH_HEAD,
    check_labels,
    check_model_labels,
    class_weights,
    derive_labels,
    in_the_models_order,
    label_ids,
    scores_of,
)
from bertkit.tasks.pooling import PoolingTask
from bertkit.tasks.probabilities import softmax
from bertkit.tasks.task import Encoding

if TYPE_CHECKING:
    from torch import nn

    from bertkit.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TextClassification(PoolingTask):
    """A recipe of this family; see Task for where its data comes from."""

    family: ClassVar[str] = "text-classification"
    hf_class: ClassVar[str] = "BertForSequenceClassification"
    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair")

    text: str | None = option(None, "column of the text (of a pair: the first one)")
    text_pair: str | None = option(None, "column of the second text of a pair")
    label: str | None = option(None, "column of the label")
    labels: tuple[str, ...] | None = option(None, "names of the labels in the order of their numbers; default: from the data")
    regression: bool = option(False, "predict a number instead of a class")
    class_weights: tuple[str, ...] | None = option(
        None, "what each class counts for in the loss, in the order of the labels; or balanced, the rarer the more"
    )
    label_smoothing: float = option(
        0.0, "share of the target that is spread over all classes in training (Szegedy et al., 2016)", minimum=0, maximum=1
    )
    model_labels: tuple[str, ...] | None = None  # the labels in the order of the model's outputs, once they are settled
    labels_derived: bool = False  # whether the labels come from the data: then their order means nothing to other data

    def settled(self) -> Self:
        metrics = self.metrics or ((pearson, spearmanr) if self.regression else (accuracy,))
        return replace(super().settled(), metrics=metrics)

    # --- data ---

    def columns_to_split_by(self, examples: Examples) -> tuple[tuple[str, ...], str | None]:
        columns = self._columns(examples)
        self._require_texts(examples, columns)
        self._require_label(examples, columns)
        texts = tuple(columns[role] for role in ("text", "text_pair") if role in columns)
        if self.regression:
            return texts, None
        check_labels(examples, columns["label"])
        return texts, columns["label"]

    def load(self, split: str, *, to_predict: bool = False) -> Examples:
        """The examples of a split, with the columns `text`, `text_pair` and `label` as far as the data has them.

        to_predict: empty texts are kept, so that every row has its prediction, and a file of plain lines will do for one text.
        Raises DataError with the row for a text that is missing.
        """
        examples = self.read(split)
        if len(examples) == 0:
            raise DataError(f"split {split!r} has no rows", where=examples.source)
        columns = self._columns(examples)
        if to_predict and self.text_pair is None and list(examples.columns) == ["text"]:
            columns = {"text": "text"}
        standard = self._standard(examples, columns, empty_texts=to_predict)
        if not to_predict:
            self._require_label(examples, columns)
        return standard

    def with_columns_found(self) -> Self:
        columns = self._columns(self.read(self.train_split))
        if guessed := [f"{role} = {name}" for role, name in columns.items() if getattr(self, role) is None]:
            progress.note(f"columns by their names: {', '.join(guessed)}")
        named = {role: columns.get(role, getattr(self, role)) for role in ("text", "text_pair", "label")}
        return replace(self, text=named["text"], text_pair=named["text_pair"], label=named["label"])

    def _columns(self, examples: Examples) -> dict[str, str]:
        """The column in the data by role, as named by the recipe or guessed where the names leave no doubt."""
        names = list(examples.columns)
        found: dict[str, str] = {}
        for role in ("text", "text_pair", "label"):
            wanted = getattr(self, role)
            if wanted in names:
                found[role] = wanted
            elif wanted is None and (guess := guess_column(names, role)) is not None:
                found[role] = guess
        if self.text is not None and self.text_pair is None:
            found.pop("text_pair", None)  # a recipe or a user that names one text means one
        return found

    def _require_texts(self, examples: Examples, columns: dict[str, str]) -> None:
        for role in ("text", "text_pair"):
            if role not in columns and (role == "text" or self.text_pair is not None):
                name = getattr(self, role)
                if name is None:
                    hint = f"name it: --text {next(iter(examples.columns))}; for files without a header --columns label,text"
                    raise DataError(
                        f"no telling which column is the text; columns: {', '.join(examples.columns)}",
                        where=examples.source,
                        hint=hint,
                    )
                require_column(examples, name, option="--" + role.replace("_", "-"))

    def _require_label(self, examples: Examples, columns: dict[str, str]) -> None:
        if "label" in columns:
            return
        if self.label is None:
            what = f"no telling which column is the label; columns: {', '.join(examples.columns)}"
            raise DataError(what, where=examples.source, hint="name it: --label NAME")
        require_column(examples, self.label, option="--label")

    def _standard(self, examples: Examples, columns: dict[str, str], *, empty_texts: bool) -> Examples:
        self._require_texts(examples, columns)
        standard = {role: examples.columns[name] for role, name in columns.items()}
        for role in ("text", "text_pair"):
            if role in standard:
                standard[role] = [
                    text_of(value, examples, row, columns[role], may_be_empty=empty_texts, may_be_number=True)
                    for row, value in enumerate(standard[role])
                ]
        if (names := examples.label_names.get(columns.get("label", ""))) is not None:
            standard["label"] = [names[value] if value is not None and value >= 0 else None for value in standard["label"]]
        return replace(examples, columns=standard, label_names={})

    # --- labels ---

    def with_labels(self, examples: Examples, config: BertConfig | None = None) -> Self:
        """This recipe with its labels settled: given, or derived from training data; and the order in which the model has them.

        Raises DataError where the training data gives no labels.
        """
        if self.regression:
            if self.class_weights or self.label_smoothing:
                option = "--class-weights" if self.class_weights else "--label-smoothing"
                raise UsageError(
                    f"{option} is for classes, and --regression predicts a number", hint="leave out one of the two"
                )
            return self
        labels = self.labels or derive_labels(examples, "label")
        if len(set(labels)) != len(labels):
            raise UsageError(f"--labels names a label twice: {', '.join(labels)}")
        outputs = labels if config is None else in_the_models_order(labels, config)
        derived = self.labels is None or self.labels_derived
        recipe = replace(self, labels=labels, model_labels=outputs, labels_derived=derived)
        if recipe.class_weights is None:
            return recipe
        ids = label_ids(examples, "label", labels, by_number=not derived)
        return replace(recipe, class_weights=class_weights(recipe.class_weights, ids, labels))

    def with_model_labels(self, config: BertConfig, where: str) -> Self:
        recipe = self._with_labels_of(config, where)
        given = recipe.class_weights
        if given is None or recipe.regression or given == ("balanced",):  # which only training rows can settle
            return replace(recipe, class_weights=None)
        return replace(recipe, class_weights=class_weights(given, np.zeros(0, dtype=np.int64), recipe.labels or ()))

    def _with_labels_of(self, config: BertConfig, where: str) -> Self:
        labels = self.labels
        if labels is None and (config.problem_type == "regression" or config.num_labels == 1):
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
        config = super().model_config(config)
        if self.regression:
            return replace(config, id2label={0: "LABEL_0"}, problem_type="regression")
        return replace(config, id2label=dict(enumerate(self._settled_labels()[1])), problem_type="single_label_classification")

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

    def _settled_labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The labels in the order of their numbers in the data, and in that of the model's outputs."""
        assert self.labels is not None, "with_labels or with_model_labels comes first"
        assert self.model_labels is not None, "with_labels or with_model_labels comes first"
        return self.labels, self.model_labels

    # --- features, model, predictions ---

    def encode(self, examples: Examples, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoding:
        """One feature an example, reading [CLS]."""
        pairs = examples.columns.get("text_pair")
        encoded = tokenizer.encode(examples.columns["text"], pairs, max_length=max_length)
        labels = {}
        if labelled:
            targets = scores_of(examples, "label") if self.regression else self._outputs_of(examples)
            labels["labels"] = Ragged(targets, np.arange(len(targets) + 1))
        features = Features(
            input_ids=encoded.input_ids,
            token_type_ids=encoded.token_type_ids,
            examples=np.arange(len(examples)),
            rows=Ragged.column(np.zeros(len(examples))),
            labels=labels,
            class_weights={} if self.class_weights is None else {"labels": self._weights_of_outputs()},
        )
        truncated = int(encoded.truncated.sum())
        return Encoding(features, (f"{truncated} longer than {max_length} truncated",) if truncated else ())

    def _outputs_of(self, examples: Examples) -> NDArray[np.int64]:
        """The number of each row's label among the model's outputs."""
        labels, outputs = self._settled_labels()
        return np.array([outputs.index(label) for label in labels])[
            label_ids(examples, "label", labels, by_number=not self.labels_derived)
        ]

    def build_model(self, config: BertConfig) -> nn.Module:
        from bertkit.heads import BertForSequenceClassification

        weights = None if self.class_weights is None else tuple(self._weights_of_outputs().tolist())
        return BertForSequenceClassification(config, class_weights=weights, label_smoothing=self.label_smoothing)

    def _weights_of_outputs(self) -> NDArray[np.float64]:
        """(C,) the classes' weights in the order of the model's outputs."""
        labels, outputs = self._settled_labels()
        weight_of = dict(zip(labels, self.class_weights or (), strict=True))
        return np.array([float(weight_of[label]) for label in outputs])

    def decode(self, outputs: Mapping[str, Sequence[NDArray]], features: Features, examples: Examples) -> list[dict[str, Any]]:
        """One prediction an example: its label and probability, or its number."""
        logits = np.stack([rows[0] for rows in outputs["logits"]]).astype(np.float64)  # (F, C)
        if self.regression:
            return [{"prediction": float(value)} for value in logits[:, 0]]
        probabilities = softmax(logits)
        best = logits.argmax(axis=1)
        names = self._settled_labels()[1]
        return [{"label": names[c], "probability": float(probabilities[row, c])} for row, c in enumerate(best)]

    def outcomes(self, predictions: Sequence[Mapping[str, Any]]) -> set[Any]:
        return {p["prediction"] if self.regression else p["label"] for p in predictions}

    def score(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, float | None]:
        """Every metric of the recipe by its name. Raises DataError for examples without labels."""
        predicted: NDArray
        gold: NDArray
        if self.regression:
            predicted, gold = np.array([p["prediction"] for p in predictions]), scores_of(examples, "label")
        else:
            labels = self._settled_labels()[0]  # the order of the data: f1 is that of class 1
            number = {name: i for i, name in enumerate(labels)}
            predicted, gold = (
                np.array([number[p["label"]] for p in predictions]),
                label_ids(examples, "label", labels, by_number=not self.labels_derived),
            )
        return {metric.__name__: metric(predicted, gold) for metric in self.metrics}

    # --- what a user sees ---

    def describe_labels(self, features: Features, at: int) -> list[dict[int, str]]:
        value = features.labels["labels"][at][0]
        return [{0: f"{value:g}" if self.regression else self._settled_labels()[1][value]}]

    def rows(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[dict[str, Any]]:
        texts = {name: examples.columns[name] for name in ("text", "text_pair") if name in examples.columns}
        return [{**{name: values[at] for name, values in texts.items()}, **found} for at, found in enumerate(predictions)]

    def show(self, prediction: Mapping[str, Any], examples: Examples, at: int) -> Text:
        label = (
            f"{prediction['prediction']:.2f}" if self.regression else f"{prediction['label']} {prediction['probability']:.0%}"
        )
        texts = [examples.columns[name][at] for name in ("text", "text_pair") if name in examples.columns]
        return Text(plain(label).plain, style="bold green") + "  " + plain(" | ".join(texts))
