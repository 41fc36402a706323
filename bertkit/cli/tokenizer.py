"""bertkit tokenizer"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bertkit.cli.options import Encoding, Include, MaxFileSize, OnError, OutputDir, Overwrite, TextColumn
from bertkit.errors import UsageError
from bertkit.readers.content import MAX_FILE_SIZE

tokenizer = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@tokenizer.callback()
def _group() -> None:
    """Learn the vocabulary of a tokenizer."""


@tokenizer.command()
def train(
    text: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, globs: .txt, .md, .html, .jsonl, .csv, .parquet, also packed; hub:OWNER/NAME.",
            metavar="TEXT...",
        ),
    ],
    output_dir: OutputDir,
    vocab_size: Annotated[
        int, typer.Option(help="Number of tokens, including the five special ones and printable ASCII.")
    ] = 30522,
    cased: Annotated[bool, typer.Option("--cased", help="Keep case and accents.")] = False,
    min_frequency: Annotated[int, typer.Option(help="Merge only pairs of pieces at least this frequent.", min=1)] = 2,
    text_column: TextColumn = "text",
    include: Include = None,
    encoding: Encoding = None,
    on_error: OnError = "fail",
    max_file_size: MaxFileSize = MAX_FILE_SIZE,
    overwrite: Overwrite = False,
) -> None:
    """Learn a WordPiece vocabulary from text: BERT's words, single Chinese characters, special tokens in BERT's order.

    transformers' AutoTokenizer opens the folder, which also has a vocab.txt. The same text gives the same vocabulary.

    [bold]bertkit tokenizer train text/ --vocab-size 16000 --output-dir tokenizers/mine[/]

    [bold]bertkit tokenizer train 'news/*.jsonl.gz' --text-column body --cased --output-dir tokenizers/news[/]
    """
    from bertkit import progress
    from bertkit.corpus.texts import Texts, report_left_out
    from bertkit.files import OutputFolder
    from bertkit.readers.faults import POLICIES
    from bertkit.text.tokenizer import TOKENIZER
    from bertkit.text.tokenizer_training import train_tokenizer

    if on_error not in POLICIES:
        raise UsageError(f"--on-error is {on_error!r}; expected {' or '.join(POLICIES)}")
    how: dict[str, Any] = {"include": include or (), "encoding": encoding, "on_error": on_error, "max_file_size": max_file_size}
    texts = Texts(text, text_column=text_column, **how)
    output = OutputFolder.prepare(output_dir, TOKENIZER, overwrite=overwrite, reads=[source.name for source in texts.sources])
    trained = train_tokenizer(texts, vocab_size=vocab_size, cased=cased, min_frequency=min_frequency)
    with output.open():
        trained.save(output_dir)
    report_left_out(texts.faults)
    if trained.vocab_size < vocab_size:
        progress.warn(f"the text yields only {trained.vocab_size} tokens, not {vocab_size}")
    progress.note(f"wrote {output_dir}: {trained.vocab_size} tokens, {'cased' if cased else 'uncased'}")
