"""The routes: requests in the form of text-embeddings-inference, explanations, limits, and invalid requests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import transformers
from serving import Gate, flat, listening, serving, with_mask
from starlette.testclient import TestClient
from trained import train

import bertkit

pytestmark = pytest.mark.e2e
LABELS = ("blame", "none", "praise")
CPU = {"device": "cpu", "precision": "fp32"}
SECRET = "the hidden ticket"
LOCAL = "http://localhost"


@pytest.fixture(scope="module")
def folders(make_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each family; `trained` reads single texts from the column `ask`, `quiz` choices from columns of their own."""
    how: dict[str, Any] = {"seed": 3, "initializer_range": 0.5}
    folder = tmp_path_factory.mktemp("serve")
    texts = [f"the good movie {number % 10}" for number in range(24)]
    (folder / "rows.csv").write_text("ask,kind\n" + "".join(f"{text},{'ab'[i % 2]}\n" for i, text in enumerate(texts)))
    (folder / "pairs.csv").write_text("ask,reply,kind\n" + "".join(f"{t},no {i},{'ab'[i % 2]}\n" for i, t in enumerate(texts)))
    quiz = "".join(f"{text},one {i % 7},two {i % 5},{i % 2}\n" for i, text in enumerate(texts))
    (folder / "quiz.csv").write_text("story,end1,end2,right\n" + quiz)
    base = make_model_dir("BertModel", **how)
    columns = {"text": "story", "choices": "end1,end2", "label": "right"}
    return {
        "labels": make_model_dir("BertForSequenceClassification", labels=LABELS, **how),
        "sets": make_model_dir(
            "BertForSequenceClassification", labels=LABELS, problem_type="multi_label_classification", **how
        ),
        "number": make_model_dir("BertForSequenceClassification", num_labels=1, problem_type="regression", **how),
        "tags": make_model_dir("BertForTokenClassification", labels=("O", "B-X", "I-X"), **how),
        "answers": make_model_dir("BertForQuestionAnswering", **how),
        "choices": make_model_dir("BertForMultipleChoice", **how),
        "fills": make_model_dir("BertForMaskedLM", **how),
        "trained": train(folder / "run", base, folder / "rows.csv", text="ask", label="kind"),
        "quiz": train(folder / "quiz", base, folder / "quiz.csv", family="multiple-choice", **columns),
        "joined": train(folder / "joined", base, folder / "pairs.csv", text="ask,reply", label="kind"),
        "replies": train(folder / "replies", base, folder / "pairs.csv", text="ask", text_pair="reply", label="kind"),
    }


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]) -> Iterator[TestClient]:
    with serving(folders) as served:
        yield TestClient(served.app, base_url=LOCAL)


def ask(client: TestClient, path: str, inputs: Any, **more: Any) -> Any:
    response = client.post(path, json={"inputs": inputs, **more})
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: Any, status: int) -> str:
    """The one line of an error with this status."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error
    assert "\n" not in error
    return error


# --- answers -----------------------------------------------------------------------------------------------------------


def test_predict_as_text_embeddings_inference_does(client: TestClient, folders: dict[str, Path]) -> None:
    oracle = transformers.pipeline("text-classification", model=str(folders["labels"]), device="cpu", top_k=None)
    single, pair, other = "the movie", {"text": "the movie", "text_pair": "a book"}, {"text": "we", "text_pair": "no"}
    expected = [
        [(each["label"], pytest.approx(each["score"], abs=1e-5)) for each in oracle([row])[0]] for row in (single, pair, other)
    ]

    def pairs(answer: Any) -> list[tuple[str, float]]:
        return [(each["label"], each["score"]) for each in answer]

    assert pairs(ask(client, "/predict", single)) == expected[0]
    assert pairs(ask(client, "/predict", ["the movie", "a book"], raw_scores=False, truncate=True)) == expected[1]
    batch = ask(client, "/predict", [["the movie", "a book"], ["we", "no"]])
    assert [*map(pairs, batch)] == expected[1:]
    assert [*map(pairs, ask(client, "/predict", [["the movie"], ["the movie", "a book"], ["we", "no"]]))] == expected
    assert len({each[0][0] for each in map(pairs, batch)} | {expected[0][0][0]}) > 1
    for more in ({"raw_scores": True}, {"truncate": False}, {"raw_scores": "no"}):
        refused(client.post("/predict", json={"inputs": single, **more}), 422)
    assert "POST /models/tags" in refused(client.post("/predict", json={"inputs": single, "model": "tags"}), 424)


def test_choices(client: TestClient, folders: dict[str, Path]) -> None:
    row = {"text": "we like", "choices": ["it", "the movie", "no"]}
    (expected,) = bertkit.load(folders["choices"], **CPU).predict([row])
    found = ask(client, "/predict", row, model="choices")
    assert found == ask(client, "/models/choices", row)[0] == ask(client, "/predict", [row], model="choices")[0]
    assert found[0]["label"] == row["choices"][expected.value]
    assert {each["label"]: each["score"] for each in found} == pytest.approx(dict(zip(row["choices"], expected.probabilities)))
    (by_column,) = bertkit.load(folders["quiz"], **CPU).predict([{"story": "we", "end1": "a", "end2": "no"}])
    for row in ({"text": "we", "choices": ["a", "no"]}, {"story": "we", "end1": "a", "end2": "no"}):
        found = ask(client, "/predict", row, model="quiz")
        assert {each["label"]: each["score"] for each in found} == pytest.approx(
            dict(zip(["a", "no"], by_column.probabilities))
        )
    refused(client.post("/predict", json={"inputs": {"text": "we", "choices": ["a", "b", "c"]}, "model": "quiz"}), 422)
    refused(client.post("/predict", json={"inputs": {"text": "we", "choices": ["a"]}, "model": "quiz"}), 422)


def test_several_labels_and_numbers(client: TestClient, folders: dict[str, Path]) -> None:
    for name, applied in (("sets", "sigmoid"), ("number", "none")):
        oracle = transformers.pipeline("text-classification", model=str(folders[name]), device="cpu", top_k=None)
        (found,) = ask(client, f"/models/{name}", "the movie", parameters={"function_to_apply": applied, "truncation": True})
        assert {each["label"]: each["score"] for each in found} == pytest.approx(
            {each["label"]: each["score"] for each in oracle(["the movie"])[0]}, abs=1e-5
        )
        asked = {"inputs": "a", "parameters": {"function_to_apply": "softmax"}}
        assert f"expected {applied}" in refused(client.post(f"/models/{name}", json=asked), 422)


def test_rows_are_named_by_role_or_by_the_columns_of_training(client: TestClient) -> None:
    by_text = ask(client, "/models/trained", "the good movie")
    assert by_text == ask(client, "/models/trained", {"text": "the good movie"})
    assert by_text == ask(client, "/models/trained", {"ask": "the good movie"})
    first, _ = ask(client, "/models/trained", ["the good movie", "no"])
    assert flat(first) == pytest.approx(flat(by_text[0]), abs=1e-5)
    for pair, said in (
        ({"text": "a", "text_pair": "b"}, "inputs has 'text_pair'; 'trained' is for text-classification, and reads text"),
        (["a", "b"], 'inputs is a pair; \'trained\' reads single texts, several of them as [["one"], ["another"]]'),
    ):
        assert refused(client.post("/predict", json={"inputs": pair, "model": "trained"}), 422) == said
    assert len(ask(client, "/predict", [["a"], ["b"]], model="trained")) == 2
    parts, whole = ({"ask": "the good movie", "reply": "no"}, "the good movie no")
    for twice in ({"text": "a", "ask": "b"}, {"ask": "b", "text": "a"}, {"ask,reply": "a", "reply": "b"}):
        assert "twice" in refused(client.post("/models/joined", json={"inputs": twice}), 422)
    assert flat(ask(client, "/models/joined", parts)) == pytest.approx(flat(ask(client, "/models/joined", whole)), abs=1e-5)
    assert len(ask(client, "/predict", [["a", "b"], ["c", "d"]], model="replies")) == 2
    said = refused(client.post("/predict", json={"inputs": [["a", "b"], ["c"]], "model": "replies"}), 422)
    assert said == "inputs[1] is a single text; 'replies' reads pairs"


def test_each_family_by_the_form_of_hugging_face(client: TestClient) -> None:
    words = ask(client, "/models/tags", {"tokens": ["the", "good", "movie"]}, parameters={"aggregation_strategy": "none"})
    assert {word["word"] for word in words} <= {"the", "good", "movie"}
    both = {"inputs": {"tokens": ["the", "movie"], "text": "the movie"}}
    assert "both a text and tokens" in refused(client.post("/models/tags", json=both), 422)
    several = ask(client, "/models/tags", ["the good movie", "a book"])
    alone = [ask(client, "/models/tags", "the good movie"), ask(client, "/models/tags", "a book")]
    assert flat(several) == pytest.approx(flat(alone), abs=1e-5)
    question = {"question": "who", "context": ""}
    assert ask(client, "/models/answers", question) == {"answer": "", "score": 0.0, "start": 0, "end": 0}
    assert len(ask(client, "/models/answers", [question, {**question, "context": "we like it"}])) == 2
    assert len(ask(client, "/models/fills", "the [MASK]", parameters={"top_k": 100})) == 100


def test_explanations(client: TestClient, folders: dict[str, Path]) -> None:
    predictor = bertkit.load(folders["labels"], **CPU)
    for label in (None, *LABELS):
        expected = predictor.explain(["the good movie", "a book"], label)
        found = ask(client, "/explain", [["the good movie"], ["a book"]], label=label)
        assert [each["label"] for each in found] == [each.label for each in expected]
        for ours, theirs in zip(found, expected):
            assert [word for word, _ in ours["words"]] == [word for word, _ in theirs.words]
            assert [value for _, value in ours["words"]] == pytest.approx([value for _, value in theirs.words], abs=1e-5)
    both = ask(client, "/explain", [["a", "b"], ["c"]])
    assert [[word for word, _ in each["words"]] for each in both] == [["a", "b"], ["c"]]
    assert flat(ask(client, "/explain", "a book")) == pytest.approx(flat(ask(client, "/explain", [["a book"]])[0]))
    assert "no label 'other'; known: blame, none, praise" in refused(
        client.post("/explain", json={"inputs": "a", "label": "other"}), 422
    )
    refused(client.post("/explain", json={"inputs": "a", "label": 3}), 422)
    assert "tags has no explanations" in refused(client.post("/explain", json={"inputs": "a", "model": "tags"}), 424)


# --- what a server says of itself --------------------------------------------------------------------------------------


def test_info(client: TestClient) -> None:
    info = client.get("/info").json()
    assert info["model_type"] == {"classifier": {"id2label": dict(zip("012", LABELS)), "label2id": dict(zip(LABELS, range(3)))}}
    assert (info["model_id"], info["max_batch_tokens"], info["max_input_length"]) == ("labels", 1024, 64)
    models = {model["name"]: model for model in info["models"]}
    assert models["labels"]["columns"] == {"text": "text", "text_pair": "text_pair"}
    assert (models["trained"]["columns"], models["trained"]["labels"]) == ({"text": "ask"}, ["a", "b"])
    assert models["quiz"]["columns"] == {"text": "story", "choices": ["end1", "end2"]}
    assert models["answers"]["columns"] == {"question": "question", "context": "context"}
    assert models["fills"]["family"] == "fill-mask"
    assert {name for name, model in models.items() if model["explains"]} == {
        "labels",
        "sets",
        "number",
        "trained",
        "joined",
        "replies",
    }
    assert [name for name, model in models.items() if model["multi_label"]] == ["sets"]
    assert {name: model["mask_token"] for name, model in models.items() if model["mask_token"]} == {"fills": "[MASK]"}


def test_a_model_with_another_mask_says_which(folders: dict[str, Path], tmp_path: Path) -> None:
    with serving({"fills": with_mask("<gap>", folders["fills"], tmp_path / "fills")}) as served:
        client = TestClient(served.app, base_url=LOCAL)
        assert client.get("/info").json()["models"][0]["mask_token"] == "<gap>"
        assert len(ask(client, "/", "the <gap>")) == 5
        assert "no <gap> in the text" in refused(client.post("/", json={"inputs": "the [MASK]"}), 422)


def test_metrics(folders: dict[str, Path]) -> None:
    with serving({"m": folders["labels"]}) as served:
        client = TestClient(served.app, base_url=LOCAL)
        for inputs in ("a", "the movie", ["a", "b"], 3):
            client.post("/", json={"inputs": inputs})
        lines = client.get("/metrics").text.splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]+"\})?', name) for name in samples)
    assert {line.split()[3] for line in lines if line.startswith("# TYPE ")} == {"counter", "gauge", "histogram"}
    counts = {'te_request_count{method="single"}': 3, 'te_request_count{method="batch"}': 1, "te_request_duration_count": 4}
    counts |= {'te_request_success{method="single"}': 2, 'te_request_failure{err="Validation"}': 1, "te_queue_size": 0}
    counts |= {"te_request_inference_duration_count": 3, "te_request_input_length_sum": 3 + 4 + 6, "te_batch_next_size_sum": 3}
    assert {name: float(samples[name]) for name in counts} == counts
    buckets = [float(value) for name, value in samples.items() if name.startswith("te_request_duration_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 4
    assert 'te_request_duration_bucket{le="+Inf"}' in samples


def test_the_docs_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"https?:|//|<script|<link|<img|url\(", page.text)
    schema = client.get("/openapi.json").json()
    assert schema["openapi"].startswith("3.")
    for path in ("/", "/models/{model}", "/predict", "/explain", "/info", "/health", "/metrics"):
        assert path in schema["paths"]
        assert f" {path}</h2>" in page.text


@pytest.mark.parametrize("name", ["labels", "tags", "answers", "choices", "fills", "trained", "quiz"])
def test_the_examples_fit_the_first_model_and_name_nothing_of_it(folders: dict[str, Path], name: str) -> None:
    with serving({"hidden": folders[name]}) as served:
        client = TestClient(served.app, base_url=LOCAL)
        schema = client.get("/openapi.json").json()
        assert not re.search("hidden|praise|blame|kind|story", json.dumps(schema) + client.get("/docs").text)
        posts = {path: methods["post"] for path, methods in schema["paths"].items() if "post" in methods}
        assert ("/predict" in posts) == (name in ("labels", "choices", "trained", "quiz"))
        assert ("/explain" in posts) == (name in ("labels", "trained"))
        for path, post in posts.items():
            example = post["requestBody"]["content"]["application/json"]["schema"]["example"]
            assert client.post(path.format(model="hidden"), json=example).status_code == 200, (path, example)


def test_health(folders: dict[str, Path]) -> None:
    with serving({"m": folders["labels"]}) as served:
        client = TestClient(served.app, base_url=LOCAL)
        assert client.get("/health").status_code == 200
        served.batcher.close()
        refused(client.get("/health"), 503)
        refused(client.post("/", json={"inputs": "a"}), 503)


# --- limits ------------------------------------------------------------------------------------------------------------


def test_too_many_requests_and_too_late_an_answer(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"m": folders["labels"]}, max_queue=1, timeout=2.0) as served:
        gate = Gate(served.models["m"], monkeypatch)
        with listening(served.app) as url, ThreadPoolExecutor(2) as threads:
            import httpx2

            first = threads.submit(httpx2.post, url, json={"inputs": "a"})
            assert gate.reached.wait(60)
            waiting = threads.submit(httpx2.post, url, json={"inputs": "b"})
            end = time.monotonic() + 60
            while not served.batcher.queue_size:
                assert time.monotonic() < end
                time.sleep(0.001)
            full = httpx2.post(url, json={"inputs": "c"})
            assert full.headers["retry-after"] == "1"
            refused(full, 429)
            assert httpx2.get(f"{url}/health").status_code == 200
            for late in (first, waiting):
                assert "no answer within 2 s" in refused(late.result(60), 503)
                assert late.result().headers["retry-after"] == "1"
            gate.opened.set()
    assert gate.sizes == [1], "the one that nobody waits for any more was computed"


def test_large_requests(folders: dict[str, Path]) -> None:
    with serving({"m": folders["labels"]}, max_request_bytes=1000, max_request_tokens=50) as served:
        client = TestClient(served.app, base_url=LOCAL)
        assert "more than 1000 bytes" in refused(client.post("/", json={"inputs": "a" * 1000}), 413)
        body = (b'{"inputs": "%s"}' % (b"a" * 10) for _ in range(1000))  # in parts, of no length that is said before
        refused(client.post("/", content=body, headers={"Content-Type": "application/json"}), 413)
        assert "70 tokens; expected at most 50" in refused(client.post("/", json={"inputs": ["a b c"] * 14}), 413)
        refused(client.post("/explain", json={"inputs": [["a b c"]] * 14}), 413)
        assert client.post("/", json={"inputs": ["a b c"] * 10}).status_code == 200


def test_rows_of_several_forms_are_one_request(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"the {word}" for word in ("movie", "book", "river")]
    mixed = [rows[0], {"text": rows[1]}, rows[2], {"text": rows[0], "text_pair": "a"}, {"text_pair": "a", "text": rows[1]}] * 4
    with serving({"m": folders["labels"]}, max_request_tokens=100) as served:
        client = TestClient(served.app, base_url=LOCAL)
        alone = [ask(client, "/", [row])[0] for row in mixed]
        gate = Gate(served.models["m"], monkeypatch, is_open=True)
        assert flat(ask(client, "/", mixed)) == pytest.approx(flat(alone), abs=1e-5)
        assert sum(gate.sizes) == len(mixed)
        assert len(gate.sizes) <= 3
        gate.sizes.clear()
        assert "102 tokens; expected at most 100" in refused(
            client.post("/", json={"inputs": [*mixed, "the good movie a"]}), 413
        )
        assert gate.sizes == [], "a part was computed"


def test_a_request_that_does_not_come(folders: dict[str, Path]) -> None:
    import socket

    with serving({"m": folders["labels"]}, timeout=0.2) as served, listening(served.app) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            connection.sendall(head)
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_token_is_asked_for_everywhere_but_for_health_and_docs(folders: dict[str, Path]) -> None:
    with serving({"m": folders["labels"]}, token="secr\u00e9t") as served:
        client = TestClient(served.app, base_url=LOCAL)
        asked = {"inputs": "a"}
        for path in ("/", "/models/m", "/models/none", "/predict", "/explain"):
            for header in ("", "Bearer", "Bearer other", "secr\u00e9t", "Basic secr\u00e9t"):
                response = client.post(path, json=asked, headers={"Authorization": header.encode()})
                refused(response, 401)
                assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/info", "/metrics"):
            refused(client.get(path), 401)
        for path in ("/health", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200
        right = {"Authorization": "Bearer secr\u00e9t".encode()}
        assert client.post("/", json=asked, headers=right).status_code == client.get("/info", headers=right).status_code == 200


@pytest.mark.parametrize("options", [{}, {"token": "x"}, {"host": "0.0.0.0", "auth": False}])
def test_names_of_other_hosts(folders: dict[str, Path], options: dict[str, Any]) -> None:
    """A page whose own name leads to this machine may read all answers, for a browser takes them for its own."""
    with serving({"m": folders["labels"]}, **options) as served:
        for host in ("localhost:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000"):
            assert TestClient(served.app).get("/health", headers={"Host": host}).status_code == 200
        for host in ("evil.example", "localhost.evil.example:8000", "192.0.2.1", "127.0.0.1.evil.example", "[", ""):
            for path in ("/", "/health", "/info", "/openapi.json", "/docs"):
                if path in ("/", "/health") or not options:
                    response = TestClient(served.app).get(path, headers={"Host": host})
                    assert response.status_code == (200 if options else 403), (host, path)


# --- what nobody should send -------------------------------------------------------------------------------------------

DEEP = "[" * 100_000 + "]" * 100_000
BODIES = [
    "",
    "{",
    "null",
    "3",
    '"text"',
    "[]",
    "{}",
    DEEP,
    f'{{"inputs": {DEEP}}}',
    f'{{"inputs": {"[" * 900}{"]" * 900}}}',
    '{"inputs": NaN}',
    '{"inputs": [-Infinity]}',
    '{"inputs": 1e999}',
    f'{{"inputs": {"9" * 5000}}}',
    f'{{"inputs": {"9" * 4000}}}',
    '{"inputs": "\\ud800"}',
    '{"inputs": {"text": "a", "\\udfff": "b"}}',
    '{"inputs": "a", "inputs": null}',
    b'{"inputs": "\xff"}',
    '{"inputs": "a"}'.encode("utf-16"),
]
INPUTS: list[Any] = [None, True, 3, 0.5, [], {}, [[]], [None], [3], ["a", 3], [["a", 3]], [["a", "b", "c"]], [["a", ["b"]]]]
INPUTS += [
    {"text": None},
    {"text": ["a"]},
    {"text": {"a": 1}},
    {"other": "a"},
    {"text": "a", "text_pair": None},
    [{"text": "a"}, "b"],
]
INPUTS += [
    {"question": 1, "context": "a"},
    {"question": "a"},
    {"text": "a", "choices": "b"},
    {"text": "a", "choices": [1, None]},
]
INPUTS += [
    {"text": "a", "choices": [["b"], ["c"]]},
    {"text": "a", "choices": {}},
    {"tokens": [1]},
    {"tokens": "a"},
    {"tokens": []},
]
INPUTS += ["", " ", "\x00", "\u202e\ufeff", "[MASK]" * 500, "a" * 50_000, "\U0001f600" * 600]
PARAMETERS: list[Any] = [
    3,
    "top_k",
    [],
    {"top_k": 0},
    {"top_k": -1},
    {"top_k": "2"},
    {"top_k": True},
    {"top_k": 1.5},
    {"top_k": [1]},
]
PARAMETERS += [{"other": 1}, {"function_to_apply": ["softmax"]}, {"function_to_apply": {}}, {"aggregation_strategy": []}]
PARAMETERS += [
    {"ignore_labels": "O"},
    {"ignore_labels": [1]},
    {"targets": "a"},
    {"targets": []},
    {"targets": [None]},
    {"": None, "a": {}},
]
NAMES = ["labels", "sets", "number", "tags", "answers", "choices", "fills", "trained", "quiz"]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:40]))
def test_bodies_that_are_no_request(client: TestClient, body: str | bytes) -> None:
    for path in ("/", "/predict", "/explain", "/models/tags"):
        response = client.post(path, content=body, headers={"Content-Type": "application/json; charset=utf-8"})
        assert 400 <= response.status_code < 500, (path, response.text)
        refused(response, response.status_code)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_wrong_types(client: TestClient, name: str) -> None:
    for inputs in INPUTS:
        for path in (f"/models/{name}", "/predict", "/explain"):
            response = client.post(path, json={"inputs": inputs, "model": name})
            assert response.status_code < 500, (path, inputs, response.text)
            if response.status_code != 200:
                assert len(refused(response, response.status_code)) < 600


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_wrong_types(client: TestClient, name: str) -> None:
    for parameters in PARAMETERS:
        refused(client.post(f"/models/{name}", json={"inputs": "a [MASK]", "parameters": parameters}), 422)


@pytest.mark.parametrize(
    ("path", "asked", "said"),
    [
        ("/", {"parametres": {}}, "unknown key 'parametres'; expected inputs, parameters, options, model"),
        ("/", {"label": "none"}, "unknown key 'label'"),
        ("/", {"options": {"use_gpu": True}}, "unknown key 'use_gpu'; expected use_cache, wait_for_model"),
        ("/", {"options": 3}, "3 is not an object"),
        ("/predict", {"parameters": {}}, "unknown key 'parameters'; expected inputs, raw_scores, truncate, model"),
        ("/explain", {"labels": "none"}, "unknown key 'labels'; expected inputs, label, model"),
        ("/", {"parameters": [1]}, "parameters is [1]; expected an object"),
        ("/", {"inputs": {"text": "a", "foo": 1}}, "inputs has 'foo'; 'labels' is for text-classification, and reads text"),
        ("/", {"inputs": ["a", {"text": ["b"]}]}, "(rows:1)"),
        ("/", {"inputs": ["a", 3]}, 'inputs[1] is 3; expected a string, or an object with "text", "text_pair"'),
        ("/models/answers", {"inputs": "only text"}, 'inputs is \'only text\'; expected an object with "question", "context"'),
        ("/models/choices", {"inputs": "a"}, 'expected an object with "text", "question", "choices"'),
        ("/models/tags", {"inputs": {"question": "a", "context": "b"}}, "for question-answering: POST /models/answers"),
        ("/models/trained", {"inputs": {"context": "b", "question": "a"}}, "; for question-answering: POST /models/answers"),
        ("/models/answers", {"inputs": {"text": "a"}}, "reads question, context; for text-classification: POST /models/labels"),
        (
            "/models/trained",
            {"inputs": {"text": "a", "ask": "b"}},
            "inputs gives 'ask' twice: by this name, and as one of text",
        ),
        (
            "/models/trained",
            {"inputs": {"ask": "a", "text": "b"}},
            "inputs gives 'ask' twice: by this name, and as one of text",
        ),
        ("/models/quiz", {"inputs": {"text": "a", "end1": "b", "choices": ["c", "d"]}}, "inputs gives 'end1' twice"),
        (
            "/models/tags",
            {"model": "labels"},
            "the path names the model 'tags', and the request 'labels'; leave one of them out",
        ),
        ("/", {"parameters": {"function_to_apply": "foo"}}, "function_to_apply is 'foo'; expected softmax, as in training"),
        ("/", {"parameters": {"top_k": 2.5}}, "top_k is 2.5; expected a whole number from 1"),
    ],
)
def test_what_is_not_read_is_refused(client: TestClient, path: str, asked: dict[str, Any], said: str) -> None:
    assert said in refused(client.post(path, json={"inputs": "a", **asked}), 422)


def test_options_of_the_hub_change_nothing(client: TestClient) -> None:
    assert ask(client, "/", "a", options={"wait_for_model": True, "use_cache": False}) == ask(client, "/", "a", options=None)


def test_more_fills_than_are_computed(client: TestClient, folders: dict[str, Path]) -> None:
    vocab = sorted(bertkit.load(folders["fills"], **CPU).pretrained.tokenizer.vocab)
    asked: dict[str, Any] = {"inputs": "a [MASK]"}
    for parameters, said in (
        ({"top_k": 101}, "top_k is 101; expected at most 100"),
        ({"targets": vocab[:101]}, "expected a list of 1 to 100 tokens"),
    ):
        assert said in refused(client.post("/models/fills", json={**asked, "parameters": parameters}), 422)
    assert len(ask(client, "/models/fills", **asked, parameters={"targets": vocab[:100], "top_k": 100})) == 100
    assert len(ask(client, "/models/labels", "a", parameters={"top_k": 1000})[0]) == 3, "of labels there are no more"


def test_a_long_text_is_not_repeated_for_each_of_many_masks(client: TestClient) -> None:
    text = "[MASK] " * 100 + "x" * 10**5
    said = refused(client.post("/models/fills", json={"inputs": text, "parameters": {"top_k": 20}}), 422)
    assert f"{len(text)} characters {62 * 20} times" in said, "for the masks among the 64 tokens that the model reads"
    answers = ask(client, "/models/fills", inputs="[MASK] " * 3 + "x" * 10**5)
    assert [len(fills) for fills in answers] == [5, 5, 5]


def test_what_else_is_no_request(client: TestClient) -> None:
    for content, said in (("", "the request is empty; expected JSON"), ("a", "the request is not JSON: Expecting value")):
        assert said in refused(client.post("/", content=content, headers={"Content-Type": "application/json"}), 400)
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        refused(client.post("/", content='{"inputs": "a"}', headers={"Content-Type": kind}), 415)
    for model in ("other", 3, ["labels"], {"labels": 1}, ""):
        assert "known: labels, " in refused(client.post("/predict", json={"inputs": "a", "model": model}), 404)
    refused(client.post("/models/other", json={"inputs": "a"}), 404)
    refused(client.get("/nowhere"), 404)
    refused(client.get("/predict"), 405)


def test_an_error_of_the_models_own_tells_nobody_the_text(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving({"m": folders["labels"]}) as served:

        def decode(split: Any) -> Any:
            raise RuntimeError(f"cannot compute {split.examples.columns['text']}")

        monkeypatch.setattr(served.models["m"].predictor, "decode", decode)
        client = TestClient(served.app, base_url=LOCAL)
        assert SECRET not in refused(client.post("/", json={"inputs": SECRET}), 500)
        assert client.post("/", json={"inputs": [SECRET, 3]}).status_code == 422
    out, err = capfd.readouterr()
    assert (out, err.strip()) == ("", "warning: a request failed: RuntimeError")


def test_texts_are_printed_only_where_that_was_asked_for(folders: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    for log_texts in (False, True):
        with serving({"m": folders["labels"]}, log_texts=log_texts) as served, listening(served.app) as url:
            import httpx2

            for path in ("/", "/nowhere"):
                httpx2.post(url + path, json={"inputs": SECRET})
            httpx2.post(url, json={"inputs": [SECRET, 3]})
        out, err = capfd.readouterr()
        assert out == ""
        assert [json.loads(line)["status"] for line in err.splitlines()] == ([200, 422] if log_texts else [])
        assert (SECRET in err) == log_texts
