"""Train a WordPiece vocabulary on one's own text (Devlin et al., 2019, section 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import trainers

from bertkit.errors import DataError, UsageError
from bertkit.text.tokenizer import SPECIAL_TOKENS, Tokenizer, bert_tokenizer


def train_tokenizer(
    texts: Iterable[Sequence[str]], *, vocab_size: int = 30522, cased: bool = False, min_frequency: int = 2
) -> Tokenizer:
    """Train a WordPiece vocabulary on lists of lines, which are read twice; its first five tokens are BERT's special tokens.

    Words are split as in BERT: at white space, at punctuation and around each Chinese character; uncased words are lower-cased
    and lose their accents. Pieces that occur together fewer than min_frequency times are not joined. Characters rarer than one
    in a million are left out, and all characters take two thirds of the vocabulary at most. The same texts give the same
    vocabulary. Raises UsageError for a vocabulary that is too small, DataError if there is no text.
    """
    special = list(SPECIAL_TOKENS.values())
    if vocab_size < 4 * len(special):
        raise UsageError(f"--vocab-size is {vocab_size}; expected at least {4 * len(special)}")
    options = {"lowercase": not cased}
    backend = bert_tokenizer({token: i for i, token in enumerate(special)}, options)
    alphabet, within = _alphabet(texts, backend, most=2 * (vocab_size - len(special)) // 3)
    if not alphabet:
        raise DataError("there is no text to learn a vocabulary from")
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        # The library numbers characters within words in random order and breaks ties by these numbers: so they are numbered
        # beforehand, as if they were special.
        special_tokens=[*special, *within],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(bert_tokenizer(backend.get_vocab(), options))


def _alphabet(texts: Iterable[Sequence[str]], backend: tokenizers.Tokenizer, *, most: int) -> tuple[list[str], list[str]]:
    """The most frequent characters of normalized text, and "##" with each that can occur within a word; `most` in all."""
    raw: Counter[str] = Counter()
    for lines in texts:
        for line in lines:
            raw.update(line)
    counts: Counter[str] = Counter()
    for character, count in raw.items():  # the normalizer treats each one alone
        for each in backend.normalizer.normalize_str(character).split():
            counts.update(dict.fromkeys(each, count))
    words = backend.pre_tokenizer.pre_tokenize_str
    alphabet: list[str] = []
    within: list[str] = []
    for character in sorted(counts, key=lambda c: (-counts[c], c)):
        forms = 2 if len(words(backend.normalizer.normalize_str(f"a{character}"))) == 1 else 1
        if len(alphabet) + len(within) + forms > most or counts[character] * 10**6 < counts.total():
            break
        alphabet.append(character)
        within += [f"##{character}"] * (forms - 1)
    return sorted(alphabet), sorted(within)
