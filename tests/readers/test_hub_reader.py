"""Data sets of the hub: against a hub of our own on this machine, without a network, from the cache and from folders."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from file_contents import refused, write

from bertkit.errors import MachineError
from bertkit.readers.hub import read_hub

COMMIT = "a" * 40
CARD = """---
configs:
- config_name: mrpc
  data_files:
  - {split: train, path: mrpc/train.jsonl}
  - {split: validation, path: mrpc/validation.jsonl}
- config_name: cola
  data_files:
  - {split: train, path: cola/train.jsonl}
dataset_info:
- config_name: mrpc
  features:
  - {name: sentence1, dtype: string}
  - name: label
    dtype: {class_label: {names: {'0': different, '1': same}}}
- config_name: cola
  features:
  - {name: sentence, dtype: string}
  - {name: label, dtype: int64}
---
"""
ROWS = [{"sentence1": "NA", "label": 1}, {"sentence1": "null", "label": 0}, {"sentence1": "caf\u00e9", "label": -1}]
REPOSITORIES = {
    "ns/pairs": {
        "README.md": CARD,
        "mrpc/train.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
        "mrpc/validation.jsonl": json.dumps(ROWS[0]) + "\n",
        "cola/train.jsonl": '{"sentence": "a", "label": 1}\n',
    },
    "ns/scripted": {"README.md": "", "scripted.py": "raise RuntimeError('must not run')"},
}

# Reads several sets in one process and prints what came of each; a process of its own, for the endpoint is read at import.
CLIENT = """
import json, sys
from bertkit.errors import UserError
from bertkit.readers.hub import read_hub
for request in json.loads(sys.argv[1]):
    try:
        examples = read_hub(request[0], request[1], split=request[2], revision=(request + [None])[3])
        result = {"columns": examples.columns, "where": examples.where(0), "label_names": examples.label_names}
    except UserError as error:
        result = {"error": [error.exit_code, error.where], "hint": error.hint, "what": error.what}
    print(json.dumps(result))
"""


class Hub(BaseHTTPRequestHandler):
    """The few answers of the hub that datasets asks for."""

    def log_message(self, *args) -> None:
        """Requests are not logged: http.server would write them to stderr."""

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        match = re.fullmatch(r"/(?:api/)?datasets/(\w+/\w+)(?:/(revision|tree|resolve)/([^/]+)/?(.*))?", path)
        if match and match[1] == "ns/gated":
            return self.answer(403, b"{}", X_Error_Code="GatedRepo")
        if not match or match[1] not in REPOSITORIES:
            return self.answer(404, b"{}", X_Error_Code="RepoNotFound")
        files = {name: text.encode() for name, text in REPOSITORIES[match[1]].items()}
        _, action, revision, name = match.groups()
        if revision not in (None, "main", COMMIT):
            return self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
        if action == "resolve":
            if name not in files:
                return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
            etag = f'"{hashlib.sha1(files[name]).hexdigest()}"'
            return self.answer(200, files[name], ETag=etag, X_Repo_Commit=COMMIT)
        if action == "tree":
            listed = [
                {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for file, data in files.items()
                if file.startswith(name)
            ]
        else:
            listed = {"id": match[1], "sha": COMMIT, "siblings": [{"rfilename": file} for file in files], "tags": []}
        return self.answer(200, json.dumps(listed).encode(), Content_Type="application/json")

    do_HEAD = do_POST = do_GET


@contextmanager
def own_hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def ask(endpoint: str, home: Path, *requests: list, **settings: str) -> list[dict]:
    """What `read_hub` makes of each request in a new process; nothing else may be printed."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "HUGGINGFACE", "TRANSFORMERS_")) and "proxy" not in name.lower()
    }
    environment = {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), **settings}
    command = [sys.executable, "-c", CLIENT, json.dumps(requests)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


VISIT = {
    "there": ["ns/pairs", "mrpc", "train"],
    "no split": ["ns/pairs", "mrpc", "dev"],
    "no configuration": ["ns/pairs", "mrcp", "train"],
    "several configurations": ["ns/pairs", None, "train"],
    "no revision": ["ns/pairs", "mrpc", "train", "v9"],
    "a script": ["ns/scripted", None, "train"],
    "no set": ["ns/nothing", None, "train"],
    "no name": ["no name", None, "train"],
    "no access": ["ns/gated", None, "train"],
}


@pytest.fixture(scope="module")
def visited(tmp_path_factory) -> tuple[Path, dict[str, dict]]:
    """A cache after one visit to the hub, and what the visit gave."""
    home = tmp_path_factory.mktemp("home")
    with own_hub() as endpoint:
        return home, dict(zip(VISIT, ask(endpoint, home, *VISIT.values()), strict=True))


@pytest.mark.e2e
def test_a_set_of_the_hub(visited):
    result = visited[1]["there"]
    assert result["columns"] == {"sentence1": ["NA", "null", "caf\u00e9"], "label": [1, 0, -1]}
    assert result["label_names"] == {"label": ["different", "same"]}
    assert result["where"] == "ns/pairs/mrpc/train:0"


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("request_name", "value", "hint"),
    [
        ("no split", "'dev'", "train, validation"),
        ("no configuration", "'mrcp'", "mrpc, cola"),
        ("several configurations", "several", "mrpc, cola"),
        ("no revision", "'v9'", None),
        ("a script", "script", "--data DIR"),
        ("no set", "", "--data DIR"),
        ("no name", "", "--data DIR"),
        ("no access", "ns/gated is gated", "hf auth login"),
    ],
)
def test_what_the_hub_does_not_have(visited, request_name, value, hint):
    result = visited[1][request_name]
    assert result["error"] == [3, VISIT[request_name][0]]
    assert value in result["what"]
    assert (hint in result["hint"] and "\n" not in result["hint"]) if hint else result["hint"] is None


@pytest.mark.e2e
@pytest.mark.parametrize("case", ["silent", "refused", "offline"])
def test_without_a_network_the_cache_serves_and_all_else_fails_soon(visited, case):
    settings = {"HF_HUB_OFFLINE": "1"} if case == "offline" else {}
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and never answers
        port = 9 if case == "refused" else server.getsockname()[1]
        requests = [VISIT["there"], ["ns/pairs", "cola", "train"], VISIT["no split"], ["ns/other", None, "train"]]
        cached, other, split, unknown = ask(f"http://127.0.0.1:{port}", visited[0], *requests, **settings)
    assert {k: cached[k] for k in ("columns", "label_names")} == {k: visited[1]["there"][k] for k in ("columns", "label_names")}
    assert [result["error"] for result in (other, split, unknown)] == [[3, "ns/pairs"], [3, "ns/pairs"], [5, "ns/other"]]
    assert "'cola'" in other["what"]
    for result, hint in ((other, "mrpc"), (split, "validation"), (unknown, "--data DIR")):
        assert hint in result["hint"]


# --- folders -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def pairs():
    import datasets

    names = datasets.ClassLabel(names=["different", "same"])
    features = datasets.Features({"text": datasets.Value("string"), "tags": datasets.Sequence(names), "label": names})
    return datasets.Dataset.from_dict({"text": ["NA", None], "tags": [[0, 1], []], "label": [1, 0]}, features=features)


EXPECTED = {"text": ["NA", None], "tags": [[0, 1], []], "label": [1, 0]}


@pytest.mark.parametrize("layout", ["flat", "configuration", "saved", "saved alone"])
def test_folders_of_arrow_and_parquet(tmp_path, cache, capfd, layout):
    import datasets

    folder, name = tmp_path / "set", None
    if layout == "saved":
        datasets.DatasetDict({"train": pairs(), "validation": pairs().select([1])}).save_to_disk(str(folder))
    elif layout == "saved alone":
        pairs().save_to_disk(str(folder))
    else:
        name = "mrpc"
        place = folder / name if layout == "configuration" else folder
        place.mkdir(parents=True)
        pairs().to_parquet(place / "train-00000-of-00001.parquet")
        pairs().select([1]).to_parquet(place / "validation-00000-of-00001.parquet")
    capfd.readouterr()
    examples = read_hub(str(folder), name, split="train")
    assert examples.columns == EXPECTED
    assert examples.label_names == {"label": ("different", "same"), "tags": ("different", "same")}
    assert list(examples.lines) == [0, 1]
    error = refused(read_hub, str(folder), name, split="dev")
    assert "'dev'" in error.what
    assert f"--data {folder}" in error.hint
    assert "--validation 10%" in error.hint
    assert "--data" not in refused(read_hub, str(folder), name, split="test").hint
    if layout != "saved alone":
        assert read_hub(str(folder), name, split="validation").columns["label"] == [0]
    assert capfd.readouterr() == ("", "")


def test_files_that_are_not_named_after_a_split_are_noted(tmp_path, cache):
    for year in ("2023", "2024"):
        pairs().to_parquet(tmp_path / f"{year}.parquet")
    examples = read_hub(str(tmp_path), split="train")
    assert len(examples) == 4
    (note,) = examples.remarks.notes
    assert "all 2 files" in note
    assert "2023.parquet, 2024.parquet" in note
    (tmp_path / "2024.parquet").rename(tmp_path / "train.parquet")
    (tmp_path / "2023.parquet").rename(tmp_path / "validation.parquet")
    pairs().to_parquet(tmp_path / "eval.parquet")
    for split in ("train", "validation", "test"):  # to datasets, eval is test
        assert read_hub(str(tmp_path), split=split).remarks.notes == ()


def test_a_split_of_which_a_file_is_missing_is_refused(tmp_path, cache):
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00001-of-00003"):
        pairs().to_parquet(tmp_path / f"{name}.parquet")
    assert len(read_hub(str(tmp_path), split="train")) == 4
    error = refused(read_hub, str(tmp_path), None, split="validation")
    assert "3 files" in error.what
    assert "validation-00000-of-00003.parquet, validation-00002-of-00003.parquet" in error.what


@pytest.mark.parametrize("nested", [False, True])
def test_text_files_of_a_folder_are_read_as_they_stand(tmp_path, nested):
    folder = tmp_path / "mrpc" if nested else tmp_path
    folder.mkdir(exist_ok=True)
    write(folder / "train.csv", "text,label\nNA,1\nnull,\n")
    write(folder / "dev.jsonl", '{"text": "nan", "label": 1}\n')
    examples = read_hub(str(tmp_path), "mrpc", split="train")
    assert examples.columns == {"text": ["NA", "null"], "label": ["1", ""]}
    assert examples.where(1) == f"{folder}/train.csv:3"
    assert read_hub(str(tmp_path), "mrpc", split="validation").columns == {"text": ["nan"], "label": [1]}


def test_folders_that_hold_no_data(tmp_path, cache):
    assert refused(read_hub, str(tmp_path / "nowhere"), split="train").hint
    (tmp_path / "empty").mkdir()
    assert refused(read_hub, str(tmp_path / "empty"), split="train").where == str(tmp_path / "empty")


def test_without_an_answer_the_switches_are_left_as_they_were(monkeypatch):
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    refused(read_hub, "ns/none", split="train", kind=MachineError)
    assert (datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE) == (False, False)
