"""One timed build and reading of a corpus, in its own process; prints one line of JSON. `training.py` runs it.

It counts what training gets: tokens of masked sequences, with their pairs, over several epochs of one build.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

EPOCHS = (2, 5)  # the dupe_factor of google-research's create_pretraining_data.py, whose figures stand beside ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder, for its tokenizer")
    parser.add_argument("--data", required=True, help="plain text")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--max-length", type=int, default=128)
    options = parser.parse_args()

    from bertkit.corpus.build import CorpusConfig, build_corpus
    from bertkit.corpus.sampling import CorpusSampler
    from bertkit.corpus.shard import Shard
    from bertkit.text.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        start = time.perf_counter()
        meta = build_corpus([options.data], options.model, corpus, CorpusConfig())
        built = time.perf_counter() - start
        found = {"tokens_of_text": meta["train"]["tokens"], "build_s": round(built, 3)}
        shards = [Shard.load(corpus / shard["name"]) for shard in meta["train"]["shards"]]
        start, tokens, step = time.perf_counter(), 0, 0
        sampler = CorpusSampler(shards, Tokenizer.load(corpus), options.batch_size, options.max_length, options.seed)
        per_epoch = sampler.sequences_per_epoch
        for epochs in EPOCHS:
            while step * options.batch_size < epochs * per_epoch:
                tokens += len(sampler.features_at(step).input_ids.values)
                step += 1
            found[f"tokens_per_s_{epochs}"] = round(tokens / (built + time.perf_counter() - start))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
