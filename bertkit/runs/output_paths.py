"""Checks of --output and --output-dir before any work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bertkit.errors import MachineError, UsageError
from bertkit.files.output_folder import refuse_unwritable
from bertkit.readers.content import extension, plain_name
from bertkit.readers.formats import TAGGED, TEXTS, endings_of
from bertkit.readers.remote import path_of


def refuse_unfit_folder(folder: Path) -> None:
    """Raise UsageError for a folder of predictions that is a file, is named like one, or cannot be written."""
    name = folder.name
    is_named_as_file = plain_name(name) != name or extension(name) in endings_of((*TEXTS, *TAGGED))
    if folder.is_file() or (is_named_as_file and not folder.is_dir()):
        raise UsageError("--output-dir names a file; expected a folder", where=str(folder), hint="leave out the extension")
    refuse_unwritable(folder)


def refuse_unusable_file(output: Path, sources: Sequence[str], *, overwrite: bool) -> None:
    """Raise UsageError for an --output that cannot be written, or exists, before any work; MachineError for its folder.

    sources: what is read.
    """
    if not output.absolute().parent.is_dir():
        raise UsageError("the folder of --output does not exist", where=str(output.parent), hint="create it first")
    if output.resolve() in (path_of(source).resolve() for source in sources):
        raise UsageError(f"--output {output} is the input file", hint="choose another name")
    if output.is_dir():
        raise UsageError("--output is a folder; expected a file", where=str(output), hint="for a folder: --output-dir")
    parent = output.resolve().parent
    if (output.is_file() or not output.exists()) and not os.access(parent, os.W_OK):  # not of a pipe
        raise MachineError("the folder of --output cannot be written", where=str(parent), hint="choose another place")
    if output.is_file() and not overwrite:
        raise UsageError("--output already exists", where=str(output), hint="choose another name, or add --overwrite")
