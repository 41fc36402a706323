"""What predict's arguments name: the files to read, and the destination of their predictions; checked before any work."""

from __future__ import annotations

import glob
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bertkit.errors import DataError, UsageError
from bertkit.readers.content import STDIN, nearest_files, plain_name, source_name
from bertkit.readers.remote import is_url, look_up, path_of
from bertkit.runs.output_paths import refuse_unfit_folder, refuse_unusable_file
from bertkit.runs.prediction.annotation import ANNOTATIONS
from bertkit.runs.prediction.destination import Destination
from bertkit.runs.prediction.outputs import TEXT, OutputFormat, is_text, unfinished
from bertkit.runs.prediction.prediction_folder import PredictionFolder


def destination_of(
    sources: Sequence[str],
    output: Path | None,
    folder: Path | None,
    form: str | None,
    endings: Sequence[str],
    *,
    overwrite: bool,
) -> Destination:
    """The destination that options name. endings: of all formats. Raises UsageError for options that exclude each other,
    and UsageError or MachineError for a place that cannot be written.
    """
    if len(sources) > 1 and folder is None:
        raise UsageError(f"{len(sources)} files to predict; expected one", hint="for several: --output-dir FOLDER")
    if output is not None:
        if folder is not None:
            raise UsageError("--output cannot be combined with --output-dir", hint="leave out one of the two")
        found = _format_of_file(output, form, endings)
        refuse_unusable_file(output, sources, overwrite=overwrite or unfinished(output)[0].exists())
        return Destination({sources[0]: output}, found)
    usual = "jsonl" if folder is not None or not sys.stdout.isatty() else TEXT
    wanted = _format_named(form or usual)
    here = endings if folder is not None else [TEXT, *(ending for ending in endings if is_text(ending))]
    if wanted.ending not in here or (wanted.compressed and (folder is None or not is_text(wanted.ending))):
        raise UsageError(f"--format is {form!r}; expected {' or '.join(ending.lstrip('.') for ending in here)}")
    if folder is None:
        return Destination({sources[0]: None}, wanted)
    refuse_unfit_folder(folder)
    return PredictionFolder(_paths_in(folder, sources, wanted), wanted, folder)


def _format_named(form: str) -> OutputFormat:
    return OutputFormat(TEXT) if form == TEXT else OutputFormat.of(f".{form}")


def _format_of_file(output: Path, form: str | None, endings: Sequence[str]) -> OutputFormat:
    """The format of --output: by its ending, or by --format where several formats have that ending."""
    found = OutputFormat.of(output.name)
    ends = f"--output {output} has {f'the extension {found.ending}' if found.ending else 'no file extension'}"
    if form is None:
        found.refuse_outside(ends, [ending for ending in endings if ending not in ANNOTATIONS])
        return found
    wanted = _format_named(form)
    if wanted.ending not in ANNOTATIONS:
        hint = "leave out --format: the file's ending decides"
        if wanted.ending in (TEXT, *endings):
            raise UsageError("--output cannot be combined with --format", hint=hint)
        known = " or ".join(ending.lstrip(".") for ending in endings if ending in ANNOTATIONS)
        raise UsageError(f"--format is {form!r}; expected {known} with --output", hint=hint)
    if found.ending != wanted.suffix:
        raise UsageError(f"{ends}; expected {wanted.suffix} for --format {form}")
    return OutputFormat(wanted.ending, found.compressed)


def expand(names: Sequence[str]) -> list[str]:
    """Files by name, URL or pattern. Raises DataError for a missing file, and for a pattern without matches."""
    found: list[str] = []
    for name in names:
        if is_url(name):
            files, is_folder = look_up(name)
            matches = [name] if is_folder else [file.url for file in files]
        elif name == STDIN or Path(name).exists():
            matches = [name]
        elif not glob.has_magic(name):
            raise DataError("no such file", where=name, hint=_instead_of(name))
        else:
            matches = sorted(match for match in glob.glob(name, recursive=True) if Path(match).is_file())
        if not matches:
            raise DataError("no file matches", where=name, hint=None if is_url(name) else _instead_of(name))
        found += matches
    return found


def _instead_of(name: str) -> str | None:
    """A hint for a file that is missing, or a text that was given in its place."""
    ending = Path(name).suffix
    if " " in name and (not ending or " " in ending):
        return 'expected the name of a file; for a single text: echo "TEXT" | bertkit predict MODEL'
    return nearest_files(Path(name))


def _paths_in(folder: Path, sources: Sequence[str], form: OutputFormat) -> dict[str, Path]:
    """An output file for each source, with its name and another ending. Raises UsageError if two sources get the same."""
    paths: dict[str, Path] = {}
    taken: dict[Path, str] = {}
    for source in sources:
        name = Path(plain_name(source_name(source))).stem + form.suffix + form.compression
        path = folder / name
        if source in paths:
            raise UsageError(f"{source_name(source)} is given twice", hint="give each input once")
        paths[source] = path
        if (other := taken.setdefault(path, source)) != source:
            raise UsageError(f"{other} and {source} would both be written to {path}", hint="write them to two folders")
        with suppress(OSError):
            if path.resolve() == path_of(source).resolve():
                raise UsageError(f"the output {path} is the input file", hint="choose another --output-dir")
    return paths
