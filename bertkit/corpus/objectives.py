"""The objectives of pre-training: how sequences are drawn, which tokens are predicted, and by which head.

A new objective is an entry here, its name with a line of help in config.OBJECTIVE_HELP, and a function for what is new in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.corpus.masking import MASKED, choose_tokens, choose_words, mask
from bertkit.corpus.random_bits import Bits
from bertkit.corpus.segments import Segments, draw_ordered, draw_pairs, draw_spans
from bertkit.corpus.shard import Shard
from bertkit.features import Ragged
from bertkit.model.language_model import BertForMaskedLM, BertForPreTraining, BertLMHeadModel, LanguageModel
from bertkit.text.tokenizer import Tokenizer


class Sequences(NamedTuple):
    """B sequences of N tokens. special: (N,) tokens that are never masked, such as [CLS]. begins_word: (N,), valid only for
    whole-word masking. keys: (B,) for each sequence's random bits. masked: the share of the tokens that masked objectives
    predict.
    """

    input_ids: Ragged
    special: NDArray[np.bool_]
    begins_word: NDArray[np.bool_]
    keys: Bits
    masked: float = MASKED


class Targets(NamedTuple):
    """The sequences as the model sees them, the (R,) positions at which it predicts a token, and the (R,) right tokens."""

    input_ids: Ragged
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Objective:
    """What a model learns in pre-training.

    head: the model's class, also in transformers. draw: (shard, max_length, rng) -> the segments of its sequences. targets:
    (sequences, tokenizer, whole_words) -> the Targets. terms: the loss terms, of tokens and, if sequences are pairs of
    segments, of pairs. causal: whether tokens do not attend to later ones. pair_labels: how segment B relates to A, by label.
    min_documents: how many documents a corpus needs for both labels to occur. drawing: the version of `draw` and `targets`,
    which does not change within a run.
    """

    name: str
    head: type[LanguageModel]
    draw: Callable[[Shard, int, np.random.Generator], Segments]
    targets: Callable[[Sequences, Tokenizer, bool], Targets]
    terms: tuple[str, ...]
    causal: bool = False
    pair_labels: tuple[str, ...] = ()
    min_documents: int = 1
    drawing: int = 1

    @property
    def token_term(self) -> str:
        return self.terms[0]

    @property
    def pair_term(self) -> str | None:
        return self.terms[1] if len(self.terms) > 1 else None


def mask_tokens(sequences: Sequences, tokenizer: Tokenizer, whole_words: bool) -> Targets:
    """A share of the tokens, most of them masked."""
    ids, special, begins_word, keys, share = sequences
    if whole_words:
        positions = choose_words(special, begins_word, ids.lengths, keys, share)
    else:
        positions = choose_tokens(special, ids.lengths, keys, share)
    masked, labels = mask(ids, positions, keys, mask_token_id=tokenizer.mask_token_id, candidates=tokenizer.ordinary_ids)
    return Targets(masked, positions, labels)


def next_tokens(sequences: Sequences, tokenizer: Tokenizer, whole_words: bool) -> Targets:
    """At each token but the last, the next one; nothing is masked."""
    ids = sequences.input_ids
    is_last = np.zeros(len(ids.values), dtype=bool)
    is_last[ids.offsets[1:] - 1] = True
    positions = np.flatnonzero(~is_last)
    return Targets(ids, positions, ids.values[positions + 1].astype(np.int64))


OBJECTIVES = {
    objective.name: objective
    for objective in (
        Objective(
            "mlm+nsp",
            BertForPreTraining,
            draw_pairs,
            mask_tokens,
            ("mlm", "nsp"),
            pair_labels=("next", "not next"),
            min_documents=2,
            drawing=3,
        ),
        Objective(
            "mlm+sop",
            BertForPreTraining,
            draw_ordered,
            mask_tokens,
            ("mlm", "sop"),
            pair_labels=("next", "previous"),
            drawing=3,
        ),
        Objective("mlm", BertForMaskedLM, draw_spans, mask_tokens, ("mlm",), drawing=2),
        Objective("clm", BertLMHeadModel, draw_spans, next_tokens, ("lm",), causal=True),
    )
}
