"""Several corpora in one run: their shares, the order of their sequences, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bertkit.config import PretrainConfig
from bertkit.corpus import sampling
from bertkit.corpus.build import CorpusConfig, build_corpus, merge_corpora
from bertkit.corpus.corpora import BLOCK, Corpus, open_corpora, short_names
from bertkit.corpus.mixing import Mix
from bertkit.errors import UsageError
from bertkit.features import Features
from bertkit.runs.pretraining.sequences import mix_of, sampler_of
from bertkit.text.tokenizer import Tokenizer

CONFIG = PretrainConfig.of({"batch_size": 16, "max_length": 24, "seed": 7})


@pytest.fixture(scope="module")
def folder(tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpora of different words: own, general with twice as many documents, and short, which some runs read often."""
    folder, rng = tmp_path_factory.mktemp("corpora"), np.random.default_rng(0)
    words = {"own": ("screen printer page order", 60), "general": ("movie story actor book", 120), "short": ("river bank", 4)}
    for name, (own, count) in words.items():
        documents = ["\n".join(" ".join(rng.choice(own.split(), 9)) for _ in range(5)) for _ in range(count)]
        (folder / f"{name}.txt").write_text("\n\n".join(documents), encoding="utf-8")
        build_corpus([str(folder / f"{name}.txt")], tiny_tokenizer_dir, folder / name, CorpusConfig())
    return folder


@pytest.fixture
def mix(folder: Path) -> Callable[..., Mix]:
    def made(*names: str, mark: list[int] | tuple[int, ...] = ()) -> Mix:
        corpora = open_corpora([f"{folder}/{name}" for name in names])
        return mix_of(corpora, Tokenizer.load(corpora[0].folder), CONFIG, 24, mark)

    return made


def ids(features: Features) -> list[list[int]]:
    return [features.input_ids[row].tolist() for row in range(len(features))]


def test_a_corpus_alone_gives_the_sequences_that_its_sampler_gives(mix: Callable[..., Mix], folder: Path) -> None:
    alone = sampler_of(*open_corpora([folder / "own"]), "train", Tokenizer.load(folder / "own"), CONFIG, 24)
    numbers = np.array([3, 0, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
    assert mix("own").sequences(numbers).fingerprint() == alone.sequences(numbers).fingerprint()
    assert mix("own").epoch_length([1]) == alone.epoch_length(1)


def test_each_corpus_has_its_share_of_any_stretch_and_exactly_of_a_block(mix: Callable[..., Mix]) -> None:
    one = mix("own:3", "general:1")
    parts = one.places(np.arange(3 * BLOCK))[0]
    assert np.bincount(parts).tolist() == [3 * 7500, 3 * 2500]
    for begin, length in ((0, 256), (2000, 1000), (BLOCK - 500, 1000), (12345, 4000)):
        found = (parts[begin : begin + length] == 0).sum()
        assert abs(found - 0.75 * length) < 3 * math.sqrt(length * 0.75 * 0.25)
    changes = (np.diff(parts) != 0).mean()  # twice 0.75 * 0.25 where neighbours are independent
    assert abs(changes - 0.375) < 3 * math.sqrt(0.375 * 0.625 / len(parts))
    assert not np.array_equal(parts[:BLOCK], parts[BLOCK : 2 * BLOCK]), "each block has an order of its own"


def test_every_sequence_of_a_corpus_comes_once_and_in_its_order(mix: Callable[..., Mix]) -> None:
    one = mix("own:2", "general", "short:0.001")
    parts, own = one.places(np.arange(2 * BLOCK + 100))
    for part in range(3):
        assert own[parts == part].tolist() == list(range((parts == part).sum()))


def test_what_a_number_stands_for_does_not_depend_on_what_was_asked_before(mix: Callable[..., Mix]) -> None:
    numbers = np.arange(BLOCK - 40, BLOCK + 40)
    whole = ids(mix("own:3", "general:1").sequences(numbers))
    again = mix("own:3", "general:1")
    assert again.lengths(numbers).tolist() == [*map(len, whole)]
    order = np.random.default_rng(1).permutation(len(numbers))
    for chosen in (order[:5], order, order[::-1][:1]):
        found = again.sequences(numbers[chosen])
        assert ids(found) == [whole[place] for place in chosen]
        assert found.examples.tolist() == numbers[chosen].tolist()
    parts = again.places(numbers)[0]
    tokenizer = again.parts[0].tokenizer
    vocabulary = [
        {tokenizer.vocab[word] for word in words.split()} for words in ("screen printer page order", "movie story actor")
    ]
    for part, sequence in zip(parts, whole, strict=True):
        assert set(sequence) & vocabulary[part]
    other = mix("own:3", "general:1")
    assert not np.array_equal(other.places(np.arange(100))[0], Mix(other.parts, (0.5, 0.5)).places(np.arange(100))[0])


def test_masks_are_those_of_the_runs_numbers_not_of_the_corpus(mix: Callable[..., Mix]) -> None:
    """Or the first sequences of all corpora would be masked at the same places."""
    one, numbers = mix("own:3", "general:1"), np.arange(32)
    parts, own = one.places(numbers)
    here = parts == 1
    alone = one.parts[1].sequences(own[here])
    mixed = one.sequences(numbers).take(np.flatnonzero(here))
    rows = [(a.rows[at].tolist(), b.rows[at].tolist()) for a, b in ((alone, mixed),) for at in range(len(alone))]
    assert sum(a != b for a, b in rows) > len(rows) / 2
    assert np.array_equal(alone.num_tokens, mixed.num_tokens)


def test_a_mark_leads_to_the_same_sequences(mix: Callable[..., Mix]) -> None:
    whole = mix("own:3", "general:1", "short")
    expected = {step: whole.sequences(whole.numbers_at(step)).fingerprint() for step in (0, 400, 700, 1300)}
    for step in (400, 700):
        mark = whole.mark_at(int(whole.numbers_at(step)[0]))
        assert len(mark) == 6
        assert max(mark[1::2]) > 0
        resumed = mix("own:3", "general:1", "short", mark=mark)
        assert [part.begin for part in resumed.parts] == [tuple(mark[at : at + 2]) for at in (0, 2, 4)]
        for later in (step, 1300):
            assert resumed.sequences(resumed.numbers_at(later)).fingerprint() == expected[later]


def test_shares_come_from_weights_or_else_from_sizes(folder: Path) -> None:
    def shares(*names: str) -> list[float]:
        return [corpus.share for corpus in open_corpora([f"{folder}/{name}" for name in names])]

    assert shares("own:3", "general:1") == shares("own:0.75", "general:0.25") == [0.75, 0.25]
    assert shares("own:3", "general") == [0.75, 0.25]
    tokens = [corpus.meta["train"]["tokens"] for corpus in open_corpora([folder / "own", folder / "general"])]
    assert shares("own", "general") == [count / sum(tokens) for count in tokens]
    assert shares("own") == shares("own:5") == [1.0]


def test_names_are_short_and_differ(folder: Path, tmp_path: Path) -> None:
    assert [corpus.name for corpus in open_corpora([folder / "own", folder / "general"])] == ["own", "general"]
    (tmp_path / "own:2").symlink_to(folder / "short")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "own").symlink_to(folder / "general")
    assert open_corpora([tmp_path / "own:2"]) == [Corpus("short", tmp_path / "own:2", open_corpora([folder / "short"])[0].meta)]
    assert short_names(["a/x", "b/x", "b/y"]) == ["a/x", "b/x", "y"]
    assert short_names(["x", "a/y", "x", "a/y", "x"]) == ["x", "a/y", "x (2)", "a/y (2)", "x (3)"]
    assert short_names(["./a.txt", "a.txt"]) == ["a.txt", "a.txt (2)"]
    assert short_names(["/data/a/x", "/data/b/x", "x", "hub:me/y"]) == ["a/x", "b/x", "x", "y"], "not all of a path"


def test_what_cannot_be_mixed_is_refused(folder: Path, tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    def refused(*names: str) -> str:
        with pytest.raises(UsageError) as error:
            open_corpora([f"{folder}/{name}" for name in names])
        return str(error.value)

    for weight in ("0", "-1", "nan", "inf", "much", ""):
        assert f"own is {weight!r}" in refused(f"own:{weight}", "general")
    assert "twice" in refused("own:1", "general", "own:2")
    assert f"1.0e-05 of the sequences, less than one of {BLOCK} ({folder}/general)" in refused("own", "general:1e-5")
    assert len(open_corpora([folder / "own", f"{folder}/general:1e-5"], to_train=False)) == 2, "what is scored needs no share"
    other = tmp_path / "tokenizer"
    other.mkdir()
    vocabulary = (make_model_dir() / "vocab.txt").read_text(encoding="utf-8")
    (other / "vocab.txt").write_text(vocabulary + "another\n", encoding="utf-8")
    build_corpus([str(folder / "own.txt")], other, tmp_path / "corpus", CorpusConfig())
    two = [folder / "own", tmp_path / "corpus"]
    for read in (open_corpora, partial(merge_corpora, output_dir=tmp_path / "merged")):
        with pytest.raises(UsageError) as error:
            read(two)
        assert str(error.value) == f"the corpora have different tokenizers: {two[0]} and {two[1]}"


def test_corpora_that_are_read_in_turn_draw_each_window_once(mix: Callable[..., Mix], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, int]] = []
    draw = sampling._draw_window

    def seen(sampler: sampling.CorpusSampler, window: int) -> sampling.Drawn:
        drawn.append((sampler.shards.corpus.name, window))
        return draw(sampler, window)

    monkeypatch.setattr(sampling, "_draw_window", seen)
    one = mix("own", "general", "short:0.01")
    for step in range(40):
        one.lengths(one.numbers_at(step))
    assert len(drawn) == len(set(drawn)) > 3


def test_an_epoch_of_a_mix_is_all_of_its_corpora(mix: Callable[..., Mix], monkeypatch: pytest.MonkeyPatch) -> None:
    both = mix("own:3", "general:1")
    lengths = [part.epoch_length(1) for part in both.parts]
    assert both.epoch_length([1, 1]) == (sum(length for length, _ in lengths), all(exact for _, exact in lengths))
    whole, last = sampling.CorpusSampler.epoch_length, both.parts[1]
    monkeypatch.setattr(
        sampling.CorpusSampler, "epoch_length", lambda part, epochs: (7, False) if part is last else whole(part, epochs)
    )
    assert both.epoch_length([1, 1]) == (lengths[0][0] + 7, False)
