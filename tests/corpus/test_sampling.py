"""The sequences of pre-training steps: each matches its shard and occurs once per epoch, and (seed, step) alone decides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bertkit.config import MASKINGS
from bertkit.corpus import sampling as module
from bertkit.corpus.build import CorpusConfig, make_part
from bertkit.corpus.entities import Entities
from bertkit.corpus.objectives import OBJECTIVES
from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.shard import Shard
from bertkit.corpus.words import in_vocabulary
from bertkit.errors import DataError
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import collate

WORDS = "the good bad movie city river bank early late printing unable plays one two three printable".split()


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


@pytest.fixture(scope="module")
def shards(tokenizer: Tokenizer) -> list[Shard]:
    """Five shards of different sizes."""
    rng = np.random.default_rng(0)

    def document() -> list[str]:
        return [" ".join(rng.choice(WORDS, rng.integers(3, 12))) + " ." for _ in range(rng.integers(2, 9))]

    documents = [[document() for _ in range(count)] for count in (20, 30, 40, 50, 60)]
    return [make_part(part, tokenizer, CorpusConfig(sentences="lines")) for part in documents]


def sampler(shards: list[Shard], tokenizer: Tokenizer, objective: str = "mlm+nsp", **options) -> CorpusSampler:
    options = {"batch_size": 8, "max_length": 32, "seed": 1, "objective": OBJECTIVES[objective], **options}
    if options.get("masking") == "entities":
        listed = tokenizer.pieces(["river bank", "good bad movie", "printing"])
        options["entities"] = Entities.of(listed, in_vocabulary(tokenizer, lambda token: token.startswith("##")))
    return CorpusSampler(shards, tokenizer, **options)


def sequences_of(one: CorpusSampler, steps: range) -> list[tuple[list[int], list[int], int | None]]:
    """The sequences of some steps unmasked, with their segments and the label of the pair."""
    sequences = []
    for step in steps:
        features = one.features_at(step)
        assert tuple(features.labels) == one.objective.terms
        pairs = features.labels.get(one.objective.pair_term)
        for number in range(len(features)):
            ids = features.input_ids[number].copy()
            ids[features.rows[number][0 if pairs is None else 1 :]] = features.labels["mlm"][number]
            label = None if pairs is None else int(pairs[number][0])
            sequences.append((ids.tolist(), features.token_type_ids[number].tolist(), label))
    return sequences


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm+sop", "mlm"])
@pytest.mark.parametrize("masking", MASKINGS)
def test_an_epoch_holds_what_was_drawn_from_each_shard_once(
    shards: list[Shard], tokenizer: Tokenizer, objective: str, masking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequences are put together anew, by a loop, from what is drawn of each shard."""
    monkeypatch.setattr(module, "WINDOW", 2)
    one = sampler(shards, tokenizer, objective=objective, masking=masking)
    expected: Counter[tuple] = Counter()
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    for number, shard in enumerate(shards):
        drawn = one.objective.draw(shard, 32, np.random.default_rng((1, 0, number)))
        for a, num_a, b, num_b, label in zip(*drawn, strict=True):
            ids = [cls, *shard.input_ids[a : a + num_a].tolist(), sep]
            segments = [0] * len(ids)
            if objective != "mlm":
                ids += [*shard.input_ids[b : b + num_b].tolist(), sep]
                segments += [1] * (num_b + 1)
            expected[(tuple(ids), tuple(segments), int(label) if objective != "mlm" else None)] += 1
    total = sum(expected.values())
    assert one.sequences_per_epoch == total
    steps = -(-total // 8)
    found = [(tuple(ids), tuple(segments), label) for ids, segments, label in sequences_of(one, range(steps))]
    assert len(found) == steps * 8
    assert Counter(found[:total]) == expected, "the epoch: every sequence once"
    order = [list(expected).index(each) for each in found[:50]]
    assert order != sorted(order), "shuffled"
    assert Counter(found[total:]) != expected  # the last step goes on into the next epoch


def test_a_causal_model_is_asked_at_each_token_for_the_next(shards: list[Shard], tokenizer: Tokenizer) -> None:
    spans = sampler(shards, tokenizer, objective="mlm")
    whole = sorted(ids for ids, _, _ in sequences_of(spans, range(3)))
    features = sampler(shards, tokenizer, objective="clm", batch_size=24).features_at(0)
    assert sorted(features.input_ids[at].tolist() for at in range(24)) == whole, "the spans of mlm, and nothing masked"
    for at in range(24):
        ids = features.input_ids[at].tolist()
        assert features.rows[at].tolist() == list(range(len(ids) - 1))
        assert features.labels["lm"][at].tolist() == ids[1:]
    assert set(features.labels) == {"lm"}


@pytest.mark.parametrize("pairs", ["nsp", "sop"])
def test_masks_stand_where_the_labels_say(shards: list[Shard], tokenizer: Tokenizer, pairs: str) -> None:
    features = sampler(shards, tokenizer, f"mlm+{pairs}", batch_size=64).features_at(0)
    specials = {tokenizer.cls_token_id, tokenizer.sep_token_id}
    for at in range(len(features)):
        rows, ids = features.rows[at].tolist(), features.input_ids[at].tolist()
        assert rows[0] == 0
        assert rows[1:] == sorted(set(rows[1:]))
        assert len(rows) - 1 == max(1, round(0.15 * len(ids))) == len(features.labels["mlm"][at])
        assert not {ids[row] for row in rows[1:]} & specials
        assert not set(features.labels["mlm"][at].tolist()) & specials
        for row, label in zip(rows[1:], features.labels["mlm"][at].tolist(), strict=True):
            assert ids[row] in (tokenizer.mask_token_id, label) or ids[row] in tokenizer.ordinary_ids
    batch = collate(features, np.arange(64))
    assert batch.weights == {"mlm": features.labels["mlm"].lengths.sum(), pairs: 64}
    assert len(batch.rows) == 64 + features.labels["mlm"].lengths.sum()
    masked = batch.input_ids[batch.rows][~np.isin(np.arange(len(batch.rows)), batch.cu_rows[:-1].numpy())]
    assert 0.7 < float((masked == tokenizer.mask_token_id).float().mean()) < 0.9


@pytest.mark.parametrize("masking", MASKINGS)
def test_special_tokens_of_the_text_itself_are_never_targets(tokenizer: Tokenizer, masking: str) -> None:
    lines = ["the good [MASK] movie [SEP] city [PAD] river [CLS] [UNK] ."] * 6
    shards = [make_part([lines] * 20, tokenizer, CorpusConfig(sentences="lines"))]
    features = sampler(shards, tokenizer, masking=masking, batch_size=64).features_at(0)
    never = [tokenizer.vocab[token] for token in ("[MASK]", "[SEP]", "[PAD]", "[CLS]")]
    assert np.isin(never, features.input_ids.values).all(), "the text has them"
    targets = features.labels["mlm"].values
    assert not np.isin(targets, never).any()
    assert tokenizer.unk_token_id in targets


def test_whole_words_are_masked_whole(shards: list[Shard], tokenizer: Tokenizer) -> None:
    features = sampler(shards, tokenizer, masking="whole-word", batch_size=64).features_at(0)
    pieces = [number for token, number in tokenizer.vocab.items() if token.startswith("##")]
    parts = 0
    for at in range(len(features)):
        ids, rows = features.input_ids[at].copy(), features.rows[at][1:]
        ids[rows] = features.labels["mlm"][at]
        chosen = np.isin(np.arange(len(ids)), rows)
        # a segment may begin within a word, where it was cut
        inside = np.isin(ids, pieces) & ~np.isin(np.roll(ids, 1), [tokenizer.cls_token_id, tokenizer.sep_token_id])
        assert np.array_equal(chosen[inside], np.roll(chosen, 1)[inside])
        parts += np.count_nonzero(chosen & inside)
    assert parts > 5


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_depends_on_seed_and_step_alone(shards: list[Shard], tokenizer: Tokenizer, objective: str) -> None:
    def prints(*steps: int, **options: int) -> list[str]:
        one = sampler(shards, tokenizer, objective, **options)
        return [one.features_at(step).fingerprint() for step in steps]

    first, second, third = prints(3, 40, 41)
    assert prints(40, 3, 41) == [second, first, third]
    assert len({first, second, third, *prints(3, seed=2)}) == 4


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_sequence_is_the_same_whatever_it_is_made_with(
    shards: list[Shard], tokenizer: Tokenizer, objective: str, masking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, in halves, and in another order; over the bounds of windows and of an epoch."""
    monkeypatch.setattr(module, "WINDOW", 2)
    one = sampler(shards, tokenizer, objective, masking=masking)
    end = one.sequences_per_epoch
    numbers = np.arange(end - 40, end + 24)
    whole = one.sequences(numbers)
    assert np.array_equal(one.lengths(numbers), whole.num_tokens)
    for order in (numbers[:32], numbers[32:], np.random.default_rng(0).permutation(numbers), *numbers[:, None], numbers[:0]):
        assert one.sequences(order).fingerprint() == whole.take(order - numbers[0]).fingerprint()


def test_drawing_begins_where_a_mark_says(shards: list[Shard], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The windows before it are not drawn."""
    monkeypatch.setattr(module, "WINDOW", 2)
    whole, steps = sampler(shards, tokenizer), (0, 3, 150, 151, 400)
    expected = [whole.features_at(step).fingerprint() for step in steps]
    assert whole.mark_at(0) == (0, 0)
    begin = whole.mark_at(150 * 8)
    assert begin.window > whole.windows_per_epoch
    assert 0 <= 150 * 8 - begin.sequence < 200
    drawn: list[int] = []
    draw = module._draw_window
    monkeypatch.setattr(module, "_draw_window", lambda one, window: drawn.append(window) or draw(one, window))
    resumed = sampler(shards, tokenizer, begin=begin)
    assert [resumed.features_at(step).fingerprint() for step in steps[2:]] == expected[2:]
    assert min(drawn) == begin.window
    assert resumed.mark_at(400 * 8) == whole.mark_at(400 * 8)
    assert sampler(shards, tokenizer).mark_at(150 * 8) == (0, 0), "nothing is known of the windows after it yet"


def test_the_next_window_is_drawn_ahead(shards: list[Shard], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 2)
    one = sampler(shards, tokenizer)
    asked: list[int] = []
    drawn = one._windows
    object.__setattr__(one, "_windows", lambda window: asked.append(window) or drawn(window))
    one.lengths(np.arange(1))
    assert max(asked) == 0
    one.lengths(np.arange(len(drawn(0).result().shard) // 2 + 1))
    assert max(asked) == 1


def test_the_length_of_a_long_epoch_is_estimated(
    shards: list[Shard], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = sum(len(shard.input_ids) for shard in shards)
    for objective in ("mlm", "mlm+nsp"):
        one = sampler(shards, tokenizer, objective)
        exact = one.sequences_per_epoch
        assert one.epoch_length(tokens) == (exact, True)
        assert [one.in_first_epoch(most) for most in (5, exact, exact + 1)] == [5, exact, exact]
        with monkeypatch.context() as patch:
            patch.setattr(module, "WINDOW", 1)
            patch.setattr(module, "COUNTED", 3)
            drawn: list[int] = []
            draw = module._draw_window
            patch.setattr(
                module, "_draw_window", lambda one, window, draw=draw, to=drawn: to.append(window) or draw(one, window)
            )
            about, known = sampler(shards, tokenizer, objective).epoch_length(tokens)
            assert not known
            assert abs(about / exact - 1) < 0.1
            assert drawn == [0, 1, 2]
            assert sampler(shards, tokenizer, objective).in_first_epoch(5) == 5
            assert drawn == [0, 1, 2, 0], "no more windows than hold so many"


def test_epochs_differ_in_their_pairs_and_masks(shards: list[Shard], tokenizer: Tokenizer) -> None:
    one = sampler(shards, tokenizer, batch_size=sampler(shards, tokenizer).sequences_per_epoch)
    epochs = [Counter(tuple(ids) for ids, _, _ in sequences_of(one, range(n, n + 1))) for n in (0, 1)]
    assert epochs[0] != epochs[1], "other pairs, whatever is masked in them"
    whole = sampler(shards, tokenizer, batch_size=4000).features_at(0)
    assert abs(whole.labels["nsp"].values.mean() - 0.5) < 0.05


def test_a_corpus_without_pairs_is_refused(tokenizer: Tokenizer) -> None:
    shard = make_part([["the"]] * 3, tokenizer, CorpusConfig(min_tokens=1))
    with pytest.raises(DataError):
        sampler([shard], tokenizer).features_at(0)
    assert len(sampler([shard], tokenizer, objective="mlm").features_at(0)) == 8


def test_the_share_of_tokens_read(tokenizer: Tokenizer, shards: list[Shard], monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of one token, half of all tokens, are no pairs; and the shards of the first window count."""
    words = make_part([["the"]] * 120 + [["the good bank one two the"]] * 20, tokenizer, CorpusConfig(min_tokens=1))
    assert sampler([words], tokenizer, "mlm+sop").share_read == 0.5
    assert sampler([words], tokenizer, "mlm").share_read == 1
    assert sampler([make_part([["the"]] * 3, tokenizer, CorpusConfig(min_tokens=1))], tokenizer).share_read == 0
    assert 0.99 < sampler(shards, tokenizer).share_read < 1
    monkeypatch.setattr(module, "WINDOW", 1)
    shares = {sampler([words, *shards], tokenizer, "mlm+sop", seed=seed).share_read for seed in range(9)}
    assert 0.5 in shares
    assert len(shares) > 1


def test_replacements_are_ordinary_tokens(tokenizer: Tokenizer) -> None:
    names = {number: token for token, number in tokenizer.vocab.items()}
    ordinary = {names[number] for number in tokenizer.ordinary_ids.tolist()}
    assert ordinary == set(tokenizer.vocab) - {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
