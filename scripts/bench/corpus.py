"""The speed of building and reading a corpus, compared with google-research's script. `training.py` runs it."""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from scripts.bench.timed_corpus import EPOCHS
from scripts.turns import run_script, typed

MODEL = "minilm"
# google-research's create_pretraining_data.py, tokens/s on one core by its dupe_factor: measured once, on an AMD EPYC; and how
# many times as fast we ask ourselves to be.
GOOGLES = {2: 388_000, 5: 741_000}
FASTER_THAN_GOOGLES = 4.0


def measure_corpus(data: str | None, rounds: int) -> dict[str, Any]:
    """Tokens/s of building a corpus and reading 2 or 5 epochs of it, on one core; medians beside google-research's script."""
    from bertkit.errors import UsageError
    from bertkit.model.directory import resolve
    from bertkit.readers.documents import Documents
    from bertkit.readers.text_sources import look_for

    if data is None:
        raise UsageError("the text of pre-training is not on the hub", hint="--data DIR with text-en")
    one_core = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), "1") | {"TOKENIZERS_PARALLELISM": "false"}
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"  # unpacked, as the script takes it
        with text.open("w", encoding="utf-8") as file:
            for source in look_for([str(Path(data) / "text-en")]).sources.values():
                file.writelines("\n".join(document.lines) + "\n\n" for document in Documents(source))
        for seed in range(1, rounds + 1):
            words = typed({"model": resolve(MODEL), "data": text, "seed": seed})
            runs.append(run_script("scripts.bench.timed_corpus", words, {**os.environ, **one_core}))
    medians = {epochs: statistics.median(run[f"tokens_per_s_{epochs}"] for run in runs) for epochs in EPOCHS}
    rows = [
        {"epochs": epochs, "tokens_per_s": rate, "googles": GOOGLES[epochs], "ratio": round(rate / GOOGLES[epochs], 2)}
        for epochs, rate in medians.items()
    ]
    return {"runs": runs, "medians": rows, "needed": FASTER_THAN_GOOGLES}
