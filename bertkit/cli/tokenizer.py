"""bertkit tokenizer"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    vocab_size: Annotated[int, typer.Option(help="Tokens, the five special ones among them.", min=20)] = 30522,
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents apart.")] = False,
    min_frequency: Annotated[int, typer.Option(help="Pieces that stand together less often are not joined.", min=1)] = 2,
    text_column: Annotated[str, typer.Option(help="Where JSONL, Parquet and the hub keep a document's text.")] = "text",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Move the tokenizer in the output folder aside.")] = False,
) -> None:
    """Learn a WordPiece vocabulary from text: BERT's words, Chinese characters each for itself, special tokens in BERT's order.

    The folder opens in transformers' AutoTokenizer and holds vocab.txt. The same text gives the same vocabulary.

    [bold]bertkit tokenizer train text/ --vocab-size 16000 --output-dir tokenizers/mine[/]

    [bold]bertkit tokenizer train 'news/*.jsonl.gz' --text-column body --cased --output-dir tokenizers/news[/]
    """
    from bertkit import progress
    from bertkit.corpus.texts import Texts
    from bertkit.files import OutputFolder, disk_errors
    from bertkit.model.directory import TOKENIZER
    from bertkit.text.tokenizer import train_tokenizer

    texts = Texts(text, text_column=text_column)
    output = OutputFolder.prepare(output_dir, TOKENIZER, overwrite=overwrite, reads=[source.name for source in texts.sources])
    trained = train_tokenizer(texts, vocab_size=vocab_size, cased=cased, min_frequency=min_frequency)
    with output.open(), disk_errors(output_dir):
        trained.save(output_dir)
    if trained.vocab_size < vocab_size:
        progress.warn(f"the text gives no more than {trained.vocab_size} tokens; {vocab_size} were asked for")
    progress.note(f"wrote {output_dir}: {trained.vocab_size} tokens, {'cased' if cased else 'uncased'}")
