"""Entities of a list among tokens: against a search of every place by a loop, and as what is masked."""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.config import PretrainConfig
from bertkit.corpus.build import CorpusConfig, build_corpus, make_part
from bertkit.corpus.entities import Entities, read_entities
from bertkit.corpus.sampling import CorpusSampler
from bertkit.errors import DataError, UsageError
from bertkit.features import Ragged
from bertkit.text.tokenizer import Tokenizer

SEP, TOKENS, CONTINUES = 0, range(1, 7), np.array([False] * 5 + [True] * 2)  # 5 and 6 go on with a word


def searched(ids: list[int], begins: list[bool], entities: set[tuple[int, ...]]) -> list[bool]:
    """What begins a word, by trying each entity at each place."""
    begins, start = list(begins), 0
    while start < len(ids):
        fitting = [
            len(entity)
            for entity in entities
            if tuple(ids[start : start + len(entity)]) == entity
            and not CONTINUES[ids[start]]
            and not CONTINUES[ids[start + len(entity)]]
        ]
        if fitting:
            length = max(fitting)
            begins[start : start + length + 1] = [True, *[False] * (length - 1), True]
        start += max(fitting, default=1)
    return begins


@given(
    st.lists(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5), min_size=1, max_size=12),
    st.lists(st.lists(st.sampled_from(TOKENS), max_size=25), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_the_longest_from_left_to_right(entities: list[list[int]], segments: list[list[int]], random) -> None:
    ids = [token for segment in segments for token in (*segment, SEP)]
    begins = [random.random() < 0.7 for _ in ids]
    found = np.array(begins)
    Entities.of(Ragged.of(entities), CONTINUES).join(np.array(ids, dtype=np.int32), found)
    assert found.tolist() == searched(ids, begins, {tuple(entity) for entity in entities})


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


@pytest.fixture(scope="module")
def chinese(tiny_chinese_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_chinese_dir)


def words_of(text: str, entities: Entities, tokenizer: Tokenizer) -> list[str]:
    ids = np.append(tokenizer.pieces([text]).values, tokenizer.sep_token_id)
    begins = ~entities.continues[ids]
    entities.join(ids, begins)
    names = {number: token for token, number in tokenizer.vocab.items()}
    bounds = np.flatnonzero(begins).tolist()
    return [" ".join(names[token] for token in ids[start:end]) for start, end in pairwise(bounds)]


def test_entities_of_a_file(
    tokenizer: Tokenizer, chinese: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    english, names = tmp_path / "english.txt", tmp_path / "names.txt"
    english.write_bytes("\ufeffRiver Bank\r\n\r\nthe river\r\nprinter\r\nbook \u2603\r\nthe [SEP]\n".encode())
    entities = read_entities(str(english), tokenizer)
    assert words_of("The river bank is a RIVER  bank, printers", entities, tokenizer) == [
        *("the river", "bank", "is", "a", "river bank", ",", "printer ##s")
    ]
    told = "ignored 2 entities that the tokenizer's vocabulary does not cover (line 5, book \u2603; line 6, the [SEP])"
    assert told in capsys.readouterr().err
    names.write_text("银行\n在银行\n工作\n", encoding="utf-8")
    entities = read_entities(str(names), chinese)
    assert words_of("我在银行工作。", entities, chinese) == ["我", "在 银 行", "工 作", "。"]


@pytest.mark.parametrize(
    ("content", "what", "where"),
    [
        (None, "no such file", ""),
        (b"", "the vocabulary covers no entity", ""),
        ("\u2603\n\n".encode(), "the vocabulary covers no entity", ""),
        (b"the bank\nriver \xff\n", "UTF-8", ":2"),
    ],
)
def test_files_that_are_refused(tokenizer: Tokenizer, tmp_path: Path, content: bytes | None, what: str, where: str) -> None:
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=what) as error:
        read_entities(str(path), tokenizer)
    assert error.value.where == f"{path}{where}"


def test_a_list_and_its_masking_need_each_other() -> None:
    for values in ({"masking": "entities"}, {"entities": "a.txt"}, {"entities": "a.txt", "masking": "whole-word"}):
        with pytest.raises(UsageError, match="must be used together"):
            PretrainConfig.of(values)


def test_entities_are_masked_whole_within_the_share(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rng, words = np.random.default_rng(0), "good,bad,city,river bank,early,bad movie city,unable printing".split(",")
    documents = [[" ".join(rng.choice(words, 40)) for _ in range(6)] for _ in range(200)]
    part = make_part(documents, tokenizer, CorpusConfig(sentences="lines"))
    (tmp_path / "list.txt").write_text("river bank\nbad movie city\nunable printing\n", encoding="utf-8")
    entities = read_entities(str(tmp_path / "list.txt"), tokenizer)
    one, plain = (
        CorpusSampler([part], tokenizer, 256, 128, 1, masking=masking, entities=listed)
        for masking, listed in (("entities", entities), ("whole-word", None))
    )
    features, units = one.features_at(0), one.words(np.arange(256))
    targets = np.concatenate([np.isin(np.arange(len(row)), rows[1:]) for row, rows in zip(units, features.rows, strict=True)])
    inside = np.flatnonzero(units.values == 0)
    assert np.array_equal(targets[inside], targets[inside - 1]), "whole"
    assert np.count_nonzero(units.values) < np.count_nonzero(plain.words(np.arange(256)).values) * 0.95, "entities are found"
    share = targets.mean()
    assert 0.145 < share <= 0.15
    assert abs(targets[inside].mean() - share) < 0.03, "entities are about as likely as other words"
    fate = features.input_ids.values[targets]
    assert abs((fate == tokenizer.mask_token_id).mean() - 0.8) < 0.03


def test_pre_training_with_entities(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    """From the command line: the list is recorded, eval masks by it, and check shows it."""
    rng, words = np.random.default_rng(0), "good bad movie city river bank early late".split()
    lines = [" ".join(rng.choice(words, 12)) for _ in range(300)]
    (tmp_path / "text.txt").write_text("\n".join("\n\n" if n % 10 == 9 else line for n, line in enumerate(lines)), "utf-8")
    (tmp_path / "list.txt").write_text("river bank\nbad movie\n", encoding="utf-8")
    build_corpus([str(tmp_path / "text.txt")], tiny_tokenizer_dir, tmp_path / "corpus", CorpusConfig(held_out=0.2))
    size = ("--num-hidden-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2)
    how = ("--objective", "mlm", "--max-length", 32, "--batch-size", 8, "--precision", "fp32", "--device", "cpu")
    masking = ("--masking", "entities", "--entities", "list.txt")
    command = ("pretrain", "corpus", *size, *how, "--eval-steps", 2, *masking, "-o", "run")
    ran = run_bertkit(*command, "--max-steps", 4)
    assert ran.code == 0, ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["data"]["corpus"]["entities"] == sha256((tmp_path / "list.txt").read_bytes()).hexdigest()
    scores = json.loads(run_bertkit("eval", "run", "--json").out)
    assert scores == pytest.approx(run["best"]["scores"], rel=1e-5)
    (tmp_path / "list.txt").write_text("good\n", encoding="utf-8")  # no more than words
    assert json.loads(run_bertkit("eval", "run", "--json").out) != pytest.approx(scores, rel=1e-5)
    (tmp_path / "list.txt").write_text("river bank\nbad movie\n", encoding="utf-8")
    shown = run_bertkit("check", "corpus", *how[:6], *masking, "--examples", 8)
    assert shown.code == 0, shown.err
    assert "riverbank" in shown.out.replace("[MASK](river)[MASK](bank)", "riverbank")
    assert "no entity of several words" not in ran.err + shown.err
    for absent in ("printing\ngood\n", "bank of the city\n"):  # no more than words; nowhere in the text
        (tmp_path / "list.txt").write_text(absent, encoding="utf-8")
        for told in (
            run_bertkit("check", "corpus", *how[:6], *masking),
            run_bertkit(*command, "--max-steps", 1, "--overwrite"),
        ):
            assert told.code == 0, told.err
            assert "no entity of several words" in " ".join(told.err.split())
    (tmp_path / "list.txt").rename(tmp_path / "lists.txt")
    gone = run_bertkit(*command, "--max-steps", 1, "--overwrite")
    assert gone.code == 3, gone.err
    assert "error: no such file (" in gone.err
    assert "/lists.txt or " in " ".join(gone.err.split())
