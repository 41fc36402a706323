"""Predict with the ONNX model in this folder. Needs only onnxruntime, numpy and tokenizers.

    python predict.py rows.jsonl > predictions.jsonl
    echo "a text" | python predict.py --int8

Each line is a row: a text, or a JSON object with the columns of the task: text, for pairs also text_pair; tokens, a list of
words; question and context; or text, choices (a list) and optionally question. In Python: Model().predict({"text": "a text"}).

It predicts the same as `bertkit predict`, but does not read other file formats, does not split text into words, gives only the
best answer with its probability, and does not give entities as character spans.
"""

from __future__ import annotations

import json
import os
import sys
from bisect import bisect_left, bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

Row = dict[str, Any]

COLUMNS = {  # of a row, by family
    "text-classification": ("text",),
    "token-classification": ("tokens",),
    "question-answering": ("question", "context"),
    "multiple-choice": ("text", "choices"),
    "fill-mask": ("text",),
}
MORE = {"text-classification": "text_pair", "multiple-choice": "question"}  # a column that some models of a family read
LISTS = ("tokens", "choices")  # the columns that are lists of strings


class Model:
    """The model of a folder; graph: its file in onnx/. columns: those that it reads, and whether a row must have them."""

    def __init__(self, folder: str | Path = Path(__file__).parent, graph: str = "model.onnx") -> None:
        def read(name: str) -> Any:
            return json.loads((Path(folder) / name).read_text(encoding="utf-8"))

        config, special = read("config.json"), read("special_tokens_map.json")
        self.how = config["bertkit"]
        self.paths = read("paths.json") if (Path(folder) / "paths.json").exists() else {}
        names = config.get("id2label") or {}
        self.labels = [names[str(number)] for number in range(len(names))]
        self.kind = config.get("problem_type")
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        vocabulary = self.tokenizer.get_vocab()
        self.cls, self.sep, self.mask, self.unk = (
            vocabulary[special[f"{role}_token"]] for role in ("cls", "sep", "mask", "unk")
        )
        if not (path := Path(folder) / "onnx" / graph).is_file():
            quantized = "; bertkit export --int8 writes it" if "quantized" in graph else ""
            raise FileNotFoundError(f"there is no {path}{quantized}")
        self.session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.decide = {
            "text-classification": self.classify,
            "token-classification": self.tag,
            "question-answering": self.answer,
            "multiple-choice": self.choose,
            "fill-mask": self.fill,
        }[self.how["family"]]
        self.columns = columns_of(self.how)

    def predict(self, row: Row) -> Row:
        """Raises ValueError for a row that lacks a column, or has a value of another kind in one."""
        for name, is_required in self.columns.items():
            value, is_list = row.get(name), name in LISTS
            if value is None and is_required:
                form = json.dumps({each: ["..."] if each in LISTS else "..." for each in self.columns})
                raise ValueError(f"the row has no {name}; expected a row such as {form}")
            texts: list[Any] = value if is_list and isinstance(value, list) else [value]
            if value is not None and (is_list != isinstance(value, list) or not all(isinstance(text, str) for text in texts)):
                expected = "a list of strings" if is_list else "a string"
                raise ValueError(f"{name} is {json.dumps(value, ensure_ascii=False)}; expected {expected}")
            if name == "choices" and sum(bool(text.strip()) for text in texts) < 2:
                raise ValueError("there are fewer than two choices that are not empty")
        return self.decide({name: row[name] for name in self.columns if row.get(name) is not None})

    def pieces(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def run(self, *sequences: list[list[int]], choices: bool = False) -> list[Any]:
        """The outputs of the graph for sequences of one or two texts: [CLS] a [SEP] b [SEP], padded to the longest."""
        ids = [[self.cls, *(token for text in texts for token in (*text, self.sep))] for texts in sequences]
        longest = max(map(len, ids))
        inputs = np.zeros((3, len(ids), longest), dtype=np.int64)
        for row, (tokens, texts) in enumerate(zip(ids, sequences)):
            inputs[0, row, : len(tokens)] = tokens
            inputs[1, row, : len(tokens)] = 1
            inputs[2, row, len(texts[0]) + 2 : len(tokens)] = 1
        names = ("input_ids", "attention_mask", "token_type_ids")
        return self.session.run(None, {name: each[None] if choices else each for name, each in zip(names, inputs)})

    # --- text classification and multiple choice ---

    def classify(self, row: Row) -> Row:
        """Its label; the labels that reach their thresholds; or its number. Logits of windows are averaged."""
        columns = [self.pieces(row[name]) for name in ("text", "text_pair") if name in row]
        windows = cut(columns, self.how["max_length"] - len(columns) - 1, self.how["truncate"])
        logits = np.stack([self.run(window)[0][0] for window in windows]).mean(axis=0, dtype=np.float64)
        if self.kind == "regression":
            return {"prediction": float(logits[0])}
        if self.kind == "multi_label_classification":
            found = dict(zip(self.labels, np.exp(-np.logaddexp(0, -logits)).tolist()))
            thresholds = self.how.get("thresholds") or {}
            labels = [label for label, each in found.items() if each >= thresholds.get(label, 0.5)]
            return {"labels": labels, "probabilities": found}
        best = int(logits.argmax())
        return {"label": self.labels[best], "probability": float(np.exp(log_softmax(logits)[best]))}

    def choose(self, row: Row) -> Row:
        """The number and the text of the best choice; empty choices do not count."""
        choices = {place: text for place, text in enumerate(row["choices"]) if text.strip()}
        texts = [f"{row.get('question') or ''} {text}" for text in choices.values()]
        room, text = self.how["max_length"] - 3, self.pieces(row["text"])
        parts = [cut([text, self.pieces(choice)], room, "head")[0] for choice in texts]
        found = np.exp(log_softmax(self.run(*parts, choices=True)[0][0].astype(np.float64)))
        place = [*choices][int(found.argmax())]
        return {"choice": place, "answer": choices[place], "probability": float(found.max())}

    # --- token classification ---

    def tag(self, row: Row) -> Row:
        """A tag for each word, and the intent if the model has one."""
        words, room = row["tokens"], self.how["max_length"] - 2
        pieces = [self.pieces(word)[:room] or [self.unk] for word in words]
        begins = np.cumsum([0, *map(len, pieces)]).tolist()
        scores: list[Any] = [np.zeros((0, len(self.labels)))]
        paths: list[int] = []
        intent: Row = {}
        for first, last, read, until in windows_of(begins, room) if words else []:
            logits, *of_intent = self.run([[token for word in pieces[first:last] for token in word]])
            own = logits[0, [begins[word] - begins[first] + 1 for word in range(read, until)]].astype(np.float64)
            if "crf" in self.paths:
                crf = [np.array(each) for each in self.paths["crf"]]
                paths += best_path(own, *crf)
                own = log_marginals(own, *crf)
            scores.append(own)
            if of_intent and not intent:
                best = int(of_intent[0][0].argmax())
                probability = float(np.exp(log_softmax(of_intent[0][0].astype(np.float64))[best]))
                intent = {"intent": self.how["intents"][best], "intent_probability": probability}
        logs = log_softmax(np.concatenate(scores))
        tags = paths or logs.argmax(axis=1).tolist()
        if "legal" in self.paths and words:
            start, follow, end = (np.array(each) for each in self.paths["legal"])
            legal = start[tags[0]] and end[tags[-1]] and all(follow[pair] for pair in pairwise(tags))
            if not paths or not legal:  # a CRF's own path is kept if it is legal
                tags = best_path(np.maximum(logs, -1e4), *(np.where(each, 0.0, -1e9) for each in (start, follow, end)))
        probabilities = [float(np.exp(logs[word, tag])) for word, tag in enumerate(tags)]
        return {"tokens": words, "tags": [self.labels[tag] for tag in tags], "probabilities": probabilities, **intent}

    # --- question answering ---

    def answer(self, row: Row) -> Row:
        """The best span over all windows of the context; "" if no answer wins."""
        how, context = self.how, self.tokenizer.encode(row["context"], add_special_tokens=False)
        question = self.pieces(row["question"])[: how["max_query_length"]]
        room, longest = how["max_length"] - 3 - len(question), how["max_answer_length"]
        if room < 1:
            raise ValueError(f"a question of {len(question)} tokens leaves no room for its context")
        stride = min(how["doc_stride"], room)
        best, span, nothing = -np.inf, None, np.inf
        for begin in range(0, max(1, len(context.ids) - room + stride), stride):
            part = context.ids[begin : begin + room]
            start, end = (each[0] for each in self.run([question, part]))
            nothing = min(nothing, start[0] + end[0])
            inside = slice(len(question) + 2, len(question) + 2 + len(part))
            scores = start[inside, None] + end[None, inside]
            scores[~(np.triu(np.ones_like(scores)) - np.triu(np.ones_like(scores), longest)).astype(bool)] = -np.inf
            if part and scores.max() > best:
                first, last = divmod(int(scores.argmax()), len(part))
                best, span = scores.max(), (context.offsets[begin + first][0], context.offsets[begin + last][1])
        odds = {"null_odds": float(nothing - best) if span else 0.0} if how.get("unanswerable") else {}
        if span is None or odds.get("null_odds", -np.inf) > (how.get("null_threshold") or 0.0):
            return {"answer": "", "start": None, "end": None, **odds}
        return {"answer": row["context"][slice(*span)], "start": span[0], "end": span[1], **odds}

    # --- masks ---

    def fill(self, row: Row, top_k: int = 5) -> Row:
        """The likeliest tokens for each mask of a text."""
        ids = self.pieces(row["text"])[: self.how["max_length"] - 2]
        logits, tokens = self.run([ids])[0][0], sorted(self.tokenizer.get_vocab().values())
        fills = []
        for place in np.flatnonzero(np.array([self.cls, *ids]) == self.mask):
            found = np.exp(log_softmax(logits[place].astype(np.float64)))[tokens]
            likeliest = np.argsort(-found, kind="stable")[:top_k].tolist()
            pairs = [(self.tokenizer.id_to_token(tokens[each]), float(found[each])) for each in likeliest]
            fills.append([{"token": token, "probability": probability} for token, probability in pairs])
        return {"fills": fills}


def columns_of(how: dict[str, Any]) -> dict[str, bool]:
    """The columns that a model reads, and whether a row must have them. how: its settings in config.json."""
    columns = dict.fromkeys(COLUMNS[how["family"]], True)
    more = MORE.get(how["family"])
    if more and (how.get(more) or not how.get("text")):  # other tools do not say what a model was trained with
        columns[more] = bool(how.get(more))
    return columns


def log_softmax(logits: Any) -> Any:
    """Over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def cut(columns: list[list[int]], room: int, how: str) -> list[list[list[int]]]:
    """The tokens of one or two texts that fit in `room`; of a pair, the longer text is cut. Several parts if how is windows."""
    kept = [min(len(columns[0]), room)]
    if len(columns) == 2:
        kept = [len(text) for text in columns]
        if sum(kept) > room:
            shorter = min(*kept, room // 2)
            kept = [room - shorter, shorter] if kept[0] > kept[1] else [shorter, room - shorter]
    lost = [len(text) - count for text, count in zip(columns, kept)]
    longer = lost.index(max(lost))
    if how == "windows" and lost[longer] and kept[longer]:
        gaps = -(-lost[longer] // kept[longer])
        begins = [lost[longer] * number // gaps for number in range(gaps + 1)]
        return [[text[(begin if n == longer else 0) :][: kept[n]] for n, text in enumerate(columns)] for begin in begins]
    heads = [{"tail": 0, "head+tail": count // 4}.get(how, count) for count in kept]
    return [[text[:head] + text[head + gap :][: len(text) - head - gap] for text, head, gap in zip(columns, heads, lost)]]


def windows_of(begins: list[int], room: int) -> list[tuple[int, int, int, int]]:
    """Windows as (first, end, read, until): they hold the words first to end - 1, and tag the words read to until - 1.

    begins: the first piece of each word, and the number of pieces.
    """
    stop, first = len(begins) - 1, 0
    spans = []
    while begins[stop] - begins[first] > room:
        last = bisect_right(begins, begins[first] + room) - 1
        spans.append((first, last))
        first = min(last, max(first + 1, bisect_right(begins, begins[first] + room // 2) - 1))
    spans.append((bisect_left(begins, begins[stop] - room), stop))
    edges = [0]
    for (_, last), (first, _) in pairwise(spans):  # a word is read where it has more context
        middle = bisect_left(begins, (begins[first] + begins[last]) / 2)
        edges.append(max(edges[-1], min(max(middle, first), last)))
    edges.append(stop)
    return [(*span, read, until) for span, (read, until) in zip(spans, pairwise(edges)) if read < until]


def best_path(scores: Any, start: Any, follow: Any, end: Any) -> list[int]:
    """The best sequence of tags by the scores of each word (words, tags), and of starts, steps [from, to] and ends."""
    best, pointers = start + scores[0], []
    for own in scores[1:]:
        through = best[:, None] + follow
        pointers.append(through.argmax(axis=0))
        best = through.max(axis=0) + own
    path = [int((best + end).argmax())]
    for pointer in reversed(pointers):
        path.append(int(pointer[path[-1]]))
    return path[::-1]


def log_marginals(scores: Any, start: Any, follow: Any, end: Any) -> Any:
    """(words, tags): the log-probability of each tag of each word in a linear-chain CRF."""
    before, after = [start + scores[0]], [end]
    for own in scores[1:]:
        before.append(np.logaddexp.reduce(before[-1][:, None] + follow, axis=0) + own)
    for own in scores[:0:-1]:
        after.append(np.logaddexp.reduce(follow + own + after[-1], axis=1))
    return log_softmax(np.array(before) + np.array(after[::-1]))


def main(arguments: list[str]) -> None:
    files = [each for each in arguments if not each.startswith("--")]
    usage = "usage: python predict.py [--int8] [FILE]"
    if {"-h", "--help"} & {*arguments}:
        print(usage)
        return
    if len(files) > 1 or not {*arguments} <= {*files, "--int8"}:
        sys.exit(usage)
    if files and files[0].lower().endswith((".csv", ".tsv", ".parquet", ".xlsx")):
        sys.exit(f"error: {files[0]} is a table; expected .txt or .jsonl, each line a text or a JSON object")
    model = Model(graph="model_quantized.onnx" if "--int8" in arguments else "model.onnx")
    with open(files[0], encoding="utf-8") if files else sys.stdin as lines:
        for number, line in enumerate(lines, start=1):
            line = line.rstrip("\r\n").removeprefix("\ufeff")
            try:
                row = json.loads(line) if line.lstrip().startswith(("{", "[{")) else {"text": line}
                if isinstance(row, list):
                    sys.exit(f"error: line {number} is a list; expected one object on each line (jq -c '.[]' FILE writes them)")
                found = model.predict(row)
            except json.JSONDecodeError as error:
                sys.exit(f"error: line {number} is not JSON: {error.msg} at character {error.pos + 1}")
            except ValueError as error:
                sys.exit(f"error: line {number}: {error}")
            print(json.dumps(row | found, ensure_ascii=False))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BrokenPipeError:  # of a reader that has seen enough, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except FileNotFoundError as error:
        sys.exit(f"error: no such file: {error.filename}" if error.filename else f"error: {error}")
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
