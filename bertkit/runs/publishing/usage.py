"""The code on a model card: using a fine-tuned model with only transformers, with the same results as `bertkit predict`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Template
from typing import Any

_OPEN = """import torch
from transformers import $architecture, AutoTokenizer

folder = "path/to/this/folder"
model = $architecture.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
"""

_CLASS = """from transformers import pipeline

predict = pipeline("text-classification", model="path/to/this/folder")
print(predict($example, truncation=True, max_length=$max_length))"""

_LABELS = """from transformers import pipeline

predict = pipeline("text-classification", model="path/to/this/folder", top_k=None)
thresholds = predict.model.config.bertkit.get("thresholds", {})
(found,) = predict([$example], truncation=True, max_length=$max_length)
print([each["label"] for each in found if each["score"] >= thresholds.get(each["label"], 0.5)])"""

# For one text, of which more than the head is read: the parts that are read, and the prediction from their mean logits.
_PARTS = f"""{_OPEN}
room = $max_length - 2  # for [CLS] and [SEP]
ids = tokenizer("a text", add_special_tokens=False)["input_ids"]
$parts
batches = [torch.tensor([[tokenizer.cls_token_id, *part, tokenizer.sep_token_id]]) for part in parts]
with torch.no_grad():
    logits = torch.cat([model(batch).logits for batch in batches]).mean(0)
$print_result"""
_PARTS_OF = {
    "tail": "parts = [ids[-room:]]",
    "head+tail": "parts = [ids if len(ids) <= room else ids[: room // 4] + ids[room // 4 - room :]]",
    "windows": """count = max(1, -(-len(ids) // room))
starts = [(len(ids) - room) * number // (count - 1) for number in range(count)] if count > 1 else [0]
parts = [ids[start : start + room] for start in starts]""",
}
_SAY_CLASS = "print(dict(zip(model.config.id2label.values(), logits.softmax(-1).tolist())))"
_SAY_NUMBER = "print(float(logits[0]))"
_SAY_LABELS = """thresholds = model.config.bertkit.get("thresholds", {})
probabilities = dict(zip(model.config.id2label.values(), logits.sigmoid().tolist()))
print([label for label, probability in probabilities.items() if probability >= thresholds.get(label, 0.5)])"""

_CHUNKS = """from transformers import AutoTokenizer, pipeline

folder = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=$max_length)  # longer texts are read in windows
predict = pipeline("token-classification", model=folder, tokenizer=tokenizer, aggregation_strategy="first", stride=$overlap)
print(predict("a text"))"""

_TAGS = f"""{_OPEN}
words = "a text in words".split()
how = {{"is_split_into_words": True, "truncation": True, "max_length": $max_length, "stride": $overlap, "padding": True}}
windows = tokenizer(words, **how, return_overflowing_tokens=True, return_tensors="pt")
windows.pop("overflow_to_sample_mapping")
with torch.no_grad():
    best = model(**windows).logits.argmax(-1).tolist()
tags = {{}}  # of each word, at its first piece
for window, numbers in enumerate(best):
    for word, number in zip(windows.word_ids(window), numbers):
        if word is not None:
            tags.setdefault(word, model.config.id2label[number])
print([(word, tags.get(place)) for place, word in enumerate(words)])"""

_CHOICES = f"""{_OPEN}
text, choices = "a text", ["a choice", "another one"]$join
how = {{"padding": True, "truncation": True, "max_length": $max_length, "return_tensors": "pt"}}
tokens = tokenizer([text] * len(choices), choices, **how)
with torch.no_grad():
    logits = model(**{{name: values[None] for name, values in tokens.items()}}).logits[0]
print(dict(zip(choices, logits.softmax(-1).tolist())))"""

_ANSWERS = f"""{_OPEN}

def answer(question, context):
    \"\"\"The best answer to a question of at most $max_query_length tokens, over all windows of the context.\"\"\"
    room = $max_length - 3 - len(tokenizer(question, add_special_tokens=False)["input_ids"])
    how = {{"truncation": "only_second", "max_length": $max_length, "stride": max(0, room - $doc_stride), "padding": True}}
    more = {{"return_overflowing_tokens": True, "return_offsets_mapping": True, "return_tensors": "pt"}}
    windows = tokenizer(question, context, **how, **more)
    windows.pop("overflow_to_sample_mapping")
    places = windows.pop("offset_mapping").tolist()
    with torch.no_grad():
        outputs = model(**windows)
    spans = []  # the score, the first character, the one after the last
    for window, logits in enumerate(zip(outputs.start_logits.tolist(), outputs.end_logits.tolist())):
        inside = [place for place, part in enumerate(windows.sequence_ids(window)) if part == 1]
        for first in inside:
            for last in range(first, min(first + $max_answer_length, inside[-1] + 1)):
                spans.append((logits[0][first] + logits[1][last], places[window][first][0], places[window][last][1]))
    score, start, end = max(spans)
$null    return context[start:end]


print(answer("a question?", "a text that answers it"))"""
_NO_ANSWER = """    nothing = float((outputs.start_logits + outputs.end_logits)[:, 0].min())
    if nothing - score > model.config.bertkit.get("null_threshold", 0.0):
        return ""
"""

_ENCODER_ONLY = """Its head is bertkit's own: transformers opens the folder as an encoder only (`AutoModel`). `bertkit predict
path/to/this/folder FILE` uses the head too."""
_OR = "\n\nor `bertkit predict path/to/this/folder FILE`, which also reads the file and writes its texts with the predictions."


def usage(family: str, task: Mapping[str, Any], architecture: str) -> str:
    """How to use a model, as Markdown. task: from run.json. architecture: the class of transformers that opens it."""
    http = _over_http(_inputs(family, task))
    if architecture == "BertModel":
        return f"{_ENCODER_ONLY}\n\n{http}"
    code, notes = _CODE[family](task)
    longest = task["max_length"]
    # half of a window, the largest possible overlap
    fields = {"architecture": architecture.replace("BertFor", "AutoModelFor"), "overlap": max(0, longest - 2) // 2, **task}
    return "\n\n".join([f"```python\n{Template(code).substitute(fields)}\n```{_OR}", *notes, http])


def _over_http(inputs: Any) -> str:
    """How to query a model that `bertkit serve` serves, as Markdown. inputs: a row, in the form of Hugging Face's clients."""
    return f"""Over HTTP, once `bertkit serve path/to/this/folder` runs:

```bash
curl http://127.0.0.1:8000 -H 'Content-Type: application/json' -d '{json.dumps({"inputs": inputs})}'
```"""


def _inputs(family: str, task: Mapping[str, Any]) -> Any:
    """A row of a family, by the roles of its columns."""
    if family == "question-answering":
        return {"question": "a question?", "context": "a text that answers it"}
    if family == "multiple-choice":
        question = {"question": "a question?"} if task.get("question") else {}
        return {"text": "a text", **question, "choices": ["a choice", "another one"]}
    return {"text": "one", "text_pair": "two"} if task.get("text_pair") else "a text"


def _classification(task: Mapping[str, Any]) -> tuple[str, list[str]]:
    pair, truncate = bool(task.get("text_pair")), task["truncate"]
    if truncate == "head" or pair:
        example = '{"text": "one", "text_pair": "two"}' if pair else '"a text"'
        notes = [f"This reads only the head of long texts; `bertkit predict` reads as in training: `--truncate {truncate}`."]
        code = _LABELS if task["multi_label"] else _CLASS
        return code.replace("$example", example), notes if truncate != "head" else []
    print_result = _SAY_LABELS if task["multi_label"] else _SAY_NUMBER if task["regression"] else _SAY_CLASS
    return _PARTS.replace("$parts", _PARTS_OF[truncate]).replace("$print_result", print_result), []


def _tags(task: Mapping[str, Any]) -> tuple[str, list[str]]:
    # The pipeline knows only the prefixes B- and I-, and joins neighbours with equal tags.
    in_chunks = task.get("scheme") in ("iob1", "iob2")
    notes = []
    if in_chunks:
        kept = "`bertkit predict` keeps hyphenated words and the words of columns"
        notes.append(f"The pipeline treats each punctuation mark as a word; {kept}.")
    if task["constrained"]:
        notes.append(
            "`bertkit predict` predicts only legal sequences of tags (`--constrained`); this predicts each tag by itself."
        )
    if task.get("words") == "jieba":
        notes.append(
            "It was trained on Chinese words, which `bertkit predict` finds with jieba; this treats each character as a word."
        )
    if task.get("intents"):
        notes.append(
            "Only `bertkit predict` predicts the intent of a sentence: transformers reports its weights, "
            "`head.intent.weight` and `head.intent.bias`, as unexpected and leaves them out."
        )
    return _CHUNKS if in_chunks else _TAGS, notes


def _choices(task: Mapping[str, Any]) -> tuple[str, list[str]]:
    join = '\nchoices = [f"{question} {choice}" for choice in choices]' if task.get("question") else ""
    code = _CHOICES.replace("$join", join)
    return code.replace("text, choices = ", 'question = "a question?"\ntext, choices = ') if join else code, []


def _answers(task: Mapping[str, Any]) -> tuple[str, list[str]]:
    return _ANSWERS.replace("$null", _NO_ANSWER if task.get("unanswerable") else ""), []


_CODE = {
    "text-classification": _classification,
    "token-classification": _tags,
    "multiple-choice": _choices,
    "question-answering": _answers,
}
