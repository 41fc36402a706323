"""Extend a tokenizer with words of the user's text that it splits or does not know; its own tokens keep their ids."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from bertkit.errors import DataError, plural
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import CJK

COUNTED = 2**20  # most distinct words that are counted


def count_words(texts: Iterable[Sequence[str]], tokenizer: Tokenizer) -> Counter[str]:
    """How often each word occurs in lists of lines, normalized and split at punctuation and around Chinese characters.

    The text is read once, in bounded memory: beyond COUNTED distinct words the rarer half is forgotten. Raises DataError if
    there is no text.
    """
    normalizer, pre_tokenizer = tokenizer.backend.normalizer, tokenizer.backend.pre_tokenizer
    is_chinese_split = getattr(normalizer, "handle_chinese_chars", True)
    run = re.compile(rf"[{CJK}]|[^\s{CJK}]+" if is_chinese_split else r"\S+")  # of one word or several
    runs: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for lines in chain(texts, [None]):  # None: the end
        for line in lines or ():
            runs.update(run.findall(line))
        if lines is None or len(runs) > COUNTED:
            for text, count in runs.items():
                normal = text if normalizer is None else normalizer.normalize_str(text)
                for word, _ in [(normal, None)] if pre_tokenizer is None else pre_tokenizer.pre_tokenize_str(normal):
                    counts[word] += count
            runs.clear()
        if len(counts) > COUNTED:
            counts = Counter(dict(counts.most_common(COUNTED // 2)))
    if not counts:
        raise DataError("there is no text to learn new tokens from")
    return counts


def words_to_add(counts: Mapping[str, int], tokenizer: Tokenizer, *, most: int, min_frequency: int) -> list[str]:
    """The most frequent words that the tokenizer splits or does not know; ties are in alphabetical order.

    Words rarer than min_frequency, or too long for the tokenizer to look up, are excluded. Raises DataError if none is left.
    """
    longest = tokenizer.backend.model.max_input_chars_per_word
    split = [word for word in counts.keys() - tokenizer.vocab.keys() if len(word) <= longest]
    if words := [word for word in split if counts[word] >= min_frequency]:
        return sorted(words, key=lambda word: (-counts[word], word))[:most]
    what = f"the tokenizer splits {len(split) or 'none'} of the text's {plural(len(counts), 'word')}"
    if not split:
        raise DataError(what, hint="there is nothing to add: keep the model as it is")
    what = f"{what}, but none of these words occurs at least {plural(min_frequency, 'time')}"
    raise DataError(what, hint="give more text, or a lower --min-frequency; or keep the model as it is")


def extended(tokenizer: Tokenizer, words: Sequence[str]) -> Tokenizer:
    """The tokenizer with these words as tokens, numbered after its own."""
    whole = json.loads(tokenizer.backend.to_str())
    whole["model"]["vocab"] = {**tokenizer.vocab, **{word: tokenizer.vocab_size + n for n, word in enumerate(words)}}
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(whole)), special_tokens=tokenizer.special_tokens)


class Fit(NamedTuple):
    """How well a tokenizer fits a text. unknown: the share of its pieces that are [UNK]."""

    pieces_per_word: float
    unknown: float

    @classmethod
    def of(cls, tokenizer: Tokenizer, counts: Mapping[str, int]) -> Fit:
        """The fit to a text with these word counts."""
        pieces, numbers = tokenizer.pieces([*counts]), np.fromiter(counts.values(), dtype=np.int64)
        unknown = np.repeat(numbers, pieces.lengths)[pieces.values == tokenizer.unk_token_id].sum()
        total = (pieces.lengths * numbers).sum()
        return cls(float(total / numbers.sum()), float(unknown / total))


def compared(each: Sequence[Tokenizer], counts: Mapping[str, int]) -> list[list[Any]]:
    """Rows of a table: the size of each tokenizer, and how well it fits a text with these word counts."""
    fits = [Fit.of(tokenizer, counts) for tokenizer in each]
    return [
        ["tokens", *(tokenizer.vocab_size for tokenizer in each)],
        ["tokens per word", *(fit.pieces_per_word for fit in fits)],
        ["[UNK] per 10,000 tokens", *(10_000 * fit.unknown for fit in fits)],
    ]
