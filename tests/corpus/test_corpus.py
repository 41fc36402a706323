"""A corpus: its shards against a naive reading of the text; the same bytes however it was built."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_files import put

from bertkit.corpus import build as module
from bertkit.corpus import splits, workers
from bertkit.corpus.build import CorpusConfig, build_corpus, make_part, merge_corpora
from bertkit.corpus.directory import parts_in, read_meta
from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.shard import Shard, Shards
from bertkit.corpus.splits import Decision
from bertkit.corpus.texts import TextOptions
from bertkit.errors import DataError, UsageError
from bertkit.readers.documents import Documents
from bertkit.readers.remote import is_url
from bertkit.readers.text_sources import look_for
from bertkit.text.tokenizer import Tokenizer

WORDS = "the good bad movie city river bank early late printing unable plays one two three".split()


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 2000)


@pytest.fixture
def build(tiny_tokenizer_dir: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A function that builds the corpus tmp_path/NAME from texts there: build("c", "a.txt", min_tokens=9)."""

    def build(name: str, *texts: str, tokenizer: Path = tiny_tokenizer_dir, **options: Any) -> dict[str, Any]:
        reading = TextOptions(encoding=options.pop("encoding", None))
        how = {key: options.pop(key) for key in ("num_processes", "overwrite") if key in options}
        return build_corpus(
            [text if is_url(text) or text == "-" else str(tmp_path / text) for text in texts],
            tokenizer,
            tmp_path / name,
            CorpusConfig(**options),
            reading,
            **how,
        )

    return build


def made_documents(count: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    return [[" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(rng.randint(1, 6))] for _ in range(count)]


def write(path: Path, documents: list[list[str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
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


def sizes_of(session: int) -> list[int]:
    """Bytes of memory of each process of a session that has not ended; what they share is counted for each."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, _, _, its_session, *more = stat.read_text().rpartition(")")[2].split()
            found += [4096 * int(more[17])] if (int(its_session), state != "Z") == (session, True) else []
    return found


# --- parts and shards --------------------------------------------------------------------------------------------------


def test_a_part_by_hand(tokenizer: Tokenizer) -> None:
    documents = [["The bank. A printing river!", "\u200b"], ["one"], ["unable", "two three one two three"]]
    shard = make_part(documents, tokenizer, CorpusConfig(min_tokens=2))
    names = {number: token for token, number in tokenizer.vocab.items()}
    tokens = [names[number] for number in shard.input_ids.tolist()]
    assert " ".join(tokens).replace(" ##", "") == "the bank . a printing river ! unable two three one two three"
    starts = shard.starts_of_words()
    assert starts.tolist() == [not token.startswith("##") for token in tokens]
    assert not starts.all()
    assert np.array_equal(shard.begins_word(np.arange(len(tokens))[::-1]), starts[::-1])
    assert shard.input_ids.dtype == np.uint16
    sentences = ["".join(tokens[a:b]) for a, b in zip(shard.sentences[:-1], shard.sentences[1:])]
    assert [s.replace("##", "") for s in sentences] == ["thebank.", "aprintingriver!", "unable", "twothreeonetwothree"]
    assert shard.documents.tolist() == [0, 2, 4]  # "one" is too short, and the line of no token is no sentence
    assert len(set(shard.hashes.tolist())) == 2
    assert shard.counts() == {"documents": 2, "sentences": 4, "tokens": len(tokens)}


def test_documents_are_taken_in_any_order_and_kept(tokenizer: Tokenizer, tmp_path: Path) -> None:
    documents = made_documents(30, 0)
    order = np.random.default_rng(0).permutation(30)[:17]
    expected = make_part([documents[row] for row in order], tokenizer, CorpusConfig(min_tokens=1))
    taken = make_part(documents, tokenizer, CorpusConfig(min_tokens=1)).take(order)
    taken.save(tmp_path / "shard")
    for one in (taken, Shard.load(tmp_path / "shard")):
        for name, array in vars(expected).items():
            assert np.array_equal(getattr(one, name), array), name
            assert getattr(one, name).dtype == array.dtype


def test_ids_beyond_16_bits(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "vocab_size", 2**16 + 1)
    assert make_part([["the good bank"]], tokenizer, CorpusConfig()).input_ids.dtype == np.int32


def test_a_damaged_shard_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    make_part(made_documents(20, 1), tokenizer, CorpusConfig()).save(tmp_path)
    ids = tmp_path / "input_ids.npy"
    for damage in (lambda: ids.write_bytes(ids.read_bytes()[:-10]), ids.unlink):
        damage()
        with pytest.raises(DataError) as error:
            Shard.load(tmp_path)
        assert error.value.where == str(tmp_path)


@pytest.mark.parametrize(
    ("documents", "tokens", "groups"),
    [  # of each shard; how many shards each group has
        ((5, 5, 5), 10, [1, 1, 1]),
        ((5, 1, 1, 1, 5, 5), 10, [1, 3, 1, 1]),
        ((1, 5, 5), 10, [2, 1]),
        ((5, 5, 1), 10, [1, 2]),
        ((1,), 10, [1]),
        ((1, 1, 1, 1), 2**21, [2, 2]),
    ],
)
def test_shards_of_one_document_are_read_together(documents: tuple, tokens: int, groups: list[int]) -> None:
    listed = [{"name": str(at), "documents": count, "tokens": tokens} for at, count in enumerate(documents)]
    assert [len(group) for group in Shards(Path(), listed).groups] == groups


def test_files_of_one_document_are_joined(build, tokenizer: Tokenizer, tmp_path: Path, monkeypatch) -> None:
    """Alone each would have no other document for a segment that is not next; and each holds five files open."""
    documents = [[*lines, "the end ."] for lines in made_documents(40, 3)]
    for number, lines in enumerate(documents):
        write(tmp_path / "texts" / f"{number:02d}.txt", [lines])
    meta = build("c", "texts", layout="blank-lines")
    assert [shard["documents"] for shard in meta["train"]["shards"]] == [1] * 40
    shards = Shards(tmp_path / "c", meta["train"]["shards"])
    assert len(shards) == 1
    whole = make_part(documents, tokenizer, CorpusConfig())
    for name, array in vars(whole).items():
        assert np.array_equal(getattr(shards[0], name), array), name
    assert 0.3 < CorpusSampler(shards, tokenizer, 200, 32, 1).features_at(0).labels["nsp"].values.mean() < 0.7

    monkeypatch.setattr("bertkit.corpus.shard.OPEN", 2)
    opened: list[str] = []
    monkeypatch.setattr(Shard, "load", classmethod(lambda cls, folder: opened.append(folder.name) or whole))
    lazy = Shards(tmp_path, [{"name": str(at), "documents": 5, "tokens": 10} for at in range(4)])
    assert opened == []
    assert [lazy[at] is whole for at in (0, 1, 1, 2, 0)] == [True] * 5
    assert opened == ["0", "1", "2", "0"], "two at a time are open"


# --- the whole ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "vocabulary"), [("text-en/novels-67.txt.xz", "minilm"), ("text-zh/zh-docs.txt.xz", "tiny_chinese_dir")]
)
def test_a_corpus_of_real_text_is_what_a_plain_reading_gives(
    data_dir: Path, build, tmp_path: Path, name: str, vocabulary: str, request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every document, sentence and token, by transformers' tokenizer and a loop."""
    from transformers import BertTokenizerFast

    monkeypatch.setattr(module, "PART", 10**4)
    folder = request.getfixturevalue(vocabulary)
    (source,) = look_for([str(data_dir / name)]).sources.values()
    documents = [document.lines for _, document in zip(range(80), Documents(source))]
    write(tmp_path / "text.txt", documents)
    meta = build("c", "text.txt", tokenizer=folder, sentences="lines")
    theirs = BertTokenizerFast.from_pretrained(folder)
    expected = [[ids for line in lines if (ids := theirs(line, add_special_tokens=False)["input_ids"])] for lines in documents]
    kept = [sentences for sentences in expected if sum(map(len, sentences)) >= 5]
    unique = list({json.dumps(sentences): sentences for sentences in kept}.values())
    assert documents_in(tmp_path / "c", "train") == unique
    assert meta["documents"] == {"read": 80, "short": 80 - len(kept), "duplicates": len(kept) - len(unique)}
    assert meta["train"]["tokens"] == sum(len(ids) for sentences in unique for ids in sentences)
    assert len(meta["train"]["shards"]) > 1
    assert Tokenizer.load(tmp_path / "c").vocab_hash == meta["tokenizer"]["vocab_hash"]


@pytest.mark.parametrize("text", ["a.txt", "memory://store/a.txt", "file://{}/a.txt"])
def test_a_stopped_build_resumes_to_the_same_bytes(text: str, small_parts, build, tmp_path: Path, monkeypatch, capsys) -> None:
    put(write(tmp_path / "a.txt", made_documents(300, 1)))
    text = text.format(tmp_path)
    build("whole", text, held_out=0.1)
    made: list[str] = []
    write_part = module._write_part

    def stopping(documents: Any, folder: Path) -> None:
        if len(made) == 4 and folder.name not in made:
            folder.with_name(f".unfinished-{folder.name}").mkdir()  # as a kill leaves it
            made.append("stopped")
            raise KeyboardInterrupt
        made.append(folder.name)
        write_part(documents, folder)

    monkeypatch.setattr(module, "_write_part", stopping)
    with pytest.raises(KeyboardInterrupt):
        build("again", text, held_out=0.1)
    with pytest.raises(UsageError) as error:
        read_meta(tmp_path / "again")
    assert error.value.where == str(tmp_path / "again")
    capsys.readouterr()
    build("again", text, held_out=0.1)
    assert "4 parts" in capsys.readouterr().err
    assert content(tmp_path / "again") == content(tmp_path / "whole")
    assert len(made) == len(set(made)) > 8, "no part was made twice"


@pytest.mark.parametrize("large", [False, True])
def test_a_damaged_part_of_an_unfinished_corpus_is_made_again(
    small_parts, build, tmp_path: Path, monkeypatch, capsys, large: bool
) -> None:
    write(tmp_path / "a.txt", made_documents(120, 1))
    build("whole", "a.txt")
    with monkeypatch.context() as patch:
        patch.setattr(module, "decide", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build("again", "a.txt")
    flip(tmp_path / "again" / "building" / "00000-00001" / "counts.json")
    flip(tmp_path / "again" / "building" / "00000-00000" / "input_ids.npy")
    capsys.readouterr()
    if large:
        monkeypatch.setattr("bertkit.manifest.LARGE", 0)  # bytes
    build("again", "a.txt")
    assert capsys.readouterr().err.count("rebuilding a part") == 2
    assert content(tmp_path / "again") == content(tmp_path / "whole")


class Stop(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("own_parts", [True, False])
def test_shards_are_written_without_a_second_copy_and_gone_on_with(
    small_parts, build, tmp_path: Path, monkeypatch, own_parts: bool
) -> None:
    """Stopped before each writing and each deletion of the last pass, in turn; of a build and of a merge."""
    rows = made_documents(120, 1)
    write(tmp_path / "a.txt", [*rows, *rows[:70], ["one"], *rows[90:]])
    build("whole", "a.txt", held_out=0.2)
    before = content(tmp_path / "whole")

    def start() -> None:
        if own_parts:
            build("again", "a.txt", held_out=0.2)
        else:
            merge_corpora([tmp_path / "whole"], tmp_path / "again")

    again = tmp_path / "again"
    starts, left = 0, 1
    done: list[str] = []

    def stopping(name: str) -> None:
        def call(folder: Path, *more: Any) -> None:
            nonlocal left
            if left == 0:
                raise Stop
            left -= 1
            assert (name, str(folder)) not in done, "nothing is done twice"
            done.append((name, str(folder)))
            decided = Decision.read(again / "building") if name == "write_folder" and own_parts else None
            for part in decided.parts if decided else ():
                if part.shards and part.is_done(again):
                    assert not (again / "building" / part.folder).exists(), "a part is deleted before the next is written"
            function(folder, *more)

        function = getattr(splits, name)
        monkeypatch.setattr(splits, name, call)

    for name in ("write_folder", "remove_folder"):
        stopping(name)
    while True:
        starts += 1
        left = 1
        try:
            start()
            break
        except Stop:
            assert content(tmp_path / "whole") == before
    assert starts > 10
    assert content(again) == before


@pytest.mark.parametrize("damage", ["flipped", "deleted", "another"])
def test_a_part_that_is_damaged_while_shards_are_written_is_made_again(
    small_parts, build, tmp_path: Path, monkeypatch, damage: str
) -> None:
    write(tmp_path / "a.txt", made_documents(120, 1))
    build("whole", "a.txt", held_out=0.1)
    write_shards = splits._write_shards

    def damaging(part: Any, *more: Any) -> Any:
        folder = tmp_path / "again" / "building" / part.folder
        if part.folder == "00000-00002":
            if damage == "flipped":
                flip(folder / "input_ids.npy")
            else:
                shutil.rmtree(folder)
            if damage == "another":  # whole, of other text
                shutil.copytree(folder.with_name("00000-00003"), folder)
        return write_shards(part, *more)

    with monkeypatch.context() as patch:
        patch.setattr(splits, "_write_shards", damaging)
        with pytest.raises(DataError) as error:
            build("again", "a.txt", held_out=0.1)
    assert ("damaged" in error.value.what, "repeat the command" in str(error.value.hint)) == (True, True)
    with pytest.raises(UsageError) as unfinished:
        read_meta(tmp_path / "again")
    assert "shards are being written" in unfinished.value.what
    made: list[str] = []
    write_part = module._write_part
    monkeypatch.setattr(
        module, "_write_part", lambda documents, folder: made.append(folder.name) or write_part(documents, folder)
    )
    build("again", "a.txt", held_out=0.1)
    assert made == ["00000-00002"], "no other part"
    assert content(tmp_path / "again") == content(tmp_path / "whole")


def test_of_documents_the_first_of_each_is_kept_whatever_the_parts_and_processes(
    build, tmp_path: Path, tokenizer: Tokenizer, monkeypatch
) -> None:
    """Against a dict of the texts, over several sources; what is held out too."""
    rng = random.Random(0)
    pool = made_documents(150, 8)
    texts = [[rng.choice(pool) for _ in range(80)] for _ in range(4)]
    for number, rows in enumerate(texts):
        write(tmp_path / f"{number}.txt", rows)
    names = [f"{number}.txt" for number in range(4)]
    first = [*{json.dumps(row): row for rows in texts for row in rows}.values()]
    shard = make_part(first, tokenizer, CorpusConfig(min_tokens=1))
    expected: dict[str, list] = {"train": [], "validation": []}
    for begin, end, hashed in zip(shard.documents[:-1], shard.documents[1:], shard.hashes):
        tokens = [shard.input_ids[shard.sentences[s] : shard.sentences[s + 1]].tolist() for s in range(begin, end)]
        expected["validation" if int(hashed) % 10**6 < 250_000 else "train"].append(tokens)
    assert all(len(each) > 20 for each in expected.values())
    found = {}
    for part, processes in ((10**6, 1), (700, 1), (700, 2)):
        monkeypatch.setattr(module, "PART", part)
        name = f"{part}-{processes}"
        meta = build(name, *names, min_tokens=1, held_out=0.25, num_processes=processes)
        assert meta["documents"] == {"read": 320, "short": 0, "duplicates": 320 - len(first)}
        assert {split: documents_in(tmp_path / name, split) for split in expected} == expected
        found[name] = content(tmp_path / name)
    assert found["700-1"] == found["700-2"]
    for half in (names[:2], names[2:]):
        build(half[0][0], *half, min_tokens=1, held_out=0.25)
    merge_corpora([tmp_path / "0", tmp_path / "2"], tmp_path / "merged", num_processes=2)
    assert content(tmp_path / "merged") == found["700-1"]


def flip(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[-2] ^= 1
    path.write_bytes(damaged)


def test_a_corpus_lists_the_sha256_of_its_files_and_notices_damage(small_parts, build, tmp_path: Path) -> None:
    """Of each file, when it is read; one that an older version built, without a manifest, is read as it is."""
    write(tmp_path / "a.txt", made_documents(120, 1))
    meta = build("c", "a.txt")
    listed = json.loads((tmp_path / "c" / "manifest.json").read_text(encoding="utf-8"))
    shards = [tmp_path / "c" / shard["name"] for shard in meta["train"]["shards"]]
    assert {f"{shard.name}/manifest.json" for shard in shards} | {"meta.json", "vocab.txt"} <= set(listed)

    def read() -> None:
        read_meta(tmp_path / "c")
        Shard.load(shards[0])

    for file in ("meta.json", "vocab.txt", f"{shards[0].name}/manifest.json", f"{shards[0].name}/sentences.npy"):
        flip(tmp_path / "c" / file)
        with pytest.raises(DataError) as error:
            read()
        assert Path(file).name in error.value.what
        flip(tmp_path / "c" / file)
    flip(shards[0] / "sentences.npy")
    for path in (tmp_path / "c" / "manifest.json", *(shard / "manifest.json" for shard in shards)):
        path.unlink()
    assert read_meta(tmp_path / "c") == meta
    Shard.load(shards[0])


BUILD_IN_TWO = """
import os, signal, sys
from pathlib import Path
from bertkit.corpus import build, splits

def killed(items, what, total):
    for number, item in enumerate(items):
        if number == 20 and what == "shards, by parts":
            os.kill(os.getpid(), signal.SIGKILL)
        yield item

if __name__ == "__main__":
    build.PART = 2000
    if sys.argv[4] == "among the shards":
        splits.progress.with_bar = killed
    build.build_corpus([sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]), build.CorpusConfig(), num_processes=2)
"""


@pytest.mark.e2e
@pytest.mark.parametrize("where", ["among the parts", "among the shards"])
def test_a_killed_build_of_two_processes_ends_its_workers_and_resumes(
    small_parts, build, tiny_tokenizer_dir: Path, tmp_path: Path, where: str
) -> None:
    write(tmp_path / "a.txt", made_documents(1200, 5))
    (tmp_path / "build.py").write_text(BUILD_IN_TWO, encoding="utf-8")
    command = [sys.executable, *(str(path) for path in (tmp_path / "build.py", tmp_path / "a.txt", tiny_tokenizer_dir))]
    running = subprocess.Popen([*command, str(tmp_path / "killed"), where], start_new_session=True)
    building = tmp_path / "killed" / "building"
    if where == "among the parts":
        while running.poll() is None and not (building / "00000-00001").is_dir():
            time.sleep(0.01)
        running.kill()
    assert running.wait() == -signal.SIGKILL
    assert (building / "plan.json").is_file(), "killed before its end"
    if where == "among the shards":
        assert not (building / "00000-00000").exists()
        assert len([*building.glob("00000-*")]) > 20, "most parts are left"
    deadline = time.monotonic() + 30
    while sizes_of(running.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not sizes_of(running.pid), "workers of a killed build do not stay"
    build("killed", "a.txt", num_processes=2)
    build("whole", "a.txt")
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_corpora_of_single_files_merge_to_that_of_all(small_parts, build, tmp_path: Path) -> None:
    rows = made_documents(260, 2)
    rows = [*rows, *rows[20:50]]  # duplicates within and across files
    for i in range(3):
        write(tmp_path / f"{i}.txt", rows[i * 100 : (i + 1) * 100])
        build(f"c{i}", f"{i}.txt", held_out=0.2)
    meta = build("all", "0.txt", "1.txt", "2.txt", held_out=0.2)
    assert meta["documents"]["duplicates"] >= 30
    merge_corpora([tmp_path / f"c{i}" for i in range(3)], tmp_path / "merged")
    merge_corpora([tmp_path / "c0", tmp_path / "c1"], tmp_path / "two")
    merge_corpora([tmp_path / "two", tmp_path / "c2"], tmp_path / "three")
    assert content(tmp_path / "merged") == content(tmp_path / "three") == content(tmp_path / "all")
    sources = [shard["source"] for shard in meta["train"]["shards"]]
    assert (sources, set(sources)) == (sorted(sources), {0, 1, 2})


def test_an_unfinished_merge_resumes_only_of_the_same_corpora(
    small_parts, build, run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path, monkeypatch
) -> None:
    """Also of corpora of standard input, for a merge reads no text."""
    rows = made_documents(60, 2)
    text = write(tmp_path / "a.txt", rows).read_bytes()
    piped = ("corpus", "build", "-", "--tokenizer", tiny_tokenizer_dir, "--num-processes", 1)
    assert run_bertkit(*piped, "-o", "piped", stdin=text).code == 0
    build("c", "a.txt")
    folders = [tmp_path / "piped", tmp_path / "c"]
    merge_corpora(folders, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(splits, "_write_shards", lambda *_: (_ for _ in ()).throw(Stop))
        for name in ("resumed", "changed"):
            with pytest.raises(Stop):
                merge_corpora(folders, tmp_path / name)
    merge_corpora(folders, tmp_path / "resumed")
    assert content(tmp_path / "resumed") == content(tmp_path / "whole")
    write(tmp_path / "a.txt", rows[1:])
    build("c", "a.txt", overwrite=True)
    with pytest.raises(UsageError) as error:
        merge_corpora(folders, tmp_path / "changed")
    assert f"the corpus {folders[1]} has changed since" in error.value.what


def test_documents_are_held_out_by_their_text_alone(build, tmp_path: Path) -> None:
    rows = made_documents(1500, 3)
    found, hashes = [], []
    for name, order in (("a", rows), ("b", [*rows[::-1], *rows[:200]])):
        write(tmp_path / f"{name}.txt", order)
        hashes.append(build(name, f"{name}.txt", held_out=0.1, min_tokens=1)["hashes"])
        splits = [Counter(json.dumps(d) for d in documents_in(tmp_path / name, split)) for split in ("train", "validation")]
        assert not set(splits[0]) & set(splits[1])
        found.append(splits)
    assert found[0] == found[1]
    write(tmp_path / "c.txt", [[line.replace("good", "poor") for line in lines] for lines in rows])  # as long
    assert hashes[0] == hashes[1] != build("c", "c.txt", min_tokens=1)["hashes"]
    total = sum(found[0][0].values()) + sum(found[0][1].values())
    assert total == len({json.dumps(row) for row in rows})
    assert abs(sum(found[0][1].values()) / total - 0.1) < 0.03


def test_the_layout_is_noted(build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lines.txt").write_text("the good movie\nthe bad movie\n" * 9, encoding="utf-8")
    (tmp_path / "blank.txt").write_text("the good movie\nplays one\n\nthe bad movie plays two\n", encoding="utf-8")
    build("auto", "lines.txt", "blank.txt", min_tokens=1)
    assert capsys.readouterr().err.count("in 1 plain text source") == 2, "of either layout"
    build("lines", "lines.txt", "blank.txt", min_tokens=1, layout="lines")
    assert "plain text source" not in capsys.readouterr().err


def test_half_a_character_is_replaced(build, tmp_path: Path) -> None:
    rows = [{"text": "the good \ud800movie plays one two"}, {"text": "the good \ufffdmovie plays one two"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert build("c", "a.jsonl")["documents"] == {"read": 2, "short": 0, "duplicates": 1}


# --- the folder --------------------------------------------------------------------------------------------------------


def test_what_is_refused_changes_nothing(build, minilm: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", made_documents(40, 4))
    write(tmp_path / "empty.txt", [])
    write(tmp_path / "short.txt", [["one"], ["two"]])
    build("c", "a.txt")
    build("minilm", "a.txt", tokenizer=minilm)
    build("min-9", "a.txt", min_tokens=9)
    write(tmp_path / "other" / "note.txt", [["mine"]])
    write(tmp_path / "c" / "b.txt", [["mine"]])
    c = tmp_path / "c"
    before = content(tmp_path)
    for refused in [
        lambda: build("c", "a.txt"),  # finished
        lambda: build("other", "a.txt", overwrite=True),
        lambda: build("c", "a.txt", tokenizer=c, overwrite=True),  # reads what it would move
        lambda: build("c", "c/b.txt", overwrite=True),
        lambda: merge_corpora([c, c], c, overwrite=True),
        lambda: read_meta(tmp_path / "other"),
        lambda: merge_corpora([c, tmp_path / "minilm"], tmp_path / "merged"),
        lambda: merge_corpora([c, tmp_path / "min-9"], tmp_path / "merged"),
    ]:
        with pytest.raises(UsageError):
            refused()
        assert content(tmp_path) == before
    for text in ("empty.txt", "short.txt"):
        with pytest.raises(DataError):
            build(f"of-{text}", text)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "foreign",
    [
        {"meta.json": '{"title": "my data"}', "notes.txt": "precious"},
        {"building/house.txt": "precious"},
        {"building/plan.json": "[]"},
    ],
)
def test_a_folder_that_is_no_corpus_is_left_alone(build, tmp_path: Path, foreign: dict[str, str], overwrite: bool) -> None:
    write(tmp_path / "a.txt", made_documents(20, 1))
    for name, text in foreign.items():
        write(tmp_path / "mine" / name, [[text]])
    before = content(tmp_path / "mine")
    with pytest.raises(UsageError) as error:
        build("mine", "a.txt", overwrite=overwrite)
    assert error.value.where == str(tmp_path / "mine")
    assert content(tmp_path / "mine") == before


def test_a_corpus_whose_description_is_cut_off_is_moved_aside_only_when_asked(build, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", made_documents(20, 1))
    build("c", "a.txt")
    described = tmp_path / "c" / "meta.json"
    described.write_text(described.read_text()[:20])
    before = content(tmp_path / "c")
    with pytest.raises(DataError):
        build("c", "a.txt")
    assert content(tmp_path / "c") == before
    build("c", "a.txt", overwrite=True)
    assert content(tmp_path / "c.old-1") == before


def test_overwrite_moves_a_corpus_aside_and_nothing_else(build, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", made_documents(20, 1))
    c = tmp_path / "c"
    (c / "building").mkdir(parents=True)  # as a kill right at the start leaves it
    build("c", "a.txt")
    (c / "run").mkdir()
    with pytest.raises(UsageError):
        build("c", "a.txt", overwrite=True)
    (c / "run").rmdir()
    before = content(c)
    build("c", "a.txt", overwrite=True, min_tokens=9)
    assert content(c) != content(tmp_path / "c.old-1") == before
    merge_corpora([tmp_path / "c.old-1"], c, overwrite=True)
    assert content(c) == before
    assert (tmp_path / "c.old-2").is_dir()


@pytest.mark.parametrize("begin", ["", "file://"])
def test_a_corpus_among_its_texts_is_none_of_them(begin: str, build, tmp_path: Path) -> None:
    """Nor is one that was moved aside: its vocab.txt ends as texts do."""
    write(tmp_path / "a.txt", made_documents(20, 1))
    for _ in range(3):
        meta = build("c", f"{begin}{tmp_path}", overwrite=True)
        assert [source["name"] for source in meta["sources"]] == [f"{begin}{tmp_path}/a.txt"]
    assert (tmp_path / "c.old-2" / "vocab.txt").is_file()


@pytest.fixture
def stopped(build, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`build`, which is stopped as by Ctrl-C when all parts are there."""

    def stopped(*names: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(module, "decide", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                build(*names)

    return stopped


def test_an_unfinished_corpus_resumes_only_as_it_began(small_parts, build, stopped, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", made_documents(60, 5))
    write(tmp_path / "b.txt", made_documents(5, 6))
    stopped("c", "a.txt", "b.txt")
    for names, options, said in (
        (["a.txt", "b.txt"], {"min_tokens": 6}, "min_tokens was 5, now 6"),
        (["a.txt"], {}, f"the text was {path}, {tmp_path / 'b.txt'}, now {path}"),
    ):
        with pytest.raises(UsageError) as error:
            build("c", *names, **options)
        assert (said in error.value.what, "repeat its command" in str(error.value.hint)) == (True, True), error.value.what
    with pytest.raises(UsageError) as error:
        read_meta(tmp_path / "c")
    assert ("parts of its text finished so far" in error.value.what, "resumes" in str(error.value.hint)) == (True, True)
    path.write_bytes(path.read_bytes() + b"\n")  # which is other text
    with pytest.raises(UsageError) as error:
        build("c", "a.txt", "b.txt")
    assert (error.value.where, f"the text {path} has changed since" in error.value.what) == (str(tmp_path / "c"), True)
    assert build("c", "a.txt", overwrite=True)["documents"]["read"] == 60


def test_a_build_without_a_finished_part_begins_again_with_any_settings(build, tmp_path: Path) -> None:
    """What the hint of its error says can be done."""
    (tmp_path / "a.txt").write_bytes("the café is late today\n\nthe city is early today\n".encode("latin-1"))
    with pytest.raises(DataError) as error:
        build("c", "a.txt")
    assert "--encoding windows-1252" in str(error.value.hint)
    config = CorpusConfig(min_tokens=3)
    assert not (tmp_path / "c").exists(), "nothing was written"
    found = build("c", "a.txt", encoding="latin-1", min_tokens=3)
    assert (found["documents"]["read"], found["min_tokens"]) == (2, config.min_tokens)


def test_text_that_was_partly_read_from_standard_input_cannot_be_resumed(
    small_parts, build, stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But one that was refused is read from the start again."""
    text = write(tmp_path / "a.txt", made_documents(60, 5)).read_bytes() * 20  # more than is decoded at once

    def piped(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    piped(text)
    stopped("c", "-")
    piped(text)
    with pytest.raises(UsageError, match="a corpus from standard input cannot be resumed"):
        build("c", "-")
    piped(text + b"\xff\n")
    with pytest.raises(DataError):
        build("d", "-", layout="blank-lines")
    assert parts_in(tmp_path / "d" / "building")
    piped(text[: len(text) // 2])
    assert 0 < build("d", "-", layout="blank-lines")["documents"]["read"] < 20 * 60


def test_an_unfinished_corpus_resumes_only_of_the_same_remote_files(small_parts, build, stopped, tmp_path: Path) -> None:
    documents = made_documents(60, 5)
    urls = [put(write(tmp_path / name, documents)) for name in ("a.txt", "b.txt")]
    for _ in range(2):
        stopped("c", *urls)
    put(write(tmp_path / "a.txt", documents[::-1]))  # as large as before
    with pytest.raises(UsageError) as refused:
        build("c", *urls)
    assert f"the text {urls[0]} has changed since" in refused.value.what
    assert build("c", *urls, overwrite=True)["documents"]["read"] == 120


def test_overwrite_does_not_move_a_text_that_a_url_names(build, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", made_documents(20, 1))
    build("c", "a.txt")
    text = write(tmp_path / "c" / "building" / "a.txt", made_documents(20, 1))
    with pytest.raises(UsageError) as error:
        build("c", f"file://{text}", overwrite=True)
    assert "which the command reads" in error.value.what


# --- commands ----------------------------------------------------------------------------------------------------------


def test_the_commands(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", made_documents(80, 6))
    build = ("corpus", "build", "--tokenizer", tiny_tokenizer_dir, "--num-processes", 1, "--validation", "10%")
    for text, name, stdin, code in [
        (path, "c", b"", 0),
        ("-", "piped", path.read_bytes(), 0),
        ("-", "cut", b"\xff", 3),
        ("-", "cut", path.read_bytes(), 0),  # nothing was finished
    ]:
        ran = run_bertkit(*build, text, "-o", name, stdin=stdin)
        assert ran.code == code, ran.err
    assert documents_in(tmp_path / "piped", "train") == documents_in(tmp_path / "c", "train")
    assert run_bertkit("corpus", "merge", "c", "piped", "-o", "both").code == 0
    assert read_meta(tmp_path / "both")["train"]["tokens"] == read_meta(tmp_path / "c")["train"]["tokens"]
    for code, flag, value in [
        (2, "--sentences", "words"),
        (2, "--layout", "x"),
        (2, "--words", "x"),
        (2, "--on-error", "ignore"),
        (2, "--validation", "0.1"),
        (4, "--tokenizer", "./nowhere"),
    ]:
        ran = run_bertkit(*build, path, flag, value, "-o", "x")
        assert (ran.code, value in ran.err) == (code, True)
    ran = run_bertkit("corpus", "merge", "c", "nowhere", "-o", "x")
    assert (ran.code, "(nowhere)" in ran.err) == (2, True)


def test_what_is_not_read_is_told(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    """Files of other kinds, and lines that are not text; what is broken ends a build unless --on-error says otherwise."""
    path = write(tmp_path / "texts" / "a.txt", made_documents(80, 6))
    write(tmp_path / "texts" / "more.tex", made_documents(20, 7))
    (tmp_path / "texts" / "b.pdf").write_bytes(b"%PDF")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:30], b"the \xff movie", *lines[30:]]))
    bare = ("corpus", "build", "texts", "--tokenizer", tiny_tokenizer_dir, "--num-processes", 1)
    ran = run_bertkit(*bare, "-o", "failed")
    assert (ran.code, "a.txt:31)" in ran.err) == (3, True)
    tokens = {}
    for policy in ("skip", "replace"):
        ran = run_bertkit(*bare, "--on-error", policy, "-o", policy)
        assert (ran.code, "warning: " in ran.err) == (0, True)
        told = " ".join(ran.err.split())
        assert all(part in told for part in ("1 row", "a.txt:31)", "b.pdf", "more.tex", "--include"))
        tokens[policy] = read_meta(tmp_path / policy)["train"]["tokens"]
        assert read_meta(tmp_path / policy)["documents"]["read"] == 80
    assert tokens["skip"] < tokens["replace"]
    ran = run_bertkit(*bare, "--on-error", "skip", "--include", ".tex", "-o", "more")
    assert (ran.code, "more.tex" in ran.err, read_meta(tmp_path / "more")["documents"]["read"]) == (0, False, 100)
    train = ("tokenizer", "train", "texts", "--vocab-size", 120)
    assert run_bertkit(*train, "-o", "t").code == 3
    ran = run_bertkit(*train, "--on-error", "skip", "-o", "t")
    assert (ran.code, "a.txt:31)" in ran.err.replace("\n", ""), ran.err.count("warning: ")) == (0, True, 1)
    assert run_bertkit(*train, "--on-error", "x", "-o", "u").code == 2


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("more", "keeps"),
    [
        (("--on-error", "skip"), True),
        pytest.param(("--on-error", "replace"), True, marks=pytest.mark.slow),
        (("--encoding", "latin-1"), False),
        pytest.param(("--min-tokens", "9", "--on-error", "skip"), False, marks=pytest.mark.slow),
    ],
)
def test_a_build_that_ends_at_bad_text_can_be_repeated_with_other_options(
    small_parts, run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path, more: tuple[str, ...], keeps: bool, processes: int
) -> None:
    """Parts that are there are kept if only --on-error changes; with another way to read, all are made again."""
    write(tmp_path / "texts" / "a.txt", made_documents(120, 6))
    path = write(tmp_path / "texts" / "b.txt", made_documents(120, 7))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:-9], b"the \xe9 movie", *lines[-9:]]))
    build = ("corpus", "build", "texts", "--tokenizer", tiny_tokenizer_dir, "--num-processes", processes)
    assert run_bertkit(*build, *more, "-o", "whole").code == 0
    assert run_bertkit(*build, "-o", "c").code == 3
    parts = [*(tmp_path / "c" / "building").glob("0000?-*/input_ids.npy")]
    assert {part.parent.name[:5] for part in parts} >= {"00000"}
    for part in parts:
        os.utime(part, (1, 1))
    kept, decide = [], module.decide

    def decided(*arguments: Any, **options: Any) -> Any:
        kept.extend(map(os.path.getmtime, parts))
        return decide(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "decide", decided)
        ran = run_bertkit(*build, *more, "-o", "c")
    assert (ran.code, "resuming: " in ran.err, "starting again" in ran.err) == (0, keeps, not keeps), ran.err
    assert all((modified == 1) == keeps for modified in kept)
    assert len(kept) == len(parts)
    assert content(tmp_path / "c") == content(tmp_path / "whole")


def test_what_a_refused_build_does_not_allow(small_parts, build, stopped, tmp_path: Path, monkeypatch) -> None:
    """Other text, which a mistyped folder may mean; and other settings once shards are written."""
    write(tmp_path / "a.txt", made_documents(60, 5))
    write(tmp_path / "other.txt", made_documents(60, 6))
    (tmp_path / "b.txt").write_bytes(b"\xff\n")
    with pytest.raises(DataError):
        build("c", "a.txt", "b.txt")
    with pytest.raises(UsageError, match="different settings: the text was"):
        build("c", "other.txt")
    write(tmp_path / "b.txt", made_documents(5, 7))
    assert build("c", "a.txt", "b.txt")["documents"]["read"] == 65, "the same text, corrected"
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_splits", lambda *_, **__: (_ for _ in ()).throw(DataError("a part is damaged")))
        with pytest.raises(DataError):
            build("d", "a.txt")
    with pytest.raises(UsageError, match="min_tokens was 5, now 30"):
        build("d", "a.txt", min_tokens=30)
    assert build("d", "a.txt")["documents"]["read"] == 60


def test_bad_text_does_not_displace_a_finished_corpus(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", made_documents(40, 6))
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    (tmp_path / "mine").mkdir()
    build = ("corpus", "build", "--tokenizer", tiny_tokenizer_dir, "--num-processes", 1, "-o", "c")
    assert run_bertkit(*build, "a.txt").code == 0
    before = content(tmp_path / "c")
    for text, code, more in (("empty.txt", 3, ()), ("bad.txt", 3, ()), ("a.txt", 2, ("--encoding", "latin-99"))):
        ran = run_bertkit(*build, text, "--overwrite", *more)
        assert (ran.code, "moved c.old-1 back to c" in ran.err) == (code, True), ran.err
        assert content(tmp_path / "c") == before
        for folder in ("fresh", "mine"):
            assert run_bertkit(*build[:-1], folder, text, *more).code == code
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "empty.txt", "bad.txt", "c", "mine"}


def test_ctrl_c_while_workers_end_does_not_leave_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    shutdown = workers.ProcessPoolExecutor.shutdown

    def pressed_again(self: Any, *arguments: Any, **more: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        shutdown(self, *arguments, **more)
        ended.append(True)

    monkeypatch.setattr(workers.ProcessPoolExecutor, "shutdown", pressed_again)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have set it to be ignored
    try:
        with workers.worker_processes(2) as call_each:
            assert [*call_each(abs, [(-1,), (2,)])] == [1, 2]
        assert ended == [True]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_rows_that_an_open_quote_swallows_are_a_warning(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    swallowed = "".join(f"where is page {number};mail\n" for number in range(9))
    text = f'text;kind\na good book;mail\n"where is it;mail\n{swallowed}late";mail\n'
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
    ran = run_bertkit("corpus", "build", "rows.csv", "--tokenizer", tiny_tokenizer_dir, "--output-dir", "corpus")
    told = " ".join(ran.err.split())
    assert ran.code == 0, ran.err
    assert told.count("warning: column 'text' has a text of 11 lines that look like rows") == 1


def test_rows_without_text_are_counted(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    rows = ['{"text": "the good movie was a bad book"}', '{"text": ""}', '{"text": null}', '{"text": " \\n"}']
    (tmp_path / "a.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    build = ("corpus", "build", "a.jsonl", "--tokenizer", tiny_tokenizer_dir, "--num-processes", 1)
    ran = run_bertkit(*build, "-o", "c")
    assert (ran.code, "skipped 3 documents whose text is empty or null" in ran.err) == (0, True), ran.err
    assert read_meta(tmp_path / "c")["documents"]["read"] == 1
    ran = run_bertkit("tokenizer", "train", "a.jsonl", "--vocab-size", 120, "-o", "t")
    assert (ran.code, "skipped 3 documents" in ran.err) == (0, True), ran.err


def test_text_that_is_not_utf8_is_read(run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    text = "the caf\u00e9 was a good movie and a bad book\n"
    tokens = set()
    for encoding in ("utf-8", "latin-1", "utf-16"):
        (tmp_path / "a.txt").write_bytes(text.encode(encoding))
        build = ("corpus", "build", "a.txt", "--tokenizer", tiny_tokenizer_dir, "--num-processes", 1, "--encoding", encoding)
        assert run_bertkit(*build, "-o", encoding).code == 0
        tokens.add(read_meta(tmp_path / encoding)["train"]["tokens"])
        train = ("tokenizer", "train", "a.txt", "--vocab-size", 120, "--encoding", encoding)
        assert run_bertkit(*train, "-o", f"t-{encoding}").code == 0
    assert len(tokens) == 1
    ran = run_bertkit(*build[:-1], "nonsense", "-o", "x")
    assert (ran.code, "--encoding is 'nonsense'" in ran.err) == (2, True)


@pytest.mark.e2e
def test_workers_of_a_build_import_no_torch() -> None:
    """Which would be most of their memory, in each of them."""
    program = "import sys, bertkit.corpus.build; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def reviews(rng: random.Random) -> list[list[str]]:
    return [[" ".join(rng.choices(WORDS, k=rng.randint(20, 300)))] for _ in range(500)]


def posts(rng: random.Random) -> list[list[str]]:
    """Of one paragraph and a few sentences."""
    return [[" ".join(line.capitalize() + "." for (line,) in rng.sample(reviews(rng), rng.randint(1, 3)))] for _ in range(20)]


def one_of_30000_words(rng: random.Random) -> list[list[str]]:
    return [["word " * 30_000]]


@pytest.mark.parametrize(
    ("made", "least", "most"),
    [(reviews, 98, 100), (posts, 98, 100), (one_of_30000_words, 100, 100), (lambda _: [[word] for word in WORDS], 0, 94.9)],
)
def test_how_much_of_it_training_reads_is_told(
    run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path, made: Callable[..., list[list[str]]], least: float, most: float
) -> None:
    """At the build, by check and by pretrain; single words are no text to read."""
    write(tmp_path / "a.txt", made(random.Random(0)))
    build = ("corpus", "build", "a.txt", "--tokenizer", tiny_tokenizer_dir, "--num-processes", 1, "--min-tokens", 1)
    small = ("--num-hidden-layers", 1, "--hidden-size", 64, "--max-steps", 1, "--objective", "mlm+sop", "--batch-size", 2)
    for command in (
        (*build, "-o", "c"),
        ("corpus", "merge", "c", "--num-processes", 1, "-o", "d"),
        ("check", "c"),
        ("pretrain", "c", *small, "-o", "run"),
    ):
        ran = run_bertkit(*command)
        told = re.search(r"(?P<warned>warning: )?an epoch of mlm.* reads (?P<share>[\d.]+)%", ran.err)
        if least:
            assert ran.code == 0, ran.err
        if least or told:  # a corpus of which nothing can be read is refused
            assert least <= float(told["share"]) <= most
            assert bool(told["warned"]) == (most < 95)
        else:
            assert command[0] != "corpus"


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
    process = subprocess.Popen([sys.executable, "-m", "bertkit", *command], stderr=subprocess.DEVNULL, start_new_session=True)
    most = 0
    while process.poll() is None:
        most = max(most, sum(sizes_of(process.pid)))
        time.sleep(0.2)
    assert process.returncode == 0
    meta = read_meta(tmp_path / "c")
    assert meta["train"]["tokens"] > 3 * 10**8
    assert meta["documents"]["duplicates"] < meta["documents"]["read"] / 1000
    assert most < 10**9
