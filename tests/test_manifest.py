"""What is read is compared with its manifest: at once or in the background, once a process; and what damage becomes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from bertkit import manifest, progress
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.manifest import (
    MANIFEST,
    MODEL,
    Manifest,
    Owner,
    raise_if_damaged,
    replace_files,
    verified_reads,
    verify,
    write_folder,
)

STRICT = Owner("corpus", DataError, "build it again", strict=True)


def everything(name: str) -> bool:
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def write(into: Path) -> None:
        (into / "model.bin").write_bytes(b"weights")
        (into / "config.json").write_text("{}", encoding="utf-8")

    write_folder(tmp_path / "model", write)
    return tmp_path / "model"


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(progress, "warn", said.append)
    return said


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("owner", [MODEL, STRICT], ids=["model", "corpus"])
@pytest.mark.parametrize("large", [False, True])
def test_a_damaged_file_is_named(large: bool, owner: Owner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(manifest, "LARGE", 0)
    flip(folder / "model.bin")

    def compared() -> None:
        verify(folder, everything, owner)
        assert large, "small files are compared at once"
        raise_if_damaged()

    with pytest.raises(owner.error) as caught:
        compared()
    assert ("model.bin" in caught.value.what, caught.value.where, caught.value.hint) == (True, str(folder), owner.hint)
    raise_if_damaged()  # nothing is left
    (folder / "model.bin").unlink()
    with pytest.raises(owner.error) as caught:
        compared()
    assert caught.value.what == f"the {owner.name} lacks model.bin"


def test_only_what_is_wanted_is_compared(folder: Path) -> None:
    flip(folder / "model.bin")
    verify(folder, "config.json".__eq__)
    raise_if_damaged()
    with pytest.raises(ModelError, match=r"model\.bin"):
        verify(folder, "model.bin".__eq__)


def test_what_people_edit_is_a_warning_unless_the_owner_is_strict(folder: Path, warnings: list[str]) -> None:
    (folder / "config.json").write_text('{"hidden_act": "relu"}', encoding="utf-8")
    verify(folder, everything)
    verify(folder, everything)
    assert warnings == [f"{folder / 'config.json'} has changed since bertkit wrote it"]
    with pytest.raises(DataError):
        verify(folder, everything, STRICT)


def test_folders_without_a_manifest_and_with_one_of_another_program_are_read(folder: Path) -> None:
    flip(folder / "model.bin")
    (folder / MANIFEST).write_text(json.dumps({"icons": [1], "name": "app"}), encoding="utf-8")
    verify(folder, everything)
    (folder / MANIFEST).unlink()
    verify(folder, everything)
    (folder / MANIFEST).write_bytes(b'{"model.bin": \xff')
    with pytest.raises(ModelError) as caught:
        verify(folder, everything)
    assert MANIFEST in caught.value.what


def test_each_file_is_read_once_a_process_unless_it_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    sha256_of = manifest.sha256_of
    monkeypatch.setattr(manifest, "sha256_of", lambda path: (read.append(path.name), sha256_of(path))[1])
    for _ in range(3):
        verify(folder, everything)
    assert sorted(read) == ["config.json", "model.bin"]
    flip(folder / "model.bin")
    with pytest.raises(ModelError):
        verify(folder, everything)
    assert read[2:] == ["model.bin"]


def test_large_files_are_read_beside_the_work_and_a_command_ends_after_them(folder: Path, monkeypatch) -> None:
    """A command goes on while they are read; neither its success nor an error of its own hides the damage."""
    monkeypatch.setattr(manifest, "LARGE", 0)
    flip(folder / "model.bin")
    going_on, sha256_of = threading.Event(), manifest.sha256_of
    monkeypatch.setattr(manifest, "sha256_of", lambda path: (going_on.wait(10), sha256_of(path))[1])

    def command(error: Exception | None) -> None:
        with verified_reads():
            verify(folder, everything)
            raise_if_damaged(wait=False)
            going_on.set()
            if error is not None:
                raise error

    for error in (None, UsageError("the loss is nan"), IndexError("index 4104 is out of bounds")):
        going_on.clear()
        manifest._read_once.cache_clear()
        with pytest.raises(ModelError) as caught:
            command(error)
        assert "model.bin" in caught.value.what
    (folder / MANIFEST).unlink()
    with pytest.raises(UsageError):
        command(UsageError("its own"))


def test_a_folder_that_is_written_meanwhile_is_not_called_damaged(folder: Path) -> None:
    before = Manifest.read(folder)
    assert before is not None
    replace_files(folder, lambda into: (into / "model.bin").write_bytes(b"better"))
    with pytest.raises(ModelError) as caught:
        before.compare(["model.bin"], MODEL)
    assert "another process" in caught.value.what


def test_replaced_files_have_no_manifest_until_all_are_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    there: list[bool] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (there.append((folder / MANIFEST).exists()), replace(*paths)))

    def write(into: Path) -> None:
        for name in ("a", "b"):
            (into / name).write_text(name, encoding="utf-8")

    replace_files(folder, write)
    assert there == [False, False, False]
    assert sorted(Manifest.read(folder).files) == ["a", "b"]  # type: ignore[union-attr]
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "config.json", MANIFEST, "model.bin"]
