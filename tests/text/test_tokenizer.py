"""Tokenizer against transformers' AutoTokenizer and BertTokenizer, on made and real vocabularies."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import random
import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from transformers import AutoTokenizer, BertTokenizer

from bertkit.errors import ModelError, UsageError
from bertkit.text.tokenizer import SPECIAL_TOKENS, Encoded, Tokenizer

TEXTS = ["", " ", "the film", "Unbelievable actors, 42 of them!", "caf\u00e9 na\u00efve", "a [SEP] b [MASK]"]
TEXTS += ["\u4e2d\u6587\u5b57 ok", "\x00\u200b", "THE Film", "\u00c9t\u00e9"]
# The published vocab.txt of each (sha256 of the plain file), and how it treats the case of text.
PUBLISHED = {
    "bert-base-uncased": ("07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3", True),
    "bert-base-cased": ("eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02", False),
    "bert-base-chinese": ("45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c", True),
    "bert-base-multilingual-cased": ("fe0fda7c425b48c516fc8f160d594c8022a0808447475c1a7c6d6479763f310c", False),
}


def assert_same(encoded: Encoded, texts: list[str], pairs: list[str] | None, oracle, max_length: int) -> None:
    """Every row of ids, segments and the truncated flag as transformers has them."""
    expected = oracle(texts, pairs, truncation=True, max_length=max_length)
    whole = oracle(texts, pairs)["input_ids"]
    assert len(encoded.input_ids) == len(encoded.token_type_ids) == len(encoded.truncated) == len(texts)
    for row in range(len(texts)):
        assert encoded.input_ids[row].tolist() == expected["input_ids"][row], (texts[row], pairs and pairs[row], max_length)
        assert encoded.token_type_ids[row].tolist() == expected["token_type_ids"][row]
        assert encoded.truncated[row] == (len(whole[row]) > max_length)


def refused(folder: Path, *values: object) -> str | None:
    """The place that the error of loading a folder names; it is in one line that has these values."""
    with pytest.raises(ModelError) as caught:
        Tokenizer.load(folder)
    assert "\n" not in caught.value.what
    assert [value for value in values if str(value) not in caught.value.what] == []
    return caught.value.where


def edit_json(path: Path, **changes) -> None:
    values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(values | changes), encoding="utf-8")


@pytest.fixture
def folder(tiny_tokenizer_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny tokenizer that may be changed."""
    return Path(shutil.copytree(tiny_tokenizer_dir, tmp_path / "tokenizer"))


@pytest.fixture
def vocabulary(folder: Path) -> Path:
    """The tiny tokenizer's vocab.txt, alone in its folder."""
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    return folder / "vocab.txt"


@pytest.fixture(scope="session")
def published(data_dir: Path, tmp_path_factory: pytest.TempPathFactory):
    """A function that unpacks a published vocabulary into a folder: all its files, or vocab.txt alone."""

    def unpack(name: str, *, vocabulary_alone: bool = False) -> Path:
        folder = tmp_path_factory.mktemp(name)
        for path in sorted((data_dir.parent / "vocab" / name).iterdir()):
            if vocabulary_alone and path.name != "vocab.txt.gz":
                continue
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            (folder / path.name.removesuffix(".gz")).write_bytes(content)
        return folder

    return unpack


@pytest.fixture(scope="session")
def sentences(data_dir: Path) -> list[str]:
    """Real English, Chinese and other sentences, some of them long, with all that a TSV column holds."""
    english = (data_dir / "GLUE/MRPC/dev.tsv").read_text(encoding="utf-8-sig").splitlines()[1:201]
    chinese = gzip.decompress((data_dir / "XNLI/dev-zh.tsv.gz").read_bytes()).decode("utf-8").splitlines()[1:201]
    texts = [field for line in english + chinese for field in line.split("\t")]
    texts += [" ".join(texts[start : start + 20]) for start in range(0, len(texts), 97)]
    assert len(texts) > 1500
    return texts


@pytest.fixture(scope="session")
def tiny(tiny_tokenizer_dir: Path) -> tuple[Tokenizer, Any]:
    """Ours and transformers'."""
    return Tokenizer.load(tiny_tokenizer_dir), AutoTokenizer.from_pretrained(tiny_tokenizer_dir)


# --- encoding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_length", [3, 4, 5, 8, 64])
def test_encode_equals_transformers_on_odd_texts(tiny, max_length: int) -> None:
    tokenizer, oracle = tiny
    assert_same(tokenizer.encode(TEXTS, max_length=max_length), TEXTS, None, oracle, max_length)
    firsts, seconds = map(list, zip(*product(TEXTS, TEXTS), strict=True))
    assert_same(tokenizer.encode(firsts, seconds, max_length=max_length), firsts, seconds, oracle, max_length)


def test_longest_first_equals_transformers_for_all_small_lengths(tiny) -> None:
    tokenizer, oracle = tiny
    firsts, seconds = map(list, zip(*(("a " * n, "b " * m) for n in range(8) for m in range(8)), strict=True))
    for max_length in range(3, 18):
        assert_same(tokenizer.encode(firsts, seconds, max_length=max_length), firsts, seconds, oracle, max_length)


def test_encode_equals_transformers_on_random_texts(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.text.tokenizer.CHUNK", 7)  # so that rows come from many chunks
    rng, (tokenizer, oracle) = random.Random(0), tiny
    alphabet = "aabcdeit  .,-'[]SEP\u00e9\u4e2d\U0001f600\n\t"
    for max_length in (6, 17, 29):
        texts, pairs = (["".join(rng.choices(alphabet, k=rng.randrange(40))) for _ in range(100)] for _ in range(2))
        assert_same(tokenizer.encode(texts, max_length=max_length), texts, None, oracle, max_length)
        assert_same(tokenizer.encode(texts, pairs, max_length=max_length), texts, pairs, oracle, max_length)


@pytest.mark.parametrize("name", PUBLISHED)
def test_encode_equals_transformers_on_published_vocabularies(
    name: str, published, sentences: list[str], tmp_path: Path
) -> None:
    digest, lower = PUBLISHED[name]
    folder = published(name)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_hash == digest
    oracle = BertTokenizer(str(folder / "vocab.txt"), do_lower_case=lower)
    assert tokenizer.vocab_size == len(oracle)
    backwards = sentences[::-1]
    assert_same(tokenizer.encode(sentences, max_length=512), sentences, None, oracle, 512)
    encoded = tokenizer.encode(sentences, backwards, max_length=64)
    assert_same(encoded, sentences, backwards, oracle, 64)
    alone = Tokenizer.load(published(name, vocabulary_alone=True)).encode(sentences, backwards, max_length=64)
    assert np.array_equal(alone.input_ids.values, encoded.input_ids.values)
    tokenizer.save(tmp_path)
    assert hashlib.sha256((tmp_path / "vocab.txt").read_bytes()).hexdigest() == digest
    saved = AutoTokenizer.from_pretrained(tmp_path)(sentences, backwards, truncation=True, max_length=64)
    assert saved["input_ids"] == [row.tolist() for row in map(encoded.input_ids.__getitem__, range(len(sentences)))]


def test_encode_types_and_no_rows(tiny) -> None:
    tokenizer, _ = tiny
    for texts, pairs in ((["the film", "a"], ["book", "b"]), ([], [])):
        encoded = tokenizer.encode(texts, pairs, max_length=8)
        assert len(encoded.input_ids) == len(encoded.token_type_ids) == len(encoded.truncated) == len(texts)
        dtypes = (encoded.input_ids.values.dtype, encoded.token_type_ids.values.dtype, encoded.truncated.dtype)
        assert dtypes == (np.int32, np.uint8, np.bool_)


def test_encode_refuses_a_max_length_without_room(tiny) -> None:
    tokenizer, _ = tiny
    assert tokenizer.encode(["a b"], max_length=2).input_ids[0].tolist() == [tokenizer.cls_token_id, tokenizer.sep_token_id]
    for pairs, max_length in ((None, 1), (["b"], 2)):
        with pytest.raises(UsageError, match=f"is {max_length}; .* {max_length + 1}"):
            tokenizer.encode(["a"], pairs, max_length=max_length)


@pytest.mark.parametrize("count", [0, 40])
def test_offsets_are_those_of_the_original_text(tiny, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.text.tokenizer.CHUNK", 64)  # so that rows come from many chunks
    tokenizer, oracle = tiny
    texts = (TEXTS * 4)[:count]
    pieces, starts, ends = tokenizer.encode_with_offsets(texts)
    assert len(pieces) == count
    assert (starts.dtype, ends.dtype, starts.shape) == (np.int32, np.int32, pieces.values.shape)
    for row, text in enumerate(texts):
        expected = oracle(text, add_special_tokens=False, return_offsets_mapping=True)
        assert pieces[row].tolist() == expected["input_ids"]
        places = slice(*pieces.offsets[row : row + 2])
        assert list(zip(starts[places], ends[places], strict=True)) == expected["offset_mapping"]


# --- loading -------------------------------------------------------------------------------------------------------


def test_truncation_and_padding_of_tokenizer_json_are_ignored_and_not_saved(folder: Path, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=128)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.load(folder)
    assert len(tokenizer.encode(["a b c d e f g"], max_length=64).input_ids[0]) == 9
    assert len(tokenizer.backend.encode("a b c d e f g").ids) == 9
    tokenizer.save(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved/tokenizer.json").read_text(encoding="utf-8"))
    assert saved["truncation"] is saved["padding"] is None


def test_attributes(tiny) -> None:
    tokenizer, oracle = tiny
    assert (tokenizer.vocab, tokenizer.vocab_size) == (oracle.get_vocab(), len(oracle))
    for role in SPECIAL_TOKENS:
        assert getattr(tokenizer, f"{role}_id") == getattr(oracle, f"{role}_id")


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_options_of_tokenizer_config_decide(folder: Path, alone: bool, lower: bool) -> None:
    if alone:
        (folder / "tokenizer.json").unlink()
    edit_json(folder / "tokenizer_config.json", do_lower_case=lower, strip_accents=False, tokenize_chinese_chars=False)
    tokenizer, oracle = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.backend.normalizer.lowercase is lower
    assert_same(tokenizer.encode(TEXTS, max_length=64), TEXTS, None, oracle, 64)


@pytest.mark.parametrize("value", ["false", 0, []])
def test_an_option_that_is_neither_true_nor_false_is_refused(folder: Path, value: object) -> None:
    edit_json(folder / "tokenizer_config.json", do_lower_case=value)
    with pytest.raises(ModelError, match=f"do_lower_case is {re.escape(repr(value))} in tokenizer_config.json"):
        Tokenizer.load(folder)
    edit_json(folder / "tokenizer_config.json", do_lower_case=None)
    assert Tokenizer.load(folder).backend.normalizer.lowercase is True, "as tokenizer.json has it"


def test_tokenizer_class_that_takes_tokenizer_json_as_it_stands(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", do_lower_case=False, tokenizer_class="PreTrainedTokenizerFast")
    tokenizer, oracle = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.backend.normalizer.lowercase is True
    assert tokenizer.encode(["THE film"], max_length=64).input_ids[0].tolist() == oracle("THE film").input_ids


def test_vocabulary_alone_is_cased_if_its_own_tokens_are(vocabulary: Path) -> None:
    assert Tokenizer.load(vocabulary.parent).backend.normalizer.lowercase is True
    for more, lower in (("[unused1]\n<S>\n", True), ("The\n", False)):
        vocabulary.write_text(vocabulary.read_text(encoding="utf-8") + more, encoding="utf-8")
        assert Tokenizer.load(vocabulary.parent).backend.normalizer.lowercase is lower


def test_vocabulary_with_line_separators_byte_order_mark_and_crlf(vocabulary: Path) -> None:
    tokens = [*vocabulary.read_text(encoding="utf-8").split(), "\u2028", "##\u2028", "\x85x"]
    vocabulary.write_text("\ufeff" + "".join(f"{token}\r\n" for token in tokens), encoding="utf-8", newline="")
    tokenizer = Tokenizer.load(vocabulary.parent)
    assert tokenizer.vocab == {token: number for number, token in enumerate(tokens)}


def test_tokens_added_behind_vocab_txt(vocabulary: Path, tmp_path: Path) -> None:
    size = len(vocabulary.read_text(encoding="utf-8").split())
    edit_json(vocabulary.with_name("tokenizer_config.json"), tokenizer_class="BertTokenizer")
    edit_json(vocabulary.with_name("added_tokens.json"), **{"[E2]": size + 1, "[E1]": size})
    tokenizer, oracle = Tokenizer.load(vocabulary.parent), AutoTokenizer.from_pretrained(vocabulary.parent)
    texts = ["the [E1] film [E2]", "e1 [e1]"]
    assert tokenizer.vocab_size == len(oracle) == size + 2
    assert_same(tokenizer.encode(texts, max_length=16), texts, None, oracle, 16)
    tokenizer.save(tmp_path / "saved")
    assert_same(tokenizer.encode(texts, max_length=16), texts, None, AutoTokenizer.from_pretrained(tmp_path / "saved"), 16)
    assert Tokenizer.load(tmp_path / "saved").vocab == tokenizer.vocab
    edit_json(vocabulary.with_name("added_tokens.json"), **{"[E2]": size + 3})
    refused(vocabulary.parent, size + 3, size + 1)


def test_special_tokens_of_other_names(vocabulary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = vocabulary.read_text(encoding="utf-8").replace("[CLS]", "<s>").replace("[UNK]", "<unk>")
    vocabulary.write_text(text, encoding="utf-8")
    refused(vocabulary.parent, "[CLS]", "[UNK]")
    names = {"cls_token": {"content": "<s>", "lstrip": False, "__type": "AddedToken"}, "unk_token": "<unk>"}
    edit_json(vocabulary.with_name("tokenizer_config.json"), tokenizer_class="BertTokenizer", **names)
    tokenizer = Tokenizer.load(vocabulary.parent)
    assert capfd.readouterr().out == ""  # where the library reports options that it does not know
    assert tokenizer.vocab["<s>"] == tokenizer.cls_token_id == 2
    ids = tokenizer.encode(["\u4e2d"], max_length=8).input_ids[0].tolist()
    assert ids == [2, tokenizer.vocab["<unk>"], tokenizer.sep_token_id]
    tokenizer.save(tmp_path / "saved")
    assert_same(tokenizer.encode(TEXTS, max_length=9), TEXTS, None, AutoTokenizer.from_pretrained(tmp_path / "saved"), 9)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("special_tokens_map.json", {"cls_token": 5}),
        ("special_tokens_map.json", {"cls_token": {"lstrip": True}}),
        ("tokenizer_config.json", {"unk_token": ["[UNK]"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": ["[E1]"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"first": "[E1]"}}),
        ("added_tokens.json", {"[E1]": "last"}),
        ("added_tokens.json", {"[E1]": None}),
        ("added_tokens.json", {"[E1]": math.inf}),
    ],
)
def test_special_and_added_tokens_of_another_form(vocabulary: Path, name: str, values: dict[str, Any]) -> None:
    edit_json(vocabulary.with_name(name), **values)
    assert refused(vocabulary.parent, "special or added tokens") == str(vocabulary.parent)


def test_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").touch()
    assert refused(tmp_path, "vocab.json") == str(tmp_path)


def test_duplicate_lines(vocabulary: Path) -> None:
    tokens = vocabulary.read_text(encoding="utf-8").split()
    vocabulary.write_text("\n".join([*tokens[:20], tokens[7], *tokens[20:]]), encoding="utf-8")
    assert refused(vocabulary.parent, repr(tokens[7]), "line 8") == f"{vocabulary}:21"


def test_vocabulary_that_is_not_utf8(vocabulary: Path) -> None:
    size = vocabulary.stat().st_size
    vocabulary.write_bytes(vocabulary.read_bytes() + "caf\u00e9\n".encode("latin-1"))
    assert refused(vocabulary.parent, size + 3) == str(vocabulary)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("tokenizer.json", content) for content in ("", "{", '{"version": "1.0"}', "[]")),
        *(("tokenizer_config.json", content) for content in ("{", "[]")),
        ("special_tokens_map.json", "{"),
    ],
)
def test_broken_files(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    assert refused(folder) == str(folder / name)


def test_another_model_and_a_gap_in_the_numbers(folder: Path, tmp_path: Path) -> None:
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["model"]["vocab"]["far"] = 1000
    path.write_text(json.dumps(values), encoding="utf-8")
    assert refused(folder, 1000) == str(path)
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(str(path))
    assert refused(folder, "BPE") == str(path)


# --- saving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lower", [True, False])
def test_saved_folder_opens_in_transformers_with_equal_ids(folder: Path, tmp_path: Path, lower: bool) -> None:
    edit_json(folder / "tokenizer_config.json", do_lower_case=lower)
    tokenizer = Tokenizer.load(folder)
    saved = tmp_path / "saved"
    tokenizer.save(saved)
    names = ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    assert sorted(path.name for path in saved.iterdir()) == names
    automatic = AutoTokenizer.from_pretrained(saved)
    assert automatic.model_max_length == 512
    encoded = tokenizer.encode(TEXTS, TEXTS[::-1], max_length=12)
    for oracle in (automatic, BertTokenizer(str(saved / "vocab.txt"), do_lower_case=lower)):
        assert_same(encoded, TEXTS, TEXTS[::-1], oracle, 12)
    assert Tokenizer.load(saved).files() == tokenizer.files()
    (saved / "tokenizer.json").unlink()
    alone = Tokenizer.load(saved).encode(TEXTS, TEXTS[::-1], max_length=12)
    assert np.array_equal(alone.input_ids.values, encoded.input_ids.values)


def test_other_normalizer_survives_saving(folder: Path, tmp_path: Path) -> None:
    """As tokenizers of the Hugging Face course have it; transformers' BertTokenizer would put BERT's in its place."""
    values = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    parts = [{"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": "x"}, "content": "y"}]
    values["normalizer"] = {"type": "Sequence", "normalizers": parts}
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode(["X"], max_length=3).input_ids[0][1] == tokenizer.vocab["y"]
    tokenizer.save(tmp_path / "saved")
    oracle = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert oracle(["X"]).input_ids[0][1] == tokenizer.vocab["y"]
    assert_same(tokenizer.encode(TEXTS, TEXTS[::-1], max_length=9), TEXTS, TEXTS[::-1], oracle, 9)
