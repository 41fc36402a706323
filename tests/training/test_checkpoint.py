"""Checkpoints: whole or absent, verified, the newest found."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from bertkit.errors import MachineError, ModelError
from bertkit.files import write_json
from bertkit.training import checkpoint
from bertkit.training.checkpoint import (
    START_OVER,
    drop_other_checkpoints,
    newest_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)


def write(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "model.bin").write_text(text, encoding="utf-8")
        (folder / "training").mkdir()
        (folder / "training" / "state.bin").write_text(text * 100, encoding="utf-8")

    return fill


def test_manifest_lists_every_file_with_its_sha256(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run" / "checkpoint-3", write("abc"))
    folder = tmp_path / "run" / "checkpoint-3"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest == {
        "model.bin": sha256(b"abc").hexdigest(),
        "training/state.bin": sha256(b"abc" * 100).hexdigest(),
    }
    verify_checkpoint(folder)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint-3"]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.bin", "training/state.bin", "manifest.json"])
@pytest.mark.parametrize("damage", [flip_a_bit, Path.unlink, lambda path: path.write_text("[]", encoding="utf-8")])
def test_damage_is_found_and_named(damage: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-3"
    write_checkpoint(folder, write("abc"))
    damage(folder / name)
    with pytest.raises(ModelError) as caught:
        verify_checkpoint(folder)
    assert (name in caught.value.what, caught.value.where, caught.value.hint) == (True, str(folder), START_OVER)


def test_a_writer_that_fails_leaves_the_old_ones(tmp_path: Path) -> None:
    old = tmp_path / "checkpoint-2"
    write_checkpoint(old, write("old"))

    def fail(folder: Path) -> None:
        write("new")(folder)
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        write_checkpoint(tmp_path / "checkpoint-4", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        write_checkpoint(old, fail)  # the same name too
    assert newest_checkpoint(tmp_path) == old
    verify_checkpoint(old)
    assert (old / "model.bin").read_text(encoding="utf-8") == "old"
    write_checkpoint(tmp_path / "checkpoint-4", write("new"))  # what the failure left is no hindrance
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-4"


KILLED = """
import os, signal, sys
from pathlib import Path
from bertkit.training import checkpoint
def killing(function, at, calls=[0]):
    def call(*arguments, **more):
        calls[0] += 1
        if calls[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return call
module, name, at, folder = sys.argv[1:]
owner = {"checkpoint": checkpoint, "os": os, "shutil": checkpoint.shutil}[module]
setattr(owner, name, killing(getattr(owner, name), int(at)))
def write(folder):
    for i in range(3):
        (folder / f"part-{i}").write_text("new" * 1000)
checkpoint.write_checkpoint(Path(folder), write)
"""


@pytest.mark.parametrize(
    ("module", "name", "at"),
    [("checkpoint", "sha256_of", 2), ("checkpoint", "flush", 3), ("os", "replace", 1), ("checkpoint", "flush", 6)],
)
def test_a_kill_leaves_the_old_or_the_new(module: str, name: str, at: int, tmp_path: Path) -> None:
    """SIGKILL while files are hashed, flushed, before the rename, and after it."""
    write_checkpoint(tmp_path / "checkpoint-2", write("old"))
    target = tmp_path / "checkpoint-4"
    done = subprocess.run([sys.executable, "-c", KILLED, module, name, str(at), str(target)], check=False, timeout=60)
    assert done.returncode == -9, "it was killed, and not before or after"
    newest = newest_checkpoint(tmp_path)
    assert newest == (target if (name, at) == ("flush", 6) else tmp_path / "checkpoint-2")
    verify_checkpoint(newest)
    write_checkpoint(target, write("again"))
    drop_other_checkpoints(target)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]
    verify_checkpoint(target)


def test_everything_is_flushed_before_and_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    flush, replace = checkpoint.flush, os.replace
    monkeypatch.setattr(checkpoint, "flush", lambda path: (done.append(f"flush {path.name}"), flush(path)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(f"rename {Path(a).name} {Path(b).name}"), replace(a, b)))
    write_checkpoint(tmp_path / "checkpoint-1", write("abc"))
    at = done.index("rename .unfinished-checkpoint-1 checkpoint-1")
    assert set(done[:at]) == {
        f"flush {name}" for name in ("model.bin", "state.bin", "manifest.json", "training", ".unfinished-checkpoint-1")
    }
    assert done[at + 1 :] == [f"flush {tmp_path.name}"]


def test_newest_is_by_number_and_only_by_whole_names(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    for name in (
        "checkpoint-9",
        "checkpoint-10",
        ".unfinished-checkpoint-11",
        "checkpoint-12.bak",
        "checkpoint-best",
        "xcheckpoint-13",
    ):
        (tmp_path / name).mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def test_only_other_checkpoints_are_dropped(tmp_path: Path) -> None:
    mine = ("checkpoint-best", "checkpoint-12.bak", "seed-1", "my-checkpoint-3")
    for name in ("checkpoint-9", "checkpoint-10", ".unfinished-checkpoint-11", *mine):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    drop_other_checkpoints(tmp_path / "checkpoint-10")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-10", *mine}


def test_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}


def _disk_full(folder: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _safetensors_disk_full(folder: Path) -> None:
    from safetensors import SafetensorError

    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("fail", [_disk_full, _safetensors_disk_full])
def test_a_full_disk_is_one_line(fail: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-2"
    with pytest.raises(MachineError) as caught:
        write_checkpoint(folder, fail)
    assert caught.value.what.startswith("cannot write: ")
    assert "No space left on device" in caught.value.what
    assert caught.value.where == str(folder)
    assert "resumes from its last checkpoint" in caught.value.hint
    assert newest_checkpoint(tmp_path) is None


def test_a_copy_elsewhere_verifies(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint-2", write("abc"))
    shutil.copytree(tmp_path / "checkpoint-2", tmp_path / "elsewhere")
    verify_checkpoint(tmp_path / "elsewhere")
