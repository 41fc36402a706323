"""A few examples as the model sees them: tokens, segments, labels, and what truncation cut."""

from __future__ import annotations

import math

from rich.text import Text

from bertkit import progress
from bertkit.features import Features
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer

_SEGMENTS = ("", "cyan")
_MOST_TOKENS = 120  # shown of a sequence


def show_examples(task: Task, examples: Examples, features: Features, tokenizer: Tokenizer, *, count: int = 3) -> None:
    """Print the first examples, a line a sequence: a label follows the token that it stands at, in brackets.

    features: of all examples.
    """
    first = examples.select(range(min(count, len(examples))))
    whole, _ = task.encode(first, tokenizer, max_length=math.inf, labelled=False)
    names = {number: token for token, number in tokenizer.vocab.items()}
    for example in range(len(first)):
        progress.note(f"example {first.where(example)}, as the model sees it:")
        for at in (features.examples == example).nonzero()[0].tolist():
            sequences = range(*features.offsets[at : at + 2])
            described = task.describe_targets(features, at) if features.labels else [{}] * len(sequences)
            for sequence, labels in zip(sequences, described, strict=True):
                progress.console.print(_drawn(features, sequence, labels, names))
        if cut := _cut(features, whole, example, names):
            progress.console.print(Text(f"  cut by {task.truncated_by}: ", style="yellow") + plain(cut))


def _drawn(features: Features, sequence: int, labels: dict[int, str], names: dict[int, str]) -> Text:
    """A sequence: its second segment in colour, its labels set off."""
    line = Text("  ")
    ids, segments = features.input_ids[sequence].tolist(), features.token_type_ids[sequence].tolist()
    shown = set(range(_MOST_TOKENS)) | {place + near for place in labels for near in (-1, 0, 1)}
    for place, (number, segment) in enumerate(zip(ids, segments, strict=True)):
        if place in shown:
            line += Text(plain(names[number]).plain, style=_SEGMENTS[min(segment, 1)])
            line += Text(f"[{labels[place]}]", style="bold green") if place in labels else Text()
            line += Text(" ")
        elif place - 1 in shown:
            line += Text("... ", style="dim")
    return line + Text(f"({len(ids)} tokens, segment B: {sum(segments)})", style="dim")


def _cut(features: Features, whole: Features, example: int, names: dict[int, str]) -> str:
    """The tokens of an example that no sequence of `features` holds, segment by segment."""

    def held(found: Features, segment: int) -> list[list[int]]:
        sequences = [
            sequence
            for at in (found.examples == example).nonzero()[0].tolist()
            for sequence in range(*found.offsets[at : at + 2])
        ]
        return [found.input_ids[s][found.token_type_ids[s] == segment].tolist() for s in sequences]

    lost: list[str] = []
    for segment in (0, 1):
        windows, full = held(features, segment), held(whole, segment)
        if len(windows) > len(full) and len(set(map(tuple, windows))) > 1:
            continue  # windows, which overlap and lose nothing
        for kept, tokens in zip(windows, full, strict=False):  # each of several windows has the same other segment
            same = next((at for at, (one, other) in enumerate(zip(kept, tokens)) if one != other), len(kept))
            missing = tokens[same : len(tokens) - (len(kept) - same)]  # a stretch from the end, the begin or the middle
            lost.append(" ".join(names[number] for number in missing))
    return " | ".join(dict.fromkeys(text for text in lost if text))
