"""Pairs of tickets: do both want the same (the same intent in other words), or not? text, text_pair -> same or different.

Words alone should not tell. Half of the pairs of either label are about one product, more than half of the different ones
go to one team, and each different pair is the more alike of two that were drawn: without that, it would share fewer words.
"""

from __future__ import annotations

import re

from tickets import draw_slots
from world import ORDERS, WORDINGS, Draw, Wording

SIZES = {"train": 1000, "validation": 300, "test": 300}
SAME_PRODUCT = 0.5
SAME_TEAM = 0.6  # of the different ones
DRAWN = 2  # different pairs, of which the one with most words in common stays


def word_overlap(text: str, other: str) -> float:
    """Words that both have as a share of those that either has."""
    first, second = (set(re.findall(r"[a-z0-9]+", each.lower())) for each in (text, other))
    return len(first & second) / len(first | second)


def write_pair(first: Wording, second: Wording, draw: Draw) -> tuple[str, str]:
    """Two tickets about two orders, at times of one product."""
    order = draw.one_of(ORDERS)
    alike = draw.happens(SAME_PRODUCT)
    other = draw.one_of([each for each in ORDERS if each != order and (each.product == order.product) == alike])
    return first.wording.format(**draw_slots(order, draw)), second.wording.format(**draw_slots(other, draw))


def draw_pair(wording: Wording, label: str, wordings: list[Wording], draw: Draw) -> tuple[str, str]:
    """A pair of that label, the first of which says `wording`."""
    if label == "same":
        second = draw.one_of([w for w in wordings if w.intent == wording.intent and w != wording])
        return write_pair(wording, second, draw)
    in_team = draw.happens(SAME_TEAM)
    others = [w for w in wordings if w.intent != wording.intent and (w.team == wording.team) == in_team]
    drawn = [write_pair(wording, draw.one_of(others), draw) for _ in range(DRAWN)]
    return max(drawn, key=lambda pair: word_overlap(*pair))


def write_pairs(split: str) -> list[tuple[str, str, str]]:
    """The (text, text_pair, label) rows of a split: every wording comes first equally often, with either label."""
    draw = Draw(f"helpdesk pairs {split}")
    wordings = [w for w in WORDINGS if w.split == split]
    rows: dict[frozenset[str], tuple[str, str, str]] = {}
    for label in ("same", "different"):
        wanted = len(rows) + SIZES[split] // 2
        while len(rows) < wanted:
            for wording in draw.shuffled(wordings):
                pair = draw_pair(wording, label, wordings, draw)
                if len(rows) < wanted and frozenset(pair) not in rows:
                    rows[frozenset(pair)] = (*pair, label)
    return draw.shuffled(list(rows.values()))
