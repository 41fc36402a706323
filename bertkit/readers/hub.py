"""Data sets on the Hugging Face hub, or copies of them in folders, read with the datasets library."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, MachineError, UserError, listed
from bertkit.files import in_background
from bertkit.readers import Examples, Remarks
from bertkit.readers.content import nearest_files
from bertkit.readers.formats import find_split_file, kind_of_split, read_file
from bertkit.readers.parsers.arrow import as_examples

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.parquet")  # the files of a large split
_TIMEOUT = 2.0  # seconds to wait for the hub's first answer
_LOCAL_HINT = "give a folder that holds the data set: --data DIR"


def read_hub(path: str, name: str | None = None, *, split: str, revision: str | None = None) -> Examples:
    """The rows of one split of a data set.

    path: a hub id such as "nyu-mll/glue", or a folder: a copy of such a set (parquet), the output of save_to_disk, or text
    files named after their splits, which `read_file` reads. name: the configuration. Classes stay numbers; `label_names` has
    their names. Without a network, sets are read from the cache of datasets. Raises DataError, or MachineError if the hub
    cannot be reached.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return _read_folder(folder, name, split)
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise DataError("no such folder", where=path, hint=nearest_files(folder))
    source = "/".join(part for part in (path, name, split) if part)
    with _datasets(path, name, split, offline=not _is_reachable(path, revision)):
        from datasets import load_dataset

        return as_examples(load_dataset(path, name, split=split, revision=revision), source)


def stream_hub(name: str) -> Iterator[dict[str, Any]]:
    """The rows of the train split of "owner/name" or "owner/name:configuration", one by one. Raises as `read_hub` does."""
    path, _, configuration = name.partition(":")
    offline = not _is_reachable(path, None)
    with _datasets(path, configuration or None, "train", offline=offline):
        from datasets import load_dataset

        # What is in the cache can be read without a network, but not streamed.
        yield from load_dataset(path, configuration or None, split="train", streaming=not offline)


def _read_folder(folder: Path, name: str | None, split: str) -> Examples:
    # A copy of a hub set says in its README.md what its configurations are; else a configuration is a folder, or is not.
    if name and not (folder / "README.md").is_file():
        folder, name = (folder / name if (folder / name).is_dir() else folder), None
    with _datasets(str(folder), name, split, offline=True):
        from datasets import Dataset, load_dataset, load_from_disk

        if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
            saved = load_from_disk(str(folder))
            splits = {str(saved.split or "train"): saved} if isinstance(saved, Dataset) else saved
            if split not in splits:
                raise _no_split(split, splits, str(folder))
            return as_examples(splits[split], f"{folder}/{split}")
        # Not through datasets: to its CSV reader the text "NA" is a missing value.
        if file := find_split_file(folder, split):
            return read_file(file)
        _refuse_missing_shards(folder, split)
        examples = as_examples(load_dataset(str(folder), name, split=split), f"{folder}/{split}")
        return examples.with_remarks(Remarks.of(note=_unnamed_files(folder, split)))


def _unnamed_files(folder: Path, split: str) -> str | None:
    """A note if datasets read every file of a folder as train, because no name or README.md says what they are."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet"))
    if split != "train" or len(files) < 2 or (folder / "README.md").is_file() or any(split in file for file in files):
        return None
    return f"{folder} has no file named train; all {len(files)} files are read as this split: {listed(files)}"


def other_shards(path: Path) -> list[Path]:
    """Of a file such as train-00000-of-00002.parquet, the others that hold rows of the same split; of others, none."""
    if (shard := _SHARD.fullmatch(path.name)) is None:
        return []
    name, own, count = shard.groups()
    return [path.with_name(f"{name}-{at:05}-of-{count}.parquet") for at in range(int(count)) if at != int(own)]


def _refuse_missing_shards(folder: Path, split: str) -> None:
    for path in sorted(folder.rglob(f"{split}-*.parquet")):
        others = other_shards(path)
        if missing := [other.name for other in others if not other.is_file()]:
            what = f"{path.name} is one of {len(others) + 1} files, of which some are missing: {listed(missing, 3)}"
            raise DataError(what, where=str(path.parent), hint="copy all of them into the folder")


@lru_cache  # once per data set, not per split
def _is_reachable(path: str, revision: str | None) -> bool:
    """Whether the hub answers soon; datasets would retry for 24 s. Raises DataError if it has no such data set."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    if constants.HF_HUB_OFFLINE:
        return False
    # In a thread, as the look-up of the hub's address has no timeout.
    request = in_background(lambda: HfApi().dataset_info(path, revision=revision, timeout=_TIMEOUT))
    try:
        request.result(_TIMEOUT + 0.5)
    except GatedRepoError:
        hint = f"ask for access on its page and log in: hf auth login; or {_LOCAL_HINT}"
        raise DataError(f"the data set {path} is gated", where=path, hint=hint) from None
    except RevisionNotFoundError:
        raise DataError(f"the data set has no revision {revision!r}", where=path) from None
    except RepositoryNotFoundError:
        hint = f"check its name (owner/name), or log in: hf auth login; or {_LOCAL_HINT}"
        raise DataError("the hub has no such data set, or it is private", where=path, hint=hint) from None
    except HFValidationError:
        what = "this is neither a folder nor the name of a data set on the hub"
        raise DataError(what, where=path, hint=_LOCAL_HINT) from None
    except Exception:  # connection errors of the hub's HTTP library share no base with the hub's own
        return False
    return True


@contextmanager
def _datasets(path: str, name: str | None, split: str, *, offline: bool) -> Iterator[None]:
    """Use datasets without progress bars, warnings and, if offline, without a network; its errors become ours."""
    import datasets
    import huggingface_hub

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    huggingface_hub.utils.disable_progress_bars()
    switches = (datasets.config, huggingface_hub.constants)
    before = [module.HF_HUB_OFFLINE for module in switches]
    for module, was in zip(switches, before, strict=True):
        module.HF_HUB_OFFLINE = was or offline
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise _explain(error, path, name, split, offline and not Path(path).is_dir()) from None
    finally:
        for module, was in zip(switches, before, strict=True):
            module.HF_HUB_OFFLINE = was


def _explain(error: Exception, path: str, name: str | None, split: str, offline: bool) -> UserError:
    """An error of datasets as one line. The reason can only be found in the text of the error."""
    text = str(error)
    quoted = [name for names in re.findall(r"\[(.*?)\]", text.replace("\n", " ")) for name in re.findall(r"'([^']*)'", names)]
    if "Unknown split" in text:
        return _no_split(split, quoted, path)
    if "BuilderConfig" in text or "Config name is missing" in text or "Available configs in the cache" in text:
        what = f"no configuration {name!r}" if name else "the data set has several configurations; expected the name of one"
        what += " in the cache, and the hub cannot be reached" if offline else ""
        return DataError(what, where=path, hint=f"known: {listed(quoted, 40)}")
    if "multiple" in text and "configurations in the cache" in text:
        return DataError(text.partition("\n")[0], where=path)
    if "scripts are no longer supported" in text:
        hint = f'try revision="refs/convert/parquet", which needs none; or {_LOCAL_HINT}'
        return DataError("the data set needs a loading script, which datasets no longer runs", where=path, hint=hint)
    if offline:
        what = "the data set is not in the cache, and the hub cannot be reached"
        return MachineError(what, where=path, hint=_LOCAL_HINT)
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    reason = " ".join(str(cause).split()) or type(cause).__name__
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return MachineError(f"cannot store the data set: {reason}", where=path, hint="HF_HOME sets the folder of the cache")
    return DataError(f"cannot load the data set: {reason[:300]}", where=path)


def _no_split(split: str, known: Collection[str], where: str) -> DataError:
    held_out = kind_of_split(split) in ("validation", "dev") and "train" in known and Path(where).is_dir()
    more = f"; --data {where} --validation 10% holds out training rows" if held_out else ""
    return DataError(f"no split {split!r}", where=where, hint=f"known: {', '.join(known)}{more}")
