"""The folders that commands write: what is refused, resumed and moved aside is the same for all kinds of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.corpus.build import CORPUS
from bertkit.errors import MachineError, UsageError
from bertkit.files import Kind, OutputFolder, lock
from bertkit.model.directory import TOKENIZER
from bertkit.runs.directory import RUN
from bertkit.runs.seeds import SEEDS
from bertkit.runs.submission import SUBMISSION

A_RUN = json.dumps({"status": "finished", "recipe": {}, "training": {}, "model": {}, "data": {}})
# What one of each kind is made of.
FINISHED: list[tuple[Kind, dict[str, str]]] = [
    (RUN, {"run.json": A_RUN, "notes.txt": "lies in the run, and moves with it", "checkpoint-3/model.safetensors": ""}),
    (CORPUS, {"meta.json": '{"format": 1}', "train-00000/input_ids.npy": "", "vocab.txt": ""}),
    (TOKENIZER, {"tokenizer.json": "{}", "vocab.txt": "[PAD]"}),
    (SUBMISSION, {"submission.zip": "", "RTE.tsv": "", "MNLI-mm.tsv": ""}),
]
EVERY_KIND = [*FINISHED, (SEEDS, {"seeds.json": "{}", "seed-1/run.json": A_RUN, "seed-12/run.json": A_RUN})]
by_name = {"ids": lambda value: value.name if isinstance(value, Kind) else ""}


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("kind", "files"), EVERY_KIND, **by_name)
def test_overwrite_moves_one_of_its_kind_to_the_first_free_name(
    kind: Kind, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path / "out", {**files, ".unfinished-x": "left by a kill"})
    (tmp_path / "out.old-1").mkdir()
    output = OutputFolder.prepare(folder, kind, overwrite=True)
    assert content(folder)["run.json" if kind is RUN else next(iter(files))] == next(iter(files.values()))
    with output.open():
        assert list(folder.iterdir()) == []
    assert content(tmp_path / "out.old-2") == {**files, ".unfinished-x": "left by a kill"}
    assert f"moved the old content of {folder} to {tmp_path / 'out.old-2'}" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "files"), FINISHED, **by_name)
def test_what_is_finished_is_not_written_into(kind: Kind, files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        OutputFolder.prepare(fill(tmp_path, files), kind, resume=True)
    assert (error.value.where, "--overwrite, which moves it aside" in str(error.value.hint)) == (str(tmp_path), True)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("kind", "files"), EVERY_KIND, **by_name)
def test_what_is_no_work_of_bertkit_is_never_touched(
    kind: Kind, files: dict[str, str], overwrite: bool, tmp_path: Path
) -> None:
    thesis = fill(tmp_path / "thesis", {"chapter-1.tex": "years of work"})
    others = [thesis, *(fill(tmp_path / other.name, theirs) for other, theirs in EVERY_KIND if other not in (kind, TOKENIZER))]
    for folder in others:
        before = content(folder)
        with pytest.raises(UsageError) as error:
            OutputFolder.prepare(folder, kind, resume=True, overwrite=overwrite)
        if folder == thesis or overwrite:
            assert (error.value.where, "--output-dir" in str(error.value.hint)) == (str(folder), True)
        assert content(folder) == before


@pytest.mark.parametrize(("kind", "files"), [each for each in EVERY_KIND if each[0] is not RUN], **by_name)
def test_a_file_of_ones_own_among_them_is_not_moved(kind: Kind, files: dict[str, str], tmp_path: Path) -> None:
    folder = fill(tmp_path / "out", {**files, "notes.txt": "precious"})
    with pytest.raises(UsageError):
        OutputFolder.prepare(folder, kind, overwrite=True)
    assert content(folder) == {**files, "notes.txt": "precious"}


def test_seeds_take_more_seeds(tmp_path: Path) -> None:
    assert OutputFolder.prepare(fill(tmp_path, dict(EVERY_KIND[-1][1])), SEEDS, resume=True).resumes


def test_looking_changes_nothing(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "deep", tmp_path):
        for overwrite in (False, True):
            output = OutputFolder.prepare(folder, RUN, overwrite=overwrite)
            assert (output.path, output.resumes, output.moves_to) == (folder, False, None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_nothing_but_what_a_kill_left_counts_as_empty(tmp_path: Path) -> None:
    fill(tmp_path, {".unfinished-run.json": "{"})
    with OutputFolder.prepare(tmp_path, RUN).open():
        assert [path.name for path in tmp_path.iterdir()] == [".unfinished-run.json"]


def test_the_folder_that_the_command_runs_in_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "run", {"run.json": A_RUN, "sub/notes.txt": ""})
    (folder / "gone").symlink_to(folder / "nowhere")  # which has no time of its own to ask for
    assert OutputFolder.prepare(folder, RUN, overwrite=True).moves_to == tmp_path / "run.old-1"
    for inside, names in ((folder, (".", folder)), (folder / "sub", ("..", folder))):
        monkeypatch.chdir(inside)
        for name in names:
            with pytest.raises(UsageError) as error:
                OutputFolder.prepare(Path(name), RUN, overwrite=True)
            assert "working directory" in error.value.what


def test_two_commands_cannot_write_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with OutputFolder.prepare(folder, RUN).open():
        with pytest.raises(UsageError) as error, OutputFolder.prepare(folder, RUN).open():
            pytest.fail("it is open twice")
        assert (error.value.where, "wait for it" in str(error.value.hint)) == (str(folder), True)
    with OutputFolder.prepare(folder, RUN).open():  # the first one is over
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("inside", ["", "seed-1"])
def test_what_another_process_writes_is_not_moved(tmp_path: Path, inside: str) -> None:
    folder = fill(tmp_path / "run", {"seed-1/run.json": A_RUN})
    with lock(folder / inside), pytest.raises(UsageError) as error:
        OutputFolder.prepare(folder, SEEDS, overwrite=True).move_aside()
    assert error.value.where == str(folder / inside)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_changed_since_it_was_looked_at(tmp_path: Path, overwrite: bool) -> None:
    folder = fill(tmp_path / "run", {"run.json": A_RUN} if overwrite else {".unfinished-x": ""})
    early = OutputFolder.prepare(folder, RUN, overwrite=overwrite)
    fill(folder, {"checkpoint-1/model.safetensors": ""})
    with pytest.raises(UsageError) as error, early.open():
        pytest.fail("it is open")
    assert (error.value.where, (folder / "checkpoint-1").is_dir()) == (str(folder), True)


def test_what_is_read_is_not_moved(tmp_path: Path) -> None:
    folder = fill(tmp_path / "run", {"run.json": A_RUN, "model/config.json": "", "train.csv": ""})
    apart = [None, fill(tmp_path, {"train.csv": ""}) / "train.csv", "10%", folder / "not-there.csv"]
    assert OutputFolder.prepare(folder, RUN, overwrite=True, reads=apart).moves_to is not None
    for read in (folder, folder / "model", str(folder / "train.csv"), tmp_path / "run" / ".." / "run" / "train.csv"):
        with pytest.raises(UsageError) as error:
            OutputFolder.prepare(folder, RUN, overwrite=True, reads=[*apart, read])
        assert (str(read) in error.value.what, error.value.where) == (True, str(folder))
    OutputFolder.prepare(tmp_path / "new", RUN, overwrite=True, reads=[folder])


def test_a_folder_that_cannot_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")  # what Path.exists raises below a folder of someone else

    monkeypatch.setattr(Path, "exists", closed)
    with pytest.raises(MachineError) as error:
        OutputFolder.prepare(tmp_path / "run", RUN)
    assert (error.value.where, "Permission denied" in error.value.what) == (str(tmp_path / "run"), True)
