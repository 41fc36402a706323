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
from safetensors import SafetensorError

from bertkit import manifest
from bertkit.errors import MachineError, ModelError
from bertkit.files import write_json
from bertkit.manifest import write_folder
from bertkit.training.checkpoint import START_OVER, drop_older_checkpoints, newest_checkpoint, verify_checkpoint


def write(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "model.bin").write_text(text, encoding="utf-8")
        (folder / "training").mkdir()
        (folder / "training" / "state.bin").write_text(text * 100, encoding="utf-8")

    return fill


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_manifest_lists_every_file_with_its_sha256(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoint-3"
    write_folder(folder, write("abc"))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest == {"model.bin": sha256(b"abc").hexdigest(), "training/state.bin": sha256(b"abc" * 100).hexdigest()}
    assert names_in(folder.parent) == {"checkpoint-3"}
    assert len({path.stat().st_mode for path in folder.rglob("*.*")}) == 1
    shutil.copytree(folder, tmp_path / "elsewhere")
    verify_checkpoint(tmp_path / "elsewhere")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.bin", "training/state.bin", "manifest.json"])
@pytest.mark.parametrize("damage", [flip_a_bit, Path.unlink, lambda path: path.write_text("[]", encoding="utf-8")])
def test_damage_is_found_and_named(damage: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-3"
    write_folder(folder, write("abc"))
    damage(folder / name)
    with pytest.raises(ModelError) as caught:
        verify_checkpoint(folder)
    assert (name in caught.value.what, caught.value.where, caught.value.hint) == (True, str(folder), START_OVER)


def test_a_failing_writer_leaves_the_old_ones(tmp_path: Path) -> None:
    old, new = tmp_path / "checkpoint-2", tmp_path / "checkpoint-4"
    write_folder(old, write("old"))

    def fail(folder: Path) -> None:
        write("new")(folder)
        raise RuntimeError

    for folder in (new, old):
        with pytest.raises(RuntimeError):
            write_folder(folder, fail)
    assert newest_checkpoint(tmp_path) == old
    verify_checkpoint(old)
    assert (old / "model.bin").read_text(encoding="utf-8") == "old"
    write_folder(new, write("new"))  # over what the failure left
    assert newest_checkpoint(tmp_path) == new


KILLED = """
import os, signal, sys
from pathlib import Path
from bertkit import manifest
def killing(function, at, calls=[0]):
    def call(*arguments, **more):
        calls[0] += 1
        if calls[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return call
module, name, at, folder = sys.argv[1:]
owner = {"manifest": manifest, "os": os}[module]
setattr(owner, name, killing(getattr(owner, name), int(at)))
def write(folder):
    for i in range(3):
        (folder / f"part-{i}").write_text("new" * 1000)
manifest.write_folder(Path(folder), write)
"""


@pytest.mark.parametrize(
    ("module", "name", "at", "newest"),
    [
        ("manifest", "sha256_of", 2, "checkpoint-2"),
        ("manifest", "flush", 3, "checkpoint-2"),
        ("os", "replace", 1, "checkpoint-2"),
        ("manifest", "flush", 6, "checkpoint-4"),
    ],
)
def test_a_kill_leaves_the_old_or_the_new(module: str, name: str, at: int, newest: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "checkpoint-2", write("old"))
    target = tmp_path / "checkpoint-4"
    done = subprocess.run([sys.executable, "-c", KILLED, module, name, str(at), str(target)], check=False, timeout=60)
    assert done.returncode == -9, "it was killed, and not before or after"
    assert newest_checkpoint(tmp_path) == tmp_path / newest
    verify_checkpoint(tmp_path / newest)
    write_folder(target, write("again"))
    drop_older_checkpoints(target, "1")
    assert names_in(tmp_path) == {"checkpoint-4"}
    verify_checkpoint(target)


def test_everything_is_flushed_before_and_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    flush, replace = manifest.flush, os.replace
    monkeypatch.setattr(manifest, "flush", lambda path: (done.append(f"flush {path.name}"), flush(path)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(f"rename {Path(a).name} {Path(b).name}"), replace(a, b)))
    write_folder(tmp_path / "checkpoint-1", write("abc"))
    before = ("model.bin", "state.bin", "manifest.json", "training", ".unfinished-checkpoint-1")
    assert sorted(done[:5]) == sorted(f"flush {name}" for name in before)
    assert done[5:] == ["rename .unfinished-checkpoint-1 checkpoint-1", f"flush {tmp_path.name}"]


def test_newest_and_others_go_by_number_and_whole_name(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    mine = {"checkpoint-best", "checkpoint-12.bak", "seed-1", "my-checkpoint-13"}
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-11", *mine):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-11"
    drop_older_checkpoints(tmp_path / "checkpoint-10", "1")
    assert names_in(tmp_path) == {"checkpoint-10", *mine}


@pytest.mark.parametrize("value", [float("nan"), object()])
def test_json_is_replaced_whole(value: object, tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"a": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "run.json", {"a": value})
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8")) == {"a": 1}


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_line(error: Exception, tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise error

    with pytest.raises(MachineError) as caught:
        write_folder(tmp_path / "checkpoint-2", fail)
    assert "No space left on device" in caught.value.what
    assert "space" in str(caught.value.hint)
    assert (caught.value.where, caught.value.exit_code) == (str(tmp_path / "checkpoint-2"), 5)
    assert newest_checkpoint(tmp_path) is None
