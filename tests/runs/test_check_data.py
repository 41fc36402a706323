"""bertkit check of labelled data: each fault is found, counted and placed, and called an error where training refuses it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from bertkit.errors import DataError
from bertkit.model.pretrained import open_pretrained
from bertkit.readers import Examples
from bertkit.report import SEVERITIES, Finding, Table
from bertkit.runs.checks.data import open_data
from bertkit.runs.checks.labelled import Checked, check_data
from bertkit.tasks import Task, TextClassification, TokenClassification
from bertkit.tasks.preview import preview
from bertkit.tasks.splits import read_splits
from bertkit.text.tokenizer import Tokenizer

Rows = list[tuple[Any, Any]]
Found = tuple[str, str, list[str]]  # severity, a part of the text, places

TRAIN: Rows = [
    ("the good movie", "pos"),  # line 2
    ("a bad book", "neg"),
    ("we like it", "pos"),
    ("The  good MOVIE", "pos"),  # line 5 repeats line 2
    ("they hate the river", "pos"),
    ("they hate the river", "neg"),  # line 7 contradicts line 6
    ("caf\u00c3\u00a9 and good", "pos"),  # line 8
    ("a lost \ufffd letter", "neg"),
    ("one\x07two", "pos"),
    ("good<br />bad &amp; one", "neg"),  # line 11
    *((f"good movie {n} {n}", "pos") for n in range(10)),  # lines 12 to 21
    ("\u738b \u6797", "odd"),  # line 22
    ("it\u00e2\u20ac\u2122s good", "pos"),  # line 23
    ("p\u00e2t\u00e9 of S\u00c3O, 5 \u20ac \u00c0 l'\u00c2ge", "pos"),  # real letters
]
DEV: Rows = [
    ("a bad book", "pos"),  # line 2, with another label in training
    ("the good movie", "pos"),  # line 3
    ("a new plot", "maybe"),  # line 4
    (" ", "neg"),  # line 5
    ("no actor", "neg"),
    ("", "pos"),  # line 7
]


def write(path: Path, rows: Rows) -> Path:
    quoted = "".join('"' + str(text).replace('"', '""') + f'",{label}\n' for text, label in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text,label\n" + quoted, encoding="utf-8")
    return path


def ab(count: int, text: str = "good {0} {0}", labels: str = "ab") -> Rows:
    return [(text.format(n), labels[n % len(labels)]) for n in range(count)]


def check(target: object, recipe: str | None = None, model: Path | None = None, **overrides: Any) -> Checked:
    opened, splits, _ = open_data(str(target), recipe, overrides)
    return check_data(opened, splits, open_pretrained(str(model)) if model else None)


def assert_found(checked: Checked, *expected: Found, others: bool = False) -> None:
    """That each expected finding is there once; others: there may be more."""
    for severity, part, places in expected:
        (finding,) = (finding for finding in checked.findings if part in finding.what)
        assert (finding.severity, [Path(place).name for place in finding.places]) == (severity, places), finding
    assert others or len(checked.findings) == len(expected), checked.findings


def hint(checked: Checked, part: str) -> str | None:
    (finding,) = (finding for finding in checked.findings if part in finding.what)
    return finding.hint


def counts_of(checked: Checked) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """The rows and the labels of each split."""
    values = checked.report("data").json
    return values["rows"], values["labels"]


def training_refuses(target: Path, model: Path, recipe: str | None = None, **overrides: Any) -> bool:
    """Whether fitting a task to the training split or encoding any split raises DataError."""
    opened, splits, _ = open_data(str(target), recipe, overrides)
    tokenizer = open_pretrained(str(model)).tokenizer
    try:
        rows = read_splits(opened, splits).rows
        task = Task.fit(opened, rows[splits[0]])
        for split in splits:
            task.encode(task.examples(rows[split], labelled=True), tokenizer)
    except DataError:
        return True
    return False


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    write(tmp_path / "data" / "dev.csv", DEV)
    return write(tmp_path / "data" / "train.csv", TRAIN).parent


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    rows = [(f"{word} movie {'one ' * n}", label) for n in range(12) for word, label in (("good", "pos"), ("bad", "neg"))]
    return write(tmp_path / "clean.csv", rows)


@pytest.mark.parametrize("validation", [None, "25%"])
def test_every_broken_row_is_listed_and_the_others_are_checked(tmp_path: Path, validation: str | None) -> None:
    lines = ["text,label", *(f"text {number},{'ab'[number % 2]}" for number in range(40))]
    lines[5], lines[9], lines[20] = "a,b,c,d", "alone", ",a"
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(lines), encoding="utf-8")
    checked = check(file, validation=validation) if validation else check(file)
    others, broken = sorted(finding.what for finding in checked.findings if finding.severity == "error")
    assert "found 4 fields" in broken
    assert others.startswith("train: cannot use 2 rows")
    assert all(f"rows.csv:{line}" in others for line in (10, 21))
    assert checked.remarks.warnings == ()
    assert sum(checked.labels["train"].values()) == (37 if validation is None else 28)


def test_the_first_byte_of_another_encoding_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    lines = ["text,label", *(f"text {number},{'ab'[number % 2]}" for number in range(40))]
    lines[5], lines[9] = "café,a", "naïve,b"
    file.write_bytes("\n".join(lines).encode("latin-1"))
    checked = check(file)
    assert [finding.what for finding in checked.findings if "UTF-8" in finding.what] != []
    assert sum(f"{file}:6" in place for finding in checked.findings for place in (finding.what, *finding.places)) == 1
    assert checked.remarks.warnings == ()


def test_a_warning_of_a_broken_row_that_explains_it_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label,extra\n" + "".join(f"good {n},a,x\nbad {n},b,y\n" for n in range(9)), encoding="utf-8")
    checked = check(file, columns=("text", "label"))
    assert any("the first row, 'text, label, extra', is read as data" in warning for warning in checked.remarks.warnings)


def test_a_broken_row_of_one_split_hides_no_fault_of_another(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.csv", [*ab(20), ("no label", "")])
    write(tmp_path / "data" / "dev.csv", ab(20, "dev {0}"))
    with (tmp_path / "data" / "dev.csv").open("a", encoding="utf-8") as file:
        file.write("a,b,c\n")
    errors = [finding.what for finding in check(tmp_path / "data").findings if finding.severity == "error"]
    assert any("found 3 fields" in what for what in errors)
    assert any("train.csv:22" in what for what in errors), errors


def test_a_folder_without_rows_to_evaluate_on(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("test", 20)):
        write(tmp_path / f"{split}.csv", ab(count, split + " {0}"))
    assert_found(check(tmp_path), ("warning", "no rows to evaluate on", [tmp_path.name]))
    held_out = check(tmp_path, validation="25%")
    assert_found(held_out)
    assert counts_of(held_out)[0] == {"train": 30, "validation": 10, "test": 20}


# --- what is found ---------------------------------------------------------------------------------------------------------

FAULTS: list[Found] = [
    ("error", "2 rows without text: the text in column 'text' is empty", ["dev.csv:5", "dev.csv:7"]),
    ("error", "maybe", []),
    ("warning", "odd (1), neg (4)", []),
    ("warning", "1 row with U+FFFD", ["train.csv:9"]),
    ("warning", "2 rows with UTF-8 read as Latin-1 or Windows-1252, such as \u00c3\u00a9", ["train.csv:8", "train.csv:23"]),
    ("warning", "1 row with control", ["train.csv:10"]),
    ("warning", "train: 1 text", ["train.csv:6", "train.csv:7"]),
    ("warning", "2 of 6 rows also in train, 1 of them", ["dev.csv:2", "dev.csv:3"]),
    ("note", "no row has the label odd; the scores do not cover it", []),
    ("note", "1 row with HTML", ["train.csv:11"]),
    ("note", "1 duplicate", ["train.csv:2", "train.csv:5"]),
]


def test_every_fault_of_a_folder(run_bertkit, faulty: Path) -> None:
    checked = check("data")
    assert_found(checked, *FAULTS)
    ran = run_bertkit("check", "data", "--json")
    values = json.loads(ran.out)
    assert (ran.code, values) == (3, json.loads(json.dumps(checked.report("data").json)))
    assert values["rows"] == {"train": 23, "validation": 6}
    assert values["labels"] == {"train": {"pos": 18, "neg": 4, "odd": 1}, "validation": {"pos": 3, "neg": 2, "maybe": 1}}
    assert (values["lengths"], "measured" in values, "numbers" in values) == ({}, False, False)
    severities = [finding["severity"] for finding in values["findings"]]
    assert severities == sorted(severities, key=SEVERITIES.index)
    lines = ran.err.splitlines()
    printed = [sum(line.startswith(f"{severity}: ") for line in lines) for severity in ("error", "warning")]
    assert (lines[-1], printed) == ("2 errors, 6 warnings, 4 notes", [2, 6]), "columns by their names are a note"
    assert any(line.startswith("error: ") and f"({faulty}/dev.csv:5, {faulty}/dev.csv:7); " in line for line in lines)
    cells = [[cell.strip() for cell in line.strip("\u2502").split("\u2502")] for line in lines]
    for row in (["pos", "18", "3"], ["neg", "4", "2"], ["odd", "1", "0"], ["maybe", "0", "1"]):
        assert row in cells


MANY = [("good movie", "a")] * 5 + [("bad &lt; movie", "b")] * 2 + [("<p>a book", "b")] * 10 + [("a film", "a")] * 9
FREQUENT = ab(110, labels="a") + ab(12, "bad {0} {0}", "b")  # 110 of 122 are a
NUMBERS: Rows = [("the same", 1), ("the same", 9), ("twice", 2.5), ("twice", 2.5), *((f"text {n}", n / 2) for n in range(10))]
DECIMALS: Rows = [(f"text {n}", n % 3 / 2) for n in range(60)]
MINUS: Rows = [(f"text {n}", (-1, 0, 1)[n % 3]) for n in range(60)]
MINUS_PLACES = ["rows.csv:2", "rows.csv:5", "rows.csv:8", "..."]
SPELLED: Rows = [(f"text {n}", ("Neg", "neg", "pos", "pos ")[n % 4]) for n in range(80)]
NEAR_CORRECT = ("corerct", "Corect", "correct_2", "incorrect")
FIRST_HTML, FIRST_TWICE = ([*(f"rows.csv:{line + n}" for n in range(3)), "..."] for line in (7, 2))


@pytest.mark.parametrize(
    ("rows", "overrides", "expected"),
    [
        (MANY, {}, [("note", "12 rows with HTML", FIRST_HTML), ("note", "22 duplicate", FIRST_TWICE)]),
        (ab(12, labels="a") + ab(9, "bad {0} {0}", "b"), {}, [("warning", "1 label with fewer than 10 rows: b (9)", [])]),
        (
            [*((f"good {n}", "correct") for n in range(12)), *((f"x {name}", name) for name in NEAR_CORRECT)],
            {},
            [("warning", "rows: corerct (1, or correct?), Corect (1, or correct?), correct_2 (1), incorrect (1)", [])],
        ),
        (ab(12, labels="a") + ab(10, "bad {0} {0}", "b"), {}, []),
        (
            [*[("the same", "a")] * 4, ("the same", "b"), *ab(12, labels="a"), *ab(10, "bad {0} {0}", "b")],
            {},
            [("warning", "train: 1 text with different labels", ["rows.csv:2", "rows.csv:6"])],
        ),
        (
            [("the same", "a|b"), ("the same", "b|a"), *ab(40)],
            {"multi_label": True},
            [("note", "train: 1 duplicate row", ["rows.csv:2", "rows.csv:3"])],
        ),
        (FREQUENT, {}, [("note", "90.2% of labels are a", [])]),
        (FREQUENT[2:], {}, []),  # 108 of 120: no more than nine tenths
        (
            MINUS,
            {},
            [("warning", "train: 20 rows with the label -1", MINUS_PLACES), ("error", "20 of 60", ["rows.csv:2"])],
        ),
        (
            [*MINUS, (" ", 1)],  # training refuses the split for its text
            {},
            [
                ("warning", "train: 20 rows with the label -1, which means unlabelled", MINUS_PLACES),
                ("error", "20 of 61", ["rows.csv:2"]),
                ("error", "1 row without text", ["rows.csv:62"]),
            ],
        ),
        (MINUS, {"labels": "-1,0,1"}, []),
        (
            NUMBERS,
            {"regression": True},
            [("warning", "1 text", ["rows.csv:2", "rows.csv:3"]), ("note", "1 duplicate", ["rows.csv:4", "rows.csv:5"])],
        ),
        (DECIMALS, {}, [("error", "0.5", ["rows.csv:3"])]),
        (DECIMALS, {"classes": True}, []),
        ([("good", 0.5), ("bad", "x")], {"regression": True}, [("error", "'x'", ["rows.csv:3"])]),
    ],
)
def test_faults_of_a_file(tmp_path: Path, rows: Rows, overrides: dict[str, Any], expected: list[Found]) -> None:
    assert_found(check(write(tmp_path / "rows.csv", rows), **overrides), *expected)


def test_numbers_have_statistics_in_place_of_counts(tmp_path: Path) -> None:
    checked = check(write(tmp_path / "rows.csv", NUMBERS), regression=True)
    expected = {"lowest": 0, "mean": 37.5 / 14, "median": 2.5, "highest": 9, "different": 11}
    report = checked.report("rows")
    assert (report.json["numbers"], report.json["labels"]) == ({"train": expected}, {"train": {}})
    assert [part.columns for part in report.parts if isinstance(part, Table)] == [list(expected)]
    assert check(write(tmp_path / "rows.csv", [("good", "x"), ("bad", "nan")]), regression=True).numbers == {"train": {}}


@pytest.mark.parametrize("count", [30, 31])
def test_the_table_has_the_thirty_most_frequent_labels(tmp_path: Path, count: int) -> None:
    rows = [(f"good {n}", f"l{n % count}") for n in range(10 * count)]
    (table,) = (part for part in check(write(tmp_path / "rows.csv", rows)).report("x").parts if isinstance(part, Table))
    assert (len(table.rows), "31" in table.title) == (30, count == 31)


def test_a_preview_shortens_long_sequences_and_shows_what_is_cut(tiny_tokenizer_dir: Path) -> None:
    rows = Examples({"text": [f"good {'one ' * 200}bad", "no"], "label": ["a", "b"]}, "f", range(2))
    task = Task.fit(TextClassification(train="f").overridden({"max_length": 130}).resolved(), rows)
    tokenizer, examples = Tokenizer.load(tiny_tokenizer_dir), task.examples(rows, labelled=True)
    shown = preview(task, examples, task.encode(examples, tokenizer).features, tokenizer, count=1)
    place, sequence, cut = (part.plain for part in shown.parts if isinstance(part, Text))
    assert "f:0" in place
    assert sequence == f"  [CLS][a] good {'one ' * 118}... (130 tokens, segment B: 0)"
    assert cut.endswith(f": {'one ' * 73}bad")


def test_a_preview_says_that_a_row_has_no_words(tiny_tokenizer_dir: Path) -> None:
    rows = Examples({"tokens": [[], ["good"]], "tags": [[], ["A"]]}, "f", range(2))
    task, tokenizer = Task.unfitted(TokenClassification(train="f").resolved()), Tokenizer.load(tiny_tokenizer_dir)
    shown = preview(task, rows, task.encode(rows, tokenizer, labelled=False).features, tokenizer, count=2)
    assert [part.plain for part in shown.parts if isinstance(part, Text)] == [
        "example f:0, as the model sees it:",
        "  nothing: the row has no words",
        "example f:1, as the model sees it:",
        "  [CLS] good [SEP] (3 tokens, segment B: 0)",
    ]


def test_more_than_a_hundredth_of_leaked_rows_is_a_warning(tmp_path: Path) -> None:
    train = write(tmp_path / "data" / "train.csv", ab(40)).parent
    dev = [ab(1)[0], *ab(99, "bad {0} {0}")]
    for rows, severity in ((dev, "note"), (dev[:-1], "warning")):
        write(train / "dev.csv", rows)
        assert_found(check(train), (severity, f"1 of {len(rows)} rows also in train", ["dev.csv:2"]))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("text,label\ngood,a\nbad,a\n", "'a'"),
        ("text\ngood\n", "label"),
        ("label,rest,others\na,b,c\n", "text"),
        ("text,label\ngood,a\nfine,b\nbad\n", "1 field"),
        ("", "empty"),
    ],
)
def test_a_file_that_cannot_be_trained_on(tmp_path: Path, content: str, part: str) -> None:
    (tmp_path / "my.csv").write_text(content, encoding="utf-8")
    (error,) = (finding for finding in check(tmp_path / "my.csv").findings if finding.severity == "error")
    assert part in error.what
    assert error.places[0].startswith(f"{tmp_path}/my.csv")


def test_missing_labels_hide_nothing(tmp_path: Path, tiny_model_dir: Path) -> None:
    write(tmp_path / "data" / "train.csv", [*ab(20), ("a &amp; b", ""), ("no film", "")])
    write(tmp_path / "data" / "dev.csv", [("good 1 1", "b"), ("a man", ""), ("a city", "a")])
    expected: list[Found] = [
        ("error", "train: 2 of 22", ["train.csv:22"]),
        ("error", "validation: 1 of 3 rows without", ["dev.csv:3"]),
        ("warning", "1 of 3 rows also in train", ["dev.csv:2"]),
        ("note", "HTML", ["train.csv:22"]),
    ]
    for model, more in ((None, []), (tiny_model_dir, [("note", "--max-length 16", [])])):
        checked = check(tmp_path / "data", model=model)
        assert_found(checked, *expected, *more)
        assert counts_of(checked)[1] == {"train": {"a": 10, "b": 10}, "validation": {"b": 1, "a": 1}}
    assert training_refuses(tmp_path / "data", tiny_model_dir)


def test_unknown_labels_are_errors_where_training_refuses_them(tmp_path: Path, tiny_model_dir: Path) -> None:
    tags, data = tmp_path / "tags", tmp_path / "data"
    write(data / "train.csv", ab(20))
    write(data / "dev.csv", ab(3, "{0}", "abc"))
    numbers = write(tmp_path / "numbers" / "train.csv", ab(20, labels="01")).parent
    write(numbers / "dev.csv", ab(3, "{0}", "01c"))  # numbers, and a name
    tags.mkdir()
    (tags / "train.conll").write_text("we O\nlike O\nBerlin B-LOC\n\nno O\n", encoding="utf-8")
    for folder, tag, overrides in (
        (tags, "B-PER", {}),
        (tags, "b-loc", {}),  # another spelling of a known one
        (data, "c", {"labels": "a,b,c"}),
        (numbers, "c", {"labels": "a,b,c"}),
        (data, "c", {}),
    ):
        (tags / "dev.conll").write_text(f"they O\nlike O\nAnna {tag}\nBerlin B-LOC\n", encoding="utf-8")
        severity = "error" if training_refuses(folder, tiny_model_dir, **overrides) else "warning"
        assert severity == ("error" if tag == "b-loc" or (tag == "c" and not overrides) else "warning")
        assert_found(check(folder, **overrides), (severity, f"train: {tag}", []), others=True)
    (tags / "dev.conll").write_text("they O\nAnna NOUN\nhe B-LOC\nBerlin b-loc\n", encoding="utf-8")
    found = check(tags)
    assert_found(
        found, ("error", "train: NOUN, b-loc", []), ("error", "not all tags are chunk tags", ["dev.conll:1"]), others=True
    )
    assert_found(check(data, labels="a,d"), ("error", "unknown label 'b'", ["train.csv:3"]), others=True)


def test_hints_name_only_options_that_fit(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": f"good {n}", "label": ["a", "b"]}) + "\n" for n in range(3))
    (tmp_path / "sets.jsonl").write_text(rows, encoding="utf-8")
    weights = "--class-weights"
    assert weights not in str(hint(check(tmp_path / "sets.jsonl", multi_label=True), "a (3), b (3)"))
    assert weights in str(hint(check(write(tmp_path / "one.csv", ab(6))), "a (3), b (3)"))
    checked = check(write(tmp_path / "minus.csv", MINUS))
    assert all("--labels=-1,0,1" in str(hint(checked, part)) for part in ("20 rows", "20 of 60"))


# --- tokens ----------------------------------------------------------------------------------------------------------------


def test_tokens_are_counted(tiny_model_dir: Path, faulty: Path) -> None:
    write(faulty / "train.csv", [("good \u738b movie", "a"), ("\u6797 \u738b", "b"), ("bad", "a"), ("the good movie", "b")])
    write(faulty / "dev.csv", [("a \u738b", "a"), ("good", "b")])
    checked = check(faulty, model=tiny_model_dir, max_length=16)
    # [UNK] are 3 of 17 tokens of training, special ones among them, and 1 of 7.
    unknown: list[Found] = [
        ("warning", "train: 17.65%", []),
        ("warning", "train: 1 row with nothing but [UNK]", ["train.csv:3"]),
    ]
    assert_found(checked, *unknown, ("warning", "validation: 14.29%", []), others=True)
    assert sum("[UNK]" in finding.what for finding in checked.findings) == 3
    assert checked.lengths["train"] == pytest.approx({"mean": 4.25, "50%": 4.5, "90%": 5, "99%": 5, "longest": 5})
    assert checked.lengths["validation"] == pytest.approx({"mean": 3.5, "50%": 3.5, "90%": 3.9, "99%": 3.99, "longest": 4})
    write(faulty / "train.csv", [("", "a"), ("\u738b", "b"), ("good", "a")])
    checked = check(faulty / "train.csv", model=tiny_model_dir, max_length=16)
    expected: list[Found] = [("warning", "1 row with nothing but [UNK]", ["train.csv:3"])]
    assert_found(checked, *expected, ("error", "1 row without text", ["train.csv:2"]), others=True)


def test_rows_without_words_do_not_hide_which_row_is_unknown(tiny_model_dir: Path, tmp_path: Path) -> None:
    texts = ("good movie", "", "\u738b \u738b", "the good movie", "")
    rows = [{"text": text, "label": [[0, 4, "A"]] if text[:4] == "good" else []} for text in texts]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    checked = check(tmp_path / "rows.jsonl", model=tiny_model_dir, max_length=16)
    found: list[Found] = [("warning", "1 row with nothing but [UNK]", ["rows.jsonl:3"])]
    assert_found(checked, *found, ("warning", "2 rows without text", ["rows.jsonl:2", "rows.jsonl:5"]), others=True)


def test_a_split_without_words_has_no_lengths(tiny_model_dir: Path, tmp_path: Path) -> None:
    for name, texts in (("train", ("good movie", "bad movie")), ("dev", ("", " "))):
        rows = [{"text": text, "label": [[0, 3, "A"]] if text.strip() else []} for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    checked = check(tmp_path / "train.jsonl", model=tiny_model_dir, validation=str(tmp_path / "dev.jsonl"))
    assert_found(checked, ("warning", "2 rows without text", ["dev.jsonl:1", "dev.jsonl:2"]), others=True)
    assert [*checked.lengths] == ["train"]


def test_little_unknown_is_a_note(tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.csv", [*ab(20, f"good movie {'one ' * 40}{{0}} {{0}}"), ("good \u738b", "a")])
    checked = check(rows, model=tiny_model_dir, max_length=64)
    assert_found(checked, ("note", "0.11%", []), others=True)  # 1 of 20 * 46 + 4 tokens


@pytest.mark.parametrize(
    ("long", "overrides", "severity", "part", "suggested"),
    [
        # of 100 sequences, some of 20 tokens and the others of 6
        (10, {}, "warning", "10 of 100 sequences longer than --max-length 16", "--max-length 24"),
        (2, {}, "warning", "2 of 100", "--max-length 24"),
        (1, {}, "note", "1 of 100", None),
        (0, {}, "note", "--max-length 8", None),
        (10, {"truncate": "windows"}, "note", "10 of 100", None),
    ],
)
def test_a_max_length_is_suggested(tiny_model_dir, tmp_path, long, overrides, severity, part, suggested) -> None:
    texts = (["good", "movie", *"abcdefghij"[n // 10], "abcdefghij"[n % 10], *["one"] * (14 * (n < long))] for n in range(100))
    rows = write(tmp_path / "rows.csv", [(" ".join(words), "ab"[n % 2]) for n, words in enumerate(texts)])
    checked = check(rows, model=tiny_model_dir, max_length=16, **overrides)
    assert_found(checked, (severity, part, []))
    assert (suggested or "") in (hint(checked, part) or "")
    assert (hint(checked, part) is None) == (suggested is None)
    assert checked.lengths["train"]["longest"] == (20 if long else 6)
    (tmp_path / "my.conll").write_text("good A\n" * 20 + "\nbad B\n", encoding="utf-8")  # tags are read in windows
    tags = check(tmp_path / "my.conll", model=tiny_model_dir, max_length=16)
    assert_found(tags, ("note", "1 of 2 sequences longer than --max-length 16", []), others=True)


def test_lengths_that_the_model_has_no_positions_for(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.csv", ab(20, f"good movie {{0}} {'one ' * 64}"))
    checked = check(rows, model=tiny_model_dir, max_length=16)
    assert all(part in str(hint(checked, "20 of 20")) for part in ("64", "--truncate windows"))
    ran = run_bertkit("check", rows, "-m", tiny_model_dir, "--max-length", 65)
    assert (ran.code, "0 errors" in ran.err.partition("error: ")[0]) == (2, True), "findings are shown first"


# --- targets ---------------------------------------------------------------------------------------------------------------


def test_a_recipe_with_its_own_data() -> None:
    checked = check("helpdesk")
    assert (counts_of(checked)[0], checked.findings) == ({"train": 800, "validation": 300}, [])
    teams = {"delivery": 224, "technical": 152, "billing": 144, "returns": 112, "accounts": 96, "sales": 72}
    assert counts_of(checked)[1]["train"] == teams


def test_a_file_beside_its_dev_rows(tmp_path: Path) -> None:
    rows, dev = write(tmp_path / "my.csv", ab(40)), write(tmp_path / "dev.csv", [("good 1 1", "b"), ("new", "A")])
    checked = check(rows, validation=str(dev))
    assert counts_of(checked)[0] == {"train": 40, "validation": 2}
    expected: list[Found] = [("error", "train: A", []), ("warning", "1 of 2 rows also in train", ["dev.csv:2"])]
    assert_found(checked, *expected, others=True)
    assert counts_of(check(rows, validation="20%"))[0] == {"train": 32, "validation": 8}
    assert counts_of(check("text-classification", train=str(rows), validation=str(rows)))[0] == {"train": 40, "validation": 40}


def test_splits_are_read_as_training_reads_them(tmp_path: Path) -> None:
    """Columns and the separator of labels are those of the training rows."""
    for name, train, dev in (
        ("sets", "text,label\n" + 'a,"News, local|Sports"\nb,Sports\n' * 6, 'text,label\nc,"News, local"\nd,Sports\n'),
        ("names", "text,label\n" + "a,x\nb,y\n" * 6, "sentence,target\nc,x\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.csv").write_text(train, encoding="utf-8")
        (tmp_path / name / "dev.csv").write_text(dev, encoding="utf-8")
    assert counts_of(check(tmp_path / "sets", multi_label=True))[1]["validation"] == {"News, local": 1, "Sports": 1}
    assert_found(check(tmp_path / "names"), ("error", "validation: no column 'text'", ["dev.csv"]), others=True)


def test_a_saved_data_set_has_its_splits(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_dict({"sentence": [f"good {n}" for n in range(20)], "label": [0, 1] * 10})
    DatasetDict({"train": rows, "validation": rows.select(range(4))}).save_to_disk(str(tmp_path / "saved"))
    assert counts_of(check(tmp_path / "saved", "sst2"))[0] == {"train": 20, "validation": 4}
    answers = [{"text": ["man"], "answer_start": [2]}] * 20
    questions = Dataset.from_dict({"question": ["who?"] * 20, "context": ["a man"] * 20, "answers": answers})
    DatasetDict({"train": questions}).save_to_disk(str(tmp_path / "questions"))
    Dataset.from_dict({"indices": [0]}).save_to_disk(str(tmp_path / "other"))  # as `map` and `shuffle` leave it
    (computed,) = (tmp_path / "other").glob("data*.arrow")
    computed.rename(tmp_path / "questions" / "train" / "cache-0123456789abcdef.arrow")
    recipe, splits, _ = open_data(str(tmp_path / "questions"), None, {})
    assert (recipe.family, splits) == ("question-answering", ("train",))


@pytest.mark.parametrize("recipe", [None, "text-classification"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, recipe: str | None) -> None:
    with pytest.raises(DataError, match="no such file"):
        open_data(str(tmp_path / "a.csv"), recipe, {})


def test_a_set_for_evaluation_alone(tmp_path: Path) -> None:
    rows = "".join(f"{n}\ta {n}\tb {n}\t{('entailment', 'neutral', 'contradiction')[n % 3]}\n" for n in range(30))
    (tmp_path / "diagnostic.tsv").write_text(f"index\tsentence1\tsentence2\tlabel\n{rows}", encoding="utf-8")
    checked = check("ax", data=str(tmp_path))
    assert (counts_of(checked)[0], checked.findings) == ({"test": 30}, [])


def test_a_test_split_needs_no_labels(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ab(20))
    (tmp_path / "test.csv").write_text("text\ngood 1 1\na movie\n", encoding="utf-8")
    checked = check(tmp_path)
    assert counts_of(checked)[0] == {"train": 20, "test": 2}
    unscored: Found = ("note", "test: cannot be scored", ["test.csv"])
    assert_found(
        checked,
        ("warning", "no rows to evaluate on", [tmp_path.name]),
        ("warning", "test: 1 of 2 rows also in train", ["test.csv:2"]),
        unscored,
    )


def test_a_test_split_is_checked_as_the_others_are(tmp_path: Path, tiny_model_dir: Path) -> None:
    train, dev = write(tmp_path / "data" / "train.csv", ab(40)), write(tmp_path / "data" / "dev.csv", ab(20, "new {0} {0}"))
    rows = [("good 1 1", "b"), ("good 2 2", "b"), ("", "a"), ("fine", "c"), ("odd", "")]
    test = write(tmp_path / "data" / "test.csv", rows)
    expected: list[Found] = [
        ("error", "test: labels missing from train: c", []),
        ("warning", "test: 2 of 5 rows also in train, 1 of them", ["test.csv:2", "test.csv:3"]),
        ("warning", "test: 1 row without text: cannot be scored: the text in column 'text'", ["test.csv:4"]),
    ]
    whole = {"train": str(train), "validation": str(dev), "test": str(test)}
    for target, own in (
        (train, {"test": str(test)}),
        (train.parent, {}),
        ("text-classification", whole),
        ("text-classification", {"data": str(train.parent)}),
    ):
        checked = check(target, model=tiny_model_dir, max_length=16, **own)
        assert_found(checked, *expected, others=True)
        assert counts_of(checked)[1]["test"] == {"b": 2, "a": 1, "c": 1}
        assert checked.lengths["test"]["longest"] == 6, "fine is two pieces"
    write(test, [("fine", "a"), ("odd", ""), ("even", "b")])
    assert_found(check(train, test=str(test)), ("error", "test: 1 of 3 rows without", ["test.csv:3"]), others=True)
    tags, lines = tmp_path / "tags.conll", "we O\nsaw O\nAda B-PER\n\n"
    tags.write_text(lines * 12, encoding="utf-8")
    (tmp_path / "test.conll").write_text("no O\nAda PER\n", encoding="utf-8")
    checked = check(tags, test=str(tmp_path / "test.conll"))
    assert counts_of(checked)[1]["test"] == {"O": 1, "B-PER": 1}, "as training spells it"


def test_sentences_and_schemes_of_tags(tmp_path: Path) -> None:
    path = tmp_path / "my.conll"

    def checked(*sentences: str) -> Checked:
        path.write_text("\n\n".join(each.replace(" ", "\n").replace("/", " ") for each in sentences) + "\n", encoding="utf-8")
        return check(path)

    found = checked("a/O b/I-PER c/I-LOC", "d/B-PER e/O")  # strict IOB1 begins no sentence with B
    assert_found(found, ("note", "2 sentences, 5 words", []), ("warning", "1 tag in ", ["my.conll:5"]), others=True)
    many = ["a/B-PER b/I-PER c/O"] * 20
    found = checked(*many, "a/O b/I-PER", *many, *["a/O b/I-PER I-PER/I-PER"] * 3)
    places = ["my.conll:81", "my.conll:164", "my.conll:168", "..."]
    assert_found(found, ("warning", "4 tags in places where iob2", places), others=True)
    found = checked(*many, *["a/O b/I-PER"] * 9)
    places = ["my.conll:81", "my.conll:84", "my.conll:87", "..."]
    assert_found(found, ("warning", "9 of 29 sentences with chunks follow iob1, not iob2", places), others=True)
    assert not any(finding.severity == "warning" for finding in checked(*many).findings)
    found = checked(" ".join(many * 6), *many)
    assert_found(found, ("warning", "360 of 420 words are in one sentence", ["my.conll:1"]), others=True)
    found = checked(" ".join(many * 6), " ".join(many * 6))
    assert not any(finding.severity == "warning" for finding in found.findings), "documents"


@pytest.mark.parametrize(
    ("name", "content", "unused"),
    [
        (
            "a.csv",
            "title,description,label\n" + "".join(f"text {n},more {n},{'ab'[n % 2]}\n" for n in range(20)),
            "description",
        ),
        ("a.csv", "text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(20)), None),
        ("a.csv", "text,kind of,other\n" + "".join(f"text {n},a,b\n" for n in range(20)), None),  # an error of its own
        ("a.jsonl", '{"tokens": ["we", "x"], "tags": ["O", "B-X"], "pos": ["A", "B"]}\n', "pos"),
        ("a.jsonl", '{"text": "we x", "entities": [[3, 4, "X"]], "note": ""}\n', "note"),
        ("a.jsonl", '{"id": 1, "question": "a", "context": "b c", "answers": ["b"], "url": "x"}\n', "url"),
        ("a.jsonl", '{"text": "a", "choices": ["b", "c"], "label": 0, "id": 2}\n', "id"),
    ],
)
def test_columns_left_unused_are_named_once(tmp_path: Path, name: str, content: str, unused: str | None) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    own = {"text": "title"} if "title" in content else {}
    target, recipe = tmp_path / name, "multiple-choice" if "choices" in content else None
    notes = check(target, recipe, **own).remarks.notes
    assert [note for note in notes if "not used" in note] == ([f"1 column not used: {unused}"] if unused else [])
    if "kind of" in content:
        return
    opened, _, _ = open_data(str(target), recipe, own)
    task = Task.fit(opened, read_splits(replace(opened, validation=opened.train)).rows["train"])
    assert [note for note in task.remarks.notes if "not used" in note] == ([f"1 column not used: {unused}"] if unused else [])


def test_a_recipe_knows_what_its_own_data_has_besides(data_dir: Path) -> None:
    assert not any("not used" in note for note in check("mrpc", data=str(data_dir / "GLUE" / "MRPC")).remarks.notes)


def test_the_total_counts_what_is_printed(run_bertkit, tmp_path: Path) -> None:
    """Warnings of reading and fitting too; what a fault makes of the rows is not told beside it."""
    rows = [{"text": f"printer broken {n}", "entities": [[0, 4, "THING"]]} for n in range(12)]
    path = tmp_path / "spans.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ran = run_bertkit("check", path, "--json")
    severities = [finding["severity"] for finding in json.loads(ran.out)["findings"]]
    assert (severities.count("warning"), ran.err.count("\nwarning: ") + ran.err.startswith("warning: ")) == (1, 1)
    assert (ran.code, "0 errors, 1 warning, " in ran.err.splitlines()[-1]) == (0, True)
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "we", "entities": [[0, 9, "WHO"]]}]))
    checked = check(path)
    assert_found(checked, ("error", "lies outside its text", ["spans.jsonl:13"]))
    assert "plain text" not in str(checked.remarks)


TOKENS: dict[str, list[Any]] = {"tokens": [["we", "like"]], "ner_tags": [["O", "B-PER"]]}
ANSWER = {"question": "who?", "context": "you", "answers": {"text": ["you"], "answer_start": [0]}}


@pytest.mark.parametrize(
    ("name", "content", "labels"),
    [
        ("a.conll", "we O\nlike O\nBerlin B-LOC\n\nno O\n", {"O": 3, "B-LOC": 1}),
        ("a.txt", "we\tO\nlike\tO\nBerlin\tB-LOC\n\nno\tO\n", {"O": 3, "B-LOC": 1}),
        ("a.jsonl", json.dumps({name: values[0] for name, values in TOKENS.items()}), {"O": 1, "B-PER": 1}),
        ("a.jsonl", json.dumps(ANSWER), {"answered": 1}),
        ("a.tsv", "label\ttext\nx\tgood\ny\tbad\n", {"x": 1, "y": 1}),
        ("a.parquet", {"text": ["good", "bad"], "label": ["a", "b"]}, {"a": 1, "b": 1}),
        ("a.parquet", TOKENS, {"O": 1, "B-PER": 1}),
        ("a.parquet", {name: [value] for name, value in ANSWER.items()}, {"answered": 1}),
        ("a.xlsx", {"text": ["good", "bad"], "label": ["a", "b"]}, {"a": 1, "b": 1}),
        ("a.xlsx", {"tokens": ["we like"], "tags": ["O B-PER"]}, {"O": 1, "B-PER": 1}),
        ("a.xlsx", {"question": ["who?"], "context": ["you"], "answers": ["you"]}, {"answered": 1}),
    ],
)
def test_the_family_that_a_file_looks_like(tmp_path: Path, name: str, content: Any, labels: dict[str, int]) -> None:
    path = tmp_path / name
    if path.suffix == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(content), path)
    elif path.suffix == ".xlsx":
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for row in (list(content), *zip(*content.values(), strict=True)):
            book.active.append(row)
        book.save(path)
    else:
        path.write_text(content, encoding="utf-8")
    assert counts_of(check(path))[1] == {"train": labels}


def test_remarks_on_the_data_need_no_model(tmp_path: Path) -> None:
    rows = [{"text": "printer broken", "entities": [[0, 4, "THING"]]}, {"text": "a man", "entities": [[2, 5, "WHO"]]}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    notes, warnings, _ = check(tmp_path).remarks
    assert ["iob2" in note for note in notes] == [True]
    assert any(warning.startswith("train: 1 of 2") for warning in warnings)
    rows = [{"text": f"t{i}", "choices": ["1", "0"], "label": "1"} for i in range(3)]  # numbers of choices, or their texts
    (tmp_path / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    checked = check(tmp_path / "choices.jsonl", "multiple-choice")
    assert "'label'" in checked.remarks.warnings[0]
    assert Finding("warning", checked.remarks.warnings[0]) in checked.report("x").parts


def test_answers_that_are_not_at_their_start(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    """Of a hundred questions one has no answer: it is no rare class, and the others are no majority."""
    far = "the little, the big or the old lamp burns wood all night, wood"
    rows = [(7, "lamp", "a fine lamp and an oil lamp")] * 93
    rows += [(0, "lamp", far), (-1, "lamp", far), (0, "LAMP", far), (-1, "wood", far), (-1, "gas", far)]  # lines 94 to 98
    lines = [
        {"question": f"q{n}", "context": context, "answers": [{"text": text, "answer_start": start}]}
        for n, (start, text, context) in enumerate(rows)
    ]
    path = tmp_path / "questions.jsonl"
    unanswered = {"question": "q", "context": far, "answers": []}
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, unanswered]), encoding="utf-8")
    assert_found(
        check(path),
        ("error", "2 answers not found", ["questions.jsonl:97", "questions.jsonl:98"]),
        ("warning", "1 answer found with other capitalization", ["questions.jsonl:96"]),
        ("warning", "2 answers found far", ["questions.jsonl:94", "questions.jsonl:95"]),
    )
    assert run_bertkit("check", path).code == 3
    data = ("--train", path, "--validation", path, "--max-length", 32, "--max-query-length", 8, "--max-steps", 1)
    options = (*data, "-m", tiny_model_dir, "-o", tmp_path / "run", "--device", "cpu")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[-2:]), encoding="utf-8")
    ran = run_bertkit("finetune", "question-answering", *options)
    assert (ran.code, f"({path}:1)" in ran.err.splitlines()[-2], (tmp_path / "run" / "run.json").exists()) == (3, True, False)


@pytest.mark.parametrize(
    ("name", "text", "quoted", "told"),
    [
        ("rows.tsv", "text", 60, True),
        ("rows.tsv", "text", 20, False),
        ("rows.tsv", 'a ""text""', 20, True),
        ("rows.tsv", "a text", 0, False),
        ("rows.csv", "text", 60, False),
    ],
)
def test_quotes_that_a_table_keeps(tmp_path: Path, name: str, text: str, quoted: int, told: bool) -> None:
    lines = [f'"{text} {row}"\tlabel{row % 2}' if row < quoted else f"text {row}\tlabel{row % 2}" for row in range(80)]
    path = tmp_path / name
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    found = [finding.what for finding in check(path).findings if "in quotes" in finding.what]
    assert found == ([f"train: {quoted} rows with a text in quotes, which are read as part of it"] if told else [])


def test_spellings_of_labels_are_told_once(run_bertkit, tmp_path: Path) -> None:
    checked = check(write(tmp_path / "rows.csv", SPELLED))
    assert not checked.findings
    assert [warning.partition(": ")[2] for warning in checked.remarks.warnings] == [
        "'Neg', 'neg'; use one spelling",
        "'pos', 'pos '; use one spelling",
    ]
    write(tmp_path / "my.csv", ab(80, labels=["pos", "Pos", "neg", "  "]))
    write(tmp_path / "dev.csv", ab(80, text="bad {0} {0}", labels=["pos", "Pos", "neg", "  "]))
    ran = run_bertkit("check", "my.csv", "--validation", "dev.csv")
    told = " ".join(ran.err.split())
    assert (ran.code, told.count("'Pos', 'pos'")) == (0, 1), ran.err
    assert told.count("warning: the label ' ' is only white space; if it means no label, leave it empty") == 1
    assert told.count("\u2502 ' ' \u2502") == 1, "in the table too"
    (tmp_path / "my.conll").write_text("a B-PER\nb B-per\nc O\n\n" * 20, encoding="utf-8")
    ran = run_bertkit("check", "my.conll")
    assert (ran.code, ran.err.count("'B-PER', 'B-per'")) == (0, 1), ran.err


def test_blank_questions_and_ignored_answers_are_named(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    answer = [{"text": "lamp", "answer_start": 7}]
    asked = [
        {"id": f"q{n}", "question": " " * (n < 2) or f"what {n}", "answers": answer * (n != 5), "is_impossible": n > 3}
        for n in range(12)
    ]
    content = {"data": [{"paragraphs": [{"context": "a fine lamp", "qas": asked}]}]}
    path = tmp_path / "train.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    checked = check(path)
    assert_found(checked, ("warning", "train: 2 rows without a question", ["train.json:q0", "train.json:q1"]), others=True)
    named = f"({path}:q4, {path}:q6, {path}:q7, and 4 more)"
    warning = f"train: 7 questions marked is_impossible but with answers, which are ignored {named}"
    assert warning in checked.remarks.warnings
    data = ("--train", path, "--validation", path, "--max-length", 32, "--max-query-length", 8, "--max-steps", 1)
    options = (*data, "-m", tiny_model_dir, "-o", tmp_path / "run", "--device", "cpu", "--dry-run")
    ran = run_bertkit("finetune", "question-answering", *options)
    told = " ".join(ran.err.split())
    assert (ran.code, f"warning: {warning}" in told, "8 questions without an answer" in told) == (0, True, True), ran.err


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        (("data", "--data", "other"), 2, "--data"),
        (("clean.csv", "--train", "clean.csv"), 2, "--train"),
        (("helpdesk", "--recipe", "sst2"), 2, "--recipe"),
        (("clean.csv", "--recipe", "helpdsk"), 2, "'helpdsk'"),
        (("hlpdesk",), 2, "'hlpdesk'"),
        (("clean.csv", "--scheme", "BIO"), 2, "--scheme"),
        (("clean.csv", "--masking", "whole-word"), 2, "--masking"),
        (("helpdesk", "--objective", "mlm"), 2, "--objective"),
        (("corpus", "--max-train-samples", 3), 2, "--max-train-samples"),
        (("corpus", "--model", "minilm"), 2, "--model is for labelled data, not for a corpus"),
        (("corpus", "--recipe", "sst2"), 2, "--recipe is for labelled data, not for a corpus"),
        (("glue",), 2, "bertkit check mrpc"),
        (("seeds",), 2, "(seeds)"),
        (("eval", "seeds"), 2, "seeds/seed-1"),
        (("predict", "seeds", "data/train.csv"), 2, "seeds/seed-1"),
        (("nosuch.csv",), 3, "(nosuch.csv)"),
        (("empty",), 3, "(empty)"),
    ],
)
def test_targets_and_options_that_do_not_fit(run_bertkit, clean: Path, tmp_path: Path, argv, code: int, part: str) -> None:
    from bertkit.corpus.directory import META

    for path, content in (("corpus/" + META, "{}"), ("seeds/seed-1/run.json", "{}"), ("data/train.csv", ""), ("empty/a", "")):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(content, encoding="utf-8")
    ran = run_bertkit(*argv) if argv[0] in ("eval", "predict") else run_bertkit("check", *argv)
    assert (ran.code, ran.out, ran.err.startswith("error: "), part in ran.err) == (code, "", True, True), ran.err


def test_a_run(run_bertkit, clean: Path, faulty: Path, tiny_model_dir: Path, tmp_path: Path) -> None:
    data = ("--train", "clean.csv", "--validation", "clean.csv", "--max-length", 16, "--max-steps", 1, "--device", "cpu")
    assert run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run").code == 0
    before = files_of(tmp_path)
    checked = json.loads(run_bertkit("check", "run", "--json").out)
    assert checked["rows"] == {"train": 24, "validation": 24}
    # The run's model is the tokenizer, and its settings are the ones checked: "good movie one one ..." of 2 to 13 words.
    assert (checked["lengths"]["train"]["longest"], checked["measured"]["steps"]) == (15, 1)
    assert files_of(tmp_path) == before
    shorter = check("run", model=tmp_path / "run", max_length=12)
    assert_found(shorter, ("warning", "train: 6 of 24", []), others=True)
    own = {"train": "data/train.csv", "validation": "data/dev.csv"}
    assert_found(check("run", model=None, **own), *FAULTS)


def test_examples_are_shown_and_three_steps_timed(
    run_bertkit, monkeypatch: pytest.MonkeyPatch, make_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    from bertkit.runs import dry_run

    steps, train = [], dry_run.train

    def counted(*arguments: Any, total_steps: int, **keywords: Any) -> Any:
        steps.append(total_steps)
        return train(*arguments, total_steps=total_steps, **keywords)

    monkeypatch.setattr(dry_run, "train", counted)
    model, before = make_model_dir(), files_of(tmp_path)
    own = ("--max-length", 60, "--examples", 2, "--class-weights", "balanced", "--json")
    ran = run_bertkit("check", "helpdesk", "-m", model, *own)
    assert ran.code == 0, ran.err
    measured = json.loads(ran.out)["measured"]
    size = sum(weight.size for weight in load_file(model / "model.safetensors").values())
    assert measured["parameters"] == size + 6 * 32 + 6, "with a head for six labels"
    assert measured["steps"] == 100, "800 rows in batches of 32, four times"
    assert (measured["tokens per second"] > 0, steps) == (True, [3])
    shown = [line for line in ran.err.splitlines() if line.startswith("  [CLS]")]
    assert (len(shown), shown[0].startswith("  [CLS][sales] what d ##o ##e ##s the ")) == (2, True)
    assert files_of(tmp_path) == before


def test_the_dry_run_holds_out_as_finetune_does_and_repeats_no_warning(
    run_bertkit, tiny_model_dir: Path, tmp_path: Path
) -> None:
    rows = [{"text": f"\u738b \u738b printers {n}", "entities": [[4, 11, "THING"]], "spare": 1} for n in range(60)]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ("-m", tiny_model_dir, "--max-length", 16, "--device", "cpu")
    ran = run_bertkit("check", "my.jsonl", *options, "--json")
    lines = ran.err.splitlines()
    found = json.loads(ran.out)
    assert (ran.code, found["rows"]) == (0, {"train": 60})
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert len(warnings) == sum(finding["severity"] == "warning" for finding in found["findings"]) == 2  # in a word, [UNK]
    for part in (
        "not used: spare",
        "tag scheme of",
        "60 of 60 entities",
        "54 features",
        "train: 54 rows",
        "validation: 6 rows",
    ):
        assert sum(part in line for line in lines) == 1, part
    trained = run_bertkit("finetune", "token-classification", "--train", "my.jsonl", *options, "-o", "run", "--dry-run").err
    assert all(trained.count(part) == 1 for part in ("train: 54 rows", "validation: 6 rows", "not used: spare"))


def test_refused_data_is_shown_with_the_tokenizer(run_bertkit, tiny_model_dir: Path, faulty: Path, tmp_path: Path) -> None:
    before = files_of(tmp_path)
    ran = run_bertkit("check", "data", "-m", tiny_model_dir, "--examples", 3, "--json")
    checked = json.loads(ran.out)
    assert (ran.code, checked["lengths"].keys(), "measured" in checked) == (3, {"train", "validation"}, False)
    shown = [line for line in ran.err.splitlines() if line.startswith("  [CLS]")]
    assert shown[:2] == [
        "  [CLS] the good movie [SEP] (5 tokens, segment B: 0)",
        "  [CLS] a bad book [SEP] (5 tokens, segment B: 0)",
    ]
    assert len(shown) == 3
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "text", "code", "told"),
    [
        (
            "a.csv",
            "What now?,pin\nIs it late?,card\n",
            3,
            "the first row looks like data: if the file has no header, name its columns: --columns text,label; else name",
        ),
        ("a.csv", "pin,What now?\ncard,Is it late?\n", 3, "--columns label,text"),
        (
            "a.csv",
            "a,b\nx,good film\n",
            3,
            "name it, such as --text b; if the file has no header, name its columns: --columns text,label",
        ),
        (
            "a.csv",
            '"It ran.\nAnd then it fell over the kerb, I think",pin\n"a\nb",card\n',
            3,
            "columns: 'It ran.\\nAnd then it fell over the ker...', pin (a.csv); the first row looks like data",
        ),
        ("a.conll", "EU\nrejects\n\nGerman\ncall\n", 3, "the words have no tags (a.conll); to train, give each word its tag"),
        ("a.txt", "Once upon a time.\nIt ran.\n\nThe end.\n", 3, "the rows are lines of plain text, without labels"),
        ("a.csv", "text,label\ngood,p\nbad,n\n", 0, "warning: finetune needs rows to evaluate on: cannot split 2 rows"),
    ],
)
def test_data_of_another_form_is_called_what_it_is(
    run_bertkit, tmp_path: Path, name: str, text: str, code: int, told: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    ran = run_bertkit("check", name, "--json")
    assert (ran.code, told in ran.err.replace(str(tmp_path) + "/", "")) == (code, True), ran.err
    if told.startswith("warning: "):
        warnings = [each["what"] for each in json.loads(ran.out)["findings"] if each["severity"] == "warning"]
        assert told.removeprefix("warning: ") in "; ".join(warnings)
        assert "1 warning, " in ran.err.splitlines()[-1] or len(warnings) > 1


def test_a_tag_that_finetune_would_refuse_is_an_error(run_bertkit, tmp_path: Path) -> None:
    """It may be in a row that is held out: then the training rows have a tag scheme, and this row none."""
    names = "Grace Ana Omar Lena Sven Aiko Ruth Igor".split()
    rows = [{"tokens": [f"{name}{number}", "met"], "tags": ["B-PER", "O"]} for number in range(5) for name in names]
    codes = {}
    for name in names:
        lines = [json.dumps(row) for row in [*rows, {"tokens": [name], "tags": ["PER"]}]]
        (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
        ran = run_bertkit("check", "rows.jsonl")
        codes[name] = ran.code
        assert ("error: not all tags are chunk tags such as B-PER, as in training: PER" in ran.err) == (ran.code == 3), ran.err
        assert "'PER'" in ran.err
    assert {*codes.values()} == {0, 3}


def test_all_rows_that_training_would_refuse_are_told(run_bertkit, tmp_path: Path) -> None:
    spans = {1: [[0, 3, "A"]], 2: [[0, 5, "A"], [2, 3, "B"]], 3: [[2, 2, "A"]], 4: [[0, 99, "A"]], 5: []}
    rows = [json.dumps({"text": f"the film is {number}", "entities": each}) + "\n" for number, each in spans.items()]
    (tmp_path / "rows.jsonl").write_text("".join(rows), encoding="utf-8")
    ran = run_bertkit("check", "rows.jsonl", "--recipe", "token-classification", "--json")
    errors = [each["what"] for each in json.loads(ran.out)["findings"] if each["severity"] == "error"]
    assert (ran.code, len(errors)) == (3, 2), ran.err
    assert "overlap" in errors[0]
    assert errors[1].startswith("train: 2 more rows cannot be used: ")
    assert [f"rows.jsonl:{line})" in errors[1] for line in spans] == [False, False, True, True, False]
    good = "".join(json.dumps({"text": f"film {n}", "entities": [[0, 4, "A"]]}) + "\n" for n in range(5))
    for name, content in (("rows", good), ("test", good.replace('[[0, 4, "A"]]', "null"))):
        (tmp_path / f"{name}.jsonl").write_text(content, encoding="utf-8")
    ran = run_bertkit("check", "rows.jsonl", "--recipe", "token-classification", "--test", "test.jsonl")
    assert (ran.code, "test: cannot be scored" in ran.err) == (0, True), ran.err


def test_a_row_that_cannot_even_be_predicted_is_told_once(tmp_path: Path) -> None:
    rows = ["a,x,y,0", ",x,y,1", "b,,,0", "c,x,y,7", "d,x,y,", "e,x,y,1"]
    (tmp_path / "quiz.csv").write_text("\n".join(["text,option1,option2,label", *rows, ""]), encoding="utf-8")
    (first, others) = check(tmp_path / "quiz.csv", "multiple-choice").findings
    assert [Path(place).name for place in first.places] == ["quiz.csv:3"]
    assert others.what.startswith("train: 3 more rows cannot be used: ")
    assert [others.what.count(f"quiz.csv:{line})") for line in range(2, 8)] == [0, 0, 1, 1, 1, 0]
    texts = ["a", None, "b", "", 7, ["c"]] * 2  # numbers are texts
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text, "label": "x"}) + "\n" for text in texts))
    (first, others) = check(tmp_path / "a.jsonl").findings[:2]
    assert [Path(place).name for place in first.places] == ["a.jsonl:2"]
    assert [others.what.count(f"a.jsonl:{line})") for line in range(1, 13)] == [0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("dev", "told"),
    [([""], "no question has an answer; .* with one"), (["lamp"], "every question has an answer; .* without an")],
)
def test_answers_are_not_called_labels(tmp_path: Path, dev: list[str], told: str) -> None:
    for name, answers in (("train", ["lamp", ""]), ("dev", dev)):
        rows = [{"question": "what", "context": f"a lamp {name} {row}", "answers": text} for row, text in enumerate(answers)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = check(tmp_path / "train.jsonl", "question-answering", validation=str(tmp_path / "dev.jsonl")).findings
    assert [bool(re.search(f"validation: {told}", each.what)) for each in found if "scores" in each.what] == [True], found
