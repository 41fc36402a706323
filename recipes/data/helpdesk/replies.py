"""Which of four replies answers the ticket? text, reply0 ... reply3 -> number of the reply.

Two of the four are of the ticket's team and two of one other, so that the teams of the replies do not give the answer
away. Replies, like wordings, belong to one split alone (replies.tsv).
"""

from __future__ import annotations

from tickets import draw_slots
from world import ORDERS, WORDINGS, Draw, Wording, read_table

SIZES = {"train": 520, "validation": 220, "test": 220}
REPLIES = read_table("replies.tsv")


def draw_replies(wording: Wording, draw: Draw) -> tuple[str, list[str]]:
    """The right reply and three wrong ones: one of the same team, two of another team, all of different intents."""
    replies = draw.shuffled([reply for reply in REPLIES if reply["split"] == wording.split])
    right = next(reply for reply in replies if reply["intent"] == wording.intent)
    near = next(reply for reply in replies if reply["team"] == wording.team and reply["intent"] != wording.intent)
    far = next(reply for reply in replies if reply["team"] != wording.team)
    far_too = next(reply for reply in replies if reply["team"] == far["team"] and reply["intent"] != far["intent"])
    return right["reply"], [wrong["reply"] for wrong in (near, far, far_too)]


def write_replies(split: str) -> list[tuple[str, ...]]:
    """The rows of a split: each wording equally often, each label equally often, no ticket twice with the same replies."""
    draw = Draw(f"helpdesk replies {split}")
    wordings = [w for w in WORDINGS if w.split == split]
    rows: dict[frozenset[str], tuple[str, ...]] = {}
    while len(rows) < SIZES[split]:
        for wording in draw.shuffled(wordings):
            text = wording.wording.format(**draw_slots(draw.one_of(ORDERS), draw))
            right, wrong = draw_replies(wording, draw)
            key = frozenset((text, right, *wrong))
            if len(rows) < SIZES[split] and key not in rows:
                label = len(rows) % 4
                replies = draw.shuffled(wrong)
                replies.insert(label, right)
                rows[key] = (text, *replies, str(label))
    return draw.shuffled(list(rows.values()))
