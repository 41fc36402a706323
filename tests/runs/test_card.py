"""Model cards: the code on each is run as it stands there, and must say what `bertkit predict` says; and the front matter, read
by huggingface_hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard

from bertkit.runs.publishing.card import model_card, pretraining_card
from bertkit.runs.run_file import read_run_file

pytestmark = pytest.mark.e2e
WORDS = "the good bad movie story was unreadable".split()
SHORT = "the unreadable movie was late"
LONG = " ".join(np.random.default_rng(0).choice([*WORDS, "old", "not", "new", "in", "city"], 61).tolist())  # for 24 tokens
KNOWN = " ".join(WORDS * 9)  # likewise, of words that training has
CONTEXT = f"{LONG} printer {LONG}"
QUESTION = "where is the printer"

TABLE = "text\tpair\tkind\tkinds\n" + "".join(
    f"{' '.join(WORDS[at % 5 :])}\t{WORDS[at % 7]}\t{at % 3}\t{'a' * (at % 2)}|{'b' * (at % 3 > 0)}\n" for at in range(30)
)
CHOICES = [{"text": SHORT, "question": "why", "choices": WORDS[at % 3 : at % 3 + 3], "label": at % 2} for at in range(12)]
ANSWERS = [{"question": QUESTION, "context": CONTEXT, "answers": {"text": ["printer"], "answer_start": [len(LONG) + 1]}}] * 4
NO_ANSWERS = [*ANSWERS, *[{"question": QUESTION, "context": LONG, "answers": {"text": [], "answer_start": []}}] * 4]


LONGER = "--max-steps 120 --learning-rate 5e-3".split()  # until a word's tag is known in any sentence


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def tagged(*tags: str) -> str:
    """Sentences of WORDS in any order; a word has the same tag everywhere."""
    orders = [np.random.default_rng(at).permutation(len(WORDS)) for at in range(48)]
    return "\n".join("".join(f"{WORDS[n]} {tags[n % 3]}\n" for n in order) for order in orders)


@pytest.fixture
def train(run_bertkit, make_model_dir: Callable[..., Path], tmp_path: Path) -> Callable[..., str]:
    """A function that trains in the folder "run" on a file of this content, and returns the code on its card."""
    model = make_model_dir("BertModel", seed=3, initializer_range=0.1)

    def train(family: str, content: str, *options: str) -> str:
        name = {"text-classification": "my.tsv", "token-classification": "my.conll"}.get(family, "my.jsonl")
        (tmp_path / name).write_text(content, encoding="utf-8")
        how = "--max-length 24 --precision fp32 --device cpu --no-baselines --max-steps 30 --learning-rate 1e-3 --dropout 0"
        ran = run_bertkit(
            "finetune", family, "--train", name, "--validation", name, "-m", model, "-o", "run", *how.split(), *options
        )
        assert ran.code == 0, ran.err
        (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "run" / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        return code

    return train


@pytest.fixture
def predicted(run_bertkit, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A function that gives what `predict` writes for a row."""

    def predicted(**row: Any) -> dict[str, Any]:
        (tmp_path / "new.jsonl").write_text(lines([row]), encoding="utf-8")
        return json.loads(run_bertkit("predict", "run", "new.jsonl").out)

    return predicted


def said(code: str, run: Path, changes: dict[str, Any]) -> Any:
    """What the code of a card prints, with other values in the place of its examples."""
    printed: list[Any] = []
    for old, new in {"path/to/this/folder": run, **changes}.items():
        assert f'"{old}"' in code, old
        code = code.replace(f'"{old}"', repr(str(new)))
    exec(compile(code, "README.md", "exec"), {"print": printed.append})
    return printed[0]


KINDS = {
    "classes": ("--label", "kind"),
    "labels": ("--label", "kinds", "--multi-label"),
    "number": ("--label", "kind", "--regression"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("truncate", ["head", "tail", "head+tail", "windows"])
@pytest.mark.parametrize("pair", [False, True])
def test_classifiers(kind: str, truncate: str, pair: bool, train, predicted, tmp_path: Path) -> None:
    texts = ("--text", "text", *(("--text-pair", "pair") if pair else ()))
    code = train("text-classification", TABLE, *texts, *KINDS[kind], "--truncate", truncate)
    second = LONG[:30] if truncate == "head" else "no"
    for text in (SHORT, LONG) if truncate == "head" or not pair else (SHORT[:20],):
        found = said(code, tmp_path / "run", {"one": text, "two": second} if pair else {"a text": text})
        expected = predicted(text=text, **({"pair": second} if pair else {}))
        if kind == "labels":
            assert sorted(found) == expected["labels"]
            continue
        if isinstance(found, list):  # of the pipeline
            (found,) = found
        if isinstance(found, dict) and "score" in found:
            found = {found["label"]: found["score"]} if kind == "classes" else found["score"]
        if kind == "number":
            assert found == pytest.approx(expected["prediction"], abs=1e-5)
        else:
            best = max(found, key=found.__getitem__)
            assert (best, found[best]) == (expected["label"], pytest.approx(expected["probability"], abs=1e-5))


def test_chunks_are_of_whole_words(train, predicted, tmp_path: Path) -> None:
    code = train("token-classification", tagged("B-X", "O", "B-Y"), *LONGER)
    for text in (SHORT, KNOWN):
        found = [(each["start"], each["end"], each["entity_group"]) for each in said(code, tmp_path / "run", {"a text": text})]
        expected = [(each["start"], each["end"], each["label"]) for each in predicted(tokens=text.split())["entities"]]
        assert found
        if text == SHORT:
            assert found == expected
        assert max(end for _, end, _ in found) > 0.8 * len(text), "it is read to its end"
        bounds = {place for word in re.finditer(r"\S+", text) for place in word.span()}
        assert {place for start, end, _ in found for place in (start, end)} <= bounds


@pytest.mark.parametrize(
    ("tags", "options"),
    [
        (("DET", "NOUN", "VERB"), ()),
        (("O", "S-X", "S-Y"), ("--scheme", "iobes")),
    ],
)
def test_tags_of_words(tags: tuple[str, ...], options: tuple[str, ...], train, predicted, tmp_path: Path) -> None:
    content = tagged(*tags)
    code = train("token-classification", content, *LONGER, *options)
    for text in (SHORT, KNOWN):
        words, found = zip(*said(code, tmp_path / "run", {"a text in words": text}), strict=True)
        expected = predicted(tokens=text.split())["tags"]
        assert [*words] == text.split()
        same = np.mean([ours == theirs for ours, theirs in zip(found, expected, strict=True)])
        assert same == 1 or (text == KNOWN and same > 0.9), "of a long text the windows lie elsewhere"


@pytest.mark.parametrize("question", [{"question": "who"}, {}])
def test_choices(question: dict[str, str], train, predicted, tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "question" or question} for row in CHOICES]
    code = train("multiple-choice", lines(rows))
    for text in (SHORT, LONG):
        changes = {"a text": text, "a choice": "good movie", "another one": "story"}
        found = said(code, tmp_path / "run", changes | ({"a question?": "who"} if question else {}))
        expected = predicted(text=text, choices=["good movie", "story"], **question)["probabilities"]
        assert [*found.values()] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("rows", [ANSWERS, NO_ANSWERS])
def test_answers(rows: list[dict[str, Any]], train, predicted, tmp_path: Path) -> None:
    code = train("question-answering", lines(rows), "--doc-stride", "8", "--max-answer-length", "5")
    for context in (SHORT, LONG, CONTEXT):
        found = said(code, tmp_path / "run", {"a question?": QUESTION, "a text that answers it": context})
        assert found == predicted(question=QUESTION, context=context)["answer"]


def test_no_answer_by_the_threshold(train, predicted, tmp_path: Path) -> None:
    code = train("question-answering", lines(NO_ANSWERS), "--null-threshold", "-1000")
    assert said(code, tmp_path / "run", {"a question?": QUESTION, "a text that answers it": CONTEXT}) == ""
    assert predicted(question=QUESTION, context=CONTEXT)["answer"] == ""


def test_the_card_names_the_weights_that_transformers_does_not_expect(train, tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification

    rows = [{"tokens": WORDS, "tags": ["O", "B-X", *["O"] * 5], "intent": "ab"[at % 2]} for at in range(12)]
    (tmp_path / "my.jsonl").write_text(lines(rows), encoding="utf-8")
    train("token-classification", "", "--intent", "--train", "my.jsonl", "--validation", "my.jsonl")
    _, info = AutoModelForTokenClassification.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert len(info["unexpected_keys"]) == 2
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in card for name in info["unexpected_keys"])


def test_a_head_of_bertkits_own_has_no_code(train, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unpack"):
        train("token-classification", tagged("O", "B-X", "I-X"), "--head", "crf")
    _, front, body = (tmp_path / "run" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert "(`AutoModel`)" in body
    assert yaml.safe_load(front)["library_name"] == "bertkit"
    assert "pipeline_tag" not in front, "the hub would offer a pipeline whose head has random weights"


def test_the_front_matter_names_a_model_of_the_hub_alone(train, tmp_path: Path) -> None:
    train("text-classification", TABLE, "--text", "text", "--label", "kind")
    run = read_run_file(tmp_path / "run")
    assert run is not None
    (tmp_path / "my\nmodel").mkdir()

    def front(model: str, **changes: Any) -> tuple[Any, str]:
        card = model_card({**run, **changes}, model, "BertForSequenceClassification")
        _, matter, body = card.split("---\n", 2)
        assert yaml.safe_load(matter)["pipeline_tag"] == "text-classification"
        return yaml.safe_load(matter), body

    for name in ("bert-base-uncased", "google/bert_uncased_L-2_H-128_A-2"):
        assert front(name)[0]["base_model"] == name
    for name in (str(tmp_path / "run"), str(tmp_path / "my\nmodel"), "run", "./gone", "minilm", "~/my-bert", "C:\\bert"):
        matter, body = front(name)
        assert "base_model" not in matter
        assert str(tmp_path) not in body
    odd = {**run["recipe"], "name": "/some/where/odd: [name]\n- x.py"}
    assert front("bert-base-uncased", recipe=odd)[0]["tags"] == ["bertkit", "odd: [name] - x"]


def test_the_card_says_that_scores_of_bf16_differ(train, tmp_path: Path) -> None:
    train("text-classification", TABLE, "--text", "text", "--label", "kind")
    run = read_run_file(tmp_path / "run")
    assert run is not None
    cards = [model_card({**run, "dtype": dtype}, "bert", "BertForSequenceClassification") for dtype in ("float32", "bfloat16")]
    assert ["bf16" in card for card in cards] == [False, True]


@pytest.mark.parametrize("family", ["classes", "labels", "tags"])
def test_the_hub_reads_scores_intervals_and_data(family: str, train, run_bertkit, tmp_path: Path) -> None:
    """As `bertkit eval --intervals` gives them."""
    if family == "tags":
        train("token-classification", tagged("O", "B-X", "I-X"), "--language", "en,zh")
    else:
        train("text-classification", TABLE, "--text", "text", *KINDS[family], "--language", "en,zh")
    evaluated = json.loads(run_bertkit("eval", "run", "--intervals", "--json").out)
    intervals = evaluated.pop("intervals")
    card = ModelCard.load(tmp_path / "run" / "README.md")
    expected = {
        name.removeprefix("validation/"): value
        for name, value in evaluated.items()
        if not re.search("loss|threshold|constant", name) and value is not None
    }
    assert len(expected) > 0
    results = card.data.eval_results
    assert results is not None
    assert {each.metric_type: each.metric_value for each in results} == pytest.approx(expected, abs=1e-6)
    run = read_run_file(tmp_path / "run")
    assert run is not None
    for each in results:
        assert each.metric_args == {"interval": pytest.approx(intervals[f"validation/{each.metric_type}"], abs=1e-6)}
        assert each.dataset_args == {
            "rows": run["data"]["validation"]["rows"],
            "sha256": run["data"]["validation"]["rows_sha256"],
        }
        assert (each.dataset_name, each.dataset_split) == (Path(run["data"]["validation"]["source"]).name, "validation")
        low, high = intervals[f"validation/{each.metric_type}"]
        assert f"| validation/{each.metric_type} | {each.metric_value:.4f} | {low:.4f} to {high:.4f} |" in card.text
    assert card.data.language == ["en", "zh"]
    assert str(tmp_path) not in card.content
    assert card.data.to_dict()["model-index"] == yaml.safe_load(card.content.split("---\n")[1])["model-index"]


def test_the_request_on_the_card_is_a_row_of_the_model(train, tmp_path: Path) -> None:
    import bertkit

    for family, content, options in (
        ("text-classification", TABLE.replace("pair", "text_pair"), ("--label", "kind")),
        ("token-classification", tagged("O", "B-X", "I-X"), ()),
        ("multiple-choice", lines(CHOICES), ()),
        ("question-answering", lines(ANSWERS), ("--doc-stride", "8")),
    ):
        train(family, content, *options, "--overwrite")
        card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
        (request,) = re.findall(r"-d '(.*)'$", card, re.MULTILINE)
        assert len(bertkit.load(tmp_path / "run").predict([json.loads(request)["inputs"]])) == 1


def test_names_are_no_marks(train, tmp_path: Path) -> None:
    train("text-classification", TABLE, "--text", "text", "--label", "kind")
    run = read_run_file(tmp_path / "run")
    assert run is not None
    odd = "a|b<script>`[x](y)\n# z &amp; *_c_*"
    run["data"]["train"]["source"] = run["data"]["validation"]["source"] = f"/private/{odd}.csv"
    run["task"]["labels"] = [odd, "snake_case"]
    card = model_card(run, "bert", "BertForSequenceClassification")
    body = card.split("---\n", 2)[2]
    escaped = r"a\|b\<script\>\`\[x\](y) \# z \&amp; \*\_c\_\*"
    assert f"Labels: {escaped}, snake_case." in body
    assert f"| {escaped}.csv |" in body
    assert not re.search(r"(?<!\\)<script|/private|^# z", body, re.MULTILINE)
    (tmp_path / "card.md").write_text(card, encoding="utf-8")
    results = ModelCard.load(tmp_path / "card.md").data.eval_results
    assert results is not None
    assert {each.dataset_name for each in results} == {" ".join(odd.split()) + ".csv"}


def test_a_data_set_of_the_hub_is_named(train, tmp_path: Path) -> None:
    train("text-classification", TABLE, "--text", "text", "--label", "kind")
    run = read_run_file(tmp_path / "run")
    assert run is not None
    run["recipe"] |= {
        "train": None,
        "validation": None,
        "dataset": {"hub": {"path": "nyu-mll/glue", "name": "mrpc", "revision": None}},
    }
    (tmp_path / "card.md").write_text(model_card(run, "bert", "BertForSequenceClassification"), encoding="utf-8")
    data = ModelCard.load(tmp_path / "card.md").data
    assert data.datasets == ["nyu-mll/glue"]
    assert {(each.dataset_type, each.dataset_config) for each in data.eval_results or ()} == {("nyu-mll/glue", "mrpc")}


def test_names_on_the_card_of_a_corpus_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder given as "." it is the folder's own name."""
    training = {
        "objective": "mlm",
        "phases": [],
        "max_length": 8,
        "masking": "token",
        "batch_size": 1,
        "learning_rate": 1,
        "seed": 1,
    }
    run = {
        "best": {"scores": {}, "step": 1},
        "last": {"step": 1},
        "training": training,
        "model": {"name": "/x/a*model*", "sha256": ""},
        "data": {"corpus": {"source": "/x/_<b>corpus_"}},
        "versions": {},
    }
    card = pretraining_card(run)
    assert r"# BERT, pre-trained on \_\<b\>corpus\_" in card
    assert r"Continued pre-training from a\*model\*, by" in card
    (tmp_path / "a_base").mkdir()
    monkeypatch.chdir(tmp_path / "a_base")
    run["model"]["name"] = "."
    assert "Continued pre-training from a_base, by" in pretraining_card(run)
