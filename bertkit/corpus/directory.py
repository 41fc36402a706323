"""The folder of a corpus: what is in it, finished or not; locked while it is built, and resumed by the same command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.corpus.shard import CORPUS_FILES
from bertkit.errors import DataError, UsageError, UserError, listed, plural
from bertkit.files import LEFTOVER, as_json, remove_folder, sweep, write_json
from bertkit.files.output_folder import Kind, OutputFolder
from bertkit.manifest import MANIFEST, verify
from bertkit.readers.content import STDIN
from bertkit.text.tokenizer import TOKENIZER

META = "meta.json"
SPLITS = ("train", "validation")
FORMAT = 1
BUILDING, _PLAN = "building", "plan.json"
_REFUSED = "refused"  # a mark below BUILDING: text was refused, so other settings may read the same sources
DECIDED = "decided"  # below BUILDING, once all parts are there: the documents that are kept, and their shards


def read_metas(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """`read_meta` of each folder. Raises UsageError also for corpora of different tokenizers."""
    metas = [read_meta(folder) for folder in folders]
    for folder, meta in zip(folders, metas, strict=True):
        if meta["tokenizer"] != metas[0]["tokenizer"]:
            what = f"the corpora have different tokenizers: {folders[0]} and {folder}"
            raise UsageError(what, hint="build one of them again, with the tokenizer of the other")
    return metas


def read_meta(folder: Path) -> dict[str, Any]:
    """The content of a corpus's meta.json. Raises UsageError for a folder with no corpus or an unfinished one, DataError for a
    damaged one."""
    if (folder / META).is_file():
        verify(folder, owner=CORPUS_FILES)  # for shards only their manifests; the rest when they are opened
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        what = "this is a file, not a corpus" if folder.is_file() else "the folder is not a corpus: there is no meta.json"
        hint = "build one: bertkit corpus build TEXT... --tokenizer T --output-dir C"
        if (folder / BUILDING).is_dir():
            what = f"the corpus is unfinished: {_state_of(folder / BUILDING)}"
            hint = "repeat the command that builds it: it resumes"
        raise UsageError(what, where=str(folder), hint=hint) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"meta.json cannot be read: {error}", where=str(folder)) from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        hint = "choose another folder, or delete this one and build the corpus again"
        raise UsageError(f"meta.json is not from a corpus of format {FORMAT}", where=str(folder), hint=hint)
    return meta


def _is_finished(folder: Path) -> bool | None:
    if _plan_of(folder / BUILDING) is not None:
        return False
    if (folder / META).exists():
        return bool(read_meta(folder))  # raises for any other meta.json
    names = [path.name for path in folder.rglob("*") if not LEFTOVER.fullmatch(path.name)]
    if names == [BUILDING] and (folder / BUILDING).is_dir():
        return False  # killed just after it started
    return None


_PARTS = re.compile(rf"{META}|{MANIFEST}|{BUILDING}|({'|'.join(SPLITS)})-\d{{5,}}|{TOKENIZER.parts.pattern}")
CORPUS = Kind("corpus", _is_finished, _PARTS)


def prepare(folder: Path, plan: dict[str, Any], overwrite: bool, reads: Sequence[str | Path]) -> OutputFolder:
    """The output folder of a corpus. Raises UsageError for an unfinished corpus that cannot be resumed."""
    output = OutputFolder.prepare(folder, CORPUS, resume=True, overwrite=overwrite, reads=reads)
    begun = _begun(folder / BUILDING) if output.resumes else None
    if begun is not None and not _starts_again(folder / BUILDING, begun, plan):
        hint = "give another --output-dir, or --overwrite, which moves it aside"
        if changed := _changed(begun, plan):
            what = f"the output folder holds an unfinished corpus with different settings: {changed}"
            raise UsageError(what, where=str(folder), hint=f"repeat its command, which resumes it; or {hint}")
        if "corpora" not in plan and any(source["name"] == STDIN for source in plan["sources"]):
            raise UsageError("a corpus from standard input cannot be resumed", where=str(folder), hint=hint)
    return output


_READ = {"sources": "the text", "corpora": "the corpus"}  # what a build or a merge reads, by its key in a plan


def _changed(begun: dict[str, Any], plan: dict[str, Any]) -> str:
    """How the plan of an unfinished corpus differs from a new one, in words; "" if it does not."""

    def named(sources: Sequence[dict[str, Any]]) -> str:
        return listed([source["name"] for source in sources], 3) or "nothing"

    differences, plan = [], as_json(plan)
    for key in {**begun, **plan}:
        before, now = begun.get(key), plan.get(key)
        if before == now or (key, before) == ("on_error", "fail"):  # what was read then had no faults
            continue
        if key in _READ and before and now:
            names = [[source["name"] for source in sources] for sources in (before, now)]
            changed = [new for old, new in zip(before, now) if old != new]
            what = f"{named(changed)} has changed since" if names[0] == names[1] else f"was {named(before)}, now {named(now)}"
            differences.append(f"{_READ[key]} {what}")
        elif key == "tokenizer":
            differences.append("the tokenizer is different")
        else:
            differences.append(f"{key} was {before!r}, now {now!r}")
    return "; ".join(differences)


@contextmanager
def opened(output: OutputFolder, plan: dict[str, Any]) -> Iterator[Path]:
    """Lock the output folder; yields the folder of its parts, which holds the plan."""
    building = output.path / BUILDING
    with output.open():
        if building.is_dir():
            sweep(building)
        if (begun := _begun(building)) is not None:
            if _starts_again(building, begun, plan):
                progress.note("starting again: the unfinished corpus ended at text that was refused")
                remove_folder(building)
            else:
                progress.note(f"resuming: {_state_of(building)}")
        write_json(building / _PLAN, plan)
        (building / _REFUSED).unlink(missing_ok=True)
        try:
            yield building
        except UserError as error:
            if _begun(building) is None:
                remove_folder(building)
            elif isinstance(error, (DataError, UsageError)):
                with suppress(OSError):
                    (building / _REFUSED).touch()
            raise


def _starts_again(building: Path, begun: dict[str, Any], plan: dict[str, Any]) -> bool:
    """Whether to start over a build whose text was refused: the sources are the same, but the settings differ, or the text is
    from standard input and may differ. Not once shards may be on disk: the new build would take them for its own.
    """
    if not (building / _REFUSED).is_file() or (building / DECIDED).is_dir() or "corpora" in plan:
        return False
    before, now = ([source["name"] for source in each.get("sources", ())] for each in (begun, plan))
    return before == now and (STDIN in now or _changed(begun, plan) != "")


def _plan_of(building: Path) -> dict[str, Any] | None:
    """The plan of an unfinished corpus, or None: the user may have a folder of this name."""
    try:
        plan = json.loads((building / _PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return plan if isinstance(plan, dict) and plan.get("format") == FORMAT else None


def _begun(building: Path) -> dict[str, Any] | None:
    """The plan of a build to go on with; None where no part is finished: another plan may take its place."""
    plan = _plan_of(building)
    return plan if plan is not None and ((building / DECIDED).is_dir() or parts_in(building)) else None


def _state_of(building: Path) -> str:
    """How far a build is, in words."""
    if (building / DECIDED).is_dir():
        return "its text is read and deduplicated, and its shards are being written"
    return f"{plural(len(parts_in(building)), 'part')} of its text finished so far"


def parts_in(building: Path) -> list[tuple[int, Path]]:
    """The finished parts in order, each with the number of its source."""
    parts = [path for path in building.iterdir() if re.fullmatch(r"\d+-\d+", path.name)]
    numbers = [[int(number) for number in path.name.split("-")] for path in parts]
    return [(source, path) for (source, _), path in sorted(zip(numbers, parts, strict=True))]
