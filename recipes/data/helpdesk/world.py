"""A small invented help desk, and the labelled tickets drawn from it: text -> team.

The world is tables: teams, products, persons and the orders they placed below, and in wordings.tsv the intents, which are
what a customer can want, each with ways of saying it. A wording belongs to one split alone, so that a validation or test
ticket says in new words what training said in others: counting words generalises poorly, knowing English well.

Run as `python recipes/data/helpdesk/world.py` it writes tickets/{train,validation,test}.csv anew, always the same bytes.
"""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

# --- the world -----------------------------------------------------------------------------------------------------

# Each team's share of the tickets in percent, and what it looks after.
TEAMS = {
    "delivery": 28,  # an order on its way to the customer
    "technical": 19,  # a product that does not do what it should, or how to use it
    "billing": 18,  # money taken, not taken or wrongly taken; invoices and plans
    "returns": 14,  # goods that go back, are exchanged, or are to be refunded
    "accounts": 12,  # who may log in, and what is stored about a customer
    "sales": 9,  # questions before buying
}


@dataclass(frozen=True)
class Product:
    """Something the shop sells. name: with its brand. thing: what one calls it once it is known. price: in dollars."""

    name: str
    thing: str
    price: str


PRODUCTS = (
    Product("Bravo speaker", "speaker", "89"),
    Product("Lumo desk lamp", "lamp", "49"),
    Product("Pico robot vacuum", "vacuum", "319"),
    Product("Quill e-reader", "reader", "129"),
    Product("Stride fitness watch", "watch", "159"),
    Product("Wren baby monitor", "monitor", "74"),
    Product("Portal doorbell camera", "camera", "139"),
    Product("Kestrel drone", "drone", "410"),
    Product("Gramma kitchen scale", "scale", "35"),
    Product("Boreas weather station", "weather station", "98"),
    Product("Minty toothbrush", "toothbrush", "62"),
    Product("Verdi radio", "radio", "115"),
)

PERSONS = (
    "Amina", "Bruno", "Chloe", "Daniel", "Elif", "Farid", "Grace", "Hana",
    "Ivan", "Joana", "Kenji", "Lucia", "Marek", "Nadia", "Omar", "Priya",
)  # fmt: skip

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
MONTHS = ("January", "March", "April", "June", "July", "September", "October", "November")
DATES = tuple(f"{day} {month}" for month in MONTHS for day in (2, 5, 9, 12, 17, 21, 26, 30))


@dataclass(frozen=True)
class Order:
    """One purchase: who bought what and when."""

    number: str
    person: str
    product: Product
    date: str


# Everybody bought everything once; the strides scatter numbers, all different, and dates.
ORDERS = tuple(
    Order(f"HD-{1_000 + 4_127 * i % 8_999}", person, product, DATES[37 * i % len(DATES)])
    for i, (person, product) in enumerate(itertools.product(PERSONS, PRODUCTS))
)


@dataclass(frozen=True)
class Wording:
    """One way to say what a customer wants (the intent of a team), with {slots}; used in one split alone."""

    team: str
    intent: str
    split: str
    wording: str


def read_wordings() -> tuple[Wording, ...]:
    """The rows of wordings.tsv, in its order."""
    with (HERE / "wordings.tsv").open(encoding="utf-8", newline="") as file:
        return tuple(Wording(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


WORDINGS = read_wordings()

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

# --- the tickets ---------------------------------------------------------------------------------------------------

SPLIT_SIZES = {"train": 800, "validation": 300, "test": 300}


class Draw:
    """Random choices that are the same on every Python: random() is the one draw whose numbers it promises to keep."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def happens(self, probability: float) -> bool:
        return self._random() < probability

    def one_of(self, items: Sequence[Any]) -> Any:
        return items[int(self._random() * len(items))]

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        return sorted(items, key=lambda _: self._random())


def write_ticket(wording: Wording, draw: Draw) -> str:
    """One ticket that says `wording`, about a random order, at times with a greeting and an aside."""
    order = draw.one_of(ORDERS)
    text = wording.wording
    if draw.happens(0.3):
        text = f"{text} {draw.one_of(ASIDES[wording.split])}"
    if draw.happens(0.2):
        text = f"{draw.one_of(GREETINGS[wording.split])} {text}"
    return text.format(
        product=order.product.name,
        thing=order.product.thing,
        price="$" + order.product.price,
        order=order.number,
        person=order.person,
        bought=order.date,
        other=draw.one_of([product.name for product in PRODUCTS if product != order.product]),
        friend=draw.one_of([person for person in PERSONS if person != order.person]),
        date=draw.one_of(DATES),
        day=draw.one_of(DAYS),
    )


def write_tickets(split: str) -> list[tuple[str, str]]:
    """The (text, team) rows of a split: each team its share, each of its wordings equally often, no text twice."""
    draw = Draw(f"helpdesk tickets {split}")
    rows: dict[str, str] = {}
    for team, percent in TEAMS.items():
        wordings = [w for w in WORDINGS if (w.team, w.split) == (team, split)]
        wanted = len(rows) + SPLIT_SIZES[split] * percent // 100
        for wording in itertools.cycle(draw.shuffled(wordings)):
            if len(rows) == wanted:
                break
            text = write_ticket(wording, draw)
            while text in rows:
                text = write_ticket(wording, draw)
            rows[text] = team
    return draw.shuffled(list(rows.items()))


def main() -> None:
    for split in SPLIT_SIZES:
        path = HERE / "tickets" / f"{split}.csv"
        path.parent.mkdir(exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("text", "team"), *write_tickets(split)])


if __name__ == "__main__":
    main()
