"""Tickets as words, each tagged with what it names: PRODUCT, PERSON, ORDER, DATE or PRICE, in IOB2.

Spans are the slots that were filled, so they are exact. DATE is a day of the calendar ("5 March"), not a weekday or a time
of waiting; PRICE is written in figures. Half of the names of validation and test, and half of their spellings, are not in
training. Words are split as BERT's basic tokenizer splits them: on white space, and each punctuation mark apart.
"""

from __future__ import annotations

import re
from string import Formatter

from tickets import ASIDES, GREETINGS
from world import DAYS, FIRST_NAMES, MORE_PRODUCTS, ORDERS, PRODUCTS, SURNAMES, WORDINGS, Draw

SIZES = {"train": 640, "validation": 250, "test": 250}
ENTITY_OF = {
    "product": "PRODUCT", "other": "PRODUCT", "person": "PERSON", "friend": "PERSON", "order": "ORDER", "date": "DATE",
    "bought": "DATE", "price": "PRICE",
}  # fmt: skip
KNOWN = 0.5  # share of names and spellings in validation and test that are training's

# Sums in words are no PRICE, and a fixed date no slot: wordings that hold them would contradict the tags.
UNTAGGED = re.compile(r"dollar|euro|Friday|twenty more", re.IGNORECASE)
MENTIONING = {
    "train": (
        "May I add that {friend} bought the {other} for {price}?",
        "I may be away from {date}, then ask {person}.",
        "Will you tell {friend} that it costs {price}?",
        "I saw it for {price} on {date}.",
        "Mark it as urgent, or {friend} will march to your shop.",
        "I rose early on {date} to write this, {person}.",
        "The bill for the {other} says {price}.",
        "My {other} has an HD screen, by the way.",
        "I hope that {friend} gets an answer about {order} too.",
        "It is my third letter since {date}.",
        "The price of the {other} was {price} on that day.",
        "{friend} from your desk knows of {order}.",
    ),
    "validation": (
        "Perhaps {friend} may help, to whom I spoke on {date}.",
        "The {other} was {price} then, and from the dawn of time it has worked.",
        "I have faith in {person}, who packed {order}.",
        "The picture of my {other} is HD and fine.",
        "For {price} I expect the max.",
        "We had a long talk with {friend} on {date}, it drew a crowd.",
    ),
    "test": (
        "May I remind you of my call with {friend}?",
        "As of {date} I am abroad, so write to {person}.",
        "I paid the bill of {price} at once.",
        "There is hope: {friend} has a spare {other}.",
        "We march through every shop in town and find it below {price}.",
        "It is an art to reach you, I tried on {date} for {order}.",
    ),
}
ORDER_SPELLINGS = {"train": ("HD-{}", "HD{}"), "validation": ("HD {}",), "test": ("HD/{}",)}
DATE_SPELLINGS = {
    "train": ("{d} {month}", "{month} {d}", "{d} {mon}", "{d}th of {month}", "{y}-{m:02}-{d:02}"),
    "validation": ("{d}/{m}/{y}", "{month} {d}th", "{d} {month} {y}"),
    "test": ("{d}.{m}.{y}", "{mon} {d}, {y}", "{month} the {d}th"),
}
PRICE_SPELLINGS = {"train": ("${}", "{} dollars", "${}.90"), "validation": ("{} USD",), "test": ("US${}", "{}.50 dollars")}
MONTH_NUMBERS = {
    "January": 1, "March": 3, "April": 4, "May": 5, "June": 6, "July": 7, "August": 8, "September": 9, "October": 10,
    "November": 11,
}  # fmt: skip


def draw_name(kind: str, split: str, draw: Draw) -> str:
    """A name of that entity type as a customer of that split writes it."""
    own = "train" if draw.happens(KNOWN) else split
    if kind == "PRODUCT":
        return draw.one_of([*(p.name for p in PRODUCTS), *MORE_PRODUCTS["train"]] if own == "train" else MORE_PRODUCTS[own])
    if kind == "PERSON":
        name = draw.one_of(FIRST_NAMES[own])
        return f"{name} {draw.one_of(SURNAMES[own])}" if draw.happens(0.4) else name
    if kind == "ORDER":
        # Training has every second number; half of the rest is validation's, half test's.
        start, stride = {"train": (0, 2), "validation": (1, 4), "test": (3, 4)}[own]
        return draw.one_of(ORDER_SPELLINGS[own]).format(draw.one_of(ORDERS[start::stride]).number.removeprefix("HD-"))
    if kind == "PRICE":
        return draw.one_of(PRICE_SPELLINGS[own]).format(draw.number(12, 480))
    name, number = draw.one_of([*MONTH_NUMBERS.items()])
    spelling = draw.one_of(DATE_SPELLINGS[own])
    # Days that end in "th".
    return spelling.format(d=draw.number(4, 20), month=name, mon=name[:3], m=number, y=draw.number(2022, 2026))


def words(text: str) -> list[str]:
    """As BERT's basic tokenizer splits ASCII."""
    return re.findall(r"[A-Za-z0-9]+|[^A-Za-z0-9\s]", text)


def tag(template: str, slots: dict[str, str]) -> list[tuple[str, str]]:
    """The words of a filled template with their IOB2 tags."""
    tagged = []
    for text, slot, _, _ in Formatter().parse(template):
        tagged += [(word, "O") for word in words(text)]
        if slot is not None:
            kind = ENTITY_OF.get(slot)
            for i, word in enumerate(words(slots[slot])):
                tagged.append((word, f"{'I' if i else 'B'}-{kind}" if kind else "O"))
    return tagged


def write_mentions(split: str) -> list[list[tuple[str, str]]]:
    """The tickets of a split as (word, tag) lists: each wording equally often, most with an aside, none twice."""
    draw = Draw(f"helpdesk mentions {split}")
    wordings = [w.wording for w in WORDINGS if w.split == split and not UNTAGGED.search(w.wording)]
    asides = [*ASIDES[split], *MENTIONING[split], *MENTIONING[split]]
    rows: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    while len(rows) < SIZES[split]:
        for template in draw.shuffled(wordings):
            if draw.happens(0.5):
                template = f"{template} {draw.one_of(asides)}"
            if draw.happens(0.15):
                template = f"{draw.one_of(GREETINGS[split])} {template}"
            slots = {slot: draw_name(kind, split, draw) for slot, kind in ENTITY_OF.items()}
            tagged = tag(template, {**slots, "thing": draw.one_of(PRODUCTS).thing, "day": draw.one_of(DAYS)})
            if len(rows) < SIZES[split]:
                rows.setdefault(tuple(word for word, _ in tagged), tagged)
    return list(rows.values())
