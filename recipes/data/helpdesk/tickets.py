"""Tickets, each labelled with the team that should answer it: text -> team."""

from __future__ import annotations

import itertools

from world import DATES, DAYS, ORDERS, PERSONS, PRODUCTS, TEAMS, WORDINGS, Draw, Order, Wording

SIZES = {"train": 800, "validation": 300, "test": 300}

# What customers add whatever they want: words of every team that say nothing about the team.
GREETINGS = {
    "train": ("Hello.", "Hi.", "Good morning."),
    "validation": ("Dear team.", "Hey there."),
    "test": ("Good evening.", "Dear all."),
}
ASIDES = {
    "train": (
        "Thanks, {person}.",
        "My last order was {order}.",
        "My account is under {person}.",
        "I have bought from you since 2019.",
        "I tried to call you on {day}.",
        "Please answer before {date}.",
        "I always pay by card.",
        "Last time the parcel arrived in two days.",
        "I once had to return a {other} and that was easy.",
        "The {other} from you works well.",
    ),
    "validation": (
        "Regards from {person}.",
        "My customer reference is {order}.",
        "I have been loyal to you for years.",
        "Nobody picked up when I rang on {day}.",
        "A reply before {date} would be kind.",
        "Up to now every shipment was perfect.",
        "By the way, the {other} was a good buy.",
    ),
    "test": (
        "Best wishes, {person}.",
        "You know me from {order}.",
        "I wrote about it on {day} already.",
        "My neighbour {friend} recommended your shop.",
        "I hope to hear from you by {date}.",
        "Otherwise I am content with your couriers.",
        "I am very fond of my {other}.",
    ),
}


def draw_slots(order: Order, draw: Draw) -> dict[str, str]:
    """What fills the slots of a wording about `order`."""
    return {
        "product": order.product.name,
        "thing": order.product.thing,
        "price": "$" + order.product.price,
        "order": order.number,
        "person": order.person,
        "bought": order.date,
        "other": draw.one_of([product.name for product in PRODUCTS if product != order.product]),
        "friend": draw.one_of([person for person in PERSONS if person != order.person]),
        "date": draw.one_of(DATES),
        "day": draw.one_of(DAYS),
    }


def write_ticket(wording: Wording, draw: Draw) -> str:
    """One ticket that says `wording`, about a random order, at times with a greeting and an aside."""
    order = draw.one_of(ORDERS)
    text = wording.wording
    if draw.happens(0.3):
        text = f"{text} {draw.one_of(ASIDES[wording.split])}"
    if draw.happens(0.2):
        text = f"{draw.one_of(GREETINGS[wording.split])} {text}"
    return text.format(**draw_slots(order, draw))


def write_tickets(split: str) -> list[tuple[str, str]]:
    """The (text, team) rows of a split: each team its share, each of its wordings equally often, no text twice."""
    draw = Draw(f"helpdesk tickets {split}")
    rows: dict[str, str] = {}
    for team, percent in TEAMS.items():
        wordings = [w for w in WORDINGS if (w.team, w.split) == (team, split)]
        wanted = len(rows) + SIZES[split] * percent // 100
        for wording in itertools.cycle(draw.shuffled(wordings)):
            if len(rows) == wanted:
                break
            text = write_ticket(wording, draw)
            while text in rows:
                text = write_ticket(wording, draw)
            rows[text] = team
    return draw.shuffled(list(rows.items()))
