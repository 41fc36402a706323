"""What run.json says of the corpora of a run, and of those that it reads later."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from bertkit.config import PretrainConfig
from bertkit.corpus.corpora import Corpus
from bertkit.errors import UsageError
from bertkit.readers.content import read_text
from bertkit.runs.directory import RunFolder


def describe_corpora(corpora: Sequence[Corpus], config: PretrainConfig) -> dict[str, Any]:
    """The "data" entry of run.json: a corpus, or those of a mix by name, with the sha256 of the entities to mask."""
    is_mixed = len(corpora) > 1
    entities = {} if config.entities is None else {"entities": sha256(read_text(config.entities).encode()).hexdigest()}
    return {
        corpus.name if is_mixed else "corpus": {
            "source": str(corpus.folder.resolve()),
            **({"share": corpus.share} if is_mixed else {}),
            **{key: corpus.meta[key] for key in ("tokenizer", "documents", "hashes")},
            **entities,
        }
        for corpus in corpora
    }


def continued_with(run: RunFolder, step: int, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The "continued" entry of run.json: the corpora that a run reads instead of its first ones, and from which step on.

    data: of the corpora that are given now, if any. Raises UsageError if corpora were given before and are missing now, if no
    run is resumed, or if no step is left to read them.
    """
    where = str(run.output.path)
    if data and run.unfinished is None:
        hint = "name the corpus as the first argument; to continue a run from another folder, give --resume CHECKPOINT"
        raise UsageError("--continue-with is for a run that was stopped; there is none here", where=where, hint=hint)
    continued = [each for each in (run.unfinished or {}).get("continued") or [] if each["step"] <= step]
    if data == (continued[-1]["data"] if continued else {}):
        return continued
    if not data:
        sources = [corpus["source"] for corpus in continued[-1]["data"].values()]
        what = f"since step {continued[-1]['step']} the run has been reading {' and '.join(sources)}"
        raise UsageError(
            what, where=where, hint="repeat its command with the same --continue-with, or name another corpus there"
        )
    if run.unfinished is not None and step >= run.unfinished["total_steps"]:
        hint = "to continue from its weights, name the other corpus as the first argument, and the run's folder as --model"
        raise UsageError(f"all {step} steps are done: none is left for --continue-with", where=where, hint=hint)
    return [*(each for each in continued if each["step"] < step), {"step": step, "data": data}]
