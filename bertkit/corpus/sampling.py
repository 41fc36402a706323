"""What each step of pre-training sees of a corpus: a pure function of (seed, step).

The shards of an epoch are shuffled, and some of them at a time make a window, whose sequences are shuffled together; the steps
take the windows' sequences one after the other. So memory holds a window's bounds and no more, and a restart, another number of
processes or another micro_batch_tokens changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bertkit.corpus.masking import choose_tokens, choose_words, mask
from bertkit.corpus.segments import Segments, draw_pairs, draw_spans
from bertkit.corpus.shard import Shard
from bertkit.errors import DataError
from bertkit.features import Features, Ragged, offsets_of, ranges
from bertkit.text.tokenizer import Tokenizer

WINDOW = 16  # shards whose sequences are shuffled together


@dataclass(frozen=True, eq=False)  # a sampler is itself: what it has drawn is kept by it
class CorpusSampler:
    """The sequences of each optimizer step: [CLS] A [SEP] B [SEP] with the label of the pair, or [CLS] span [SEP]; masked.

    Of the objective ltr nothing is masked: each token but the last is asked for the next one.
    """

    shards: Sequence[Shard]
    tokenizer: Tokenizer
    batch_size: int
    max_length: int
    seed: int
    objective: str = "mlm+nsp"
    masking: str = "token"
    _ends: list[int] = field(default_factory=list, repr=False)  # of the windows seen so far, in sequences

    @property
    def windows_per_epoch(self) -> int:
        return -(-len(self.shards) // WINDOW)

    @property
    def sequences_per_epoch(self) -> int:
        """How many sequences the first epoch has; others have a few more or less. Raises DataError where there are none."""
        self._window_of(0)
        while len(self._ends) < self.windows_per_epoch:
            self._window_of(self._ends[-1])
        return self._ends[self.windows_per_epoch - 1]

    def features_at(self, step: int) -> Features:
        """The sequences of `step` (from 0): the head reads [CLS], if there are pairs, and the targets; labels "mlm" and "nsp",
        or "lm".

        Raises DataError where the shards give no sequence.
        """
        return self.sequences(step * self.batch_size, (step + 1) * self.batch_size)

    def sequences(self, first: int, last: int) -> Features:
        """The sequences of the run from number `first` up to `last`, which is left out; masked as seed and `first` decide."""
        rng = np.random.default_rng((self.seed, first))
        return self._features(*self._drawn(first, last), rng)

    def words(self, first: int, last: int) -> Ragged:
        """Of the tokens of the sequences that `sequences` gives whether they begin a word, as segments and special ones do."""
        ids, special, begins_word = self._put_together(*self._drawn(first, last))
        begins_word[1:] |= special[:-1]
        return Ragged(begins_word, ids.offsets)

    def _drawn(self, first: int, last: int) -> tuple[NDArray[np.int64], Segments]:
        """What the sequences of the run from `first` up to `last` are made of: the shard of each, and its segments."""
        parts = []
        while first < last:
            window = self._window_of(first)
            begin = self._ends[window - 1] if window else 0
            shard_of, drawn = self._draw(window)
            rows = slice(first - begin, min(last, self._ends[window]) - begin)
            parts.append((shard_of[rows], Segments(*(values[rows] for values in drawn))))
            first = min(last, self._ends[window])
        shard_of = np.concatenate([shards for shards, _ in parts])
        return shard_of, Segments(*map(np.concatenate, zip(*(segments for _, segments in parts))))

    def _window_of(self, sequence: int) -> int:
        """The number of the window, over all epochs, that holds a sequence of the run."""
        while not self._ends or self._ends[-1] <= sequence:
            window = len(self._ends)
            count = len(self._draw(window)[0])
            self._ends.append((self._ends[-1] if self._ends else 0) + count)
            if window + 1 == self.windows_per_epoch and self._ends[-1] == 0:
                what = "no document of the corpus has two sentences" if self.objective == "mlm+nsp" else "the corpus is empty"
                hint = (
                    "build it with another --layout or --sentences, or train with --objective mlm"
                    if self.objective == "mlm+nsp"
                    else None
                )
                raise DataError(what, hint=hint)
        return bisect_right(self._ends, sequence)

    def _draw(self, window: int) -> tuple[NDArray[np.int64], Segments]:
        return _draw_window(self, window)

    def _put_together(
        self, shard_of: NDArray[np.int64], drawn: Segments
    ) -> tuple[Ragged, NDArray[np.bool_], NDArray[np.bool_]]:
        """The sequences unmasked, and of their tokens (N,) whether they are special, and whether they begin a word."""
        pairs = self.objective == "mlm+nsp"
        lengths = drawn.num_a + drawn.num_b + (3 if pairs else 2)
        offsets = offsets_of(lengths)
        input_ids = np.full(offsets[-1], self.tokenizer.sep_token_id, dtype=np.int32)
        input_ids[offsets[:-1]] = self.tokenizer.cls_token_id
        begins_word = np.ones(offsets[-1], dtype=bool)
        special = np.ones(offsets[-1], dtype=bool)
        into = [(offsets[:-1] + 1, drawn.a, drawn.num_a)]
        if pairs:
            into.append((offsets[:-1] + 2 + drawn.num_a, drawn.b, drawn.num_b))
        for shard in np.unique(shard_of).tolist():
            mine = shard_of == shard
            source = self.shards[shard]
            for begins, start, count in into:
                to, of = ranges(begins[mine], count[mine]), ranges(start[mine], count[mine])
                input_ids[to] = source.input_ids[of]
                special[to] = False
                if self.masking == "whole-word":
                    begins_word[to] = source.begins_word(of)
        return Ragged(input_ids, offsets), special, begins_word

    def _features(self, shard_of: NDArray[np.int64], drawn: Segments, rng: np.random.Generator) -> Features:
        """The sequences with their targets and labels, masked."""
        ids, special, begins_word = self._put_together(shard_of, drawn)
        if self.objective == "ltr":
            is_last = np.zeros(len(ids.values), dtype=bool)
            is_last[ids.offsets[1:] - 1] = True
            asked = np.flatnonzero(~is_last)
            return self._labelled(ids, asked, ids.values[asked + 1].astype(np.int64), drawn)
        if self.masking == "whole-word":
            targets = choose_words(special, begins_word, ids.lengths, rng)
        else:
            targets = choose_tokens(special, ids.lengths, rng)
        masked, labels = mask(
            ids, targets, mask_token_id=self.tokenizer.mask_token_id, candidates=self.tokenizer.ordinary_ids, rng=rng
        )
        return self._labelled(masked, targets, labels, drawn)

    def _labelled(
        self,
        input_ids: Ragged,
        targets: NDArray[np.int64],
        labels: NDArray[np.int64],
        drawn: Segments,
    ) -> Features:
        count, offsets = len(drawn), input_ids.offsets
        segments = np.zeros(offsets[-1], dtype=np.uint8)
        bounds = np.searchsorted(targets, offsets)  # of each sequence's targets
        rows = targets - np.repeat(offsets[:-1], np.diff(bounds))
        terms = {"lm" if self.objective == "ltr" else "mlm": Ragged(labels, bounds)}
        if self.objective == "mlm+nsp":
            begins = offsets[:-1] + 2 + drawn.num_a
            segments[ranges(begins, offsets[1:] - begins)] = 1
            rows = np.insert(rows, bounds[:-1], 0)  # [CLS], before the targets
            bounds = bounds + np.arange(count + 1)
            terms["nsp"] = Ragged.column(drawn.label)
        return Features(
            input_ids=input_ids,
            token_type_ids=Ragged(segments, offsets),
            examples=np.arange(count),
            rows=Ragged(rows, bounds),
            labels=terms,
        )


@lru_cache(maxsize=4)
def _draw_window(sampler: CorpusSampler, window: int) -> tuple[NDArray[np.int64], Segments]:
    """The sequences of a window in their order: the shard of each, and what it is made of."""
    epoch, at = divmod(window, sampler.windows_per_epoch)
    order = np.random.default_rng((sampler.seed, epoch)).permutation(len(sampler.shards))
    draw = draw_pairs if sampler.objective == "mlm+nsp" else draw_spans
    chosen = order[at * WINDOW : (at + 1) * WINDOW].tolist()
    drawn = [
        draw(sampler.shards[number], sampler.max_length, np.random.default_rng((sampler.seed, epoch, number)))
        for number in chosen
    ]
    shard_of = np.repeat(chosen, [len(segments) for segments in drawn])
    segments = Segments(*map(np.concatenate, zip(*drawn)))
    shuffled = np.random.default_rng((sampler.seed, epoch, len(sampler.shards) + at)).permutation(len(shard_of))
    return shard_of[shuffled], Segments(*(values[shuffled] for values in segments))
