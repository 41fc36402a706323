"""Sentences of words as windows: every word read once, where it has most context, against a naive count of pieces."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from file_contents import read_conll
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertkit.errors import UsageError
from bertkit.features import Features
from bertkit.readers import Examples
from bertkit.tasks import TokenClassification, TokenClassificationTask
from bertkit.tasks.counts import lines_of
from bertkit.tasks.token_classification.features import WordFeatures, encode_words
from bertkit.text.tokenizer import Tokenizer

# Zero-width, control, combining, private and unassigned characters give no piece at all; the others give one or many.
EMPTY = ("\u200b", "\ufeff", "\x00", "\x7f", "\u0301", "\u200d\u200d", "\x85", "\ue000")
ODD = (*EMPTY, "\u4e2d", "\u4e2d\u6587", "e\u0301", "\U0001f600", "a" * 9, "7" * 120, "...", "[SEP]", "[UNK]", "x\u200by", "")
words = st.one_of(
    st.sampled_from(("the", "good", "book", "walking", "ticket", "zzz", *ODD)),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=6),
)
sentences = st.lists(st.one_of(st.lists(words, max_size=5), st.lists(words, min_size=20, max_size=60)), max_size=4)


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


def pieces_of(word: str, tokenizer: Tokenizer, room: int) -> list[int]:
    """A word's pieces, one call for it alone."""
    return (tokenizer.backend.encode(word, add_special_tokens=False).ids or [tokenizer.unk_token_id])[:room]


def check_windows(found: WordFeatures, words_of: list[list[str]], tokenizer: Tokenizer, length: int, *, cls: bool) -> None:
    """All that must hold of windows; each word's place is counted from the words that the windows before it read."""
    features, room = found.features, length - 2
    assert features.input_ids.lengths.max(initial=0) <= length
    assert not features.token_type_ids.values.any()
    assert features.examples.tolist() == sorted(features.examples.tolist())
    assert len(found.words) == len(features) + 1
    at_feature = seen = cut = 0
    for number, sentence in enumerate(words_of):
        split = [pieces_of(word, tokenizer, room) for word in sentence]
        flat = [piece for word in split for piece in word]
        starts = np.cumsum([0, *map(len, split)]).tolist()
        windows = []  # first piece, piece after the last, words read
        done = 0
        while at_feature < len(features) and features.examples[at_feature] == number:
            ids = features.input_ids[at_feature].tolist()
            rows = features.rows[at_feature].tolist()
            assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
            if cls:
                assert rows.pop(0) == 0
            assert rows, "a window that reads nothing"
            assert rows == sorted(rows)
            read = range(done, done + len(rows))
            begin = starts[done] - (rows[0] - 1)
            end = begin + len(ids) - 2
            assert begin in starts, "a word is cut"
            assert end in starts, "a word is cut"
            assert ids[1:-1] == flat[begin:end]
            assert [begin + row - 1 for row in rows] == starts[read.start : read.stop]
            assert (found.words[at_feature], found.words[at_feature + 1]) == (seen + read.start, seen + read.stop)
            assert bool(found.firsts[at_feature]) == (not windows)
            windows.append((begin, end, read))
            done, at_feature = read.stop, at_feature + 1
        assert done == len(sentence), "each word exactly once"
        assert (len(windows) > 1) == (len(flat) > room)
        cut += len(windows) > 1

        def context(begin: int, end: int, piece: int, last: int) -> float:
            left = math.inf if begin == 0 else piece - begin
            right = math.inf if end == last else end - 1 - piece
            return min(left, right) if begin <= piece < end else -1

        for begin, end, read in windows:
            for word in read:
                best = max(context(b, e, starts[word], len(flat)) for b, e, _ in windows)
                assert context(begin, end, starts[word], len(flat)) == best
                if max(map(len, split)) == 1:  # windows overlap by half
                    assert best >= (room - room // 2 - 1) // 2
        seen += len(sentence)
    assert at_feature == len(features)
    assert found.num_cut == cut
    assert found.num_shortened == sum(
        len(tokenizer.backend.encode(word, add_special_tokens=False).ids) > room for sentence in words_of for word in sentence
    )


@settings(max_examples=50)
@given(sentences, st.sampled_from((3, 4, 5, 6, 8, 13, 16, 64)), st.booleans())
@example([[], ["the"], []], 3, True)
@example([["\u200b"] * 9, ["7" * 400]], 5, False)
@example([["the"] * 700, [], ["ticketing", "the"] * 300], 16, True)
@example([["the"] * 33], 16, False)
@example([], 8, True)
def test_every_word_is_read_once_where_it_has_most_context(tokenizer, words_of, length, cls) -> None:
    check_windows(encode_words(words_of, tokenizer, length, read_cls=cls), words_of, tokenizer, length, cls=cls)


def test_windows_by_hand(tokenizer) -> None:
    """Ten words of a piece, four a window: half of each window overlaps the next."""
    found = encode_words([["the"] * 10], tokenizer, 6, read_cls=False)
    assert found.features.input_ids.lengths.tolist() == [6] * 4  # words 0-3, 2-5, 4-7, 6-9
    assert found.words.tolist() == [0, 3, 5, 7, 10]
    assert [row.tolist() for row in map(found.features.rows.__getitem__, range(4))] == [[1, 2, 3], [2, 3], [2, 3], [2, 3, 4]]
    with_cls = encode_words([["the"] * 10], tokenizer, 6, read_cls=True).features.rows
    assert with_cls[3].tolist() == [0, 2, 3, 4]


# --- from words to predictions ---------------------------------------------------------------------------------------------


def examples_of(words_of: list[list[str]], **columns: list) -> Examples:
    return Examples({"tokens": words_of, **columns}, "file", range(1, len(words_of) + 1))


def task_of(*labels: str, intents: tuple[str, ...] = ()) -> TokenClassificationTask:
    return TokenClassificationTask(recipe=TokenClassification(), labels=labels, intents=intents)


def fake_outputs(features: Features, num_classes: int, *, skip: int) -> list[np.ndarray]:
    """Logits that say of each row which it is, counted over all features; a [CLS] row says a number no word has."""
    outputs, count = [], 0
    for feature in range(len(features)):
        logits = np.zeros((len(features.rows[feature]), num_classes), dtype=np.float32)
        logits[:skip, -1] = 99
        for row in range(skip, len(logits)):
            logits[row, count] = 9
            count += 1
        outputs.append(logits)
    return outputs


@settings(max_examples=25)
@given(sentences, st.sampled_from((3, 5, 16, 64)), st.booleans())
@example([["the"] * 300, [], ["good"]], 16, True)
@example([[], []], 16, True)
def test_every_word_has_exactly_one_prediction(tokenizer, words_of, length, intent) -> None:
    total = sum(map(len, words_of))
    labels = (*(f"row{i}" for i in range(total)), "none")
    task = task_of(*labels, intents=("even", "odd") if intent else ())
    examples = examples_of(words_of)
    features, _ = task.encode(examples, tokenizer, max_length=length, labelled=False)
    outputs = {"logits": fake_outputs(features, len(labels), skip=int(intent))}
    firsts = np.r_[True, np.diff(features.examples) != 0][: len(features)]
    outputs["intent"] = [  # only the first window of a sentence tells the truth
        np.eye(2)[[(example + (not first)) % 2]] for example, first in zip(features.examples, firsts, strict=True)
    ]
    if not len(features):
        outputs = {}  # as of a split without a batch
    found = task.decode(outputs, features, examples)
    # Words are read in their order (shown above), so that the n-th row read is the n-th word.
    assert [tag for prediction in found for tag in prediction.value] == list(labels[:-1])
    assert [len(prediction.value) for prediction in found] == list(map(len, words_of))
    assert [len(prediction.probabilities) for prediction in found] == list(map(len, words_of))
    if intent:
        said = [None if not words else ("even", "odd")[at % 2] for at, words in enumerate(words_of)]
        assert [prediction.details["intent"] for prediction in found] == said


@pytest.mark.parametrize("intent", [False, True])
def test_targets_stand_at_their_words(tokenizer, intent) -> None:
    tags = [[f"T{i}" for i in range(70)], [], ["T3", "new", "T5"]]
    task = task_of(*(f"T{i}" for i in range(69, -1, -1)), intents=("a", "b") if intent else ())
    examples = examples_of([["walking"] * 70, [], ["a", "b", "c"]], tags=tags, intent=["b", "b", "other"])
    features, counts = task.encode(examples, tokenizer, max_length=16)
    assert lines_of(counts) == [
        "1 longer than 16 split into overlapping windows",
        "1 without text",
        "1 word with tags not seen in training (new)",
        *(["1 with intents not seen in training (other)"] if intent else []),
    ]
    skip = int(intent)
    targets = [features.labels["labels"][at].tolist() for at in range(len(features))]
    assert [len(row) for row in targets] == features.rows.lengths.tolist()
    assert all(row[:skip] == [-100] * skip for row in targets)
    flat = [target for row in targets for target in row[skip:]]
    assert flat == [*range(69, -1, -1), 66, -100, 64]
    if intent:
        values = features.labels["intent"].values.tolist()
        assert values == [1, *[-100] * (len(features) - 2), -100]  # told at the first window alone; "other" is no class


def test_what_is_shortened_is_said(tokenizer) -> None:
    task = task_of("a", "b")
    examples = examples_of([["z" * 30, "the"], ["the"]])
    features, counts = task.encode(examples, tokenizer, max_length=8, labelled=False)
    windows = "1 longer than 8 split into overlapping windows"
    assert lines_of(counts) == ["3 words", windows, "1 word of more than 6 pieces shortened"]
    assert features.input_ids.lengths.max() == 8
    assert lines_of(task.encode(examples.select([1]), tokenizer, max_length=8, labelled=False).counts) == ["1 word"]
    with pytest.raises(UsageError):
        task.encode(examples, tokenizer, max_length=2)


# --- transformers as the oracle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("bert-base-cased", "CoNLL2003/valid.txt.gz"),
        ("bert-base-uncased", "UD_English-EWT/en_ewt-ud-dev.conllu.gz"),
        ("bert-base-chinese", "ResumeNER/dev.char.bmes"),
        ("bert-base-multilingual-cased", "WeiboNER/weiboNER_2nd_conll.dev"),
    ],
)
def test_pieces_are_those_of_transformers(data_dir: Path, tmp_path: Path, name: str, file: str) -> None:
    import transformers

    for path in (data_dir.parent / "vocab" / name).iterdir():
        content = path.read_bytes()
        (tmp_path / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(content) if path.suffix == ".gz" else content)
    theirs = transformers.BertTokenizerFast.from_pretrained(tmp_path, do_lower_case="uncased" in name)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": "uncased" in name}), encoding="utf-8")
    ours = Tokenizer.load(tmp_path)
    words_of = read_conll(data_dir / file).columns["tokens"][:400]
    encoded = theirs(words_of, is_split_into_words=True, truncation=False)
    found = encode_words(words_of, ours, 512, read_cls=False)
    compared = 0
    for at, words in enumerate(words_of):
        ids, of = encoded["input_ids"][at], encoded.word_ids(at)
        if len(ids) > 512 or set(of) - {None} != set(range(len(words))):
            continue  # cut, or with words that give nothing there
        feature = int(np.flatnonzero(found.features.examples == at)[0])
        assert found.features.input_ids[feature].tolist() == ids
        assert found.features.rows[feature].tolist() == [of.index(word) for word in range(len(words))]
        compared += 1
    assert compared > 0.9 * len(words_of)
    assert sum(map(len, words_of)) < len(found.features.input_ids.values) - 2 * len(words_of) or "chinese" in name
