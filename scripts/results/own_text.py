"""The gain from continued pre-training on the user's own text, with and without an extended vocabulary: how the text is split,
the MLM loss per character after equal time, and a task's score.

`make results` runs it: the commands below, one after another. Each is skipped if its output exists, and resumes where it was
stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.files import read_json
from scripts import markdown
from scripts.provenance import ROOT
from scripts.results import comparison
from scripts.results.command_lines import DATA, filled_in, run_commands

NAME = "own_text"
SEEDS = 5
GENERAL_HOURS = 0.5  # of pre-training on general text
OWN_HOURS = 0.1  # of continued pre-training, with each vocabulary
FOLDER = f"runs/results/{NAME}"
ORIGINS = ("before", "old tokens", "new tokens")
PAIRS = (ORIGINS[:2], ORIGINS[::2], ORIGINS[1:])
SPLIT = ["text", "vocabulary", "tokens per word", "[UNK] per 10,000", "steps", "MLM loss, nats a token", "nats a character"]
SCORED = ["task", "model", "score, in percent", "gain over before", "gain of the new tokens"]


@dataclass(frozen=True)
class Language:
    """General text for a model to start from, text of one's own, and a task."""

    name: str
    general: str
    vocab_size: int
    text: str
    task: str

    def folder(self, origin: str) -> str:
        return f"{FOLDER}/{self.name}/{origin.replace(' ', '_')}"

    def task_runs(self, origin: str) -> str:
        return f"{self.folder(origin)}/task"

    def commands(self) -> dict[str, str]:
        """What is there when a command has done its work -> the command."""
        before, extended = self.folder("before"), f"{self.folder('new tokens')}/extended"
        model = f"{before}/model"
        made = {
            f"{before}/tokenizer/vocab.txt": f"bertkit tokenizer train {self.general} --vocab-size {self.vocab_size} "
            f"--output-dir {before}/tokenizer",
            f"{before}/corpus/meta.json": f"bertkit corpus build {self.general} --tokenizer {before}/tokenizer "
            f"--validation 1% --output-dir {before}/corpus",
            f"{model}/README.md": f"bertkit pretrain {before}/corpus --model-size mini --preset budget --batch-size 32 "
            f"--hours {GENERAL_HOURS} --output-dir {model}",
            f"{extended}/config.json": f"bertkit tokenizer extend {model} {self.text} --add 1000 --output-dir {extended}",
        }
        for origin, start in {"old tokens": model, "new tokens": extended}.items():
            folder = self.folder(origin)
            build = f"bertkit corpus build {self.text} --tokenizer {start} --validation 10% --output-dir {folder}/corpus"
            how = f"--hours {OWN_HOURS} --objective mlm --max-length 64 --batch-size 32 --learning-rate 1e-3"
            pretrain = f"bertkit pretrain {folder}/corpus --model {start} {how} --output-dir {folder}/model"
            made |= {f"{folder}/corpus/meta.json": build, f"{folder}/model/README.md": pretrain}
        for origin in ORIGINS:
            runs, start = self.task_runs(origin), f"{self.folder(origin)}/model"
            made[f"{runs}/seed-{SEEDS}/README.md"] = (
                f"bertkit finetune {self.task} --model {start} --seeds {SEEDS} --output-dir {runs}"
            )
        return made


LANGUAGES = (
    Language("English", f"{DATA}/text-en", 8192, "recipes/data/helpdesk/text", "helpdesk --learning-rate 5e-4"),
    Language(
        "Chinese",
        f"{DATA}/text-zh",
        4096,
        f"{DATA}/ChnSentiCorp/train.tsv.gz --text-column text_a",
        f"chnsenticorp --data {DATA}/ChnSentiCorp --max-train-samples 1000 --max-length 128 --learning-rate 3e-4",
    ),
)


def commands() -> list[str]:
    """The command lines, as a user types them."""
    lines: list[str] = []
    for each in LANGUAGES:
        lines += each.commands().values()
        lines += [comparison.command(*map(each.task_runs, pair)) for pair in PAIRS]
    return lines


def measure(*, force: bool) -> dict[str, Any]:
    """What results/own_text.json keeps."""
    languages = {}
    for each in LANGUAGES:
        made_by = run_commands(each.commands(), ROOT / FOLDER / each.name, force=force)
        characters = _held_out_characters(each)
        languages[each.name] = {
            "vocabularies": {origin: _measure_vocabulary(each, origin, characters) for origin in ORIGINS[1:]},
            "task": _compare(each),
        }
    origin = next(iter(made_by.values()))["origin"] | {"model": {"name": "fresh weights, 4 layers of 256"}}
    return {"name": NAME, "command": commands(), **origin, "seeds": [*range(1, SEEDS + 1)], "languages": languages}


def _measure_vocabulary(each: Language, origin: str, characters: int) -> dict[str, float]:
    from bertkit.corpus.directory import read_meta
    from bertkit.corpus.texts import TextSources
    from bertkit.text.tokenizer import Tokenizer
    from bertkit.text.tokenizer_extension import Fit, count_words

    folder = ROOT / each.folder(origin)
    text, *options = filled_in(each.text.split())
    tokenizer = Tokenizer.load(folder / "corpus")
    texts = TextSources([str(ROOT / text)], text_column=options[1] if options else "text")
    fit = Fit.of(tokenizer, count_words(texts, tokenizer))
    run = read_json(folder / "model" / "run.json")
    loss = run["best"]["scores"]["validation/mlm_loss"]
    pieces = read_meta(folder / "corpus")["validation"]["tokens"]
    values = {"steps": run["total_steps"], "mlm_loss": loss, "loss_per_character": loss * pieces / characters}
    return {"tokens": tokenizer.vocab_size, **fit._asdict(), **values}


def _held_out_characters(each: Language) -> int:
    """Of the held-out documents, which are the same whatever the tokenizer: without white space, [UNK] as one."""
    from bertkit.corpus.directory import read_meta
    from bertkit.corpus.shard import Shard
    from bertkit.text.tokenizer import Tokenizer

    corpus = ROOT / each.folder(ORIGINS[-1]) / "corpus"
    tokenizer = Tokenizer.load(corpus)
    lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for token, number in tokenizer.vocab.items():
        lengths[number] = 1 if number == tokenizer.unk_token_id else len(token.removeprefix("##"))
    shards = read_meta(corpus)["validation"]["shards"]
    return int(sum(lengths[Shard.load(corpus / shard["name"]).input_ids].sum() for shard in shards))


def _compare(each: Language) -> dict[str, Any]:
    """The task's score from each model, and what one gains over another, with 95% intervals paired over rows and seeds."""
    scores: dict[str, float] = {}
    gains = {}
    for pair in PAIRS:
        compared = comparison.compare(*map(each.task_runs, pair))
        gains[" -> ".join(pair)] = {name: compared[name] for name in ("difference", "interval")}
        scores |= dict(zip(pair, compared["scores"], strict=True))
    return {"score": compared["score"], "scores": scores, "gains": gains}


# --- for docs/results.md ---------------------------------------------------------------------------------------------------


def split_rows(values: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table under SPLIT."""
    return [
        [
            f"{language}, {origin}",
            f"{found['tokens']:,}",
            f"{found['pieces_per_word']:.3f}",
            f"{10_000 * found['unknown']:.1f}",
            str(found["steps"]),
            f"{found['mlm_loss']:.3f}",
            f"**{found['loss_per_character']:.3f}**",
        ]
        for language, each in values["languages"].items()
        for origin, found in each["vocabularies"].items()
    ]


def task_rows(values: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table under SCORED."""
    rows = []
    for each, found in zip(LANGUAGES, values["languages"].values(), strict=True):
        gains = {name: comparison.difference_text(gain) for name, gain in found["task"]["gains"].items()}
        for origin, score in found["task"]["scores"].items():
            own = [
                gains.get(f"{ORIGINS[0]} -> {origin}", "-"),
                gains[" -> ".join(ORIGINS[1:])] if origin == ORIGINS[-1] else "-",
            ]
            rows.append([f"{each.task.split()[0]}, {found['task']['score']}", origin, f"{100 * score:.1f}", *own])
    return rows


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/results.md."""
    split = markdown.table(SPLIT, split_rows(values), numbers_from=1)
    return markdown.block([values], split, markdown.table(SCORED, task_rows(values), numbers_from=2))
