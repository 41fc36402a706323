"""bertkit push: which files go to the hub, what is in them, and how errors are said. No test asks the hub."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from huggingface_hub import CommitOperationDelete, HfApi, ModelInfo, RepoUrl, constants
from trained import train

from bertkit.runs.publishing import push as pushing

pytestmark = pytest.mark.e2e
FILES = {
    *("README.md", "config.json", "manifest.json", "model.safetensors", "run.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"),
}


@pytest.fixture(scope="module")
def run(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secret-place")
    rows = "".join(f"{text},{'ab'[row % 2]}\n" for row, text in enumerate(["good movie", "bad movie", "why", "no"] * 3))
    (folder / "dev.csv").write_text("text,label\n" + rows, encoding="utf-8")
    return train(folder / "run", tiny_model_dir, folder / "dev.csv", max_length=16)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a fake of the hub's API, which takes the calls that the real one takes, was asked."""
    asked: dict[str, Any] = {}

    def fake(name: str) -> Any:
        signature = inspect.signature(getattr(HfApi, name))

        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs).arguments
            asked[name] = {key: value for key, value in bound.items() if key != "self"}
            if name == "model_info":
                siblings = [{"rfilename": each} for each in asked.get("there", [])]
                return ModelInfo(id="me/mine", private=asked.get("private", asked["create_repo"]["private"]), siblings=siblings)
            return RepoUrl("https://huggingface.co/me/mine")

        return call

    for name in ("create_repo", "model_info", "create_commit"):
        monkeypatch.setattr(HfApi, name, fake(name))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    return asked


def is_one_line(err: str) -> bool:
    """Whether it is an error of one line, perhaps with a hint."""
    return [line.split(":")[0].strip() for line in err.splitlines()] in (["error"], ["error", "hint"])


def sent(hub: dict[str, Any]) -> dict[str, bytes]:
    files = {}
    for operation in hub["create_commit"]["operations"]:
        if isinstance(operation, CommitOperationDelete):
            continue
        with operation.as_file() as file:
            files[operation.path_in_repo] = file.read()
    return files


def test_the_model_goes_and_nothing_of_the_machine(run: Path, run_bertkit, hub: dict[str, Any], tmp_path: Path) -> None:
    assert {path.name for path in run.iterdir()} > FILES, "checkpoints and the log are there too"
    ran = run_bertkit("push", run, "me/mine")
    assert (ran.code, ran.err.splitlines()[-1]) == (0, "wrote 9 files to https://huggingface.co/me/mine")
    assert hub["create_repo"] == {"repo_id": "me/mine", "private": True, "exist_ok": True}
    assert (hub["create_commit"]["repo_id"], hub["create_commit"]["commit_message"]) == ("me/mine", "run, by bertkit")
    files = sent(hub)
    assert set(files) == FILES
    manifest = json.loads(files.pop("manifest.json"))
    assert manifest == {name: sha256(data).hexdigest() for name, data in files.items()}
    for name, data in files.items():
        assert (data == (run / name).read_bytes()) == (name not in ("run.json", "README.md"))
        assert b"secret-place" not in data
    card = files["README.md"].decode()
    assert 'pipeline("text-classification", model="me/mine")' in card
    assert card.endswith("\nAll settings are in `run.json`.\n"), "metrics.jsonl stays here"
    assert "path/to" not in card
    before, after = json.loads((run / "run.json").read_text(encoding="utf-8")), json.loads(files["run.json"])
    assert "secret-place" in before["data"]["train"]["source"]
    assert (after["data"]["train"]["source"], after["recipe"]["train"]) == ("dev.csv", "dev.csv")
    assert after["training"] == before["training"] | {}
    assert (after["best"], after["data"]["train"]["rows_sha256"]) == (before["best"], before["data"]["train"]["rows_sha256"])
    for name, data in (files | {"manifest.json": json.dumps(manifest).encode()}).items():  # and from there it is used
        (tmp_path / "pulled").mkdir(exist_ok=True)
        (tmp_path / "pulled" / name).write_bytes(data)
    texts = b"good movie\nwhy\n"
    pulled, own = (run_bertkit("predict", folder, stdin=texts) for folder in (tmp_path / "pulled", run))
    assert (pulled.code, pulled.out, "warning" in pulled.err) == (0, own.out, False)


def test_public_and_another_message(run: Path, run_bertkit, hub: dict[str, Any]) -> None:
    assert run_bertkit("push", run, "me/mine", "--public", "--message", "first").code == 0
    assert (hub["create_repo"]["private"], hub["create_commit"]["commit_message"]) == (False, "first")


@pytest.mark.parametrize(
    ("private", "options", "hint"), [(False, (), "add --public"), (True, ("--public",), "leave out --public")]
)
def test_a_repository_stays_as_public_as_it_is(private: bool, options, hint: str, run: Path, run_bertkit, hub) -> None:
    hub["private"] = private
    ran = run_bertkit("push", run, "me/mine", *options)
    assert (ran.code, "create_commit" in hub, is_one_line(ran.err)) == (2, False, True), ran.err
    assert f"me/mine already exists and is {'private' if private else 'public'}" in ran.err
    assert hint in ran.err


def test_weights_of_an_earlier_push_are_deleted(run: Path, run_bertkit, hub: dict[str, Any]) -> None:
    stale = {"pytorch_model.bin", "model-00001-of-00002.safetensors", "model.safetensors.index.json"}
    hub["there"] = [*stale, "model.safetensors", ".gitattributes", "notes.bin", "README.md"]
    assert run_bertkit("push", run, "me/mine").code == 0
    deleted = [each.path_in_repo for each in hub["create_commit"]["operations"] if isinstance(each, CommitOperationDelete)]
    assert sorted(deleted) == sorted(stale)


def test_paths_are_told_by_their_keys() -> None:
    paths = [
        "secret/x/train.csv",
        r"secret\x\train.csv",
        r"C:\secret\train.csv",
        "file:///secret/train.csv",
        "./secret/train.csv",
        "s3://secret/x/train.csv",
        "https://secret.org/train.csv?token=secret/y",
        "simplecache::https://secret.org/train.csv?sig=secret",
        "abfs://secret@account/train.csv?sig=secret#secret",
    ]
    for path in paths:
        run = {"recipe": {"train": path, "data": path}, "data": {"train": {"source": path}}, "model": {"name": path}}
        run["training"] = {"entities": path}
        name = "train.csv"
        found = {"recipe": {"train": name, "data": name}, "data": {"train": {"source": name}}, "model": {"name": name}}
        found["training"] = {"entities": name}
        if path == paths[0]:
            run["model"]["name"] = found["model"]["name"] = "someone/model"
        assert pushing._without_paths(run) == found
    kept = {"recipe": {"validation": "1/5", "language": "en/de"}, "model": {"name": "bert-base-uncased"}}
    assert pushing._without_paths(kept) == kept
    relations = ["/people/person/place_lived", "/business/company/place_lived"]
    kept = {"task": {"labels": relations}, "recipe": {"labels": relations, "class_weights": f"{relations[0]}=2"}}
    assert pushing._without_paths(kept) == kept
    for path in (
        "file:///secret/x.csv",
        "memory://secret/x.csv",
        "https://secret.org/x.csv?token=secret/y",
        "s3://secret/x.csv?secret",
    ):
        assert pushing._without_paths({"asked": {"other": path}}) == {"asked": {"other": "x.csv"}}


def test_names_of_data_on_the_hub_stay(run: Path, tmp_path: Path) -> None:
    copytree(run, tmp_path / "run")
    values = json.loads((run / "run.json").read_text(encoding="utf-8"))
    values["recipe"] |= {"train": None, "validation": None, "test": None, "data": None}
    values["recipe"]["dataset"] = {"hub": {"path": "nyu-mll/glue", "name": "mrpc"}}
    values["data"] = {"train": {"source": "nyu-mll/glue/mrpc/train"}}
    (tmp_path / "run/run.json").write_text(json.dumps(values), encoding="utf-8")
    told = pushing.files_to_push(tmp_path / "run", "me/mine")["run.json"]
    assert isinstance(told, bytes)
    assert json.loads(told)["data"] == values["data"]


def test_a_dry_run_shows_the_files_and_asks_nobody(run: Path, run_bertkit, hub: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("HF_TOKEN")
    ran = run_bertkit("push", run, "me/mine", "--dry-run")
    assert (ran.code, hub) == (0, {})
    shown = dict(re.findall(r"([\w.]+\.\w+)\W+(\d[\d,]*)", ran.err))
    assert set(shown) == FILES
    assert int(shown["model.safetensors"].replace(",", "")) == (run / "model.safetensors").stat().st_size


def test_what_is_wrong_here_is_one_line(run: Path, run_bertkit, hub: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    def refused(code: int, told: str, *command: object) -> None:
        ran = run_bertkit("push", *command)
        assert (ran.code, told in ran.err.splitlines()[0], is_one_line(ran.err)) == (code, True, True), ran.err
        assert not hub

    refused(2, "'mine' is not a repository name; expected owner/name", run, "mine")
    refused(2, "'mine' is not a repository name", run, "mine", "--dry-run")
    refused(2, "'a b' is not a repository name", run, "a b")
    refused(2, "this is not a bertkit run", tmp_path, "me/mine")
    (tmp_path / "begun").mkdir()
    begun = json.loads((run / "run.json").read_text(encoding="utf-8")) | {"status": "running"}
    (tmp_path / "begun" / "run.json").write_text(json.dumps(begun), encoding="utf-8")
    refused(2, "the run is not finished", tmp_path / "begun", "me/mine")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    refused(2, "the hub needs a token", run, "me/mine")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(5, "HF_HUB_OFFLINE", run, "me/mine")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A hub on this machine that refuses every request with a status."""
    answer: dict[str, Any] = {"status": 401}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = json.dumps({"error": "no,\nnot you"}).encode()
            self.send_response(answer["status"])
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    found = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{found.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    yield answer
    found.shutdown()
    found.server_close()


@pytest.mark.parametrize(
    ("status", "told"), [(401, "does not let this token write"), (403, "does not let"), (400, "no, not you")]
)
def test_what_the_hub_refuses_is_one_line(status: int, told: str, run: Path, run_bertkit, server: dict[str, Any]) -> None:
    server["status"] = status
    ran = run_bertkit("push", run, "me/mine")
    assert (ran.code, told in ran.err, is_one_line(ran.err)) == (5, True, True), ran.err


def test_a_hub_that_is_not_there_is_one_line(run: Path, run_bertkit, server: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    ran = run_bertkit("push", run, "me/mine")
    assert (ran.code, "cannot write to me/mine" in ran.err, is_one_line(ran.err)) == (5, True, True), ran.err
