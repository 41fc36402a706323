"""fastText's lines: a text after its labels, each as __label__NAME (Joulin et al., 2017)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.readers.content import Content

_LABELS = re.compile(r"\s*(?:__label__\S+(?:\s+|$))*")


def parse_fasttext(content: Content) -> Iterator[Examples]:
    """The rows of a file, one block, as columns `label` and `text`; lines without text and label are skipped.

    label: text, None if a line has no label; or, if any line has several, a list in each row. Raises DataError for a file
    without rows.
    """
    numbers, labels, texts = [], [], []
    for first, lines in content.lines():
        for number, line in enumerate(lines, start=first):
            if line.strip():
                begin = _LABELS.match(line)
                assert begin, "it matches nothing too"
                numbers.append(number)
                labels.append([label.removeprefix("__label__") for label in begin[0].split()])
                texts.append(line[begin.end() :])
    if not numbers:
        raise DataError("the file is empty", where=content.source)
    if all(len(names) < 2 for names in labels):
        own: list = [names[0] if names else None for names in labels]
    else:
        own = [names or None for names in labels]
    yield Examples({"label": own, "text": texts}, content.source, numbers)


def looks_like_fasttext(content: Content) -> bool:
    """Whether the first line begins with a label."""
    return content.first_line.lstrip().startswith("__label__")
