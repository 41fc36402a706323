"""A vocabulary learned from text: BERT's words and special tokens, the same each time, and readable by transformers."""

from __future__ import annotations

import json
import re
import string

import pytest

from bertkit.errors import DataError, UsageError
from bertkit.readers.documents import Documents
from bertkit.readers.text_sources import look_for
from bertkit.text import tokenizer_training
from bertkit.text.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertkit.text.tokenizer_training import train_tokenizer

FIRST = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = [["The lowest of the low lay lower than the lowly.", "Höhe, höher, am höchsten!"], ["低い 中文字符 mixed中文"]] * 3


def tokens(tokenizer: Tokenizer) -> list[str]:
    return sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__)


def test_special_tokens_come_first_and_bert_words_after():
    trained = train_tokenizer(TEXT, vocab_size=220)
    assert tokens(trained)[:5] == FIRST
    assert trained.pad_token_id == 0
    vocab = set(trained.vocab)
    assert {"the", "low", "中", "文", "##e"} <= vocab
    assert "##中" not in vocab  # a Chinese character is a word of its own
    assert not any(token != token.lower() for token in vocab - set(FIRST))
    assert "ö" not in vocab  # accents go with the capitals
    assert all(len(token.removeprefix("##")) == 1 or not set("中文字符") & set(token) for token in vocab)


def test_cased_keeps_capitals_and_accents():
    vocab = train_tokenizer(TEXT, vocab_size=280, cased=True).vocab
    assert {"T", "H", "##ö"} <= set(vocab)


def test_every_word_of_the_text_is_made_of_its_pieces():
    """With all characters in the vocabulary nothing is unknown, and the pieces of a word spell it."""
    backend = train_tokenizer(TEXT, vocab_size=200).backend
    for line in (line for lines in TEXT for line in lines):
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(line)):
            pieces = backend.encode(word, add_special_tokens=False).tokens
            assert "".join(piece.removeprefix("##") for piece in pieces) == word


@pytest.mark.parametrize("cased", [False, True])
def test_printable_ascii_is_always_in_the_vocabulary(cased: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what the text lacks; a mark is always a word of its own."""
    trained = train_tokenizer([["的一是 ok"]] * 9, vocab_size=260, cased=cased)
    printable = "".join(map(chr, range(33, 127)))
    printable = printable if cased else printable.replace(string.ascii_uppercase, "")
    assert set(printable) <= set(trained.vocab)
    within = {token for token in trained.vocab if token.startswith("##")}
    assert within == {f"##{each}" for each in printable if each.isalnum()}
    line = [r"a@b #9 > \ ^ | x0Z ~`{}", string.printable]
    assert trained.vocab["[UNK]"] not in trained.pieces(line).values
    assert "no token is [UNK] in the text" in capsys.readouterr().err


def test_words_of_more_than_100_characters_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    long = "xyz" * 40
    text = [[f"the {'a' * 100} good {long}, {long}! ok", "中" * 300, "ab。" * 100, f"的{long}的"]] * 5
    trained = train_tokenizer(text, vocab_size=400)
    assert "ignored 15 words" in (told := capsys.readouterr().err)
    assert "##xyz" not in trained.vocab, "nothing is learnt from them"
    assert {"good", "ok", "的", "中", "ab", "a" * 100} <= set(trained.vocab)
    ids = trained.pieces([line for lines in text for line in lines]).values
    rate = 10_000 * (ids == trained.vocab["[UNK]"]).mean()
    assert rate > 0
    assert f"[UNK] makes up {rate:.1f} of every 10,000" in told


def test_the_rate_of_unknown_tokens_is_that_of_lines_of_the_whole_text(monkeypatch, capsys) -> None:
    """Of much text a sample: here half of the lines, none before the middle, hold a rare character."""
    monkeypatch.setattr(tokenizer_training, "SAMPLED", 2000)
    text = [["the good movie "] * 400, *([[f"the {chr(0x4E00 + at)} movie"] for at in range(400)])]
    train_tokenizer(text, vocab_size=200)
    rate = float(re.search(r"\[UNK\] makes up ([\d.]+) of", capsys.readouterr().err)[1])
    assert 10_000 / 6 * 0.7 < rate < 10_000 / 6 * 1.1


def test_frequent_words_become_tokens_before_rare_ones():
    text = [["frequent"] * 50 + ["seldom"] * 2]
    small = train_tokenizer(text, vocab_size=116).vocab
    assert "frequent" in small
    assert "seldom" not in small
    assert "seldom" in train_tokenizer(text, vocab_size=200).vocab
    assert "seldom" not in train_tokenizer(text, vocab_size=200, min_frequency=3).vocab


def test_two_thirds_of_the_vocabulary_at_most_are_characters_the_commonest():
    rare = [chr(0x4E00 + i) for i in range(100)]
    vocab = train_tokenizer([["".join(rare)], ["的" * 9]], vocab_size=5 + 3 * 72).vocab
    assert {token for token in vocab if len(token) == 1 and not token.isascii()} == {"的", *rare[:39]}  # beside 104 of ASCII
    letters = train_tokenizer([["βγδεζ"] * 2, ["η"]], vocab_size=5 + 3 * 56).vocab  # each takes two, as a and ##a
    assert {token for token in letters if not token.isascii() and len(token) in (1, 3)} >= {
        form for letter in "βγδε" for form in (letter, f"##{letter}")
    }
    assert not {"ζ", "η"} & set(letters)


def test_a_character_rarer_than_one_in_a_million_is_none_of_the_vocabulary():
    vocab = train_tokenizer([["often " * 10**5] * 4, ["☃ ☂ ☂ ☂"]], vocab_size=200).vocab
    assert "☂" in vocab
    assert "☃" not in vocab


@pytest.mark.parametrize("name", ["text-en/imdb-reviews-unsup.txt.xz", "text-zh/zh-docs.txt.xz"])
def test_the_same_text_gives_the_same_vocabulary(data_dir, name):
    """The library alone breaks ties by chance: two trainings of it on these texts differ."""
    (source,) = look_for([str(data_dir / name)]).sources.values()
    texts = [document.lines for _, document in zip(range(1500), Documents(source))]
    first, second = (train_tokenizer(texts, vocab_size=3000) for _ in range(2))
    assert tokens(first) == tokens(second)
    assert first.vocab_size == 3000
    assert first.backend.to_str() == second.backend.to_str()


def test_no_text_and_no_room():
    with pytest.raises(DataError):
        train_tokenizer([], vocab_size=200)
    with pytest.raises(UsageError):
        train_tokenizer(TEXT, vocab_size=108)
    assert train_tokenizer(TEXT, vocab_size=109).vocab_size == 109
    with pytest.raises(UsageError):
        train_tokenizer(TEXT, vocab_size=160, cased=True)


@pytest.mark.parametrize("cased", [False, True])
def test_the_folder_opens_in_transformers_with_equal_tokens(cased, tmp_path):
    from transformers import AutoTokenizer

    trained = train_tokenizer(TEXT, vocab_size=175, cased=cased)
    trained.save(tmp_path)
    lines = (tmp_path / "vocab.txt").read_text(encoding="utf-8").split("\n")
    assert (lines[:5], lines.pop(), len(lines)) == (FIRST, "", trained.vocab_size)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.mask_token == SPECIAL_TOKENS["mask_token"]
    for file in (None, "tokenizer.json"):  # without which vocab.txt and the settings say the same
        if file is not None:
            (tmp_path / file).unlink()
        for line in ["The LOWEST höher 中文 of another!", "nothing-known ☃"]:
            assert theirs(line)["input_ids"] == [*Tokenizer.load(tmp_path).encode([line], max_length=64).input_ids[0]]


def test_the_command(run_bertkit, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("\n\n".join("\n".join(lines) for lines in TEXT), encoding="utf-8")
    (texts / "b.jsonl").write_text(json.dumps({"body": "Words of another file."}) + "\n", encoding="utf-8")
    train = ("tokenizer", "train", "--text-column", "body")
    for code, text, *options in [
        (2, "-", "-o", "t"),
        (3, "nowhere", "-o", "t"),
        (2, texts, "-o", texts),  # not empty
        (2, texts, "-o", "t", "--vocab-size", 5),
    ]:
        assert run_bertkit(*train, text, *options).code == code
    assert sorted(path.name for path in texts.iterdir()) == ["a.txt", "b.jsonl"]
    assert not (tmp_path / "t").exists()
    ran = run_bertkit(*train, texts, "-o", "t", "--vocab-size", 9999)
    assert (ran.code, "warning: " in ran.err) == (0, True), "the text gives fewer"
    for code, *overwrite in [(2,), (0, "--overwrite")]:
        assert run_bertkit(*train, texts, "-o", "t", "--vocab-size", 170, "--cased", *overwrite).code == code
    trained = Tokenizer.load(tmp_path / "t")
    assert (trained.vocab_size, "T" in trained.vocab) == (170, True)
