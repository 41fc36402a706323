"""The best answers of each example, searched over all its windows at once (Devlin et al., 2019, section 4.2).

Dimensions: F features, which are windows; E examples; W windows of a chunk and T their longest context; n = n_best_size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bertkit.features import Features, Ragged, ranges

_CELLS = 2**22  # spans searched at once

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class BestAnswers(NamedTuple):
    """(E, n) spans of characters in the context, best first; logits are -inf beyond the last one.

    null_start, null_end: (E,) the logits of "no answer", at [CLS] of the window where their sum is lowest.
    """

    start: Integers
    end: Integers
    start_logits: Floats
    end_logits: Floats
    null_start: Floats
    null_end: Floats

    @property
    def scores(self) -> Floats:
        """(E, n) the sums of start and end logits."""
        return self.start_logits + self.end_logits

    @property
    def null_odds(self) -> Floats:
        """(E,) how much the score of "no answer" exceeds that of the best answer; 0 for a context without tokens."""
        odds = self.null_start + self.null_end - self.scores[:, 0]
        return np.where(np.isfinite(odds), odds, 0)


class _Spans(NamedTuple):
    """Spans in windows, one per row: the feature, its first and last token counted in the context, and their logits."""

    feature: Integers
    first: Integers
    last: Integers
    start: Floats
    end: Floats


def best_answers(
    outputs: Mapping[str, Sequence[NDArray]],
    features: Features,
    num_examples: int,
    *,
    n_best_size: int,
    max_answer_length: int,
) -> BestAnswers:
    """The n best spans of at most max_answer_length tokens in each example's context.

    They are the best of all spans, so the best answer does not depend on n_best_size (Google's run_squad only considers spans
    between the n best starts and ends of a window). A span in two windows counts once, with its higher score.
    extras of the features: "context", the position of the context's first token; "starts" and "ends", the characters of each
    context token.
    """
    start, end = (np.concatenate(outputs[name]).astype(np.float32, copy=False) for name in ("start", "end"))
    starts, ends = features.extras["starts"], features.extras["ends"]
    begins = features.input_ids.offsets[:-1]
    context = begins + features.extras["context"].values
    order = np.argsort(starts.lengths, kind="stable")  # windows of similar length together
    widest = int(max(1, starts.lengths.max(initial=0)))
    size = max(1, _CELLS // (min(widest, n_best_size) * min(widest, max_answer_length)))
    spans = _joined(
        [
            _search(start, end, context, starts.lengths, order[at : at + size], n_best_size, max_answer_length)
            for at in range(0, len(order), size)
        ]
    )
    return BestAnswers(
        *_ranked(spans, features.examples, starts, ends, num_examples, n_best_size),
        *_null(start[begins], end[begins], features.examples, num_examples),
    )


def _search(start: Floats, end: Floats, context: Integers, lengths: Integers, chosen: Integers, n: int, longest: int) -> _Spans:
    """The n best spans of each of the chosen windows; none for a window without a context.

    Time and memory grow with T and with n * longest, because the n best spans begin at the n tokens with the best own spans.
    """
    from scipy.ndimage import maximum_filter1d

    inside = np.arange(max(1, lengths[chosen].max())) < lengths[chosen][:, None]  # (W, T)
    tokens = ranges(context[chosen], lengths[chosen])
    grids = []
    for logits in (start, end):
        grid = np.full(inside.shape, -np.inf, dtype=np.float32)
        grid[inside] = logits[tokens]
        grids.append(grid)  # (W, T)
    longest = min(longest, inside.shape[1])
    ends = np.pad(grids[1], ((0, 0), (0, longest - 1)), constant_values=-np.inf)
    best_end = maximum_filter1d(ends, longest, axis=1, origin=-(longest // 2))[:, : inside.shape[1]]  # (W, T) by first token
    # stable, and argmax below: the first of equal spans, whatever n is
    firsts = np.sort(np.argsort(-(grids[0] + best_end), axis=1, kind="stable")[:, :n], axis=1)  # (W, n)
    rows = np.arange(len(chosen))[:, None]
    scores = grids[0][rows, firsts][:, :, None] + sliding_window_view(ends, longest, axis=1)[rows, firsts]  # (W, n, longest)
    scores = scores.reshape(len(chosen), -1)
    best = np.column_stack([np.argmax(scores, axis=1), _top(scores, n)])
    kept = np.isfinite(np.take_along_axis(scores, best, axis=1))
    window = np.nonzero(kept)[0]
    place, more = np.divmod(best[kept], longest)
    first = firsts[window, place]
    last = first + more
    return _Spans(chosen[window], first, last, grids[0][window, first], grids[1][window, last])


def _joined(parts: Sequence[_Spans]) -> _Spans:
    return _Spans(*map(np.concatenate, zip(*parts, strict=True)))


def _top(values: Floats, n: int) -> Integers:
    """The columns of each row's n greatest values, in no particular order."""
    if values.shape[1] <= n:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.argpartition(values, -n, axis=1)[:, -n:]


def _ranked(
    spans: _Spans, examples: Integers, starts: Ragged, ends: Ragged, num_examples: int, n: int
) -> tuple[Integers, Integers, Floats, Floats]:
    """The spans as characters, equal ones merged, ranked within each example and cut to the n best: four arrays (E, n)."""
    example = examples[spans.feature]
    first = starts.values[starts.offsets[spans.feature] + spans.first].astype(np.int64)
    last = ends.values[ends.offsets[spans.feature] + spans.last].astype(np.int64)
    order = np.lexsort((last, first, -(spans.start + spans.end), example))
    # Keep the first of equal spans, which is the best.
    order = order[np.sort(np.unique(np.stack([example, first, last])[:, order], axis=1, return_index=True)[1])]
    example = example[order]
    rank = np.arange(len(example)) - np.searchsorted(example, example)
    kept = rank < n
    tables = []
    for values, nothing in ((first, 0), (last, 0), (spans.start, -np.inf), (spans.end, -np.inf)):
        table = np.full((num_examples, n), nothing, dtype=values.dtype)
        table[example[kept], rank[kept]] = values[order[kept]]
        tables.append(table)
    return tuple(tables)  # type: ignore[return-value]


def _null(start: Floats, end: Floats, examples: Integers, num_examples: int) -> tuple[Floats, Floats]:
    """(E,) the logits at [CLS] in each example's window where their sum is lowest."""
    order = np.lexsort((start + end, examples))
    windows = order[np.searchsorted(examples[order], np.arange(num_examples))]
    return start[windows], end[windows]
