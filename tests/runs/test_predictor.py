"""bertkit.load: predictions in any form of rows; vectors, explanations and scores of texts, with transformers as the oracle."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from trained import train

import bertkit
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.model import int8
from bertkit.model.devices import OneProcess
from bertkit.model.precision import Precision
from bertkit.model.pretrained import open_pretrained
from bertkit.readers import Examples
from bertkit.runs.inference import predictor as module
from bertkit.runs.inference.language_model import Filled, LanguageModelPredictor, filled_text
from bertkit.tasks.presentation import Prediction

pytestmark = pytest.mark.e2e
TEXTS = ["the good movie", "a bad book, broken", "no", "we like the story of a river bank", "", "open the new ticket"]
FP32 = {"device": "cpu", "precision": "fp32"}


@pytest.fixture(scope="module")
def classifier(make_model_dir: Callable[..., Path]) -> Path:
    labels = ("blame", "none", "praise")
    return make_model_dir("BertForSequenceClassification", seed=3, initializer_range=0.5, labels=labels)


@pytest.fixture(scope="module")
def run(make_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose text is in the column `ask`."""
    folder = tmp_path_factory.mktemp("run")
    rows = "".join(f"{text or 'why'},{'ab'[i % 2]}\n" for i, text in enumerate(text.replace(",", "") for text in TEXTS * 2))
    (folder / "rows.csv").write_text("ask,kind\n" + rows, encoding="utf-8")
    model = make_model_dir("BertModel", seed=5, initializer_range=0.5)
    return train(folder / "run", model, folder / "rows.csv", text="ask", label="kind", max_length=32)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.readers.ROWS", 2)


# --- predictions ---------------------------------------------------------------------------------------------------------


def test_predictions_are_those_of_transformers(classifier: Path, small_windows: None) -> None:
    pipeline = transformers.pipeline("text-classification", model=str(classifier), device="cpu")
    found = bertkit.load(classifier, **FP32).predict(TEXTS)
    assert [prediction.value for prediction in found] == [each["label"] for each in pipeline(TEXTS)]
    assert [prediction.probability for prediction in found] == pytest.approx(
        [each["score"] for each in pipeline(TEXTS)], abs=1e-5
    )
    assert len({prediction.value for prediction in found}) > 1
    assert bertkit.load(classifier, **FP32).predict([]) == []


def test_rows_are_texts_pairs_or_columns_by_the_names_of_training(run: Path, classifier: Path) -> None:
    predictor = bertkit.load(run, **FP32)
    by_text = predictor.predict(TEXTS)
    assert [each.value for each in predictor.predict([{"ask": text} for text in TEXTS])] == [each.value for each in by_text]
    with pytest.raises(DataError, match="ask"):
        predictor.predict([{"text_of_another": "no"}])
    pairs = bertkit.load(classifier, **FP32)
    as_pair, alone = pairs.predict([("the good movie", "no")]), pairs.predict(["the good movie"])
    by_column = pairs.predict([{"text": "the good movie", "text_pair": "no"}])
    assert as_pair[0].probability == by_column[0].probability != alone[0].probability


@pytest.mark.parametrize("row", [3, None, ["a", "b", "c"], ("a", "b"), [1, 2], b"text"])
def test_other_rows_are_named(run: Path, row: Any) -> None:
    with pytest.raises(DataError) as error:
        bertkit.load(run, **FP32).predict(["no", row])
    assert error.value.where == "rows:1"


@pytest.mark.parametrize("rows", ["a text", {"ask": "a text"}])
def test_one_row_is_not_many(run: Path, rows: Any) -> None:
    with pytest.raises(UsageError):
        bertkit.load(run, **FP32).predict(rows)


def test_they_stream_in_bounded_memory(run: Path, small_windows: None) -> None:
    read: list[int] = []

    def rows() -> Iterator[str]:
        for number in range(1000):
            read.append(number)
            yield TEXTS[number % len(TEXTS)]

    predictor = bertkit.load(run, **FP32)
    found = predictor.predict(rows())
    first = next(iter(found))
    assert len(read) == 2
    assert first.value == predictor.predict(TEXTS)[0].value
    assert [next(iter(found)).value for _ in range(5)] == [each.value for each in predictor.predict(TEXTS)][1:]


def test_a_list_is_predicted_at_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small first windows bring the first answers of a stream early; of a list all come together."""
    predictor = bertkit.load(run, **FP32)
    sizes: list[int] = []
    whole = predictor.predict_examples
    monkeypatch.setattr(predictor, "predict_examples", lambda examples: sizes.append(len(examples)) or whole(examples))
    rows = [TEXTS[number % len(TEXTS)] for number in range(200)]
    of_list, of_stream = predictor.predict(rows), [*predictor.predict(iter(rows))]
    assert sizes[0] == 200 > sizes[1]
    assert [each.value for each in of_list] == [each.value for each in of_stream]


def test_they_are_what_the_command_writes(run: Path, run_bertkit, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("ask\n" + "".join(f'"{text or "why"}"\n' for text in TEXTS), encoding="utf-8")
    ran = run_bertkit("predict", run, "new.csv", "--format", "jsonl", "--device", "cpu", "--precision", "fp32")
    written = [json.loads(line) for line in ran.out.splitlines()]
    columns = bertkit.load(run, **FP32)({"ask": [text or "why" for text in TEXTS], "id": [*range(len(TEXTS))]})
    assert columns["id"] == [*range(len(TEXTS))]
    for name in ("label", "probability"):
        assert columns[name] == pytest.approx([row[name] for row in written])


def test_a_batch_of_arrays_gives_columns(run: Path) -> None:
    predictor = bertkit.load(run, **FP32)
    columns = predictor({"ask": np.array(TEXTS), "id": np.arange(len(TEXTS))})
    assert columns["label"] == [each.value for each in predictor.predict(TEXTS)]
    json.dumps(columns)
    assert predictor({"ask": [], "id": []}) == {name: [] for name in columns}
    for columns in ({"ask": ["no"], "id": [1, 2]}, {"ask": "no"}, {"ask": b"no"}, {"ask": ["no"], "id": 1}):
        with pytest.raises(UsageError):
            predictor(columns)


def test_a_batch_keeps_its_columns_as_the_command_keeps_them(run: Path, run_bertkit, tmp_path: Path) -> None:
    """The right label and a text that is not the run's have names of their own beside those of the prediction."""
    rows = [{"id": 7 + at, "ask": text or "why", "label": "right", "text": "other"} for at, text in enumerate(TEXTS)]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ran = run_bertkit("predict", run, "new.jsonl", "--keep", "all", "--device", "cpu", "--precision", "fp32")
    written = [json.loads(line) for line in ran.out.splitlines()]
    columns = bertkit.load(run, **FP32)({name: [row[name] for row in rows] for name in rows[0]})
    assert {*columns} == {*written[0]}
    for name in columns:
        assert columns[name] == (pytest.approx if name == "probability" else list)([row[name] for row in written]), name
    assert columns["input_label"] == ["right"] * len(TEXTS)


def test_all_columns_are_kept_or_those_named(run: Path, run_bertkit, tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text('{"ask": "why", "score": NaN}\n', encoding="utf-8")
    ran = run_bertkit("predict", run, "new.jsonl", "--keep", "all,ask")
    assert (ran.code, "for --keep" in ran.err and "cannot be combined with column names" in ran.err) == (
        2,
        True,
    ), ran.err
    ran = run_bertkit("predict", run, "new.jsonl", "--keep", "zzz,yyy")
    assert (ran.code, "no column 'zzz' for --keep" in ran.err) == (2, True), ran.err
    ran = run_bertkit("predict", run, "new.jsonl", "--keep", "all")
    assert json.loads(ran.out, parse_constant=pytest.fail)["score"] is None


def test_an_error_names_the_row_of_a_batch_by_its_id(run: Path) -> None:
    predictor = bertkit.load(run, **FP32)
    for columns, place in (({"ask": ["no", None]}, "batch:1"), ({"ask": ["no", None], "id": ["a", "b"]}, "id:b")):
        with pytest.raises(DataError) as error:
            predictor(columns)
        assert error.value.where == place
    with pytest.raises(DataError, match="ask"):
        predictor({"question": []})


def test_a_batch_of_texts_to_fill(make_model_dir: Callable[..., Path]) -> None:
    predictor = bertkit.load(make_model_dir("BertForMaskedLM", seed=6, initializer_range=0.5), **FP32)
    texts = ["the good [MASK]", "no mask"]
    assert predictor({"text": texts})["fills"] == [each.details["fills"] for each in predictor.predict(texts)]
    with pytest.raises(DataError) as error:
        predictor({"text": [*texts, None]})
    assert error.value.where == "batch:2"
    with pytest.raises(DataError, match="no column 'text'"):
        predictor({"ask": texts})


def test_it_pickles_as_its_folder_and_threads_share_it(run: Path) -> None:
    predictor = bertkit.load(run, device="cpu", precision="bf16")
    packed = pickle.dumps(predictor)
    assert len(packed) < 1000
    again = pickle.loads(packed)
    assert (again.precision.name, again.predict(TEXTS)[0].probability) == ("bf16", predictor.predict(TEXTS)[0].probability)
    rows = [[f"{text} {number}" for text in TEXTS] for number in range(16)]
    wanted = [[each.probability for each in predictor.predict(each)] for each in rows]
    with ThreadPoolExecutor(8) as threads:
        fresh = pickle.loads(packed)
        assert [[each.probability for each in found] for found in threads.map(fresh.predict, rows)] == wanted


def test_every_family_predicts(make_model_dir: Callable[..., Path]) -> None:
    def load(architecture: str, **config: Any) -> bertkit.Predictor:
        return bertkit.load(make_model_dir(architecture, seed=4, initializer_range=0.5, **config), **FP32)

    tags = load("BertForTokenClassification", labels=("O", "B-X"))
    of_words, of_text = tags.predict([["the", "good", "movie", "!"], "the good movie!"])
    assert of_words.value == of_text.value
    assert len(of_words.value) == 4
    (answer,) = load("BertForQuestionAnswering").predict([("who", "we like the story of a river")])
    assert answer.value in "we like the story of a river"
    (choice,) = load("BertForMultipleChoice").predict([{"context": "we", "choices": ["like it", "know", "no"]}])
    assert choice.value in (0, 1, 2)


def test_nothing_is_printed(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bertkit.load(run, **FP32).predict(TEXTS)
    assert capfd.readouterr() == ("", "")


def test_what_the_user_should_know_is_a_warning(run: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in run.iterdir():
        if file.is_file():
            (changed / file.name).write_bytes(file.read_bytes())
    config = json.loads((changed / "config.json").read_text(encoding="utf-8"))
    config["id2label"] = {"0": "other", "1": "names"}
    (changed / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"config\.json"):
        bertkit.load(changed, **FP32)


# --- vectors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "architecture", ["BertModel", "BertForSequenceClassification", "BertForMaskedLM", "BertForQuestionAnswering"]
)
def test_vectors_are_those_of_transformers(make_model_dir: Callable[..., Path], architecture: str, small_windows: None) -> None:
    model = make_model_dir(architecture, seed=2, initializer_range=0.3)
    predictor = bertkit.load(model, **FP32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    theirs = transformers.AutoModel.from_pretrained(model, add_pooling_layer=False).eval()
    with torch.no_grad():
        states = [theirs(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states for text in TEXTS]
    last = [each[-1][0].numpy() for each in states]
    exact: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(predictor.embed(TEXTS), [each.mean(0) for each in last], **exact)
    np.testing.assert_allclose(predictor.embed(TEXTS, "cls"), [each[0] for each in last], **exact)
    for layer in (0, 1, 2, -1):
        for ours, each in zip(predictor.embed(TEXTS, layer), states, strict=True):
            np.testing.assert_allclose(ours, each[layer][0].numpy(), **exact)


def test_vectors_of_pairs_and_of_columns(run: Path, classifier: Path) -> None:
    predictor = bertkit.load(run, **FP32)
    np.testing.assert_array_equal(predictor.embed([{"ask": "no"}]), predictor.embed(["no"]))
    pairs = bertkit.load(classifier, **FP32).embed([("no", "one"), ("a", "b")])
    assert pairs.shape == (2, 32)
    assert predictor.embed([]).shape == (0, 32)


@pytest.mark.parametrize("rows", [["no", ("a", "b")], [("a", "b", "c")], [3], [None]])
def test_rows_without_vectors_are_named(run: Path, rows: list[Any]) -> None:
    with pytest.raises(DataError) as error:
        bertkit.load(run, **FP32).embed(rows)
    assert error.value.where == f"rows:{len(rows) - 1}"


@pytest.mark.parametrize("options", [{"precision": "float16"}, {"device": "gpu"}])
@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_other_precisions_and_devices_are_refused(
    make_model_dir: Callable[..., Path], architecture: str, options: dict[str, str]
) -> None:
    (wrong,) = options.values()
    with pytest.raises(UsageError, match=wrong):
        bertkit.load(make_model_dir(architecture), **options)


@pytest.mark.parametrize("pooling", ["max", 3, -4])
def test_other_poolings_are_refused(run: Path, pooling: Any) -> None:
    with pytest.raises(UsageError):
        bertkit.load(run, **FP32).embed(TEXTS, pooling)


def test_a_model_without_a_head_gives_vectors_alone(tiny_model_dir: Path) -> None:
    encoder = bertkit.load(tiny_model_dir, **FP32)
    assert encoder.embed(["no"]).shape == (1, 32)
    for use in (encoder.predict, encoder.explain):
        with pytest.raises(ModelError, match="can only give vectors"):
            use(["no"])
    with pytest.raises(DataError, match="which column is the text"):
        encoder.embed([{"text": "no"}])


# --- explanations --------------------------------------------------------------------------------------------------------


def gradients_of_transformers(model: Path, text: str, pair: str | None, label: int) -> np.ndarray:
    """Input times gradient of each token, special ones too."""
    network = transformers.AutoModelForSequenceClassification.from_pretrained(model).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(model)(text, pair, return_tensors="pt")
    embeddings = network.get_input_embeddings()(inputs.pop("input_ids")).detach().requires_grad_()
    network(inputs_embeds=embeddings, **inputs).logits[0, label].backward()
    assert embeddings.grad is not None
    return (embeddings * embeddings.grad)[0].sum(-1).detach().numpy()


@pytest.mark.parametrize("pair", [None, "no newness!"])
def test_explanations_are_input_times_gradient(classifier: Path, pair: str | None, small_windows: None) -> None:
    predictor = bertkit.load(classifier, **FP32)
    text = "the goodness, we like"  # the good ##ness , we like
    rows: list[Any] = [text if pair is None else (text, pair)] * 3
    (likeliest,) = predictor.predict(rows[:1])
    for label, found in [(None, predictor.explain(rows)[2]), ("none", predictor.explain(rows, "none")[2])]:
        named = label or likeliest.value
        assert found.label == named
        tokens = gradients_of_transformers(classifier, text, pair, ["blame", "none", "praise"].index(named))[1:]
        wanted = [
            ("the", tokens[0]),
            ("goodness", tokens[1] + tokens[2]),
            (",", tokens[3]),
            ("we", tokens[4]),
            ("like", tokens[5]),
        ]
        if pair is not None:  # no new ##ness !
            wanted += [("no", tokens[7]), ("newness", tokens[8] + tokens[9]), ("!", tokens[10])]
        assert [word for word, _ in found.words] == [word for word, _ in wanted]
        assert [score for _, score in found.words] == pytest.approx([score for _, score in wanted], rel=1e-3, abs=1e-6)


def test_words_that_were_truncated_have_no_part(classifier: Path) -> None:
    (found,) = bertkit.load(classifier, **FP32).explain(["good movie " * 60])
    scores = [score for _, score in found.words]
    assert len(scores) == 120
    assert np.count_nonzero(scores) == 62
    assert not any(scores[62:])


@pytest.mark.parametrize("pair", [False, True])
def test_marks_before_the_first_word_have_no_part(classifier: Path, pair: bool) -> None:
    """Also those before a second text's first word, and texts of nothing else. Other words keep their own tokens' parts."""
    predictor, mark = bertkit.load(classifier, **FP32), "\U0001f3fb"
    texts = [f"{mark} good movie", mark, "good movie"]
    rows: list[Any] = [("we", text) for text in texts] if pair else texts
    marked, alone, plain = predictor.explain(rows, "none")
    before = ["we"] * pair
    assert [[word for word, _ in each.words] for each in (marked, alone)] == [[*before, "good", "movie"], before]
    encoded = gradients_of_transformers(classifier, *(rows[0] if pair else (texts[0], None)), 1)
    assert [score for _, score in marked.words][-2:] == pytest.approx(encoded[-3:-1].tolist(), rel=1e-3, abs=1e-6)
    assert len(plain.words) == len(marked.words)


def test_max_length_truncates_predictions_and_explanations(classifier: Path) -> None:
    text = "the good movie is a bad book"
    predictor, whole = (bertkit.load(classifier, **FP32) for _ in range(2))
    predictor.max_length = 5  # with [CLS] and [SEP]
    (short,), (expected,), (long,) = predictor.predict([text]), whole.predict(["the good movie"]), whole.predict([text])
    assert short.probabilities.tolist() == pytest.approx(expected.probabilities.tolist(), abs=1e-6)
    assert short.probabilities.tolist() != pytest.approx(long.probabilities.tolist(), abs=1e-4)
    (explained,) = predictor.explain([text])
    assert [score != 0 for _, score in explained.words] == [True] * 3 + [False] * 4
    with pytest.raises(UsageError, match=r"^max_length is 9999; the model has \d+ positions"):
        predictor.max_length = 9999


@pytest.mark.parametrize(
    ("architecture", "family"),
    [("BertForMaskedLM", "a pre-trained model"), ("BertForQuestionAnswering", "question-answering")],
)
def test_only_text_classification_is_explained(make_model_dir: Callable[..., Path], architecture: str, family: str) -> None:
    with pytest.raises(UsageError, match=f"^only text classification is explained, not {family}$"):
        bertkit.load(make_model_dir(architecture), **FP32).explain(["no"])


def test_explanations_change_nothing_and_need_a_known_label(classifier: Path, make_model_dir: Callable[..., Path]) -> None:
    predictor = bertkit.load(classifier, **FP32)
    before = predictor.predict(TEXTS)
    predictor.explain(TEXTS)
    assert [each.probability for each in predictor.predict(TEXTS)] == [each.probability for each in before]
    assert all(parameter.grad is None for parameter in predictor.model.parameters())
    with pytest.raises(UsageError):
        predictor.explain(TEXTS, "prais")
    with pytest.raises(UsageError):
        bertkit.load(make_model_dir("BertForQuestionAnswering"), **FP32).explain([("who", "we")])
    with pytest.raises(UsageError, match=r"no score\(\): only language models"):
        predictor.score(TEXTS)


# --- language models -----------------------------------------------------------------------------------------------------


def test_masks_are_filled_as_transformers_fills_them(make_model_dir: Callable[..., Path], small_windows: None) -> None:
    model = make_model_dir("BertForMaskedLM", seed=6, initializer_range=0.5)
    pipeline = transformers.pipeline("fill-mask", model=str(model), device="cpu")
    texts = ["the good [MASK]", "no mask", "we [MASK] it"]
    found = bertkit.load(model, **FP32).predict(texts)
    for text, prediction in zip(texts[::2], found[::2], strict=True):
        wanted = pipeline(text)
        (fills,) = prediction.details["fills"]
        assert [fill["token"] for fill in fills] == [each["token_str"] for each in wanted]
        assert [fill["probability"] for fill in fills] == pytest.approx([each["score"] for each in wanted], abs=1e-5)
        first = fills[0]["token"]
        assert prediction.value == text.replace(" [MASK]" if first.startswith("##") else "[MASK]", first.removeprefix("##"))
    assert (found[1].value, found[1].details["fills"]) == ("no mask", [])


def test_pieces_continue_the_word_before_them_on_the_screen_too() -> None:
    fills = [[{"token": "##ing", "probability": 0.5}], [{"token": "story", "probability": 0.25}]]
    text = "we play [MASK] a [MASK], [MASK]"  # the last one was truncated
    assert filled_text(text, fills, "[MASK]") == "we playing a story, [MASK]"
    shown = Filled("[MASK]").format_prediction(Prediction("", details={"fills": fills}), Examples({"text": [text]}, "", [1]), 0)
    assert shown.plain == "we playing a story, [MASK]\n  ##ing 0.50\n  story 0.25"
    assert [shown.plain[span.start : span.end] for span in shown.spans if span.style == "bold green"] == ["ing", "story"]


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertForPreTraining", "BertLMHeadModel"])
def test_texts_are_scored_token_by_token(make_model_dir: Callable[..., Path], architecture: str, monkeypatch) -> None:
    monkeypatch.setattr("bertkit.runs.inference.language_model.TEXTS_SCORED", 2)
    causal = architecture == "BertLMHeadModel"
    model = make_model_dir(architecture, seed=7, initializer_range=0.5, is_decoder=causal)
    texts = ["the good movie", "no", "we like it one two"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    theirs = getattr(transformers, architecture).from_pretrained(model).eval()
    wanted = []
    for text in texts:
        (ids,) = tokenizer(text, return_tensors="pt").input_ids
        total = 0.0
        for place in range(1, len(ids) - 1):
            masked = ids.clone()
            if not causal:
                masked[place] = tokenizer.mask_token_id
            with torch.no_grad():
                output = theirs(input_ids=masked[None])
            logits = output.prediction_logits if architecture == "BertForPreTraining" else output.logits
            total += float(logits[0, place - causal].log_softmax(-1)[ids[place]])
        wanted.append(total)
    scorer = bertkit.load(model, **FP32)
    assert scorer.score(texts).tolist() == pytest.approx(wanted, rel=1e-4)
    assert scorer.score(iter(texts)).tolist() == pytest.approx(wanted, rel=1e-4)
    assert scorer.score([]).shape == (0,)
    assert scorer.score(["", " ", ""]).tolist() == [0.0] * 3, "nothing is predicted of an empty text"
    for one in ("no", {"text": "no"}):
        with pytest.raises(UsageError, match="one row"):
            scorer.score(one)
    for other in (None, 3, ("no", "no"), {"text": "no"}, b"no"):
        with pytest.raises(DataError) as error:
            scorer.score(["no", other])
        assert error.value.where == "rows:1"


def test_precision_is_measured_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    resolve = module.resolve_precision
    monkeypatch.setattr(module, "resolve_precision", lambda *a, **k: asked.append(a) or resolve(*a, **k))
    predictor = bertkit.load(run, device="cpu")
    predictor.predict(TEXTS)
    assert len(asked) == 1


@pytest.mark.processor
@pytest.mark.skipif(not int8.available(), reason="no exact products of 8-bit integers here")
def test_int8_is_near_float32_and_the_same_for_one_row_or_many(
    classifier: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rates = {"fp32": 100.0, "bf16": 100.0, "int8": 300.0}
    monkeypatch.setattr("bertkit.model.precision.measure_rates", lambda *_, **__: (rates, True))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    exact = bertkit.load(classifier, **FP32)
    predictor = bertkit.load(classifier, "cpu", "int8")
    assert any(isinstance(part, int8.Int8Linear) for part in predictor.model.modules())
    wanted, found = ([each.probabilities for each in model.predict(TEXTS)] for model in (exact, predictor))
    assert 1e-5 < np.abs(np.subtract(wanted, found)).max() < 0.05
    alone = [predictor.predict([text])[0].probabilities for text in TEXTS]
    np.testing.assert_allclose(found, alone, atol=1e-6)
    vectors, near = exact.embed(TEXTS), predictor.embed(TEXTS)
    assert np.linalg.norm(vectors - near) < 0.1 * np.linalg.norm(vectors)
    assert pickle.loads(pickle.dumps(predictor)).precision.name == "int8"
    with pytest.raises(UsageError):
        predictor.explain(TEXTS)


@pytest.mark.parametrize(("name", "wanted"), [("fp32", "highest"), ("tf32", "high")])
def test_every_use_multiplies_in_the_precision_of_the_model(
    name: str, wanted: str, make_model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU; vectors and filled masks too, which run no head's own forward pass. The process has the other setting."""
    seen: list[str] = []
    real = module.multiply_in
    monkeypatch.setattr(module, "multiply_in", lambda head, precision, _: real(head, precision, torch.device("cuda")))
    model = LanguageModelPredictor(open_pretrained(str(make_model_dir("BertForMaskedLM"))), OneProcess.on("cpu"), "fp32")
    model.precision = Precision(name)
    model.model.bert.encoder.layer[0].register_forward_pre_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    other = {"highest": "high", "high": "highest"}[wanted]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(other)
    try:
        for use in (model.predict, model.score, model.embed, lambda texts: model.embed(texts, -1)):
            seen.clear()
            use(["the [MASK]"])
            assert {*seen} == {wanted}
        assert torch.get_float32_matmul_precision() == other
    finally:
        torch.set_float32_matmul_precision(before)


def test_int8_is_not_for_training(classifier: Path, run: Path, tmp_path: Path) -> None:
    rows = run.parent / "rows.csv"
    with pytest.raises(UsageError):
        train(tmp_path / "out", classifier, rows, text="ask", label="kind", precision="int8")
    assert not (tmp_path / "out" / "run.json").exists()
