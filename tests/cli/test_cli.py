"""The commands as a user types them, run in this process: exit codes, streams, help, and predictions row for row."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bertkit import __version__
from bertkit.cli.finetune import finetune
from bertkit.cli.options import read_options
from bertkit.tasks import QuestionAnswering, TextClassification
from bertkit.tasks.saved import options_of_run

COMMANDS = ("finetune", "eval", "predict", "recipes")
GOOD = "text,label\ngood movie,pos\nbad movie,neg\ngreat film,pos\npoor plot,neg\n"


@pytest.fixture(scope="module")
def run_dir(make_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step that began from a head whose predictions differ from text to text."""
    from bertkit.cli import main

    folder = tmp_path_factory.mktemp("run")
    names = {0: "neg", 1: "pos"}
    model = make_model_dir(
        "BertForSequenceClassification", seed=5, initializer_range=0.4, id2label=names, label2id={"neg": 0, "pos": 1}
    )
    (folder / "good.csv").write_text(GOOD, encoding="utf-8")
    data = ["--train", str(folder / "good.csv"), "--validation", str(folder / "good.csv")]
    options = ["--max-steps", "1", "--max-length", "32", "--precision", "fp32", "--device", "cpu"]
    assert main(["finetune", "text-classification", *data, "-m", str(model), "-o", str(folder / "run"), *options]) == 0
    return folder / "run"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


# --- help and mistakes -----------------------------------------------------------------------------------------------------


def test_version(run_bertkit) -> None:
    assert run_bertkit("--version") == (0, f"bertkit {__version__}\n", "")


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(run_bertkit, command: str, flag: str) -> None:
    code, out, err = run_bertkit(command, flag)
    assert (code, err) == (0, "")
    examples = [line for line in out.splitlines() if f"bertkit {command}" in line and "Usage" not in line]
    assert len(examples) >= (2 if command != "recipes" else 1)
    assert all(text not in out for text in ("[bold]", "[/]", "Annotated", "None"))


def test_help_lists_the_commands(run_bertkit) -> None:
    code, out, _ = run_bertkit("-h")
    assert code == 0
    assert all(any(line.strip("│ ").startswith(command) for line in out.splitlines()) for command in COMMANDS)


def test_help_of_finetune_shows_every_option_with_its_default(run_bertkit) -> None:
    from bertkit.cli.options import recipe_options

    out = run_bertkit("finetune", "-h").out
    options = recipe_options("finetune")
    assert len(options) > 25
    for name, (_, option) in options.items():
        assert option.flag in out, name
        if isinstance(option.default, (int, float)) and not isinstance(option.default, bool):
            assert f"default {option.default}" in out, name


def test_no_command_shows_the_help_and_no_empty_error(run_bertkit) -> None:
    code, out, err = run_bertkit()
    assert code == 2
    assert "Usage" in out + err
    assert not lines(err, "error:")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("finetune", "sst2", "--learning-rat", "1"), ["--learning-rate", "--help"]),
        (("finetun",), ["'finetune'", "--help"]),
        (("finetune",), ["recipe", "bertkit recipes"]),
        (("finetune", "sst2"), ["--model"]),
        (("finetune", "sst2", "-m", "x"), ["--output-dir"]),
        (("finetune", "sst3", "-m", "x", "-o", "y"), ["'sst3'", "did you mean sst2?", "./sst3.py"]),
        (("finetune", "./nothing.py", "-m", "x", "-o", "y"), ["(nothing.py)", "--copy"]),
        (("finetune", "sst2", "-m", "x", "-o", "y", "--max-steps", "0"), ["--max-steps is 0", "at least 1"]),
        (("finetune", "sst2", "-m", "x", "-o", "y", "--batch-size", "2.5"), ["--batch-size is 2.5", "whole number"]),
        (("finetune", "sst2", "-m", "x", "-o", "y", "--schedule", "linaer"), ["--schedule", "did you mean linear?"]),
        (("finetune", "text-classification", "-m", "x", "-o", "y", "--config", "nothing.yaml"), ["(nothing.yaml)"]),
        (("eval", "MODEL"), ["MODEL", "--recipe"]),
        (("predict", "MODEL", "--output", "out.xlsx"), ["--output out.xlsx", ".jsonl, .csv, .tsv or .conll"]),
        (("predict", "MODEL", "--output", "no/out.csv"), ["--output", "(no)"]),
        (("recipes", "sst"), ["'sst'", "did you mean sst2?"]),
    ],
)
def test_mistakes_end_with_2_and_name_the_option(run_bertkit, tiny_model_dir: Path, argv: tuple, words: list[str]) -> None:
    code, out, err = run_bertkit(*(str(tiny_model_dir) if word == "MODEL" else word for word in argv))
    assert (code, out, [line.partition(": ")[0] for line in err.splitlines()]) in [
        (2, "", ["error", "hint"]),
        (2, "", ["error"]),
    ]
    assert [word for word in words if word.replace("MODEL", str(tiny_model_dir)) not in err] == [], err


@pytest.mark.parametrize(
    ("options", "code"),
    [(("--validation", "nothing.csv"), 3), (("-m", "./nothing"), 4), (("--device", "cuda"), 5), (("--max-length", "65"), 2)],
)
def test_exit_codes_tell_whose_fault_it_is(
    run_bertkit, tiny_model_dir: Path, tmp_path: Path, options: tuple, code: int
) -> None:
    import torch

    if "cuda" in options and torch.cuda.is_available():
        options = ("--device", "mps")
    (tmp_path / "good.csv").write_text(GOOD, encoding="utf-8")
    data = ("--train", "good.csv", "--validation", "good.csv")
    common = ("-m", tiny_model_dir, "-o", "run", "--max-length", 16)
    ran = run_bertkit("finetune", "text-classification", *data, *common, *options)
    assert ran.code == code
    assert len(lines(ran.err, "error:")) == 1
    assert not (tmp_path / "run").exists()


def test_a_bug_of_ours_is_1_and_the_traceback_is_for_those_who_ask(run_bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr("bertkit.tasks.catalog.list_recipes", broken)
    code, out, err = run_bertkit("recipes")
    assert (code, out) == (1, "")
    error, hint = err.splitlines()
    assert error == "error: RuntimeError: first second"
    assert "BERTKIT_DEBUG=1" in hint
    monkeypatch.setenv("BERTKIT_DEBUG", "1")
    code, _, err = run_bertkit("recipes")
    assert code == 1
    assert "Traceback (most recent call last)" in err
    assert ", in broken" in err


def test_traceback_of_a_mistake(run_bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in run_bertkit("recipes", "sst").err
    monkeypatch.setenv("BERTKIT_DEBUG", "1")
    err = run_bertkit("recipes", "sst").err
    assert "Traceback" in err
    assert err.splitlines()[-2:] == ["error: no recipe 'sst'", "hint: did you mean sst2?"]


def test_memory(run_bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("bertkit.tasks.catalog.list_recipes", full)
    code, _, err = run_bertkit("recipes")
    assert code == 5
    assert ("out of memory" in err, "--micro-batch-tokens" in err) == (True, True)


def test_a_process_other_than_the_main_one_is_silent(run_bertkit, run_dir: Path, tmp_path: Path, monkeypatch) -> None:
    assert run_bertkit("recipes").err
    monkeypatch.setenv("RANK", "1")
    assert run_bertkit("recipes") == (0, "", "")
    assert run_bertkit("recipes", "sst") == (2, "", "")
    assert run_bertkit("predict", run_dir, "-", "--output", "out.csv", stdin=b"good\n") == (0, "", "")
    assert not (tmp_path / "out.csv").exists()
    assert run_bertkit("eval", run_dir, "--json") == (0, "", "")
    monkeypatch.delenv("RANK")
    assert run_bertkit("recipes").err, "silence must end with the command"


def test_the_script_ends_with_the_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bertkit", "recipes", "sst"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ["error: no recipe 'sst'", "hint: did you mean sst2?"]


# --- --config --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.yaml", "train: good.csv\nvalidation: good.csv\nlearning-rate: 1e-5\nmax_steps: 1\nlabels: [pos, neg]\nseed: 3\n"),
        (
            "run.json",
            '{"train": "good.csv", "validation": "good.csv", "learning_rate": 1e-5, "max_steps": 1, "labels": "pos,neg"}',
        ),
    ],
)
def test_options_from_a_file_and_those_typed_come_first(
    run_bertkit, tiny_model_dir: Path, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / "good.csv").write_text(GOOD, encoding="utf-8")
    (tmp_path / name).write_text(content, encoding="utf-8")
    options = ("-m", tiny_model_dir, "-o", "run", "--max-length", 16, "--seed", 8)
    ran = run_bertkit("finetune", "text-classification", "--config", name, *options)
    assert ran.code == 0, ran.err
    values = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    expected = {"learning_rate": 1e-5, "max_steps": 1, "seed": 8, "max_length": 16}
    assert {key: values["training"][key] for key in expected} == expected
    assert values["task"]["labels"] == ["pos", "neg"]
    assert values["recipe"]["train"] == str(tmp_path / "good.csv")
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "pos", "1": "neg"}


@pytest.mark.parametrize(
    ("saved", "typed", "left"),
    [
        ({"max_steps": 2, "seed": 1}, {"num_epochs": 1}, {"seed"}),
        ({"num_epochs": 2, "hours": 1}, {"max_steps": 1}, {"num_epochs"}),
        ({"max_steps": 9}, {"hours": 1}, set()),
        ({"max_length": 16, "phases": "16:90%,32:10%"}, {"max_length": 32}, {"max_length"}),
        ({"data": "a"}, {"train": "b.csv"}, set()),
        ({"train": "b.csv", "validation": "10%", "label": "kind"}, {"data": "a"}, {"label"}),
        ({"train": "b.csv", "validation": "10%"}, {"train": "c.csv"}, {"train", "validation"}),
        ({"max_steps": 2, "train": "b.csv"}, {"learning_rate": 1}, {"max_steps", "train"}),
    ],
)
def test_what_is_typed_stands_for_all_that_says_the_same(tmp_path: Path, saved, typed, left: set[str]) -> None:
    (tmp_path / "options.json").write_text(json.dumps(saved), encoding="utf-8")
    assert set(read_options(tmp_path / "options.json", finetune, typed).options) == left


def test_a_run_begun_from_a_bare_model_leaves_another_model_its_head(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(GOOD, encoding="utf-8")
    data = ("--train", "good.csv", "--validation", "good.csv", "--max-length", 16, "--max-steps", 1)
    assert run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "one").code == 0
    for model, fresh in (("one", False), (tiny_model_dir, True)):
        ran = run_bertkit("finetune", "--config", "one/run.json", "-m", model, "-o", f"two-{fresh}")
        assert (ran.code, "fresh weights" in ran.err) == (0, fresh), ran.err


@pytest.mark.parametrize(
    ("family", "saved", "options"),
    [
        (
            QuestionAnswering,
            {"question": None, "question_column": "q", "null_threshold": 1.5, "threshold_tuned": True},
            {"question": "q"},
        ),
        (
            QuestionAnswering,
            {"null_threshold": 1.5, "question_column": "question"},
            {"question": "question", "null_threshold": 1.5},
        ),
        (TextClassification, {"class_weights": ["0.5", "2"], "weights_balanced": True}, {"class_weights": ["balanced"]}),
        (TextClassification, {"class_weights": ["0.5", "2"]}, {"class_weights": ["0.5", "2"]}),
        (TextClassification, {"labels": ["a", "b"], "labels_derived": True, "thresholds": [0.5]}, {}),
    ],
)
def test_what_bertkit_0_1_settled_is_not_asked_for_again(family, saved: dict, options: dict) -> None:
    run = {"recipe": {"family": family.family, **saved}, "training": {"seed": 3, "dropout": None}}
    assert options_of_run(run) == {**options, "seed": 3}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.yaml", "learning_rat: 1\n", ["(run.yaml)", "did you mean --learning-rate?"]),
        ("run.yaml", "seed: 1\na: [1\nb: 2\n", ["(run.yaml:3)"]),
        ("run.json", "{'a': 1}", ["(run.json)"]),
        ("run.yaml", "- 1\n", ["(run.yaml)"]),
        ("run.yaml", "caf\xe9: 1\n", ["(run.yaml)", "UTF-8"]),
    ],
)
def test_files_of_options_that_cannot_be_read(run_bertkit, tmp_path, name: str, content: str, words: list[str]) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    code, _, err = run_bertkit("finetune", "text-classification", "-m", "x", "-o", "run", "--config", name)
    assert (code, err.count("error: ")) == (2, 1)
    assert [word for word in words if word not in err] == [], err


# --- --dry-run -------------------------------------------------------------------------------------------------------------


def test_dry_run_measures_and_writes_nothing(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    import transformers

    (tmp_path / "good.csv").write_text(GOOD + GOOD.partition("\n")[2] * 9, encoding="utf-8")  # 40 rows
    before = sorted(tmp_path.rglob("*"))
    data = ("--train", "good.csv", "--validation", "good.csv")
    options = ("--batch-size", 8, "--num-epochs", 5, "--max-length", 16, "--dry-run")
    for output in (("-o", "run"), ()):
        ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, *output, *options)
        assert (ran.code, ran.out) == (0, "")
        assert sorted(tmp_path.rglob("*")) == before
        assert "dry run: nothing was written" in ran.err
        names, values = (
            [cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")]
            for line in ran.err.splitlines()
            if line.startswith(("┃", "│"))
        )
        shown = dict(zip(names, values, strict=True))
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tiny_model_dir)
        assert int(shown["parameters"]) == sum(p.numel() for p in theirs.parameters())
        assert int(shown["steps"]) == 25
        assert 50 < int(shown["peak memory, MiB"]) < 20_000
        assert int(shown["tokens a second"]) > 0


# --- recipes ---------------------------------------------------------------------------------------------------------------


def test_recipes_are_listed_and_none_is_executed(run_bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    head = '"""{0}: what is it?\n\nMore."""\nfrom bertkit.tasks import TextClassification\n'
    text = head + "recipe = TextClassification()\nraise SystemExit\n"
    for name in ("zeta", "alpha", "_template"):
        (folder / f"{name}.py").write_text(text.format(name.title()), encoding="utf-8")
    monkeypatch.setattr("bertkit.tasks.catalog.recipe_folder", lambda: folder)
    code, out, err = run_bertkit("recipes")
    assert (code, out) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines(err, "│")]
    assert rows == [[name, "text-classification", f"{name.title()}: what is it?"] for name in ("alpha", "zeta")]


def test_every_built_in_recipe_is_listed(run_bertkit) -> None:
    rows = [line.strip("│").split("│") for line in lines(run_bertkit("recipes").err, "│")]
    names = [row[0].strip() for row in rows]
    files = {path.stem for path in (Path(__file__).parents[2] / "recipes").glob("*.py")} - {"_template"}
    assert {"cola", "sst2", "mrpc", "stsb", "rte", "mnli", "qqp", "qnli", "wnli", "ax", "helpdesk"} <= files
    assert set(names) == files
    assert names == sorted(names)
    assert all(cell.strip() for row in rows for cell in row)


def test_a_recipe_is_shown_as_it_stands(run_bertkit) -> None:
    source = (Path(__file__).parents[2] / "recipes" / "mnli.py").read_text(encoding="utf-8")
    assert run_bertkit("recipes", "mnli") == (0, source, "")


def test_a_recipe_is_copied_and_loads(run_bertkit, tmp_path: Path) -> None:
    from bertkit.tasks.catalog import load_recipe

    assert run_bertkit("recipes", "mrpc", "--copy", "mine").code == 0
    assert load_recipe(str(tmp_path / "mine" / "mrpc.py")) == load_recipe("mrpc")
    ran = run_bertkit("recipes", "mrpc", "--copy", "mine")
    assert (ran.code, ran.err.count("(mine/mrpc.py)")) == (2, 1)
    assert run_bertkit("recipes", "--copy", ".").code == 0
    ran = run_bertkit("recipes", "--copy", "mrpc.py" if Path("mrpc.py").is_file() else "template.py")
    assert (ran.code, "--copy" in ran.err) == (2, True)
    assert load_recipe(str(tmp_path / "template.py")).family == "text-classification"


# --- eval ------------------------------------------------------------------------------------------------------------------


def test_eval_writes_json_alone_to_stdout(run_bertkit, run_dir: Path) -> None:
    code, out, err = run_bertkit("eval", run_dir, "--json")
    assert code == 0
    assert len(out.splitlines()) == 1
    scores = json.loads(out)
    assert list(scores) == ["validation/accuracy", "validation/loss"]
    assert f"{scores['validation/loss']:.4f}" in err
    code, out, again = run_bertkit("eval", run_dir)
    assert (code, out) == (0, "")
    assert again == err
    run = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    assert scores == pytest.approx(run["best"]["scores"], rel=1e-5)


def test_eval_shows_the_published_score_of_the_same_model(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    """Beside ours where it belongs: for a run from the model that it is of, and for no other."""
    (tmp_path / "bert-base-uncased").symlink_to(make_model_dir("BertModel"))
    (tmp_path / "other").symlink_to(make_model_dir("BertModel"))
    data = tmp_path / "SST-2"
    data.mkdir()
    for name in ("train", "dev"):
        (data / f"{name}.tsv").write_text("sentence\tlabel\ngood movie\t1\nbad movie\t0\n", encoding="utf-8")
    for model, shown in (("bert-base-uncased", True), ("other", False)):
        options = ("-o", f"run-{model}", "--max-steps", 1, "--max-length", 16)
        ran = run_bertkit("finetune", "sst2", "--data", "SST-2", "-m", model, *options)
        assert ran.code == 0, ran.err
        ran_again = run_bertkit("eval", f"run-{model}")
        for err in (ran.err, ran_again.err):
            assert ("0.9270" in err) == shown
        assert ("Devlin" in ran_again.err) == shown


# --- predict ---------------------------------------------------------------------------------------------------------------

TEXTS = [
    "good movie",
    "",
    "bad book, \"quoted\" 'it'",
    "[/INST] [bold]not markup[/]",
    "ünïcödé 電影 \U0001f600 \x07bell",
    "a very " + "long " * 60 + "text",
    "good movie",
    "   ",
    "NA",
    "x\u2028y\u0085z",
]


@pytest.fixture(scope="module")
def expected(run_dir: Path) -> list[tuple[str, float]]:
    """The label and probability of each of TEXTS, by transformers."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(run_dir).eval(),
        AutoTokenizer.from_pretrained(run_dir),
    )
    found = []
    for text in TEXTS:
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=32)).logits[0]
        found.append((model.config.id2label[int(logits.argmax())], float(logits.softmax(-1).max())))
    assert len({label for label, _ in found}) == 2, "a constant prediction would hide another order"
    return found


def as_csv(rows: list[dict], delimiter: str) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


TRUNCATED = f"{len(TEXTS)} rows, 1 longer than 32 truncated, 2 without text\n"
FORMATS = {
    "txt": "".join(f"{text}\n" for text in TEXTS),
    "jsonl": "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)),
    "json": json.dumps([{"text": text, "label": "unheard of"} for text in TEXTS]),
    "csv": as_csv([{"id": i, "text": text} for i, text in enumerate(TEXTS)], ","),
    "tsv": "id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(TEXTS)),
}


def read_predictions(text: str, ending: str) -> list[dict[str, str]]:
    if ending == "jsonl":
        return [json.loads(line) for line in text.split("\n")[:-1]]
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter={"csv": ",", "tsv": "\t"}[ending]))


@pytest.mark.parametrize("piped", [False, True], ids=["file", "stdin"])
@pytest.mark.parametrize("ending", FORMATS)
def test_one_prediction_a_row_in_order(run_bertkit, run_dir, expected, tmp_path, ending: str, piped: bool) -> None:
    content = FORMATS[ending].encode()
    (tmp_path / f"new.{ending}").write_bytes(content)
    source = ("-", "--separator", ",") if (piped and ending == "csv") else ("-",) if piped else (f"new.{ending}",)
    code, out, err = run_bertkit("predict", run_dir, *source, stdin=content if piped else b"")
    assert (code, err) == (0, TRUNCATED)
    rows = read_predictions(out, "jsonl")
    assert [row["text"] for row in rows] == TEXTS
    assert [row["label"] for row in rows] == [label for label, _ in expected]
    assert [row["probability"] for row in rows] == pytest.approx([p for _, p in expected], abs=1e-5)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv"])
def test_predictions_written_to_a_file(run_bertkit, run_dir, expected, tmp_path, ending: str) -> None:
    (tmp_path / "new.txt").write_text(FORMATS["txt"], encoding="utf-8", newline="")
    code, out, err = run_bertkit("predict", run_dir, "new.txt", "--output", f"out.{ending}")
    assert (code, out, err) == (0, "", f"{TRUNCATED}wrote {len(TEXTS)} predictions to out.{ending}\n")
    rows = read_predictions((tmp_path / f"out.{ending}").read_bytes().decode(), ending)
    assert [row["text"] for row in rows] == TEXTS
    assert [row["label"] for row in rows] == [label for label, _ in expected]
    assert [float(row["probability"]) for row in rows] == pytest.approx([p for _, p in expected], abs=1e-5)


def test_standard_input_is_the_default_and_may_end_without_a_line_feed(run_bertkit, run_dir: Path, expected) -> None:
    code, out, _ = run_bertkit("predict", run_dir, stdin=b"good movie")
    assert code == 0
    (row,) = read_predictions(out, "jsonl")
    assert (row["text"], row["label"]) == ("good movie", expected[0][0])


def test_columns_of_a_file_without_a_header(run_bertkit, run_dir: Path, tmp_path: Path, expected) -> None:
    (tmp_path / "new.tsv").write_text("1\tgood movie\n2\tNA\n", encoding="utf-8")
    code, out, err = run_bertkit("predict", run_dir, "new.tsv", "--columns", "id,text")
    assert code == 0, err
    assert [row["text"] for row in read_predictions(out, "jsonl")] == ["good movie", "NA"]
    (tmp_path / "named.csv").write_text("id,utterance,text\n1,good movie,no\n", encoding="utf-8")
    code, out, err = run_bertkit("predict", run_dir, "named.csv", "--text", "utterance")
    assert code == 0, err
    assert read_predictions(out, "jsonl")[0]["text"] == "good movie"


def test_a_model_of_transformers_predicts_with_its_own_labels(run_bertkit, make_model_dir) -> None:
    model = make_model_dir("BertForSequenceClassification", id2label={0: "ham", 1: "spam"}, label2id={"ham": 0, "spam": 1})
    code, out, err = run_bertkit("predict", model, "--max-length", 32, stdin=b"good movie\n")
    assert code == 0, err
    assert read_predictions(out, "jsonl")[0]["label"] in ("ham", "spam")


def test_no_rows_to_predict(run_bertkit, run_dir: Path) -> None:
    ran = run_bertkit("predict", run_dir, stdin=b"")
    assert (ran.code, ran.out, ran.err) == (3, "", "error: the file is empty (stdin)\n")


def test_commands_leave_the_environment_alone(run_bertkit, run_dir: Path) -> None:
    before = dict(os.environ)
    assert run_bertkit("eval", run_dir, "--json").code == 0
    assert dict(os.environ) == before


def test_predictions_do_not_replace_what_is_read(run_bertkit, run_dir, tmp_path) -> None:
    (tmp_path / "new.csv").write_text("text\ngood movie\n", encoding="utf-8")
    code, out, err = run_bertkit("predict", run_dir, "new.csv", "--output", "new.csv")
    assert (code, out) == (2, "")
    assert "--output new.csv" in err
    assert (tmp_path / "new.csv").read_text(encoding="utf-8") == "text\ngood movie\n"


def test_tabs_and_line_ends_do_not_break_a_tsv(run_bertkit, run_dir, tmp_path) -> None:
    (tmp_path / "new.jsonl").write_text(json.dumps({"text": 'a\tgood "movie"\nor two'}) + "\n", encoding="utf-8")
    assert run_bertkit("predict", run_dir, "new.jsonl", "--output", "out.tsv").code == 0
    lines = (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert lines[1].split("\t")[0] == 'a good "movie" or two'


def test_a_shell_completes_the_names_of_recipes_and_families() -> None:
    from bertkit.cli.options import recipe_names

    assert recipe_names("mr") == ["mrpc"]
    assert recipe_names("text") == ["text-classification"]
    assert len(recipe_names("")) > 30


def test_completion_can_be_installed(run_bertkit) -> None:
    ran = run_bertkit("--help")
    assert "--install-completion" in ran.out
