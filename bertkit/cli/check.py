"""bertkit check"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import with_options
from bertkit.config import PretrainConfig, options_of

_OPTIONS = ("objective", "masking", "batch_size", "max_length", "seed")


@with_options(known={name: ("Sequences", options_of(PretrainConfig)[name]) for name in _OPTIONS})
def check(
    corpus: Annotated[Path, typer.Argument(help="A corpus: bertkit corpus build makes one.", metavar="CORPUS")],
    examples: Annotated[int, typer.Option(help="Sequences to show.", min=1)] = 5,
    typed: dict[str, Any] | None = None,
) -> None:
    """Show a corpus as pre-training will see it: the first sequences, and what becomes of their tokens.

    Give the options that the training will have: with the same seed these are its first sequences.

    [bold]bertkit check corpora/mine[/]

    [bold]bertkit check corpora/mine --masking whole-word --examples 20[/]
    """
    from bertkit import pretraining, progress
    from bertkit.corpus.build import read_meta
    from bertkit.corpus.preview import LEGEND, count_targets, draw_sequences
    from bertkit.tokenizer import Tokenizer

    config = PretrainConfig.of(typed or {})
    meta = read_meta(corpus)
    tokenizer = Tokenizer.load(corpus)
    sampler = pretraining.sampler_of(corpus, meta, "train", tokenizer, config, config.max_length)
    count = sampler.sequences_per_epoch
    progress.show([LEGEND, *draw_sequences(sampler, examples)])
    features = sampler.sequences(0, min(1000, count))
    found: dict[str, Any] = {"sequences an epoch": count, "tokens a sequence, mean": float(features.num_tokens.mean())}
    if "mlm" in features.labels:
        found |= count_targets(features, tokenizer)
    progress.table(f"{corpus}: of the first {len(features)} sequences", list(found), [list(found.values())])
