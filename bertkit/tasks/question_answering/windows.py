"""Questions and their contexts as windows: [CLS] question [SEP] a stretch of the context [SEP] (Devlin et al., 2019, 4.2).

A context that is too long for one sequence is split into overlapping windows. Contexts that questions share are tokenized once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import UsageError
from bertkit.features import Ragged, offsets_of, ranges

if TYPE_CHECKING:
    from bertkit.text.tokenizer import Tokenizer

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """F windows of E questions, in the questions' order.

    examples: (F,) each window's question. context: (F,) the position of its first context token; starts, ends: F rows, the
    characters of its context tokens. first: (F,) the number of its first context token among all tokens of all contexts.
    spans: (E, 2) the first and last token, among all tokens of all contexts, of the spans given to `encode_windows`; -1 for
    none. cut: the number of questions that were too long.
    """

    input_ids: Ragged
    token_type_ids: Ragged
    examples: Integers
    context: Integers
    starts: Ragged
    ends: Ragged
    first: Integers
    spans: Integers
    cut: int

    def positions(self) -> tuple[Integers, Integers]:
        """(F,) positions of the span's first and last token in each window; 0 if the window does not contain all of it."""
        begins = self.spans[self.examples] - self.first[:, None]
        whole = (self.spans[self.examples, 0] >= 0) & (begins[:, 0] >= 0) & (begins[:, 1] < self.starts.lengths)
        start, end = (np.where(whole, begins[:, side] + self.context, 0) for side in (0, 1))
        return start, end


def encode_windows(
    questions: Sequence[str],
    contexts: Sequence[str],
    spans: Integers,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    max_query_length: int,
    doc_stride: int,
) -> Windows:
    """The windows of each question and its context, of at most max_length tokens.

    doc_stride: tokens between the starts of successive windows, at most a window's length. spans: (E, 2) first character and
    end of a span in each context; first -1 for none. Raises UsageError if a question leaves no room for its context.
    """
    number: dict[str, int] = {}
    which = np.array([number.setdefault(context, len(number)) for context in contexts], dtype=np.int64)
    question_pieces = tokenizer.pieces(questions)
    query = np.minimum(question_pieces.lengths, max_query_length)
    room = max_length - query - 3  # of [CLS] and two [SEP]
    if len(query) and room.min() < 1:
        what = f"--max-length is {max_length}; a question of {query.max()} tokens leaves no room for its context"
        raise UsageError(what, hint="raise --max-length, or lower --max-query-length")
    tokens, starts, ends = tokenizer.encode_with_offsets(list(number))

    stride = np.minimum(doc_stride, room)
    total = tokens.lengths[which]
    counts = np.where(total <= room, 1, 1 - (room - total) // stride)  # (E,) 1 + ceil((total - room) / stride)
    examples = np.repeat(np.arange(len(which)), counts)
    begins = ranges(np.zeros(len(which), dtype=np.int64), counts) * stride[examples]  # (F,) within its context
    lengths = np.minimum(room[examples], total[examples] - begins)
    first = tokens.offsets[:-1][which][examples] + begins

    query = query[examples]
    texts = [question_pieces.spans(question_pieces.offsets[:-1][examples], query), tokens.spans(first, lengths)]
    input_ids, token_type_ids = tokenizer.with_special_tokens(texts)
    return Windows(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        examples=examples,
        context=query + 2,
        starts=Ragged(starts, tokens.offsets).spans(first, lengths),
        ends=Ragged(ends, tokens.offsets).spans(first, lengths),
        first=first,
        spans=_tokens_of(spans, which, list(number), tokens, starts, ends),
        cut=int((question_pieces.lengths > max_query_length).sum()),
    )


def _tokens_of(
    spans: Integers, which: Integers, contexts: Sequence[str], tokens: Ragged, starts: NDArray, ends: NDArray
) -> Integers:
    """(E, 2) characters -> the first and last token with any of them, -1 if there is none."""
    # All contexts are treated as one text, so that one sorted search finds every span.
    begins = offsets_of(np.array([len(context) + 1 for context in contexts], dtype=np.int64))[:-1]
    of_token = np.repeat(begins, tokens.lengths)
    first = np.searchsorted(of_token + ends, begins[which] + spans[:, 0], side="right")
    last = np.searchsorted(of_token + starts, begins[which] + spans[:, 1], side="left") - 1
    found = (spans[:, 0] >= 0) & (first <= last)
    return np.where(found[:, None], np.stack([first, last], axis=1), -1)
