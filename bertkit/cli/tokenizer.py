"""bertkit tokenizer"""

from __future__ import annotations

from typing import Annotated

import typer

from bertkit.cli.checked_command import CheckedCommand
from bertkit.cli.options import Encoding, Include, MaxFileSize, OnError, OutputDir, Overwrite, TextColumn
from bertkit.readers.content import MAX_FILE_SIZE

tokenizer = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@tokenizer.callback()
def _group() -> None:
    """Train a tokenizer, or extend a model's."""


Text = Annotated[
    list[str],
    typer.Argument(
        help="Files, folders, globs or URLs of .txt, .md, .html, .jsonl, .csv or .parquet, also compressed; "
        "hub:OWNER/NAME or hub:OWNER/NAME:CONFIGURATION.",
        metavar="TEXT...",
    ),
]


@tokenizer.command(cls=CheckedCommand)
def train(
    text: Text,
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
    """Train a WordPiece tokenizer on text, with BERT's pre-tokenization and special tokens.

    transformers' AutoTokenizer opens the folder, which also has a vocab.txt. The same text gives the same vocabulary.

    [bold]bertkit tokenizer train text/ --vocab-size 16000 --output-dir tokenizers/mine[/]

    [bold]bertkit tokenizer train 'news/*.jsonl.gz' --text-column body --cased --output-dir tokenizers/news[/]
    """
    from bertkit.corpus.texts import TextOptions, TextSources
    from bertkit.runs.tokenizers import make_tokenizer

    options = TextOptions(include or (), encoding, on_error, max_file_size)
    texts = TextSources(text, options, text_column=text_column)
    make_tokenizer(texts, output_dir, vocab_size=vocab_size, cased=cased, min_frequency=min_frequency, overwrite=overwrite)


@tokenizer.command(cls=CheckedCommand)
def extend(
    model: Annotated[str, typer.Argument(help="The model to extend: a folder, hub id, or minilm.", metavar="MODEL")],
    text: Text,
    output_dir: OutputDir,
    add: Annotated[int, typer.Option(help="Maximum number of new tokens.", min=1)] = 1000,
    min_frequency: Annotated[int, typer.Option(help="Add only words that occur at least this often.", min=1)] = 5,
    text_column: TextColumn = "text",
    include: Include = None,
    encoding: Encoding = None,
    on_error: OnError = "fail",
    max_file_size: MaxFileSize = MAX_FILE_SIZE,
    overwrite: Overwrite = False,
) -> None:
    """Add tokens to a model for the most frequent words of your text that its tokenizer splits or does not know.

    Existing tokens keep their ids and embeddings; a new token starts as the mean of the pieces it was split into. For Chinese,
    which BERT reads character by character, the unknown characters are added. The folder holds the whole model: build a corpus
    with it as --tokenizer, and pre-train with it as --model.

    [bold]bertkit tokenizer extend bert-base-uncased text/ --add 1000 --output-dir models/extended[/]

    [bold]bertkit pretrain corpora/mine --model models/extended --learning-rate 2e-5 --max-steps 10000 --output-dir runs/mine[/]
    """
    from bertkit.corpus.texts import TextOptions, TextSources
    from bertkit.runs.tokenizers import extend_model

    options = TextOptions(include or (), encoding, on_error, max_file_size)
    texts = TextSources(text, options, text_column=text_column)
    extend_model(model, texts, output_dir, most=add, min_frequency=min_frequency, overwrite=overwrite)
