"""The model that is pre-trained for docs/results.md: scores next to a unigram baseline, filled masks, loss curves.

`make results` runs it: the commands below, one after another. Each is skipped if its output exists, and resumes where it was
stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from bertkit.files import read_json
from bertkit.runs.pretraining.pretrain import UNIGRAM
from scripts import markdown
from scripts.provenance import RESULTS, ROOT
from scripts.results.command_lines import DATA, SEED, execute, run_commands

NAME = "pretraining"
TEXT = f"{DATA}/text-en"
FOLDER = f"runs/results/{NAME}"
MODEL, RANDOM, CONTINUED = f"{FOLDER}/model", f"{FOLDER}/random", f"{FOLDER}/continued"
OWN_TEXT = "recipes/data/helpdesk/text"
CORPUS = f"{FOLDER}/corpus"
# the file that a command makes -> the command
CORPUS_COMMANDS = {
    f"{FOLDER}/tokenizer/vocab.txt": f"bertkit tokenizer train {TEXT} --vocab-size 16384 --output-dir {FOLDER}/tokenizer",
    f"{CORPUS}/meta.json": f"bertkit corpus build {TEXT} --tokenizer {FOLDER}/tokenizer --validation 1% --output-dir {CORPUS}",
}
COMMANDS = {
    **CORPUS_COMMANDS,
    f"{MODEL}/README.md": f"bertkit pretrain {CORPUS} --model-size mini --hours 1.6667 --batch-size 64 "
    f"--learning-rate 1e-3 --warmup-ratio 0.1 --dropout 0 --output-dir {MODEL}",
    # the same model with random weights: one step at a learning rate of 0
    f"{RANDOM}/README.md": f"bertkit pretrain {CORPUS} --model-size mini --max-steps 1 --learning-rate 0 --output-dir {RANDOM}",
    # continued pre-training on the text of the embedded help desk
    f"{FOLDER}/own_corpus/meta.json": f"bertkit corpus build {OWN_TEXT} --tokenizer {MODEL} --validation 10% "
    f"--output-dir {FOLDER}/own_corpus",
    f"{CONTINUED}/README.md": f"bertkit pretrain {FOLDER}/own_corpus --model {MODEL} --max-length 64 --batch-size 32 "
    f"--learning-rate 1e-3 --max-steps 2000 --output-dir {CONTINUED}",
}
EVALUATE, PREDICT = f"bertkit eval {MODEL} --json", f"bertkit predict {MODEL} --top-k 3"
LINES = (
    "The [MASK] was written by a famous author.",
    "This is the worst [MASK] I have ever seen.",
    "He opened the [MASK] and went into the house.",
    "She was born in [MASK], far away from home.",
    "The actors are great, but the [MASK] is boring.",
)
POINTS = 150  # of the training loss in the picture


def commands() -> list[str]:
    """The command lines, as a user types them."""
    shown = " ".join(f"'{line}'" for line in LINES)
    return [*COMMANDS.values(), EVALUATE, f"printf '%s\\n' {shown} | {PREDICT}"]


def make_corpus() -> None:
    """Train the tokenizer and build the corpus where they are missing, for others that train on them."""
    for made, line in CORPUS_COMMANDS.items():
        if not (ROOT / made).is_file():
            execute(line, SEED)


def measure(*, force: bool) -> dict[str, Any]:
    """What results/pretraining.json keeps; its picture is written beside it."""
    made_by = run_commands(COMMANDS, ROOT / FOLDER, force=force)
    scores = json.loads(execute(EVALUATE, SEED))
    fills = [json.loads(line) for line in execute(PREDICT, SEED, stdin="\n".join(LINES) + "\n").splitlines()]
    run = read_json(ROOT / MODEL / "run.json")
    log = [json.loads(line) for line in (ROOT / MODEL / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    meta = read_json(ROOT / CORPUS / "meta.json")
    counts = ("documents", "sentences", "tokens")
    values = {
        "name": NAME,
        "command": commands(),
        **made_by[f"{MODEL}/README.md"]["origin"],
        "seeds": [SEED],
        "model": {"name": "fresh weights, 4 layers of 256"},
        "training": run["training"],
        "corpus": {split: {name: meta[split][name] for name in counts} for split in ("train", "validation")},
        "vocab_size": meta["tokenizer"]["vocab_size"],
        "steps": {"best": run["best"]["step"], "last": run["last"]["step"]},
        "seconds": {str(SEED): run["seconds"]},
        "scores": scores,
        "unigram": run["baselines"][UNIGRAM],
        "fills": fills,
        **course(log),
    }
    (RESULTS / f"{NAME}.svg").write_text(draw(values), encoding="utf-8")
    return values


def course(log: Iterable[Mapping[str, float]]) -> dict[str, list[list[float]]]:
    """The training loss, masked tokens and next sentences together, as means of stretches; and every held-out score."""
    training = [(event["step"], event["loss"]) for event in log if "loss" in event]
    held_out = [event for event in log if "validation/mlm_loss" in event]
    stretch = max(1, math.ceil(len(training) / POINTS))
    parts = [training[at : at + stretch] for at in range(0, len(training), stretch)]
    return {
        "training_loss": [[part[-1][0], round(sum(loss for _, loss in part) / len(part), 4)] for part in parts],
        "held_out": [
            [event["step"], round(event["validation/mlm_loss"], 4), round(event["validation/nsp_accuracy"], 4)]
            for event in held_out
        ],
    }


# --- for docs/results.md ---------------------------------------------------------------------------------------------------


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/results.md: the picture, the scores and the filled masks."""
    scores, steps = values["scores"], values["steps"]
    loss, corpus = scores["validation/mlm_loss"], values["corpus"]
    rows = [
        ("masked-token loss, nats", f"**{loss:.3f}**"),
        ("the same of a unigram model", f"{values['unigram']:.3f}"),
        ("difference", f"{values['unigram'] - loss:.3f}"),
        ("perplexity", f"{scores['validation/perplexity']:.1f}"),
        ("masked-token accuracy, in percent", f"{100 * scores['validation/mlm_accuracy']:.1f}"),
        ("next-sentence accuracy, in percent (chance: 50)", f"{100 * scores['validation/nsp_accuracy']:.1f}"),
    ]
    lines = [
        f"![Loss over the steps](../results/{NAME}.svg)",
        "",
        f"{corpus['train']['tokens'] / 1e6:.1f} million tokens of film reviews and novels, a vocabulary of "
        f"{values['vocab_size']} learned from them, {steps['last']} steps; held out: {corpus['validation']['documents']} "
        "documents. Segments that are not next come from another document of the same source file.",
        "",
        "| held out | |",
        "| --- | ---: |",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        "| text | most probable words |",
        "| --- | --- |",
        *(f"| {row['text']} | {_likeliest(row['fills'][0])} |" for row in values["fills"]),
    ]
    return markdown.block([values], lines)


def _likeliest(fills: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{fill['token']} {100 * fill['probability']:.0f}%" for fill in fills)


WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 320, 50, 40, 16
COLOURS = {"training, masked tokens and next sentences": "#9ab", "held out, masked tokens": "#c33"}


def draw(values: Mapping[str, Any]) -> str:
    """The course of the training as an SVG."""
    held_out = [(step, loss) for step, loss, _ in values["held_out"]]
    curves = dict(zip(COLOURS, (values["training_loss"], held_out), strict=True))
    last = max(step for points in curves.values() for step, _ in points)
    highest = math.ceil(max([values["unigram"], *(loss for points in curves.values() for _, loss in points)]))

    def place(step: float, loss: float) -> tuple[float, float]:
        across, up = (WIDTH - LEFT - 10) / last, (HEIGHT - TOP - BOTTOM) / highest
        return round(LEFT + step * across, 1), round(HEIGHT - BOTTOM - loss * up, 1)

    def line(points: Sequence[Sequence[float]], colour: str, more: str = "") -> str:
        path = " ".join(f"{x},{y}" for x, y in (place(step, loss) for step, loss in points))
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{more}/>'

    def text(x: float, y: float, content: str, colour: str = "#555", anchor: str = "start") -> str:
        return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{escape(content)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for loss in range(highest + 1):
        y = place(0, loss)[1]
        parts += [line([(0, loss), (last, loss)], "#eee"), text(LEFT - 6, y + 4, str(loss), anchor="end")]
    for quarter in range(5):
        step = last * quarter // 4
        parts.append(text(place(step, 0)[0], HEIGHT - BOTTOM + 16, str(step), anchor="end" if quarter == 4 else "middle"))
    parts.append(text(LEFT, HEIGHT - 6, "loss in nats, by optimizer step"))
    parts.append(line([(0, values["unigram"]), (last, values["unigram"])], "#888", ' stroke-dasharray="4 4"'))
    parts.append(text(WIDTH - 12, place(0, values["unigram"])[1] - 5, "unigram model", anchor="end"))
    for number, (name, points) in enumerate(curves.items()):
        parts += [line(points, COLOURS[name]), text(LEFT + 12, HEIGHT - BOTTOM - 26 + 16 * number, name, COLOURS[name])]
    parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="#c33"/>' for x, y in (place(*point) for point in held_out)]
    return "\n".join([*parts, "</svg>", ""])
