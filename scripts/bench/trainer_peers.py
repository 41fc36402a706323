"""The Trainer's side of the comparison: its settings, and for each family its model, encoded rows and collator."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """How a user of transformers can set the Trainer without code of her own.

    padded: every row to max_length, as run_glue.py does; else to the longest of its batch, as run_ner.py does, and run_qa.py
    with --pad_to_max_length false. grouped: rows of similar length in a batch. compiled: by torch.compile.
    """

    padded: bool = False
    grouped: bool = False
    bf16: bool = False
    compiled: bool = False

    def __str__(self) -> str:
        to = "pad to max_length" if self.padded else "pad to the longest of the batch"
        grouped, compiled = (", grouped by length" if self.grouped else ""), (", compiled" if self.compiled else "")
        return f"{to}{grouped}, {'bf16' if self.bf16 else 'fp32'}{compiled}"


TRAINERS = {
    "default": Setting(padded=True),
    "dynamic": Setting(),
    "grouped": Setting(grouped=True),
    "best": Setting(grouped=True, bf16=True),
    "bf16": Setting(padded=True, bf16=True),
    "compiled": Setting(padded=True, bf16=True, compiled=True),
    "grouped-compiled": Setting(grouped=True, bf16=True, compiled=True),
}

# Architectures that are pre-trained from fresh weights: MiniLM-L6's, and BERT's two.
SIZES: dict[str, dict[str, Any]] = {
    "minilm": {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
}


def peer_classification(raw: Any, tokenizer: Any, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Texts or pairs, as run_glue.py has them."""
    from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, default_data_collator

    padded = TRAINERS[options.side].padded

    def encode(rows: dict[str, list]) -> Any:
        texts = (rows["text"], rows["text_pair"]) if "text_pair" in rows else (rows["text"],)
        return tokenizer(*texts, padding="max_length" if padded else False, max_length=options.max_length, truncation=True)

    rows = raw.map(encode, batched=True, remove_columns=[name for name in ("text", "text_pair") if name in raw.column_names])
    labels = len(set(rows["label"]))
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=labels, attn_implementation="sdpa")
    return model, rows, default_data_collator if padded else DataCollatorWithPadding(tokenizer)


def peer_tagging(raw: Any, tokenizer: Any, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Words and their tags, as run_ner.py has them: the first piece of a word has its tag, the others none."""
    from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

    number = {tag: at for at, tag in enumerate(sorted({tag for tags in raw["tags"] for tag in tags}))}

    def encode(rows: dict[str, list]) -> Any:
        encoded = tokenizer(rows["tokens"], max_length=options.max_length, truncation=True, is_split_into_words=True)
        encoded["labels"] = []
        for at, tags in enumerate(rows["tags"]):
            words = encoded.word_ids(batch_index=at)
            first = [word is not None and word != before for before, word in itertools.pairwise([None, *words])]
            encoded["labels"].append([number[tags[word]] if begins else -100 for word, begins in zip(words, first)])
        return encoded

    rows = raw.map(encode, batched=True, remove_columns=raw.column_names)
    model = AutoModelForTokenClassification.from_pretrained(options.model, num_labels=len(number), attn_implementation="sdpa")
    return model, rows, DataCollatorForTokenClassification(tokenizer)


def peer_answering(raw: Any, tokenizer: Any, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Windows of questions and contexts with their first answer, as run_qa.py has them.

    Its doc_stride is how far two windows overlap, where Google's and ours is how far one begins behind the other.
    """
    from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

    def encode(rows: dict[str, list]) -> Any:
        windows = tokenizer(
            [question.lstrip() for question in rows["question"]],
            rows["context"],
            truncation="only_second",
            max_length=options.max_length,
            stride=options.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        examples, offsets = windows.pop("overflow_to_sample_mapping"), windows.pop("offset_mapping")
        windows["start_positions"], windows["end_positions"] = [], []
        for at, example in enumerate(examples):
            answers = rows["answers"][example]
            first = last = 0  # [CLS], where the answer is not in the window
            if answers["answer_start"]:
                start = answers["answer_start"][0]
                end = start + len(answers["text"][0])
                inside = [place for place, segment in enumerate(windows.sequence_ids(at)) if segment == 1]
                if inside and offsets[at][inside[0]][0] <= start and offsets[at][inside[-1]][1] >= end:
                    first = max(place for place in inside if offsets[at][place][0] <= start)
                    last = min(place for place in inside if offsets[at][place][1] >= end)
            windows["start_positions"].append(first)
            windows["end_positions"].append(last)
        return windows

    rows = raw.map(encode, batched=True, remove_columns=raw.column_names)
    model = AutoModelForQuestionAnswering.from_pretrained(options.model, attn_implementation="sdpa")
    return model, rows, DataCollatorWithPadding(tokenizer)


def peer_pretraining(raw: Any, tokenizer: Any, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Pairs of segments filled up to max_length, half of them from anywhere; 15% of the tokens masked, all padded.

    raw: documents, as lists of sentences. The collator is that of run_mlm.py, beside which transformers has none that knows
    next sentences.
    """
    import random

    from datasets import Dataset
    from transformers import BertConfig, BertForPreTraining, DataCollatorForLanguageModeling

    rng = random.Random(options.seed)
    encoded = [tokenizer(lines, add_special_tokens=False)["input_ids"] for lines in raw["lines"]]
    rows: list[dict[str, Any]] = []
    while len(rows) < options.batch_size * (options.steps + 1):
        document = rng.choice(encoded)
        tokens = list(itertools.chain.from_iterable(document[rng.randrange(len(document)) :]))
        first = rng.randint(1, options.max_length - 4)
        wanted = options.max_length - 3 - first
        follows = rng.random() < 0.5
        other = tokens[first:] if follows else list(itertools.chain.from_iterable(rng.choice(encoded)))
        if len(tokens) < first or not other:
            continue
        second = other[:wanted]
        ids = [tokenizer.cls_token_id, *tokens[:first], tokenizer.sep_token_id, *second, tokenizer.sep_token_id]
        segments = [0] * (first + 2) + [1] * (len(second) + 1)
        rows.append({"input_ids": ids, "token_type_ids": segments, "next_sentence_label": int(not follows)})
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, pad_to_multiple_of=options.max_length)
    model = BertForPreTraining(BertConfig(vocab_size=len(tokenizer), attn_implementation="sdpa", **SIZES[options.size]))
    return model, Dataset.from_list(rows), collator


PEERS: dict[str, Callable[[Any, Any, argparse.Namespace], tuple[Any, Any, Any]]] = {
    "text-classification": peer_classification,
    "token-classification": peer_tagging,
    "question-answering": peer_answering,
    "pretraining": peer_pretraining,
}
