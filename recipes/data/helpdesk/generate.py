"""Write all data sets of the help desk anew, always the same bytes: `python recipes/data/helpdesk/generate.py`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from mentions import write_mentions
from pages import write_pages
from pairs import write_pairs
from replies import write_replies
from tickets import write_tickets
from world import HERE


def to_csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def to_conll(tickets: Iterable[Sequence[tuple[str, str]]]) -> str:
    """A word and its tag a line, a blank line after each ticket."""
    return "".join("".join(f"{word} {tag}\n" for word, tag in ticket) + "\n" for ticket in tickets)


def to_json(pages: dict[str, Any]) -> str:
    """One page a line."""
    lines = ",\n".join(json.dumps(page, separators=(",", ":")) for page in pages["data"])
    return f'{{"version": {json.dumps(pages["version"])}, "data": [\n{lines}\n]}}\n'


def to_text(documents: Iterable[Sequence[str]]) -> str:
    """A line a paragraph, a blank line between documents."""
    return "\n\n".join("\n".join(document) for document in documents) + "\n"


def write_documents() -> list[list[str]]:
    """What the shop has in writing, from the training data alone: tickets with their replies, and its pages."""
    pages = [[part["context"] for part in page["paragraphs"]] for page in write_pages("train")["data"]]
    return [[text, reply] for text, reply, label in write_pairs("train") if label == "fits"] + pages


def main() -> None:
    (HERE / "text").mkdir(exist_ok=True)
    (HERE / "text" / "shop.txt").write_text(to_text(write_documents()), encoding="utf-8", newline="\n")
    for split in ("train", "validation", "test"):
        files = {
            f"tickets/{split}.csv": to_csv(("text", "team"), write_tickets(split)),
            f"pairs/{split}.csv": to_csv(("text", "text_pair", "label"), write_pairs(split)),
            f"mentions/{split}.conll": to_conll(write_mentions(split)),
            f"pages/{split}.json": to_json(write_pages(split)),
            f"replies/{split}.csv": to_csv(("text", "reply0", "reply1", "reply2", "reply3", "label"), write_replies(split)),
        }
        for name, text in files.items():
            path = HERE / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
