"""Sentences of words as features: pieces, rows to read, and windows for sentences longer than the model supports.

Every word is read in exactly one place: at its first piece, in the window where it has the most context.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.features import IGNORED, Features, Ragged, offsets_of, ranges
from bertkit.tasks.probabilities import softmax

if TYPE_CHECKING:
    from bertkit.text.tokenizer import Tokenizer


class WordFeatures(NamedTuple):
    """features: windows in the order of their sentences, without labels. firsts: (F,) whether a window begins its sentence.

    words: (F + 1,) offsets, among all words, of the words that each window reads. num_cut: the number of sentences with several
    windows; num_shortened: the number of words with more pieces than a window holds, which lose the rest.
    """

    features: Features
    firsts: NDArray[np.bool_]
    words: NDArray[np.int64]
    num_cut: int
    num_shortened: int

    def labels_with_intents(self, targets: NDArray[np.int64], intents: NDArray[np.int64]) -> dict[str, Ragged]:
        """The labels with intents: at [CLS], where the intent is read, no tag is learned; the intent is learned once per
        sentence. targets: of all words; intents: of each sentence.
        """
        of_words = Ragged(np.insert(targets, self.words[:-1], IGNORED), self.words + np.arange(len(self.words)))
        return {"labels": of_words, "intent": Ragged.column(np.where(self.firsts, intents[self.features.examples], IGNORED))}


def encode_words(sentences: Sequence[Sequence[str]], tokenizer: Tokenizer, max_length: int, *, read_cls: bool) -> WordFeatures:
    """[CLS] pieces [SEP] for each sentence, or for each of its windows; none for a sentence without words.

    A word that tokenizes to nothing is [UNK]. Rows are the words' first pieces; with read_cls, before them [CLS].
    """
    room = max_length - 2
    numbers: dict[str, int] = {}
    flat = [numbers.setdefault(word, len(numbers)) for sentence in sentences for word in sentence]
    pieces = _pieces_of(list(numbers), tokenizer).take(np.array(flat, dtype=np.int64))
    num_shortened = int((pieces.lengths > room).sum())
    if num_shortened:
        kept = np.minimum(pieces.lengths, room)
        pieces = pieces.spans(pieces.offsets[:-1], kept)

    bounds = offsets_of(np.fromiter(map(len, sentences), np.int64, len(sentences)))  # of sentences, in words
    begins, ends = pieces.offsets[bounds[:-1]], pieces.offsets[bounds[1:]]  # of sentences, in pieces
    one = np.flatnonzero((ends - begins <= room) & (np.diff(bounds) > 0))
    # sentence, first piece, piece after the last, first word read, word after the last
    windows = np.stack([one, begins[one], ends[one], bounds[:-1][one], bounds[1:][one]], axis=1)
    cut = np.flatnonzero(ends - begins > room)
    more = [window for sentence in cut.tolist() for window in _windows(sentence, bounds, pieces.offsets, room)]
    if more:
        windows = np.concatenate([windows, np.array(more)])
        windows = windows[np.lexsort((windows[:, 1], windows[:, 0]))]
    sentence, first, last, read, until = windows.T

    input_ids, token_type_ids = tokenizer.with_special_tokens([pieces.spans(first, last - first)])
    rows = pieces.offsets[ranges(read, until - read)] - np.repeat(first, until - read) + 1
    row_offsets = offsets_of(until - read)
    if read_cls:
        rows = np.insert(rows, row_offsets[:-1], 0)
        row_offsets = row_offsets + np.arange(len(row_offsets))
    features = Features(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        examples=sentence,
        rows=Ragged(rows, row_offsets),
    )
    firsts = np.r_[True, sentence[1:] != sentence[:-1]][: len(sentence)]
    return WordFeatures(features, firsts, np.r_[0, until], len(cut), num_shortened)


def _pieces_of(words: list[str], tokenizer: Tokenizer) -> Ragged:
    """The pieces of each word, at least one."""
    pieces = tokenizer.pieces(words)
    if pieces.lengths.all():
        return pieces
    return Ragged.of([row.tolist() or [tokenizer.unk_token_id] for row in map(pieces.__getitem__, range(len(words)))])


def _windows(sentence: int, bounds: NDArray[np.int64], pieces: NDArray[np.int64], room: int) -> list[tuple[int, ...]]:
    """Windows over one sentence, each half a window after the last; a word is read in the one whose edge is farther away."""
    start, stop = bounds[sentence], bounds[sentence + 1]
    spans: list[tuple[int, int]] = []  # in words
    first = start
    while True:
        last = int(np.searchsorted(pieces, pieces[first] + room, side="right")) - 1
        if last >= stop:
            # the last window reaches back as far as it can
            first = int(np.searchsorted(pieces, pieces[stop] - room, side="left"))
            spans.append((first, int(stop)))
            break
        spans.append((int(first), last))
        first = max(int(first) + 1, int(np.searchsorted(pieces, pieces[first] + room // 2, side="right")) - 1)
        first = min(first, last)  # leave no word between two windows
    edges = [int(start)]
    for (_, last), (first, _) in pairwise(spans):
        middle = (pieces[first] + pieces[last]) / 2  # left of it a word has more context in the window that ends here
        edges.append(max(edges[-1], int(np.clip(np.searchsorted(pieces, middle, side="left"), first, last))))
    edges.append(int(stop))
    return [
        (sentence, int(pieces[first]), int(pieces[last]), read, until)
        for (first, last), read, until in zip(spans, edges[:-1], edges[1:], strict=True)
        if read < until
    ]


def decode_intents(
    names: Sequence[str], logits: Sequence[NDArray], sentences: NDArray[np.integer], count: int
) -> list[dict[str, Any]]:
    """The intent of each of `count` sentences, with its probability; None for a sentence without words.

    logits: (1, C) of each window. sentences: (F,) the sentence that each window belongs to.
    """
    intents: list[dict[str, Any]] = [{"intent": None, "intent_probability": None} for _ in range(count)]
    for sentence, first in zip(*np.unique(sentences, return_index=True), strict=True):
        probabilities = softmax(logits[first][0])  # the first window has the sentence's own [CLS]
        best = int(probabilities.argmax())
        intents[sentence] = {"intent": names[best], "intent_probability": float(probabilities[best])}
    return intents
