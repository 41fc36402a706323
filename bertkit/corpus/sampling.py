"""The sequences of each pre-training step: a pure function of (seed, step), of which each process computes its share.

The shards of an epoch are shuffled; WINDOW of them at a time form a window, whose sequences are shuffled together, and a run
reads one window after another. The bounds of sequences are drawn for whole windows, which is cheap; only the requested
sequences are read and masked, each by its own number. So memory holds the bounds of a few windows, and a restart, the number of
processes or micro_batch_tokens changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bertkit.corpus.entities import Entities
from bertkit.corpus.masking import MASKED
from bertkit.corpus.objectives import OBJECTIVES, Objective, Sequences
from bertkit.corpus.random_bits import sequence_keys
from bertkit.corpus.segments import Integers, Segments, tokens_read
from bertkit.corpus.shard import Shard
from bertkit.errors import DataError
from bertkit.features import Features, Ragged, offsets_of, ranges
from bertkit.text.tokenizer import Tokenizer

WINDOW = 16  # shards whose sequences are shuffled together
COUNTED = 4  # windows that are counted to get the length of an epoch; with more, it is estimated
_DRAWING = ThreadPoolExecutor(1, thread_name_prefix="window")


class Drawn(NamedTuple):
    """B sequences: the shard of each, and its segments, as in `Segments`."""

    shard: Integers
    a: Integers
    num_a: Integers
    b: Integers
    num_b: Integers
    label: Integers


class Mark(NamedTuple):
    """A window, counted over all epochs, and the number of its first sequence in the run."""

    window: int
    sequence: int


START = Mark(0, 0)


@dataclass(frozen=True, eq=False)
class CorpusSampler:
    """The sequences of each optimizer step: [CLS] A [SEP] B [SEP] with the label of the pair, or [CLS] span [SEP].

    begin: where drawing begins; earlier sequences are not available. entities: those of --masking entities.
    """

    shards: Sequence[Shard]
    tokenizer: Tokenizer
    batch_size: int
    max_length: int
    seed: int
    objective: Objective = OBJECTIVES["mlm+nsp"]
    masking: str = "token"
    begin: Mark = START
    entities: Entities | None = None
    _begins: list[int] = field(init=False)  # the first sequence of each window drawn so far, from `begin` on
    # The shuffled sequences of a window, drawn in the background. Each sampler keeps its own: a run can have several.
    _windows: Callable[[int], Future[Drawn]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_begins", [self.begin.sequence])
        drawn = lru_cache(maxsize=4)(lambda window: _DRAWING.submit(_draw_window, self, window))
        object.__setattr__(self, "_windows", drawn)

    @property
    def windows_per_epoch(self) -> int:
        return -(-len(self.shards) // WINDOW)

    @property
    def share_read(self) -> float:
        """The share of the tokens that the first epoch reads, measured in its first window."""
        shard_of, *segments = self._windows(0).result()
        chosen = self._shards_of(0)
        read = sum(tokens_read(Segments(*(values[shard_of == shard] for values in segments))) for shard in chosen)
        return read / self._tokens_of(chosen)

    @property
    def sequences_per_epoch(self) -> int:
        """The number of sequences in the first epoch, which is drawn completely; other epochs have a few more or less."""
        return self._end_of(self.windows_per_epoch - 1)

    def epoch_length(self, tokens: int) -> tuple[int, bool]:
        """`sequences_per_epoch`, and whether that is exact: beyond COUNTED windows it is estimated. tokens: of all shards."""
        if self.windows_per_epoch <= COUNTED:
            return self.sequences_per_epoch, True
        counted = [shard for window in range(COUNTED) for shard in self._shards_of(window)]
        return round(self._end_of(COUNTED - 1) * tokens / self._tokens_of(counted)), False

    def in_first_epoch(self, most: int) -> int:
        """How many of the first `most` sequences belong to the first epoch."""
        end = window = 0
        while end < most and window < self.windows_per_epoch:
            end, window = self._end_of(window), window + 1
        return min(most, end)

    def numbers_at(self, step: int) -> Integers:
        """The numbers of the sequences of `step` (from 0)."""
        return np.arange(step * self.batch_size, (step + 1) * self.batch_size)

    def features_at(self, step: int) -> Features:
        """The sequences of `step`."""
        return self.sequences(self.numbers_at(step))

    def lengths(self, numbers: Integers) -> Integers:
        """(B,) the number of tokens in each of these sequences, given by number; no text is read."""
        return self._lengths(self._drawn(numbers))

    def sequences(self, numbers: Integers, masked: float = MASKED, of_run: Integers | None = None) -> Features:
        """The sequences with these numbers, in this order. Raises DataError if the shards yield none.

        masked: the share of the tokens that masked objectives predict. of_run: the sequences' numbers in a run that reads other
        corpora too; they decide the masking. The head reads the targets and, if the sequences are pairs, [CLS]; the labels have
        the objective's terms.
        """
        of_run = numbers if of_run is None else of_run
        drawn = self._drawn(numbers)
        whole_words = self.masking != "token"
        assembled = self._assemble(drawn, of_run)._replace(masked=masked)
        input_ids, targets, labels = self.objective.targets(assembled, self.tokenizer, whole_words)
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
            examples=of_run,
            rows=Ragged(rows, bounds),
            labels=terms,
        )

    def places(self, numbers: Integers) -> list[tuple[int, int]]:
        """The shard of each of these sequences, given by number, and the token in the shard at which it begins."""
        drawn = self._drawn(numbers)
        return [*zip(drawn.shard.tolist(), drawn.a.tolist(), strict=True)]

    def words(self, numbers: Integers) -> Ragged:
        """Whether each token of `sequences` begins a word, as segments and special tokens do."""
        ids, special, begins_word, *_ = self._assemble(self._drawn(numbers), numbers)
        begins_word[1:] |= special[:-1]
        return Ragged(begins_word, ids.offsets)

    @property
    def finds_entities(self) -> bool:
        """Whether any entity joins words in the first step's sequences; single-word entities do not."""
        numbers = self.numbers_at(0)
        drawn, plain = self._drawn(numbers), replace(self, entities=None)
        return not np.array_equal(self._assemble(drawn, numbers).begins_word, plain._assemble(drawn, numbers).begins_word)

    def mark_at(self, number: int) -> Mark:
        """Where drawing can begin to reach this sequence and later ones: the last window known to begin at or before it."""
        index = bisect_right(self._begins, number) - 1
        return Mark(self.begin.window + index, self._begins[index])

    def _drawn(self, numbers: Integers) -> Drawn:
        """These sequences of the run, in this order."""
        drawn = Drawn(*(np.zeros(len(numbers), dtype=np.int64) for _ in Drawn._fields))
        first, last = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, -1)
        while first <= last:
            window = self._window_of(first)
            begin, end = self._end_of(window - 1), self._end_of(window)
            here = (begin <= numbers) & (numbers < end)
            for values, found in zip(drawn, self._windows(window).result(), strict=True):
                values[here] = found[numbers[here] - begin]
            if last >= (begin + end) // 2:
                self._windows(window + 1)  # so that it is drawn by the time it is needed
            first = end
        return drawn

    def _window_of(self, sequence: int) -> int:
        """The window, counted over all epochs, that holds a sequence of the run."""
        assert sequence >= self.begin.sequence
        while self._begins[-1] <= sequence:
            self._end_of(self.begin.window + len(self._begins) - 1)
        return self.begin.window + bisect_right(self._begins, sequence) - 1

    def _end_of(self, window: int) -> int:
        """The number of the first sequence after a window. Raises DataError if a whole epoch has none."""
        index = window + 1 - self.begin.window
        while len(self._begins) <= index:
            drawn = self._windows(self.begin.window + len(self._begins) - 1).result()
            self._begins.append(self._begins[-1] + len(drawn.shard))
            if len(self._begins) > self.windows_per_epoch and self._begins[-1] == self._begins[-1 - self.windows_per_epoch]:
                if self.objective.pair_term is None:
                    raise DataError("the corpus is empty")
                hint = "build it with another --layout, or train with --objective mlm"
                raise DataError("no document of the corpus has two tokens", hint=hint)
        return self._begins[index]

    def _shards_of(self, window: int) -> list[int]:
        """The shards of a window, counted over all epochs."""
        epoch, number = divmod(window, self.windows_per_epoch)
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.shards))
        return order[number * WINDOW : (number + 1) * WINDOW].tolist()

    def _tokens_of(self, shards: Sequence[int]) -> int:
        return sum(len(self.shards[shard].input_ids) for shard in shards)

    def _lengths(self, drawn: Drawn) -> Integers:
        return drawn.num_a + drawn.num_b + (2 if self.objective.pair_term is None else 3)

    def _assemble(self, drawn: Drawn, numbers: Integers) -> Sequences:
        """Segments with their special tokens."""
        offsets = offsets_of(self._lengths(drawn))
        input_ids = np.full(offsets[-1], self.tokenizer.sep_token_id, dtype=np.int32)
        input_ids[offsets[:-1]] = self.tokenizer.cls_token_id
        begins_word = np.ones(offsets[-1], dtype=bool)
        begins = np.concatenate([offsets[:-1] + 1, offsets[:-1] + 2 + drawn.num_a])  # of all As, and of all Bs
        starts, counts = np.concatenate([drawn.a, drawn.b]), np.concatenate([drawn.num_a, drawn.num_b])
        for number in np.unique(drawn.shard).tolist():
            shard, here = self.shards[number], np.tile(drawn.shard == number, 2)
            target, source = ranges(begins[here], counts[here]), ranges(starts[here], counts[here])
            input_ids[target] = shard.input_ids[source]
            if self.masking != "token":
                begins_word[target] = shard.begins_word(source)
        if self.entities is not None:
            self.entities.join(input_ids, begins_word)
        special = np.isin(input_ids, self.tokenizer.control_ids)  # also where the text itself has them
        return Sequences(Ragged(input_ids, offsets), special, begins_word, sequence_keys(self.seed, numbers))


def _draw_window(sampler: CorpusSampler, window: int) -> Drawn:
    epoch, number = divmod(window, sampler.windows_per_epoch)
    parts = []
    for shard in sampler._shards_of(window):
        rng = np.random.default_rng((sampler.seed, epoch, shard))
        segments = sampler.objective.draw(sampler.shards[shard], sampler.max_length, rng)
        parts.append(Drawn(np.full(segments.num_sequences, shard), *segments))
    drawn = Drawn(*map(np.concatenate, zip(*parts)))
    shuffled = np.random.default_rng((sampler.seed, epoch, len(sampler.shards) + number)).permutation(len(drawn.shard))
    return Drawn(*(values[shuffled] for values in drawn))
