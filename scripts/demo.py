"""The demo: pre-trains a small model on the embedded help desk's text; then fine-tunes real weights on it for each kind of
task, evaluates them, and predicts.

It runs bertkit's commands as a user would type them, with fewer epochs than in the recipes. Run it with `make demo`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# recipe -> the questions for the trained model: options and standard input of `bertkit predict`
QUESTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "helpdesk": ((), "You took the money for the same lamp from my card two times."),
    "helpdesk_pairs": (
        (),
        '{"text": "Where is my parcel?", "text_pair": "I looked it up: it is with the carrier and comes tomorrow."}',
    ),
    "helpdesk_mentions": ((), "Grace paid $129 for the Quill e-reader on 12 March, order HD-5127."),
    "helpdesk_pages": (
        ("--question", "Which designer drew the fan?"),
        "The Halma floor fan weighs 910 grams and costs $49. Sara Lindqvist, who lives in Turku, gave it its form; it was "
        "photographed by Kenji Mori. Its warranty lasts three years, and an express delivery takes two days.",
    ),
}

# recipe -> epochs: enough to see each of them learn
EPOCHS = {"helpdesk": "3", "helpdesk_pairs": "3", "helpdesk_mentions": "2", "helpdesk_pages": "1"}

TEXT = "recipes/data/helpdesk/text"
PRETRAINED = "pretrained"  # the folder of the model that is pre-trained here
PRETRAINING = ("--model-size", "tiny", "--max-length", "64", "--batch-size", "32", "--learning-rate", "2e-3")
MASKED = "We are sorry for the [MASK] and are asking the carrier."


def bertkit(*arguments: str, stdin: str | None = None, capture: bool = False) -> str:
    """Run a command of bertkit, shown as it would be typed; returns its standard output if `capture`.

    Notes and progress bars go to the terminal. Raises SystemExit with its exit code when it fails.
    """
    piped = f"printf '%s\\n' {' '.join(shlex.quote(line) for line in stdin.splitlines())} | " if stdin else ""
    print(f"\n$ {piped}bertkit {shlex.join(arguments)}", flush=True)
    out = subprocess.PIPE if capture else None
    command = [sys.executable, "-m", "bertkit", *arguments]
    done = subprocess.run(command, cwd=ROOT, input=stdin, stdout=out, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout or ""


def clear(run: Path) -> bool:
    """Remove the run that an earlier demo left; whether there was one. bertkit refuses a folder with anything else."""
    try:
        left = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if ours := left["recipe"]["name"] in (*QUESTIONS, "pretrain"):
        shutil.rmtree(run)
    return ours


def pretrain(folder: str, steps: tuple[str, ...]) -> list[tuple[int, float]]:
    """From text to a model; returns the held-out losses of its masked tokens, by step."""
    tokenizer, corpus, run = (f"{folder}/{name}" for name in ("tokenizer", "corpus", PRETRAINED))
    if clear(ROOT / run):
        for made_by_it in (tokenizer, corpus):
            shutil.rmtree(ROOT / made_by_it, ignore_errors=True)
    bertkit("tokenizer", "train", TEXT, "--vocab-size", "2000", "--output-dir", tokenizer, "--overwrite")
    made = ("--tokenizer", tokenizer, "--validation", "10%", "--output-dir", corpus, "--overwrite")
    bertkit("corpus", "build", TEXT, *made)
    bertkit("pretrain", corpus, *PRETRAINING, *(steps or ("--max-steps", "400")), "--output-dir", run)
    bertkit("predict", run, "--format", "text", stdin=MASKED + "\n")
    events = [json.loads(line) for line in (ROOT / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(event["step"], event["validation/mlm_loss"]) for event in events if "validation/mlm_loss" in event]


def program() -> str:
    """How to call bertkit from the repository's folder."""
    script = Path(sys.executable).parent / "bertkit"
    if not script.is_file():
        return f"{sys.executable} -m bertkit"
    return str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else str(script)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="runs/demo", help="folder of the runs; those of an earlier demo are replaced")
    parser.add_argument("--max-steps", help="stop each training early")
    options = parser.parse_args()
    start = time.perf_counter()
    steps = ("--max-steps", options.max_steps) if options.max_steps else ()

    def announce(number: int, what: str) -> None:
        print(f"\n[{number} of {1 + len(QUESTIONS)}] {what}, after {time.perf_counter() - start:.0f} s", flush=True)

    announce(1, "pre-training")
    losses = pretrain(options.output_dir, steps)
    scores, seconds = {}, {}
    for number, recipe in enumerate(QUESTIONS, start=2):
        announce(number, recipe)
        begin = time.perf_counter()
        run = f"{options.output_dir}/{recipe}"
        clear(ROOT / run)
        bertkit("finetune", recipe, "--model", "minilm", "--output-dir", run, *(steps or ("--num-epochs", EPOCHS[recipe])))
        scores[recipe] = json.loads(bertkit("eval", run, "--split", "test", "--json", capture=True))
        seconds[recipe] = time.perf_counter() - begin
    for recipe, (question, text) in QUESTIONS.items():
        bertkit("predict", f"{options.output_dir}/{recipe}", *question, "--format", "text", stdin=text + "\n")

    from bertkit import progress
    from bertkit.runs.finetuning.baselines import baselines_of_data
    from bertkit.tasks.catalog import load_recipe

    team = {name.removeprefix("test/"): score for name, score in scores["helpdesk"].items()}
    to_beat = baselines_of_data(load_recipe("helpdesk").resolved(), "test")
    measured = {"fine-tuned MiniLM-L6": team, **(to_beat.scores() if to_beat is not None else {})}
    names = [name for name in team if all(name in each for each in measured.values())]
    print(flush=True)
    progress.table("pre-training", ["step", "held-out loss of masked tokens, nats"], losses)
    progress.table("helpdesk, test split", ["", *names], [[who, *(s[n] for n in names)] for who, s in measured.items()])
    # f1 before best_f1, whose threshold comes from the test split itself
    shown = {recipe: "test/f1" if "test/f1" in found else next(iter(found)) for recipe, found in scores.items()}
    rows = [[recipe, name, scores[recipe][name], round(seconds[recipe])] for recipe, name in shown.items()]
    progress.table("all four, test splits", ["recipe", "score", "value", "seconds to train and evaluate"], rows)
    run = options.output_dir
    print(f"""
Done in {time.perf_counter() - start:.0f} s. What to try next:

  {program()} recipes                          what can be trained
  echo "Where is my parcel?" | {program()} predict {run}/helpdesk
  {program()} check {run}/corpus               what pre-training sees of a text
  {program()} finetune text-classification --train my.csv --validation 10% --model minilm --output-dir runs/mine
  {program()} finetune --help""")


if __name__ == "__main__":
    main()
