"""bertkit check"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import recipe_options, with_options
from bertkit.config import PretrainConfig, options_of
from bertkit.errors import DataError, UsageError
from bertkit.tasks import FAMILIES

_OF_CORPUS = {name: ("Sequences", options_of(PretrainConfig)[name]) for name in ("objective", "masking")}
_OF_BOTH = ("batch_size", "max_length", "seed")
_MEASURED = ("num_epochs", "max_steps", "device", "precision", "micro_batch_tokens", "freeze")
_OPTIONS = {name for family in FAMILIES.values() for name in options_of(family)} | {*_OF_BOTH, *_MEASURED}


@with_options(known={name: of for name, of in recipe_options().items() if name in _OPTIONS} | _OF_CORPUS)
def check(
    target: Annotated[
        str,
        typer.Argument(help="A recipe, a task family, a data file or folder, a run folder, or a corpus.", metavar="TARGET"),
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model whose tokenizer to look with; with it, three steps are measured too."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="What the data is for. Default: by its look.")] = None,
    examples: Annotated[int, typer.Option(help="Examples to show.", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Write what was found to stdout as JSON.")] = False,
    typed: dict[str, Any] | None = None,
) -> None:
    """Show data as training will see it, and what is wrong with it; exit code 3 where there are errors.

    Of labelled data: labels and their counts, labels that only one side has, duplicates and contradictions within and across
    splits, empty texts, broken characters, and with a model's tokenizer lengths, \\[UNK] and examples. Of a corpus: its first
    sequences, and what becomes of their tokens; with the options of the training these are the training's own.

    [bold]bertkit check mrpc --data glue/MRPC --model bert-base-uncased[/]

    [bold]bertkit check my.csv --text question --label kind --model minilm[/]

    [bold]bertkit check corpora/mine --masking whole-word --examples 20[/]
    """
    from bertkit.corpus.build import META
    from bertkit.runs.glue import NAME

    if target == NAME:
        raise UsageError("glue is all of its tasks, and check takes one", hint="as in bertkit check mrpc --data glue/MRPC")
    given = typed or {}
    if (Path(target) / META).is_file():
        if others := sorted(set(given) - set(_OF_CORPUS) - set(_OF_BOTH)):
            raise UsageError(f"--{others[0].replace('_', '-')} is for labelled data; this is a corpus", where=target)
        _check_corpus(Path(target), given, examples)
        return
    if others := sorted(set(given) & set(_OF_CORPUS)):
        raise UsageError(f"--{others[0]} is for a corpus; {target} is none", hint="bertkit corpus build makes one")
    _check_data(target, model, recipe, given, examples, as_json=as_json)


def _check_data(
    target: str, model: str | None, recipe: str | None, typed: dict[str, Any], count: int, *, as_json: bool
) -> None:
    from bertkit import progress
    from bertkit.model.pretrained import open_pretrained
    from bertkit.report import show_checked
    from bertkit.runs.check import check_data, open_data
    from bertkit.runs.finetune import finetune
    from bertkit.tasks.preview import show_examples

    opened, splits, own_model = open_data(target, recipe, typed)
    model = model or own_model
    pretrained = open_pretrained(model) if model is not None else None
    checked = check_data(opened, splits, pretrained)
    found = checked.to_json()
    if pretrained is None:
        progress.note("no --model is named: lengths, unknown tokens and examples are left out")
    show_checked(target, checked)
    if pretrained is not None and checked.has_errors:
        for rows in list(checked.splits.values())[:1]:
            features = opened.encode(rows, pretrained.tokenizer, opened.training.max_length, labelled=False).features
            show_examples(opened, rows, features, pretrained.tokenizer, count=count)
    elif model is not None:
        measured = finetune(opened, name=target, model=model, output_dir=Path(), fresh_head=True, dry_run=True, shown=count)
        found["measured"] = measured
    if as_json and not progress.console.quiet:
        typer.echo(json.dumps(found, ensure_ascii=False))
    if checked.has_errors:
        raise typer.Exit(DataError.exit_code)


def _check_corpus(corpus: Path, typed: dict[str, Any], examples: int) -> None:
    from bertkit import progress
    from bertkit.corpus.build import read_meta
    from bertkit.corpus.preview import LEGEND, count_targets, draw_sequences
    from bertkit.runs import pretrain as pretraining
    from bertkit.text.tokenizer import Tokenizer

    config = PretrainConfig.of(typed)
    meta = read_meta(corpus)
    tokenizer = Tokenizer.load(corpus)
    sampler = pretraining.sampler_of(corpus, meta, "train", tokenizer, config, config.max_length)
    count = sampler.sequences_per_epoch
    progress.show([LEGEND, *draw_sequences(sampler, examples)])
    features = sampler.sequences(0, min(1000, count))
    found: dict[str, Any] = {"sequences an epoch": count, "tokens a sequence, mean": float(features.num_tokens.mean())}
    found |= count_targets(sampler, features)
    progress.table(f"{corpus}: of the first {len(features)} sequences", list(found), [list(found.values())])
