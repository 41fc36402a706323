"""What is shown of a corpus: its counts, and the first sequences that pre-training draws from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bertkit import progress
from bertkit.config import PretrainConfig
from bertkit.corpus.corpora import Corpus, open_corpora
from bertkit.corpus.directory import SPLITS
from bertkit.corpus.preview import LEGEND, count_targets, draw_sequences, show_share_read, warn_of_absent_entities
from bertkit.corpus.sampling import CorpusSampler
from bertkit.errors import plural
from bertkit.report import Report, Table, show
from bertkit.runs.pretraining.sequences import sampler_of
from bertkit.text.tokenizer import Tokenizer


def show_counts(meta: dict[str, Any], folder: Path) -> None:
    """The counts of a finished corpus. meta: the content of its meta.json."""
    names = ("documents", "sentences", "tokens")
    rows = [[split, *(meta[split][name] for name in names), len(meta[split]["shards"])] for split in SPLITS]
    show(Report([Table(str(folder), ["split", *names, "shards"], rows)]))
    counts = meta["documents"]
    progress.note(
        f"{plural(counts['read'], 'document')} read; dropped {counts['short']} short, {counts['duplicates']} duplicate"
    )
    if meta["train"]["shards"]:
        show_share_read(_training_part(folder, PretrainConfig.of({}))[1])


def check_corpus(corpus: Path, overrides: dict[str, Any], examples: int, *, drawn: bool) -> dict[str, Any]:
    """The counts of a corpus's first sequences and their targets. drawn: whether to show the first `examples` sequences."""
    config = PretrainConfig.of(overrides)
    opened, sampler = _training_part(corpus, config)
    count, exact = sampler.epoch_length(opened.meta["train"]["tokens"])
    if drawn:  # JSON has standard output to itself
        progress.print_results([LEGEND, *draw_sequences(sampler, examples)])
    features = sampler.sequences(np.arange(sampler.in_first_epoch(1000)))
    counts: dict[str, Any] = {
        "sequences per epoch" if exact else "sequences per epoch, about": count,
        "mean tokens per sequence": float(features.num_tokens.mean()),
    }
    counts |= count_targets(sampler, features)
    show(Report([Table(f"{corpus}: the first {len(features)} sequences", [*counts], [[*counts.values()]])]))
    show_share_read(sampler)
    warn_of_absent_entities([sampler])
    return counts


def _training_part(folder: Path, config: PretrainConfig) -> tuple[Corpus, CorpusSampler]:
    """A corpus, and the sampler of its training sequences."""
    (corpus,) = open_corpora([folder])
    return corpus, sampler_of(corpus, "train", Tokenizer.load(folder), config, config.max_length)
