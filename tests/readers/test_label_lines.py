"""Lines that begin with their label: at the first space, as TREC comes, or after fastText's mark."""

from __future__ import annotations

from pathlib import Path

import pytest
from file_contents import refused, write

from bertkit.readers.formats import TAGGED, TEXTS, read_file
from bertkit.tasks import TextClassification
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task

TREC = 'DESC:manner How did serfdom develop in and then leave Russia ?\nENTY:cremat What films featured , "it" ?\n'
TEXTS_OF_TREC = ["How did serfdom develop in and then leave Russia ?", 'What films featured , "it" ?']


@pytest.mark.parametrize("name", ["train_5500.label", "trec.txt", "trec"])
@pytest.mark.parametrize("header", ["", "label text\n"])
def test_a_space_is_the_separator_of_a_label_alone(tmp_path: Path, name: str, header: str) -> None:
    rows = read_file(write(tmp_path / name, header + TREC + "\n"), separator=" ")
    assert rows.columns == {"label": ["DESC:manner", "ENTY:cremat"], "text": TEXTS_OF_TREC}
    assert [*rows.lines] == [1 + bool(header), 2 + bool(header)]


def test_columns_say_how_many_are_split_off(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "7 pos a good film\n8 neg a bad film\n")
    columns = read_file(path, separator=" ", columns=("id", "label", "text")).columns
    assert columns == {"id": ["7", "8"], "label": ["pos", "neg"], "text": ["a good film", "a bad film"]}


def test_a_line_of_a_label_alone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "pos good\nneg\n")
    assert refused(read_file, path, separator=" ").where == f"{path}:2"


def test_plain_lines_without_labels_get_a_hint(tmp_path: Path) -> None:
    recipe = TextClassification(train=str(write(tmp_path / "train.label", TREC))).resolved()
    assert "--separator ' '" in (refused(read_splits, recipe).hint or "")


@pytest.mark.parametrize("name", ["cooking.train", "cooking.txt", "cooking"])
def test_fasttext_is_recognized(tmp_path: Path, name: str) -> None:
    text = "\n__label__pos A good\tfilm , really\n  __label__neg __label_ is text\nno label\n__label__pos\n"
    rows = read_file(write(tmp_path / name, text))
    texts = ["A good\tfilm , really", "__label_ is text", "no label", ""]
    assert rows.columns == {"label": ["pos", "neg", None, "pos"], "text": texts}
    assert [*rows.lines] == [2, 3, 4, 5]


def test_several_labels_of_fasttext_are_lists(tmp_path: Path) -> None:
    lines = "".join(f"__label__food __label__tea {n} cups\n__label__tea {n} more\n" for n in range(5))
    path = write(tmp_path / "cooking.train", lines)
    assert read_file(path).columns["label"][:2] == [["food", "tea"], ["tea"]]
    recipe = TextClassification(train=str(path), validation=str(path)).resolved()
    error = refused(Task.fit, recipe, read_splits(recipe).rows["train"])
    assert (error.where, "--multi-label" in (error.hint or "")) == (f"{path}:1", True)
    several = TextClassification(train=str(path), validation=str(path), multi_label=True).resolved()
    task = Task.fit(several, read_splits(several).rows["train"])
    assert task.labels == ("food", "tea")


def test_text_that_begins_with_other_words_is_plain(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a word\n__label__x is no label here\n")
    for formats in (TEXTS, TAGGED):
        assert read_file(path, formats).columns == {"text": ["a word", "__label__x is no label here"]}


def test_an_empty_fasttext_file_is_refused(tmp_path: Path) -> None:
    from file_contents import content_of

    from bertkit.readers.parsers.fasttext import parse_fasttext

    assert refused(lambda: [*parse_fasttext(content_of("\n \n"))]).what == "the file is empty"
