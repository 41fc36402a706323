"""README and docs: all code runs as written, page by page; links, options and generated parts are correct."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet
import pytest
import typer
from engines import MARKS, ray_cluster, spark_session
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from bertkit.cli import main
from bertkit.cli.commands import app
from bertkit.cli.presets import PRETRAINING_PRESETS
from bertkit.config import PretrainConfig
from bertkit.tasks.catalog import list_recipes
from scripts import generated_pages

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
DATA_HASHES = [line.split()[::-1] for line in (ROOT / "results" / "data.sha256").read_text(encoding="utf-8").splitlines()]
OTHERS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "CHANGELOG.md")}
# tests/training/test_distributed.py and tests/test_sbatch.py run these for real
LAUNCHERS = {r"^(accelerate launch|torchrun) (--.* )?-m (?=bertkit )": "", r"^sbatch .*/pretrain\.sbatch ": "bertkit pretrain "}


def blocks(page: str) -> list[tuple[str, str]]:
    """The code of a page that can be run: (language, content)."""
    return re.findall(r"^```(bash|python)\n(.*?)^```", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """Its lines of shell."""
    return [line for language, block in blocks(page) if language == "bash" for line in block.strip().splitlines()]


ENGINES = "engines.md"
RUNNABLE = [page for page in PAGES if any("bertkit " in line for line in commands(page))]


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


def jsonl(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Bucket(MemoryFileSystem):
    """What the pages name as s3://."""

    protocol = ("s3",)
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("s3://", "memory://"))


@pytest.fixture
def place(tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the commands name."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    monkeypatch.chdir(tmp_path)
    for name in ("bert-base-uncased", "bert-base-chinese", "minilm"):
        (tmp_path / name).symlink_to(tiny_model_dir)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    names = dict(enumerate(("contradiction", "entailment", "neutral")))
    config = BertConfig.from_pretrained(tiny_model_dir, id2label=names, label2id={name: i for i, name in names.items()})
    BertForSequenceClassification(config).save_pretrained("some/mnli-model")
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained("some/mnli-model")
    table(tmp_path / "my.csv", ",", "question,kind", rows(60, words, kind("praise", "blame")))
    table(tmp_path / "new.csv", ",", "question", rows(5, words))
    (tmp_path / "in").mkdir()
    for name in ("one", "two"):
        questions = [text for (text,) in rows(3, words)]
        pyarrow.parquet.write_table(pyarrow.table({"question": questions}), tmp_path / f"in/{name}.parquet")
    table(
        tmp_path / "pairs.tsv", "\t", "first,second,kind,score", rows(40, words, words, kind("same", "other"), kind("0.5", "2"))
    )
    tagged = [{"question": text, "kind": names.split()} for text, names in rows(40, words, kind("a b", "b", "a", "c b"))]
    jsonl(tmp_path / "tags.jsonl", tagged)
    table(tmp_path / "SMSSpamCollection.gz", "\t", None, rows(60, kind("ham", "spam"), words))
    write_as_it_comes(tmp_path)
    mrpc, rte = (kind("0", "1"), kind("1"), kind("2"), words, words), (words, words, kind("entailment", "not_entailment"))
    for split in ("train", "dev"):
        table(tmp_path / f"glue/MRPC/{split}.tsv", "\t", "Quality,#1 ID,#2 ID,#1 String,#2 String", rows(40, *mrpc))
        table(tmp_path / f"glue/RTE/{split}.tsv", "\t", "sentence1,sentence2,label", rows(40, *rte))
        table(tmp_path / f"glue/STS-B/{split}.tsv", "\t", "sentence1,sentence2,score", rows(40, words, words, kind("0.5", "4")))
    table(tmp_path / "glue/RTE/test.tsv", "\t", "sentence1,sentence2", rows(7, words, words))
    for split in ("train", "dev_matched", "dev_mismatched"):
        triple = rows(12, words, words, kind(*names.values()))
        table(tmp_path / f"glue/MNLI/{split}.tsv", "\t", "sentence1,sentence2,gold_label", triple)
    (tmp_path / "data").mkdir()
    (tmp_path / "texts").mkdir()
    for name, count in (("a", 200), ("b", 150)):
        (tmp_path / "texts" / f"{name}.txt").write_text("\n\n".join(f"{a}\n{b} {name}" for a, b in rows(count, words, words)))
    (tmp_path / "names.txt").write_text("good movie\nyou like\n")
    (tmp_path / "texts-zh").mkdir()
    sentences = ["".join(characters) for characters in rows(80, *[kind(*"这家酒店很好不差的书电影")] * 7)]
    (tmp_path / "texts-zh/a.txt").write_text("。\n\n".join(sentences), encoding="utf-8")
    table(tmp_path / "kinds-zh.csv", ",", "text,label", [*zip(sentences, ["praise", "blame"] * 40)])
    upload(tmp_path, monkeypatch)
    write_tagged(tmp_path)
    write_questions(tmp_path)
    table(tmp_path / "quiz.csv", ",", "story,end1,end2,end3,right", rows(40, words, words, words, words, kind("0", "1", "2")))
    return tmp_path


def write_as_it_comes(folder: Path) -> None:
    """Texts and labels in forms of public data sets."""
    lines = rows(40, kind("DESC:def", "NUM:date"), words)
    (folder / "trec.label").write_bytes("".join(f"{label} {text} caf\u00e9\n" for label, text in lines).encode("latin-1"))
    marked = [(f"__label__{label} __label__all", text) for label, text in lines]
    (folder / "cooking.train").write_text("".join(f"{labels} {text}\n" for labels, text in marked))
    data = {"train": [[text, label] for label, text in lines], "test": [["where is it", "NUM:date"]]}
    (folder / "intents.json").write_text(json.dumps({"version": 1, "data": data}))


def upload(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the folder in a bucket."""
    monkeypatch.setitem(_registry, "s3", Bucket)
    Bucket.store.clear()
    for path in (*folder.glob("in/*"), *folder.glob("*.csv"), *folder.glob("texts/*")):
        Bucket().pipe_file(f"s3://my-bucket/{path.relative_to(folder)}", path.read_bytes())


def write_tagged(folder: Path) -> None:
    """Sentences with a person in each, in every layout that the docs name."""
    sentences = [(text.split(), ["B-PER", *["O"] * (len(text.split()) - 1)]) for (text,) in rows(40, words)]
    conll = "\n".join("".join(f"{w} {t}\n" for w, t in zip(*sentence, strict=True)) for sentence in sentences)
    (folder / "my.conll").write_text(conll)
    (folder / "letters.txt").write_text("Grace wrote to you.\n\nThe lamp of Mr. Young is a good one.\n")
    jsonl(folder / "spans.jsonl", [{"text": " ".join(ws), "entities": [[0, len(ws[0]), "PER"]]} for ws, _ in sentences])
    shutil.copy(folder / "spans.jsonl", folder / "new_spans.jsonl")
    shutil.copy(folder / "spans.jsonl", folder / "dev.jsonl")
    (folder / "conll2003").mkdir()
    columns = {"seq.in": [" ".join(ws) for ws, _ in sentences], "seq.out": [" ".join(ts) for _, ts in sentences]}
    columns["label"] = ["ask", "tell"] * 20
    for split in ("train", "valid", "test"):
        (folder / f"conll2003/{split}.txt").write_text(conll.replace(" B", " NN I-NP B").replace(" O", " VB O O"))
        (folder / f"atis/{split}").mkdir(parents=True)
        for name, lines in columns.items():
            (folder / f"atis/{split}/{name}").write_text("\n".join(lines) + "\n")


def write_questions(folder: Path) -> None:
    """Questions whose answer is a word of their context."""
    questions = []
    for number, (context,) in enumerate(rows(30, words)):
        answer = {"text": context.split()[2], "answer_start": context.index(context.split()[2])}
        questions.append({"id": str(number), "question": "what is it", "context": context, "answers": [answer]})
    jsonl(folder / "questions.jsonl", questions)
    (folder / "page.txt").write_text("The lamp is a good lamp.\n\nIt was made by one great man.\n")
    paragraphs = [{"context": question["context"], "qas": [question]} for question in questions]
    (folder / "squad").mkdir()
    for split in ("train", "dev"):
        articles = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"squad/{split}-v1.1.json").write_text(json.dumps(articles))


def small(command: list[str]) -> list[str]:
    """The command with a size that a test can wait for, and with local data where it would ask the hub."""
    if command[0] == "finetune":
        command = ["2" if before in ("--seeds", "--folds") else word for before, word in zip(["", *command], command)]
        command = [*command, "--max-steps", "2", "--max-length", "32"]
        if command[1] in ("squad", "question-answering"):
            command += ["--doc-stride", "8"]
        if command[1] == "mrpc" and "--data" not in command:
            command += ["--data", "glue/MRPC"]
    if command[0] == "tune":
        few = [] if "--find-learning-rate" in command else ["--trials", "2", "--seeds", "2"]
        command = [*command, *few, "--max-length", "32"]
    if command[0] == "pretrain":
        command = [{"small": "tiny", "base": "tiny"}.get(word, word) for word in command]
        if "--hours" in command:
            at = command.index("--hours")
            command = command[:at] + command[at + 2 :]
        steps = "6" if "--phases" in command else "2"  # a tenth of which is one
        command = [*command, "--max-steps", steps, "--max-length", "16", "--batch-size", "4"]
    if command[0] == "export" and "--int8" in command:
        command = [*command, "--force"]  # two steps leave labels close to each other
    if command[0] == "compare":
        command = [*command, "--resamples", "100"]
    if command[:2] == ["corpus", "build"]:
        command = [*command, "--num-processes", "1"]
    if command[0] == "check" and "--output-dir" in command:
        command = [*command, "--max-steps", "2"]
    if (command[0] == "check" and "--model" in command) or "some/mnli-model" in command:
        command = [*command, "--max-length", "32"]
    return command


@pytest.mark.parametrize("page", [pytest.param(page, marks=MARKS if page == ENGINES else ()) for page in RUNNABLE])
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in re.findall(r"`([\w.]+)`:\n\n```json\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE):
        (place / name).write_text(content, encoding="utf-8")  # a file that the page shows
    ran: set[str] = set()
    names: dict[str, object] = {}  # of the page's Python so far
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as servers:
        for engine in (ray_cluster, spark_session) if page == ENGINES else ():
            servers.enter_context(engine())  # what its code finds there
        for language, block in blocks(page):
            block = block.replace(":8000", f":{port}")
            if language == "python":
                run_python(block, names)
                continue
            for line in block.strip().splitlines():
                for launcher, alone in LAUNCHERS.items():  # one command
                    line = re.sub(launcher, alone, line)
                if line.startswith("bertkit serve ") and line.endswith(" &"):
                    servers.enter_context(server(line.removesuffix(" &"), port, monkeypatch))
                elif line.startswith("curl "):
                    assert json.loads(subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout)
                elif "bertkit " in line and line not in ran:
                    ran.add(line)
                    run_command(line, place, monkeypatch, capsys)


@contextmanager
def server(line: str, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server while the rest of its page runs, on a free port in place of 8000."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # else its client does not ask this machine either
    command = [sys.executable, "-m", *shlex.split(line), "--port", str(port), "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any(f"http://127.0.0.1:{port} serves " in each for each in iter(process.stderr.readline, "")), line
            yield
        finally:
            process.terminate()
    assert process.returncode == -signal.SIGTERM


def run_python(block: str, names: dict[str, object]) -> None:
    """Run code, or keep a recipe under the name that its first line gives."""
    if name := re.match(r"# (\w+\.py)\n", block):
        Path(name[1]).write_text(block, encoding="utf-8")
    else:
        exec(compile(block, "block", "exec"), names)


def run_command(line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
        assert json.loads(out)


def assert_predicted(command: list[str], place: Path, out: str) -> None:
    """One prediction a row, or a word; what went to a file did not go to stdout."""
    if "--output-dir" in command:
        written = {path.name for path in (place / command[-1]).iterdir() if not path.name.startswith("_")}
        assert written == {"one.jsonl", "two.jsonl", "new.jsonl"}
        return
    if "--output" not in command:
        assert len(out.splitlines()) == 1
        return
    assert out == ""
    written = (place / command[command.index("--output") + 1]).read_text(encoding="utf-8").splitlines()
    if "--format" in command:
        brackets, empty = 2 * ("label-studio" in command), "--uncertain" in command  # which leaves the row without text out
        assert len(written) == 3 - empty + brackets, "a task a line, maybe in a list"
        return
    expected = {"new.csv": 1 + 5, "letters.txt": 5 + 2 + 11, "quiz.csv": 40, "pairs.tsv": 1 + 40}
    expected |= {"validation": 1 + 40, "test": 1 + 7}  # of a --split
    asked = command[3] if command[2] == "--split" else command[2]
    header = 0 if command[-1].endswith(".jsonl") and asked == "new.csv" else 1
    assert len(written) == expected[asked] - (1 - header), written


def test_every_command_is_shown_by_some_page() -> None:
    run = {re.sub(r".*bertkit ", "", line).split()[0] for page in RUNNABLE for line in commands(page) if "bertkit " in line}
    assert run == set(typer.main.get_command(app()).commands) - {"submission"}  # which needs all of GLUE's test sets


# --- what pages say ------------------------------------------------------------------------------------------------------


def test_the_readme_is_two_screens_and_names_every_command() -> None:
    text = PAGES["README.md"]
    assert len(text.splitlines()) <= 150
    named = {match.split(" ")[0] for match in re.findall(r"^\| `bertkit ([^`]+)`", text, flags=re.MULTILINE)}
    assert named == set(typer.main.get_command(app()).commands)


def test_every_recipe_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", PAGES["recipes.md"]))
    assert {recipe.name for recipe in list_recipes()} <= named


def test_every_option_that_is_named_exists() -> None:
    known = set(re.findall(r"`(--[\w-]+)`", generated_pages.options_page())) | {"--help"}
    # of other programs
    others = {"--nnodes", "--nproc-per-node", "--standalone", "--max-restarts", "--no-deps", "--force", "--quick"}
    others |= {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--nodes", "--signal"}  # of torchrun and Slurm
    others |= {"--retry", "--retry-delay", "--retry-connrefused"}  # of curl
    others |= {"--wheel-dir", "--no-index", "--find-links"}  # of pip
    others |= {"--revision", "--local-dir", "--bf16"}  # of hf, and of transformers' scripts
    others |= {"--tables", "--list", "--record"}  # of python -m scripts.results and tests/test_golden.py
    for name, text in (PAGES | OTHERS).items():
        made = r"```sh\n.*?```|<!-- results:.*?<!-- /results:"  # results, and how they were made, by scripts too
        shown = re.sub(made, "", text, flags=re.DOTALL)
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+(?!\w)", shown))
        assert used - known <= others, name


def test_every_data_set_of_results_and_tests_has_its_source() -> None:
    named = set()
    for path in (*(ROOT / "tests").rglob("*.py"), *(ROOT / "scripts").rglob("*.py"), *(ROOT / "docs").glob("*.md")):
        named |= set(
            re.findall(r'(?:data_dir / "|BERTKIT_TEST_DATA/|\{DATA\}/)([A-Z][\w-]+|text-\w\w)', path.read_text("utf-8"))
        )
    assert {"CoNLL2003", "text-en"} < named
    files, copies = PAGES["data_sets.md"].split("\n## Where the copies are\n")
    for table in (files, copies):
        rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
        listed = {name.partition("/")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}
        assert named <= listed
        assert {name.partition("/")[0] for name, _ in DATA_HASHES} == listed


def test_the_data_are_those_of_the_published_hashes(data_dir: Path) -> None:
    for name, expected in DATA_HASHES:
        path = next(path for path in (data_dir / f"{name}{ending}" for ending in ("", ".gz", ".xz")) if path.is_file())
        with {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)(path, "rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == expected, name


def slug(heading: str) -> str:
    """The anchor of a heading, as hosts of Markdown make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_page_lists_what_the_budget_preset_sets() -> None:
    (block,) = re.findall(r"`--preset budget` sets these values .*?```\n(.*?)```", PAGES["pretraining.md"], re.DOTALL)
    words = shlex.split(block)
    stated = {name.removeprefix("--").replace("-", "_"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    preset = PRETRAINING_PRESETS["budget"]
    assert stated.keys() == preset.keys()
    assert PretrainConfig.of(stated | {"max_steps": 9}) == PretrainConfig.of(preset | {"max_steps": 9})


def test_links_lead_somewhere() -> None:
    found = 0
    for name, text in (PAGES | OTHERS).items():
        folder = ROOT if name in OTHERS or name == "README.md" else ROOT / "docs"
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if target.startswith("https://"):
                continue
            path, _, anchor = target.partition("#")
            file = folder / path if path else folder / name
            assert file.is_file(), f"{name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
                assert anchor in map(slug, headings), f"{name}: {target}"
            found += 1
    assert found >= 50


def test_index_and_readme_link_every_page() -> None:
    for name, prefix in (("README.md", "docs/"), ("index.md", "")):
        for page in set(PAGES) - {"README.md", "index.md"}:
            assert f"]({prefix}{page})" in PAGES[name], f"{name} links no {page}"


# --- generated parts -------------------------------------------------------------------------------------------------------


def test_the_options_are_those_of_today() -> None:
    assert PAGES["options.md"] == generated_pages.options_page(), "python -m scripts.generated_pages"


def test_the_tree_names_every_file_and_no_other() -> None:
    assert generated_pages.with_tree(PAGES["architecture.md"]) == PAGES["architecture.md"], "python -m scripts.generated_pages"
    named = re.findall(r"^ *- `(\w+\.py)`", generated_pages.tree(), flags=re.MULTILINE)
    roots = (ROOT / "bertkit", ROOT / "scripts")
    there = [path.name for root in roots for path in root.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(there)


def test_generated_pages_say_so_first() -> None:
    generated = [name for name, text in PAGES.items() if "<!-- results:" in text or "<!-- tree" in text or name == "options.md"]
    assert set(generated) == {
        "README.md",
        "results.md",
        "speed.md",
        "precision.md",
        "scale.md",
        "serve.md",
        "engines.md",
        "architecture.md",
        "options.md",
    }
    for name in set(generated) - {"README.md"}:
        assert PAGES[name].startswith("<!-- Generated "), name


def test_make_targets_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:`|^)make ([a-z][\w-]*)", "\n".join((PAGES | OTHERS).values()), flags=re.MULTILINE))
    assert targets >= {"demo", "test", "results", "bench", "check", "docs"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
