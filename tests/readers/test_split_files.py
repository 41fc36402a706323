"""The files of a folder's splits: by their exact names, and in a user's folder by the words in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from file_contents import refused, write

from bertkit.errors import DataError
from bertkit.readers.formats import ANY_WORDS, find_split_file
from bertkit.tasks import TextClassification, TokenClassification, hub

ENDINGS = (".csv", ".tsv", ".txt", ANY_WORDS)
SPLITS = ("train", "validation", "test")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("quora_train.csv", "quora_dev.csv", "quora_test.csv"), ("quora_train.csv", "quora_dev.csv", "quora_test.csv")),
        (("train_few_all.csv", "dev.csv", "test.csv.gz"), ("train_few_all.csv", "dev.csv", "test.csv.gz")),
        (("train.csv", "train_few.csv", "val-2.TSV"), ("train.csv", "val-2.TSV", None)),  # an exact name comes first
        (("cooking.train", "cooking.valid.gz", "cooking.test"), ("cooking.train", "cooking.valid.gz", "cooking.test")),
        (("X-Train-1.txt", "trainer.csv", "a_train.md", "train_test.csv"), ("X-Train-1.txt", None, None)),
        (("train-00000-of-00002.csv", "train-00001-of-00002.csv"), (None, None, None)),
        (("README.md", "labels.txt"), (None, None, None)),
    ],
)
def test_splits_by_words(tmp_path: Path, names: tuple[str, ...], found: tuple[str | None, ...]) -> None:
    for name in names:
        write(tmp_path / name, "a")
    paths = [find_split_file(tmp_path, split, ENDINGS) for split in SPLITS]
    assert [path and path.name for path in paths] == [*found]


def test_several_candidates_are_listed(tmp_path: Path) -> None:
    for name in ("train_0.csv", "train_1.csv"):
        write(tmp_path / name, "a")
    error = refused(find_split_file, tmp_path, "train", ENDINGS, kind=DataError)
    assert "train_0.csv or train_1.csv" in error.what
    assert "--train FILE" in (error.hint or "")
    assert find_split_file(tmp_path, "train", ENDINGS[:-1]) is None


def test_recipes_with_data_of_their_own_keep_to_exact_names() -> None:
    assert ANY_WORDS in TextClassification().file_endings
    assert ANY_WORDS not in TextClassification(dataset=hub("a/b")).file_endings


def test_folders_of_seq_in(tmp_path: Path, run_bertkit) -> None:
    for split in ("train", "valid"):
        (tmp_path / "data" / split).mkdir(parents=True)
        sentences = "".join(f"fly to {city}\n" for city in ("Rome", "Paris", "Cairo"))
        for name, text in (("seq.in", sentences), ("seq.out", "O O B-to\n" * 3), ("label", "flight\n" * 3)):
            write(tmp_path / "data" / split / name, text)
    (tmp_path / "data" / "test").mkdir()  # without seq.in
    endings = TokenClassification().file_endings
    found = [find_split_file(tmp_path / "data", split, endings) for split in SPLITS]
    assert found == [tmp_path / "data" / "train", tmp_path / "data" / "valid", None]
    for target, splits in (("data", ["train", "validation"]), ("data/train", ["train"])):
        ran = run_bertkit("check", target, "--json")
        assert ran.code == 0, ran.err
        assert all(f'"{split}": 3' in ran.out for split in splits)
    ran = run_bertkit("check", "data", "--recipe", "text-classification")
    assert (ran.code, "no file named after a split" in ran.err) == (3, True), ran.err
