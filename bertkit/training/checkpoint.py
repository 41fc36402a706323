"""Checkpoints, each complete or absent: which is the newest, how many are kept, and which parts of them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from bertkit.errors import ModelError
from bertkit.files import disk_errors, remove_folder, write_files
from bertkit.manifest import MANIFEST, Manifest, Owner, replace_files
from bertkit.model.directory import WEIGHT_FILES

TRAINING = "training"  # the folder of a checkpoint that only a resumed run needs
START_OVER = "--overwrite starts over, and keeps the old content under another name"
CHECKPOINT = Owner("checkpoint", ModelError, START_OVER, strict=True)
BEST = Owner("run's best model", ModelError, START_OVER, strict=True)


def verify_checkpoint(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> Manifest:
    """The manifest of a checkpoint. Raises ModelError unless each file that is `wanted` is there and has its sha256."""
    try:
        manifest = Manifest.read(folder, CHECKPOINT)
        if manifest is None:
            raise ModelError("the checkpoint has no readable manifest.json", where=str(folder), hint=START_OVER)
        manifest.compare([name for name in manifest.files if wanted(name)], CHECKPOINT)
    except ModelError as error:
        all_there = checkpoints_in(folder.parent)
        if earlier := all_there[: all_there.index(folder)] if folder in all_there else []:
            error.hint = f"--resume {earlier[-1]} continues from an earlier one; {error.hint}"
        raise
    return manifest


def has_best(run_dir: Path) -> bool:
    """Whether the root of a run has its best model."""
    manifest = Manifest.read(run_dir, BEST)
    return manifest is not None and any(name in WEIGHT_FILES for name in manifest.files)


def verify_best(run_dir: Path, names: Iterable[str]) -> None:
    """Raise ModelError if the model in a run's root is damaged; without a manifest, nothing is checked.

    names: files of a checkpoint.
    """
    if (manifest := Manifest.read(run_dir, BEST)) is not None:
        manifest.compare([name for name in names if name in manifest.files], BEST)


def checkpoints_in(run_dir: Path) -> list[Path]:
    """The checkpoints of a run folder, by their step."""
    steps = {
        int(match[1]): path for path in run_dir.glob("checkpoint-*") if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    }
    return [steps[step] for step in sorted(steps)]


def newest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint of the highest step in a run folder."""
    return next(reversed(checkpoints_in(run_dir)), None)


def drop_later_checkpoints(checkpoint: Path) -> None:
    """Delete the checkpoints of a run that came after this one."""
    found = checkpoints_in(checkpoint.parent)
    for path in reversed(found[found.index(checkpoint) + 1 :]):  # a kill in between leaves a run that ends earlier
        remove_folder(path)


def drop_older_checkpoints(newest: Path, keep: str) -> None:
    """Delete all but the newest checkpoints of a run, and any that came after `newest`, which the run does not know. keep: how
    many, or "all"."""
    drop_later_checkpoints(newest)
    found = checkpoints_in(newest.parent)
    for path in found[: max(0, len(found) - int(keep))] if keep != "all" else ():
        remove_folder(path)


def copy_to_root(checkpoint: Path, run_dir: Path) -> None:
    """Copy a checkpoint's model to the root of a run. Weights of the run's own checkpoint are hard-linked, so they are on disk
    only once; this is safe because weight files are replaced, never modified."""
    manifest = Manifest.read(checkpoint, CHECKPOINT)
    assert manifest is not None, "a checkpoint is written with its manifest"
    files = {name: sha256 for name, sha256 in manifest.files.items() if "/" not in name}
    linked = WEIGHT_FILES if checkpoint.resolve().parent == run_dir.resolve() else ()

    def copy(folder: Path) -> None:
        for name in files:
            if name in linked:
                _link(checkpoint / name, folder / name)
            else:
                shutil.copyfile(checkpoint / name, folder / name)

    replace_files(run_dir, copy, hashes=files)


def _link(file: Path, name: Path) -> None:
    """Hard-link a file; copy it if the file system has no hard links."""
    try:
        os.link(file.resolve(), name)
    except (OSError, NotImplementedError):
        shutil.copyfile(file, name)


def drop_training_state(run_dir: Path) -> None:
    """Keep only the model of every checkpoint: the optimizer's state is twice as large."""
    for checkpoint in checkpoints_in(run_dir):
        if (checkpoint / TRAINING).is_dir() and (manifest := Manifest.read(checkpoint)) is not None:
            kept = {name: sha256 for name, sha256 in manifest.files.items() if not name.startswith(f"{TRAINING}/")}
            write_files(checkpoint, {MANIFEST: Manifest(checkpoint, kept).text})
            with disk_errors(checkpoint):
                shutil.rmtree(checkpoint / TRAINING)
