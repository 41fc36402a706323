"""Multiple choice: which of several choices continues a text, or answers a question (Devlin et al., 2019, section 4.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from rich.text import Text

from bertkit.features import Features, Ragged, offsets_of
from bertkit.metrics.bootstrap import Scorer
from bertkit.metrics.classification import measured
from bertkit.model.config import BertConfig
from bertkit.progress import plain
from bertkit.readers import Examples, is_blank
from bertkit.report import Piece
from bertkit.tasks.baselines import MAJORITY, Frozen, most_frequent
from bertkit.tasks.block import KeptHead
from bertkit.tasks.counts import Count
from bertkit.tasks.multiple_choice.recipe import INPUTS, MultipleChoice
from bertkit.tasks.output import OutputColumns
from bertkit.tasks.pooling import PoolingTask
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.probabilities import softmax_of_groups
from bertkit.tasks.task import Encoding, Logits

if TYPE_CHECKING:
    from torch import nn

    from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class MultipleChoiceTask(PoolingTask):
    """A prediction's value is the number of a choice in the data; details: its text as `answer`."""

    hf_class: ClassVar[str] = "BertForMultipleChoice"
    recipe_class: ClassVar[type[MultipleChoice]] = MultipleChoice
    input_roles: ClassVar[tuple[str, ...]] = (*INPUTS, "choices")

    recipe: MultipleChoice

    @classmethod
    def fit_examples(cls, recipe: MultipleChoice, examples: Examples, kept: KeptHead | None = None) -> Self:
        return cls(recipe=recipe)

    @classmethod
    def _restore(cls, recipe: MultipleChoice, config: BertConfig, block: Mapping[str, Any], where: str) -> MultipleChoiceTask:
        return cls(recipe=replace(recipe, labels_are=recipe.labels_are or block.get("labels_are")))

    def fitted(self) -> dict[str, Any]:
        return {"labels_are": self.recipe.labels_are}

    def build(self, config: BertConfig) -> nn.Module:
        from bertkit.model.heads import BertForMultipleChoice

        return BertForMultipleChoice(config, pooling=self.recipe.pooling, layers=self.recipe.layers)

    @property
    def input_columns(self) -> dict[str, str | tuple[str, ...]]:
        columns, choices = super().input_columns, self.recipe.choices or ("choices",)
        if self.recipe.text and not self.recipe.question:  # trained without one
            del columns["question"]
        return {**columns, "choices": choices if len(choices) > 1 else choices[0]}

    def encode(
        self, examples: Examples, tokenizer: Tokenizer, *, max_length: float | None = None, labelled: bool = True
    ) -> Encoding:
        """One feature per example, one sequence per choice: [CLS] text [SEP] question choice [SEP], reading [CLS]."""
        longest = self.max_tokens(max_length)
        choices: Sequence[list[str]] = examples.columns["choices"]
        sequences = offsets_of(np.fromiter(map(len, choices), dtype=np.int64, count=len(choices)))
        questions = examples.columns.get("question", [""] * len(choices))
        texts = chain.from_iterable([text] * len(own) for text, own in zip(examples.columns["text"], choices, strict=True))
        pairs = [f"{question} {choice}" for question, own in zip(questions, choices, strict=True) for choice in own]
        encoded = tokenizer.encode(list(texts), pairs, max_length=longest)
        labels = {}
        if labelled:
            right = zip(examples.columns["label"], examples.columns["places"], strict=True)
            labels["labels"] = Ragged.column([places.index(label) for label, places in right])
        features = Features(
            input_ids=encoded.input_ids,
            token_type_ids=encoded.token_type_ids,
            examples=np.arange(len(choices)),
            sequences=sequences,
            rows=Ragged.column(np.zeros(sequences[-1])),
            labels=labels,
        )
        truncated = int(np.logical_or.reduceat(encoded.truncated, sequences[:-1]).sum())
        return Encoding(features, (Count(truncated, f"{{}} longer than {longest} truncated"),))

    def lacking(self, examples: Examples) -> tuple[Count, ...]:
        return (Count(sum(map(is_blank, examples.columns["text"])), "{} without text"),)  # each has choices

    def decode(
        self, outputs: Logits, features: Features, examples: Examples, others: Sequence[Logits] = ()
    ) -> list[Prediction]:
        """One prediction per example: the best choice, and the probabilities of all."""
        logits = [np.concatenate(each["logits"])[:, 0] for each in (outputs, *others)]
        of_models = [softmax_of_groups(each, features.offsets) for each in logits]
        probabilities = np.mean(of_models, axis=0)  # (S,)
        predictions = []
        own = zip(pairwise(features.offsets), examples.columns["places"], examples.columns["choices"], strict=True)
        for (start, end), places, texts in own:
            best = int(probabilities[start:end].argmax())
            of_places = np.zeros(places[-1] + 1)  # 0 for a choice that is empty in the data
            of_places[places] = probabilities[start:end]
            value = places[best]
            predictions.append(Prediction(value, float(of_places[value]), of_places.tolist(), {"answer": texts[best]}))
        return predictions

    def truth(self, examples: Examples) -> Sequence[Any]:
        return examples.columns["label"]

    def scorer(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> Scorer:
        predicted, references = np.array([prediction.value for prediction in predictions]), np.array(truth)
        return lambda rows: measured(self.recipe.metrics, predicted[rows], references[rows])

    def baselines(self, train: Examples, examples: Examples, model: Frozen | None) -> dict[str, list[Prediction]]:
        """The most frequent position of the right choice."""
        return {MAJORITY: [Prediction(most_frequent(self.truth(train)))] * len(examples)}

    def error(self, prediction: Prediction, truth: Any) -> float:
        return 0.0 if prediction.value == truth else 1.0 - prediction.probabilities[truth]

    # --- as people and files see it ---

    def row(self, prediction: Prediction, examples: Examples, row: int) -> dict[str, Any]:
        inputs = {name: values[row] for name, values in examples.given(INPUTS).items()}
        answered = {"choice": prediction.value, **prediction.details, "probability": prediction.probability}
        return inputs | answered | {"probabilities": prediction.probabilities}

    def columns(self, examples: Examples) -> OutputColumns:
        return OutputColumns(tuple(examples.given(INPUTS)), ("choice", "answer", "probability", "probabilities"))

    def format_truth(self, truth: Any, examples: Examples, row: int) -> str:
        return examples.columns["choices"][row][examples.columns["places"][row].index(truth)]

    def laid_out(self, prediction: Prediction, truth: Any, examples: Examples, row: int) -> dict[str, list[Piece]]:
        inputs = {name: [Piece(values[row])] for name, values in examples.given(INPUTS).items()}
        predicted = f"{prediction.details['answer']} {prediction.probability:.0%}"
        return inputs | {"expected": [Piece(self.format_truth(truth, examples, row))], "predicted": [Piece(predicted)]}

    def format_prediction(self, prediction: Prediction, examples: Examples, row: int) -> Text:
        """The text and question, and a line per choice with its probability; the best one is marked."""
        inputs = [values[row] for values in examples.given(INPUTS).values()]
        text = plain("\n".join(part for part in inputs if part))
        for place, choice in zip(examples.columns["places"][row], examples.columns["choices"][row], strict=True):
            best = place == prediction.value
            line = f"{'->' if best else '  '} {prediction.probabilities[place]:4.0%}  {choice}"
            text.append("\n").append(plain(line).plain, style="bold green" if best else "")
        return text.append("\n")

    def describe_targets(self, features: Features, feature: int) -> list[dict[int, str]]:
        start, end = features.offsets[feature : feature + 2]
        right = features.labels["labels"][feature][0]
        return [{0: "right"} if choice == right else {} for choice in range(end - start)]
