"""`bertkit serve` as a command: what it refuses before it starts, what it prints, and how it ends."""

from __future__ import annotations

import errno
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from bertkit.serve import server
from bertkit.serve.batcher import Batcher

pytestmark = pytest.mark.e2e
SECRET = "the hidden ticket"


@pytest.fixture(scope="module")
def folder(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertForSequenceClassification", seed=3, initializer_range=0.5, labels=("a", "b"))


def _heed_ctrl_c() -> None:
    """Also where the tests run in the background of a shell, which lets its commands ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(*argv: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and its URL."""
    command = [
        sys.executable,
        "-m",
        "bertkit",
        "serve",
        *map(str, argv),
        "--port",
        "0",
        "--device",
        "cpu",
        "--precision",
        "fp32",
    ]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **streams, text=True, preexec_fn=_heed_ctrl_c) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://[\w.:\[\]]+(?= serves)", line)))
            yield process, url
        finally:
            process.kill()


def test_ctrl_c_ends_it_after_what_it_took(folder: Path) -> None:
    rows = ["the good movie " * 8] * 2000  # some seconds of work
    with running(folder, "--max-request-tokens", 10**6, "--max-batch-tokens", 500) as (process, url):
        answers: list[httpx2.Response] = []
        asking = [
            threading.Thread(target=lambda: answers.append(httpx2.post(url, json={"inputs": rows}, timeout=120)))
            for _ in range(3)
        ]
        for thread in asking:
            thread.start()
        while 'te_request_count{method="batch"} 3' not in httpx2.get(f"{url}/metrics").text:
            pass
        process.send_signal(signal.SIGINT)
        for thread in asking:
            thread.join()
        assert [(each.status_code, len(each.json())) for each in answers] == [(200, 2000)] * 3
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, "stopped\n")
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(url)


def test_sigterm_ends_it_too_and_nothing_of_texts_was_printed(folder: Path) -> None:
    with running(folder) as (process, url):
        name = folder.name
        assert httpx2.get(f"{url}/info").json()["models"][0]["name"] == name
        for content in ({"inputs": SECRET}, {"inputs": [SECRET, 3]}, {"inputs": SECRET, "parameters": SECRET}):
            httpx2.post(f"{url}/models/{name}", json=content)
        with socket.create_connection((url.split("/")[-1].split(":")[0], int(url.rpartition(":")[2]))) as connection:
            connection.sendall(f"{SECRET}\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("nowhere", 5, "nowhere"),
        ("RUN nowhere", 5, "nowhere"),
        (
            "RUN other/RUN",
            2,
            "two runs are named 'run': run and other/run\nhint: give one another name, for example with ln -s",
        ),
        ("one/model two/model", 2, "give one another name, for example with hf download ID --local-dir FOLDER"),
        ("RUN --host 0.0.0.0", 2, "--host 0.0.0.0 lets other machines in"),
        (
            "RUN --host 192.0.2.1 --port 9000 --token x",
            2,
            "cannot listen on 192.0.2.1 port 9000: Cannot assign requested address",
        ),
        ("RUN --host nosuch.invalid --port 9000 --token x", 2, "cannot listen on nosuch.invalid port 9000: "),
        ("RUN --port 70000", 2, "--port is 70000"),
        ("RUN --max-queue 0", 2, "--max-queue is 0"),
        ("RUN --precision int4", 2, "int4"),
        ("RUN --port TAKEN", 2, "Address already in use"),
        ("BARE", 4, "the model has no trained head: there is nothing to serve"),
    ],
)
def test_what_is_wrong_is_said_before_it_starts(
    run_bertkit,
    folder: Path,
    tiny_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda self, **more: pytest.fail("it started"))
    (tmp_path / "other").mkdir()
    (tmp_path / "run").symlink_to(folder)
    (tmp_path / "other/run").symlink_to(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {"RUN": "run", "other/RUN": "other/run", "BARE": tiny_model_dir, "TAKEN": taken.getsockname()[1]}
        ran = run_bertkit("serve", *(names.get(word, word) for word in options.split()))
    assert (ran.code, ran.out) == (code, "")
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in ran.err
    assert "Unknown error" not in errors[0]


def test_one_thread_opens_the_models_and_computes_and_no_write_waits_for_an_acknowledgement(
    run_bertkit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def note(*_: object, is_first: bool = True) -> None:
        if is_first:
            threads.append(threading.current_thread().name)

    def run(_: object, sockets: list[socket.socket]) -> None:
        with socket.create_connection(sockets[0].getsockname()), sockets[0].accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    open_model = server.open_model
    monkeypatch.setattr("bertkit.serve.batcher.Batcher._run", lambda self, share, is_first: note(is_first=is_first))
    monkeypatch.setattr(server, "open_model", lambda *words: (note(), open_model(*words))[1])
    monkeypatch.setattr("uvicorn.Server.run", run)
    assert run_bertkit("serve", folder, "--port", 0, "--device", "cpu").code == 0
    assert threads == ["model_0", "model_0"]


def test_models_are_warm_before_the_first_request(
    run_bertkit, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the threads that a batch beside others has."""
    warmed: list[Any] = []
    other = tmp_path / "other"
    other.symlink_to(folder)
    before = torch.get_num_threads()
    monkeypatch.setattr(server, "warm_up", lambda model, most: warmed.append((model, most, torch.get_num_threads())))
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: warmed.append(torch.get_num_threads()))
    torch.set_num_threads(3)
    try:
        assert run_bertkit("serve", folder, other, "--port", 0, "--device", "cpu", "--max-batch-tokens", 4096).code == 0
    finally:
        torch.set_num_threads(before)
    assert all(isinstance(model, torch.nn.Module) for model, *_ in warmed[:2])
    assert [how for _, *how in warmed[:2]] == [[1024, 1]] * 2, "each with a third of the threads"
    assert warmed[2:] == [3]


@pytest.mark.parametrize(("options", "warned"), [("--no-auth", True), ("--token secret", False)])
def test_other_machines(run_bertkit, folder: Path, monkeypatch: pytest.MonkeyPatch, options: str, warned: bool) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    ran = run_bertkit("serve", folder, "--host", "0.0.0.0", "--port", 0, "--device", "cpu", *options.split())
    assert ran.code == 0
    assert (
        re.search(r"^warning: --no-auth: anyone who can reach http://0\.0\.0\.0:\d+ can use it", ran.err, re.MULTILINE)
        is not None
    ) == warned
    assert "secret" not in ran.err


def test_the_threads_end_if_the_command_fails_once_they_wait(
    run_bertkit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(line: str) -> None:
        if "open it in a browser" in line:
            raise OSError(errno.ENOSPC, "the disk of the log is full")

    closed: list[str] = []
    monkeypatch.setattr(Batcher, "_run", lambda *_: None)  # which would wait for ever
    monkeypatch.setattr(Batcher, "close", lambda _: closed.append("closed"))
    monkeypatch.setattr("bertkit.progress.note", note)
    ran = run_bertkit("serve", folder, "--port", 0, "--device", "cpu")
    assert (ran.code, closed) == (5, ["closed"]), ran.err


def test_unfinished_requests_are_bounded(run_bertkit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: limits.append(self.config.limit_concurrency))
    assert run_bertkit("serve", folder, "--port", 0, "--device", "cpu", "--max-queue", 3).code == 0
    assert limits == [12]


def test_a_token_of_the_environment(run_bertkit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setenv("BERTKIT_TOKEN", "secret")
    assert run_bertkit("serve", folder, "--host", "0.0.0.0", "--port", 0, "--device", "cpu").code == 0


def test_without_its_packages(run_bertkit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ran = run_bertkit("serve", folder)
    assert (ran.code, 'pip install "bertkit[serve]"' in ran.err) == (5, True)
