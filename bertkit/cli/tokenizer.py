"""bertkit tokenizer"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertkit.errors import UsageError

tokenizer = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Learn the vocabulary of a tokenizer.")


@tokenizer.callback()
def _group() -> None:
    """Learn the vocabulary of a tokenizer."""


@tokenizer.command()
def train(
    text: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders or globs of .txt, .jsonl, .parquet, packed or not; hub:OWNER/NAME.", metavar="TEXT..."
        ),
    ],
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder to write.", metavar="DIR")],
    vocab_size: Annotated[int, typer.Option(help="Tokens, with the five special ones.", min=20)] = 30522,
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    min_frequency: Annotated[int, typer.Option(help="Merge only pieces that occur together this often.", min=1)] = 2,
    text_column: Annotated[str, typer.Option(help="Column of a document's text in JSONL, Parquet and the hub.")] = "text",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the tokenizer in the folder.")] = False,
) -> None:
    """Learn a WordPiece vocabulary from text: BERT's words, single Chinese characters, special tokens in BERT's order.

    The folder opens in transformers' AutoTokenizer and has a vocab.txt. The same text gives the same vocabulary.

    [bold]bertkit tokenizer train text/ --vocab-size 16000 --output-dir tokenizers/mine[/]

    [bold]bertkit tokenizer train 'news/*.jsonl.gz' --text-column body --cased --output-dir tokenizers/news[/]
    """
    from bertkit import progress
    from bertkit.corpus.texts import Texts
    from bertkit.files import disk_errors
    from bertkit.text.tokenizer import train_tokenizer

    if output_dir.is_file():
        raise UsageError("--output-dir is a file; expected a folder", where=str(output_dir))
    if output_dir.is_dir() and any(output_dir.iterdir()) and not overwrite:
        raise UsageError("the output folder is not empty", where=str(output_dir), hint="give another, or --overwrite")
    texts = Texts(text, text_column=text_column)
    trained = train_tokenizer(texts, vocab_size=vocab_size, cased=cased, min_frequency=min_frequency)
    with disk_errors(output_dir):
        trained.save(output_dir)
    if trained.vocab_size < vocab_size:
        progress.warn(f"the text gives only {trained.vocab_size} tokens, not {vocab_size}")
    progress.note(f"wrote {output_dir}: {trained.vocab_size} tokens, {'cased' if cased else 'uncased'}")
