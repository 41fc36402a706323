"""bertkit corpus"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.checked_command import CheckedCommand
from bertkit.cli.options import Encoding, Include, MaxFileSize, OnError, Overwrite, TextColumn
from bertkit.errors import UsageError, not_a_choice, plural
from bertkit.readers.content import MAX_FILE_SIZE

corpus = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@corpus.callback()
def _group() -> None:
    """Turn plain text into shards of tokens."""


Output = Annotated[Path, typer.Option("--output-dir", "-o", help="Corpus folder to write.", metavar="DIR")]
NumProcesses = Annotated[int | None, typer.Option(help="Processes; default: one per core.", min=1)]


@corpus.command(cls=CheckedCommand)
def build(
    text: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, globs or URLs of .txt, .md, .html, .jsonl, .csv or .parquet, also compressed; "
            "hub:OWNER/NAME or hub:OWNER/NAME:CONFIGURATION; - is stdin.",
            metavar="TEXT...",
        ),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer", "-t", help="Tokenizer of the model to train: a folder, hub id, or minilm.", metavar="TOKENIZER"
        ),
    ],
    output_dir: Output,
    validation: Annotated[
        str | None,
        typer.Option(help="Share of the documents to hold out, such as 1%; chosen by a hash of the text.", metavar="SHARE"),
    ] = None,
    sentences: Annotated[
        str, typer.Option(help="split: split lines into sentences; lines: one sentence per line.", metavar="split|lines")
    ] = "split",
    layout: Annotated[
        str,
        typer.Option(
            help="What separates documents in plain text: blank-lines; lines (one document per line); or auto: blank lines if "
            "there are any, else lines.",
            metavar="auto|blank-lines|lines",
        ),
    ] = "auto",
    text_column: TextColumn = "text",
    min_tokens: Annotated[int, typer.Option(help="Drop shorter documents.", min=1)] = 5,
    words: Annotated[
        str,
        typer.Option(
            help="Words for whole-word masking. basic: BERT's words, with each Chinese character a word; "
            "jieba: Chinese words as split by jieba.",
            metavar="basic|jieba",
        ),
    ] = "basic",
    include: Include = None,
    encoding: Encoding = None,
    on_error: OnError = "fail",
    max_file_size: MaxFileSize = MAX_FILE_SIZE,
    num_processes: NumProcesses = None,
    overwrite: Overwrite = False,
) -> None:
    """Split text into sentences and tokens, and write them in shards; exact duplicates and short documents are dropped.

    The same command resumes an interrupted build. The result does not depend on the number of processes: build parts of the
    text on several machines, and join the corpora with [bold]bertkit corpus merge[/].

    [bold]bertkit corpus build text/ --tokenizer tokenizers/mine --validation 1% --output-dir corpora/mine[/]

    [bold]zcat dump.gz | bertkit corpus build - --tokenizer tokenizers/mine --output-dir corpora/dump[/]
    """
    from bertkit import progress
    from bertkit.corpus.build import CorpusConfig, build_corpus
    from bertkit.corpus.texts import TextOptions
    from bertkit.model.directory import resolve
    from bertkit.readers.documents import LAYOUTS
    from bertkit.readers.splitting import parse_fraction
    from bertkit.runs.pretraining.corpora import show_counts
    from bertkit.text.words import CUTS

    choices = (
        ("--sentences", sentences, ("split", "lines")),
        ("--layout", layout, LAYOUTS),
        ("--words", words, CUTS),
    )
    for flag, value, known in choices:
        if value not in known:
            raise not_a_choice(flag, value, known)
    options = TextOptions(include or (), encoding, on_error, max_file_size)
    held_out = parse_fraction(validation) if validation is not None else 0.0
    if held_out is None:
        raise UsageError(f"--validation is {validation!r}; expected a share of the documents, such as 1%")
    config = CorpusConfig(sentences, layout, text_column, min_tokens, held_out, words)
    processes = num_processes or os.cpu_count() or 1
    meta = build_corpus(text, resolve(tokenizer), output_dir, config, options, num_processes=processes, overwrite=overwrite)
    show_counts(meta, output_dir)
    if held_out and not meta["validation"]["documents"]:
        progress.warn(f"--validation {validation} holds out none of {plural(meta['train']['documents'], 'document')}")


@corpus.command(cls=CheckedCommand)
def merge(
    corpora: Annotated[list[Path], typer.Argument(help="Corpora with the same tokenizer, in order.", metavar="CORPUS...")],
    output_dir: Output,
    num_processes: NumProcesses = None,
    overwrite: Overwrite = False,
) -> None:
    """Join corpora: the result is byte-identical to one build of all texts in that order.

    The same command resumes an interrupted merge.

    [bold]bertkit corpus merge corpora/a corpora/b --output-dir corpora/both[/]
    """
    from bertkit.corpus.build import merge_corpora
    from bertkit.runs.pretraining.corpora import show_counts

    processes = num_processes or os.cpu_count() or 1
    meta = merge_corpora(corpora, output_dir, num_processes=processes, overwrite=overwrite)
    show_counts(meta, output_dir)
