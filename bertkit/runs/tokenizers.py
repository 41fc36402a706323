"""`bertkit tokenizer`: a tokenizer trained on text, and a model whose tokenizer is extended with the words of text."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from bertkit import progress
from bertkit.corpus.texts import TextSources, report_left_out
from bertkit.errors import listed, plural
from bertkit.files.output_folder import Kind, OutputFolder
from bertkit.model.extension import EXTENDED, save_extended
from bertkit.readers.remote import path_of
from bertkit.report import Report, Table, show
from bertkit.runs.target import open_model_or_run
from bertkit.text.tokenizer import TOKENIZER, Tokenizer
from bertkit.text.tokenizer_extension import compared, count_words, extended, words_to_add
from bertkit.text.tokenizer_training import train_tokenizer


def make_tokenizer(
    texts: TextSources,
    output_dir: Path,
    *,
    vocab_size: int,
    cased: bool = False,
    min_frequency: int = 2,
    overwrite: bool = False,
) -> Tokenizer:
    """Train a tokenizer as in `train_tokenizer`, and save it. Raises UsageError for a folder with other content, DataError."""
    output = _prepared(TOKENIZER, texts, output_dir, overwrite=overwrite)
    trained = train_tokenizer(texts, vocab_size=vocab_size, cased=cased, min_frequency=min_frequency)
    with output.open():
        trained.save(output_dir)
    report_left_out(texts.faults)
    if trained.vocab_size < vocab_size:
        progress.warn(f"the text yields only {trained.vocab_size} tokens, not {vocab_size}")
    progress.note(f"wrote {output_dir}: {trained.vocab_size} tokens, {'cased' if cased else 'uncased'}")
    return trained


def extend_model(
    model: str, texts: TextSources, output_dir: Path, *, most: int, min_frequency: int, overwrite: bool = False
) -> Tokenizer:
    """Save a model with tokens for at most `most` words that its tokenizer splits, the most frequent in the texts first.

    min_frequency: leave out rarer words. Returns the extended tokenizer. Raises UsageError for a folder with other content,
    ModelError, DataError.
    """
    pretrained = open_model_or_run(model)
    output = _prepared(EXTENDED, texts, output_dir, pretrained.folder, overwrite=overwrite)
    counts = count_words(texts, pretrained.tokenizer)
    report_left_out(texts.faults)
    words = words_to_add(counts, pretrained.tokenizer, most=most, min_frequency=min_frequency)
    tokenizer = extended(pretrained.tokenizer, words)
    save_extended(pretrained, tokenizer, output)
    rows = compared([pretrained.tokenizer, tokenizer], counts)
    show(Report([Table(str(output_dir), ["on this text", "before", "after"], rows)]))
    progress.note(f"added {plural(len(words), 'word')}: {listed(words, 8)}")
    if len(words) < most:
        least = f"at least {plural(min_frequency, 'time')} (--min-frequency)"
        progress.note(f"fewer than --add {most}: no other word that the tokenizer splits occurs {least}")
    progress.note(f"next: bertkit corpus build TEXT... --tokenizer {quote(str(output_dir))} --output-dir ...")
    return tokenizer


def _prepared(kind: Kind, texts: TextSources, output_dir: Path, *reads: Path, overwrite: bool) -> OutputFolder:
    """The output folder, which must not be among what is read."""
    sources = [path_of(source.name) for source in texts.sources]
    return OutputFolder.prepare(output_dir, kind, overwrite=overwrite, reads=[*reads, *sources])
