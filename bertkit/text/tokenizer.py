"""A WordPiece tokenizer: columns of text to rows of ids (Devlin et al., 2019, section 3).

The tokenizers library does the work, without special tokens and only once per word between spaces; [CLS] a [SEP] b [SEP] is
then assembled for all rows at once. Nothing is padded: rows are ragged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertkit.errors import ModelError, UsageError
from bertkit.features import Growing, Ragged, offsets_of, ranges
from bertkit.files import json_text, read_json, write_files
from bertkit.files.output_folder import Kind
from bertkit.text.truncation import cut_texts

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json", "added_tokens.json")
TOKENIZER = Kind(
    "tokenizer",
    lambda folder: any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")) or None,
    re.compile("|".join(map(re.escape, TOKENIZER_FILES))),
    at_once=True,
)
_OF_A_TOKEN = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")  # what is known of added tokens
CHUNK = 4096  # rows encoded at once: the library's encodings need far more memory than the ids
MOST_CACHED = 2**25  # bytes of cached words, about, beyond which the cache is emptied
_BYTES_OF_A_WORD, _BYTES_OF_A_CHARACTER = 150, 4  # the objects of each word; its characters and pieces

# BERT's special tokens by role, in the order of its vocabularies: [PAD] is 0.
SPECIAL_TOKENS = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}

# Options of BERT's normalizer, and their keys in tokenizer_config.json.
_OPTIONS = {"lowercase": "do_lower_case", "strip_accents": "strip_accents", "handle_chinese_chars": "tokenize_chinese_chars"}

# Classes of transformers that use tokenizer.json unchanged; for all others the options of tokenizer_config.json win.
_AS_IT_STANDS = ("PreTrainedTokenizerFast", "TokenizersBackend")


@dataclass(frozen=True)
class Encoded:
    """Input sequences: [CLS] a [SEP] or [CLS] a [SEP] b [SEP].

    input_ids: int32. token_type_ids: uint8, 1 from the first token of b on. truncated: whether a text, or pair, lost tokens.
    examples: the number of each sequence's text, or pair; a text in windows has several sequences.
    """

    input_ids: Ragged
    token_type_ids: Ragged
    truncated: NDArray[np.bool_]
    examples: NDArray[np.int64]


class Tokenizer:
    """A WordPiece tokenizer; `backend` is the tokenizers.Tokenizer that does the work.

    special_tokens: names by role (cls_token ...) that differ from BERT's. Raises ModelError, naming `where`, for a model
    other than WordPiece, a missing special token, or numbers that are not 0 to n - 1.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, special_tokens: dict[str, str] | None = None, where: str | None = None
    ) -> None:
        if (kind := type(backend.model).__name__) != "WordPiece":
            what = f"the tokenizer is a {kind} model; expected WordPiece"
            raise ModelError(what, where=where, hint="choose a BERT checkpoint")
        self.special_tokens = SPECIAL_TOKENS | (special_tokens or {})
        missing = [token for token in self.special_tokens.values() if backend.token_to_id(token) is None]
        if missing:
            what = f"the vocabulary lacks {', '.join(missing)}, which BERT needs"
            raise ModelError(what, where=where, hint="choose a BERT checkpoint, or copy the tokenizer of this model again")
        backend.no_truncation()
        backend.no_padding()
        backend.add_special_tokens(list(self.special_tokens.values()))
        self.backend = backend
        self.vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = len(self.vocab)
        if (last := max(self.vocab.values())) != self.vocab_size - 1:
            what = f"the vocabulary has {self.vocab_size} tokens, numbered up to {last}; expected no gap"
            raise ModelError(what, where=where)
        ids = (self.vocab[self.special_tokens[role]] for role in SPECIAL_TOKENS)
        self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id = ids
        self.control_ids = [self.pad_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id]
        self.mask_token = self.special_tokens["mask_token"]
        cls, sep = self.special_tokens["cls_token"], self.special_tokens["sep_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(cls, self.cls_token_id), (sep, self.sep_token_id)],
        )

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a Hugging Face folder: its tokenizer.json, else its vocab.txt.

        do_lower_case, strip_accents and tokenize_chinese_chars of tokenizer_config.json decide, as in transformers. Where
        they are not given, tokenizer.json keeps its own; with a vocab.txt, text is lower-cased unless tokens have upper-case
        letters, which lower-cased text could never match (transformers lower-cases even then, silently). Raises ModelError.
        """
        settings = read_json(folder / "tokenizer_config.json")
        given = {name: settings[key] for name, key in _OPTIONS.items() if settings.get(key) is not None}
        for name, value in given.items():
            if not isinstance(value, bool):
                what = f"{_OPTIONS[name]} is {value!r} in tokenizer_config.json; expected true or false"
                raise ModelError(what, where=str(folder))
        named = read_json(folder / "special_tokens_map.json") | settings
        with _well_formed(folder):
            contents = {role: _token(named[role]).content for role in SPECIAL_TOKENS if named.get(role)}
        if (path := folder / "tokenizer.json").exists():
            try:
                backend = tokenizers.Tokenizer.from_file(str(path))
            except Exception as error:  # the library raises Exception itself
                raise ModelError(f"the tokenizer cannot be read: {error}", where=str(path)) from None
            normalizer = backend.normalizer
            if isinstance(normalizer, normalizers.BertNormalizer) and settings.get("tokenizer_class") not in _AS_IT_STANDS:
                for name, value in given.items():
                    setattr(normalizer, name, value)
        elif (path := folder / "vocab.txt").exists():
            backend = bert_tokenizer(_read_vocabulary(path), given, unk_token=contents.get("unk_token", "[UNK]"))
            _add_tokens(backend, folder, settings)
        else:
            found = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
            what = f"no tokenizer.json and no vocab.txt; found {', '.join(found) or 'nothing'}"
            hint = "copy tokenizer.json (or vocab.txt with tokenizer_config.json) of the model into the folder"
            raise ModelError(what, where=str(folder), hint=hint)
        return cls(backend, special_tokens=contents, where=str(path))

    @cached_property
    def vocab_hash(self) -> str:
        """sha256 of the tokens in order, one per line; if no tokens were added, that of the saved vocab.txt."""
        return sha256(_vocab_txt(self.vocab).encode()).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokens, the normalizer and the pre-tokenizer."""
        whole = json.loads(self.backend.to_str())
        before = json.dumps([whole["normalizer"], whole["pre_tokenizer"]], sort_keys=True)
        return sha256(f"{self.vocab_hash}{before}".encode()).hexdigest()

    @cached_property
    def ordinary_ids(self) -> NDArray[np.int64]:
        """The ids of all tokens except the special ones and [unused0], [unused1], ..."""
        special = self.special_tokens.values()
        kept = (token for token in self.vocab if token not in special and not re.fullmatch(r"\[unused\d+\]", token))
        return np.array(sorted(self.vocab[token] for token in kept))

    def encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int, truncate: str = "head"
    ) -> Encoded:
        """Each text, or each text with its pair, as sequences of at most max_length tokens.

        Longer ones are truncated as `truncate` says (see truncation.py), in a pair the longer text first ("longest_first" of
        the tokenizers library).
        """
        columns = [column for column in (texts, pairs) if column is not None]
        ids, types, lengths, truncated, examples = Growing(np.int32), Growing(np.uint8), [], [], []
        for at in range(0, max(1, len(texts)), CHUNK):
            block = self.assemble([self.pieces(column[at : at + CHUNK]) for column in columns], max_length, truncate)
            ids.add(block.input_ids.values)
            types.add(block.token_type_ids.values)
            lengths.append(block.input_ids.lengths)
            truncated.append(block.truncated)
            examples.append(block.examples + at)
        offsets = offsets_of(np.concatenate(lengths))
        of_types = Ragged(types.array(), offsets)
        return Encoded(Ragged(ids.array(), offsets), of_types, np.concatenate(truncated), np.concatenate(examples))

    def assemble(
        self, columns: Sequence[Ragged], max_length: int, truncate: str, *, special: tuple[int, int] | None = None
    ) -> Encoded:
        """`encode` for one or two columns of tokens. special: the values for [CLS] and [SEP], if values are not ids."""
        num_special = len(columns) + 1
        if max_length < num_special:
            raise UsageError(f"max_length is {max_length}; expected at least {num_special}, just for [CLS] and [SEP]")
        cut = cut_texts([column.lengths for column in columns], max_length - num_special, truncate)
        parts = [
            Ragged(column.values[part.places(column.offsets[:-1][cut.examples])], offsets_of(part.kept))
            for column, part in zip(columns, cut.parts, strict=True)
        ]
        return Encoded(*self.with_special_tokens(parts, special), cut.truncated, cut.examples)

    def with_special_tokens(self, texts: Sequence[Ragged], special: tuple[int, int] | None = None) -> tuple[Ragged, Ragged]:
        """input_ids and token_type_ids of [CLS] a [SEP] or [CLS] a [SEP] b [SEP] (Devlin et al., 2019, section 3).

        texts: the tokens of each a, and of each b. special: as in `assemble`.
        """
        first, last = special or (self.cls_token_id, self.sep_token_id)
        offsets = offsets_of(np.sum([text.lengths for text in texts], axis=0) + len(texts) + 1)
        input_ids = np.full(offsets[-1], last, dtype=np.int32)
        token_type_ids = np.zeros(offsets[-1], dtype=np.uint8)
        input_ids[offsets[:-1]] = first
        begins = offsets[:-1] + 1
        for number, text in enumerate(texts):
            input_ids[ranges(begins, text.lengths)] = text.values
            token_type_ids[ranges(begins, text.lengths + 1)] = number  # + 1: the [SEP] behind it
            begins = begins + text.lengths + 1
        return Ragged(input_ids, offsets), Ragged(token_type_ids, offsets)

    def pieces(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text, without special tokens."""
        encode = self._by_words.pieces if self._splits_at_spaces else self._encoded
        return Ragged.joined([Ragged.of([]), *(encode(texts[at : at + CHUNK]) for at in range(0, len(texts), CHUNK))])

    def _encoded(self, texts: Sequence[str]) -> Ragged:
        return Ragged.of([found.ids for found in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)])

    @cached_property
    def _by_words(self) -> PieceCache:
        return PieceCache(self._encoded)

    @cached_property
    def _splits_at_spaces(self) -> bool:
        """Whether texts are split as in BERT, so that no token contains a space."""
        parts = isinstance(self.backend.normalizer, normalizers.BertNormalizer)
        parts = parts and isinstance(self.backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        added = self.backend.get_added_tokens_decoder().values()
        return parts and not any(" " in token.content or token.lstrip or token.rstrip for token in added)

    def encode_with_offsets(self, texts: Sequence[str]) -> tuple[Ragged, NDArray[np.int32], NDArray[np.int32]]:
        """The ids of each text, without special tokens; and the first character and the end of each token.

        They count characters of the original text, before normalization: text[start:end] is the token's.
        """
        ids, spans = [Ragged.of([])], [np.zeros((0, 2), dtype=np.int32)]
        for start in range(0, len(texts), CHUNK // 16):  # contexts are long, and offsets need memory
            found = self.backend.encode_batch(list(texts[start : start + CHUNK // 16]), add_special_tokens=False)
            ids.append(Ragged.of([encoding.ids for encoding in found]))
            spans += [np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2) for encoding in found]
        starts, ends = np.concatenate(spans).T
        return Ragged.joined(ids), starts, ends

    def files(self, *, model_max_length: int = 512) -> dict[str, str]:
        """The files of a folder for AutoTokenizer, and vocab.txt for older tools: contents by file name."""
        settings: dict[str, Any] = {"model_max_length": model_max_length, **self.special_tokens}
        if isinstance(normalizer := self.backend.normalizer, normalizers.BertNormalizer):
            settings["tokenizer_class"] = "BertTokenizer"
            settings |= {key: getattr(normalizer, name) for name, key in _OPTIONS.items()}
        else:  # BertTokenizer would replace this normalizer by BERT's
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
            settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        return {
            "tokenizer.json": self.backend.to_str(pretty=True),
            "vocab.txt": _vocab_txt(self.backend.get_vocab(with_added_tokens=False)),
            "tokenizer_config.json": json_text(settings),
            "special_tokens_map.json": json_text(self.special_tokens),
        }

    def save(self, folder: Path) -> None:
        """Write `files` into the folder."""
        write_files(folder, self.files())


class PieceCache:
    """Caches the pieces of words from `encode`, which must tokenize each word between spaces independently.

    Running text has few new words; looking words up takes a tenth of the time of tokenizing them.
    """

    def __init__(self, encode: Callable[[list[str]], Ragged]) -> None:
        self._encode = encode
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._pieces = Ragged.of([])
        self._size = 0

    def pieces(self, texts: Sequence[str]) -> Ragged:
        """The pieces of each text."""
        words = [text.split(" ") for text in texts]
        flat = list(chain.from_iterable(words))
        if self._size > MOST_CACHED:
            self._forget()
        if fresh := list(set(flat).difference(self._numbers)):
            self._numbers.update(zip(fresh, range(len(self._numbers), len(self._numbers) + len(fresh))))
            self._pieces = Ragged.joined([self._pieces, self._encode(fresh)])
            self._size += _BYTES_OF_A_WORD * len(fresh) + _BYTES_OF_A_CHARACTER * sum(map(len, fresh))
        numbers = np.fromiter(map(self._numbers.__getitem__, flat), dtype=np.int64, count=len(flat))
        pieces = self._pieces.take(numbers)
        return Ragged(pieces.values, pieces.offsets[offsets_of(np.fromiter(map(len, words), dtype=np.int64, count=len(words)))])


def bert_tokenizer(vocab: dict[str, int], options: dict[str, bool], *, unk_token: str = "[UNK]") -> tokenizers.Tokenizer:
    """BERT's tokenizer over a vocabulary. options: of BertNormalizer; by default, text is lower-cased unless tokens are not."""
    named = re.compile(r"\[.*\]|<.*>")  # special tokens such as [CLS] and <S>, whose case says nothing about the text
    cased = any(token != token.lower() and not named.fullmatch(token) for token in vocab)
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unk_token))
    backend.normalizer = normalizers.BertNormalizer(**{"lowercase": not cased, **options})
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def _vocab_txt(vocab: dict[str, int]) -> str:
    """The tokens in the order of their ids, one per line."""
    return "".join(f"{token}\n" for token in sorted(vocab, key=vocab.__getitem__))


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Tokens by line, counted from 0; not by splitlines(): some vocabularies hold U+2028 as a token."""
    try:
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"the vocabulary is not UTF-8: {error.reason} at byte {error.start}", where=str(path)) from None
    vocab: dict[str, int] = {}
    for number, token in enumerate(lines):
        if (first := vocab.setdefault(token, number)) != number:
            what = f"token {token!r} is in line {first + 1} and again in line {number + 1}; all later ids would shift"
            hint = "take the vocab.txt that the model was trained with"
            raise ModelError(what, where=f"{path}:{number + 1}", hint=hint)
    return vocab


def _add_tokens(backend: tokenizers.Tokenizer, folder: Path, settings: dict[str, Any]) -> None:
    """Add the tokens after vocab.txt with their own ids, from added_tokens.json, or added_tokens_decoder of newer tools."""
    with _well_formed(folder):
        added = {int(number): _token(token) for token, number in read_json(folder / "added_tokens.json").items()}
        added |= {int(number): _token(token) for number, token in (settings.get("added_tokens_decoder") or {}).items()}
    size = backend.get_vocab_size(with_added_tokens=False)
    for number in sorted(number for number in added if number >= size):
        token = added[number]
        backend.add_tokens([token])
        if (found := backend.token_to_id(token.content)) != number:
            what = f"added token {token.content!r} has id {number}; after vocab.txt it would get {found}"
            raise ModelError(what, where=str(folder))


def _token(token: str | dict[str, Any]) -> tokenizers.AddedToken:
    """A special or added token: its text, or an object with the text and options. Raises ValueError or TypeError for others."""
    values = token if isinstance(token, dict) else {"content": token}
    found = tokenizers.AddedToken(**{name: values[name] for name in _OF_A_TOKEN if values.get(name) is not None})
    if not found.content:
        raise ValueError(f"{token!r} has no text")
    return found


@contextmanager
def _well_formed(folder: Path) -> Iterator[None]:
    """Raise ModelError for special or added tokens that are not of the form that transformers writes."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        hint = "they are in tokenizer_config.json, special_tokens_map.json and added_tokens.json"
        raise ModelError(f"the special or added tokens cannot be read: {error}", where=str(folder), hint=hint) from None
