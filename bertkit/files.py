"""Files that are whole or absent: written aside, flushed, renamed into place; and what a disk refuses, in one line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertkit.errors import MachineError

UNFINISHED = ".unfinished-"  # begins the name of what is being written


def files_in(folder: Path) -> list[Path]:
    """Every file below a folder, in order of name."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Have the disk hold a file or folder before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file, whole or not at all."""
    with disk_errors(path):
        aside = path.with_name(UNFINISHED + path.name)
        aside.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        flush(aside)
        os.replace(aside, path)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a full or read-only disk raises, OSError or safetensors' error, into one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "free some space or choose another place, then repeat the command: what trains goes on from its last checkpoint"
        raise MachineError(f"cannot write: {reason}", where=str(path), hint=hint) from error
