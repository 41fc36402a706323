"""The folders that commands write: what is refused, resumed and moved aside is the same for all kinds of them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from bertkit.corpus.directory import CORPUS
from bertkit.errors import MachineError, UsageError, UserError
from bertkit.files import jsonl_text, sweep, write_files
from bertkit.files.output_folder import Kind, OutputFolder, lock
from bertkit.runs.directory import RUN
from bertkit.runs.glue.submission import SUBMISSION
from bertkit.runs.series import FOLDS, SEEDS
from bertkit.text.tokenizer import TOKENIZER

A_RUN = json.dumps({"status": "finished", "recipe": {"family": "text-classification"}, "training": {}, "model": {}, "data": {}})
# What one of each kind is made of.
FINISHED: list[tuple[Kind, dict[str, str]]] = [
    (RUN, {"run.json": A_RUN, "notes.txt": "lies in the run, and moves with it", "checkpoint-3/model.safetensors": ""}),
    (CORPUS, {"meta.json": '{"format": 1}', "train-00000/input_ids.npy": "", "vocab.txt": ""}),
    (TOKENIZER, {"tokenizer.json": "{}", "vocab.txt": "[PAD]"}),
    (SUBMISSION, {"submission.zip": "", "RTE.tsv": "", "MNLI-mm.tsv": ""}),
]
EVERY_KIND = [
    *FINISHED,
    (FOLDS.kind, {"folds.json": "{}", "fold-1/run.json": A_RUN, "fold-2.old-1/run.json": A_RUN}),
    (SEEDS.kind, {"seeds.json": "{}", "seed-1/run.json": A_RUN, "seed-12/run.json": A_RUN, "seed-1.old-1/run.json": A_RUN}),
]
by_name = {"ids": lambda value: value.name if isinstance(value, Kind) else ""}


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def refused(folder: Path, kind: Kind, error_class: type[UserError] = UsageError, **options: Any) -> UserError:
    """The error for an output folder that is refused, and that stays as it is."""
    before = content(folder)
    with pytest.raises(error_class) as error, OutputFolder.prepare(folder, kind, **options).open():
        pytest.fail("it is open")
    assert content(folder) == before
    return error.value


@pytest.mark.parametrize(("kind", "files"), EVERY_KIND, **by_name)
def test_overwrite_moves_a_folder_to_the_first_free_name(
    kind: Kind, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {**files, ".unfinished-x": "left by a kill"}
    folder = fill(tmp_path / "out", files)
    (tmp_path / "out.old-1").mkdir()
    output = OutputFolder.prepare(folder, kind, overwrite=True)
    assert content(folder) == files
    with output.open():
        assert list(folder.iterdir()) == []
    assert content(tmp_path / "out.old-2") == files
    assert str(tmp_path / "out.old-2") in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "files"), FINISHED, **by_name)
def test_finished_content_is_kept(kind: Kind, files: dict[str, str], tmp_path: Path) -> None:
    error = refused(fill(tmp_path, files), kind, resume=True)
    assert (error.where, "--overwrite" in str(error.hint)) == (str(tmp_path), True)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("kind", "files"), EVERY_KIND, **by_name)
def test_other_content_is_never_touched(kind: Kind, files: dict[str, str], overwrite: bool, tmp_path: Path) -> None:
    thesis = fill(tmp_path / "thesis", {"chapter-1.tex": "years of work"})
    assert refused(thesis, kind, resume=True, overwrite=overwrite).where == str(thesis)
    for other, theirs in EVERY_KIND:
        if other not in (kind, TOKENIZER):
            refused(fill(tmp_path / other.name, theirs), kind, resume=True, overwrite=overwrite)
    if kind is not RUN:  # into which a user may put a file
        refused(fill(tmp_path / "mixed", {**files, "notes.txt": "precious"}), kind, overwrite=True)


@pytest.mark.parametrize(("kind", "files"), [case for case in FINISHED if case[0].at_once], **by_name)
def test_files_that_are_still_aside_tell_that_a_folder_is_unfinished(kind: Kind, files: dict[str, str], tmp_path: Path) -> None:
    fill(tmp_path, {**files, ".unfinished-vocab.txt": "killed before it was renamed"})
    with OutputFolder.prepare(tmp_path, kind).open():
        assert content(tmp_path) == files


@pytest.mark.parametrize(("kind", "file"), [(CORPUS, "meta.json"), (RUN, "manifest.json")])
def test_overwrite_moves_a_damaged_folder_aside(kind: Kind, file: str, tmp_path: Path) -> None:
    files = {**next(files for each, files in FINISHED if each is kind), file: "{"}
    folder = fill(tmp_path / "out", files)
    with pytest.raises(UserError):
        OutputFolder.prepare(folder, kind)
    with OutputFolder.prepare(folder, kind, overwrite=True).open():
        assert content(tmp_path / "out.old-1") == files


def test_what_a_kill_left_of_a_finished_folder_is_swept_by_the_next_start(tmp_path: Path) -> None:
    files = dict(FINISHED[1][1])
    fill(tmp_path, {**files, ".unfinished-building/plan.json": "{}", ".tmpA3b2C1": ""})
    with pytest.raises(UsageError):
        OutputFolder.prepare(tmp_path, CORPUS)
    assert content(tmp_path) == files


def test_seeds_can_be_added_to_seeds(tmp_path: Path) -> None:
    assert OutputFolder.prepare(fill(tmp_path, dict(EVERY_KIND[-1][1])), SEEDS.kind, resume=True).resumes


def test_preparing_changes_nothing(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "deep", tmp_path):
        for overwrite in (False, True):
            output = OutputFolder.prepare(folder, RUN, overwrite=overwrite)
            assert (output.path, output.resumes, output.moves_to) == (folder, False, None)
    assert list(tmp_path.iterdir()) == []


def test_the_remains_of_a_killed_process_count_as_nothing(tmp_path: Path) -> None:
    fill(tmp_path, {".unfinished-run.json": "{", ".unfinished-checkpoint-3/model.safetensors": "", ".tmpA3b2C1": ""})
    with OutputFolder.prepare(tmp_path, RUN).open():
        assert list(tmp_path.iterdir()) == []


def test_temporary_files_of_processes_that_run_or_are_on_other_machines_stay(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "a.b")
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    names = (f"a-b-{dead.stdout.strip()}", f"a-b-{os.getppid()}", f"other-{dead.stdout.strip()}")
    fill(tmp_path, {f".unfinished-x.json.{name}": "" for name in names})
    write_files(tmp_path, {"x.json": "{}"}, locked=False)
    assert {path.name for path in tmp_path.iterdir()} == {"x.json", *(f".unfinished-x.json.{name}" for name in names[1:])}


@pytest.mark.parametrize("name", ["plan.2024.unfinished", ".notes.json.1", "building.done/plan.json", ".tmpfolder/a.txt"])
def test_a_file_of_the_user_is_not_swept(name: str, tmp_path: Path) -> None:
    files = {name: "precious", "run.json": A_RUN}
    sweep(fill(tmp_path, {**files, ".unfinished-x/a": ""}))
    assert content(tmp_path) == files


def test_the_working_directory_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "run", {"run.json": A_RUN, "sub/notes.txt": ""})
    (folder / "gone").symlink_to(folder / "nowhere")  # which has no time of its own to ask for
    assert OutputFolder.prepare(folder, RUN, overwrite=True).moves_to == tmp_path / "run.old-1"
    for inside, names in ((folder, (".", folder)), (folder / "sub", ("..", folder))):
        monkeypatch.chdir(inside)
        for name in names:
            refused(Path(name), RUN, overwrite=True)


def test_two_commands_cannot_write_into_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with OutputFolder.prepare(folder, RUN).open():
        error = refused(folder, RUN)
        assert (error.where, "another process is currently writing this run" in error.what) == (str(folder), True)
        with pytest.raises(UsageError):  # before any work
            OutputFolder.prepare(folder, RUN)
    with OutputFolder.prepare(folder, RUN).open():  # the first one has ended
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("inside", ["", "seed-1"])
def test_a_folder_that_another_process_writes_is_not_moved(tmp_path: Path, inside: str) -> None:
    folder = fill(tmp_path / "run", {"seed-1/run.json": A_RUN})
    with lock(folder / inside):
        assert refused(folder, SEEDS.kind, overwrite=True).where == str(folder / inside)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_has_changed_since_it_was_prepared_is_refused(tmp_path: Path, overwrite: bool) -> None:
    folder = fill(tmp_path / "run", {"run.json": A_RUN} if overwrite else {".unfinished-x": ""})
    early = OutputFolder.prepare(folder, RUN, overwrite=overwrite)
    fill(folder, {"checkpoint-1/model.safetensors": ""})
    with pytest.raises(UsageError) as error, early.open():
        pytest.fail("it is open")
    assert (error.value.where, (folder / "checkpoint-1").is_dir()) == (str(folder), True)


def test_inputs_are_not_moved(tmp_path: Path) -> None:
    folder = fill(tmp_path / "run", {"run.json": A_RUN, "model/config.json": "", "train.csv": ""})
    apart = [None, fill(tmp_path, {"train.csv": ""}) / "train.csv", "10%", folder / "not-there.csv"]
    assert OutputFolder.prepare(folder, RUN, overwrite=True, reads=apart).moves_to is not None
    for read in (folder, folder / "model", str(folder / "train.csv"), tmp_path / "run" / ".." / "run" / "train.csv"):
        error = refused(folder, RUN, overwrite=True, reads=[*apart, read])
        assert (str(read) in error.what, error.where) == (True, str(folder))
    OutputFolder.prepare(tmp_path / "new", RUN, overwrite=True, reads=[folder])


def test_a_folder_below_one_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")  # as Path.exists does there

    monkeypatch.setattr(Path, "exists", closed)
    with pytest.raises(MachineError) as error:
        OutputFolder.prepare(tmp_path / "run", RUN)
    assert (error.value.where, "Permission denied" in error.value.what) == (str(tmp_path / "run"), True)
    assert "space" not in str(error.value.hint)


@pytest.mark.parametrize("is_back", [True, False])
def test_a_folder_that_is_moved_while_it_is_locked_is_not_written(
    is_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command with --overwrite moves it between opening and locking, and perhaps makes a new one."""
    folder, real = tmp_path / "out", fcntl.flock
    folder.mkdir()

    def flock(descriptor: int, operation: int) -> None:
        folder.rename(tmp_path / "out.old-1")
        if is_back:
            folder.mkdir()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UsageError, match="another process has just finished or moved this run"), lock(folder, "run"):
        pass


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_system_without_locks_is_a_warning(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock(tmp_path, "run", shared=shared):  # who only reads needs no lock
        pass
    told = f"nothing keeps another command from writing this run too ({tmp_path}); the file system cannot lock it"
    assert (told in " ".join(capsys.readouterr().err.split())) is not shared


def test_a_lock_that_is_lost_while_it_is_waited_for_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        code = errno.EWOULDBLOCK if operation & fcntl.LOCK_NB else errno.EIO
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with lock(tmp_path, "run", wait=True):
        pass
    told = " ".join(capsys.readouterr().err.split())
    assert "waiting for it" in told
    assert f"nothing keeps another command from writing this run too ({tmp_path}); the file system cannot lock it" in told


def test_lines_of_json_hold_what_json_has() -> None:
    values = [{"a": float("nan"), "b": [float("-inf"), 1.5], "c": "é"}, {"a": 1, "c": date(2026, 1, 2)}]
    assert jsonl_text(values) == '{"a": null, "b": [null, 1.5], "c": "é"}\n{"a": 1, "c": "2026-01-02"}\n'
