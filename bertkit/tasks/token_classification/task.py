"""Token classification: a tag for every word, as in NER, slot filling and part of speech (Devlin et al., 2019, section 5.3).

With `intent`, a class of the whole sentence is learned jointly (Chen et al., 2019).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.config import option
from bertkit.errors import DataError, ModelError, UsageError, listed
from bertkit.features import IGNORED, Features, Ragged, offsets_of
from bertkit.metrics.classification import measured
from bertkit.model.config import BertConfig
from bertkit.readers import Examples
from bertkit.readers.columns import guess_column, require_column
from bertkit.readers.conll import is_column_of_conll
from bertkit.readers.formats import TAGGED, endings_of, read_file
from bertkit.tasks.class_report import doubt_order
from bertkit.tasks.labels import check_model_labels, in_the_models_order, refuse_other_spellings
from bertkit.tasks.output import FORMATS, as_jsonl
from bertkit.tasks.probabilities import softmax
from bertkit.tasks.task import Encoding, Task
from bertkit.tasks.token_classification.features import encode_words
from bertkit.tasks.token_classification.output import as_conll, as_row, as_text
from bertkit.tasks.token_classification.scores import Intents, score_tags, tag_scorer
from bertkit.tasks.token_classification.sentences import check_tags_named, settle_labels, standard_columns, warn_of_strays
from bertkit.tasks.token_classification.tags import (
    SCHEMES,
    canonical,
    convert,
    count_illegal,
    detect_scheme,
    respell,
    scheme_of,
    transitions,
    viterbi,
)

if TYPE_CHECKING:
    from rich.text import Text
    from torch import nn

    from bertkit.text.tokenizer import Tokenizer

HEADS = ("linear", "bilstm", "crf")
_HEAD_KEY, _INTENTS_KEY = "tagging_head", "intents"  # of config.json, where the head is not transformers' own


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Task):
    """A recipe of this family; see Task for where its data comes from.

    strip: a regular expression that is taken out of each word, for data that marks words within themselves.
    """

    family: ClassVar[str] = "token-classification"
    hf_class: ClassVar[str] = "BertForTokenClassification"
    file_endings: ClassVar[tuple[str, ...]] = endings_of(TAGGED)
    inputs: ClassVar[tuple[str, ...]] = ("tokens", "text", "column", "constrained")
    not_for_input: ClassVar[tuple[str, ...]] = ("column",)
    prediction_endings: ClassVar[tuple[str, ...]] = (*FORMATS, ".conll")

    tokens: str | None = option(None, "column of the words, in JSON or a table: a list, or text parted by spaces")
    tags: str | None = option(None, "column of the tags, likewise")
    text: str | None = option(None, "column of the text (of a pair: the first one)")
    entities: str | None = option(None, "column of the entities of a text: a list of [start, end, label], in characters")
    column: str | None = option(None, "column of the tag in CoNLL files: a number from 1, or in CoNLL-U a name such as xpos")
    labels: tuple[str, ...] | None = option(None, "names of the labels in the order of their numbers; default: from the data")
    scheme: str | None = option(None, "tag scheme to convert the data to; default: as the data has it", choices=SCHEMES)
    head: str = option("linear", "what predicts the tags; only linear opens as a tagger in transformers", choices=HEADS)
    constrained: bool = option(False, "predict only sequences of tags that the scheme allows")
    intent: bool = option(False, "also learn and predict the intent of the whole sentence")
    intent_column: str | None = option(None, "column of the intent; default: intent or label")
    strip: str | None = None
    model_labels: tuple[str, ...] | None = None  # the labels in the order of the model's outputs, once they are settled
    intents: tuple[str, ...] | None = None

    def architecture(self, config: BertConfig) -> str:
        return self.hf_class if self.head == "linear" else "BertModel"

    @property
    def greater_is_better(self) -> bool:
        return not self.metrics or super().greater_is_better

    def has_head(self, config: BertConfig) -> bool:
        if self.intent and _INTENTS_KEY not in config.extra:
            return False
        return super().has_head(config) and config.extra.get(_HEAD_KEY, "linear") == self.head

    def as_trained(self, config: BertConfig) -> Self:
        return replace(self, head=config.extra.get(_HEAD_KEY, "linear"), intent=self.intent or _INTENTS_KEY in config.extra)

    @property
    def needed_head(self) -> str:
        if self.head == "linear" and not self.intent:
            return self.hf_class
        return f"one trained with --head {self.head}{' --intent' * self.intent}"

    def describe_head(self, config: BertConfig) -> str:
        own = f" trained with --head {config.extra[_HEAD_KEY]}" if _HEAD_KEY in config.extra else ""
        return super().describe_head(config) + own

    # --- data ---

    def read_file(self, path: str | Path, *, columns: tuple[str, ...] | None = None) -> Examples:
        column = self.column or (self.tags if is_column_of_conll(self.tags or "") else None)
        return read_file(path, TAGGED, separator=self.separator, column=column, columns=columns or self.columns)

    def split_by(self, examples: Examples) -> tuple[tuple[str, ...], None]:
        guesses = (guess_column(examples.columns, role) for role in ("tokens", "text"))
        found = next((name for name in (self.tokens, self.text, *guesses) if name in examples.columns), None)
        return (found or require_column(examples, self.tokens or "tokens", option="--tokens"),), None

    def load(self, split: str, *, to_predict: bool = False) -> Examples:
        """The sentences of a split: columns `tokens`, unless to predict `tags`, and of raw text `text` and `places`.

        Raises DataError with the row where words and tags do not fit, or an entity does not fit its text.
        """
        rows = self.read(split)
        if split == self.train_split and self.dataset is None and self.tags:  # a recipe's name may be that of its hub data
            check_tags_named(rows, self.tags)
        examples = standard_columns(
            rows,
            named={"tokens": self.tokens, "tags": self.tags, "text": self.text, "entities": self.entities},
            intent=(self.intent_column or "") if self.intent and not to_predict else None,
            strip=self.strip,
            to_predict=to_predict,
            to_train=split == self.train_split,
        )
        if to_predict:
            kind = "plain text, a sentence a line" if "places" in examples.columns else "words"
            progress.note(f"read as {kind}: {len(examples)} sentences, {sum(map(len, examples.columns['tokens']))} words")
        elif not any(examples.columns["tokens"]):
            raise DataError("no row has a word", where=examples.source)
        return examples

    # --- labels ---

    def with_labels(self, examples: Examples, config: BertConfig | None = None) -> Self:
        if self.intent_column and not self.intent:
            raise UsageError("--intent-column names what --intent learns, which is missing", hint="add --intent")
        found = detect_scheme(examples.columns["tags"])
        if found is None and (asked := f"--scheme {self.scheme}" if self.scheme else "--constrained" * self.constrained):
            tag = next(tag for tags in examples.columns["tags"] for tag in tags if detect_scheme([[tag]]) is None)
            raise UsageError(f"{asked} is for chunk tags such as B-PER; the data has {tag!r}")
        scheme = self.scheme or found
        if found is None:
            warn_of_strays(examples)
        else:
            turned = "" if scheme == found else f", converted to {scheme}"
            progress.note(f"tag scheme of the training data: {found}{turned}")
        recipe = replace(self, scheme=scheme)
        tags, _ = recipe._tags(examples)
        if self.scheme is not None and self.labels is None:
            tags = [[canonical(tag) for tag in row] for row in tags]  # BMES and BILOU too are asked to become IOBES
        labels = settle_labels(tags, self.labels, examples)
        outputs = labels if config is None else in_the_models_order(labels, config)
        return replace(recipe, labels=labels, model_labels=outputs, intents=self._intents_of(examples, config))

    def _intents_of(self, examples: Examples, config: BertConfig | None) -> tuple[str, ...] | None:
        """The intents of the training data, in the model's order. Raises ModelError where it has others."""
        if not self.intent:
            return None
        intents = tuple(sorted(set(examples.columns["intent"])))
        known = intents if config is None else tuple(config.extra[_INTENTS_KEY])
        if set(known) != set(intents):
            what = f"the model's intents are {', '.join(known[:12])}; the data's are {', '.join(intents[:12])}"
            raise ModelError(what, hint="--fresh-head puts a new head on the encoder")
        return known

    def with_model_labels(self, config: BertConfig, where: str) -> Self:
        intents = tuple(config.extra[_INTENTS_KEY]) if self.intent else None
        names = tuple((config.id2label or {0: "LABEL_0", 1: "LABEL_1"}).values())
        scheme = detect_scheme([[name] for name in names]) and scheme_of(names)
        if self.scheme is not None and scheme is not None and "iobes" in (scheme, self.scheme) and scheme != self.scheme:
            raise UsageError(f"--scheme is {self.scheme}; the model's labels are of {scheme}", where=where)
        if self.constrained and scheme is None:
            raise UsageError(f"--constrained is for chunk tags such as B-PER; the model has {names[0]!r}", where=where)
        if self.labels is None:
            return replace(self, labels=names, model_labels=names, scheme=self.scheme or scheme, intents=intents)
        self.check_head(config, where)
        return replace(self, model_labels=in_the_models_order(self.labels, config), intents=intents)

    def check_head(self, config: BertConfig, where: str) -> None:
        if self.labels is not None:
            check_model_labels(self.labels, config, where)

    def model_config(self, config: BertConfig) -> BertConfig:
        assert self.model_labels is not None, "with_labels or with_model_labels comes first"
        config = super().model_config(config)
        own: dict[str, Any] = {_HEAD_KEY: self.head} if self.head != "linear" else {}
        own |= {_INTENTS_KEY: list(self.intents)} if self.intents else {}
        return replace(config, id2label=dict(enumerate(self.model_labels)), extra=config.extra | own)

    def _tags(self, examples: Examples) -> tuple[list[list[str]], str | None]:
        """The tags in the recipe's scheme, and the scheme they were converted from."""
        tags: list[list[str]] = examples.columns["tags"]
        if self.scheme is None:
            return tags, None
        found = detect_scheme(tags)
        if found is None:
            row = next(row for row, sentence in enumerate(tags) if detect_scheme([sentence]) is None)
            what = f"not all tags are chunk tags such as B-PER, which training has: {', '.join(dict.fromkeys(tags[row]))}"
            raise DataError(what, where=examples.where(row), hint="is it another column? --column says which")
        if found == self.scheme or (self.labels is not None and not count_illegal(tags, self.scheme)):
            converted = None
        else:
            tags, converted = [convert(row, self.scheme) for row in tags], found
        return respell(tags, self.labels or ()), converted

    # --- features, model, predictions ---

    def encode(self, examples: Examples, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoding:
        """A feature a sentence, reading each word's first piece; several where it is longer than max_length."""
        if max_length < 3:
            raise UsageError(f"--max-length is {max_length}; expected at least 3, for [CLS], a word and [SEP]")
        found = encode_words(examples.columns["tokens"], tokenizer, max_length, read_cls=self.intent)
        remarks = [f"{found.num_cut} longer than {max_length} in overlapping windows"] if found.num_cut else []
        if found.num_shortened:
            remarks.append(f"{found.num_shortened} words of more than {max_length - 2} pieces shortened")
        if not labelled:
            return Encoding(found.features, tuple(remarks))
        targets, more = self._targets(examples)
        labels = {"labels": Ragged(targets, found.words)}
        if self.intent:  # nothing is to be learned at [CLS] but the intent, and that once a sentence
            of_window = self._intent_ids(examples)[found.features.examples]
            more = [*more, *self._unknown_intents(examples)]
            labels = {
                "labels": Ragged(np.insert(targets, found.words[:-1], IGNORED), found.words + np.arange(len(found.words))),
                "intent": Ragged.column(np.where(found.firsts, of_window, IGNORED)),
            }
        return Encoding(replace(found.features, labels=labels), (*remarks, *more))

    def _targets(self, examples: Examples) -> tuple[NDArray[np.int64], list[str]]:
        """The number of each word's tag among the model's outputs, all sentences in a row; IGNORED for one it does not have."""
        assert self.model_labels is not None, "with_labels or with_model_labels comes first"
        tags, converted = self._tags(examples)
        remarks = [f"tags converted from {converted} to {self.scheme}"] if converted else []
        if self.scheme is not None and (illegal := count_illegal(tags, self.scheme)):
            remarks.append(f"{illegal} tags that {self.scheme} does not allow where they stand")
            if self.head == "crf" and self.constrained:  # which gives them no chance whatever it learns
                tags = [convert(row, self.scheme) if count_illegal([row], self.scheme) else row for row in tags]
        number = {label: at for at, label in enumerate(self.model_labels)}
        unknown = Counter(tag for row in tags for tag in row if tag not in number)
        refuse_other_spellings(
            unknown,
            self.model_labels,
            "tag",
            lambda tag: examples.where(next(at for at, sentence in enumerate(tags) if tag in sentence)),
        )
        if unknown:
            remarks.append(f"{unknown.total()} words with tags that training does not have ({listed(list(unknown))})")
        return np.array([number.get(tag, IGNORED) for row in tags for tag in row], dtype=np.int64), remarks

    def _intent_ids(self, examples: Examples) -> NDArray[np.int64]:
        number = {name: at for at, name in enumerate(self.intents or ())}
        return np.array([number.get(name, IGNORED) for name in examples.columns["intent"]], dtype=np.int64)

    def _unknown_intents(self, examples: Examples) -> list[str]:
        """A remark on intents that training does not have. Raises DataError for one that is another's in other letters."""
        intents = examples.columns["intent"]
        unknown = Counter(name for name in intents if name not in (self.intents or ()))
        refuse_other_spellings(unknown, self.intents or (), "intent", lambda name: examples.where(intents.index(name)))
        return [f"{unknown.total()} with intents that training does not have ({listed(list(unknown))})"] if unknown else []

    def build_model(self, config: BertConfig) -> nn.Module:
        from bertkit.model.heads import BertForTokenClassification

        if config.is_decoder and self.intents:
            hint = "leave out --intent, or take another model"
            raise UsageError("--intent is read from [CLS], which in a left-to-right model reads nothing but itself", hint=hint)
        legal = None
        if self.head == "crf" and self.constrained:
            import torch

            # A window may begin and end within a chunk: where sentences do is for `decode` to see to.
            edge, follow = torch.ones(config.num_labels, dtype=torch.bool), torch.from_numpy(self._legal()[1])
            legal = (edge, follow, edge)
        return BertForTokenClassification(config, head=self.head, legal=legal, num_intents=len(self.intents or ()))

    def _legal(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        return transitions(self.model_labels or (), self.scheme)

    def decode(self, outputs: Mapping[str, Sequence[NDArray]], features: Features, examples: Examples) -> list[dict[str, Any]]:
        """For each sentence as many tags and probabilities as it has words; with `intent` its intent too."""
        assert self.model_labels is not None
        names = np.array(self.model_labels, dtype=object)
        skip = 1 if self.intent else 0
        words = [len(sentence) for sentence in examples.columns["tokens"]]
        bounds = offsets_of(np.array(words, dtype=np.int64))
        logits = np.concatenate([np.zeros((0, len(names))), *(rows[skip:] for rows in outputs.get("logits", ()))])  # (words, C)
        logits -= logits.max(axis=1, keepdims=True, initial=-np.inf)
        log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))  # (words, C)
        best = log_probabilities.argmax(axis=1)
        if outputs.get("path"):  # a CRF's best sequence; its logits are marginals already
            best = np.concatenate([rows[skip:] for rows in outputs["path"]]).astype(np.int64)
        if self.constrained and self.scheme is not None:
            best = self._made_legal(best, log_probabilities, bounds)
        probabilities = np.exp(log_probabilities[np.arange(len(best)), best])
        predictions: list[dict[str, Any]] = [
            {"tags": names[best[start:end]].tolist(), "probabilities": probabilities[start:end].tolist()}
            for start, end in pairwise(bounds)
        ]
        if self.intent:
            self._add_intents(predictions, outputs.get("intent", ()), features)
        return predictions

    def _made_legal(
        self, best: NDArray[np.int64], log_probabilities: NDArray[np.float64], bounds: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The best legal sequence; for a CRF only where its own is illegal, at the ends or at the seam of two windows."""
        legal = viterbi(log_probabilities, bounds, *self._legal())
        if self.head != "crf":
            return legal
        names = np.array(self.model_labels, dtype=object)
        found = best.copy()
        for start, end in pairwise(bounds):
            if count_illegal([names[best[start:end]].tolist()], self.scheme or ""):
                found[start:end] = legal[start:end]
        return found

    def _add_intents(self, predictions: list[dict[str, Any]], logits: Sequence[NDArray], features: Features) -> None:
        assert self.intents is not None
        for prediction in predictions:
            prediction |= {"intent": None, "intent_probability": None}  # of a sentence without words
        for example, first in zip(*np.unique(features.examples, return_index=True), strict=True):
            probabilities = softmax(logits[first][0])  # the first window has the sentence's own [CLS]
            at = int(probabilities.argmax())
            predictions[example] |= {"intent": self.intents[at], "intent_probability": float(probabilities[at])}

    def outcomes(self, predictions: Sequence[Mapping[str, Any]]) -> set[Any]:
        return {tag for prediction in predictions for tag in prediction["tags"]}

    def score(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, float | None]:
        """Chunk scores where the tags follow a scheme, else accuracy; metrics of the recipe's own come first."""
        predicted, gold = [list(p["tags"]) for p in predictions], self._tags(examples)[0]
        own = measured(self.metrics, *(np.array([tag for row in rows for tag in row]) for rows in (predicted, gold)))
        if self.scheme is not None and (illegal := count_illegal(predicted, self.scheme)):
            progress.note(
                f"{illegal} predicted tags that {self.scheme} does not allow (--constrained predicts legal ones alone)"
            )
        return own | score_tags(predicted, gold, self.scheme, self._intents(predictions, examples))

    def scorer(
        self, predictions: Sequence[Mapping[str, Any]], examples: Examples
    ) -> Callable[[NDArray[np.int64]], dict[str, float | None]]:
        """The scores of chunks, words, intents and sentences; metrics of the recipe's own are not among them."""
        predicted, gold = [list(p["tags"]) for p in predictions], self._tags(examples)[0]
        return tag_scorer(predicted, gold, self.scheme, self._intents(predictions, examples))

    def _intents(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> Intents | None:
        """Predicted and gold ones, where the model has them."""
        return ([p["intent"] for p in predictions], examples.columns["intent"]) if self.intent else None

    # --- what a user sees ---

    def doubts(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[str]:
        assert self.model_labels is not None, "with_labels or with_model_labels comes first"
        predicted, gold = [t for p in predictions for t in p["tags"]], [t for row in self._tags(examples)[0] for t in row]
        number = {name: at for at, name in enumerate(dict.fromkeys((*self.model_labels, *predicted, *gold)))}
        return doubt_order([*number], [number[tag] for tag in predicted], [number[tag] for tag in gold], self.model_labels)

    def wrongness(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> NDArray[np.float64]:
        pairs = zip(predictions, self._tags(examples)[0], strict=True)
        wrong = np.array([float(sum(p != g for p, g in zip(found["tags"], gold, strict=True))) for found, gold in pairs])
        intents = self._intents(predictions, examples)
        return wrong + (np.array([p != g for p, g in zip(*intents, strict=True)]) if intents else 0)

    def texts_of(self, examples: Examples) -> list[tuple[str, ...]]:
        return [(" ".join(words),) for words in examples.columns["tokens"]]

    def labels_of(self, examples: Examples) -> list[tuple[str, ...]]:
        intents: list[tuple[str, ...]] = [(intent,) for intent in examples.columns.get("intent", ())]
        intents = intents or [()] * len(examples)
        return [(*tags, *its) for tags, its in zip(examples.columns.get("tags", [()] * len(examples)), intents, strict=True)]

    def gold(self, examples: Examples) -> list[str]:
        rows = zip(examples.columns["tokens"], self._tags(examples)[0], strict=True)
        marked = ((f"{word}[{tag}]" if tag != "O" else word for word, tag in zip(*row, strict=True)) for row in rows)
        intents = examples.columns.get("intent", [None] * len(examples))
        return [" ".join([*words, *([f"({its})"] if its else [])]) for words, its in zip(marked, intents, strict=True)]

    def describe_labels(self, features: Features, at: int) -> list[dict[int, str]]:
        assert features.rows is not None
        assert self.model_labels is not None
        pairs = zip(features.rows[at].tolist(), features.labels["labels"][at].tolist(), strict=True)
        described = {row: self.model_labels[target] for row, target in pairs if target != IGNORED}
        if self.intent and (intent := int(features.labels["intent"][at][0])) != IGNORED:
            described[0] = (self.intents or ())[intent]
        return [described]

    def rows(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> list[dict[str, Any]]:
        return [as_row(prediction, examples, at, chunks=self.scheme is not None) for at, prediction in enumerate(predictions)]

    def files(self, predictions: Sequence[Mapping[str, Any]], examples: Examples) -> dict[str, str]:
        gold = {"gold": self._tags(examples)[0]} | ({"gold_intent": examples.columns["intent"]} if self.intent else {})
        rows = enumerate(self.rows(predictions, examples))
        return {"predictions.jsonl": as_jsonl([{**row, **{name: its[at] for name, its in gold.items()}} for at, row in rows])}

    def show(self, prediction: Mapping[str, Any], examples: Examples, at: int) -> Text:
        return as_text(prediction, examples, at, chunks=self.scheme is not None)

    def formatted(self, predictions: Sequence[Mapping[str, Any]], examples: Examples, ending: str) -> str:
        if ending == ".conll":
            if self.intent:
                progress.warn("CoNLL columns hold no intents; .jsonl does")
            return as_conll(predictions, examples)
        return super().formatted(predictions, examples, ending)
