"""A corpus: what its shards hold against a plain reading of the text; the same bytes however it was built."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertkit.corpus import build as module
from bertkit.corpus.build import CorpusConfig, build_corpus, make_part, merge_corpora, read_meta
from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.shard import Shard, Shards
from bertkit.errors import DataError, UsageError
from bertkit.readers.documents import Documents, find_sources
from bertkit.text.tokenizer import Tokenizer

WORDS = "the good bad movie city river bank early late printing unable plays one two three".split()


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 2000)


def made_documents(count: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    return [[" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(rng.randint(1, 6))] for _ in range(count)]


def write(path: Path, documents: list[list[str]]) -> Path:
    path.write_text("\n\n".join("\n".join(lines) for lines in documents) + "\n", encoding="utf-8")
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def documents_in(corpus: Path, split: str) -> list[list[list[int]]]:
    """The tokens of each sentence of each document, by the offsets alone."""
    found = []
    for listed in read_meta(corpus)[split]["shards"]:
        shard = Shard.load(corpus / listed["name"])
        for first, last in zip(shard.documents[:-1], shard.documents[1:]):
            found.append([shard.input_ids[shard.sentences[s] : shard.sentences[s + 1]].tolist() for s in range(first, last)])
    return found


# --- parts and shards --------------------------------------------------------------------------------------------------


def test_a_part_by_hand(tokenizer: Tokenizer) -> None:
    documents = [["The bank. A printing river!", "\u200b"], ["one"], ["unable", "two three one two three"]]
    shard = make_part(documents, tokenizer, CorpusConfig(min_tokens=2))
    names = {number: token for token, number in tokenizer.vocab.items()}
    tokens = [names[number] for number in shard.input_ids.tolist()]
    assert " ".join(tokens).replace(" ##", "") == "the bank . a printing river ! unable two three one two three"
    starts = shard.starts_of_words().tolist()
    assert starts == [not token.startswith("##") for token in tokens]
    assert not all(starts)
    assert shard.input_ids.dtype == np.uint16
    sentences = ["".join(tokens[a:b]) for a, b in zip(shard.sentences[:-1], shard.sentences[1:])]
    assert [s.replace("##", "") for s in sentences] == ["thebank.", "aprintingriver!", "unable", "twothreeonetwothree"]
    assert shard.documents.tolist() == [0, 2, 4]  # "one" is too short, and the line of no token is no sentence
    assert len(set(shard.hashes.tolist())) == 2
    assert shard.counts() == {"documents": 2, "sentences": 4, "tokens": len(tokens)}


def test_documents_are_taken_in_any_order_and_kept(tokenizer: Tokenizer, tmp_path: Path) -> None:
    documents = made_documents(30, 0)
    shard = make_part(documents, tokenizer, CorpusConfig(min_tokens=1))
    order = np.random.default_rng(0).permutation(30)[:17]
    expected = make_part([documents[row] for row in order], tokenizer, CorpusConfig(min_tokens=1))
    taken = shard.take(order)
    taken.save(tmp_path / "shard")
    for one in (taken, Shard.load(tmp_path / "shard")):
        for name, array in vars(expected).items():
            assert np.array_equal(getattr(one, name), array), name
            assert getattr(one, name).dtype == array.dtype


def test_numbers_beyond_16_bits(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "vocab_size", 2**16 + 1)
    assert make_part([["the good bank"]], tokenizer, CorpusConfig()).input_ids.dtype == np.int32


# --- the whole ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "vocabulary"), [("text-en/novels-67.txt.xz", "minilm"), ("text-zh/zh-docs.txt.xz", "chinese")]
)
def test_a_corpus_of_real_text_is_what_a_plain_reading_gives(
    data_dir: Path,
    minilm: Path,
    tiny_chinese_dir: Path,
    tmp_path: Path,
    name: str,
    vocabulary: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every document, sentence and token, by transformers' tokenizer and a loop."""
    from transformers import BertTokenizerFast

    monkeypatch.setattr(module, "PART", 10**4)
    folder = {"minilm": minilm, "chinese": tiny_chinese_dir}[vocabulary]
    (source,) = find_sources([str(data_dir / name)])
    documents = [document.lines for _, document in zip(range(150), Documents(source))]
    path = write(tmp_path / "text.txt", documents)
    meta = build_corpus([str(path)], folder, tmp_path / "corpus", CorpusConfig(sentences="lines"))
    theirs = BertTokenizerFast.from_pretrained(folder)
    expected = [[ids for line in lines if (ids := theirs(line, add_special_tokens=False)["input_ids"])] for lines in documents]
    kept = [sentences for sentences in expected if sum(map(len, sentences)) >= 5]
    unique = list({json.dumps(sentences): sentences for sentences in kept}.values())
    assert documents_in(tmp_path / "corpus", "train") == unique
    assert meta["documents"] == {"read": 150, "short": 150 - len(kept), "duplicates": len(kept) - len(unique)}
    assert meta["train"]["tokens"] == sum(len(ids) for sentences in unique for ids in sentences)
    assert len(meta["train"]["shards"]) > 1
    assert Tokenizer.load(tmp_path / "corpus").vocab_hash == meta["tokenizer"]["vocab_hash"]


def test_neither_processes_nor_a_kill_change_a_byte(
    small_parts: None, tiny_tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.txt", made_documents(300, 1))
    config = CorpusConfig(held_out=0.1)
    arguments = [str(path)], tiny_tokenizer_dir
    build_corpus(*arguments, tmp_path / "one", config)
    build_corpus(*arguments, tmp_path / "two", config, num_processes=2)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    made: list[str] = []
    write_part = module._write_part

    def stopping(documents: Any, folder: Path) -> None:
        if len(made) == 4 and folder.name not in made:
            (folder.with_name(f"{folder.name}.1.unfinished")).mkdir()  # as a kill leaves it
            made.append("stopped")
            raise KeyboardInterrupt
        made.append(folder.name)
        write_part(documents, folder)

    monkeypatch.setattr(module, "_write_part", stopping)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(*arguments, tmp_path / "again", config)
    with pytest.raises(UsageError):
        read_meta(tmp_path / "again")
    build_corpus(*arguments, tmp_path / "again", config)
    assert content(tmp_path / "again") == content(tmp_path / "one")
    assert len(made) == len(set(made)) > 8, "no part was made twice"


def test_a_killed_build_ends_its_workers_and_resumes(tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    """A real kill of a build in two processes, whose parts are small."""
    path = write(tmp_path / "a.txt", made_documents(3000, 5))
    program = (
        "import sys; from pathlib import Path; from bertkit.corpus import build; build.PART = 2000;"
        "build.build_corpus([sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]), build.CorpusConfig(), num_processes=2)"
    )
    guarded = tmp_path / "build.py"
    guarded.write_text(f"if __name__ == '__main__':\n    {program}\n", encoding="utf-8")
    command = [sys.executable, str(guarded), str(path), str(tiny_tokenizer_dir), str(tmp_path / "killed")]
    running = subprocess.Popen(command, start_new_session=True)
    building = tmp_path / "killed" / "building"
    while running.poll() is None and not (building / "00000-00001").is_dir():
        time.sleep(0.01)
    running.kill()
    running.wait()
    assert (building / "plan.json").is_file(), "killed before its end"
    assert subprocess.run(command, check=False, timeout=120).returncode == 0
    assert subprocess.run([*command[:-1], str(tmp_path / "whole")], check=False, timeout=120).returncode == 0
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (left := _processes_of(running.pid)):
        time.sleep(0.1)
    assert not left, "workers of a killed build do not stay"


def _processes_of(session: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def test_what_is_read_is_not_overwritten(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", made_documents(20, 1))
    assert run_bertkit("corpus", "build", "a.txt", "-t", tiny_tokenizer_dir, "-o", "one").code == 0
    before = content(tmp_path / "one")
    write(tmp_path / "one" / "b.txt", made_documents(20, 2))
    for command in (
        ("merge", "one", "one"),
        ("build", "a.txt", "-t", "one"),
        ("build", "one/b.txt", "-t", tiny_tokenizer_dir),
    ):
        ran = run_bertkit("corpus", *command, "-o", "one", "--overwrite")
        assert ran.code == 2, command
    (tmp_path / "one" / "b.txt").unlink()
    assert content(tmp_path / "one") == before


@pytest.mark.parametrize(
    "foreign",
    [
        {"meta.json": '{"title": "my data"}', "notes.txt": "precious"},
        {"building/house.txt": "precious"},
        {"building/plan.json": "[]"},
    ],
)
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_what_is_no_corpus_is_not_deleted(
    run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path, foreign: dict[str, str], overwrite: tuple[str, ...]
) -> None:
    write(tmp_path / "a.txt", made_documents(20, 1))
    for name, text in foreign.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text, encoding="utf-8")
    before = content(tmp_path / "mine")
    ran = run_bertkit("corpus", "build", "a.txt", "-t", tiny_tokenizer_dir, "-o", "mine", *overwrite)
    assert (ran.code, "(mine)" in ran.err) == (2, True), ran.err
    assert content(tmp_path / "mine") == before


def test_overwrite_moves_a_corpus_aside_and_nothing_else(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", made_documents(20, 1))
    build = ("corpus", "build", "a.txt", "-t", tiny_tokenizer_dir, "-o", "c", "--overwrite")
    (tmp_path / "c" / "building").mkdir(parents=True)  # as a kill right at the begin leaves it
    assert run_bertkit(*build[:-1]).code == 0
    (tmp_path / "c" / "run").mkdir()
    ran = run_bertkit(*build)
    assert (ran.code, (tmp_path / "c" / "run").is_dir()) == (2, True), ran.err
    (tmp_path / "c" / "run").rmdir()
    before = content(tmp_path / "c")
    assert run_bertkit(*build, "--min-tokens", 9).code == 0
    assert content(tmp_path / "c") != content(tmp_path / "c.old-1") == before
    assert run_bertkit("corpus", "merge", "c.old-1", "-o", "c", "--overwrite").code == 0
    assert content(tmp_path / "c") == content(tmp_path / "c.old-1")
    assert (tmp_path / "c.old-2").is_dir()


def test_a_corpus_among_its_texts_is_none_of_them(tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    """Nor is one that was moved aside: its vocab.txt ends as texts do."""
    write(tmp_path / "a.txt", made_documents(20, 1))
    for _ in range(3):
        meta = build_corpus([str(tmp_path)], tiny_tokenizer_dir, tmp_path / "c", CorpusConfig(), overwrite=True)
        assert [source["name"] for source in meta["sources"]] == [str(tmp_path / "a.txt")]
    assert (tmp_path / "c.old-2" / "vocab.txt").is_file()


def test_a_corpus_without_documents_is_no_corpus(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    assert run_bertkit("corpus", "build", "a.txt", "-t", tiny_tokenizer_dir, "-o", "c").code == 3


def test_a_damaged_shard_is_named(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", made_documents(20, 1))
    assert run_bertkit("corpus", "build", "a.txt", "-t", tiny_tokenizer_dir, "-o", "c").code == 0
    ids = tmp_path / "c" / "train-00000" / "input_ids.npy"
    ids.write_bytes(ids.read_bytes()[:-10])
    for damage in (lambda: None, ids.unlink):
        damage()
        ran = run_bertkit("check", "c")
        assert (ran.code, "(c/train-00000)" in ran.err) == (3, True)


def test_the_layout_is_noted(run_bertkit, tiny_tokenizer_dir: Path) -> None:
    Path("lines.txt").write_text("the good movie\nthe bad movie\n" * 9, encoding="utf-8")
    Path("blank.txt").write_text("the good movie\nplays one\n\nthe bad movie plays two\n", encoding="utf-8")
    build = ("corpus", "build", "lines.txt", "blank.txt", "-t", tiny_tokenizer_dir, "-o", "c", "--overwrite", "--min-tokens", 1)
    ran = run_bertkit(*build)
    assert ran.code == 0, ran.err
    assert ran.err.count("in 1 plain text source") == 2, "of either layout"
    assert "plain text source" not in run_bertkit(*build, "--layout", "lines").err


def test_half_a_character_is_replaced(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    rows = [{"text": "the good \ud800movie plays one two"}, {"text": "the bad movie plays one two"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert run_bertkit("corpus", "build", "a.jsonl", "-t", tiny_tokenizer_dir, "-o", "c").code == 0
    tokens = {number: token for token, number in Tokenizer.load(tmp_path / "c").vocab.items()}
    first, _ = documents_in(tmp_path / "c", "train")
    assert " ".join(tokens[number] for number in first[0]) == "the good movie play ##s one two"


def test_files_of_one_document_are_read_together(tiny_tokenizer_dir: Path, tmp_path: Path, monkeypatch) -> None:
    """Alone each would have no other document for a segment that is not next; and each holds five files open."""
    documents = made_documents(40, 3)
    for number, lines in enumerate(documents):
        write(tmp_path / f"{number:02d}.txt", [[*lines, "the end ."]])
    meta = build_corpus([str(tmp_path)], tiny_tokenizer_dir, tmp_path / "c", CorpusConfig(layout="blank-lines"))
    assert [shard["documents"] for shard in meta["train"]["shards"]] == [1] * 40
    shards = Shards(tmp_path / "c", meta["train"]["shards"])
    assert len(shards) == 1
    whole = make_part([[*lines, "the end ."] for lines in documents], Tokenizer.load(tmp_path / "c"), CorpusConfig())
    for name, array in vars(whole).items():
        assert np.array_equal(getattr(shards[0], name), array), name
    sampler = CorpusSampler(shards, Tokenizer.load(tmp_path / "c"), 200, 32, 1)
    assert 0.3 < sampler.features_at(0).labels["nsp"].values.mean() < 0.7

    def grouped(*counts: int, tokens: int = 10) -> list[int]:
        listed = [{"name": str(at), "documents": count, "tokens": tokens} for at, count in enumerate(counts)]
        return [len(group) for group in Shards(tmp_path, listed).groups]

    assert grouped(5, 5, 5) == [1, 1, 1]
    assert grouped(5, 1, 1, 1, 5, 5) == [1, 3, 1, 1]
    assert grouped(1, 5, 5) == [2, 1]
    assert grouped(5, 5, 1) == [1, 2]
    assert grouped(1) == [1]
    assert grouped(1, 1, 1, 1, tokens=2**21) == [2, 2]
    monkeypatch.setattr("bertkit.corpus.shard.OPEN", 2)
    opened: list[str] = []
    monkeypatch.setattr(Shard, "load", classmethod(lambda cls, folder: opened.append(folder.name) or whole))
    lazy = Shards(tmp_path, [{"name": str(at), "documents": 5, "tokens": 10} for at in range(4)])
    assert opened == []
    assert [lazy[at] is whole for at in (0, 1, 1, 2, 0)] == [True] * 5
    assert opened == ["0", "1", "2", "0"], "two at a time are open"


def test_corpora_of_single_files_merge_to_that_of_all(small_parts: None, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    rows = made_documents(260, 2)
    rows = [*rows, *rows[20:50]]  # duplicates within and across files
    paths = [str(write(tmp_path / f"{i}.txt", rows[i * 100 : (i + 1) * 100])) for i in range(3)]
    config = CorpusConfig(held_out=0.2)
    meta = build_corpus(paths, tiny_tokenizer_dir, tmp_path / "all", config)
    assert meta["documents"]["duplicates"] >= 30
    for i, path in enumerate(paths):
        build_corpus([path], tiny_tokenizer_dir, tmp_path / f"c{i}", config)
    merge_corpora([tmp_path / f"c{i}" for i in range(3)], tmp_path / "merged")
    assert content(tmp_path / "merged") == content(tmp_path / "all")
    # and merging what was merged
    merge_corpora([tmp_path / "c0", tmp_path / "c1"], tmp_path / "two")
    merge_corpora([tmp_path / "two", tmp_path / "c2"], tmp_path / "three")
    assert content(tmp_path / "three") == content(tmp_path / "all")
    sources = [shard["source"] for shard in meta["train"]["shards"]]
    assert sources == sorted(sources)
    assert set(sources) == {0, 1, 2}


def test_documents_are_held_out_by_their_text_alone(tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    rows = made_documents(1500, 3)
    config = CorpusConfig(held_out=0.1, min_tokens=1)
    found = []
    for name, order in (("a", rows), ("b", [*rows[::-1], *rows[:200]])):
        build_corpus([str(write(tmp_path / f"{name}.txt", order))], tiny_tokenizer_dir, tmp_path / name, config)
        splits = [Counter(json.dumps(d) for d in documents_in(tmp_path / name, split)) for split in ("train", "validation")]
        assert not set(splits[0]) & set(splits[1])
        found.append(splits)
    assert found[0] == found[1]
    total = sum(found[0][0].values()) + sum(found[0][1].values())
    assert total == len({json.dumps(row) for row in rows})
    assert abs(sum(found[0][1].values()) / total - 0.1) < 0.03


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_what_is_refused(small_parts: None, tiny_tokenizer_dir: Path, minilm: Path, tmp_path: Path) -> None:
    path, config = str(write(tmp_path / "a.txt", made_documents(40, 4))), CorpusConfig()
    corpus, other = tmp_path / "corpus", tmp_path / "other"
    build_corpus([path], tiny_tokenizer_dir, corpus, config)
    build_corpus([path], minilm, tmp_path / "minilm", config)
    build_corpus([path], tiny_tokenizer_dir, tmp_path / "min-9", CorpusConfig(min_tokens=9))
    write(tmp_path / "empty.txt", [])
    other.mkdir()
    write(other / "note.txt", [["mine"]])
    before = content(tmp_path)
    for refused, call in [
        (UsageError, lambda: build_corpus([path], tiny_tokenizer_dir, corpus, config)),
        (UsageError, lambda: build_corpus([path], tiny_tokenizer_dir, other, config, overwrite=True)),
        (UsageError, lambda: read_meta(other)),
        (UsageError, lambda: merge_corpora([corpus, tmp_path / "minilm"], tmp_path / "merged")),
        (UsageError, lambda: merge_corpora([corpus, tmp_path / "min-9"], tmp_path / "merged")),
    ]:
        with pytest.raises(refused):
            call()
        assert content(tmp_path) == before
    with pytest.raises(DataError):
        build_corpus([str(tmp_path / "empty.txt")], tiny_tokenizer_dir, tmp_path / "none", config)
    build_corpus([path], tiny_tokenizer_dir, corpus, CorpusConfig(min_tokens=9), overwrite=True)
    assert content(corpus) == content(tmp_path / "min-9")


def test_an_unfinished_corpus_resumes_only_as_it_began(small_parts: None, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", made_documents(60, 5))
    path.write_bytes(path.read_bytes() + b"\xff\n")  # the build ends with an error
    with pytest.raises(DataError):
        build_corpus([str(path)], tiny_tokenizer_dir, tmp_path / "corpus", CorpusConfig())
    with pytest.raises(UsageError):
        build_corpus([str(path)], tiny_tokenizer_dir, tmp_path / "corpus", CorpusConfig(min_tokens=6))
    path.write_bytes(path.read_bytes()[:-2])  # which is other text
    with pytest.raises(UsageError):
        build_corpus([str(path)], tiny_tokenizer_dir, tmp_path / "corpus", CorpusConfig())
    meta = build_corpus([str(path)], tiny_tokenizer_dir, tmp_path / "corpus", CorpusConfig(), overwrite=True)
    assert meta["documents"]["read"] == 60


# --- commands ----------------------------------------------------------------------------------------------------------


def test_the_commands(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", made_documents(80, 6))
    options = ("--tokenizer", tiny_tokenizer_dir, "--num-processes", 1, "--validation", "10%")
    ran = run_bertkit("corpus", "build", path, *options, "-o", "c")
    assert ran.code == 0, ran.err
    assert "80 documents read" in ran.err
    ran = run_bertkit("corpus", "build", "-", *options, "-o", "piped", stdin=path.read_bytes())
    assert ran.code == 0, ran.err
    assert documents_in(tmp_path / "piped", "train") == documents_in(tmp_path / "c", "train")
    ran = run_bertkit("corpus", "merge", "c", "piped", "-o", "both")
    assert ran.code == 0, ran.err
    assert read_meta(tmp_path / "both")["train"]["tokens"] == read_meta(tmp_path / "c")["train"]["tokens"]
    for code, flag, value in [
        (2, "--sentences", "words"),
        (2, "--layout", "x"),
        (2, "--words", "x"),
        (2, "--validation", "0.1"),
        (4, "--tokenizer", "./nowhere"),
    ]:
        ran = run_bertkit("corpus", "build", path, *options, flag, value, "-o", "x")
        assert (ran.code, value in ran.err) == (code, True)
    ran = run_bertkit("corpus", "merge", "c", "nowhere", "-o", "x")
    assert (ran.code, "(nowhere)" in ran.err) == (2, True)


def resident(root: int) -> int:
    """Bytes of memory that a process and its descendants hold now; what they share is counted for each."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":" in line)
        except OSError:  # it has ended
            continue
        parents[int(fields["Pid"])] = int(fields["PPid"])
        sizes[int(fields["Pid"])] = 1024 * int(fields.get("VmRSS", "0 kB").split()[0])
    held = {root}
    while more := {pid for pid, parent in parents.items() if parent in held} - held:
        held |= more
    return sum(sizes.get(pid, 0) for pid in held)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="no /proc")
def test_two_gigabytes_of_text_in_less_than_one_of_memory(tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sentences = np.array([" ".join(rng.choice(WORDS, rng.integers(4, 20))) + " .\n" for _ in range(5000)], dtype=object)
    text = tmp_path / "text.txt"
    with text.open("w", encoding="utf-8") as file:
        while file.tell() < 2 * 10**9:  # documents of ten sentences, none like another
            file.write("\n".join("".join(sentences[rows]) for rows in rng.integers(0, len(sentences), (20_000, 10))))
    command = ["corpus", "build", str(text), "-t", str(tiny_tokenizer_dir), "-o", str(tmp_path / "c"), "--num-processes", "2"]
    process = subprocess.Popen([sys.executable, "-m", "bertkit", *command], stderr=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        most = max(most, resident(process.pid))
        time.sleep(0.2)
    assert process.returncode == 0
    meta = read_meta(tmp_path / "c")
    assert meta["train"]["tokens"] > 3 * 10**8
    assert meta["documents"]["duplicates"] < meta["documents"]["read"] / 1000
    assert most < 10**9
