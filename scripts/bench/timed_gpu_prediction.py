"""One timed prediction of texts by one side on a GPU, in its own process; prints one line of JSON. `gpu.py` runs it.

Both sides compute in 16 bits, from text to label, in batches sorted by length, after a warm-up pass.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def bertkit_side(model: str, max_length: int, batch_size: int) -> tuple[Callable[[Sequence[str]], list[Any]], str]:
    from bertkit.model.bert import initialize
    from bertkit.model.directory import read_config, save_model
    from bertkit.model.heads import BertForSequenceClassification
    from bertkit.runs.inference.loading import load
    from bertkit.text.tokenizer import Tokenizer

    config = read_config(Path(model))
    head = BertForSequenceClassification(config)
    initialize(head, config, seed=0)
    folder = tempfile.mkdtemp()
    tokenizer, name = Tokenizer.load(Path(model)), "BertForSequenceClassification"
    save_model(Path(folder), state_dict=head.state_dict(), config=config, tokenizer=tokenizer, architecture=name)
    predictor = load(folder)
    predictor.max_length, predictor.micro_batch_tokens = max_length, batch_size * max_length
    return lambda texts: [prediction.value for prediction in predictor.predict(list(texts))], predictor.precision.name


def transformers_side(model: str, max_length: int, batch_size: int) -> tuple[Callable[[Sequence[str]], list[Any]], str]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(model)
    head = AutoModelForSequenceClassification.from_pretrained(model, attn_implementation="sdpa", dtype=torch.bfloat16)
    head = head.to(device).eval()

    @torch.inference_mode()
    def decide(texts: Sequence[str]) -> list[Any]:
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]), reverse=True)
        found: list[Any] = [None] * len(texts)
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            given = tokenizer(
                [texts[at] for at in chosen], padding=True, truncation=True, max_length=max_length, return_tensors="pt"
            ).to(device)
            for at, label in zip(chosen, head(**given).logits.argmax(-1).tolist(), strict=True):
                found[at] = label
        return found

    return decide, "bf16"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=["bertkit", "transformers"])
    parser.add_argument("--model", required=True, help="model folder, of an encoder")
    parser.add_argument("--data", required=True, help="JSON lines with text")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--max-length", type=int, required=True)
    options = parser.parse_args()
    import torch

    from bertkit.text.tokenizer import Tokenizer

    with open(options.data, encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    make = bertkit_side if options.side == "bertkit" else transformers_side
    decide, precision = make(options.model, options.max_length, options.batch_size)
    decide(texts)
    start = time.perf_counter()
    decisions = decide(texts)
    seconds = time.perf_counter() - start
    assert len(decisions) == len(texts)
    tokens = len(Tokenizer.load(Path(options.model)).encode(texts, max_length=options.max_length).input_ids.values)
    found: dict[str, Any] = {"examples_per_s": len(texts) / seconds, "real_tokens_per_s": tokens / seconds}
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "peak_gpu_mib": torch.cuda.max_memory_allocated() / 2**20}
    print(json.dumps({**found, "precision": precision}))


if __name__ == "__main__":
    main()
