"""Pre-training sequences as the model will see them, in colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from bertkit import progress
from bertkit.corpus.objectives import Objective
from bertkit.corpus.sampling import CorpusSampler
from bertkit.errors import plural
from bertkit.features import Features
from bertkit.progress import plain

FEW = 0.95  # warn if an epoch reads a smaller share of the tokens
_SEGMENTS = ("", "cyan")
_MASKED, _REPLACED, _KEPT = "bold red", "bold magenta", "bold green"
LEGEND = Text.from_markup(
    f"segment A, [{_SEGMENTS[1]}]segment B[/]; targets: [{_MASKED}]\\[MASK](original)[/], "
    f"[{_REPLACED}]replaced(original)[/], [{_KEPT}]kept(kept)[/]"
)


def show_share_read(sampler: CorpusSampler, name: str = "") -> None:
    """Report how much of the corpus an epoch reads, and warn if it is little. name: of a corpus among several."""
    share, objective = sampler.share_read, sampler.objective.name
    what = (
        f"an epoch of {objective}, in sequences of at most {sampler.max_length} tokens, reads {share:.1%} of the training text"
        f"{f' of {name}' if name else ''}"
    )
    if share < FEW:
        progress.warn(f"{what}: join its shortest documents, or train with --objective mlm, which reads all")
    else:
        progress.note(what)


def warn_of_absent_entities(samplers: Sequence[CorpusSampler]) -> None:
    """Warn if --masking entities finds none in the first step's sequences of any corpus, and so masks whole words."""
    if samplers[0].entities is not None and not any(sampler.finds_entities for sampler in samplers):
        what = f"there is no entity of several words or characters in the first {plural(samplers[0].batch_size, 'sequence')}"
        progress.warn(f"{what}: --masking entities masks only whole words in them; do the listed entities occur in the text?")


def draw_sequences(sampler: CorpusSampler, count: int) -> Iterator[Text]:
    """The first sequences of a run, at most those of its first step, as text: no spaces within words, and each target shown
    with its original token."""
    features, words = sampler.features_at(0), sampler.words(sampler.numbers_at(0))
    names = {number: token for token, number in sampler.tokenizer.vocab.items()}
    for number in range(min(count, sampler.batch_size)):
        yield _draw(features, number, words[number], names, sampler)


def count_targets(sampler: CorpusSampler, features: Features) -> dict[str, float]:
    """The shares of tokens that are targets, of targets masked, replaced and kept, and of pairs with the first label.

    Empty for a causal objective, which masks nothing.
    """
    objective = sampler.objective
    if objective.causal:
        return {}
    rows = [_targets(features, number, objective)[0] + features.input_ids.offsets[number] for number in range(len(features))]
    targets = np.concatenate(rows)
    seen, labels = features.input_ids.values[targets], features.labels[objective.token_term].values
    masked, kept = seen == sampler.tokenizer.mask_token_id, seen == labels
    shares = {
        "targets": len(targets) / len(features.input_ids.values),
        "masked": float(masked.mean()),
        "replaced": float((~masked & ~kept).mean()),
        "kept": float(kept.mean()),
    }
    if objective.pair_term is not None:
        shares[objective.pair_labels[0]] = float((features.labels[objective.pair_term].values == 0).mean())
    return shares


def _targets(features: Features, number: int, objective: Objective) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of a sequence's targets, and the right tokens there."""
    assert features.rows is not None
    rows = features.rows[number]
    return rows if objective.pair_term is None else rows[1:], features.labels[objective.token_term][number]


def _draw(
    features: Features, number: int, begins_word: NDArray[np.bool_], names: dict[int, str], sampler: CorpusSampler
) -> Text:
    objective = sampler.objective
    ids, segments = features.input_ids[number].tolist(), features.token_type_ids[number].tolist()
    # A causal model predicts at every token and sees each unchanged.
    targets = {} if objective.causal else dict(zip(*_targets(features, number, objective), strict=True))
    line = Text()
    if objective.pair_term is not None:
        width = max(map(len, objective.pair_labels))
        label = objective.pair_labels[features.labels[objective.pair_term][number][0]]
        line += Text(f"B is {label:{width}} ", style="bold")
    for position, (token_id, segment, begins) in enumerate(zip(ids, segments, begins_word.tolist(), strict=True)):
        if begins and position:
            line += Text(" ")
        token = plain(names[token_id]).plain
        if position not in targets:
            line += Text(token, style=_SEGMENTS[segment])
        elif token_id == targets[position]:
            line += Text(f"{token}(kept)", style=_KEPT)
        else:
            style = _MASKED if token_id == sampler.tokenizer.mask_token_id else _REPLACED
            line += Text(f"{token}({plain(names[targets[position]]).plain})", style=style)
    return line + Text(f"  ({plural(len(ids), 'token')}, {plural(len(targets), 'target')})", style="dim")
