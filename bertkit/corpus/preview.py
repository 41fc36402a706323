"""Sequences of pre-training as the model will see them, in colour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.segments import IS_NEXT
from bertkit.features import Features
from bertkit.progress import plain
from bertkit.text.tokenizer import Tokenizer

_SEGMENTS = ("", "cyan")
_MASKED, _REPLACED, _KEPT = "bold red", "bold magenta", "bold green"
LEGEND = Text.assemble(
    "segment A, ",
    ("segment B", _SEGMENTS[1]),
    "; targets: ",
    ("[MASK](what stood there)", _MASKED),
    ", ",
    ("replaced(what stood there)", _REPLACED),
    ", ",
    ("kept(kept)", _KEPT),
)


def draw_sequences(sampler: CorpusSampler, count: int) -> Iterator[Text]:
    """The first sequences of a run, of its first step at most: the tokens of a word stand together, and each says what
    becomes of it."""
    features, words = sampler.features_at(0), sampler.words(0, sampler.batch_size)
    names = {number: token for token, number in sampler.tokenizer.vocab.items()}
    for at in range(min(count, sampler.batch_size)):
        yield _draw(features, at, words[at], names, sampler.tokenizer)


def count_targets(features: Features, tokenizer: Tokenizer) -> dict[str, Any]:
    """Of all targets the shares that are masked, replaced and kept; and of all pairs that of true next segments."""
    targets = np.concatenate([_targets(features, at)[0] + features.input_ids.offsets[at] for at in range(len(features))])
    stands, stood = features.input_ids.values[targets], features.labels["mlm"].values
    masked, kept = stands == tokenizer.mask_token_id, stands == stood
    found = {
        "targets": len(targets) / len(features.input_ids.values),
        "masked": float(masked.mean()),
        "replaced": float((~masked & ~kept).mean()),
        "kept": float(kept.mean()),
    }
    if "nsp" in features.labels:
        found["next"] = float((features.labels["nsp"].values == IS_NEXT).mean())
    return found


def _targets(features: Features, at: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of a sequence that are asked for, and what stood there."""
    assert features.rows is not None
    rows = features.rows[at]
    return rows[1:] if "nsp" in features.labels else rows, features.labels["mlm"][at]


def _draw(features: Features, at: int, begins_word: NDArray[np.bool_], names: dict[int, str], tokenizer: Tokenizer) -> Text:
    ids, segments = features.input_ids[at].tolist(), features.token_type_ids[at].tolist()
    stood = dict(zip(*map(np.ndarray.tolist, _targets(features, at)), strict=True)) if "mlm" in features.labels else {}
    line = Text()
    if "nsp" in features.labels:
        follows = features.labels["nsp"][at][0] == IS_NEXT
        line += Text("B is next     " if follows else "B is not next ", style="bold")
    for place, (number, segment, begins) in enumerate(zip(ids, segments, begins_word.tolist(), strict=True)):
        if begins and place:
            line += Text(" ")
        token = plain(names[number]).plain
        if place not in stood:
            line += Text(token, style=_SEGMENTS[segment])
        elif number == stood[place]:
            line += Text(f"{token}(kept)", style=_KEPT)
        else:
            style = _MASKED if number == tokenizer.mask_token_id else _REPLACED
            line += Text(f"{token}({plain(names[stood[place]]).plain})", style=style)
    return line + Text(f"  ({len(ids)} tokens, {len(stood)} targets)", style="dim")
