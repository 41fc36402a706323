"""Token classification: a tag for every word, as in NER, slot filling and part of speech (Devlin et al., 2019, section 5.3).

With `intent`, a class of the whole sentence is learned jointly (Chen et al., 2019).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import ModelError, UsageError, listed
from bertkit.features import IGNORED, Features, Ragged, offsets_of
from bertkit.metrics.bootstrap import Scorer
from bertkit.metrics.classification import measured
from bertkit.metrics.confident_learning import Judged
from bertkit.model.config import BertConfig
from bertkit.readers import Examples, Remarks
from bertkit.readers.parsers.conll import COLUMNS
from bertkit.report import Finding, Piece, Table
from bertkit.tasks.baselines import Frozen, most_frequent
from bertkit.tasks.block import KeptHead
from bertkit.tasks.class_loss import ClassLossTask, class_weights
from bertkit.tasks.class_report import describe_classes, describe_confusions, label_order_warning, never_predicted
from bertkit.tasks.counts import Count
from bertkit.tasks.labels import FRESH_HEAD, in_model_order, labels_of_model, renamed, spelling_warnings
from bertkit.tasks.output import OutputColumns, OutputLayout
from bertkit.tasks.pooling import LayersTask
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.probabilities import log_softmax, mean_logits
from bertkit.tasks.task import Encoding, Logits
from bertkit.tasks.token_classification.baselines import baseline_tags
from bertkit.tasks.token_classification.faults import find_faults, illegal_rows
from bertkit.tasks.token_classification.features import decode_intents, encode_words
from bertkit.tasks.token_classification.labels import (
    in_form_of,
    in_scheme,
    number_all,
    number_names,
    refuse_other_tags,
    settle_labels,
    settle_tags,
)
from bertkit.tasks.token_classification.output import as_conll, as_conllu, as_row, as_text, column_to_write, marked, row_columns
from bertkit.tasks.token_classification.recipe import TokenClassification
from bertkit.tasks.token_classification.scores import Intents, Tagged, describe_types, tag_scorer
from bertkit.tasks.token_classification.sentences import usual_cut, with_tags
from bertkit.tasks.token_classification.tags import (
    as_chunk_tags,
    convert,
    count_illegal,
    kind_of,
    respell,
    scheme_of,
    spans_of,
    transitions,
    viterbi,
)
from bertkit.tasks.token_classification.whole_words import WHOLE, cut_again, whole_words

if TYPE_CHECKING:
    from rich.text import Text
    from torch import nn

    from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TokenClassificationTask(ClassLossTask, LayersTask):
    """scheme: of the tags; None if they are not chunk tags. intents: in the order of the model's outputs. conllu_column: the
    CoNLL-U column that the tags were learned from, if any.

    A prediction's value is the list of a sentence's tags, with their probabilities; details: the intent, with `intent`.
    """

    hf_class: ClassVar[str] = "BertForTokenClassification"
    recipe_class: ClassVar[type[TokenClassification]] = TokenClassification
    input_roles: ClassVar[tuple[str, ...]] = ("text", "tokens")
    own_formats: ClassVar[Mapping[str, str]] = {".conll": "\n", ".conllu": ""}
    by_word: ClassVar[bool] = True
    details: ClassVar[Mapping[str, str]] = {"uncertain": "certainty"}

    recipe: TokenClassification
    scheme: str | None = None
    intents: tuple[str, ...] = ()
    conllu_column: str | None = None

    # --- fitting and restoring ---

    @classmethod
    def fits(cls, block: Mapping[str, Any], recipe: Any) -> bool:
        return super().fits(block, recipe) and not (recipe.intent and not block.get("intents"))

    @classmethod
    def fit_examples(cls, recipe: TokenClassification, examples: Examples, kept: KeptHead | None = None) -> Self:
        tags, scheme, given, remarks = settle_tags(recipe, examples, kept and kept.config)
        labels, warning, weights = settle_labels(tags, given, scheme, examples), None, None
        if kept is not None:
            labels, warning = in_model_order(labels, kept.config, some=given is None)
        if recipe.class_weights is not None:
            numbers, _ = number_names([*chain.from_iterable(tags)], labels, "tag", lambda tag: examples.source)
            weights = class_weights(recipe.class_weights, numbers, labels)
        intents = tuple(sorted(set(examples.columns["intent"]))) if recipe.intent else ()
        if intents and kept is not None:
            known = kept.block["intents"]
            if not set(intents) <= set(known):
                what = f"the model's intents are {listed(known, 12)}; the data's are {listed(intents, 12)}"
                raise ModelError(what, hint=FRESH_HEAD)
            intents = tuple(known)
        remarks += Remarks(warnings=spelling_warnings(labels)) + Remarks.of(warning=warning)
        column = examples.own_name("tags")
        return cls(
            recipe=replace(recipe, words=recipe.words or usual_cut(examples)),
            labels=labels,
            scheme=scheme,
            intents=intents,
            weights=weights,
            conllu_column=column if column in COLUMNS else None,
            remarks=remarks,
        )

    @classmethod
    def _restore(
        cls, recipe: TokenClassification, config: BertConfig, block: Mapping[str, Any], where: str
    ) -> TokenClassificationTask:
        names, warning = (known := labels_of_model(config)), None
        if recipe.labels is not None:
            names, warning = in_model_order(tuple(in_form_of(config, [recipe.labels])[0][0]), config, where)
        scheme = scheme_of(names)
        if recipe.scheme is not None and scheme is not None and "iobes" in (scheme, recipe.scheme) and scheme != recipe.scheme:
            raise UsageError(f"--scheme is {recipe.scheme}; the model's labels follow {scheme}", where=where)
        if recipe.constrained and scheme is None:
            raise UsageError(f"--constrained is for chunk tags such as B-PER; the model has {names[0]!r}", where=where)
        return cls(
            recipe=recipe,
            labels=names,
            scheme=recipe.scheme or scheme,
            intents=tuple(block.get("intents") or ()) if recipe.intent else (),
            weights=renamed(block["class_weights"], known, names) if "class_weights" in block else None,
            conllu_column=block.get("conllu_column"),
            remarks=Remarks.of(warning=warning),
        )

    # --- the model ---

    def configure(self, config: BertConfig) -> BertConfig:
        return replace(super().configure(config), id2label=dict(enumerate(self.labels)))

    def fitted(self) -> dict[str, Any]:
        column = {"conllu_column": self.conllu_column} if self.conllu_column else {}
        return {"scheme": self.scheme, "intents": list(self.intents) or None, "class_weights": self.weights} | column

    def build(self, config: BertConfig) -> nn.Module:
        from bertkit.model.heads import BertForTokenClassification

        if config.is_decoder and self.intents:
            hint = "leave out --intent, or take another model"
            raise UsageError("--intent is read from [CLS], which in a left-to-right model sees only itself", hint=hint)
        legal = None
        if self.recipe.head == "crf" and self.recipe.constrained and self.scheme is not None:
            import torch

            # A window may begin and end inside a chunk; `decode` checks the ends of sentences.
            edge, follow = torch.ones(config.num_labels, dtype=torch.bool), transitions(self.labels, self.scheme)[1]
            legal = (edge, torch.from_numpy(follow), edge)
        return BertForTokenClassification(
            config,
            head=self.recipe.head,
            layers=self.recipe.layers,
            lstm_layers=self.recipe.lstm_layers,
            legal=legal,
            num_intents=len(self.intents),
            class_weights=self.output_weights,
            label_smoothing=self.recipe.label_smoothing,
        )

    # --- rows, features, predictions ---

    def name_labels(self, examples: Examples) -> Examples:
        if self.scheme is None:
            return examples
        tags, form = as_chunk_tags(examples.columns["tags"], {kind_of(label) for label in self.labels})
        refuse_other_tags(tags, examples)
        tags, converted = in_scheme(tags, self.scheme)
        noticed = (Remarks.of(note=form) + converted).without(self.remarks)
        return with_tags(examples, respell(tags, self.labels)).with_remarks(noticed)

    def refuses_labels(self, new: Collection[str], known: Collection[str]) -> bool:
        """Whether a tag differs from a known one only in case; others are ignored in the loss."""
        return not {name.casefold() for name in new}.isdisjoint(name.casefold() for name in known)

    def check(self, examples: Examples) -> Iterator[Finding]:
        return find_faults(examples)

    def encode(
        self, examples: Examples, tokenizer: Tokenizer, *, max_length: float | None = None, labelled: bool = True
    ) -> Encoding:
        """One feature per sentence, or per window of a longer one; its head reads each word's first piece."""
        longest = self.max_tokens(max_length)
        if longest < 3:
            raise UsageError(f"--max-length is {longest}; expected at least 3, for [CLS], a word and [SEP]")
        examples = self._whole(examples)
        encoded = encode_words(examples.columns["tokens"], tokenizer, longest, read_cls=bool(self.intents))
        counts = [
            Count(encoded.num_cut, f"{{}} longer than {longest} split into overlapping windows"),
            Count(encoded.num_shortened, f"{{}} of more than {longest - 2} pieces shortened", "word"),
        ]
        if not labelled:
            return Encoding(encoded.features, (Count(sum(map(len, examples.columns["tokens"])), "{}", "word"), *counts))
        counts.append(Count(examples.columns["tokens"].count([]), "{} without text"))
        targets, more = self._targets(examples)
        labels = {"labels": Ragged(targets, encoded.words)}
        if self.intents:
            intents = examples.columns["intent"]
            numbers, unknown = number_names(intents, self.intents, "intent", lambda name: examples.where(intents.index(name)))
            if unknown:
                more.append(Count(unknown.total(), f"{{}} with intents not seen in training ({listed(list(unknown))})"))
            labels = encoded.labels_with_intents(targets, numbers)
        return Encoding(replace(encoded.features, labels=labels, class_weights=self.loss_weights), (*counts, *more))

    def _whole(self, examples: Examples) -> Examples:
        return whole_words(examples, self.labels, self.scheme)

    def _targets(self, examples: Examples) -> tuple[NDArray[np.int64], list[Count]]:
        """The output number of each word's tag over all sentences, IGNORED for tags without an output; and counts to report."""
        tags: Sequence[list[str]] = examples.columns["tags"]
        counts = []
        if self.scheme is not None and (illegal := count_illegal(tags, self.scheme)):
            places = listed([examples.where(row) for row in illegal_rows(tags, self.scheme)], 3)
            counts.append(Count(illegal, f"{{}} in places where {self.scheme} does not allow them ({places})", "tag"))
            if self.recipe.head == "crf" and self.recipe.constrained:  # it gives illegal tags no probability
                tags = [convert(row, self.scheme) if count_illegal([row], self.scheme) else row for row in tags]
                tags = respell(tags, self.labels)

        def place(tag: str) -> str:
            return examples.where(next(row for row, sentence in enumerate(tags) if tag in sentence))

        numbers, unknown = number_names([*chain.from_iterable(tags)], self.labels, "tag", place)
        if unknown:
            what = f"{{}} with tags not seen in training ({listed(list(unknown))})"
            counts.append(Count(unknown.total(), what, "word"))
        return numbers, counts

    def decode(
        self, outputs: Logits, features: Features, examples: Examples, others: Sequence[Logits] = ()
    ) -> list[Prediction]:
        """A tag and a probability per word of each sentence, and with `intent` its intent. Several models use no CRF."""
        if others:
            models, names = [outputs, *others], [name for name in outputs if name != "path"]
            outputs = {name: [*map(mean_logits, zip(*(each[name] for each in models), strict=True))] for name in names}
        labels = np.array(self.labels, dtype=object)
        skip = 1 if self.intents else 0
        words = examples.columns.get(WHOLE, examples.columns["tokens"])
        bounds = offsets_of(np.array([*map(len, words)], dtype=np.int64))
        log_probabilities = self._log_probabilities(outputs)
        best = log_probabilities.argmax(axis=1)
        if outputs.get("path"):  # a CRF's best sequence; its logits are marginals already
            best = np.concatenate([rows[skip:] for rows in outputs["path"]]).astype(np.int64)
        if self.recipe.constrained and self.scheme is not None:
            legal = viterbi(log_probabilities, bounds, *transitions(self.labels, self.scheme))
            for start, end in pairwise(bounds):
                # a CRF's own path is kept if it is legal at the sentence's ends and where two windows meet
                if self.recipe.head != "crf" or count_illegal([labels[best[start:end]].tolist()], self.scheme):
                    best[start:end] = legal[start:end]
        probabilities = np.exp(log_probabilities[np.arange(len(best)), best])
        count = len(examples)
        intents: list[dict[str, Any]] = [{}] * count
        if self.intents:
            intents = decode_intents(self.intents, outputs.get("intent", ()), features.examples, count)
        found = [
            Prediction(labels[best[start:end]].tolist(), None, probabilities[start:end].tolist(), intent)
            for (start, end), intent in zip(pairwise(bounds), intents, strict=True)
        ]
        return cut_again(found, examples, self.labels, self.scheme)

    def _log_probabilities(self, outputs: Logits) -> NDArray[np.float64]:
        """(words, C): of each tag, over all sentences."""
        skip = 1 if self.intents else 0
        logits = [np.zeros((0, len(self.labels))), *(rows[skip:] for rows in outputs.get("logits", ()))]
        return log_softmax(np.concatenate(logits))

    def judged_words(self, examples: Examples) -> Sequence[list[str]]:
        return self._whole(examples).columns["tokens"]

    def judge(self, outputs: Logits, features: Features, examples: Examples) -> dict[str, Judged]:
        tags = self._whole(examples).columns["tags"]
        return {"tag": Judged.of(self.labels, tags, np.exp(self._log_probabilities(outputs)))}

    def output_names(self) -> tuple[Any, ...]:
        return self.labels, self.intents

    def comparable_by(self) -> tuple[Any, ...]:
        return self.scheme, bool(self.intents)  # tags are scored by name, and some folds may not know a rare one

    def truth(self, examples: Examples) -> list[Any]:
        intents = examples.columns["intent"] if self.intents else [None] * len(examples)
        return [Tagged(tags, intent) for tags, intent in zip(examples.columns["tags"], intents, strict=True)]

    def scorer(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> Scorer:
        """The recipe's metrics, over words, come first; then the scores of `tag_scorer`."""
        intents: Intents | None = None
        if self.intents:
            intents = [prediction.details["intent"] for prediction in predictions], [tagged.intent for tagged in truth]
        sides, metrics = self._tags(predictions, truth), self.recipe.metrics
        of_tags = tag_scorer(*sides, self.scheme, intents)
        if not metrics:
            return of_tags
        bounds = offsets_of(np.array([*map(len, sides[1])], dtype=np.int64))
        words = [Ragged(np.array([*chain.from_iterable(side)]), bounds) for side in sides]
        return lambda rows: measured(metrics, *(side.take(rows).values for side in words)) | of_tags(rows)

    def baselines(self, train: Examples, examples: Examples, model: Frozen | None) -> dict[str, list[Prediction]]:
        """The most frequent tag, and each word's, with the most frequent intent; without intents, also a linear probe."""
        intent = {"intent": most_frequent(train.columns["intent"])} if self.intents else {}
        train, whole = self._whole(train), self._whole(examples)
        found = baseline_tags(train, whole, None if self.intents else model)
        predicted = {name: [Prediction(tags, details=intent) for tags in sentences] for name, sentences in found.items()}
        return {name: cut_again(each, examples, self.labels, self.scheme) for name, each in predicted.items()}

    def _tags(self, predictions: Sequence[Prediction], truth: Sequence[Tagged]) -> tuple[list[list[str]], list[list[str]]]:
        """Predicted tags and references, by sentence."""
        return [prediction.value for prediction in predictions], [tagged.tags for tagged in truth]

    def distinct(self, predictions: Sequence[Prediction]) -> int:
        return len({tag for prediction in predictions for tag in prediction.value})

    def decisions(self, prediction: Prediction) -> list[Any]:
        return [*prediction.value, *([prediction.details["intent"]] if self.intents else [])]

    def error(self, prediction: Prediction, truth: Any) -> float:
        wrong = sum(tag != reference for tag, reference in zip(prediction.value, truth.tags, strict=True))
        return float(wrong + (bool(self.intents) and prediction.details["intent"] != truth.intent))

    def counts_of(self, predictions: Sequence[Prediction]) -> tuple[Count, ...]:
        if self.scheme is None:
            return ()
        what = f"{{}} that {self.scheme} does not allow (--constrained predicts only legal ones)"
        return (Count(count_illegal([each.value for each in predictions], self.scheme), what, "predicted tag"),)

    def confidences(
        self, predictions: Sequence[Prediction], truth: Sequence[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The confidence in each word's tag."""
        predicted, references = (np.array([*chain.from_iterable(rows)]) for rows in self._tags(predictions, truth))
        return np.concatenate([prediction.probabilities for prediction in predictions]), predicted == references

    def classes_of(self, examples: Examples) -> Sequence[Collection[str]]:
        """The types of a sentence's chunks, or without a scheme its tags."""
        if self.scheme is None:
            return super().classes_of(examples)
        return [{kind for _, _, kind in spans_of(tags)} for tags in examples.columns["tags"]]

    def label_order_warning(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> str | None:
        return label_order_warning(*number_all(self.labels, *self._tags(predictions, truth)), self.labels)

    def report(self, predictions: Sequence[Prediction], truth: Sequence[Any]) -> list[Table | Finding]:
        """Scores of each type of chunk; without a scheme, of each tag, and confusions."""
        if self.scheme is not None:
            by_type = describe_types(*self._tags(predictions, truth))
            return [by_type] if by_type.rows else []
        numbered = number_all(self.labels, *self._tags(predictions, truth))
        never = never_predicted(*numbered)
        return [
            *(describe(*numbered, of="tag", unit="words") for describe in (describe_classes, describe_confusions)),
            *([Finding("note", f"tags that are never predicted: {listed(never, 12)}")] if never else []),
        ]

    # --- as people and files see it ---

    def row(self, prediction: Prediction, examples: Examples, row: int) -> dict[str, Any]:
        return as_row(prediction, examples, row, chunks=self.scheme is not None)

    def columns(self, examples: Examples) -> OutputColumns:
        return row_columns(intents=bool(self.intents), chunks=self.scheme is not None)

    def detail(self, prediction: Prediction, layout: OutputLayout) -> dict[str, Any]:
        """certainty: the probability of the least certain word's tag."""
        return {"certainty": min(prediction.probabilities, default=1.0)} if layout.uncertain else {}

    def evaluated_row(self, prediction: Prediction, truth: Any, examples: Examples, row: int) -> dict[str, Any]:
        gold = {"gold": truth.tags} | ({"gold_intent": truth.intent} if self.intents else {})
        return self.row(prediction, examples, row) | gold

    def format_truth(self, truth: Any, examples: Examples, row: int) -> str:
        tagged = Prediction(truth.tags, details={"intent": truth.intent})
        return as_text(tagged, examples, row, chunks=self.scheme is not None).plain

    def laid_out(self, prediction: Prediction, truth: Any, examples: Examples, row: int) -> dict[str, list[Piece]]:
        sides = {"expected": truth, "predicted": Tagged(prediction.value, prediction.details.get("intent"))}
        chunks = self.scheme is not None
        return {name: marked(side.tags, side.intent, examples, row, chunks=chunks) for name, side in sides.items()}

    def format_prediction(self, prediction: Prediction, examples: Examples, row: int) -> Text:
        return as_text(prediction, examples, row, chunks=self.scheme is not None)

    def lost_in(self, ending: str) -> str | None:
        if ending == ".conllu":
            column_to_write(self.recipe.column, self.conllu_column)
        return "CoNLL columns hold no intents; .jsonl does" if ending.startswith(".conll") and self.intents else None

    def format_file(self, predictions: Sequence[Prediction], examples: Examples, ending: str) -> str:
        if ending == ".conllu":
            return as_conllu(predictions, examples, column_to_write(self.recipe.column, self.conllu_column))
        return as_conll(predictions, examples)

    def describe_targets(self, features: Features, feature: int) -> list[dict[int, str]]:
        assert features.rows is not None
        pairs = zip(features.rows[feature].tolist(), features.labels["labels"][feature].tolist(), strict=True)
        described = {row: self.labels[target] for row, target in pairs if target != IGNORED}
        if self.intents and (intent := int(features.labels["intent"][feature][0])) != IGNORED:
            described[0] = self.intents[intent]
        return [described]
