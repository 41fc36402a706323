"""The sequences for training and scoring a language model, from the corpora of its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit import progress
from bertkit.config import PretrainConfig, options_of
from bertkit.corpus.corpora import Corpus, short_names
from bertkit.corpus.entities import read_entities
from bertkit.corpus.masking import MASKED
from bertkit.corpus.mixing import Mix
from bertkit.corpus.objectives import OBJECTIVES
from bertkit.corpus.sampling import START, CorpusSampler, Mark
from bertkit.corpus.segments import Integers
from bertkit.corpus.shard import Shards
from bertkit.errors import DataError, UsageError
from bertkit.features import Features, offsets_of
from bertkit.model.batch import Batch
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import collate, deal

HELD_OUT = 2048  # maximum number of sequences to evaluate from a corpus's validation split
SOURCES = 12  # the sources of a corpus, those with the most held-out sequences, that are also scored on their own


def sampler_of(
    corpus: Corpus, split: str, tokenizer: Tokenizer, config: PretrainConfig, max_length: int, begin: Mark = START
) -> CorpusSampler:
    """The sequences of a split of a corpus, of at most max_length tokens. Raises UsageError if the split is empty."""
    shards, objective = Shards(corpus.folder, corpus.meta[split]["shards"]), OBJECTIVES[config.objective]
    if not shards:
        raise UsageError(f"the corpus has no text for {split}", where=str(corpus.folder))
    for name in ("masking", "mlm_probability"):
        if objective.causal and getattr(config, name) != (declared := options_of(config)[name]).default:
            what = f"{declared.flag} is {getattr(config, name)}, but --objective {objective.name} masks nothing"
            raise UsageError(what, hint="leave out one of the two")
    entities = None if config.entities is None else read_entities(config.entities, tokenizer)
    return CorpusSampler(
        shards, tokenizer, config.batch_size, max_length, config.seed, objective, config.masking, begin, entities
    )


def mix_of(
    corpora: Sequence[Corpus], tokenizer: Tokenizer, config: PretrainConfig, max_length: int, mark: Sequence[int] = ()
) -> Mix:
    """The training sequences of a run. mark: from `Mix.mark_at`, to begin there; the mark of another mix is ignored."""
    begins = [Mark(*mark[at : at + 2]) for at in range(0, len(mark), 2)]
    begins = begins if len(begins) == len(corpora) else [START] * len(corpora)
    parts = [
        sampler_of(corpus, "train", tokenizer, config, max_length, begin) for corpus, begin in zip(corpora, begins, strict=True)
    ]
    return Mix(parts, [corpus.share for corpus in corpora])


def micro_batches(
    sampler: CorpusSampler | Mix, numbers: Integers, *, masked: float = MASKED, limit: int, rank: int, world_size: int
) -> list[Batch]:
    """This process's share of a step's sequences, as micro-batches of at most `limit` tokens; only these are made."""
    groups = deal(sampler.lengths(numbers), limit, rank=rank, world_size=world_size)
    chosen = np.concatenate(groups)
    features = sampler.sequences(numbers[chosen] if len(chosen) else numbers[:1], masked)
    return [collate(features, np.arange(*bounds)) for bounds in pairwise(offsets_of(np.array([*map(len, groups)])))]


class HeldOutSequences(NamedTuple):
    """One process's share of held-out sequences. parts: for each corpus or source that is also scored on its own, whether each
    sequence belongs to it."""

    features: Features
    parts: dict[str, NDArray[np.bool_]]


def held_out_sequences(
    corpora: Sequence[Corpus], tokenizer: Tokenizer, config: PretrainConfig, *, rank: int = 0, world_size: int = 1
) -> HeldOutSequences | None:
    """This process's share of at most HELD_OUT sequences from each corpus's validation split, with the last phase's
    max_length; None if all are empty.

    Parts are the corpora of a mix, and the sources of a corpus with several.
    """
    with_text = [corpus for corpus in corpora if corpus.has_validation]
    found = [_held_out_of(corpus, tokenizer, config, slice(rank, None, world_size)) for corpus in with_text]
    if len(corpora) == 1 or not found:
        return found[0] if found else None
    begins = offsets_of(np.array([len(own.features) for own in found]))
    parts: dict[str, NDArray[np.bool_]] = {}
    for corpus, own, bounds in zip(with_text, found, pairwise(begins), strict=True):
        members = {"": True, **{f"/{source}": of_source for source, of_source in own.parts.items()}}
        for name, of_part in members.items():
            parts[corpus.name + name] = np.zeros(begins[-1], dtype=bool)
            parts[corpus.name + name][slice(*bounds)] = of_part
    return HeldOutSequences(Features.joined([own.features for own in found]), parts)


def _held_out_of(corpus: Corpus, tokenizer: Tokenizer, config: PretrainConfig, share: slice) -> HeldOutSequences:
    """A process's share of the held-out sequences of one corpus, with its sources as parts."""
    sampler = sampler_of(corpus, "validation", tokenizer, config, config.lengths()[-1][0])
    try:
        numbers = np.arange(sampler.in_first_epoch(HELD_OUT))
        features = sampler.sequences(numbers[share])
    except DataError as error:
        raise DataError(error.what, where=f"the validation split of {corpus.folder}", hint=error.hint) from None
    sources = _sources_of(sampler, corpus, numbers)
    counts = Counter(sources.tolist())
    most = sorted(source for source, _ in counts.most_common(SOURCES))
    if len(counts) > SOURCES:
        shown = f"scores are shown for {SOURCES} of {len(counts)} sources, those with the most held-out sequences"
        progress.note(f"{corpus.name}: {shown}")
    names = short_names([corpus.meta["sources"][source]["name"] for source in most])
    parts = {name: sources[share] == source for name, source in zip(names, most, strict=True)}
    return HeldOutSequences(features, parts if len(parts) > 1 else {})


def _sources_of(sampler: CorpusSampler, corpus: Corpus, numbers: Integers) -> Integers:
    """(B,) the source of the text that each held-out sequence begins with."""
    listed = {shard["name"]: shard for shard in corpus.meta["validation"]["shards"]}
    groups = [[listed[name] for name in group] for group in Shards(corpus.folder, [*listed.values()]).groups]
    found = []
    for group, token in sampler.places(numbers):
        ends = np.cumsum([shard["tokens"] for shard in groups[group]])
        found.append(groups[group][np.searchsorted(ends, token, side="right")]["source"])
    return np.array(found, dtype=np.int64)
