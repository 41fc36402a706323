"""bertkit check of labelled data: each fault that lies in it is found, counted and placed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TRAIN = [
    ("the good movie", "pos"),  # line 2
    ("a bad book", "neg"),
    ("we like it", "pos"),
    ("The  good MOVIE", "pos"),  # line 5 repeats line 2
    ("they hate the river", "pos"),
    ("they hate the river", "neg"),  # line 7 contradicts line 6
    ("caf\u00c3\u00a9 and it\u00e2\u20ac\u2122s good", "pos"),
    ("a lost \ufffd letter", "neg"),
    ("one\x07two", "pos"),
    ("good<br />bad &amp; one", "neg"),  # line 11
    *((f"good movie {n} {n}", "pos") for n in range(10)),  # lines 12 to 21
    ("\u738b \u6797", "odd"),  # line 22
]
DEV = [
    ("a bad book", "pos"),  # line 2, with another label in training
    ("the good movie", "pos"),  # line 3
    ("a new plot", "maybe"),  # line 4
    (" ", "neg"),  # line 5
    ("no actor", "neg"),
    ("", "pos"),  # line 7
]


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    quoted = "".join('"' + text.replace('"', '""') + f'",{label}\n' for text, label in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text,label\n" + quoted, encoding="utf-8")
    return path


@pytest.fixture
def check(run_bertkit):
    """A function that checks a target and returns what --json says."""

    def check(*argv: object, code: int = 0) -> dict[str, Any]:
        ran = run_bertkit("check", *argv, "--json")
        assert ran.code == code, ran.err
        return json.loads(ran.out)

    return check


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    write(tmp_path / "data" / "train.csv", TRAIN)
    write(tmp_path / "data" / "dev.csv", DEV)
    return tmp_path / "data"


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    rows = [(f"{word} movie {'one ' * n}", label) for n in range(12) for word, label in (("good", "pos"), ("bad", "neg"))]
    return write(tmp_path / "clean.csv", rows)


def found(checked: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Each finding's severity and places (of their files the names) by what it says."""
    shown = {its["what"]: (its["severity"], [Path(place).name for place in its["places"]]) for its in checked["findings"]}
    assert len(shown) == len(checked["findings"]), "something is said twice"
    return shown


def hints(checked: dict[str, Any]) -> dict[str, str | None]:
    return {its["what"]: its["hint"] for its in checked["findings"]}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what is found -----------------------------------------------------------------------------------------------------

FOUND = {
    "validation: the text in column 'text' is empty": ("error", ["dev.csv:5"]),
    "validation: labels missing from train: maybe": ("error", []),
    "train: 2 labels with fewer than 10 rows: odd (1), neg (4)": ("warning", []),
    "train: 1 row with U+FFFD, the replacement of characters lost to a wrong encoding": ("warning", ["train.csv:9"]),
    "train: 1 row with UTF-8 read as Latin-1 or Windows-1252, such as \u00c3\u00a9 for \u00e9": ("warning", ["train.csv:8"]),
    "train: 1 row with control characters": ("warning", ["train.csv:10"]),
    "train: 1 text with different labels": ("warning", ["train.csv:6", "train.csv:7"]),
    "validation: 2 rows without text": ("warning", ["dev.csv:5", "dev.csv:7"]),
    "validation: 2 of 6 rows also in train, 1 of them with another label": ("warning", ["dev.csv:2", "dev.csv:3"]),
    "validation: no row has odd: its scores do not cover them": ("note", []),
    "train: 1 row with HTML markup": ("note", ["train.csv:11"]),
    "train: 1 duplicate row": ("note", ["train.csv:2", "train.csv:5"]),
}


def test_every_fault_of_a_folder(check, faulty: Path) -> None:
    checked = check("data", code=3)
    assert checked["rows"] == {"train": 21, "validation": 6}
    assert checked["labels"] == {"train": {"pos": 16, "neg": 4, "odd": 1}, "validation": {"pos": 3, "neg": 2, "maybe": 1}}
    assert checked["lengths"] == {}
    assert found(checked) == FOUND
    severities = [its["severity"] for its in checked["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert "measured" not in checked


def test_what_a_person_reads(run_bertkit, faulty: Path) -> None:
    ran = run_bertkit("check", "data")
    assert (ran.code, ran.out) == (3, "")
    lines = ran.err.splitlines()
    place = f"{faulty}/dev.csv"
    assert f"error: validation: the text in column 'text' is empty ({place}:5); correct or remove the row" in lines
    assert f"warning: validation: 2 rows without text ({place}:5, {place}:7); fix or remove them" in lines
    assert "validation: no row has odd: its scores do not cover them" in lines
    assert lines[-1] == "2 errors, 7 warnings, 3 notes"
    cells = [[cell.strip() for cell in line.strip("\u2502").split("\u2502")] for line in lines]
    for row in (["pos", "16", "3"], ["neg", "4", "2"], ["odd", "1", "0"], ["maybe", "0", "1"]):
        assert row in cells


def test_at_most_three_places_are_shown(check, clean: Path, tmp_path: Path) -> None:
    rows = [("good movie", "a")] * 5 + [("bad &lt; movie", "b")] * 2 + [("<p>a book", "b")] * 10 + [("a film", "a")] * 9
    write(tmp_path / "rows.csv", rows)
    checked = found(check("rows.csv"))
    assert checked == {
        "train: 12 rows with HTML markup": ("note", ["rows.csv:7", "rows.csv:8", "rows.csv:9"]),
        "train: 22 duplicate rows": ("note", ["rows.csv:2", "rows.csv:3", "rows.csv:4"]),
    }


def test_a_rare_label_has_fewer_than_ten_rows(check, tmp_path: Path) -> None:
    for count, rare in ((9, True), (10, False)):
        rows = [(f"good {n} {n}", "a") for n in range(12)] + [(f"bad {n} {n}", "b") for n in range(count)]
        write(tmp_path / "rows.csv", rows)
        expected = {"train: 1 label with fewer than 10 rows: b (9)": ("warning", [])} if rare else {}
        assert found(check("rows.csv")) == expected


def test_a_label_that_nearly_all_rows_have(check, tmp_path: Path) -> None:
    rows = [(f"good {n} {n}", "a") for n in range(110)] + [(f"bad {n} {n}", "b") for n in range(12)]
    write(tmp_path / "rows.csv", rows)  # 110 of 122
    assert found(check("rows.csv")) == {
        "train: 90.2% are a: accuracy says little, watch the F1 of the other labels": ("note", [])
    }
    write(tmp_path / "rows.csv", rows[2:])  # 108 of 120: no more than nine tenths
    assert found(check("rows.csv")) == {}


def test_few_rows_of_both_splits_are_a_note(check, tmp_path: Path) -> None:
    train = [(f"good {n} {n}", "ab"[n % 2]) for n in range(40)]
    dev = [train[0], *((f"bad {n} {n}", "ab"[n % 2]) for n in range(99))]
    write(tmp_path / "data" / "train.csv", train)
    write(tmp_path / "data" / "dev.csv", dev)
    assert found(check("data")) == {"validation: 1 of 100 rows also in train": ("note", ["dev.csv:2"])}
    write(tmp_path / "data" / "dev.csv", dev[:-1])  # 1 of 99 is more than a hundredth
    assert found(check("data")) == {"validation: 1 of 99 rows also in train": ("warning", ["dev.csv:2"])}


# --- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_are_counted(check, tiny_model_dir: Path, faulty: Path) -> None:
    rows = [("good \u738b movie", "a"), ("\u6797 \u738b", "b"), ("bad", "a"), ("the good movie", "b")]  # 5, 4, 3 and 5 tokens
    write(faulty / "train.csv", rows)
    write(faulty / "dev.csv", [("a \u738b", "a"), ("good", "b")])
    checked = check("data", "-m", tiny_model_dir, "--max-length", 16)
    # [UNK] are 3 of 17 tokens of training, special ones among them, and 1 of 7.
    unknown = "of the tokens are [UNK]"
    said = {what: its for what, its in found(checked).items() if "[UNK]" in what}
    assert said == {
        f"train: 17.65% {unknown}": ("warning", []),
        "train: 1 row with nothing but [UNK]": ("warning", ["train.csv:3"]),
        f"validation: 14.29% {unknown}": ("warning", []),
    }
    assert checked["lengths"]["train"] == pytest.approx({"mean": 4.25, "50%": 4.5, "90%": 5, "99%": 5, "longest": 5})
    assert checked["lengths"]["validation"] == pytest.approx({"mean": 3.5, "50%": 3.5, "90%": 3.9, "99%": 3.99, "longest": 4})


def test_a_row_without_text_is_not_unknown(check, tiny_model_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", [("", "a"), ("\u738b", "b"), ("good", "a")])
    checked = found(check("rows.csv", "-m", tiny_model_dir, "--max-length", 16, code=3))
    assert checked["train: 1 row with nothing but [UNK]"] == ("warning", ["rows.csv:3"])
    assert checked["train: 1 row without text"] == ("warning", ["rows.csv:2"])


def test_little_unknown_is_a_note(check, tiny_model_dir: Path, clean: Path) -> None:
    rows = [(f"good movie {'one ' * 40}{n} {n}", "ab"[n % 2]) for n in range(20)]
    write(clean, [*rows, ("good \u738b", "a")])  # 1 of 20 * 46 + 4 tokens
    checked = check(clean, "-m", tiny_model_dir, "--max-length", 64)
    said = {what: its for what, its in found(checked).items() if "[UNK]" in what}
    assert said == {"train: 0.11% of the tokens are [UNK]": ("note", [])}


@pytest.mark.parametrize(
    ("long", "what", "severity", "hint"),
    [
        # of 100 sequences, some of 20 tokens and the others of 6
        (10, "train: 10 of 100 sequences longer than --max-length 16", "warning", "99% fit in --max-length 24"),
        (1, "train: 1 of 100 sequences longer than --max-length 16", "note", None),
        (0, "train: --max-length 8 is enough for every sequence", "note", None),
    ],
)
def test_a_max_length_is_suggested(check, tiny_model_dir, tmp_path: Path, long: int, what: str, severity: str, hint) -> None:
    rows = []
    for n in range(100):
        words = ["good", "movie", *"abcdefghij"[n // 10], "abcdefghij"[n % 10], *["one"] * (14 if n < long else 0)]
        rows.append((" ".join(words), "ab"[n % 2]))
    write(tmp_path / "rows.csv", rows)
    checked = check("rows.csv", "-m", tiny_model_dir, "--max-length", 16)
    assert found(checked) == {what: (severity, [])}
    assert hints(checked) == {what: hint}
    assert checked["lengths"]["train"]["longest"] == (20 if long else 6)


def test_no_length_is_suggested_that_the_model_has_no_positions_for(check, tiny_model_dir, tmp_path: Path) -> None:
    positions = json.loads((tiny_model_dir / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    write(tmp_path / "rows.csv", [(f"good movie {n} {'one ' * positions}", "ab"[n % 2]) for n in range(20)])
    checked = check("rows.csv", "-m", tiny_model_dir, "--max-length", 16)
    hint = f"the model takes at most {positions} tokens; --truncate windows reads the whole text"
    assert hints(checked) == {"train: 20 of 20 sequences longer than --max-length 16": hint}


def test_where_long_texts_are_read_in_windows_nothing_is_lost(check, tiny_model_dir, tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", [(f"good movie {n} {'one ' * 20}", "ab"[n % 2]) for n in range(20)])
    checked = check("rows.csv", "-m", tiny_model_dir, "--max-length", 16, "--truncate", "windows")
    what = "train: 20 of 20 sequences longer than --max-length 16, split into windows"
    assert (found(checked), hints(checked)) == ({what: ("note", [])}, {what: None})
    (tmp_path / "my.conll").write_text("good A\n" * 20 + "\nbad B\n", encoding="utf-8")
    checked = found(check("my.conll", "-m", tiny_model_dir, "--max-length", 16))
    assert checked["train: 1 of 2 sequences longer than --max-length 16, split into windows"] == ("note", [])


def test_no_option_is_advised_that_is_refused(check, tmp_path: Path) -> None:
    rows = ['{"text": "good %d", "label": ["a", "b"]}' % n for n in range(3)]  # noqa: UP031
    (tmp_path / "sets.jsonl").write_text("\n".join(rows), encoding="utf-8")
    what = "train: 2 labels with fewer than 10 rows: a (3), b (3)"
    assert hints(check("sets.jsonl", "--multi-label")) == {what: "add rows, or merge labels"}
    (tmp_path / "one.csv").write_text("text,label\n" + "".join(f"good {n},{'ab'[n % 2]}\n" for n in range(6)), encoding="utf-8")
    assert hints(check("one.csv"))[what] == "add rows, merge labels, or try --class-weights balanced"


def test_labels_that_differ_in_case_or_white_space(check, tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", [(f"text {n}", ("Neg", "neg", "pos", "pos ")[n % 4]) for n in range(80)])
    differ = "train: labels that differ only in case or white space"
    assert found(check("rows.csv")) == {f"{differ}: 'Neg', 'neg'": ("warning", []), f"{differ}: 'pos', 'pos '": ("warning", [])}


def test_minus_one_is_no_label_and_that_is_said(check, tmp_path: Path) -> None:
    rows = [(f"text {n}", (-1, 0, 1)[n % 3]) for n in range(60)]
    write(tmp_path / "rows.csv", rows)
    checked = check("rows.csv", code=3)
    what = "train: 20 rows with the label -1, which means unlabelled"
    assert found(checked)[what] == ("warning", ["rows.csv:2", "rows.csv:5", "rows.csv:8"])
    assert hints(checked)[what] == "if it is a class, name all classes: --labels=-1,0,1"
    refused = "train: 20 of 60 rows without a label in column 'label'; this is the first"
    assert "--labels=-1,0,1" in hints(checked)[refused]
    checked = check("rows.csv", "--labels=-1,0,1")
    assert (checked["findings"], checked["labels"]) == ([], {"train": {"-1": 20, "0": 20, "1": 20}})


def test_numbers_are_looked_at_too(check, run_bertkit, tmp_path: Path) -> None:
    rows = [("the same", 1), ("the same", 9), ("twice", 2.5), ("twice", 2.5), *((f"text {n}", n / 2) for n in range(10))]
    write(tmp_path / "rows.csv", rows)
    checked = check("rows.csv", "--regression")
    assert checked["numbers"] == {"train": {"lowest": 0, "mean": 37.5 / 14, "median": 2.5, "highest": 9, "different": 11}}
    assert (checked["labels"], found(checked)) == (
        {"train": {}},
        {
            "train: 1 text with different labels": ("warning", ["rows.csv:2", "rows.csv:3"]),
            "train: 1 duplicate row": ("note", ["rows.csv:4", "rows.csv:5"]),
        },
    )
    assert "target values of train" in run_bertkit("check", "rows.csv", "--regression").err


# --- targets -----------------------------------------------------------------------------------------------------------


def test_a_recipe_with_its_own_data(check) -> None:
    checked = check("helpdesk")
    assert (checked["rows"], checked["findings"]) == ({"train": 800, "validation": 300}, [])
    assert checked["labels"]["train"] == {
        "delivery": 224,
        "technical": 152,
        "billing": 144,
        "returns": 112,
        "accounts": 96,
        "sales": 72,
    }


def test_a_file_beside_its_dev_rows(check, run_bertkit, tiny_model_dir, tmp_path: Path) -> None:
    write(tmp_path / "my.csv", [(f"good {n}", "ab"[n % 2]) for n in range(40)])
    write(tmp_path / "dev.csv", [("good 1", "b"), ("new", "A")])
    checked = check("my.csv", "--validation", "dev.csv", code=3)
    assert checked["rows"] == {"train": 40, "validation": 2}
    assert found(checked)["validation: labels missing from train: A"][0] == "error"
    assert found(checked)["validation: 1 of 2 rows also in train"] == ("warning", ["dev.csv:2"])
    checked = check("my.csv", "--validation", "20%", "-m", tiny_model_dir, "--max-length", 16, "--max-steps", 7)
    assert checked["rows"] == {"train": 32, "validation": 8}
    assert checked["measured"]["steps"] == 7
    ran = run_bertkit("check", "my.csv", "--train", "my.csv")
    assert (ran.code, "error: --train" in ran.err) == (2, True)


def test_splits_are_read_as_training_reads_them(check, tmp_path: Path) -> None:
    """Columns and the separator of labels are those of the training rows."""
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "train.csv").write_text("text,label\n" + 'a,"News, local|Sports"\nb,Sports\n' * 6, encoding="utf-8")
    (tmp_path / "sets" / "dev.csv").write_text('text,label\nc,"News, local"\nd,Sports\n', encoding="utf-8")
    checked = check("sets", "--multi-label")
    assert checked["labels"]["validation"] == {"News, local": 1, "Sports": 1}
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / "train.csv").write_text("text,label\n" + "a,x\nb,y\n" * 6, encoding="utf-8")
    (tmp_path / "names" / "dev.csv").write_text("sentence,target\nc,x\n", encoding="utf-8")
    checked = check("names", code=3)
    assert any(what.startswith("validation: no column 'text'") for what in found(checked)), found(checked)


def test_class_weights_need_no_labels_to_look(check, tiny_model_dir, clean: Path) -> None:
    write(clean, [(f"good movie {n}", "aab"[n % 3]) for n in range(60)])
    assert "measured" in check(clean, "-m", tiny_model_dir, "--max-length", 16, "--class-weights", "balanced")


def test_a_saved_data_set_has_its_splits(check, tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_dict({"sentence": [f"good {n}" for n in range(20)], "label": [0, 1] * 10})
    DatasetDict({"train": rows, "validation": rows.select(range(4))}).save_to_disk(str(tmp_path / "saved"))
    assert check("saved", "--recipe", "sst2")["rows"] == {"train": 20, "validation": 4}


def test_what_would_be_ignored_is_refused(run_bertkit, clean: Path, tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.csv", [("a", "x"), ("b", "y")])
    for argv, what in (
        (("data", "--data", "other"), "--data and data are both data folders"),
        (("helpdesk", "--recipe", "sst2"), "--recipe is for a file or folder; helpdesk is already a recipe"),
    ):
        ran = run_bertkit("check", *argv)
        assert (ran.code, ran.err.splitlines()[0]) == (2, f"error: {what}")


def test_what_is_no_target(run_bertkit, tmp_path: Path) -> None:
    (tmp_path / "seeds" / "seed-1").mkdir(parents=True)
    (tmp_path / "seeds" / "seed-1" / "run.json").write_text("{}", encoding="utf-8")
    for target, code, what in (
        ("nosuch.csv", 3, "(nosuch.csv)"),
        ("glue", 2, "bertkit check mrpc"),
        ("seeds", 2, "seed-1 (seeds)"),
    ):
        ran = run_bertkit("check", target)
        assert (ran.code, what in ran.err, ran.err.startswith("error: ")) == (code, True, True)
    for command in (("eval", "seeds"), ("predict", "seeds", "x.csv")):
        ran = run_bertkit(*command)
        assert (ran.code, "(seeds)" in ran.err, "seeds/seed-1" in ran.err) == (2, True, True)


def test_a_set_that_is_for_evaluation_alone(check, tmp_path: Path) -> None:
    (tmp_path / "diagnostic").mkdir()
    rows = "".join(f"{n}\ta {n}\tb {n}\t{('entailment', 'neutral', 'contradiction')[n % 3]}\n" for n in range(30))
    text = f"index\tsentence1\tsentence2\tlabel\n{rows}"
    (tmp_path / "diagnostic" / "diagnostic.tsv").write_text(text, encoding="utf-8")
    checked = check("ax", "--data", "diagnostic")
    assert (checked["rows"], checked["findings"]) == ({"test": 30}, [])


def test_a_file_with_a_family_and_options(check, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("question;kind\n" + "is it good;a\nis it bad;b\n", encoding="utf-8")
    own = ("--text", "question", "--label", "kind", "--separator", ";")
    assert check("my.csv", *own)["labels"] == {"train": {"a": 1, "b": 1}}
    split = check("text-classification", "--train", "my.csv", "--validation", "my.csv", *own)
    assert split["rows"] == {"train": 2, "validation": 2}
    assert "validation: 2 of 2 rows also in train" in found(split)


@pytest.mark.parametrize(
    ("name", "content", "labels"),
    [
        ("a.conll", "we O\nlike O\nBerlin B-LOC\n\nno O\n", {"O": 3, "B-LOC": 1}),
        ("a.txt", "we\tO\nlike\tO\nBerlin\tB-LOC\n\nno\tO\n", {"O": 3, "B-LOC": 1}),
        ("a.jsonl", '{"tokens": ["we", "like"], "ner_tags": ["O", "B-PER"]}\n', {"O": 1, "B-PER": 1}),
        (
            "a.jsonl",
            '{"question": "who?", "context": "you", "answers": {"text": ["you"], "answer_start": [0]}}\n',
            {"answered": 1},
        ),
        ("a.tsv", "label\ttext\nx\tgood\ny\tbad\n", {"x": 1, "y": 1}),
    ],
)
def test_the_family_by_the_look_of_a_file(check, tmp_path: Path, name: str, content: str, labels: dict[str, int]) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert check(name)["labels"] == {"train": labels}


def test_a_parquet_file(check, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": ["good", "bad"], "label": ["a", "b"]}), tmp_path / "a.parquet")
    assert check("a.parquet")["labels"] == {"train": {"a": 1, "b": 1}}


def test_a_folder_of_tags(check, tmp_path: Path, tiny_model_dir: Path) -> None:
    folder = tmp_path / "tags"
    folder.mkdir()
    (folder / "train.conll").write_text("we O\nlike O\nBerlin B-LOC\n\nno O\n", encoding="utf-8")
    (folder / "dev.conll").write_text("we O\n\nNO O\n", encoding="utf-8")
    checked = check("tags", "-m", tiny_model_dir, "--max-length", 32)
    assert checked["rows"] == {"train": 2, "validation": 2}
    assert found(checked)["validation: 1 of 2 rows also in train"] == ("warning", ["dev.conll:3"])
    assert found(checked)["validation: no row has B-LOC: its scores do not cover them"] == ("note", [])
    assert checked["measured"]["steps"] == 3


def test_remarks_on_the_data_need_no_model(run_bertkit, tmp_path: Path) -> None:
    rows = [{"text": "printer broken", "entities": [[0, 4, "THING"]]}, {"text": "a man", "entities": [[2, 5, "WHO"]]}]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ran = run_bertkit("check", "data", "--recipe", "token-classification")
    assert ran.code == 0, ran.err
    assert "warning: train: 1 of 2 entities begin or end inside a word" in ran.err
    assert "tag scheme of the training data: iob2" in ran.err
    rows = [{"text": f"t{i}", "choices": ["1", "0"], "label": "1"} for i in range(3)]  # numbers of choices, or their texts
    (tmp_path / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ran = run_bertkit("check", "choices.jsonl", "--recipe", "multiple-choice")
    assert "warning: the labels in column 'label'" in ran.err


def test_a_test_split_needs_no_labels(check, tmp_path: Path, tiny_model_dir: Path) -> None:
    rows = [(f"good {n} {n}", "ab"[n % 2]) for n in range(20)]
    write(tmp_path / "data" / "train.csv", rows)
    (tmp_path / "data" / "test.csv").write_text("text\ngood 1 1\na movie\n", encoding="utf-8")
    checked = check("data")
    assert checked["rows"] == {"train": 20, "test": 2}
    assert found(checked) == {"test: 1 of 2 rows also in train": ("warning", ["test.csv:2"])}
    assert check("data", "-m", tiny_model_dir, "--max-length", 32)["measured"]["steps"] == 3


def test_a_run(check, run_bertkit, clean: Path, faulty: Path, tiny_model_dir: Path, tmp_path: Path) -> None:
    data = ("--train", "clean.csv", "--validation", "clean.csv", "--max-length", 16, "--max-steps", 1, "--device", "cpu")
    assert run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run").code == 0
    before = files_of(tmp_path)
    checked = check("run")
    assert checked["rows"] == {"train": 24, "validation": 24}
    assert "validation: 24 of 24 rows also in train" in found(checked)
    # The run's own model is the tokenizer, and its settings are the ones checked: good movie one one ... with 2 to 13 words.
    assert checked["lengths"]["train"]["longest"] == 15
    assert checked["measured"]["steps"] == 1
    shorter = check("run", "--max-length", 12)
    assert found(shorter)["train: 6 of 24 sequences longer than --max-length 12"] == ("warning", [])
    assert files_of(tmp_path) == before
    assert found(check("run", "--train", "data/train.csv", "--validation", "data/dev.csv", code=3)).keys() >= FOUND.keys()


def test_examples_are_shown_and_three_steps_measured(
    run_bertkit, monkeypatch: pytest.MonkeyPatch, make_model_dir, clean: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    from bertkit.runs import finetune as finetuning

    steps, train = [], finetuning.train

    def counted(*arguments: Any, total_steps: int, **keywords: Any) -> Any:
        steps.append(total_steps)
        return train(*arguments, total_steps=total_steps, **keywords)

    monkeypatch.setattr(finetuning, "train", counted)
    before = files_of(tmp_path)
    model = make_model_dir()
    ran = run_bertkit("check", "helpdesk", "-m", model, "--max-length", 60, "--examples", 2, "--json")
    assert ran.code == 0, ran.err
    measured = json.loads(ran.out)["measured"]
    size = sum(weight.size for weight in load_file(model / "model.safetensors").values())
    assert measured["parameters"] == size + 6 * 32 + 6, "with a head for six labels"
    assert measured["steps"] == 100, "800 rows in batches of 32, four times"
    assert measured["tokens a second"] > 0
    assert steps == [3]
    shown = [line for line in ran.err.splitlines() if line.startswith("  [CLS]")]
    assert len(shown) == 2
    assert shown[0].startswith("  [CLS][sales] what d ##o ##e ##s the ")
    ran = run_bertkit("check", clean, "-m", model, "--max-length", 32)
    assert ran.err.count("as the model sees it:") == 5
    assert ran.out == ""
    assert files_of(tmp_path) == before


# --- data that training refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_model", [False, True])
def test_missing_labels_hide_nothing(check, run_bertkit, tiny_model_dir: Path, tmp_path: Path, with_model: bool) -> None:
    train = [(f"good {n} {n}", "ab"[n % 2]) for n in range(20)]
    write(tmp_path / "data" / "train.csv", [*train, ("a &amp; b", ""), ("no film", "")])
    write(tmp_path / "data" / "dev.csv", [("good 1 1", "b"), ("a man", ""), ("a city", "a")])
    missing = "rows without a label in column 'label'; this is the first"
    expected = {
        f"train: 2 of 22 {missing}": ("error", ["train.csv:22"]),
        f"validation: 1 of 3 {missing}": ("error", ["dev.csv:3"]),
        "validation: 1 of 3 rows also in train": ("warning", ["dev.csv:2"]),
        "train: 1 row with HTML markup": ("note", ["train.csv:22"]),
    }
    if with_model:
        expected["train: --max-length 16 is enough for every sequence"] = ("note", [])
    checked = check("data", *(("-m", tiny_model_dir) if with_model else ()), code=3)
    assert found(checked) == expected
    assert checked["labels"] == {"train": {"a": 10, "b": 10}, "validation": {"b": 1, "a": 1}}
    own = ("--data", "data", "-m", tiny_model_dir, "-o", "run", "--max-length", 16)
    assert run_bertkit("finetune", "text-classification", *own).code == 3, "training refuses it"


def test_refused_data_is_looked_at_with_the_tokenizer(run_bertkit, tiny_model_dir: Path, faulty: Path, tmp_path: Path) -> None:
    before = files_of(tmp_path)
    ran = run_bertkit("check", "data", "-m", tiny_model_dir, "--examples", 3, "--json")
    assert ran.code == 3
    checked = json.loads(ran.out)
    more = {what: its for what, its in found(checked).items() if what not in FOUND}
    assert found(checked).keys() >= FOUND.keys()
    assert more["train: 1 row with nothing but [UNK]"] == ("warning", ["train.csv:22"])
    assert checked["lengths"].keys() == {"train", "validation"}
    assert "measured" not in checked
    shown = [line for line in ran.err.splitlines() if line.startswith("  [CLS]")]
    assert shown[:2] == [
        "  [CLS] the good movie [SEP] (5 tokens, segment B: 0)",
        "  [CLS] a bad book [SEP] (5 tokens, segment B: 0)",
    ]
    assert len(shown) == 3
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("text,label\ngood,a\nbad,a\n", "train: every row has the label 'a'; expected two or more labels"),
        ("text\ngood\n", "train: it is not clear which column is the label; columns: text"),
        ("label,rest,others\na,b,c\n", "train: it is not clear which column is the text; columns: label, rest, others"),
        ("text,label\ngood,a\nbad\n", "train: found 1 field, expected 2: 'text, label'"),
        ("", "train: the file is empty"),
    ],
)
def test_a_file_that_cannot_be_trained_on(check, tmp_path: Path, content: str, what: str) -> None:
    (tmp_path / "my.csv").write_text(content, encoding="utf-8")
    checked = check("my.csv", code=3)
    assert [severity for severity, _ in found(checked).values()].count("error") == 1
    assert found(checked)[what][0] == "error"


def test_the_classes_of_numbers(check, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("text,label\ngood,0.5\nbad,x\n", encoding="utf-8")
    what = "train: 'x' in column 'label' is not a finite number, as regression needs"
    assert found(check("my.csv", "--regression", code=3)) == {what: ("error", ["my.csv:3"])}


def test_labels_that_training_has_not_are_no_error_where_training_takes_them(
    check, run_bertkit, tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tags"
    folder.mkdir()
    (folder / "train.conll").write_text("we O\nlike O\nBerlin B-LOC\n\nno O\n", encoding="utf-8")
    (folder / "dev.conll").write_text("they O\nlike O\nAnna B-PER\nBerlin B-LOC\n", encoding="utf-8")
    what = "validation: labels missing from train: B-PER"
    assert found(check("tags"))[what] == ("warning", [])
    own = ("--data", "tags", "-m", tiny_model_dir, "--max-steps", 1, "--max-length", 16, "--device", "cpu")
    assert run_bertkit("finetune", "token-classification", *own, "-o", "run").code == 0
    (folder / "dev.conll").write_text("they O\nlike O\nBerlin b-loc\n", encoding="utf-8")
    assert run_bertkit("finetune", "token-classification", *own, "-o", "other").code == 3
    assert found(check("tags", code=3))["validation: labels missing from train: b-loc"] == ("error", [])
    rows = [(f"good {n} {n}", "ab"[n % 2]) for n in range(20)]
    write(tmp_path / "data" / "train.csv", rows)
    write(tmp_path / "data" / "dev.csv", [("a", "a"), ("b", "b"), ("c", "c")])
    what = "validation: labels missing from train: c"
    assert found(check("data", "--labels", "a,b,c")) == {what: ("warning", [])}
    assert found(check("data", code=3)) == {what: ("error", [])}
    unknown = found(check("data", "--labels", "a,d", code=3))
    assert unknown["train: unknown label 'b'; expected one of a, d"] == ("error", ["train.csv:3"])


# --- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("clean.csv", "--masking", "whole-word"), "--masking"),
        (("helpdesk", "--objective", "mlm"), "--objective"),
        (("corpus", "--text", "text"), "--text"),
        (("corpus", "--max-train-samples", 3), "--max-train-samples"),
        (("clean.csv", "--recipe", "helpdsk"), "no recipe 'helpdsk'"),
        (("clean.csv", "--scheme", "BIO"), "--scheme"),
        (("hlpdesk",), "no recipe 'hlpdesk'"),
    ],
)
def test_options_that_do_not_fit(run_bertkit, clean: Path, tmp_path: Path, argv: tuple[Any, ...], what: str) -> None:
    from bertkit.corpus.build import META

    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / META).write_text("{}", encoding="utf-8")
    ran = run_bertkit("check", *argv)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {what}"), ran.err


def test_what_was_found_is_shown_though_nothing_can_be_measured(run_bertkit, clean: Path, tiny_model_dir: Path) -> None:
    ran = run_bertkit("check", clean, "-m", tiny_model_dir, "--max-length", 65)
    assert ran.code == 2
    assert "error: --max-length is 65; the model has 64 positions" in ran.err.splitlines()
    assert "0 errors" in ran.err.partition("error: ")[0]
