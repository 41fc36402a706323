"""Words of a corpus: BERT's own and jieba's, against jieba and transformers' tokenizer by a loop; masked whole."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bertkit.corpus.build import CorpusConfig, build_corpus, make_part
from bertkit.corpus.preview import draw_sequences
from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.words import tokens_and_words
from bertkit.errors import MachineError
from bertkit.readers.documents import Documents
from bertkit.readers.text_sources import look_for
from bertkit.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def chinese(tiny_chinese_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_chinese_dir)


def words_of(text: str, tokenizer: Tokenizer, words: str) -> list[str]:
    """The tokens of a text, those of a word put together."""
    pieces, begins = tokens_and_words([text], tokenizer, words)
    names = {number: token for token, number in tokenizer.vocab.items()}
    found: list[str] = []
    for number, begin in zip(pieces.values.tolist(), begins.tolist(), strict=True):
        if begin:
            found.append("")
        found[-1] += names[number].removeprefix("##")
    return found


def test_words_by_hand(chinese: Tokenizer) -> None:
    text = "我在银行工作。unbelievable!"
    assert words_of(text, chinese, "basic") == ["我", "在", "银", "行", "工", "作", "。", "unbelievable", "!"]
    assert words_of(text, chinese, "jieba") == ["我", "在", "银行", "工作", "。", "unbelievable", "!"]
    assert words_of("no Chinese here", chinese, "jieba") == ["no", "chinese", "here"]
    pieces, begins = tokens_and_words([], chinese, "jieba")
    assert (len(pieces.values), len(begins)) == (0, 0)


def test_jieba_is_an_extra(tiny_chinese_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)  # as if it were not installed
    (tmp_path / "a.txt").write_text("我在银行工作。\n", encoding="utf-8")
    with pytest.raises(MachineError):
        build_corpus([str(tmp_path / "a.txt")], tiny_chinese_dir, tmp_path / "corpus", CorpusConfig(words="jieba"))
    assert not (tmp_path / "corpus").exists()


def test_in_real_text_jiebas_words_are_masked_whole(data_dir: Path, chinese: Tokenizer, tiny_chinese_dir: Path) -> None:
    import jieba
    from transformers import BertTokenizerFast

    (source,) = look_for([str(data_dir / "text-zh" / "zh-docs.txt.xz")]).sources.values()
    documents = [document.lines for _, document in zip(range(60), Documents(source))]
    whole = make_part(documents, chinese, CorpusConfig(sentences="lines", words="jieba", min_tokens=1))
    theirs = BertTokenizerFast.from_pretrained(tiny_chinese_dir)
    at = 0
    for line in (line for lines in documents for line in lines):
        places = {start: number for number, (_, start, end) in enumerate(jieba.tokenize(line)) for start in range(start, end)}
        encoded = theirs(line, add_special_tokens=False, return_offsets_mapping=True)
        owners = [places[start] for start, _ in encoded.offset_mapping]
        tokens = theirs.convert_ids_to_tokens(encoded.input_ids)
        # A token continues a word if it is a ##piece, or a Chinese character within a word of jieba's.
        chinese_here = ["\u3400" <= line[start] <= "\u9fff" for start, _ in encoded.offset_mapping]
        same_word = [False, *(one == other for one, other in pairwise(owners))]
        for found, token, is_chinese, same in zip(whole.starts_of_words()[at:], tokens, chinese_here, same_word, strict=False):
            assert found == (not token.startswith("##") and not (same and (is_chinese or token == "[UNK]"))), line
        at += len(tokens)
    assert at == len(whole.input_ids)

    sampler = CorpusSampler([whole], chinese, 64, 64, 1, masking="whole-word")
    features, words = sampler.sequences(np.arange(64)), sampler.words(np.arange(64))
    targets = np.concatenate([np.isin(np.arange(len(words[at])), features.rows[at][1:]) for at in range(64)])
    continues = words.values == 0
    assert np.array_equal(targets[continues], np.roll(targets, 1)[continues]), "whole words stay whole"
    assert np.count_nonzero(targets & continues) > 50
    names = {number: token for token, number in chinese.vocab.items()}
    shown = [line.plain for line in draw_sequences(sampler, 64)]
    for number, line in enumerate(shown):
        ids = features.input_ids[number][features.rows[number][1:]].tolist()
        for token, was in zip(ids, features.labels["mlm"][number].tolist(), strict=True):
            assert f"{names[token]}({'kept' if token == was else names[was]})" in line
    assert "[MASK](" in shown[0]
    assert any(")[MASK](" in line for line in shown), "of a word of two characters nothing parts the masks"
