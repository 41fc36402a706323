"""The demo: fine-tune real weights on the embedded help desk, evaluate, predict, and compare with two baselines.

It runs bertkit's own commands, each as a user would type it. Run it by `make demo`.
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

from baselines import baseline_scores

ROOT = Path(__file__).resolve().parent.parent
TICKETS = (
    "My parcel says delivered but nobody in the house has seen it.",
    "You took the money for the same lamp from my card two times.",
    "Since this morning the app rejects my password.",
)


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


def clear(run: Path) -> None:
    """Remove what an earlier demo left. Anything else stays, and bertkit will refuse the folder."""
    try:
        left = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if left["recipe"]["name"] == "helpdesk":
        shutil.rmtree(run)


def program() -> str:
    """How to call bertkit from the repository's folder."""
    script = Path(sys.executable).parent / "bertkit"
    if not script.is_file():
        return f"{sys.executable} -m bertkit"
    return str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else str(script)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="runs/demo", help="run folder to write; an earlier demo there is replaced")
    parser.add_argument("--max-steps", help="stop the training early")
    options = parser.parse_args()
    start = time.perf_counter()
    run = options.output_dir
    clear(ROOT / run)

    steps = ("--max-steps", options.max_steps) if options.max_steps else ()
    bertkit("finetune", "helpdesk", "--model", "minilm", "--output-dir", run, *steps)
    scores = json.loads(bertkit("eval", run, "--split", "test", "--json", capture=True))
    bertkit("predict", run, stdin="".join(f"{ticket}\n" for ticket in TICKETS))

    from bertkit import progress
    from bertkit.recipe import load_recipe

    measured = {"fine-tuned MiniLM-L6": scores, **baseline_scores(load_recipe("helpdesk"), "test")}
    names = [name for name in scores if not name.endswith("loss")]
    print(flush=True)
    progress.table("test split of the help desk", ["", *names], [[who, *(s[n] for n in names)] for who, s in measured.items()])
    print(f"""
Done in {time.perf_counter() - start:.0f} s. What to try next:

  {program()} recipes                          what can be trained
  echo "Where is my parcel?" | {program()} predict {run}
  {program()} finetune text-classification --train my.csv --validation 10% --model minilm --output-dir runs/mine
  {program()} finetune --help""")


if __name__ == "__main__":
    main()
