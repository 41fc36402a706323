"""bertkit check: what it shows of a corpus is what the training sees."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bertkit.corpus.build import CorpusConfig, build_corpus
from bertkit.corpus.directory import read_meta
from bertkit.corpus.objectives import OBJECTIVES
from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.shard import Shard
from bertkit.errors import plural
from bertkit.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def corpus(tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    lines = "the good movie plays .\nthe bad river bank .\nan early printing .\none two three .\n\n"
    (folder / "a.txt").write_text("".join(f"{lines}one {'two ' * n}\nthe end .\n\n" for n in range(1, 60)), encoding="utf-8")
    build_corpus([str(folder / "a.txt")], tiny_tokenizer_dir, folder / "corpus", CorpusConfig())
    return folder / "corpus"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_first_sequences_of_the_training_are_shown(corpus: Path, run_bertkit, objective: str) -> None:
    own = ("--max-length", 24, "--seed", 7, "--objective", objective, "--examples", 4, "--batch-size", 9)
    ran = run_bertkit("check", corpus, *own)
    assert ran.code == 0, ran.err
    shown = ran.out.splitlines()[1:]
    tokenizer = Tokenizer.load(corpus)
    shards = [Shard.load(corpus / shard["name"]) for shard in read_meta(corpus)["train"]["shards"]]
    features = CorpusSampler(shards, tokenizer, 9, 24, 7, OBJECTIVES[objective]).features_at(0)  # of which four are shown
    names = {number: token for token, number in tokenizer.vocab.items()}
    assert len(shown) == 4
    for sequence, line in enumerate(shown):
        ids = features.input_ids[sequence].tolist()
        other = {"mlm+nsp": "not next", "mlm+sop": "previous"}.get(objective)
        head = "" if other is None else f"B is {other if list(features.labels.values())[1][sequence][0] else 'next    '} "
        assert line.startswith(f"{head}[CLS] ")
        body, _, tail = line.removeprefix(head).rpartition("  (")
        tokens = re.sub(r"\([^()]+\)|##| ", "", body)
        assert tokens == "".join(names[number] for number in ids).replace("##", "")
        targets = len(features.labels["mlm"][sequence]) if objective != "clm" else 0
        assert tail == f"{plural(len(ids), 'token')}, {plural(targets, 'target')})"
    assert ("next" in ran.err.partition("sequences per epoch")[2]) == ("+" in objective)


def test_the_counts_as_json(corpus: Path, run_bertkit) -> None:
    ran = run_bertkit("check", corpus, "--max-length", 24, "--json")
    counts = json.loads(ran.out)
    assert ran.code == 0, ran.err
    assert list(counts)[1] == "mean tokens per sequence"
    assert 4 < counts["mean tokens per sequence"] <= 24


def test_tokens_are_coloured_by_what_happens_to_them(corpus: Path, run_bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run_bertkit("check", corpus, "--max-length", 24, "--examples", 50).out
    for style in ("1;31", "1;35", "1;32", "36"):  # masked, replaced, kept, segment B
        assert f"\x1b[{style}m" in coloured, style
    assert re.search(r"\x1b\[1;31m\[MASK\]\(\S+\)", coloured)


def test_standard_input_is_refused(run_bertkit) -> None:
    ran = run_bertkit("check", "-", stdin=b"text,label\na,b\n")
    assert (ran.code, "standard input (-) can be read only once" in ran.err) == (2, True), ran.err


def test_the_file_of_train_is_checked_like_the_file_itself(run_bertkit, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("text,label\na good film,x\na bad film,y\n", encoding="utf-8")
    by_option, by_name = run_bertkit("check", "--train", tmp_path / "my.csv"), run_bertkit("check", tmp_path / "my.csv")
    assert "x (1), y (1)" in by_name.err
    assert by_option == by_name
