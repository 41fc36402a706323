"""Where words begin among tokens, for whole-word masking."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.features import Ragged, offsets_of
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import CJK, load_jieba

_CHINESE = re.compile(f"[{CJK}]")


def tokens_and_words(texts: Sequence[str], tokenizer: Tokenizer, words: str) -> tuple[Ragged, NDArray[np.bool_]]:
    """The tokens of each text, and whether each begins a word.

    "basic": the words of BERT's basic tokenizer, where each Chinese character is a word; "jieba": Chinese words by jieba.
    Raises MachineError if jieba is not installed.
    """
    basic = in_vocabulary(tokenizer, lambda token: not token.startswith("##"))
    if words == "basic":
        pieces = tokenizer.pieces(texts)
        return pieces, basic[pieces.values]
    pieces, starts, _ = tokenizer.encode_with_offsets(texts)
    cut = load_jieba().cut
    begins = np.concatenate([np.zeros(0, dtype=bool), *(_word_begins(text, cut) for text in texts)])
    first = offsets_of(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))[:-1]  # character of each text
    chinese = in_vocabulary(tokenizer, lambda token: len(token) == 1 and _CHINESE.match(token) is not None)
    # [UNK] may stand for a Chinese character, so jieba decides there too.
    chinese[tokenizer.vocab[tokenizer.special_tokens["unk_token"]]] = True
    at_boundary = begins[np.repeat(first, pieces.lengths) + starts]
    return pieces, basic[pieces.values] & (at_boundary | ~chinese[pieces.values])


def _word_begins(text: str, cut: Callable[[str], Iterable[str]]) -> NDArray[np.bool_]:
    """(characters,) whether a word of `cut` begins there."""
    if not _CHINESE.search(text):
        return np.ones(len(text), dtype=bool)
    begins = np.zeros(len(text), dtype=bool)
    begins[np.cumsum([0, *map(len, cut(text))])[:-1]] = True
    return begins


def in_vocabulary(tokenizer: Tokenizer, holds: Callable[[str], bool]) -> NDArray[np.bool_]:
    """(V,) the tokens of the vocabulary for which `holds` is true."""
    held = np.zeros(tokenizer.vocab_size, dtype=bool)
    held[[number for token, number in tokenizer.vocab.items() if holds(token)]] = True
    return held
