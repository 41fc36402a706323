"""Hostile or unlucky surroundings: closed streams, terminals without Unicode, limits, signals. One line, no traceback."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran
from shell import ROOT, run_in_shell
from trained import train

from bertkit import progress
from bertkit.cli import failures

GOOD = "text,label\ngood movie,pos\nbad movie,neg\ngreat film,pos\npoor plot,neg\n"
UNICODE = (
    "text,label\n\u201cgood\u201d \U0001f600 movie,p\u00f6s\u2603\nbad movie,neg\n"
    + "good film,p\u00f6s\u2603\npoor plot,neg\n" * 5
)


@pytest.fixture(scope="module")
def place(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good.csv, unicode.csv, many.csv and a finished run, in which commands run."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "good.csv").write_text(GOOD, encoding="utf-8")
    (folder / "unicode.csv").write_text(UNICODE, encoding="utf-8")
    (folder / "many.csv").write_text("text\n" + "good movie\n" * 5000, encoding="utf-8")
    train(folder / "run", tiny_model_dir, folder / "good.csv")
    return folder


@pytest.fixture
def shell(place: Path) -> Callable[..., Ran]:
    """A function that runs a line of bash in `place`."""
    return partial(run_in_shell, folder=place)


def error_of(ran: Ran) -> str:
    """The one line of error of a command, which may be followed by a hint."""
    lines = [line for line in ran.err.splitlines() if line.startswith(("error: ", "hint: "))]
    assert [line.partition(":")[0] for line in lines] in (["error"], ["error", "hint"]), ran.err
    assert "Traceback" not in ran.err
    assert "is a bug" not in ran.err
    return lines[0]


# --- the standard streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "error"),
    [
        ("bertkit predict run <&-", 2, "standard input or output is closed"),
        ("bertkit recipes --help >&-", 2, "standard input or output is closed"),
        ("bertkit recipes >&-", 2, "standard input or output is closed"),
        ("bertkit --version > /dev/full", 5, "No space left"),
    ],
)
def test_streams_that_cannot_be_used(shell, line: str, code: int, error: str) -> None:
    ran = shell(line)
    assert (ran.code, error in error_of(ran)) == (code, True), ran.err


def test_closed_streams_that_nothing_needs(shell) -> None:
    for line in ("bertkit --version <&-", "bertkit recipes --copy mine >&- <&-", "bertkit recipes 2>&-"):
        ran = shell(line)
        assert (ran.code, "Traceback" in ran.err) == (0, False), ran.err


@pytest.mark.parametrize(
    "line",
    [
        "bertkit finetune --help | head -1",
        "bertkit predict run many.csv --format jsonl | head -1",
        "bertkit recipes | true",
        "bertkit check good.csv 2>&1 | true",
    ],
)
def test_a_pipe_that_its_reader_closes_ends_silently(shell, line: str) -> None:
    ran = shell(line)
    assert (ran.code, ran.err) == (0, "")


def test_a_broken_pipe_that_is_not_an_output_is_no_success(run_bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_reader_is_gone", lambda: False)
    assert failures.end(BrokenPipeError(32, "Broken pipe")) == 5


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"PYTHONIOENCODING": "latin-1"}, marks=pytest.mark.slow),
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_terminals_without_unicode(shell, environment: dict[str, str]) -> None:
    ran = shell("bertkit check unicode.csv", **environment)
    assert (ran.code, "\\u2603" in ran.err) == (0, True), ran.err
    ran = shell("bertkit predict run unicode.csv --format csv && bertkit predict run unicode.csv --format text", **environment)
    assert (ran.code, "error" in ran.err) == (0, False), ran.err


def test_what_programs_read_is_whole_on_any_terminal(shell) -> None:
    ran = shell("bertkit predict run unicode.csv --format jsonl", PYTHONIOENCODING="ascii")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out.splitlines()[0])["text"] == "\u201cgood\u201d \U0001f600 movie"


# --- names and folders -------------------------------------------------------------------------------------------------------


LONG = "a" * 300
COMMANDS = (
    "check NAME",
    "check good.csv --model NAME",
    "predict NAME good.csv",
    "predict RUN NAME",
    "predict RUN good.csv --output NAME.csv",
    "tokenizer train NAME --output-dir t",
    "corpus build NAME --tokenizer MODEL --output-dir c",
    "finetune mrpc --data NAME --model MODEL --output-dir r",
    "finetune text-classification --train good.csv --model MODEL --output-dir NAME",
    "finetune text-classification --config NAME --model MODEL --output-dir r",
    "eval RUN --validation NAME",
    "submission NAME --output-dir s",
    "compare NAME NAME",
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["long", "loop"])
def test_names_that_lead_nowhere(
    run_bertkit, place: Path, tiny_model_dir: Path, tmp_path: Path, command: str, kind: str
) -> None:
    (tmp_path / "good.csv").write_text(GOOD, encoding="utf-8")
    for one, other in (("loop", "loop2"), ("loop2", "loop"), ("loop.csv", "loop.csv")):
        (tmp_path / one).symlink_to(other)
    values = {"NAME": LONG if kind == "long" else "loop", "RUN": place / "run", "MODEL": tiny_model_dir}
    argv = [str(values.get(word.removesuffix(".csv"), word)) for word in command.split()]
    argv = [f"{word}.csv" if before == "NAME.csv" else word for word, before in zip(argv, command.split(), strict=True)]
    ran = run_bertkit(*argv)
    assert ran.code in (2, 3, 4, 5), ran.err
    assert error_of(ran)


# Beside the standard library. What a command needs to run is imported inside it.
OF_TYPER = {"annotated_doc", "attr", "attrs", "markdown_it", "mdurl", "pygments", "rich", "shellingham", "typer"}
OF_HELP = OF_TYPER | {"bertkit", "numpy"}


@pytest.mark.parametrize(
    "command",
    [
        "",
        "finetune",
        "predict",
        "eval",
        "pretrain",
        "check",
        "export",
        "report",
        "reproduce",
        "serve",
        "tune",
        "push",
        "finetune token-classification",
        "finetune FILE",
    ],
)
def test_help_imports_what_it_may_alone(command: str, tmp_path: Path) -> None:
    """A recipe's file is not run for its help."""
    (tmp_path / "mine.py").write_text("import yaml\nraise RuntimeError\n", encoding="utf-8")
    command = command.replace("FILE", str(tmp_path / "mine.py"))
    code = (
        "import sys\nbefore = {*sys.modules}\nfrom bertkit.cli import main\n"
        f"code = main({[*command.split(), '--help']})\n"
        "print(*{name.partition('.')[0] for name in {*sys.modules} - before} - sys.stdlib_module_names, file=sys.stderr)\n"
        "sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: bertkit" in ran.stdout
    found = set(ran.stderr.split())
    assert {"bertkit", "typer"} <= found <= OF_HELP, found - OF_HELP


def test_one_process_predicts_without_what_training_imports(place: Path) -> None:
    code = (
        "import sys\nfrom bertkit.cli import main\ncode = main(['predict', 'run', 'good.csv', '--format', 'jsonl'])\n"
        "print({'accelerate', 'scipy', 'sklearn', 'pandas', 'datasets', 'transformers'} & {*sys.modules})\nsys.exit(code)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=True)
    assert len(ran.stdout.splitlines()) > 1
    assert ran.stdout.splitlines()[-1] == "set()"


def test_the_working_directory_is_gone(shell) -> None:
    ran = shell("mkdir gone && cd gone && rmdir ../gone && bertkit check good.csv")
    assert (ran.code, error_of(ran)) == (2, "error: the working directory is gone")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 5, "out of memory"),
        (ImportError("libtorch.so: failed to map segment from shared object"), 5, "out of memory"),
        (OSError(24, "Too many open files", "a.csv"), 5, "too many open files (a.csv)"),
        (RecursionError("maximum recursion depth exceeded"), 3, "nested too deeply"),
        (FileNotFoundError(2, "No such file or directory", "run/config.json"), 2, "is gone (run/config.json)"),
        (NotADirectoryError(20, "Not a directory", "run"), 2, "is gone (run)"),
        (OSError(5, "Input/output error", "a.csv"), 5, "the disk or network"),
        (RuntimeError("Symlink loop from '/a/b'"), 2, "symbolic links (/a/b)"),
        (PermissionError(13, "Permission denied", "missing"), 5, "cannot open: Permission denied (missing)"),
    ],
)
def test_what_the_system_refuses(run_bertkit, monkeypatch, error: Exception, code: int, words: str) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr("bertkit.tasks.catalog.list_recipes", broken)
    ran = run_bertkit("recipes")
    assert (ran.code, words in error_of(ran)) == (code, True), ran.err


def test_a_file_that_may_not_be_read_is_not_called_unwritable(run_bertkit, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "secret.csv"
    path.write_text(GOOD, encoding="utf-8")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)  # the superuser may read everything
    told = failures.explain(PermissionError(13, "Permission denied", str(path)))
    assert told is not None
    assert (str(told), told.exit_code) == (f"cannot read: Permission denied ({path})", 5)


def test_a_limit_of_open_files(shell) -> None:
    """From the first file on that a command opens itself."""
    line = (
        "import os, resource, sys; from bertkit.cli import main; import bertkit.runs.prediction.predict; main(['--version'])\n"
        "most = len(os.listdir('/proc/self/fd')) - 1; resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n"
        "sys.exit(main(['predict', 'run', 'good.csv', '--output', 'limited.csv']))"
    )
    ran = shell(f"{shlex.quote(sys.executable)} -c {shlex.quote(line)}")
    assert (ran.code, "too many open files" in error_of(ran)) == (5, True), ran.err


def test_a_limit_of_memory(shell) -> None:
    ran = shell("ulimit -v 400000; bertkit check good.csv --model run")
    assert (ran.code, error_of(ran)) == (5, "error: out of memory"), ran.err


def deep(opening: str, closing: str, count: int = 100_000) -> str:
    return opening * count + closing * count


@pytest.mark.parametrize(
    ("name", "content", "argv"),
    [
        ("deep.json", deep("[", "]"), "check deep.json"),
        ("deep.jsonl", '{"text": ' + deep("[", "]") + "}", "predict RUN deep.jsonl"),
        ("deep.yaml", "labels: " + deep("[", "]", 5000), "finetune text-classification --config deep.yaml"),
        ("options.json", deep('{"a":', "}").replace("}", "1}", 1), "finetune text-classification --config options.json"),
        ("config.json", deep('{"a":', "}").replace("}", "1}", 1), "check good.csv --model ."),
        ("run.json", deep('{"a":', "}").replace("}", "1}", 1), "eval ."),
        ("meta.json", deep("[", "]"), "pretrain . --model-size tiny --output-dir p"),
    ],
)
def test_files_that_are_nested_deeply(run_bertkit, place: Path, tmp_path: Path, name: str, content: str, argv: str) -> None:
    (tmp_path / "good.csv").write_text(GOOD, encoding="utf-8")
    (tmp_path / name).write_text(content, encoding="utf-8")
    ran = run_bertkit(*argv.replace("RUN", str(place / "run")).split())
    assert ran.code in (2, 3, 4), ran.err
    assert error_of(ran)


# --- several processes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE is set", "MASTER_ADDR are not"]),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "1"},
            ["LOCAL_RANK is set, but MASTER_ADDR is not"],
        ),
        ({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, ["MASTER_ADDR"]),
        ({"WORLD_SIZE": "many"}, ["WORLD_SIZE is 'many'"]),
        (
            {"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
            ["several processes but started only one"],
        ),
        ({"ACCELERATE_USE_FSDP": "true"}, ["--use_fsdp", "keeps the whole model"]),
    ],
)
def test_several_processes_that_cannot_be(run_bertkit, place: Path, monkeypatch, environment, words: list[str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ran = run_bertkit("predict", place / "run", place / "good.csv")
    assert ran.code == 2
    assert [word for word in words if word not in error_of(ran)] == []


def test_an_address_without_a_number_of_processes_is_said(run_bertkit, place: Path, monkeypatch) -> None:
    """As where a batch system starts several, of which each would work for itself."""
    progress.warn_once.cache_clear()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    ran = run_bertkit("predict", place / "run", place / "good.csv")
    assert ran.code == 0
    assert "MASTER_ADDR is set, but WORLD_SIZE is not: this process runs alone" in " ".join(ran.err.split())


# --- signals ------------------------------------------------------------------------------------------------------------------


def interrupted(place: Path, argv: list[str], number: int, wait: Callable[[subprocess.Popen[bytes]], None], **more: Any) -> Ran:
    """A command that gets a signal after `wait`."""
    running = subprocess.Popen(
        [sys.executable, "-m", "bertkit", *argv],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **more,
    )
    wait(running)
    os.killpg(running.pid, number) if more.get("start_new_session") else running.send_signal(number)
    out, err = running.communicate(timeout=120)
    return Ran(running.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("modules", [60, 400, 900])
def test_ctrl_c_during_imports_is_one_line(place: Path, modules: int, tmp_path: Path) -> None:
    """The signal comes when so many modules are imported, of about a thousand."""
    hook = (
        "import sys, os, signal\nclass Hook:\n    seen = 0\n    def find_spec(self, *_):\n        Hook.seen += 1\n"
        f"        if Hook.seen == {modules}: os.kill(os.getpid(), signal.SIGINT)\nsys.meta_path.insert(0, Hook())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom bertkit.cli import run\nrun()\n"
    )
    command = [sys.executable, "-c", hook, "check", "good.csv", "--model", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (130, "", "stopped"), done.stderr
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr


def test_ctrl_c_that_python_would_drop_ends_the_command(place: Path) -> None:
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import bertkit.cli, bertkit.cli.commands as commands\n"
        "class Dropped:\n    def __del__(self): raise KeyboardInterrupt\n"
        "def run(argv, main):\n    Dropped()\n    return 0\n"
        "commands.run = run\nbertkit.cli.run()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "stopped\n")


def test_sigterm_ends_a_prediction_which_the_same_command_finishes(place: Path, run_bertkit, tmp_path: Path) -> None:
    """In the middle of rows that come through a pipe. A shell calls the code 143."""
    rows, out, begun = (tmp_path / name for name in ("rows.csv", "out.jsonl", "out.jsonl.progress.json"))
    os.mkfifo(rows)
    argv = ["predict", str(place / "run"), str(rows), "--output", str(out)]
    writer, end = os.open(rows, os.O_RDWR | os.O_NONBLOCK), time.monotonic() + 60  # waits for no reader
    written = os.write(writer, (header := b"text\n"))

    def wait(running: subprocess.Popen[bytes]) -> None:
        nonlocal written
        while not begun.exists() and running.poll() is None and time.monotonic() < end:
            try:
                written += os.write(writer, b"good movie\n" * 300)  # all or nothing, as a pipe takes so little
            except BlockingIOError:
                time.sleep(0.01)

    ran = interrupted(place, argv, signal.SIGTERM, wait)
    os.close(writer)
    assert (ran.code, "Traceback" in ran.err, out.exists()) == (-signal.SIGTERM, False, False), ran.err
    count = (written - len(header)) // len(b"good movie\n")
    threading.Thread(target=rows.write_bytes, args=(header + b"good movie\n" * count,), daemon=True).start()
    again = run_bertkit(*argv)
    assert (again.code, f"{out}: continuing after " in again.err) == (0, True), again.err
    assert len(out.read_text(encoding="utf-8").splitlines()) == count
    assert {path.name for path in tmp_path.iterdir()} == {rows.name, out.name}


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_of_a_corpus_without_a_word(place: Path, tiny_model_dir: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("good movie was here. and bad\n" * 1_200_000, encoding="utf-8")
    argv = ["corpus", "build", str(text), "--tokenizer", str(tiny_model_dir), "--output-dir", str(tmp_path / "corpus")]

    def wait(running: subprocess.Popen[bytes]) -> None:
        while not any(tmp_path.glob("corpus/*/0*")) and running.poll() is None:
            time.sleep(0.05)

    ran = interrupted(place, [*argv, "--num-processes", "2"], signal.SIGINT, wait, start_new_session=True)
    assert ran.code == 130, ran.err
    assert ran.err.splitlines()[-1] == "stopped"
    assert "Traceback" not in ran.err


def test_text_of_styles_is_escaped_in_one_place() -> None:
    from rich.text import Text

    shown = progress.escaped(Text("a\x1b[31mb\n", style="bold") + Text("[\u202e]", style="red"))
    assert shown.plain == "a\\x1b[31mb\n[\\u202e]"
    assert progress.escaped(Text("plain \u201cquotes\u201d")).plain == "plain \u201cquotes\u201d"
