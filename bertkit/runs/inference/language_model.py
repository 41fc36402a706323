"""Use a pre-trained model directly: fill [MASK] in texts, or score texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.text import Text
from torch import Tensor, nn

from bertkit.config import PretrainConfig, convert, options_of
from bertkit.corpus.objectives import OBJECTIVES, Objective
from bertkit.errors import DataError, ModelError, UsageError, flag_of, listed
from bertkit.features import Features, Ragged
from bertkit.model.batch import Batch, Outputs
from bertkit.model.config import PRETRAINING
from bertkit.model.devices import Processes, start_accelerator
from bertkit.model.directory import read_config, resolve
from bertkit.model.heads import Head
from bertkit.model.language_model import LanguageModel
from bertkit.model.pretrained import Pretrained, open_pretrained, refuse_too_long
from bertkit.progress import NO_BAR, Bar, plain
from bertkit.readers import Examples
from bertkit.readers.content import source_name
from bertkit.readers.formats import LINES, TABLES, read_blocks
from bertkit.runs.encoded import Split
from bertkit.runs.inference.predictor import LONGEST, Predictor, Row, checked_rows
from bertkit.runs.run_file import read_run_file, refuse_folder_of_runs, refuse_without_model
from bertkit.tasks.counts import Count
from bertkit.tasks.output import OutputColumns
from bertkit.tasks.presentation import Prediction, Presentation
from bertkit.tasks.recipe import Recipe
from bertkit.text.tokenizer import Encoded

_HEADS = {objective.head.__name__ for objective in OBJECTIVES.values()}
# Only the file's name decides whether it is a table: a line of text may contain commas.
MASKED_TEXTS = (*(replace(form, looks_like=lambda content: False) for form in TABLES), LINES)
TOP_K = 5  # tokens for each mask
TEXTS_SCORED = 256  # at once; for a masked model, each has as many sequences as it has tokens


def is_language_model(name: str) -> bool:
    """Whether this is a pre-training run, or any other model with a pre-training head."""
    refuse_folder_of_runs(Path(name))
    folder = resolve(name)
    values = read_run_file(folder)
    if values is not None:
        refuse_without_model(folder)
        return values["recipe"].get("family") == PRETRAINING
    return bool(set(read_config(folder).extra.get("architectures") or ()) & _HEADS)


class LanguageModelPredictor(Predictor):
    """A pre-trained model: `predict` fills each [MASK] of a text, `score` says how likely texts are.

    A prediction's value is the text with its masks filled; details["fills"]: for each mask the top_k most probable tokens.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        processes: Processes,
        precision: str = "auto",
        *,
        top_k: int = TOP_K,
        opening: Mapping[str, Any] = {},
    ) -> None:
        """opening: options for files: encoding, max_file_size, on_error."""
        super().__init__(pretrained, processes, precision)
        self.top_k, self.opening = top_k, opening

    def _build(self) -> Head:
        return objective_of(self.pretrained).head(self.pretrained.config)

    @property
    def presentation(self) -> Presentation:
        return Filled(self.pretrained.tokenizer.mask_token)

    def read_blocks(self, file: str) -> Iterator[Examples]:
        """The lines of a file, or the rows of a table with a column `text`.

        Raises UsageError if there are only a few rows and none has a mask to fill.
        """
        blocks = map(self.standard, read_blocks(file, MASKED_TEXTS, **self.opening))
        first, *others = islice(blocks, 2)
        mask_token = self.pretrained.tokenizer.mask_token
        encoded = self._encode([text for text in first.columns["text"] if isinstance(text, str) and mask_token in text])
        if not others and not any(map(len, self.masks(encoded))):
            what = f"no {'line' if [*first.columns] == ['text'] else 'text'} has a {mask_token} to fill"
            if len(encoded.input_ids):
                what += f" in its first {self.max_length} tokens"
            hint = 'for example: echo "The [MASK] is closed." | bertkit predict MODEL'
            raise UsageError(what, where=source_name(file), hint=hint)
        yield from chain([first], others, blocks)

    def _columns(self, row: Row) -> Mapping[str, Any]:
        if not isinstance(row, str) and not (isinstance(row, Mapping) and isinstance(row.get("text"), str)):
            raise ValueError(f"the row is {row!r}; expected a string")
        return {"text": row} if isinstance(row, str) else row

    def refused(self, rows: Examples) -> dict[int, str]:
        if self.opening.get("on_error") != "skip":
            return {}
        texts = enumerate(rows.columns["text"])
        return {
            row: f"the row is empty or cannot be read ({rows.where(row)})" for row, text in texts if not isinstance(text, str)
        }

    def standard(self, examples: Examples) -> Examples:
        if "text" not in examples.columns:
            what = f"no column 'text'; columns: {listed([*examples.columns], 12)}"
            raise DataError(what, where=examples.source, hint="call the column with the texts 'text'")
        return examples

    def _encode(self, texts: Sequence[str]) -> Encoded:
        with self._encoding:
            return self.pretrained.tokenizer.encode(texts, max_length=self.max_length)

    def masks(self, encoded: Encoded) -> list[NDArray[np.int64]]:
        """The positions of the masks among each text's tokens."""
        mask = self.pretrained.tokenizer.mask_token_id
        return [np.flatnonzero(encoded.input_ids[text] == mask) for text in range(len(encoded.input_ids))]

    def encode(self, examples: Examples) -> tuple[Split, tuple[Count, ...]]:
        """Features of the texts that have masks. Raises UsageError for a causal model."""
        _refuse_causal(self.pretrained)
        encoded = self._encode(examples.texts("text", may_be_empty=True))
        masks = self.masks(encoded)
        masked = np.flatnonzero([len(places) for places in masks])
        rows = Ragged.of([masks[text].tolist() for text in masked])
        features = Features(encoded.input_ids.take(masked), encoded.token_type_ids.take(masked), masked, rows=rows)
        truncated = Count(int(encoded.truncated.sum()), f"{{}} longer than {self.max_length} truncated")
        return Split(examples, features), (truncated,)

    def decode(self, split: Split, bar: Bar = NO_BAR, among: Collection[str] | None = None) -> list[Prediction]:
        """As in every Predictor. among: the only tokens of the vocabulary to fill in; their probabilities are over the whole
        vocabulary.
        """
        texts = split.examples.columns["text"]
        vocab = self.pretrained.tokenizer.vocab
        names = {vocab[token]: token for token in (vocab if among is None else among)}
        likeliest = Likeliest(self.model, self.top_k, torch.tensor(sorted(names), device=self.processes.device))
        self._multiply(likeliest)
        found = self._run(likeliest, split.features, bar)
        fills: list[list[list[dict[str, Any]]]] = [[] for _ in texts]
        for text, probabilities, tokens in zip(
            split.features.examples, found.get("probabilities", ()), found.get("tokens", ()), strict=True
        ):
            fills[text] = [
                [{"token": names[number], "probability": p} for p, number in zip(*pair, strict=True)]
                for pair in zip(probabilities.tolist(), tokens.tolist(), strict=True)
            ]
        mask_token = self.pretrained.tokenizer.mask_token
        return [
            Prediction(filled_text(text, own, mask_token), details={"fills": own})
            for text, own in zip(texts, fills, strict=True)
        ]

    def score(self, texts: Iterable[str]) -> NDArray[np.float64]:
        """The log-probability of each text, in nats: (texts,). Raises DataError with the row for anything but a text.

        For a masked model, the sum over tokens, each masked alone (Salazar et al., 2020: the pseudo-log-likelihood); for a
        causal model, the sum over tokens, each given those before it. [SEP] does not count.
        """
        module: LanguageModel = self.model
        given: list[Any] = [*checked_rows(texts)]
        for row, text in enumerate(given):
            if not isinstance(text, str):
                raise DataError(f"the row is {text!r}; expected a string", where=f"rows:{row}")
        encoded = self._encode(given)
        found = np.zeros(len(given))
        for first in range(0, len(given), TEXTS_SCORED):
            features = self._targets(encoded, range(first, min(first + TEXTS_SCORED, len(given))), module)
            scored = self._run(module, features).get(module.term, [])  # none if all texts are empty
            np.add.at(found, features.examples, [float(rows[:, 0].sum()) for rows in scored])
        return found

    def _targets(self, encoded: Encoded, texts: range, module: LanguageModel) -> Features:
        """Features that score texts: one per token for a masked model, one per text for a causal one."""
        whole: list[list[int]] = [encoded.input_ids[text].tolist() for text in texts]
        if self.pretrained.config.is_decoder:
            sequences, examples = whole, [*texts]
            rows = [[*range(len(ids) - 2)] for ids in whole]
            labels = [ids[1:-1] for ids in whole]
        else:
            mask, first = self.pretrained.tokenizer.mask_token_id, [0] if module.pairs else []
            places = [(text, ids, place) for text, ids in zip(texts, whole, strict=True) for place in range(1, len(ids) - 1)]
            sequences = [[*ids[:place], mask, *ids[place + 1 :]] for _, ids, place in places]
            examples = [text for text, _, _ in places]
            rows = [[*first, place] for _, _, place in places]
            labels = [[ids[place]] for _, ids, place in places]
        input_ids = Ragged.of(sequences)
        segments = Ragged(np.zeros(len(input_ids.values), dtype=np.uint8), input_ids.offsets)
        terms = {module.term: Ragged.of(labels)} | ({"nsp": Ragged.column([0] * len(sequences))} if module.pairs else {})
        return Features(input_ids, segments, np.array(examples, dtype=np.int64), rows=Ragged.of(rows), labels=terms)


class Likeliest(nn.Module):
    """A language model as a module whose logits are the k most probable tokens at each row that is read.

    "probabilities" and "tokens" are (R, k). ids: the candidate tokens.
    """

    def __init__(self, model: LanguageModel, k: int, ids: Tensor) -> None:
        super().__init__()
        self.model, self.k, self.ids = model, k, ids
        self.training = model.training  # otherwise `outputs_of` would change the mode of the model, which threads share

    def forward(self, batch: Batch) -> Outputs:
        probabilities, tokens = self.model.likeliest(batch, self.k, self.ids)
        return Outputs({}, {"probabilities": probabilities, "tokens": tokens})


class Filled(Presentation):
    """How filled masks are shown and written."""

    family = "a pre-trained model"

    def __init__(self, mask_token: str) -> None:
        self.mask_token = mask_token

    def row(self, prediction: Prediction, examples: Examples, row: int) -> dict[str, Any]:
        return {"text": examples.columns["text"][row], **prediction.details}

    def columns(self, examples: Examples) -> OutputColumns:
        return OutputColumns(("text",), ("fills",))

    @property
    def details(self) -> Mapping[str, str]:
        return {"top_k": "fills"}

    def format_prediction(self, prediction: Prediction, examples: Examples, row: int) -> Text:
        """A line with its masks filled, and below it the most probable tokens of each mask."""
        own, line = prediction.details["fills"], Text()
        for part, is_token in fill_masks(examples.columns["text"][row], own, self.mask_token):
            line += Text(plain(part).plain, style="bold green" if is_token else "")
        for fills in own:
            likeliest_tokens = "  ".join(f"{fill['token']} {fill['probability']:.2f}" for fill in fills)
            line += Text(f"\n  {plain(likeliest_tokens)}", style="dim")
        return line


def open_to_fill(name: str, overrides: Mapping[str, Any], *, top_k: int | None) -> LanguageModelPredictor:
    """A pre-trained model with the options of a command. Raises UsageError for a causal one, and for options of tasks."""
    overrides = dict(overrides)
    given = [name for name in ("encoding", "max_file_size", "on_error") if name in overrides]
    opening: dict[str, Any] = {name: convert(options_of(Recipe)[name], overrides.pop(name)) for name in given}
    refuse_task_options(overrides)
    pretrained = open_pretrained(name)
    _refuse_causal(pretrained)
    longest = min(LONGEST, pretrained.config.max_position_embeddings)
    config = settings_of({}, {"max_length": longest, **overrides})
    refuse_too_long(config.max_length, pretrained.config)
    processes = start_accelerator(config.device)
    filler = LanguageModelPredictor(pretrained, processes, config.precision, top_k=top_k or TOP_K, opening=opening)
    filler.max_length, filler.micro_batch_tokens = config.max_length, config.micro_batch_tokens
    return filler


def _refuse_causal(pretrained: Pretrained) -> None:
    if pretrained.config.is_decoder:
        hint = "use it in bertkit finetune or bertkit eval"
        raise UsageError("a causal model cannot fill masks", where=pretrained.name, hint=hint)


def fill_masks(text: str, fills: Sequence[Sequence[Mapping[str, Any]]], mask_token: str) -> list[tuple[str, bool]]:
    """A text in parts, with each mask replaced by its most probable token, and whether a part is such a token.

    A token such as "##ing" continues the word before it. Masks that were truncated have no fills and stay.
    """
    first, *others = text.split(mask_token)
    parts = [(first, False)]
    for number, other in enumerate(others):
        token = str(fills[number][0]["token"]) if number < len(fills) else mask_token
        if token.startswith("##"):
            before, is_token = parts[-1]
            parts[-1] = (before.rstrip(), is_token)
        parts += [(token.removeprefix("##"), number < len(fills)), (other, False)]
    return parts


def filled_text(text: str, fills: Sequence[Sequence[Mapping[str, Any]]], mask_token: str) -> str:
    """The parts of `fill_masks` as one text."""
    return "".join(part for part, _ in fill_masks(text, fills, mask_token))


def refuse_task_options(overrides: Mapping[str, Any]) -> None:
    """Raise UsageError for options that apply to tasks only."""
    for name in overrides:
        if name not in options_of(PretrainConfig):
            hint = "fine-tune it first, or give the task with --recipe"
            raise UsageError(f"{flag_of(name)} does not apply to a pre-trained model", hint=hint)


def settings_of(training: Mapping[str, Any], overrides: Mapping[str, Any]) -> PretrainConfig:
    """A run's settings, overridden by a command's."""
    return PretrainConfig.of({**training, **({"phases": None} if "max_length" in overrides else {}), **overrides})


def objective_of(pretrained: Pretrained, preferred: str | None = None) -> Objective:
    """The preferred objective if the model has its head, else the first one whose head it has. Raises ModelError."""
    architectures = pretrained.config.extra.get("architectures") or []
    for objective in sorted(OBJECTIVES.values(), key=lambda objective: objective.name != preferred):
        if objective.head.__name__ in architectures:
            return objective
    what = f"the model is {', '.join(architectures) or 'an encoder without a head'}; expected {' or '.join(sorted(_HEADS))}"
    raise ModelError(what, where=pretrained.name)
