"""A few examples as the model sees them: tokens, segments, labels, and truncated text."""

from __future__ import annotations

import math

import numpy as np
from rich.text import Text

from bertkit.features import Features
from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.report import Report
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer

_SEGMENTS = ("", "cyan")
_MOST_TOKENS = 120  # maximum shown per sequence
_MOST_CUT = 600  # characters shown of what was cut


def preview(task: Task, examples: Examples, features: Features, tokenizer: Tokenizer, *, count: int) -> Report:
    """The first examples, one line per sequence, with each label in brackets after its token. features: of all examples."""
    first = examples.select(range(min(count, len(examples))))
    whole, _ = task.encode(first, tokenizer, max_length=math.inf, labelled=False)
    names = {number: token for token, number in tokenizer.vocab.items()}
    lines: list[Text] = []
    for example in range(len(first)):
        lines.append(plain(f"example {first.where(example)}, as the model sees it:"))
        own = np.flatnonzero(features.examples == example).tolist()
        if not own:
            lines.append(Text("  nothing: the row has no words"))
        for feature in own:
            sequences = range(*features.offsets[feature : feature + 2])
            described = task.describe_targets(features, feature) if features.labels else [{}] * len(sequences)
            lines += [_line(features, *pair, names) for pair in zip(sequences, described, strict=True)]
        if cut := _cut(features, whole, example, names):
            cut_text = cut if len(cut) <= _MOST_CUT else f"{cut[:_MOST_CUT]} ... ({len(cut) - _MOST_CUT} more characters)"
            lines.append(Text(f"  cut by {task.truncated_by}: ", style="yellow") + plain(cut_text))
    return Report(lines)


def _line(features: Features, sequence: int, labels: dict[int, str], names: dict[int, str]) -> Text:
    """A sequence, its second segment in colour; labels: by position."""
    line = Text("  ")
    ids, segments = features.input_ids[sequence].tolist(), features.token_type_ids[sequence].tolist()
    shown = set(range(_MOST_TOKENS)) | {position + near for position in labels for near in (-1, 0, 1)}
    for position, (number, segment) in enumerate(zip(ids, segments, strict=True)):
        if position in shown:
            line += Text(plain(names[number]).plain, style=_SEGMENTS[min(segment, 1)])
            line += Text(f"[{labels[position]}]", style="bold green") if position in labels else Text()
            line += Text(" ")
        elif position - 1 in shown:
            line += Text("... ", style="dim")
    return line + Text(f"({len(ids)} tokens, segment B: {sum(segments)})", style="dim")


def _cut(features: Features, whole: Features, example: int, names: dict[int, str]) -> str:
    """The tokens of an example that no sequence of `features` holds, segment by segment."""

    def tokens_of(source: Features, segment: int) -> list[list[int]]:
        own = np.flatnonzero(source.examples == example)
        sequences = (sequence for feature in own for sequence in range(*source.offsets[feature : feature + 2]))
        return [source.input_ids[s][source.token_type_ids[s] == segment].tolist() for s in sequences]

    lost: list[str] = []
    for segment in (0, 1):
        windows, full = tokens_of(features, segment), tokens_of(whole, segment)
        if len(windows) > len(full) and len(set(map(tuple, windows))) > 1:
            continue  # windows overlap and lose nothing
        for kept, tokens in zip(windows, full, strict=False):  # all windows of an example have the same other segment
            same = next((n for n, (one, other) in enumerate(zip(kept, tokens)) if one != other), len(kept))
            missing = tokens[same : len(tokens) - (len(kept) - same)]  # from the end, the beginning or the middle
            lost.append(" ".join(names[number] for number in missing))
    return " | ".join(dict.fromkeys(text for text in lost if text))
