"""Help pages of the shop and questions about them, as in SQuAD 2.0: the answer is a span of the page, or not on it.

A page's sentences and the questions about it are wordings of one split (pages.tsv); the facts that fill them are drawn
anew for every page, so only reading gives the answer. TOLD of a section's facts are told and asked for; one or two that were
left out are asked for too. Every section also tells things of the same kinds that nobody asks for (the fact "filler").
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from world import (
    CITIES,
    DAYS,
    FIRST_NAMES,
    MONTHS,
    MORE_CITIES,
    MORE_PRODUCTS,
    MORE_REGIONS,
    PRODUCTS,
    REGIONS,
    STREETS,
    SURNAMES,
    Draw,
    read_table,
)

SIZES = {"train": 1000, "validation": 200, "test": 200}  # questions
TOLD = 5
ROUNDS = {"train": 2, "validation": 1, "test": 1}  # how often each fact of a page is asked for

PRODUCT_NAMES = (*(p.name for p in PRODUCTS), *(name for names in MORE_PRODUCTS.values() for name in names))
# What a page may be about, what pages of training may be about beyond that, and the sections that such a page has.
SUBJECTS = (
    (PRODUCT_NAMES, (), ("product", "warranty", "plan")),
    (REGIONS, MORE_REGIONS, ("delivery", "returns")),
    (CITIES, MORE_CITIES, ("branch",)),
)


def draw_person(draw: Draw) -> str:
    first, last = ([name for names in table.values() for name in names] for table in (FIRST_NAMES, SURNAMES))
    return f"{draw.one_of(first)} {draw.one_of(last)}"


VALUES: dict[str, Callable[[Draw], str]] = {
    "price": lambda draw: f"${draw.number(3, 480)}",
    "date": lambda draw: f"{draw.number(1, 30)} {draw.one_of(MONTHS)} {draw.number(2016, 2026)}",
    "days": lambda draw: f"{draw.number(2, 60)} days",
    "hours": lambda draw: f"{draw.number(3, 48)} hours",
    "minutes": lambda draw: f"{draw.number(10, 180)} minutes",
    "months": lambda draw: f"{draw.number(6, 60)} months",
    "years": lambda draw: f"{draw.number(2, 15)} years",
    "grams": lambda draw: f"{draw.number(40, 990)} grams",
    "devices": lambda draw: f"{draw.number(2, 30)} devices",
    "time": lambda draw: f"{draw.number(1, 12)}:{draw.one_of(('00', '15', '30', '45'))} {draw.one_of(('am', 'pm'))}",
    "person": draw_person,
    "city": lambda draw: draw.one_of(CITIES),
    "weekday": lambda draw: draw.one_of(DAYS),
    "street": lambda draw: f"{draw.number(2, 98)} {draw.one_of(STREETS)}",
}

# (section, use, split) -> fact -> wordings. A slot x_kind holds a value that nobody asks for.
WORDED: dict[tuple[str, str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
for row in read_table("pages.tsv"):
    WORDED[row["section"], row["use"], row["split"]][row["fact"]].append(row["wording"])


class Facts:
    """Draws the values of one paragraph: none twice, none inside another."""

    def __init__(self, subject: str, draw: Draw) -> None:
        self._taken = [subject]
        self._draw = draw

    def value(self, kind: str) -> str:
        while True:
            value = VALUES[kind](self._draw)
            if not any(value in taken or taken in value for taken in self._taken):
                self._taken.append(value)
                return value


def write_sentence(template: str, subject: str, facts: Facts) -> tuple[str, str, int]:
    """The sentence, the value that it tells (none in an intro or filler), and where in it that stands."""
    text = answer = ""
    start = 0
    for literal, slot in re.findall(r"([^{]*)(?:{(\w+)}|$)", template):
        text += literal
        value = subject if slot == "subject" else facts.value(slot.removeprefix("x_")) if slot else ""
        if slot and slot != "subject" and not slot.startswith("x_"):
            answer, start = value, len(text)
        text += value
    return text, answer, start


def write_paragraph(section: str, subject: str, split: str, name: str, draw: Draw) -> dict[str, Any]:
    """A section of a page with its questions. name: what their ids begin with."""
    sentences, questions = WORDED[section, "sentence", split], WORDED[section, "question", split]
    facts = Facts(subject, draw)
    shuffled = draw.shuffled(list(questions))
    told, left_out = shuffled[:TOLD], shuffled[TOLD:]
    context, _, _ = write_sentence(draw.one_of(sentences["intro"]), subject, facts)
    answers = {}
    for fact in draw.shuffled([*told, "filler"]):
        sentence, answer, start = write_sentence(draw.one_of(sentences[fact]), subject, facts)
        if answer:
            answers[fact] = {"text": answer, "answer_start": len(context) + 1 + start}
        context += f" {sentence}"
    asked: dict[str, str] = {}  # question -> fact
    for _ in range(ROUNDS[split]):
        for fact in draw.shuffled([*told, *left_out[: 1 + draw.happens(0.5)]]):
            asked[draw.one_of(questions[fact]).format(subject=subject)] = fact
    qas = [
        {
            "id": f"{name}-{i}",
            "question": question,
            "answers": [answers[fact]] if fact in answers else [],
            "is_impossible": fact not in answers,
        }
        for i, (question, fact) in enumerate(asked.items())
    ]
    return {"context": context, "qas": qas}


def write_pages(split: str) -> dict[str, Any]:
    """A split in SQuAD's layout: a page a subject, a paragraph a section, of each kind equally many.

    No page of training is about a subject of the other splits.
    """
    draw = Draw(f"helpdesk pages {split}")
    pages: list[dict[str, Any]] = []
    left = SIZES[split]
    training = split == "train"
    held_out = {page["title"] for other in ("validation", "test") if training for page in write_pages(other)["data"]}
    by_kind = [
        [(subject, sections) for subject in draw.shuffled(subjects + more if training else subjects) if subject not in held_out]
        for subjects, more, sections in SUBJECTS
    ]
    for subject, sections in itertools.chain.from_iterable(zip(*by_kind)):
        paragraphs = []
        for section in sections:
            if left:
                paragraphs.append(write_paragraph(section, subject, split, f"{split}-{len(pages)}-{section}", draw))
                paragraphs[-1]["qas"] = paragraphs[-1]["qas"][:left]
                left -= len(paragraphs[-1]["qas"])
        if paragraphs:
            pages.append({"title": subject, "paragraphs": paragraphs})
    return {"version": "helpdesk", "data": pages}
