"""The held-out part: stratified, seeded, and never a text on both sides."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter, defaultdict

import numpy as np
import pytest
from file_contents import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import UsageError
from bertkit.readers import Examples
from bertkit.readers.splitting import Fold, alike, parse_held_out, split_examples, why_another_share


def make(texts: list[str], labels: list[str]) -> Examples:
    return Examples(columns={"text": texts, "label": labels}, source="f.tsv", lines=range(2, len(texts) + 2))


def split(
    examples: Examples, held_out: float | Fold, *, seed: int, label: str | None, text: tuple[str, ...]
) -> tuple[Examples, Examples]:
    labels = None if label is None else [(value,) for value in examples.columns[label]]
    return split_examples(examples, held_out, seed=seed, labels=labels, text=text)


def test_which_texts_are_the_same() -> None:
    """Models read them alike; a text in either encoding of its accents is never on both sides."""
    assert alike("Caf\u00e9  AU\tlait ") == alike(unicodedata.normalize("NFD", "caf\u00e9 au lait"))
    assert alike("cafe au lait") != alike("caf\u00e9 au lait")
    texts = [f"\u00e9t\u00e9 {number}" for number in range(50)]
    both = make(texts + [unicodedata.normalize("NFD", text) for text in texts], ["a", "b"] * 50)
    sides = split(both, 0.2, seed=1, label="label", text=("text",))
    train, held = ({unicodedata.normalize("NFC", text) for text in side.columns["text"]} for side in sides)
    assert train.isdisjoint(held)
    assert len(held) == 10


def of_sizes(sizes: dict[str, int]) -> Examples:
    labels = [label for label, size in sizes.items() for _ in range(size)]
    random.Random(0).shuffle(labels)
    return make([f"text {i}" for i in range(len(labels))], labels)


def texts(examples: Examples) -> set[str]:
    return {" ".join(text.lower().split()) for text in examples.columns["text"]}


@pytest.mark.parametrize(
    ("value", "held_out"),
    [
        ("10%", 0.1),
        (" 12.5 % ", 0.125),
        ("0.1%", 0.001),
        ("99%", 0.99),
        ("1/5", Fold(1, 5)),
        (" 10 / 10 ", Fold(10, 10)),
        *((file, None) for file in ("0.1", "dev.csv", "10%.csv", "%", "", "ten%", "data/1/5", "1/5.csv")),
    ],
)
def test_a_share_a_fold_or_a_file(value, held_out):
    assert parse_held_out(value) == (pytest.approx(held_out) if isinstance(held_out, float) else held_out)


@pytest.mark.parametrize("value", ["0%", "100%", "250%", "-5%", "0/5", "6/5", "1/1", "1/0", "0/0"])
def test_shares_and_folds_out_of_range(value):
    assert value in refused(parse_held_out, value, kind=UsageError).what


@pytest.mark.parametrize("fraction", [0.02, 0.1, 1 / 3, 0.5, 0.9])
def test_the_share_held_out_of_each_label(fraction):
    sizes = {"a": 500, "b": 300, "c": 37, "d": 2}
    examples = of_sizes(sizes)
    kept, held = split(examples, fraction, seed=1, label="label", text=("text",))
    assert len(kept) + len(held) == len(examples)
    assert len(held) == pytest.approx(fraction * len(examples), abs=3)
    for label, size in sizes.items():
        count = held.columns["label"].count(label)
        assert 1 <= count < size
        assert count == pytest.approx(fraction * size, abs=1.5)


def test_order_and_places_are_kept_and_the_held_rows_are_spread():
    examples = make([f"text {i}" for i in range(1000)], ["a"] * 1000)
    kept, held = split(examples, 0.2, seed=1, label=None, text=("text",))
    for part in (kept, held):
        assert list(part.lines) == sorted(part.lines)
        assert [part.columns["text"][i] for i in range(len(part))] == [f"text {line - 2}" for line in part.lines]
    # Rank sum of a random sample of 200 out of 1000: mean 500, standard deviation of the mean 18.3.
    assert abs(np.mean(held.lines) - 501) < 4 * 18.3


def test_the_seed_alone_decides():
    examples = make([f"text {i}" for i in range(300)], ["a", "b", "c"] * 100)

    def held_lines(seed: int) -> list[int]:
        return list(split(examples, 0.1, seed=seed, label="label", text=("text",))[1].lines)

    random.seed(1)
    np.random.seed(1)
    state = random.getstate()
    first = held_lines(1)
    assert random.getstate() == state
    np.random.seed(2)
    assert held_lines(1) == first
    draws = [set(held_lines(seed)) for seed in range(40)]
    assert len(set(map(frozenset, draws))) == 40
    # Each row is held out in about a tenth of the draws.
    counts = Counter(line for draw in draws for line in draw)
    assert len(counts) > 280
    assert max(counts.values()) < 16


def test_the_order_of_the_rows_does_not_matter():
    labels = ["a", "b", "c"] * 100
    rows = [(f"text {i}", labels[i]) for i in range(300)]
    shuffled = random.Random(0).sample(rows, len(rows))
    held = [split(make(*map(list, zip(*r, strict=True))), 0.1, seed=1, label=None, text=("text",))[1] for r in (rows, shuffled)]
    assert texts(held[0]) == texts(held[1])


def respelt() -> Examples:
    """Every text four times, in other case and white space."""
    labels = [random.Random(i).choice("ab") for i in range(400)]
    spelt = [(" Same  Text {} ", "same text {}", "SAME\ttext {}", "same text\n{}")[i % 4].format(i // 4) for i in range(400)]
    return make(spelt, labels)


def test_like_texts_stay_together():
    kept, held = split(respelt(), 0.25, seed=3, label="label", text=("text",))
    assert not texts(kept) & texts(held)
    assert len(held) == pytest.approx(100, abs=8)


def test_a_pair_is_one_text():
    columns = {"a": ["x"] * 100, "b": [str(i // 2) for i in range(100)], "label": ["0", "1"] * 50}
    examples = Examples(columns=columns, source="f", lines=range(100))
    kept, held = split(examples, 0.2, seed=0, label="label", text=("a", "b"))
    assert len(held) == 20
    assert not set(kept.columns["b"]) & set(held.columns["b"])


def test_a_single_text_is_trained_on_and_a_crowd_of_duplicates_does_not_swell_the_held_part():
    texts_, labels = ["same"] * 90 + [f"t{i}" for i in range(10)], ["a"] * 99 + ["rare"]
    for seed in range(20):
        kept, held = split(make(texts_, labels), 0.1, seed=seed, label="label", text=("text",))
        assert "rare" in kept.columns["label"]
        assert "rare" not in held.columns["label"]
        assert "same" not in held.columns["text"]
        assert 1 <= len(held) <= 9


def test_the_only_row_of_one_of_several_labels_is_trained_on():
    for seed in range(20):
        names = [("common", f"rare{i}") if i < 10 else ("common",) if i % 2 else () for i in range(200)]
        examples = make([f"text {i}" for i in range(200)], [str(its) for its in names])
        _, held = split_examples(examples, 0.1, seed=seed, labels=names, text=("text",))
        assert not any("rare" in its for its in held.columns["label"])
        assert {"('common',)", "()"} <= set(held.columns["label"])
        assert len(held) == pytest.approx(20, abs=3)


@pytest.mark.parametrize(("rows", "labels"), [([], []), (["a"], ["x"]), (["a", " A "], ["x", "y"]), (["a", "b"], ["x", "y"])])
def test_too_few_rows(rows, labels):
    error = refused(split, make(rows, labels), 0.5, seed=0, label="label", text=("text",))
    assert error.where == "f.tsv"


def test_two_rows_are_one_on_each_side():
    for fraction in (0.01, 0.5, 0.99):
        kept, held = split(make(["a", "b"], ["x", "x"]), fraction, seed=0, label="label", text=("text",))
        assert len(kept) == len(held) == 1


@settings(max_examples=120, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz")), min_size=2, max_size=14),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 5),
)
def test_labels_with_two_texts_are_on_both_sides_where_that_can_be(rows, fraction, seed):
    by_label, by_text = defaultdict(set), defaultdict(set)
    for text, label in rows:
        by_label[label].add(text)
        by_text[text].add(label)
    several = {label for label, its in by_label.items() if len(its) > 1}
    examples = make(*map(list, zip(*rows, strict=True)))
    if all(its - several for its in by_text.values()):
        refused(split, examples, fraction, seed=seed, label="label", text=("text",))
        return
    kept, held = split(examples, fraction, seed=seed, label="label", text=("text",))
    assert len(kept)
    assert len(held)
    assert not texts(kept) & texts(held)
    assert sorted([*kept.lines, *held.lines]) == list(range(2, len(rows) + 2))
    assert set(held.columns["label"]) <= several
    assert set(kept.columns["label"]) >= set(by_label) - several
    # Where no text has two labels it can always be.
    if all(len(its) == 1 for its in by_text.values()):
        assert set(held.columns["label"]) == several
        assert set(kept.columns["label"]) == set(by_label)


# --- folds -----------------------------------------------------------------------------------------------------------------


def folds(examples: Examples, of: int, *, seed: int = 1, label: str | None = "label") -> list[tuple[Examples, Examples]]:
    return [split(examples, Fold(n, of), seed=seed, label=label, text=("text",)) for n in range(1, of + 1)]


def test_each_row_is_in_one_fold_and_labels_are_spread_evenly():
    sizes = {"a": 500, "b": 303, "c": 37, "d": 2}
    examples = of_sizes(sizes)
    parts = folds(examples, 5)
    assert sorted(line for _, held in parts for line in held.lines) == list(examples.lines)
    for kept, held in parts:
        assert sorted([*kept.lines, *held.lines]) == list(examples.lines)
        assert len(held) in (168, 169)
        for label, size in sizes.items():
            assert held.columns["label"].count(label) in (size // 5, -(-size // 5))
        for part in (kept, held):
            assert list(part.lines) == sorted(part.lines)
            assert [part.columns["text"][i] for i in range(len(part))] == [f"text {line - 2}" for line in part.lines]
        # Drawn from everywhere: the rank sum of 168 out of 842 has a mean of 421.5 and a standard deviation of 16.8.
        assert abs(np.mean(held.lines) - 422.5) < 4 * 16.8


def test_a_label_of_two_texts_is_in_the_training_part_of_every_fold():
    """Also if it stands after another one in each of them."""
    names = [("ab"[i % 2], f"rare{i // 2}") if i < 40 else ("ab"[i % 2],) for i in range(100)]
    examples = make([f"text {i}" for i in range(100)], [str(its) for its in names])
    held_out = []
    for number in range(1, 6):
        kept, held = split_examples(examples, Fold(number, 5), seed=1, labels=names, text=("text",))
        assert {name for row in kept.lines for name in names[row - 2]} == {name for its in names for name in its}
        held_out += held.lines
    assert sorted(held_out) == list(examples.lines)


@pytest.mark.parametrize("last", [[("a", "z"), ("z", "a")], [("x", "alone"), ("x", "z")]])
@pytest.mark.parametrize("common", range(1, 15))
def test_neither_the_order_of_labels_nor_one_of_a_single_text_decides_the_fold(
    common: int, last: list[tuple[str, ...]]
) -> None:
    names = [("m",)] * common + last
    twice = {"a", "z"} if last[0] == ("a", "z") else {"x"}
    examples = make([f"text {i}" for i in range(len(names))], [str(its) for its in names])
    for number in (1, 2, 3):
        kept, _ = split_examples(examples, Fold(number, 3), seed=1, labels=names, text=("text",))
        assert twice <= {name for row in kept.lines for name in names[row - 2]}


def test_folds_are_drawn_by_the_seed_alone():
    examples = make([f"text {i}" for i in range(300)], ["a", "b", "c"] * 100)
    first = [list(held.lines) for _, held in folds(examples, 3)]
    np.random.seed(2)
    assert [list(held.lines) for _, held in folds(examples, 3)] == first
    assert [list(held.lines) for _, held in folds(examples, 3, seed=2)] != first


def test_like_texts_are_in_one_fold():
    for label in ("label", None):
        parts = folds(respelt(), 4, label=label)
        for kept, held in parts:
            assert not texts(kept) & texts(held)
            assert len(held) == 100
        assert sum(len(held) for _, held in parts) == 400


def test_as_many_folds_as_texts_and_no_more():
    assert [len(held) for _, held in folds(make(["a", "b", "c"], ["x", "y", "y"]), 3)] == [1, 1, 1]
    assert refused(folds, make(["a", "b", "C", "c"], ["x", "y", "y", "y"]), 4).where == "f.tsv"


def test_a_fold_is_held_out_on_the_command_line(run_bertkit, tmp_path, tiny_model_dir):
    rows = [f"good movie {word},{label}" for word in "abcdefghij" for label in (word < "f",)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    options = ("--train", "rows.csv", "-m", tiny_model_dir, "--max-steps", 1, "--max-length", 16, "--device", "cpu")
    ran = run_bertkit("finetune", "text-classification", *options, "--validation", "2/5", "-o", "run")
    assert ran.code == 0, ran.err
    assert "train: 8 rows" in ran.err
    assert "validation: 2 rows" in ran.err


@pytest.mark.parametrize(
    ("examples", "share", "why"),
    [
        (of_sizes({f"k{n}": 5 for n in range(150)}), 0.1, "at least one row of each label is held out"),
        (of_sizes({f"k{n}": 7 for n in range(150)}), 0.1, "at least one row of each label is held out"),
        (of_sizes({f"k{n}": 1 for n in range(90)} | {"many": 10}), 0.2, "the only row of a label stays in the training data"),
        (make(["thanks"] * 80 + [f"text {n}" for n in range(20)], ["a"] * 100), 0.5, "rows with the same text stay together"),
    ],
)
def test_why_another_share_is_held_out(examples: Examples, share: float, why: str) -> None:
    sides = split(examples, share, seed=1, label="label", text=("text",))
    assert not 0.8 * share < len(sides[1]) / len(examples) < 1.25 * share
    kept, held = ([(label,) for label in side.columns["label"]] for side in sides)
    assert why_another_share(share, kept, held) == why
