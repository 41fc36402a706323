"""A pre-trained model on the held-out documents of corpora: scores, and masked tokens with the most likely ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertkit import manifest, progress
from bertkit.config import PretrainConfig
from bertkit.corpus.corpora import Corpus, open_corpora
from bertkit.corpus.entities import hash_of_entities
from bertkit.corpus.objectives import OBJECTIVES
from bertkit.errors import UsageError
from bertkit.features import Ragged
from bertkit.model.config import BLOCK_KEY
from bertkit.model.devices import start_accelerator
from bertkit.model.pretrained import open_pretrained, refuse_too_long
from bertkit.readers import Examples
from bertkit.report import Piece
from bertkit.runs.encoded import Split
from bertkit.runs.inference.language_model import LanguageModelPredictor, objective_of, settings_of
from bertkit.runs.pretraining.held_out import score_language_model
from bertkit.runs.pretraining.sequences import HeldOutSequences, held_out_sequences
from bertkit.runs.run_file import corpora_of, read_run_file, unfinished_warning

if TYPE_CHECKING:
    from accelerate import Accelerator

FILLS = 3  # how many of a mask's most likely tokens a report shows


def evaluate_corpora(name: str, corpora: Sequence[str | Path], overrides: Mapping[str, Any]) -> dict[str, float]:
    """A model's held-out loss, perplexity and accuracies, on its own corpora or others with the same tokenizer."""
    held_out = open_held_out(name, corpora, overrides)
    run = read_run_file(held_out.model.pretrained.folder)
    if run is not None and (warning := unfinished_warning(name, run)):
        progress.warn(warning)
    progress.note(f"computed in {held_out.model.precision.name}")
    return {f"validation/{score}": value for score, value in held_out.scores().items()}


def open_held_out(name: str, corpora: Sequence[str | Path], overrides: Mapping[str, Any]) -> HeldOut:
    """A model and held-out sequences from its own corpora, or from others with the same tokenizer. Raises UsageError."""
    pretrained = open_pretrained(name)
    values = read_run_file(pretrained.folder)
    folders = [*corpora]
    if not corpora:
        if values is None:
            raise UsageError(f"{name} is not a bertkit run and has no corpus of its own", hint="choose one: --corpus C")
        folders = [f"{data['source']}:{data.get('share', 1)}" for data in corpora_of(values).values()]
    block = pretrained.config.extra.get(BLOCK_KEY)  # also where run.json is missing
    objective = str(block.get("objective")) if isinstance(block, Mapping) else ""
    defaults = {"objective": objective} if objective in OBJECTIVES else {}
    config = settings_of(defaults | (values or {}).get("training", {}), overrides)
    refuse_too_long(config.lengths()[-1][0], pretrained.config)
    config = replace(config, objective=objective_of(pretrained, config.objective).name)
    known = {data["entities"] for data in corpora_of(values or {"data": {}}).values() if "entities" in data}
    if known and config.entities is not None and hash_of_entities(config.entities) not in known:
        progress.warn(f"the entities in {config.entities} have changed since the training; other tokens are masked now")
    opened = open_corpora(folders, to_train=False)
    opened[0].refuse_other_tokenizer(pretrained.tokenizer, name)
    accelerator = start_accelerator(config.device)
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    sequences = held_out_sequences(opened, pretrained.tokenizer, config, **place)
    if sequences is None:
        where = str(opened[0].folder)
        raise UsageError("the corpus has no held-out documents", where=where, hint="build it with --validation 1%")
    return HeldOut(LanguageModelPredictor(pretrained, accelerator, config.precision), sequences, opened, config, accelerator)


class HeldOut(NamedTuple):
    """A pre-trained model, and this process's share of the held-out sequences of corpora."""

    model: LanguageModelPredictor
    sequences: HeldOutSequences
    corpora: Sequence[Corpus]
    config: PretrainConfig
    accelerator: Accelerator

    def scores(self) -> dict[str, float]:
        """Loss, perplexity and accuracies over all processes, on all sequences and on those of each corpus and source."""
        scores = score_language_model(self.model.model, self.sequences, self.config.micro_batch_tokens, self.accelerator)
        manifest.raise_if_damaged()
        self.accelerator.wait_for_everyone()
        return scores

    def filled(self, most: int) -> list[list[Piece]]:
        """The first sequences, with each masked token marked with the most likely ones; none for a causal model."""
        tokenizer, features = self.model.pretrained.tokenizer, self.sequences.features
        features = features.take(np.arange(min(most, len(features))))
        if self.model.pretrained.config.is_decoder:
            return []
        assert features.rows is not None
        names = {number: token for token, number in tokenizer.vocab.items()}
        mask_token, whole = tokenizer.mask_token, [*map(features.input_ids.__getitem__, range(len(features)))]
        texts = [" ".join(names[number] for number in ids.tolist()[1:-1]).replace(" ##", "") for ids in whole]
        masks = [np.flatnonzero(ids == tokenizer.mask_token_id) for ids in whole]
        examples = Examples({"text": texts}, str(self.corpora[0].folder), range(len(texts)))
        to_fill = replace(features, rows=Ragged.of([row.tolist() for row in masks]), labels={}, examples=np.arange(len(texts)))
        found = []
        for row, prediction in enumerate(self.model.decode(Split(examples, to_fill))):
            labels = features.labels[self.model.model.term][row]
            own = features.rows[row]
            right = dict(zip(own[len(own) - len(labels) :].tolist(), labels.tolist(), strict=True))
            first, *parts = texts[row].split(mask_token)
            pieces = [Piece(first)]
            for place, fills, part in zip(masks[row].tolist(), prediction.details["fills"], parts, strict=True):
                likeliest = ", ".join(f"{fill['token']} {fill['probability']:.2f}" for fill in fills[:FILLS])
                expected = right.get(place, tokenizer.mask_token_id)  # the text itself may have a [MASK]
                pieces += [Piece(names[expected], likeliest), Piece(part)]
            found.append(pieces)
        return found
