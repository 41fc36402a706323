"""manifest.json: the sha256 of each file of a checkpoint, a run or a corpus; written with them, and checked on reading."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from bertkit import progress
from bertkit.errors import ModelError, UserError
from bertkit.files import UNFINISHED, disk_errors, files_in, flush, in_background, json_text, sha256_of

MANIFEST = "manifest.json"
LARGE = 2**26  # bytes from which files are read in the background
PATIENCE = 20.0  # after another error, seconds to wait for a comparison that may explain it
# Files that people edit in a finished folder: a change only causes a warning.
EDITED = {"config.json", "tokenizer_config.json", "special_tokens_map.json", "run.json", "README.md", "metrics.jsonl"}


class Owner(NamedTuple):
    """What a manifest belongs to, for messages; the error for damage, and what to do about it.

    strict: whether none of its files should be edited by hand.
    """

    name: str
    error: type[UserError]
    hint: str
    strict: bool = False


_ON_PURPOSE = f"or delete {MANIFEST} if it was changed on purpose"
MODEL = Owner("model", ModelError, f"copy the folder again, {_ON_PURPOSE}")


@dataclass(frozen=True)
class Manifest:
    """files: the sha256 of each file of a folder, by its path below it."""

    folder: Path
    files: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path, names: Collection[str] | None = None, *, hashes: Mapping[str, str] | None = None) -> Manifest:
        """The files that are there now; names: only these; hashes: the sha256s already known."""
        paths = {path.relative_to(folder).as_posix(): path for path in files_in(folder)}
        paths.pop(MANIFEST, None)
        chosen = {name: path for name, path in paths.items() if names is None or name in names}
        known = hashes or {}
        return cls(folder, {name: known[name] if name in known else sha256_of(path) for name, path in chosen.items()})

    @classmethod
    def read(cls, folder: Path, owner: Owner = MODEL) -> Manifest | None:
        """The manifest of a folder; None without one, as in folders from older versions. Raises the owner's error."""
        try:
            values = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise owner.error(f"{MANIFEST} cannot be read: {error}", where=str(folder), hint=owner.hint) from None
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            return None  # of another program
        return cls(folder, values)

    @property
    def text(self) -> str:
        """The content of manifest.json."""
        return json_text(dict(sorted(self.files.items())))

    def compare(self, names: Collection[str], owner: Owner) -> None:
        """Raise the owner's error for a file that is missing or differs; only warn about files that people edit."""
        for name in names:
            try:
                found = sha256_once(self.folder / name)
            except FileNotFoundError:
                what = f"the {owner.name} lacks {name}"
            except OSError as error:
                what = f"{name} of the {owner.name} cannot be read: {error.strerror}"
            else:
                if found == self.files[name]:
                    continue
                what = f"{name} of the {owner.name} is damaged: sha256 {found[:12]}..., expected {self.files[name][:12]}..."
                if name in EDITED and not owner.strict:
                    progress.warn_once(f"{self.folder / name} has changed since bertkit wrote it")
                    continue
            now = Manifest.read(self.folder, owner)
            if now is None or now.files.get(name) != self.files[name]:
                what, hint = "another process has just written the folder", "repeat the command"
                raise owner.error(what, where=str(self.folder), hint=hint)
            raise owner.error(what, where=str(self.folder), hint=owner.hint)


def write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Create `folder` with what `write(temporary_folder)` writes, and its manifest: a kill leaves all of it or nothing."""
    aside = folder.with_name(UNFINISHED + folder.name)
    with disk_errors(folder):
        _fill(aside, write)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)
        flush(folder.parent)


def replace_files(folder: Path, write: Callable[[Path], object], *, hashes: Mapping[str, str] | None = None) -> None:
    """Replace files in a folder by those that `write(temporary_folder)` writes, and its manifest by theirs.

    While old and new files are mixed, there is no manifest. hashes: the sha256s already known.
    """
    aside = folder / f"{UNFINISHED}files"
    with disk_errors(folder):
        manifest = _fill(aside, write, hashes)
        (folder / MANIFEST).unlink(missing_ok=True)
        for name in (*manifest.files, MANIFEST):
            os.replace(aside / name, folder / name)
        flush(folder)
        shutil.rmtree(aside, ignore_errors=True)


def _fill(folder: Path, write: Callable[[Path], object], hashes: Mapping[str, str] | None = None) -> Manifest:
    """Write files and their manifest into a folder, all flushed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(folder)
    manifest = Manifest.of(folder, hashes=hashes)
    (folder / MANIFEST).write_text(manifest.text, encoding="utf-8")
    mode = (folder / MANIFEST).stat().st_mode  # as the umask has it; safetensors writes 0600
    for path in files_in(folder):
        path.chmod(mode)
    for path in [*files_in(folder), *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        flush(path)
    return manifest


# --- reading -----------------------------------------------------------------------------------------------------------------


_reading: list[Future[None]] = []  # comparisons in the background


def verify(folder: Path, wanted: Callable[[str], bool] = lambda name: True, owner: Owner = MODEL, *, now: bool = False) -> None:
    """Compare the files of a folder that are `wanted` with its manifest, if it has one. Each file is read once per process.

    now: also large files; by default these are compared in the background. Raises the owner's error, at once or from
    `raise_if_damaged`.
    """
    manifest = Manifest.read(folder, owner)
    if manifest is None:
        return
    names = [name for name in manifest.files if wanted(name)]
    if now or sum(path.stat().st_size for path in map(folder.joinpath, names) if path.is_file()) < LARGE:
        manifest.compare(names, owner)
        return
    _reading.append(in_background(partial(manifest.compare, names, owner)))


def raise_if_damaged(*, wait: bool = True, timeout: float | None = None) -> None:
    """Raise the error of a comparison in the background that found damage.

    wait: for all of them to end, for each at most `timeout` seconds; otherwise only those that have ended count.
    """
    for compared in [each for each in _reading if wait or each.done()]:
        try:
            with suppress(TimeoutError):
                compared.result(timeout)
        finally:
            with suppress(ValueError):  # another thread was faster
                _reading.remove(compared)


@contextmanager
def verified_reads() -> Iterator[None]:
    """For a whole command: it succeeds only after everything it read is compared; damage found explains other errors."""
    _reading.clear()
    try:
        yield
    except Exception as error:
        raise_if_damaged(timeout=PATIENCE if isinstance(error, UserError) else None)
        raise
    raise_if_damaged()


@cache
def _read_once(path: str, inode: int, size: int, modified: int) -> str:
    return sha256_of(Path(path))


def sha256_once(path: Path) -> str:
    """The sha256 of a file, which is read once per process unless it changes."""
    stat = path.stat()
    return _read_once(str(path.resolve()), stat.st_ino, stat.st_size, stat.st_mtime_ns)
