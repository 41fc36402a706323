"""Where answers are in their contexts: at answer_start, near it, or at their only occurrence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEAR = 20  # characters on each side of answer_start to search for an answer; 2 are enough for CMRC 2018


class Match(NamedTuple):
    """How an answer that is not at its answer_start was found, or that it was not.

    severity: of the finding in `check`.
    """

    severity: str
    what: str
    hint: str | None = None


_COUNT = "answer_start counts the characters of the context before the answer"
FIRST = Match("note", "without answer_start, taken at the first occurrence")
MOVED = Match("note", "found near the given answer_start")
ELSEWHERE = Match("warning", "found far from answer_start, at the only occurrence", _COUNT)
OTHER_CASE = Match("warning", "found with other capitalization", "spell them as the context does")
LOST = Match("error", "not found: neither at answer_start nor exactly once in the context", _COUNT)
WAYS = (FIRST, MOVED, ELSEWHERE, OTHER_CASE, LOST)


class Place(NamedTuple):
    """begin: an answer's first character in the context, -1 if it is not found. how: None if that is its answer_start."""

    begin: int
    how: Match | None


def find_answer(context: str, text: str, start: int | None) -> Place:
    """Where an answer begins: at `start`, else nearest to it within NEAR characters, else at its only occurrence, else the same
    ignoring case. Without a start, at the first occurrence.
    """
    if start is None:
        if (begin := context.find(text)) >= 0:
            return Place(begin, FIRST)
    else:
        for distance in range(NEAR + 1):
            for begin in (start - distance, start + distance):
                if begin >= 0 and context.startswith(text, begin):
                    return Place(begin, MOVED if distance else None)
    for how, flags in ((ELSEWHERE, re.NOFLAG), (OTHER_CASE, re.IGNORECASE)):
        found = [match.start() for match in islice(re.finditer(f"(?={re.escape(text)})", context, flags), 2)]
        if len(found) == 1:
            return Place(found[0], how)
    return Place(-1, LOST)


def find_answers(contexts: Sequence[str], answers: Sequence[Sequence[tuple[str, int | None]]]) -> list[Place | None]:
    """The place of each row's first answer, which is the one to learn; None for a row without an answer."""
    return [find_answer(context, *own[0]) if own else None for context, own in zip(contexts, answers, strict=True)]


def first_spans(places: Sequence[Place | None], answers: Sequence[Sequence[tuple[str, int | None]]]) -> NDArray[np.int64]:
    """(E, 2): the first character and the end of each row's first answer; -1 for none."""
    spans = np.full((len(places), 2), -1, dtype=np.int64)
    for row, (place, own) in enumerate(zip(places, answers, strict=True)):
        if place is not None and place.how is not LOST:
            spans[row] = place.begin, place.begin + len(own[0][0])
    return spans


def rows_by_way(places: Sequence[Place | None]) -> dict[Match, list[int]]:
    """The rows whose answer is not at its answer_start, by how it was found."""
    return {how: [row for row, place in enumerate(places) if place is not None and place.how is how] for how in WAYS}
