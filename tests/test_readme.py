"""Every command in the README works as it stands there, with a tiny model and small files in the named places."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bertkit.cli import main

ROOT = Path(__file__).resolve().parent.parent
LAUNCHERS = (
    "accelerate launch -m ",
    "torchrun --standalone --nproc-per-node 2 -m ",
)  # tests/training/test_distributed.py runs these for real


def shell_blocks(name: str) -> list[list[str]]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [block.strip().splitlines() for block in re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)]


BLOCKS = [block for block in shell_blocks("README.md") if any("bertkit" in line for line in block)]


def rows(count: int, *columns: Callable[[random.Random], str]) -> list[tuple[str, ...]]:
    rng = random.Random(0)
    return [tuple(column(rng) for column in columns) for _ in range(count)]


def words(rng: random.Random) -> str:
    return " ".join(rng.choices("the good bad movie was a great poor story you like".split(), k=6)) + f" {rng.randrange(10**6)}"


def kind(*names: str) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(names)


def table(path: Path, separator: str, header: str | None, lines: list[tuple[str, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(separator.join(line) + "\n" for line in ([tuple(header.split(","))] if header else []) + lines)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def place(tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the README's commands name."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    monkeypatch.chdir(tmp_path)
    for name in ("bert-base-uncased", "minilm"):
        shutil.copytree(tiny_model_dir, tmp_path / name)
    names = dict(enumerate(("contradiction", "entailment", "neutral")))
    config = BertConfig.from_pretrained(tiny_model_dir, id2label=names, label2id={name: i for i, name in names.items()})
    BertForSequenceClassification(config).save_pretrained("some/mnli-model")
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained("some/mnli-model")
    table(tmp_path / "my.csv", ",", "question,kind", rows(60, words, kind("praise", "blame")))
    table(tmp_path / "new.csv", ",", "question", rows(5, words))
    table(
        tmp_path / "pairs.tsv", "\t", "first,second,kind,score", rows(40, words, words, kind("same", "other"), kind("0.5", "2"))
    )
    tagged = [{"question": text, "kind": names.split()} for text, names in rows(40, words, kind("a b", "b", "a", "c b"))]
    (tmp_path / "tags.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tagged))
    table(tmp_path / "SMSSpamCollection.gz", "\t", None, rows(60, kind("ham", "spam"), words))
    pair = (kind("0", "1"), kind("1"), kind("2"), words, words)
    for split in ("train", "dev"):
        table(tmp_path / f"glue/MRPC/{split}.tsv", "\t", "Quality,#1 ID,#2 ID,#1 String,#2 String", rows(40, *pair))
    rte = (words, words, kind("entailment", "not_entailment"))
    for split in ("train", "dev"):
        table(tmp_path / f"glue/RTE/{split}.tsv", "\t", "sentence1,sentence2,label", rows(40, *rte))
    table(tmp_path / "glue/RTE/test.tsv", "\t", "sentence1,sentence2", rows(7, words, words))
    for split in ("matched", "mismatched"):
        triple = rows(12, words, words, kind(*names.values()))
        table(tmp_path / f"glue/MNLI/dev_{split}.tsv", "\t", "sentence1,sentence2,gold_label", triple)
    (tmp_path / "texts").mkdir()
    for name, count in (("a", 200), ("b", 150)):
        (tmp_path / "texts" / f"{name}.txt").write_text("\n\n".join(f"{a}\n{b} {name}" for a, b in rows(count, words, words)))
    write_tagged(tmp_path)
    write_questions(tmp_path)
    table(tmp_path / "quiz.csv", ",", "story,end1,end2,end3,right", rows(40, words, words, words, words, kind("0", "1", "2")))
    return tmp_path


def write_tagged(folder: Path) -> None:
    """Sentences with a person in each, in every layout that the README names."""
    sentences = [(text.split(), ["B-PER", *["O"] * (len(text.split()) - 1)]) for (text,) in rows(40, words)]
    conll = "\n".join("".join(f"{w} {t}\n" for w, t in zip(*sentence, strict=True)) for sentence in sentences)
    (folder / "my.conll").write_text(conll)
    (folder / "letters.txt").write_text("Grace wrote to you.\n\nThe lamp of Mr. Young is a good one.\n")
    spans = [{"text": " ".join(ws), "entities": [[0, len(ws[0]), "PER"]]} for ws, _ in sentences]
    (folder / "spans.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spans))
    for split in ("train", "valid", "test"):
        (folder / "conll2003").mkdir(exist_ok=True)
        (folder / f"conll2003/{split}.txt").write_text(conll.replace(" ", " NN I-NP "))
        (folder / f"atis/{split}").mkdir(parents=True)
        for name, lines in (
            ("seq.in", [" ".join(ws) for ws, _ in sentences]),
            ("seq.out", [" ".join(ts) for _, ts in sentences]),
            ("label", ["ask", "tell"] * 20),
        ):
            (folder / f"atis/{split}/{name}").write_text("\n".join(lines) + "\n")


def write_questions(folder: Path) -> None:
    """Questions whose answer is a word of their context."""
    questions = []
    for number, (context,) in enumerate(rows(30, words)):
        answer = {"text": context.split()[2], "answer_start": context.index(context.split()[2])}
        questions.append({"id": str(number), "question": "what is it", "context": context, "answers": [answer]})
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    (folder / "page.txt").write_text("The lamp is a good lamp.\n\nIt was made by one great man.\n")
    paragraphs = [
        {"context": q["context"], "qas": [{name: q[name] for name in ("id", "question", "answers")}]} for q in questions
    ]
    (folder / "squad").mkdir()
    for split in ("train", "dev"):
        articles = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"squad/{split}-v1.1.json").write_text(json.dumps(articles))


def small(command: list[str]) -> list[str]:
    """The command with a size that a test can wait for, and with local data where it would ask the hub."""
    if command[0] == "finetune":
        command = [*command, "--max-steps", "2", "--max-length", "32"]
        if command[1] in ("squad", "question-answering"):
            command += ["--doc-stride", "8"]
        if command[1] == "mrpc" and "--data" not in command:
            command += ["--data", "glue/MRPC"]
    if command[0] == "pretrain":
        if "--hours" in command:
            at = command.index("--hours")
            command = command[:at] + command[at + 2 :]
        steps = "6" if "--phases" in command else "2"  # a tenth of which is one
        command = [*command, "--max-steps", steps, "--max-length", "16", "--batch-size", "4"]
    if command[0] == "check" and "--model" in command:
        command += ["--max-length", "32"]
    if command[0] == "eval" and "some/mnli-model" in command:
        command += ["--max-length", "32"]
    return command


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[0][:60])
def test_commands_of_the_readme(
    block: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if any(line.startswith(LAUNCHERS) for line in block):  # ways to run one command: each from the beginning
        assert len({re.sub("|".join(LAUNCHERS), "", line) for line in block}) == 1
        block = block[:1]
    for line in block:
        line = re.sub(r"\s+#.*", "", line)
        typed, _, piped = line.rpartition(" | ")
        if typed:
            text = shlex.split(typed)[1] + "\n"
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
        program, *command = shlex.split(piped)
        assert program == "bertkit", line
        code = main(small(command))
        out, err = capsys.readouterr()
        assert code == 0, f"{line}\n{err}"
        if command[0] == "predict":
            assert_predicted(command, place, out)
        if "--json" in command:
            assert out.startswith('{"validation_matched/accuracy": ')


def assert_predicted(command: list[str], place: Path, out: str) -> None:
    """One prediction a row, or a word; what went to a file did not go to stdout."""
    if "--output" not in command:
        assert len(out.splitlines()) == 1
        return
    assert out == ""
    written = (place / command[command.index("--output") + 1]).read_text().splitlines()
    expected = {"new.csv": 1 + 5, "letters.txt": 5 + 2 + 11, "quiz.csv": 40, "pairs.tsv": 1 + 40, "--split": 1 + 7}
    assert len(written) == expected[command[2]], written


def test_the_blocks_are_found() -> None:
    assert len(BLOCKS) >= 8
    commands = {line.split("bertkit ")[-1].split()[0] for block in BLOCKS for line in block if "bertkit " in line}
    assert commands >= {"finetune", "eval", "predict", "recipes", "tokenizer", "corpus", "pretrain"}


def test_what_the_readme_says_of_transformers(place: Path) -> None:
    from transformers import pipeline

    assert main([*small(["finetune", "text-classification", "--train", "my.csv", "--model", "minilm"]), "-o", "runs/spam"]) == 0
    found = pipeline("text-classification", model="runs/spam")("You have won a prize, call now")
    assert found[0]["label"] in ("praise", "blame")


def test_the_tree_names_every_room() -> None:
    tree = re.search(r"\nbertkit/\n(.*?)\nrecipes/", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert tree is not None
    named = set(re.findall(r"^  (\w+)(?:\.py|/)", tree[1], flags=re.MULTILINE))
    there = {path.stem for path in (ROOT / "bertkit").iterdir() if path.name[0] not in "_." and path.name != "recipes"}
    assert named == there


def test_make_targets_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md"))
    targets = set(re.findall(r"`?make (\w[\w-]*)", text)) - {"it"}
    assert targets >= {"demo", "test", "results", "bench", "check"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
