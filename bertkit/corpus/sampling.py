"""What each step of pre-training sees of a corpus: a pure function of (seed, step).

The shards of an epoch are shuffled; WINDOW of them at a time form a window, whose sequences are shuffled together, and steps
take the sequences of one window after another. So memory holds the bounds of a few windows, and neither a restart nor the
number of processes nor micro_batch_tokens changes anything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bertkit.corpus.objectives import OBJECTIVES, Objective, Sequences
from bertkit.corpus.segments import Segments, tokens_read
from bertkit.corpus.shard import Shard
from bertkit.errors import DataError
from bertkit.features import Features, Ragged, offsets_of, ranges
from bertkit.text.tokenizer import Tokenizer

WINDOW = 16  # shards whose sequences are shuffled together


@dataclass(frozen=True, eq=False)  # hashed by identity, for the cache of its windows
class CorpusSampler:
    """The sequences of each optimizer step: [CLS] A [SEP] B [SEP] with the label of the pair, or [CLS] span [SEP]."""

    shards: Sequence[Shard]
    tokenizer: Tokenizer
    batch_size: int
    max_length: int
    seed: int
    objective: Objective = OBJECTIVES["mlm+nsp"]
    masking: str = "token"
    _ends: list[int] = field(default_factory=list)  # of the windows seen so far, in sequences

    @property
    def windows_per_epoch(self) -> int:
        return -(-len(self.shards) // WINDOW)

    @property
    def sequences_per_epoch(self) -> int:
        """The number of sequences in the first epoch; others have a few more or less. Raises DataError if there are none."""
        self._window_of(0)
        while len(self._ends) < self.windows_per_epoch:
            self._window_of(self._ends[-1])
        return self._ends[self.windows_per_epoch - 1]

    @property
    def share_read(self) -> float:
        """The share of the tokens that the first epoch reads; of a corpus of more than a window, in that window."""
        shard_of, drawn = _draw_window(self, 0)
        chosen = self._shards_of(0)
        read = sum(tokens_read(Segments(*(values[shard_of == shard] for values in drawn))) for shard in chosen)
        return read / sum(len(self.shards[shard].input_ids) for shard in chosen)

    def features_at(self, step: int) -> Features:
        """The sequences of `step` (from 0). Raises DataError if the shards give none."""
        return self.sequences(step * self.batch_size, (step + 1) * self.batch_size)

    def sequences(self, first: int, last: int) -> Features:
        """Sequences `first` to `last` - 1 of the run, masked by (seed, first).

        The head reads [CLS], if they are pairs, and the targets; the labels are the objective's terms.
        """
        rng = np.random.default_rng((self.seed, first))
        shard_of, drawn = self._drawn(first, last)
        whole_words = self.masking == "whole-word"
        input_ids, targets, labels = self.objective.targets(self._assemble(shard_of, drawn), self.tokenizer, whole_words, rng)
        offsets = input_ids.offsets
        token_type_ids = np.zeros(offsets[-1], dtype=np.uint8)
        bounds = np.searchsorted(targets, offsets)  # of each sequence's targets
        rows = targets - np.repeat(offsets[:-1], np.diff(bounds))
        terms = {self.objective.token_term: Ragged(labels, bounds)}
        if self.objective.pair_term is not None:
            begins = offsets[:-1] + 2 + drawn.num_a
            token_type_ids[ranges(begins, offsets[1:] - begins)] = 1
            rows = np.insert(rows, bounds[:-1], 0)  # [CLS], before the targets
            bounds = bounds + np.arange(len(bounds))
            terms[self.objective.pair_term] = Ragged.column(drawn.label)
        return Features(
            input_ids=input_ids,
            token_type_ids=Ragged(token_type_ids, offsets),
            examples=np.arange(len(drawn)),
            rows=Ragged(rows, bounds),
            labels=terms,
        )

    def words(self, first: int, last: int) -> Ragged:
        """Whether each token of `sequences` begins a word, as segments and special tokens do."""
        ids, special, begins_word = self._assemble(*self._drawn(first, last))
        begins_word[1:] |= special[:-1]
        return Ragged(begins_word, ids.offsets)

    def _drawn(self, first: int, last: int) -> tuple[NDArray[np.int64], Segments]:
        """The shard of each of the sequences `first` to `last` - 1 of the run, and their segments."""
        parts = []
        while first < last:
            window = self._window_of(first)
            begin = self._ends[window - 1] if window else 0
            shard_of, drawn = _draw_window(self, window)
            rows = slice(first - begin, min(last, self._ends[window]) - begin)
            parts.append((shard_of[rows], Segments(*(values[rows] for values in drawn))))
            first = min(last, self._ends[window])
        shard_of = np.concatenate([shards for shards, _ in parts])
        return shard_of, Segments(*map(np.concatenate, zip(*(segments for _, segments in parts))))

    def _window_of(self, sequence: int) -> int:
        """The window, counted over all epochs, that holds a sequence of the run."""
        while not self._ends or self._ends[-1] <= sequence:
            window = len(self._ends)
            count = len(_draw_window(self, window)[0])
            self._ends.append((self._ends[-1] if self._ends else 0) + count)
            if window + 1 == self.windows_per_epoch and self._ends[-1] == 0:
                if self.objective.pair_term is None:
                    raise DataError("the corpus is empty")
                hint = "build it with another --layout, or train with --objective mlm"
                raise DataError("no document of the corpus has two tokens", hint=hint)
        return bisect_right(self._ends, sequence)

    def _shards_of(self, window: int) -> list[int]:
        """The shards of a window, counted over all epochs."""
        epoch, number = divmod(window, self.windows_per_epoch)
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.shards))
        return order[number * WINDOW : (number + 1) * WINDOW].tolist()

    def _assemble(self, shard_of: NDArray[np.int64], drawn: Segments) -> Sequences:
        """Segments with their special tokens."""
        pairs = self.objective.pair_term is not None
        lengths = drawn.num_a + drawn.num_b + (3 if pairs else 2)
        offsets = offsets_of(lengths)
        input_ids = np.full(offsets[-1], self.tokenizer.sep_token_id, dtype=np.int32)
        input_ids[offsets[:-1]] = self.tokenizer.cls_token_id
        begins_word = np.ones(offsets[-1], dtype=bool)
        special = np.ones(offsets[-1], dtype=bool)
        segments = [(offsets[:-1] + 1, drawn.a, drawn.num_a)]
        if pairs:
            segments.append((offsets[:-1] + 2 + drawn.num_a, drawn.b, drawn.num_b))
        for number in np.unique(shard_of).tolist():
            shard, here = self.shards[number], shard_of == number
            for begins, start, count in segments:
                target, source = ranges(begins[here], count[here]), ranges(start[here], count[here])
                input_ids[target] = shard.input_ids[source]
                special[target] = False
                if self.masking == "whole-word":
                    begins_word[target] = shard.begins_word(source)
        return Sequences(Ragged(input_ids, offsets), special, begins_word)


@lru_cache(maxsize=4)
def _draw_window(sampler: CorpusSampler, window: int) -> tuple[NDArray[np.int64], Segments]:
    """The shard of each sequence of a window, shuffled, and their segments."""
    epoch, number = divmod(window, sampler.windows_per_epoch)
    chosen = sampler._shards_of(window)
    drawn = [
        sampler.objective.draw(sampler.shards[shard], sampler.max_length, np.random.default_rng((sampler.seed, epoch, shard)))
        for shard in chosen
    ]
    shard_of = np.repeat(chosen, [len(segments) for segments in drawn])
    segments = Segments(*map(np.concatenate, zip(*drawn)))
    shuffled = np.random.default_rng((sampler.seed, epoch, len(sampler.shards) + number)).permutation(len(shard_of))
    return shard_of[shuffled], Segments(*(values[shuffled] for values in segments))
