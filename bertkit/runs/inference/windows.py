"""The windows of rows that are predicted at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

from bertkit import readers
from bertkit.readers import Examples, Remarks, join_blocks


def window_sizes() -> Iterator[int]:
    """How many rows are predicted at once: few at first, so that results come early; after the first block, blocks."""
    begin, block = 0, readers.ROWS
    for end in (block // 64, block // 16, block // 4, block):
        if end > begin:
            yield end - begin
        begin = end
    yield from repeat(block)


def windows(blocks: Iterable[Examples]) -> Iterator[Examples]:
    """The rows of one source's blocks in windows of `window_sizes`, whose bounds depend only on row numbers.

    They have the columns of the first block; a warning names columns that appear later.
    """
    sizes = window_sizes()
    held: list[Examples] = []
    names: dict[str, Any] = {}
    number, missing = 0, next(sizes)
    for block in blocks:
        names = names or block.columns
        if late := [name for name in block.columns if name not in names]:
            what = f"ignored {'a column' if len(late) == 1 else 'columns'} missing from the first rows: {', '.join(late)}"
            block = block.with_remarks(Remarks.of(warning=f"{what} ({block.source})"))
        block = replace(block, columns={name: block.columns.get(name) or [None] * len(block) for name in names})
        at = 0
        while len(block) - at >= missing:
            window = join_blocks([*held, block.part(at, at + missing)])
            yield replace(window, first=number, done=block.done)
            block = replace(block, remarks=Remarks())  # which are those of its first part
            at, number, held, missing = at + missing, number + len(window), [], next(sizes)
        if at < len(block):
            held.append(block.part(at, len(block)))
            missing -= len(block) - at
    if held:
        yield replace(join_blocks(held), first=number, done=held[-1].done)
