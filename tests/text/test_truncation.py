"""What is kept of long texts: each mode against the simplest possible code, and windows that lose nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertkit.text.tokenizer import Tokenizer
from bertkit.text.truncation import TRUNCATIONS, cut_texts

LENGTHS = np.random.default_rng(0).integers(0, 40, (2, 300))


def kept_by_hand(tokens: list[int], count: int, how: str) -> list[int]:
    head = {"head": count, "tail": 0, "head+tail": count // 4}[how]
    return tokens[:head] + tokens[len(tokens) - (count - head) :] if count < len(tokens) else tokens


@pytest.mark.parametrize("how", ["head", "tail", "head+tail"])
@pytest.mark.parametrize("columns", [1, 2])
def test_the_parts_that_stay(how: str, columns: int) -> None:
    lengths = list(LENGTHS[:columns])
    room = 25
    cut, heads = cut_texts(lengths, room, how), cut_texts(lengths, room)
    assert cut.examples.tolist() == list(range(300))
    begins = [np.concatenate([[0], np.cumsum(its)[:-1]]) for its in lengths]
    for part, of_head, its, begin in zip(cut.parts, heads.parts, lengths, begins, strict=True):
        assert part.kept.tolist() == of_head.kept.tolist()  # how much stays is the same for all
        places = np.split(part.places(begin), np.cumsum(part.kept)[:-1])
        for row, found in enumerate(places):
            whole = list(range(int(begin[row]), int(begin[row] + its[row])))
            assert found.tolist() == kept_by_hand(whole, int(part.kept[row]), how), row
    lost = np.sum(lengths, axis=0) > np.sum([part.kept for part in cut.parts], axis=0)
    assert cut.truncated.tolist() == lost.tolist()
    assert lost.any()


@pytest.mark.parametrize("columns", [1, 2])
def test_windows_hold_every_token_of_the_longer_text(columns: int) -> None:
    lengths, room = list(LENGTHS[:columns]), 15
    cut = cut_texts(lengths, room, "windows")
    heads = cut_texts(lengths, room)
    assert np.all(np.diff(cut.examples) >= 0)
    for example in range(300):
        rows = np.flatnonzero(cut.examples == example)
        lost = [int(its[example] - part.kept[example]) for its, part in zip(lengths, heads.parts, strict=True)]
        longest = int(np.argmax(lost))
        assert bool(cut.truncated[example]) == any(loss for at, loss in enumerate(lost) if at != longest)
        for column, part in enumerate(cut.parts):
            kept = int(heads.parts[column].kept[example])
            windows = [range(int(part.first[row]), int(part.first[row] + part.kept[row])) for row in rows]
            assert {len(window) for window in windows} == {kept}
            if column == longest:
                assert {token for window in windows for token in window} == set(range(lengths[column][example]))
                needed = -(-lengths[column][example] // kept) if kept else 1
                assert len(rows) == max(1, needed), "more windows than it takes"
            else:
                assert {window.start for window in windows} == {0}


@pytest.mark.parametrize("lengths", [(5, 2), (1, 0)])
def test_no_room_at_all_is_no_endless_row_of_windows(lengths: tuple[int, int]) -> None:
    cut = cut_texts([np.array([length]) for length in lengths], 0, "windows")
    assert (cut.examples.tolist(), cut.truncated.tolist()) == ([0], [True])


@pytest.mark.parametrize("how", TRUNCATIONS)
def test_encoded_texts_are_framed_by_special_tokens(tiny_tokenizer_dir: Path, how: str) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    texts, pairs = ["one two three the a movie film book", "good"], ["bad poor great old new open", "bad"]
    encoded = tokenizer.encode(texts, pairs, max_length=9, truncate=how)
    names = {number: token for token, number in tokenizer.vocab.items()}
    shown = [" ".join(map(names.__getitem__, encoded.input_ids[row])) for row in range(len(encoded.examples))]
    head, tail = "[CLS] one two three [SEP] bad poor great [SEP]", "[CLS] movie film book [SEP] old new open [SEP]"
    windows = [f"[CLS] {part} [SEP] bad poor great [SEP]" for part in ("one two three", "three the a", "movie film book")]
    expected = {"head": [head], "tail": [tail], "head+tail": [tail], "windows": windows}  # a quarter of three tokens is none
    assert shown == [*expected[how], "[CLS] good [SEP] bad [SEP]"]
    assert encoded.examples.tolist() == [0] * len(expected[how]) + [1]


LONG = "one two three good movie bad film old book new story great plot poor actor"


def test_logits_of_windows_are_averaged(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = [f"{LONG},pos", f"{' '.join(LONG.split()[::-1])},neg", "good movie,pos", "bad film,neg"]
    (tmp_path / "my.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    data = ["--train", "my.csv", "--validation", "my.csv", "--truncate", "windows", "--max-length", 8, "--max-steps", 2]
    ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run", "--learning-rate", 0.01)
    assert ran.code == 0, ran.err
    ran = run_bertkit("predict", "run", "--precision", "fp32", stdin=f"{LONG}\n".encode())
    found = json.loads(ran.out)
    run = tmp_path / "run"
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(run).eval(), AutoTokenizer.from_pretrained(run)
    words = LONG.split()
    with torch.no_grad():
        windows = [" ".join(words[start : start + 6]) for start in (0, 4, 9)]
        logits = torch.stack([model(**tokenizer(window, return_tensors="pt")).logits[0] for window in windows]).mean(0)
    best = int(logits.argmax())
    assert found["label"] == model.config.id2label[best]
    assert found["probability"] == pytest.approx(float(logits.softmax(0)[best]), abs=1e-5)


def test_dry_run_shows_what_is_truncated(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(f"text,label\n{LONG},pos\nbad film,neg\n", encoding="utf-8")
    data = ["--train", "my.csv", "--validation", "my.csv", "--max-length", 8, "--dry-run", "-m", tiny_model_dir]
    words = LONG.split()
    for how, lost in (("tail", words[:9]), ("head+tail", words[1:10]), ("windows", [])):
        ran = run_bertkit("finetune", "text-classification", *data, "--truncate", how)
        assert ran.code == 0, ran.err
        assert re.findall("cut by .*: (.*)", ran.err) == [" ".join(lost)] * bool(lost), how


def test_of_a_long_text_the_beginning_of_what_is_truncated_is_shown(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(f"text,label\n{'good ' * 506},pos\nbad film,neg\n", encoding="utf-8")
    data = ["--train", "my.csv", "--validation", "my.csv", "--max-length", 8, "--dry-run", "-m", tiny_model_dir]
    ran = run_bertkit("finetune", "text-classification", *data)
    assert ran.code == 0, ran.err
    (shown,) = re.findall("cut by --max-length: (.*)", ran.err)
    assert shown == f"{'good ' * 120} ... (1899 more characters)", "of 500 words"
