"""A model for a tokenizer that was extended: its weights, with rows for the new tokens."""

from __future__ import annotations

import re
from dataclasses import replace

from bertkit.errors import ModelError
from bertkit.files.output_folder import Kind, OutputFolder
from bertkit.manifest import verify
from bertkit.model.directory import CONFIG_FILES, TIED, WEIGHT_FILES, read_state_dict, save_model, weight_files
from bertkit.model.pretrained import Pretrained
from bertkit.text.tokenizer import TOKENIZER_FILES, Tokenizer

EXTENDED = Kind(
    "model",
    lambda folder: any((folder / name).is_file() for name in (CONFIG_FILES[0], *WEIGHT_FILES)) or None,
    re.compile("|".join(map(re.escape, (*CONFIG_FILES, *WEIGHT_FILES, *TOKENIZER_FILES)))),
    at_once=True,
)
_BY_TOKEN = re.compile(rf"(.*\.)?embeddings\.word_embeddings\.weight|{'|'.join(map(re.escape, (*TIED, *TIED.values())))}")


def save_extended(pretrained: Pretrained, tokenizer: Tokenizer, output: OutputFolder) -> None:
    """Write a model for `tokenizer`, which extends the model's own: each new row of the word embeddings, and of the decoder's
    bias, is the mean of the rows of the pieces that the new token was split into. Everything else is unchanged.

    Padding rows beyond the model's own tokens are replaced first. Raises ModelError.
    """
    if pretrained.config.extra.get("tie_word_embeddings") is False:
        what = "tie_word_embeddings is false, and the decoder has its own weights; bertkit extends only tied ones"
        raise ModelError(what, where=pretrained.name)
    before, after = pretrained.tokenizer.vocab_size, tokenizer.vocab_size
    pieces = pretrained.tokenizer.pieces(sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__)[before:])
    verify(pretrained.folder, {path.name for path in weight_files(pretrained.folder)}.__contains__)
    state = read_state_dict(pretrained.folder)
    for name in filter(_BY_TOKEN.fullmatch, state):
        rows = state[name]
        extended = rows.new_zeros(max(len(rows), after), *rows.shape[1:])
        extended[: len(rows)] = rows
        for number in range(after - before):
            extended[before + number] = rows[pieces[number].astype("int64")].mean(dim=0)
        state[name] = extended
    config = replace(pretrained.config, vocab_size=max(pretrained.config.vocab_size, after))
    architecture = (config.extra.get("architectures") or ["BertModel"])[0]
    with output.open():
        save_model(output.path, state_dict=state, config=config, tokenizer=tokenizer, architecture=architecture)
