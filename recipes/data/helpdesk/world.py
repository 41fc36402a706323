"""A small invented help desk: the world from which all of its data sets are drawn.

The world is tables: teams, products, persons and the orders they placed below, and in wordings.tsv the intents, which are
what a customer can want, each with ways of saying it. A wording belongs to one split alone, so that a validation or test
ticket says in new words what training said in others: counting words generalises poorly, knowing English well.

generate.py writes the data sets; a module beside it (tickets, pairs, mentions, pages, replies) draws each.
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


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of a tab-separated table that lies here, in its order."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


WORDINGS = tuple(Wording(**row) for row in read_table("wordings.tsv"))

# --- names by split, for data in which a name must not be known by heart ----------------------------------------------
# The tables above stay as they are: the tickets are drawn from them. Words that are no names elsewhere are here on purpose.

MORE_PRODUCTS = {
    "train": (
        "Juno coffee grinder", "March boot dryer", "Nimbus humidifier", "Rocket bike light", "Delta bathroom fan",
        "Tinto wine cooler", "Solo headphones", "Hearth heater", "Fable night light", "Mosaic photo frame",
    ),
    "validation": (
        "Zephyr hair dryer", "Pixel picture scanner", "Monday alarm clock", "Cobalt drill", "Sprig plant sensor",
        "Harvest bread maker", "Tally bathroom scales", "Gale leaf blower",
    ),
    "test": (
        "June rice cooker", "Falcon dash camera", "Mellow massage pillow", "Brook water filter", "Dune sand toy",
        "Vesper projector", "Turbo car charger", "Larch smoke detector",
    ),
}  # fmt: skip

FIRST_NAMES = {
    "train": (
        *PERSONS, "May", "Mark", "Will", "Rose", "April", "Victor", "Wanda", "Samir", "Tomas", "Ursula", "Yusuf", "Zoe",
        "Pedro", "Ines", "Jonas", "Klara",
    ),
    "validation": ("Faith", "Drew", "Dawn", "Max", "Arjun", "Birgit", "Celine", "Dmitri", "Esther", "Felipe", "Greta", "Hugo"),
    "test": ("June", "Bill", "Hope", "Art", "Ivy", "Jasper", "Keiko", "Leon", "Mirna", "Nils", "Olga", "Pablo"),
}  # fmt: skip
SURNAMES = {
    "train": (
        "Haddad", "Costa", "Novak", "Young", "Okafor", "Weber", "Rossi", "Singh", "Price", "Lindgren", "Moreau", "Tanaka",
        "Day", "Kowalski", "Ortega", "Petrov",
    ),
    "validation": ("Long", "Banks", "Virtanen", "Mensah", "Dubois", "Horvat", "Iyer", "Jensen"),
    "test": ("Sharp", "Park", "Quispe", "Rahman", "Silva", "Toth", "Ueda", "Vogel"),
}  # fmt: skip

CITIES = (
    "Aveiro", "Bergen", "Cork", "Dresden", "Essen", "Florence", "Ghent", "Huelva", "Innsbruck", "Jena", "Kaunas", "Leeds",
    "Malmo", "Nantes", "Ostrava", "Porto", "Quimper", "Riga", "Salzburg", "Turku", "Utrecht", "Verona", "Worms", "Zagreb",
)  # fmt: skip
REGIONS = (
    "Austria", "Belgium", "Croatia", "Denmark", "Estonia", "Finland", "Greece", "Hungary", "Iceland", "Latvia", "Malta",
    "Norway", "Poland", "Romania", "Slovakia", "Spain",
)  # fmt: skip
# Further subjects for pages. They are kept apart from the tables above, from which the other splits are drawn.
MORE_CITIES = (
    "Antwerp", "Basel", "Coimbra", "Dijon", "Exeter", "Freiburg", "Galway", "Haarlem", "Izmir", "Kassel", "Lyon", "Mainz",
    "Novi Sad", "Odense", "Perugia", "Rouen", "Split", "Tampere", "Uppsala", "Vilnius",
)  # fmt: skip
MORE_REGIONS = (
    "Albania", "Bulgaria", "Canada", "Cyprus", "Chile", "England", "France", "Germany", "Ireland", "Italy", "Japan",
    "Lithuania", "Luxembourg", "Moldova", "Montenegro", "Morocco", "Portugal", "Scotland", "Serbia", "Slovenia", "Sweden",
    "Switzerland", "Turkey", "Wales",
)  # fmt: skip
STREETS = (
    "Mill Lane",
    "Harbour Street",
    "Station Road",
    "Cherry Alley",
    "Old Market",
    "Tower Street",
    "River Walk",
    "Hill Road",
)

# --- drawing ---------------------------------------------------------------------------------------------------------


class Draw:
    """Random choices that are the same on every Python: random() is the one draw whose numbers it promises to keep."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def happens(self, probability: float) -> bool:
        return self._random() < probability

    def one_of(self, items: Sequence[Any]) -> Any:
        return items[int(self._random() * len(items))]

    def number(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return low + int(self._random() * (high - low + 1))

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        return sorted(items, key=lambda _: self._random())
