"""Train a WordPiece vocabulary on the user's text (Devlin et al., 2019, section 3)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tokenizers
from tokenizers import trainers

from bertkit import progress
from bertkit.errors import DataError, UsageError, plural
from bertkit.text.tokenizer import SPECIAL_TOKENS, Tokenizer, bert_tokenizer
from bertkit.text.words import CJK

LONGEST = 100  # characters of a word; the tokenizer takes a longer one as [UNK]
SAMPLED = 2**20  # characters of text, about, on which [UNK] is counted
_ASCII = "".join(map(chr, range(ord("!"), ord("~") + 1)))  # printable
_MARKS = re.escape("".join(character for character in _ASCII if not character.isalnum()))
_RUN = re.compile(rf"[^\s{CJK}{_MARKS}]+")  # of one word or several


def train_tokenizer(
    texts: Iterable[Sequence[str]], *, vocab_size: int = 30522, cased: bool = False, min_frequency: int = 2
) -> Tokenizer:
    """Train a WordPiece vocabulary on lists of lines, which are read twice; its first five tokens are BERT's special tokens.

    Words are split as in BERT: at white space, at punctuation and around each Chinese character; uncased words are lower-cased
    and lose their accents. Those of more than LONGEST characters are left out. Pieces that occur together fewer than
    min_frequency times are not joined. Printable ASCII is in the vocabulary; other characters rarer than one in a million are
    left out, and all characters take at most two thirds of the vocabulary. The same texts give the same vocabulary. Reports
    how much of the text becomes [UNK]. Raises UsageError for a vocabulary that is too small, DataError if there is no text.
    """
    special = list(SPECIAL_TOKENS.values())
    options = {"lowercase": not cased}
    backend = bert_tokenizer({token: i for i, token in enumerate(special)}, options)
    smallest = len(special) + sum(_forms(character, backend) for character in _ascii(backend))
    if vocab_size < smallest:
        what = f"--vocab-size is {vocab_size}; expected at least {smallest}, for the special tokens and printable ASCII"
        raise UsageError(what)
    text = _Text(texts, backend)
    alphabet, within = _alphabet(text, backend, most=2 * (vocab_size - len(special)) // 3)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        # The library numbers characters inside words in random order and breaks ties by these numbers, so they are numbered
        # beforehand, as if they were special.
        special_tokens=[*special, *within],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
        show_progress=False,
    )
    backend.train_from_iterator(text, trainer)
    trained = Tokenizer(bert_tokenizer(backend.get_vocab(), options))
    if text.long_words:
        progress.note(f"ignored {plural(text.long_words, 'word')} of more than {LONGEST} characters, which become [UNK]")
    ids = trained.pieces(text.sample).values
    unknown = np.count_nonzero(ids == trained.vocab[SPECIAL_TOKENS["unk_token"]])
    share = f"[UNK] makes up {10_000 * unknown / len(ids):.1f} of every 10,000 tokens" if unknown else "no token is [UNK]"
    progress.note(f"{share} in the text")
    return trained


class _Text:
    """Lists of lines without words of more than LONGEST characters, to be read repeatedly.

    long_words: how many the last reading left out. sample: whole lines of it, spread evenly.
    """

    def __init__(self, texts: Iterable[Sequence[str]], backend: tokenizers.Tokenizer) -> None:
        self.texts = texts
        self.normalizer, self.pre_tokenizer = backend.normalizer, backend.pre_tokenizer  # the backend is locked in training
        self.long_words = 0
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[list[str]]:
        self.long_words, self.sample = 0, []
        every, count, sampled = 1, 0, 0  # one line in `every` is sampled; lines so far; characters in the sample
        for lines in self.texts:
            for line in lines:
                if count % every == 0:
                    self.sample.append(line)
                    sampled += len(line)
                    if sampled > 2 * SAMPLED and len(self.sample) > 1:
                        self.sample, every = self.sample[::2], 2 * every
                        sampled = sum(map(len, self.sample))
                count += 1
            yield [self._without_long_words(line) for line in lines]

    def _without_long_words(self, line: str) -> str:
        if max(map(len, line.split()), default=0) <= LONGEST:
            return line
        return _RUN.sub(lambda run: run[0] if len(run[0]) <= LONGEST else self._short_words(run[0]), line)

    def _short_words(self, run: str) -> str:
        words = self.pre_tokenizer.pre_tokenize_str(self.normalizer.normalize_str(run))
        kept = [word for word, _ in words if len(word) <= LONGEST]
        self.long_words += len(words) - len(kept)
        return " ".join(kept)


def _ascii(backend: tokenizers.Tokenizer) -> list[str]:
    """Printable ASCII, normalized."""
    return sorted(set(backend.normalizer.normalize_str(_ASCII)))


def _forms(character: str, backend: tokenizers.Tokenizer) -> int:
    """How many tokens a character has: itself, and "##" with it if it can occur within a word."""
    return 2 if len(backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(f"a{character}"))) == 1 else 1


def _alphabet(texts: Iterable[Sequence[str]], backend: tokenizers.Tokenizer, *, most: int) -> tuple[list[str], list[str]]:
    """Printable ASCII and the most frequent characters of normalized text, and "##" with each that can occur within a word.

    Those beyond ASCII only up to `most` in all. Raises DataError if there is no text.
    """
    raw: Counter[str] = Counter()
    for lines in texts:
        for line in lines:
            raw.update(line)
    counts: Counter[str] = Counter()
    for character, count in raw.items():  # the normalizer treats each one alone
        for each in backend.normalizer.normalize_str(character).split():
            counts.update(dict.fromkeys(each, count))
    if not counts:
        raise DataError("there is no text to learn a vocabulary from")
    alphabet: list[str] = []
    within: list[str] = []
    always = _ascii(backend)
    for character in [*always, *sorted(counts.keys() - set(always), key=lambda c: (-counts[c], c))]:
        forms = _forms(character, backend)
        too_rare = len(alphabet) + len(within) + forms > most or counts[character] * 10**6 < counts.total()
        if too_rare and character not in _ASCII:
            break
        alphabet.append(character)
        within += [f"##{character}"] * (forms - 1)
    return sorted(alphabet), sorted(within)
