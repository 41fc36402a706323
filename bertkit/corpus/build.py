"""From running text to a corpus: sentences, tokens, shards; in several processes, in bounded memory, resumable.

A source is split into parts of whole documents, a function of the source alone. Each part is tokenized by itself and written
whole or not at all; at the end duplicates are dropped, and each part becomes a shard of the train split and one of the
validation split. So neither the number of processes, nor a kill, nor merging corpora built apart changes a byte.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import progress
from bertkit.corpus.sentences import split_sentences
from bertkit.corpus.shard import Shard
from bertkit.corpus.texts import read_sources
from bertkit.corpus.words import load_jieba, tokens_and_words
from bertkit.errors import DataError, MachineError, UsageError
from bertkit.features import offsets_of, ranges
from bertkit.files import MOVED_ASIDE, Kind, OutputFolder, disk_errors, write_json
from bertkit.model.directory import TOKENIZER
from bertkit.readers.documents import Document, Source, find_sources
from bertkit.text.tokenizer import Tokenizer

META = "meta.json"
SPLITS = ("train", "validation")
PART = 2**24  # characters of text in a part, but for its last document
_BUILDING, _PLAN, _COUNTS = "building", "plan.json", "counts.json"
_PART_NAME = re.compile(r"(\d{5,})-(\d{5,})")  # the number of the source, and that of the part in it
_FORMAT = 1
_MILLION = 10**6


@dataclass(frozen=True)
class CorpusConfig:
    """How text becomes a corpus.

    sentences: "split" splits lines into sentences by rule, "lines" takes each line as one. layout, text_column: as in
    `Documents`. min_tokens: shorter documents are dropped. held_out: the share of documents in the validation split, chosen by
    their text alone. words: the words of whole-word masking, "basic" or "jieba" (corpus/words.py).
    """

    sentences: str = "split"
    layout: str = "auto"
    text_column: str = "text"
    min_tokens: int = 5
    held_out: float = 0.0
    words: str = "basic"


def build_corpus(
    names: Sequence[str],
    tokenizer: Path,
    output_dir: Path,
    config: CorpusConfig,
    *,
    num_processes: int = 1,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Build a corpus from the text that `names` lead to; returns the content of meta.json.

    An unfinished corpus is resumed. Raises UsageError for a folder that holds something else, DataError for bad text.
    """
    here = output_dir.resolve()  # may lie in a folder of text, as may what --overwrite moved aside
    within = any(here.is_relative_to(Path(name).resolve()) for name in names if Path(name).is_dir())
    sources = [source for source in find_sources(names) if not within or not _lies_in(here, Path(source.name).resolve())]
    if config.words == "jieba":
        load_jieba()
    loaded = Tokenizer.load(tokenizer)
    plan = {
        "format": _FORMAT,
        "tokenizer": {name: getattr(loaded, name) for name in ("fingerprint", "vocab_hash", "vocab_size")},
        **asdict(config),
        "sources": [{"name": source.name, "bytes": source.size, **_modified(source)} for source in sources],
    }
    reads = [str(tokenizer), *(source.name for source in sources if source.size)]
    with _open(_prepare(output_dir, plan, overwrite, reads), plan) as building:
        _make_parts(sources, building, _Pool(tokenizer, config, num_processes), config)
        parts = _parts_in(building)
        if not parts:
            raise DataError("there is no text", where=", ".join(names))
        part_counts = [json.loads((path / _COUNTS).read_text(encoding="utf-8")) for path in parts]
        counts = {name: sum(part[name] for part in part_counts) for name in ("read", "short")} | {"duplicates": 0}
        shards = [(int(path.name.partition("-")[0]), path) for path in parts]
        return _finish(shards, _without_times(plan), counts, loaded, output_dir)


def _make_parts(sources: Sequence[Source], building: Path, pool: _Pool, config: CorpusConfig) -> None:
    """Write each part of the sources that is not there yet, and note what separates their documents."""
    layouts: Counter[str | None] = Counter()
    with pool:
        reading = read_sources(sources, text_column=config.text_column, layout=config.layout)
        for source_number, (reader, documents) in enumerate(reading):
            for number, part in enumerate(_parts(documents)):
                pool.make(part, building / f"{source_number:05d}-{number:05d}")
            layouts[reader.found_layout] += 1
    if config.layout == "auto":
        for layout, what in (("blank-lines", "blank lines separate the documents"), ("lines", "each line is a document")):
            if count := layouts[layout]:
                progress.note(f"{what} in {count} plain text source{'s' * (count > 1)} (--layout changes that)")


def merge_corpora(folders: Sequence[Path], output_dir: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Merge corpora into the one that their sources would have given together; returns the content of meta.json.

    Raises UsageError where they differ in their tokenizer or in how they were built.
    """
    metas = [read_meta(folder) for folder in folders]
    first = metas[0]
    for folder, meta in zip(folders, metas, strict=True):
        for key in ("format", "tokenizer", *asdict(CorpusConfig())):
            if meta[key] != first[key]:
                what = f"the corpora differ in {key}: {first[key]!r} in {folders[0]}, {meta[key]!r} in {folder}"
                raise UsageError(what, hint="build them with the same tokenizer and options")
    plan = {key: value for key, value in first.items() if key not in (*SPLITS, "documents", "hashes", "sources")}
    plan["sources"] = [source for meta in metas for source in meta["sources"]]
    merging = {**plan, "merged": [str(folder.resolve()) for folder in folders]}
    output = _prepare(output_dir, merging, overwrite, folders)
    counts = {name: sum(meta["documents"][name] for meta in metas) for name in first["documents"]}
    sources = offsets_of(np.array([len(meta["sources"]) for meta in metas])).tolist()
    shards = [
        (begin + shard["source"], folder / shard["name"])
        for folder, meta, begin in zip(folders, metas, sources)
        for split in SPLITS
        for shard in meta[split]["shards"]
    ]
    with _open(output, merging):
        return _finish(shards, plan, counts, Tokenizer.load(folders[0]), output_dir)


def read_meta(folder: Path) -> dict[str, Any]:
    """The content of a corpus's meta.json. Raises UsageError for a folder without a corpus, or with an unfinished one."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        unfinished = (folder / _BUILDING).is_dir()
        what = "the corpus is not finished" if unfinished else "the folder holds no corpus: there is no meta.json"
        hint = "repeat its command" if unfinished else "make one: bertkit corpus build TEXT... --tokenizer T --output-dir C"
        raise UsageError(what, where=str(folder), hint=hint) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"meta.json cannot be read: {error}", where=str(folder)) from None
    if not isinstance(meta, dict) or meta.get("format") != _FORMAT:
        hint = "name another folder, or delete this one and build the corpus again"
        raise UsageError(f"meta.json is not that of a corpus of format {_FORMAT}", where=str(folder), hint=hint)
    return meta


# --- the folder ------------------------------------------------------------------------------------------------------------


def _is_finished(folder: Path) -> bool | None:
    if _plan_of(folder / _BUILDING) is not None:
        return False
    if (folder / META).exists():
        return bool(read_meta(folder))  # raises for one that is no corpus's
    if [path.name for path in folder.rglob("*")] == [_BUILDING] and (folder / _BUILDING).is_dir():
        return False  # a kill right at the start leaves it empty
    return None


_PARTS = re.compile(rf"{META}|{_BUILDING}(\.done)?|({'|'.join(SPLITS)})-\d{{5,}}|{TOKENIZER.parts.pattern}")
CORPUS = Kind("corpus", _is_finished, _PARTS)


def _prepare(folder: Path, plan: dict[str, Any], overwrite: bool, reads: Sequence[str | Path]) -> OutputFolder:
    """The output folder of a corpus. Raises UsageError where it holds an unfinished one that cannot be resumed."""
    output = OutputFolder.prepare(folder, CORPUS, resume=True, overwrite=overwrite, reads=reads)
    begun = _plan_of(folder / _BUILDING) if output.resumes else None
    if begun is not None:
        hint = "give another --output-dir, or --overwrite, which moves it aside"
        if begun != json.loads(json.dumps(plan)):
            what = "the output folder holds an unfinished corpus of other text, options or tokenizer"
            raise UsageError(what, where=str(folder), hint=hint)
        if any(source["name"] == "-" for source in plan["sources"]):
            raise UsageError("what came from the standard input cannot be resumed", where=str(folder), hint=hint)
    return output


@contextmanager
def _open(output: OutputFolder, plan: dict[str, Any]) -> Iterator[Path]:
    """Hold the output folder; gives the folder of the parts in it, with the plan in that."""
    building = output.path / _BUILDING
    with output.open():
        if _plan_of(building) is not None:
            progress.note(f"going on: {len(_parts_in(building))} parts are done")
        else:
            with disk_errors(building):
                building.mkdir(exist_ok=True)
                write_json(building / _PLAN, plan)
        yield building


def _plan_of(building: Path) -> dict[str, Any] | None:
    """The plan of a corpus that is being built; None where there is none, and another's folder may have this name."""
    try:
        plan = json.loads((building / _PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return plan if isinstance(plan, dict) and plan.get("format") == _FORMAT else None


def _finish(
    shards: Sequence[tuple[int, Path]],
    plan: dict[str, Any],
    counts: dict[str, int],
    tokenizer: Tokenizer,
    output_dir: Path,
) -> dict[str, Any]:
    """Write the shards, given with the number of their source, without duplicates; then the tokenizer, and meta.json last.

    Raises DataError where no document is left.
    """
    by_shard = [np.asarray(Shard.load(folder).hashes) for _, folder in shards]
    hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *by_shard])
    if not len(hashes):
        what = f"all {counts['read']} documents have fewer than {plan['min_tokens']} tokens"
        raise DataError(what, where=str(output_dir), hint="lower --min-tokens, or see what --layout makes a document")
    bounds = offsets_of(np.array(list(map(len, by_shard)))).tolist()
    is_first = np.zeros(len(hashes), dtype=bool)
    is_first[np.unique(hashes, return_index=True)[1]] = True
    held_out = hashes % np.uint64(10**6) < np.uint64(round(plan["held_out"] * 10**6))
    written: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    with disk_errors(output_dir):
        for (source, folder), begin, end in zip(shards, bounds[:-1], bounds[1:], strict=True):
            shard = Shard.load(folder)
            for split, chosen in zip(SPLITS, (is_first & ~held_out, is_first & held_out), strict=True):
                if len(rows := np.flatnonzero(chosen[begin:end])):
                    taken = shard.take(rows)
                    name = f"{split}-{len(written[split]):05d}"
                    taken.save(output_dir / name)
                    written[split].append({"name": name, "source": source, **taken.counts()})
        meta = {**plan, "documents": {**counts, "duplicates": counts["duplicates"] + int((~is_first).sum())}}
        meta["hashes"] = f"{np.bitwise_xor.reduce(hashes[is_first]):016x}"  # of all text: resuming a run compares it
        for split in SPLITS:
            totals = {name: sum(shard[name] for shard in written[split]) for name in ("documents", "sentences", "tokens")}
            meta[split] = {**totals, "shards": written[split]}
        tokenizer.save(output_dir)
        write_json(output_dir / META, meta)
        done = (output_dir / _BUILDING).rename(output_dir / f"{_BUILDING}.done")  # a kill from here on leaves a whole corpus
        shutil.rmtree(done)
    return meta


def _lies_in(folder: Path, path: Path) -> bool:
    """Whether a path lies in a folder, or in what --overwrite made of one."""
    around = map(str, path.parents)
    return any(str(folder) in (parent, MOVED_ASIDE.sub("", parent)) for parent in around)


def _parts_in(building: Path) -> list[Path]:
    """The finished parts, in the order of their sources."""
    named = [(match, path) for path in building.iterdir() if (match := _PART_NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named, key=lambda pair: (int(pair[0][1]), int(pair[0][2])))]


def _modified(source: Source) -> dict[str, int]:
    return {"modified": os.stat(source.name).st_mtime_ns} if source.size else {}


def _without_times(plan: dict[str, Any]) -> dict[str, Any]:
    sources = [{key: value for key, value in source.items() if key != "modified"} for source in plan["sources"]]
    return {**plan, "sources": sources}


# --- parts -----------------------------------------------------------------------------------------------------------------


def _parts(documents: Iterable[Document]) -> Iterator[list[list[str]]]:
    """The documents' lines in parts of PART characters or a little more."""
    part: list[list[str]] = []
    size = 0
    for document in documents:
        part.append(document.lines)
        size += sum(map(len, document.lines))
        if size >= PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def make_part(documents: Sequence[Sequence[str]], tokenizer: Tokenizer, config: CorpusConfig) -> Shard:
    """Documents, given as their lines, as a shard: without sentences of no token and documents of too few."""
    split = split_sentences if config.sentences == "split" else lambda line: [line]
    sentences = [[sentence for line in lines for sentence in split(line)] for lines in documents]
    numbers = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    pieces, begins_word = tokens_and_words([*chain.from_iterable(sentences)], tokenizer, config.words)
    of_document = np.repeat(np.arange(len(documents)), numbers)
    tokens = np.bincount(of_document, pieces.lengths, minlength=len(documents))
    kept = tokens >= config.min_tokens
    rows = np.flatnonzero((pieces.lengths > 0) & kept[of_document])
    begins_word = begins_word[ranges(pieces.offsets[rows], pieces.lengths[rows])]
    pieces = pieces.take(rows)
    numbers = np.bincount(of_document[rows], minlength=len(documents))[kept]
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
    hashes = [int.from_bytes(blake2b("\n".join(lines).encode(), digest_size=8).digest(), "little") for lines in documents]
    return Shard(
        input_ids=pieces.values.astype(dtype),
        word_starts=np.packbits(begins_word),
        sentences=pieces.offsets,
        documents=offsets_of(numbers),
        hashes=np.array(hashes, dtype=np.uint64)[kept],
    )


class _Pool:
    """Makes parts, in processes of their own where there are several; a part that is there already is left as it is."""

    def __init__(self, tokenizer: Path, config: CorpusConfig, num_processes: int) -> None:
        self.pending: deque[Future[None]] = deque()
        self.max_pending = num_processes + 1  # parts in memory, beside the one that is read
        self.executor: ProcessPoolExecutor | None = None
        if num_processes > 1:
            context = get_context("spawn")
            self.executor = ProcessPoolExecutor(num_processes, context, initializer=_start_worker, initargs=(tokenizer, config))
        else:
            _set_up(tokenizer, config)

    def make(self, documents: list[list[str]], folder: Path) -> None:
        if folder.is_dir():
            return
        if self.executor is None:
            _write_part(documents, folder)
            return
        self.pending.append(self.executor.submit(_write_part, documents, folder))
        while len(self.pending) > self.max_pending:
            self._wait_for_oldest()

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while kind is None and self.pending:
                self._wait_for_oldest()
        finally:
            if self.executor is not None:
                self.executor.shutdown(cancel_futures=True)

    def _wait_for_oldest(self) -> None:
        try:
            self.pending.popleft().result()
        except BrokenProcessPool:
            hint = "repeat the command, which resumes, with fewer --num-processes"
            raise MachineError("a worker process was killed, perhaps for lack of memory", hint=hint) from None


_worker: dict[str, Any] = {}  # the tokenizer and config of this process


def _start_worker(tokenizer: Path, config: CorpusConfig) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is one process per core already
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _set_up(tokenizer, config)


def _exit_with_parent() -> None:
    """A killed parent leaves its workers waiting, and what they still write would meet the next build's."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _set_up(tokenizer: Path, config: CorpusConfig) -> None:
    if config.words == "jieba":
        load_jieba()
    _worker.update(tokenizer=Tokenizer.load(tokenizer), config=config)


def _write_part(documents: list[list[str]], folder: Path) -> None:
    shard = make_part(documents, _worker["tokenizer"], _worker["config"])
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.unfinished")
    with disk_errors(folder):
        shard.save(aside)
        counts = {"read": len(documents), "short": len(documents) - shard.num_documents}
        (aside / _COUNTS).write_text(json.dumps(counts), encoding="utf-8")
        if folder.is_dir():  # a worker of a killed build has made the same
            shutil.rmtree(aside)
        else:
            os.replace(aside, folder)
