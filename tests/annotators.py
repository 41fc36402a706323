"""Annotation tools as far as files show them: each takes what bertkit writes and exports it, as if an annotator accepted it.

Offsets are read here by slicing the encoded text, in the units that a tool counts: UTF-32 for characters, UTF-16 for doccano.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Spans = list[tuple[str, str]]  # the text of each span, its label


def cut(text: str, start: int, end: int, encoding: str) -> str:
    """What stands between two offsets in units of an encoding."""
    size = {"utf-16-le": 2, "utf-32-le": 4}[encoding]
    return text.encode(encoding)[size * start : size * end].decode(encoding)


def label_studio(content: str) -> tuple[str, list[Any]]:
    """The export JSON, and what each task shows: spans, or classes."""
    exported, seen = [], []
    for number, task in enumerate(json.loads(content), start=1):
        assert set(task) == {"data", "predictions"}
        text = task["data"]["text"]
        (prediction,) = task["predictions"]
        assert 0 <= prediction["score"] <= 1
        assert len({each.get("id") for each in prediction["result"]}) == len(prediction["result"])
        shown: list[Any] = []
        for each in prediction["result"]:
            assert (each["from_name"], each["to_name"]) == ("label", "text")
            value = each["value"]
            if each["type"] == "choices":
                shown += value["choices"]
            else:
                assert (each["type"], list(value)) == ("labels", ["start", "end", "text", "labels"])
                assert value["text"] == cut(text, value["start"], value["end"], "utf-32-le")
                shown.append((value["text"], *value["labels"]))
                value["text"] = value["text"].replace("\r", r"\n").replace("\n", r"\n")
        seen.append(shown)
        annotation = {"id": number, "completed_by": 1, "was_cancelled": False, "ground_truth": False}
        annotation["result"] = [{"origin": "prediction", **each} for each in prediction["result"]]
        exported.append({"id": number, "annotations": [annotation], "predictions": [], "data": task["data"], "meta": {}})
    return json.dumps(exported), seen


def doccano(content: str) -> tuple[str, list[Any]]:
    """The export JSONL, and what each text shows."""
    exported, seen = [], []
    for number, line in enumerate(content.splitlines(), start=1):
        task = json.loads(line)
        text, labels = task.pop("text"), task.pop("label")
        seen.append([(cut(text, *each[:2], "utf-16-le"), each[2]) if isinstance(each, list) else each for each in labels])
        exported.append({"id": number, "text": text, "label": sorted(labels), **task, "Comments": []})
    return "".join(json.dumps(each) + "\n" for each in exported), seen


def prodigy(content: str) -> tuple[str, list[Any]]:
    """The export of db-out, and what each task shows: marked tokens, or options that are accepted."""
    exported, seen = [], []
    for number, line in enumerate(content.splitlines()):
        task = json.loads(line)
        text, tokens = task["text"], task.get("tokens", [])
        for at, token in enumerate(tokens):
            assert (token["id"], token["text"]) == (at, cut(text, token["start"], token["end"], "utf-32-le"))
        for span in task.get("spans", []):
            first, last = tokens[span["token_start"]], tokens[span["token_end"]]  # the last one is among them
            assert (span["start"], span["end"]) == (first["start"], last["end"])
        if "options" in task:
            assert {*task["accept"]} <= {option["id"] for option in task["options"]}
            seen.append(task["accept"])
        else:
            seen.append([(cut(text, each["start"], each["end"], "utf-32-le"), each["label"]) for each in task["spans"]])
        more = {"_input_hash": number, "_task_hash": -number, "_view_id": "ner_manual", "_timestamp": 1, "answer": "accept"}
        exported.append(task | more)
    return "".join(json.dumps(each) + "\n" for each in exported), seen


TOOLS: dict[str, tuple[str, Callable[[str], tuple[str, list[Any]]]]] = {
    "label-studio": (".json", label_studio),
    "doccano": (".jsonl", doccano),
    "prodigy": (".jsonl", prodigy),
}
