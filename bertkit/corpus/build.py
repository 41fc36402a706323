"""From plain text to a corpus: sentences, tokens, shards; in several processes, in bounded memory, resumable.

Each source is split into parts of whole documents. A part is tokenized on its own and written atomically; at the end duplicates
are dropped, and each part becomes a shard of the train split and one of the validation split. So neither the number of
processes, nor a kill, nor merging corpora built separately changes a byte.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b, sha256
from itertools import chain
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import progress
from bertkit.corpus.directory import BUILDING, FORMAT, META, SPLITS, opened, parts_in, prepare, read_meta
from bertkit.corpus.sentences import split_sentences
from bertkit.corpus.shard import CORPUS_FILES, Shard
from bertkit.corpus.texts import read_sources, report_left_out, sources_of
from bertkit.corpus.words import tokens_and_words
from bertkit.errors import DataError, MachineError, UsageError, plural
from bertkit.features import offsets_of, ranges
from bertkit.files import (
    MOVED_ASIDE,
    disk_errors,
    json_text,
    remove_folder,
    sha256_of,
    write_files,
    write_json,
)
from bertkit.manifest import MANIFEST, Manifest, verify, write_folder
from bertkit.readers.documents import Document, Source
from bertkit.readers.faults import Faults
from bertkit.readers.words import load_jieba
from bertkit.text.tokenizer import Tokenizer

PART = 2**24  # characters of text in a part, to the end of a document
_COUNTS = "counts.json"


@dataclass(frozen=True)
class CorpusConfig:
    """How text becomes a corpus.

    sentences: "split" splits lines by rule, "lines" takes each line as one sentence. layout, text_column: as in `Documents`.
    min_tokens: shorter documents are dropped. held_out: the share of documents in the validation split, chosen by a hash of
    their text. words: the words of whole-word masking, "basic" or "jieba" (corpus/words.py).
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
    include: Sequence[str] = (),
    encoding: str | None = None,
    on_error: str = "fail",
    max_file_size: float | None = None,
) -> dict[str, Any]:
    """Build a corpus from files, folders and globs of text; returns the content of meta.json.

    include: patterns of more files in folders. encoding: of text that is not UTF-8. on_error: what to do about what cannot be
    read, of `faults.POLICIES`. max_file_size: gigabytes that a packed file may unpack to. An unfinished corpus is resumed.
    Raises UsageError for a folder with other content, DataError for bad text.
    """
    sources = sources_of(names, include=include, text_column=config.text_column)
    sources = _without_output(sources, names, output_dir.resolve())
    faults = Faults(on_error)
    if config.words == "jieba":
        load_jieba()
    loaded = Tokenizer.load(tokenizer)
    plan: dict[str, Any] = {
        "format": FORMAT,
        "tokenizer": {name: getattr(loaded, name) for name in ("fingerprint", "vocab_hash", "vocab_size")},
        **asdict(config),
        "sources": [{"name": source.name, "bytes": source.size} for source in sources],
    }
    reads = [str(tokenizer), *(source.name for source in sources if source.size)]
    dated = [{**each, "modified": os.stat(each["name"]).st_mtime_ns} if each["bytes"] else each for each in plan["sources"]]
    begun = {**plan, "sources": dated, "on_error": on_error}  # a file that has changed since is other text
    begun |= {"encoding": encoding} if encoding else {}
    with opened(prepare(output_dir, begun, overwrite, reads), begun) as building:
        with _part_writer(tokenizer, config, num_processes) as write_part:
            how = {"encoding": encoding, "max_file_size": max_file_size}
            _make_parts(sources, building, write_part, config, faults, how)
        report_left_out(faults)
        parts = parts_in(building)
        if not parts:
            raise DataError("the text has no documents", where=", ".join(names))
        part_counts = [json.loads((path / _COUNTS).read_text(encoding="utf-8")) for _, path in parts]
        counts = {name: sum(part[name] for part in part_counts) for name in ("read", "short")} | {"duplicates": 0}
        return _finish(parts, plan, counts, loaded, output_dir)


def _without_output(sources: list[Source], names: Sequence[str], output_dir: Path) -> list[Source]:
    """The sources of text, without those in an output folder among them, or in what --overwrite moved aside."""
    if not any(output_dir.is_relative_to(Path(name).resolve()) for name in names if Path(name).is_dir()):
        return sources

    def is_output(path: Path) -> bool:
        return any(str(output_dir) in (parent, MOVED_ASIDE.sub("", parent)) for parent in map(str, path.parents))

    return [source for source in sources if not is_output(Path(source.name).resolve())]


def _make_parts(
    sources: Sequence[Source],
    building: Path,
    write_part: WritePart,
    config: CorpusConfig,
    faults: Faults,
    how: Mapping[str, Any],
) -> None:
    """Write each missing part of the sources, and report what separates their documents. how: keywords of Documents."""
    layouts: Counter[str | None] = Counter()
    how = {"text_column": config.text_column, "layout": config.layout, **how}
    reading = read_sources(sources, faults=faults, **how)
    for source_number, (reader, documents) in enumerate(reading):
        for number, part in enumerate(_parts(documents)):
            folder = building / f"{source_number:05d}-{number:05d}"
            if not _is_whole(folder):
                write_part(part, folder)
        layouts[reader.found_layout] += 1
    if config.layout == "auto":
        for layout, what in (("blank-lines", "blank lines separate the documents"), ("lines", "each line is a document")):
            if count := layouts[layout]:
                progress.note(f"{what} in {plural(count, 'plain text source')} (--layout changes that)")


def _is_whole(part: Path) -> bool:
    """Whether a part is there; a damaged one is deleted."""
    if not part.is_dir():
        return False
    try:
        verify(part, lambda name: True, CORPUS_FILES)
    except DataError as error:
        progress.warn(f"a part of the unfinished corpus is made again: {error}")
        remove_folder(part)
        return False
    return True


def merge_corpora(folders: Sequence[Path], output_dir: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Merge corpora: the result is that of one build of all their sources; returns the content of meta.json.

    Raises UsageError if they differ in their tokenizer or options.
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
    output = prepare(output_dir, merging, overwrite, folders)
    counts = {name: sum(meta["documents"][name] for meta in metas) for name in first["documents"]}
    sources = offsets_of(np.array([len(meta["sources"]) for meta in metas])).tolist()
    shards = [
        (begin + shard["source"], folder / shard["name"])
        for folder, meta, begin in zip(folders, metas, sources)
        for split in SPLITS
        for shard in meta[split]["shards"]
    ]
    with opened(output, merging):
        return _finish(shards, plan, counts, Tokenizer.load(folders[0]), output_dir)


def _finish(
    shards: Sequence[tuple[int, Path]],
    plan: dict[str, Any],
    counts: dict[str, int],
    tokenizer: Tokenizer,
    output_dir: Path,
) -> dict[str, Any]:
    """Write the shards, given with the number of their source, without duplicates; then the tokenizer, and meta.json last.

    Raises DataError if no document is left.
    """
    by_shard = [np.asarray(Shard.load(folder).hashes) for _, folder in shards]
    hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *by_shard])
    if not len(hashes):
        what = f"all {counts['read']} documents have fewer than {plan['min_tokens']} tokens"
        raise DataError(what, where=str(output_dir), hint="lower --min-tokens, or change --layout")
    bounds = offsets_of(np.array(list(map(len, by_shard)))).tolist()
    is_first = np.zeros(len(hashes), dtype=bool)
    is_first[np.unique(hashes, return_index=True)[1]] = True
    held_out = hashes % np.uint64(10**6) < np.uint64(round(plan["held_out"] * 10**6))
    written: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    of_shards: dict[str, str] = {}  # the sha256 of each one's own manifest
    with disk_errors(output_dir):
        for (source, folder), begin, end in zip(shards, bounds[:-1], bounds[1:], strict=True):
            shard = Shard.load(folder)
            for split, chosen in zip(SPLITS, (is_first & ~held_out, is_first & held_out), strict=True):
                if len(rows := np.flatnonzero(chosen[begin:end])):
                    taken = shard.take(rows)
                    name = f"{split}-{len(written[split]):05d}"
                    write_folder(output_dir / name, taken.save)
                    of_shards[f"{name}/{MANIFEST}"] = sha256_of(output_dir / name / MANIFEST)
                    written[split].append({"name": name, "source": source, **taken.counts()})
        meta = {**plan, "documents": {**counts, "duplicates": counts["duplicates"] + int((~is_first).sum())}}
        meta["hashes"] = f"{np.bitwise_xor.reduce(hashes[is_first]):016x}"  # of all text, which resuming a run compares
        for split in SPLITS:
            totals = {name: sum(shard[name] for shard in written[split]) for name in ("documents", "sentences", "tokens")}
            meta[split] = {**totals, "shards": written[split]}
        files = {**tokenizer.files(), META: json_text(meta)}
        of_files = {name: sha256(text.encode()).hexdigest() for name, text in files.items()}
        write_files(output_dir, {MANIFEST: Manifest(output_dir, {**of_shards, **of_files}).text, **files})
        remove_folder(output_dir / BUILDING)  # a kill from here on leaves a whole corpus
    return meta


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
    """The shard of documents, given as their lines; sentences without tokens and short documents are dropped."""
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


WritePart = Callable[[list[list[str]], Path], None]


@contextmanager
def _part_writer(tokenizer: Path, config: CorpusConfig, num_processes: int) -> Iterator[WritePart]:
    """A function that writes a part, in worker processes if there are several; all parts are written when the block ends."""
    if num_processes == 1:
        _set_up(tokenizer, config)
        yield _write_part
        return
    pending: deque[Future[None]] = deque()

    def submit(documents: list[list[str]], folder: Path) -> None:
        with _without_ctrl_c():  # in workers, which the first call starts: they end with this process
            pending.append(executor.submit(_write_part, documents, folder))
        wait_until(num_processes + 1)  # parts in memory, beside the one being read

    def wait_until(left: int) -> None:
        while len(pending) > left:
            pending.popleft().result()

    context, arguments = get_context("spawn"), (tokenizer, config)
    executor = ProcessPoolExecutor(num_processes, context, initializer=_start_worker, initargs=arguments)
    try:
        yield submit
        wait_until(0)
    except BrokenProcessPool:
        hint = "repeat the command with fewer --num-processes; it resumes"
        raise MachineError("a worker process was killed, perhaps for lack of memory", hint=hint) from None
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Delay SIGINT in this thread; a process that is started here never gets it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: dict[str, Any] = {}  # the tokenizer and config of this process


def _start_worker(tokenizer: Path, config: CorpusConfig) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per core already
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _set_up(tokenizer, config)


def _exit_with_parent() -> None:
    """Workers of a killed build would wait forever, and write parts while the next build does."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _set_up(tokenizer: Path, config: CorpusConfig) -> None:
    _worker.update(tokenizer=Tokenizer.load(tokenizer), config=config)


def _write_part(documents: list[list[str]], folder: Path) -> None:
    shard = make_part(documents, _worker["tokenizer"], _worker["config"])

    def write(aside: Path) -> None:
        shard.save(aside)
        write_json(aside / _COUNTS, {"read": len(documents), "short": len(documents) - len(shard.hashes)})

    write_folder(folder, write)
