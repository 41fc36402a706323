"""From plain text to a corpus: sentences, tokens, shards; in several processes, in bounded memory, resumable.

Each source is split into parts of whole documents. A part is tokenized on its own and written atomically; at the end duplicates
are dropped, and each part becomes a shard of the train split and one of the validation split (corpus/splits.py). So neither the
number of processes, nor a kill, nor merging corpora built separately changes a byte.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import progress
from bertkit.corpus.directory import FORMAT, META, SPLITS, opened, parts_in, prepare, read_metas
from bertkit.corpus.sentences import split_sentences
from bertkit.corpus.shard import CORPUS_FILES, Shard
from bertkit.corpus.splits import Decision, decide, write_splits
from bertkit.corpus.texts import TextOptions, read_sources, report_left_out, sources_of
from bertkit.corpus.words import tokens_and_words
from bertkit.corpus.workers import worker_processes
from bertkit.errors import DataError, UsageError, plural
from bertkit.features import offsets_of, ranges
from bertkit.files import MOVED_ASIDE, remove_folder, sha256_of, write_json
from bertkit.manifest import verify, write_folder
from bertkit.readers.documents import Document
from bertkit.readers.faults import Faults
from bertkit.readers.remote import path_of
from bertkit.readers.text_sources import Source
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import load_jieba

PART = 2**24  # characters of text in a part, which ends with a whole document
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
    options: TextOptions = TextOptions(),
    *,
    num_processes: int = 1,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Build a corpus from files, folders and globs of text; returns the content of meta.json.

    An unfinished corpus is resumed. Raises UsageError for a folder with other content, DataError for bad text.
    """
    sources = sources_of(names, options, config.text_column)
    sources = _without_output(sources, names, output_dir.resolve())
    faults = Faults(options.on_error)
    if config.words == "jieba":
        load_jieba()
    loaded = Tokenizer.load(tokenizer)
    plan: dict[str, Any] = {
        "format": FORMAT,
        "tokenizer": {name: getattr(loaded, name) for name in ("fingerprint", "vocab_hash", "vocab_size")},
        **asdict(config),
        "sources": [{"name": source.name, "bytes": source.size} for source in sources],
    }
    reads = [tokenizer, *(path_of(source.name) for source in sources if source.version is not None)]
    versions = [{"modified": source.version} if source.version is not None else {} for source in sources]
    dated = [{**each, **version} for each, version in zip(plan["sources"], versions, strict=True)]
    begun = {**plan, "sources": dated, "on_error": options.on_error}  # a file that has changed since is a different text
    begun |= {"encoding": options.encoding} if options.encoding else {}
    output = prepare(output_dir, begun, overwrite, reads)
    with opened(output, begun) as building, worker_processes(num_processes, _set_up, tokenizer, config) as call_each:
        decided = Decision.read(building)
        missing = decided and decided.missing(building)
        if missing is None or missing:
            for _ in call_each(_write_part, _parts_to_make(sources, building, missing, config, options, faults)):
                pass
            report_left_out(faults)
        if decided is None:
            parts = parts_in(building)
            if not parts:
                raise DataError("the text has no documents", where=", ".join(names))
            part_counts = [json.loads((path / _COUNTS).read_text(encoding="utf-8")) for _, path in parts]
            counts = {name: sum(part[name] for part in part_counts) for name in ("read", "short")} | {"duplicates": 0}
            decided = decide(building, parts, counts, held_out=config.held_out, min_tokens=config.min_tokens)
        return write_splits(decided, plan, loaded, output_dir, call_each, own_parts=True)


def _without_output(sources: list[Source], names: Sequence[str], output_dir: Path) -> list[Source]:
    """The text sources, without files inside the output folder or in earlier output that --overwrite moved aside."""
    folders = [folder for folder in map(path_of, names) if folder.is_dir()]
    if not any(output_dir.is_relative_to(folder.resolve()) for folder in folders):
        return sources

    def is_output(path: Path) -> bool:
        return any(str(output_dir) in (parent, MOVED_ASIDE.sub("", parent)) for parent in map(str, path.parents))

    return [source for source in sources if not is_output(path_of(source.name).resolve())]


def _parts_to_make(
    sources: Sequence[Source],
    building: Path,
    wanted: Collection[str] | None,
    config: CorpusConfig,
    options: TextOptions,
    faults: Faults,
) -> Iterator[tuple[list[list[str]], Path]]:
    """The documents and the folder of each missing part; also reports what separates documents in plain text.

    wanted: names of the parts to make; None: all.
    """
    layouts: Counter[str | None] = Counter()
    reading = read_sources(sources, options, faults, text_column=config.text_column, layout=config.layout)
    for source_number, (reader, documents) in enumerate(reading):
        for number, part in enumerate(_parts(documents)):
            folder = building / f"{source_number:05d}-{number:05d}"
            if (wanted is None or folder.name in wanted) and not _is_whole(folder):
                yield part, folder
        layouts[reader.found_layout] += 1
    if config.layout == "auto":
        for layout, what in (("blank-lines", "blank lines separate the documents"), ("lines", "each line is a document")):
            if count := layouts[layout]:
                progress.note(f"{what} in {plural(count, 'plain text source')} (--layout changes that)")


def _is_whole(part: Path) -> bool:
    """Whether a part exists and is undamaged; a damaged one is deleted."""
    if not part.is_dir():
        return False
    try:
        verify(part, owner=CORPUS_FILES, now=True)  # a damaged one is built again now
    except DataError as error:
        progress.warn(f"rebuilding a part of the unfinished corpus: {error}")
        remove_folder(part)
        return False
    return True


def merge_corpora(
    folders: Sequence[Path], output_dir: Path, *, num_processes: int = 1, overwrite: bool = False
) -> dict[str, Any]:
    """Merge corpora, with the same result as one build of all their sources; returns the content of meta.json.

    An unfinished merge is resumed. Raises UsageError if they differ in their tokenizer or options.
    """
    metas = read_metas(folders)
    first = metas[0]
    for folder, meta in zip(folders, metas, strict=True):
        for key in ("format", *asdict(CorpusConfig())):
            if meta[key] != first[key]:
                what = f"the corpora differ in {key}: {first[key]!r} in {folders[0]}, {meta[key]!r} in {folder}"
                raise UsageError(what, hint="build them with the same tokenizer and options")
    plan = {key: value for key, value in first.items() if key not in (*SPLITS, "documents", "hashes", "sources")}
    plan["sources"] = [source for meta in metas for source in meta["sources"]]
    merging = {**plan, "corpora": [{"name": str(folder.resolve()), "sha256": sha256_of(folder / META)} for folder in folders]}
    output = prepare(output_dir, merging, overwrite, folders)
    counts = {name: sum(meta["documents"][name] for meta in metas) for name in first["documents"]}
    sources = offsets_of(np.array([len(meta["sources"]) for meta in metas])).tolist()
    shards = [
        (begin + shard["source"], folder.resolve() / shard["name"])
        for folder, meta, begin in zip(folders, metas, sources)
        for split in SPLITS
        for shard in meta[split]["shards"]
    ]
    with opened(output, merging) as building, worker_processes(min(num_processes, len(shards))) as call_each:
        decided = Decision.read(building)
        if decided is None:
            decided = decide(building, shards, counts, held_out=plan["held_out"], min_tokens=plan["min_tokens"])
        return write_splits(decided, plan, Tokenizer.load(folders[0]), output_dir, call_each, own_parts=False)


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
    """The shard of some documents, each given as its lines; sentences without tokens and short documents are dropped."""
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


_worker: dict[str, Any] = {}  # the tokenizer and config of this process


def _set_up(tokenizer: Path, config: CorpusConfig) -> None:
    _worker.update(tokenizer=Tokenizer.load(tokenizer), config=config)


def _write_part(documents: list[list[str]], folder: Path) -> None:
    shard = make_part(documents, _worker["tokenizer"], _worker["config"])

    def write(aside: Path) -> None:
        shard.save(aside)
        write_json(aside / _COUNTS, {"read": len(documents), "short": len(documents) - len(shard.hashes)})

    write_folder(folder, write)
