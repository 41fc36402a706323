"""Whether this code trains the same weights, bit for bit, as another commit's does on this machine.

    python scripts/same_weights.py              against the commit of which tests/golden holds the outputs
    python scripts/same_weights.py COMMIT       against any other
    python scripts/same_weights.py FOLDER       against the code in a folder

Every command runs twice, in a process of its own, in float32 with one thread: with the other code, and with this. The exit
code is 1 where a file of weights differs in any byte.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
COMMIT = "5011bc2"

HOW = "--batch-size 16 --precision fp32 --device cpu --learning-rate 1e-3"
SIZE = "--num-hidden-layers 2 --hidden-size 32 --num-attention-heads 2 --max-length 64 --max-steps 30"
TEXT = "{data}/text/shop.txt"
# What makes the corpus; its weights are none.
PREPARE = (
    f"tokenizer train {TEXT} --vocab-size 1000 -o tokenizer",
    f"corpus build {TEXT} --tokenizer tokenizer --validation 10% --num-processes 1 -o corpus",
)
# The run folder that a command writes -> the command. What is fine-tuned on both sides is what the other code has pre-trained.
FINETUNE = f"--model {{other}}/mlm-nsp --max-length 64 --max-steps 30 {HOW}"
COMMANDS = {
    "mlm-nsp": f"pretrain corpus {SIZE} {HOW}",
    "whole-words": f"pretrain corpus {SIZE} {HOW} --objective mlm --masking whole-word",
    "left-to-right": f"pretrain corpus {SIZE} {HOW} --objective ltr",
    "classes": f"finetune helpdesk {FINETUNE} --micro-batch-tokens 400",
    "pairs-mean": f"finetune helpdesk_pairs {FINETUNE} --pooling mean --layerwise-lr-decay 0.9",
    "tags": f"finetune helpdesk_mentions {FINETUNE}",
    "tags-crf": f"finetune helpdesk_mentions {FINETUNE} --head crf --freeze embeddings",
    "answers": f"finetune question-answering --data {{data}}/pages {FINETUNE} --doc-stride 16 --max-train-samples 200",
    "choices": f"finetune helpdesk_replies {FINETUNE}",
}


@contextmanager
def code_of(name: str) -> Iterator[Path]:
    """The folder with the code of a commit, checked out for as long as this lasts; a folder is its own."""
    if Path(name).is_dir():
        yield Path(name).resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        added = git("worktree", "add", "--detach", str(tree), name)
        if added.returncode:
            raise SystemExit(f"error: {name} is neither a folder nor a commit that git can check out: {added.stderr.strip()}")
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def run(command: str, code: Path, folder: Path, other: Path) -> None:
    """Run a command of bertkit with the code of one side, in that side's folder."""
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    environment = {**os.environ, **one_thread, "PYTHONPATH": str(code)}
    argv = shlex.split(command.format(data=ROOT / "recipes" / "data" / "helpdesk", other=other))
    done = subprocess.run(
        [sys.executable, "-m", "bertkit", *argv], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"error: with the code of {code}: bertkit {shlex.join(argv)}\n{done.stderr}")


def largest_difference(one: Path, other: Path) -> str:
    """The largest difference of any weight of two files, or what keeps them from being compared."""
    left, right = load_file(one), load_file(other)
    if {name: tensor.shape for name, tensor in left.items()} != {name: tensor.shape for name, tensor in right.items()}:
        return "other tensors"
    return f"{max(float(np.abs(left[name].astype(np.float64) - right[name]).max()) for name in left):.3g}"


def compare(one: Path, other: Path) -> list[tuple[str, bool, str]]:
    """For the best model of a run and the last one: its file, whether all bytes are equal, and the largest difference."""
    files = {path.relative_to(folder) for folder in (one, other) for path in folder.rglob("model.safetensors")}
    found = []
    for file in sorted(files):
        if not ((one / file).is_file() and (other / file).is_file()):
            found.append((str(file), False, "one side only"))
        else:
            equal = (one / file).read_bytes() == (other / file).read_bytes()
            found.append((str(file), equal, largest_difference(one / file, other / file)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("against", nargs="?", default=COMMIT, metavar="COMMIT|FOLDER")
    against = parser.parse_args().against
    differing = 0
    with code_of(against) as code, tempfile.TemporaryDirectory() as temporary:
        before, after = Path(temporary) / "before", Path(temporary) / "after"
        for folder in (before, after):
            folder.mkdir()
        for command in PREPARE:
            for side, folder in ((code, before), (ROOT, after)):
                run(command, side, folder, before)
        print(f"{'run':14} {'file':35} {'bytes':9} largest difference", flush=True)
        for name, command in COMMANDS.items():
            for side, folder in ((code, before), (ROOT, after)):
                run(f"{command} -o {name}", side, folder, before)
            compared = compare(before / name, after / name)
            if not compared:
                raise SystemExit(f"error: {name} wrote no weights")
            for file, equal, difference in compared:
                differing += not equal
                print(f"{name:14} {file:35} {'equal' if equal else 'different':9} {difference}", flush=True)
    print(f"{differing} files differ" if differing else "all weights are equal, bit for bit")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
