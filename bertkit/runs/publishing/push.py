"""Upload a finished run to the Hugging Face hub: the files of its best model, without paths and measurements of the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from bertkit import progress
from bertkit.errors import MachineError, UsageError
from bertkit.files import json_text
from bertkit.manifest import MANIFEST, Manifest, raise_if_damaged, verify
from bertkit.model.directory import CONFIG_FILES, weight_files
from bertkit.readers.remote import file_name, is_url
from bertkit.report import Report, Table, show
from bertkit.runs.publishing.card import hub_id, hub_set
from bertkit.runs.run_file import PATHS, RUN_FILE, refuse_folder_of_runs, require_run
from bertkit.text.tokenizer import TOKENIZER_FILES

_CARD = "README.md"
_OF_THE_MACHINE = ("resumed_from", "rates", "seconds", "num_processes", "resumes")  # in run.json
_LABELS = re.compile(r"(task|recipe)\.(labels|numbers|positive_label|intents|class_weights)")  # keys of run.json
_WEIGHTS = re.compile(r"(pytorch_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")


def push(folder: Path, repo: str, *, public: bool, message: str | None, dry_run: bool) -> None:
    """Upload a run to a model repository; a new one is created if needed, private unless `public`.

    Weights from an earlier push under other names are deleted there. dry_run: show the files without contacting the hub. Raises
    UsageError for a folder that is not a finished run, and for an existing repository that is public when it should be private,
    or the other way around; ModelError for damaged files, and MachineError if the hub refuses or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
        if "/" not in repo:
            raise HFValidationError
    except HFValidationError:
        what = f"{repo!r} is not a repository name; expected owner/name of letters, digits, -, _ and ."
        raise UsageError(what) from None
    files = files_to_push(folder, repo)
    if dry_run:
        rows = [[name, len(file) if isinstance(file, bytes) else file.stat().st_size] for name, file in files.items()]
        show(Report([Table(f"{repo}, {'public' if public else 'private'}: nothing was sent", ["file", "bytes"], rows)]))
        return
    if constants.HF_HUB_OFFLINE:
        raise MachineError(
            "HF_HUB_OFFLINE forbids every request to the hub", hint="unset it, or preview the upload with --dry-run"
        )
    if get_token() is None:
        raise UsageError("the hub needs a token with write access", hint="log in: hf auth login; or set HF_TOKEN")
    operations: list[Any] = [CommitOperationAdd(name, file) for name, file in files.items()]
    api = HfApi()
    raise_if_damaged()
    try:
        made = api.create_repo(repo, private=not public, exist_ok=True)
        there = api.model_info(made.repo_id)
        if bool(there.private) == public:
            hint = "leave out --public" if public else "add --public, or name another one"
            raise UsageError(f"{repo} already exists and is {'private' if public else 'public'}", hint=hint)
        names = [each.rfilename for each in there.siblings or ()]
        operations += [CommitOperationDelete(name) for name in names if _WEIGHTS.fullmatch(name) and name not in files]
        api.create_commit(made.repo_id, operations, commit_message=message or f"{folder.resolve().name}, by bertkit")
    except UsageError:
        raise
    except Exception as error:  # of the network, of the hub, of the disk
        raise _refused(error, repo) from None
    progress.note(f"wrote {len(files)} files to {made}")


def files_to_push(folder: Path, repo: str) -> dict[str, Path | bytes]:
    """The files of a finished run by name: the best model, its tokenizer, its card, run.json and a manifest.

    run.json has names in place of paths, the card the repository's name in place of the folder's. Raises UsageError for a
    folder that is not a finished run, ModelError for damaged files (for large ones, `manifest.raise_if_damaged` does).
    """
    refuse_folder_of_runs(folder)
    run = require_run(folder)
    if run["status"] != "finished" or not (folder / _CARD).is_file():
        raise UsageError("the run is not finished", where=str(folder), hint="repeat its command to continue it")
    names = [*CONFIG_FILES, *(path.name for path in weight_files(folder)), *TOKENIZER_FILES, _CARD]
    found: dict[str, Path | bytes] = {name: folder / name for name in names if (folder / name).is_file()}
    verify(folder, found.__contains__)
    stored = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    for name in _OF_THE_MACHINE:
        stored.pop(name, None)
    card = (folder / _CARD).read_text(encoding="utf-8").replace("path/to/this/folder", repo)
    card = card.replace(", the metrics of each step in `metrics.jsonl`", "")
    bare = _without_paths(stored)
    if "recipe" in stored and hub_set(stored):
        bare["data"] = stored["data"]  # its sources are names on the hub
    rewritten = {RUN_FILE: json_text(bare).encode(), _CARD: card.encode()}
    found |= rewritten
    before = Manifest.read(folder)
    weights = {path.name: before.files[path.name] for path in weight_files(folder) if before and path.name in before.files}
    changed = {name: sha256(data).hexdigest() for name, data in rewritten.items()}
    hashes = {**Manifest.of(folder, found, hashes=weights).files, **changed}
    return found | {MANIFEST: Manifest(folder, hashes).text.encode()}


def _without_paths(value: Any, key: str = "") -> Any:
    """A JSON value with each path replaced by its file name. Paths are values under a key of PATHS, and any others that are
    absolute, a URL, begin with ~ or .., or exist, but never labels. key: of the value, with its parents.
    """
    if isinstance(value, Mapping):
        return {name: _without_paths(each, f"{key}.{name}" if key else name) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each, key) for each in value]
    if not isinstance(value, str):
        return value
    if _LABELS.fullmatch(key):
        return value
    if PATHS.fullmatch(key):
        kept = re.fullmatch(r"\d+/\d+", value) or (key == "model.name" and hub_id(value))  # a share, as in --validation 1/5
        return value if kept else file_name(value)
    path = PureWindowsPath(value) if "\\" in value else PurePosixPath(value)
    is_path = path.is_absolute() or is_url(value) or value.startswith(("~", "..", "file:"))
    is_path = is_path or (len(path.parts) > 1 and Path(value).exists())
    return file_name(value) or value if is_path or value.endswith(".py") else value


def _refused(error: Exception, repo: str) -> MachineError:
    """The error of the hub, or of the connection to it, in one line."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        hint = "create a token with write access on huggingface.co/settings/tokens, then: hf auth login"
        return MachineError(f"the hub does not let this token write to {repo}", hint=hint)
    message = " ".join(str(getattr(error, "server_message", None) or error).split()) or type(error).__name__
    return MachineError(f"cannot write to {repo}: {message[:300]}", hint="is the network up? repeat the command to try again")
