"""bertkit tokenizer"""

from __future__ import annotations

from typing import Annotated

import typer

from bertkit.cli.local import LocalCommand
from bertkit.cli.options import Encoding, Include, MaxFileSize, OnError, OutputDir, Overwrite, TextColumn
from bertkit.readers.content import MAX_FILE_SIZE
from bertkit.readers.remote import path_of

tokenizer = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@tokenizer.callback()
def _group() -> None:
    """Train a tokenizer, or extend a model's."""


Text = Annotated[
    list[str],
    typer.Argument(
        help="Files, folders, globs or URLs of .txt, .md, .html, .jsonl, .csv or .parquet, also compressed; hub:OWNER/NAME.",
        metavar="TEXT...",
    ),
]


@tokenizer.command(cls=LocalCommand)
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
    from bertkit import progress
    from bertkit.corpus.texts import TextOptions, TextSources, report_left_out
    from bertkit.files.output_folder import OutputFolder
    from bertkit.text.tokenizer import TOKENIZER
    from bertkit.text.tokenizer_training import train_tokenizer

    options = TextOptions(include or (), encoding, on_error, max_file_size)
    texts = TextSources(text, options, text_column=text_column)
    reads = [path_of(source.name) for source in texts.sources]
    output = OutputFolder.prepare(output_dir, TOKENIZER, overwrite=overwrite, reads=reads)
    trained = train_tokenizer(texts, vocab_size=vocab_size, cased=cased, min_frequency=min_frequency)
    with output.open():
        trained.save(output_dir)
    report_left_out(texts.faults)
    if trained.vocab_size < vocab_size:
        progress.warn(f"the text yields only {trained.vocab_size} tokens, not {vocab_size}")
    progress.note(f"wrote {output_dir}: {trained.vocab_size} tokens, {'cased' if cased else 'uncased'}")


@tokenizer.command(cls=LocalCommand)
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
    """Give a model tokens for the words of your text that its tokenizer splits or does not know, the most frequent first.

    Existing tokens keep their numbers and weights; a new token starts as the mean of the pieces it was split into. For Chinese,
    which BERT reads character by character, the unknown characters are added. The folder holds the whole model: build a corpus
    with it as --tokenizer, and pre-train with it as --model.

    [bold]bertkit tokenizer extend bert-base-uncased text/ --add 1000 --output-dir models/extended[/]

    [bold]bertkit pretrain corpora/mine --model models/extended --max-steps 10000 --output-dir runs/mine[/]
    """
    from bertkit import progress
    from bertkit.corpus.texts import TextOptions, TextSources, report_left_out
    from bertkit.errors import listed, plural
    from bertkit.files.output_folder import OutputFolder
    from bertkit.model.extension import EXTENDED, save_extended
    from bertkit.report import Report, Table, show
    from bertkit.runs.target import open_model_or_run
    from bertkit.text.tokenizer_extension import compared, count_words, extended, words_to_add

    options = TextOptions(include or (), encoding, on_error, max_file_size)
    texts = TextSources(text, options, text_column=text_column)
    pretrained = open_model_or_run(model)
    reads = [pretrained.folder, *(path_of(source.name) for source in texts.sources)]
    output = OutputFolder.prepare(output_dir, EXTENDED, overwrite=overwrite, reads=reads)
    counts = count_words(texts, pretrained.tokenizer)
    report_left_out(texts.faults)
    words = words_to_add(counts, pretrained.tokenizer, most=add, min_frequency=min_frequency)
    tokenizer = extended(pretrained.tokenizer, words)
    save_extended(pretrained, tokenizer, output)
    rows = compared([pretrained.tokenizer, tokenizer], counts)
    show(Report([Table(str(output_dir), ["on this text", "before", "after"], rows)]))
    progress.note(f"added {plural(len(words), 'word')}: {listed(words, 8)}")
    if len(words) < add:
        least = f"at least {plural(min_frequency, 'time')} (--min-frequency)"
        progress.note(f"fewer than --add {add}: no other word that the tokenizer splits occurs {least}")
    progress.note(f"next: bertkit corpus build TEXT... --tokenizer {output_dir} --output-dir ...")
