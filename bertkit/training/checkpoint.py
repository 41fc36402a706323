"""Checkpoints that are complete or absent: written aside, flushed, listed with their sha256, then renamed into place."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from bertkit.errors import ModelError
from bertkit.files import UNFINISHED, disk_errors, files_in, flush, sha256_of

MANIFEST = "manifest.json"


def write_checkpoint(folder: Path, write: Callable[[Path], None]) -> None:
    """Make `folder` with what `write(temporary_folder)` puts there, atomically: a kill leaves all of it or nothing."""
    aside = folder.with_name(UNFINISHED + folder.name)
    with disk_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        write(aside)
        manifest = {str(path.relative_to(aside)): sha256_of(path) for path in files_in(aside)}
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        mode = (aside / MANIFEST).stat().st_mode  # as the umask has it; safetensors writes 0600
        for path in files_in(aside):
            path.chmod(mode)
        for path in [*files_in(aside), *(path for path in aside.rglob("*") if path.is_dir()), aside]:
            flush(path)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)
        flush(folder.parent)


def verify_checkpoint(folder: Path) -> None:
    """Raise ModelError unless every file is there and has the sha256 that the manifest gives it."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise ValueError("it lists no files")
    except (OSError, ValueError):
        raise ModelError("the checkpoint has no readable manifest.json", where=str(folder), hint=START_OVER) from None
    for name, expected in manifest.items():
        path = folder / name
        if not path.is_file():
            raise ModelError(f"the checkpoint lacks {name}", where=str(folder), hint=START_OVER)
        if (sha256 := sha256_of(path)) != expected:
            what = f"{name} of the checkpoint is damaged: sha256 {sha256[:12]}..., expected {expected[:12]}..."
            raise ModelError(what, where=str(folder), hint=START_OVER)


START_OVER = "--overwrite starts over, and keeps the old content under another name"


def newest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint of the highest step in a run folder."""
    steps = {
        int(match[1]): path for path in run_dir.glob("checkpoint-*") if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    }
    return steps[max(steps)] if steps else None


def drop_other_checkpoints(keep: Path) -> None:
    """Delete all other checkpoints beside `keep`, also unfinished ones of a killed run."""
    for path in keep.parent.glob("*checkpoint-*"):
        if path != keep and re.fullmatch(rf"({re.escape(UNFINISHED)})?checkpoint-\d+", path.name):
            shutil.rmtree(path, ignore_errors=True)
