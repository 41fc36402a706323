"""A ticket and a reply: does the one answer the other, or is it a reply to something else? text, text_pair -> fits or other.

Every wording comes equally often with either label, and every reply about as often right as wrong, so that neither text
alone tells. A third of the wrong replies comes from the ticket's own team.
"""

from __future__ import annotations

from replies import REPLIES
from tickets import draw_slots
from world import ORDERS, WORDINGS, Draw, Wording

SIZES = {"train": 1200, "validation": 300, "test": 300}
SAME_TEAM = 1 / 3  # of the wrong replies, as in replies.py


def draw_reply(wording: Wording, label: str, draw: Draw) -> str:
    """A reply of the wording's split: to its intent, or to another one."""
    replies = [reply for reply in REPLIES if reply["split"] == wording.split]
    if label == "fits":
        return draw.one_of([reply for reply in replies if reply["intent"] == wording.intent])["reply"]
    in_team = draw.happens(SAME_TEAM)
    others = [r for r in replies if r["intent"] != wording.intent and (r["team"] == wording.team) == in_team]
    return draw.one_of(others)["reply"]


def write_pairs(split: str) -> list[tuple[str, str, str]]:
    """The (text, text_pair, label) rows of a split, half of each label."""
    draw = Draw(f"helpdesk pairs {split}")
    wordings = [w for w in WORDINGS if w.split == split]
    rows: dict[tuple[str, str], str] = {}
    for label in ("fits", "other"):
        wanted = len(rows) + SIZES[split] // 2
        while len(rows) < wanted:
            for wording in draw.shuffled(wordings):
                text = wording.wording.format(**draw_slots(draw.one_of(ORDERS), draw))
                pair = text, draw_reply(wording, label, draw)
                if len(rows) < wanted and pair not in rows:
                    rows[pair] = label
    return draw.shuffled([(*pair, label) for pair, label in rows.items()])
