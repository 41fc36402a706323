"""bertkit check: what it shows of a corpus is what the training sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertkit.corpus.build import CorpusConfig, build_corpus, read_meta
from bertkit.corpus.objectives import OBJECTIVES
from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.shard import Shard
from bertkit.text.tokenizer import Tokenizer


@pytest.fixture
def corpus(tiny_tokenizer_dir: Path, tmp_path: Path) -> Path:
    lines = "the good movie plays .\nthe bad river bank .\nan early printing .\none two three .\n\n"
    (tmp_path / "a.txt").write_text("".join(f"{lines}one {'two ' * n}\nthe end .\n\n" for n in range(1, 60)), encoding="utf-8")
    build_corpus([str(tmp_path / "a.txt")], tiny_tokenizer_dir, tmp_path / "corpus", CorpusConfig())
    return tmp_path / "corpus"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_it_shows_the_first_sequences_of_the_training(corpus: Path, run_bertkit, objective: str) -> None:
    ran = run_bertkit(
        "check", corpus, "--max-length", 24, "--seed", 7, "--objective", objective, "--examples", 4, "--batch-size", 9
    )
    assert ran.code == 0, ran.err
    shown = ran.out.splitlines()[1:]
    tokenizer = Tokenizer.load(corpus)
    shards = [Shard.load(corpus / shard["name"]) for shard in read_meta(corpus)["train"]["shards"]]
    features = CorpusSampler(shards, tokenizer, 9, 24, 7, OBJECTIVES[objective]).features_at(0)  # of which four are shown
    names = {number: token for token, number in tokenizer.vocab.items()}
    assert len(shown) == 4
    for at, line in enumerate(shown):
        other = {"mlm+nsp": "not next", "mlm+sop": "previous"}.get(objective)
        head = "" if other is None else f"B is {other if list(features.labels.values())[1][at][0] else 'next    '} "
        assert line.startswith(f"{head}[CLS] ")
        body, _, tail = line.removeprefix(head).rpartition("  (")
        tokens = " ".join(re.sub(r"\((?:[^()]+)\)", "", word) for word in body.split(" "))
        assert tokens.replace("##", "").replace(" ", "") == "".join(
            names[number] for number in features.input_ids[at].tolist()
        ).replace("##", "")
        targets = len(features.labels["mlm"][at]) if objective != "clm" else 0
        assert tail == f"{len(features.input_ids[at])} tokens, {targets} targets)"
    assert "sequences per epoch" in ran.err
    assert ("next" in ran.err.split("sequences per epoch")[1]) == ("+" in objective)


def test_what_becomes_of_a_token_has_its_colour(corpus: Path, run_bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run_bertkit("check", corpus, "--max-length", 24, "--examples", 50).out
    for style in ("1;31", "1;35", "1;32", "36"):  # masked, replaced, kept, segment B
        assert f"\x1b[{style}m" in coloured, style
    assert re.search(r"\x1b\[1;31m\[MASK\]\(\S+\)", coloured)


def test_what_is_no_corpus_is_refused(run_bertkit, tmp_path: Path) -> None:
    ran = run_bertkit("check", tmp_path)
    assert ran.code == 3
    assert f"({tmp_path})" in ran.err
