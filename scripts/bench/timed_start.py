"""A process that ends where its first step would begin: bertkit's with the first batch, run_glue.py's after its imports.

startup.py times the whole process.

python -m scripts.bench.timed_start bertkit mrpc --data glue/MRPC --model minilm
python -m scripts.bench.timed_start run_glue
"""

# ruff: noqa: F401

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import Any, NoReturn


def start_bertkit(words: list[str]) -> NoReturn:
    """`bertkit finetune WORDS` into a folder that is removed, as far as its first batch."""
    from bertkit.cli import main
    from bertkit.training import loop

    prefetched, folder = loop.prefetched, tempfile.mkdtemp()

    def until_first(batches: Any, steps: range, device: Any) -> NoReturn:
        next(prefetched(batches, steps, device))
        shutil.rmtree(folder)
        os._exit(0)

    loop.prefetched = until_first
    code = main(["finetune", *words, "--output-dir", os.path.join(folder, "run")])
    raise SystemExit(f"error: exit code {code} before the first step")


def start_run_glue() -> None:
    """The imports of transformers' examples/pytorch/text-classification/run_glue.py."""
    import logging
    import random
    from dataclasses import dataclass, field

    import datasets
    import evaluate
    import numpy as np
    import transformers
    from datasets import load_dataset
    from transformers import (
        AutoConfig,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        EvalPrediction,
        HfArgumentParser,
        PretrainedConfig,
        Trainer,
        TrainingArguments,
        default_data_collator,
        set_seed,
    )
    from transformers.trainer_utils import get_last_checkpoint
    from transformers.utils import check_min_version
    from transformers.utils.versions import require_version


if __name__ == "__main__":
    if sys.argv[1] == "bertkit":
        start_bertkit(sys.argv[2:])
    start_run_glue()
