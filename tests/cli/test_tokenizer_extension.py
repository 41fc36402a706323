"""A tokenizer extended by words of a text: what the model had stays, transformers opens it, new rows are means of old ones."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from conftest import VOCABULARY, Ran
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from bertkit.text import tokenizer_extension
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_extension import Fit, count_words, words_to_add

TEXT = "Kubernetes routes a KUBERNETES gateway; the gateway is good, kubernetes!\n票 is a ticket, 票 票 的 日\n" * 3
NEW = ["kubernetes", "票", "gateway", "routes", "日", "的"]  # by frequency, then by alphabet
EMBEDDINGS, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"


@pytest.fixture
def extend(run_bertkit: Callable[..., Ran], tmp_path: Path) -> Callable[..., Ran]:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return lambda model, *more: run_bertkit("tokenizer", "extend", model, "text.txt", "--output-dir", "out", *more)


def test_the_most_frequent_words_that_are_split_follow_the_tokens_that_were_there(
    extend: Callable[..., Ran], make_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    model = make_model_dir("BertForPreTraining")
    ran = extend(model, "--min-frequency", "3")
    assert ran.code == 0, ran.err
    assert (tmp_path / "out" / "vocab.txt").read_text(encoding="utf-8").splitlines() == [*VOCABULARY, *NEW]
    assert Tokenizer.load(tmp_path / "out").vocab == {token: number for number, token in enumerate([*VOCABULARY, *NEW])}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == len(VOCABULARY) + len(NEW)
    told = " ".join(ran.err.split())
    assert "fewer than --add 1000: no other word that the tokenizer splits occurs at least 3 times (--min-frequency)" in told
    once = extend(model, "--min-frequency", "3", "--add", "2", "--overwrite")
    assert once.code == 0
    assert (tmp_path / "out" / "vocab.txt").read_text(encoding="utf-8").splitlines() == [*VOCABULARY, *NEW[:2]]


def test_transformers_splits_texts_as_bertkit_does_whichever_of_its_tokenizers_reads_the_folder(
    extend: Callable[..., Ran], tiny_model_dir: Path, tmp_path: Path
) -> None:
    assert extend(tiny_model_dir, "--min-frequency", "3").code == 0
    ours = Tokenizer.load(tmp_path / "out").encode([TEXT, "Gateways are re-routed"], max_length=512).input_ids
    slow = transformers.BertTokenizerLegacy(str(tmp_path / "out" / "vocab.txt"))
    for tokenizer in (AutoTokenizer.from_pretrained(tmp_path / "out"), slow):
        assert tokenizer([TEXT, "Gateways are re-routed"])["input_ids"] == [ours[0].tolist(), ours[1].tolist()]
    assert {len(VOCABULARY) + number for number in range(len(NEW))} <= set(ours.values.tolist())


def test_new_rows_are_means_and_old_tokens_are_predicted_as_before(
    extend: Callable[..., Ran], make_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    model = make_model_dir("BertForMaskedLM")
    assert extend(model, "--min-frequency", "3").code == 0
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    pieces_of = AutoTokenizer.from_pretrained(model)
    for name, tensor in before.items():
        assert after[name][: len(tensor)].equal(tensor)
        if name not in (EMBEDDINGS, BIAS):
            assert after[name].shape == tensor.shape
            continue
        for row, word in zip(after[name][len(tensor) :], NEW, strict=True):
            assert row.equal(tensor[pieces_of(word, add_special_tokens=False)["input_ids"]].mean(dim=0))
    batch = pieces_of(["the movie was good", "a [MASK] is a book"], return_tensors="pt", padding=True)
    logits = []
    for folder in (model, tmp_path / "out"):
        opened, report = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        with torch.inference_mode():
            logits.append(opened.eval()(**batch).logits)
    assert torch.allclose(logits[0], logits[1][..., : len(VOCABULARY)], atol=1e-6, rtol=0)
    assert logits[1].shape[-1] == len(VOCABULARY) + len(NEW)


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_a_command_that_was_killed_while_it_renamed_its_files_can_be_repeated(
    extend: Callable[..., Ran], tiny_model_dir: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    assert extend(tiny_model_dir, "--min-frequency", "3").code == 0
    config = tmp_path / "out" / "config.json"
    whole = config.read_bytes()
    config.rename(config.with_name(".unfinished-config.json"))
    ran = extend(tiny_model_dir, "--min-frequency", "3", *options)
    assert ran.code == 0, ran.err
    assert config.read_bytes() == whole


def test_rows_of_padding_are_replaced_first(
    extend: Callable[..., Ran], make_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    model = make_model_dir("BertForMaskedLM", vocab_size=len(VOCABULARY) + 4)
    assert extend(model, "--min-frequency", "3", "--add", "3").code == 0
    before, after = (load_file(folder / "model.safetensors")[EMBEDDINGS] for folder in (model, tmp_path / "out"))
    assert before.shape == after.shape
    assert before[-1].equal(after[-1])
    row = VOCABULARY.index("[UNK]")
    assert after[len(VOCABULARY) + NEW.index("票")].equal(before[row]), "of a character that was unknown"


def test_tokens_that_were_added_to_the_vocabulary_keep_their_numbers(
    extend: Callable[..., Ran], tiny_model_dir: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    tokenizer.add_tokens(["<name>"])
    shutil.copytree(tiny_model_dir, tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    model = transformers.AutoModel.from_pretrained(tiny_model_dir)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(tmp_path / "model")
    assert extend(tmp_path / "model", "--min-frequency", "3").code == 0
    opened = AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = [len(VOCABULARY), len(VOCABULARY) + 1]
    assert opened("<name> kubernetes", add_special_tokens=False)["input_ids"] == expected
    assert transformers.AutoModel.from_pretrained(tmp_path / "out").config.vocab_size == len(VOCABULARY) + 1 + len(NEW)


def test_words_are_counted_as_berts_basic_tokenizer_splits_them(
    tiny_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    basic = transformers.models.bert.tokenization_bert_legacy.BasicTokenizer(do_lower_case=True)
    lines = [*TEXT.splitlines(), "Höhe 中文字符mixed,x-y\u3000z", "don't\t#9 \u200b"]
    counts = count_words([lines[:2], lines[2:]], tokenizer)
    assert counts == Counter(word for line in lines for word in basic.tokenize(line))
    monkeypatch.setattr(tokenizer_extension, "COUNTED", 8)
    few = count_words([[line] for line in lines], tokenizer)
    assert len(few) < len(counts)
    assert few["kubernetes"] == counts["kubernetes"]
    assert words_to_add(few, tokenizer, most=1, min_frequency=1) == ["kubernetes"]


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
def test_a_tokenizer_without_this_part_counts_words_as_it_splits_them(tiny_tokenizer_dir: Path, part: str) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    whole = json.loads(tokenizer.backend.to_str()) | {part: None}
    bare = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(whole)), special_tokens=tokenizer.special_tokens)
    expected = {"normalizer": {"Pod": 1, "fails": 1, ".": 1}, "pre_tokenizer": {"pod": 1, "fails.": 1}}[part]
    assert count_words([["Pod fails."]], bare) == expected


def test_how_the_text_is_split_is_measured_before_and_after(
    extend: Callable[..., Ran], tiny_model_dir: Path, tmp_path: Path
) -> None:
    ran = extend(tiny_model_dir, "--min-frequency", "3")
    counts = count_words([TEXT.splitlines()], Tokenizer.load(tiny_model_dir))
    for folder, column in ((tiny_model_dir, 0), (tmp_path / "out", 1)):
        ids = AutoTokenizer.from_pretrained(folder)(TEXT, add_special_tokens=False)["input_ids"]
        fit = Fit(len(ids) / counts.total(), ids.count(VOCABULARY.index("[UNK]")) / len(ids))
        assert Fit.of(Tokenizer.load(folder), counts) == pytest.approx(fit)
        for row, value in (("tokens per word", fit.pieces_per_word), ("[UNK] per 10,000 tokens", 1e4 * fit.unknown)):
            (line,) = [line for line in ran.err.splitlines() if row in line]
            assert float(line.replace("\u2502", " ").split()[-2:][column]) == pytest.approx(value, abs=1e-4)
    assert fit.unknown == 0


def test_what_cannot_be_extended_is_refused_in_one_line(
    extend: Callable[..., Ran], tiny_model_dir: Path, make_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    def refused(ran: Ran, *words: str) -> None:
        assert ran.code in (2, 3, 4), ran.err
        assert all(word in " ".join(ran.err.split()) for word in words), ran.err
        assert "Traceback" not in ran.err
        assert not (tmp_path / "out").exists()

    refused(extend(tiny_model_dir, "--add", "0"), "--add")
    refused(extend(tiny_model_dir, "--min-frequency", "10"), "splits 6", "10 times", "--min-frequency")
    refused(extend(tiny_model_dir, "--on-error", "no"), "--on-error")
    refused(extend(make_model_dir("BertForMaskedLM", tie_word_embeddings=False)), "tie_word_embeddings")
    (tmp_path / "text.txt").write_text("\n", encoding="utf-8")
    refused(extend(tiny_model_dir), "no text")
    (tmp_path / "text.txt").write_text("the good movie\n" * 9, encoding="utf-8")
    refused(extend(tiny_model_dir), "splits none", "nothing to add")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    assert extend(tiny_model_dir, "--min-frequency", "3").code == 0
    again = extend(tiny_model_dir, "--min-frequency", "3")
    assert again.code == 2
    assert "finished model" in again.err
    assert "--overwrite" in again.err


def test_words_too_long_to_be_looked_up_are_not_added(tiny_tokenizer_dir: Path) -> None:
    counts = Counter({"k" * 101: 9, "k" * 100: 5})
    assert words_to_add(counts, Tokenizer.load(tiny_tokenizer_dir), most=9, min_frequency=1) == ["k" * 100]
