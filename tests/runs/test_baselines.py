"""Baselines of each family, worked out by hand; the probe's vectors against transformers; the warning."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bertkit.config import filled
from bertkit.errors import UsageError
from bertkit.metrics.classification import accuracy, mean_squared_error, pearson
from bertkit.model.devices import start_accelerator
from bertkit.model.pretrained import Pretrained, open_pretrained
from bertkit.readers import Examples
from bertkit.report import Finding
from bertkit.runs.finetuning import baselines as module
from bertkit.runs.finetuning import training
from bertkit.runs.finetuning.baselines import Baselines, fit_baselines, frozen_vectors, refuse_failing_metrics
from bertkit.tasks import MultipleChoice, Prediction, QuestionAnswering, Task, TextClassification, TokenClassification
from bertkit.tasks.baselines import (
    BAG_OF_WORDS,
    EACH_WORD,
    LINEAR_PROBE,
    MAJORITY,
    MEAN,
    NO_ANSWER,
    SLIDING_WINDOW,
    sliding_window,
    usual_length,
)

pytestmark = pytest.mark.all_draws

FP32 = {"precision": "fp32", "max_length": 16}


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertModel", seed=2, initializer_range=0.3)


def fitted(recipe: Any, **columns: list[Any]) -> tuple[Task, Examples]:
    rows = Examples(columns, "rows", range(len(next(iter(columns.values())))))
    task = Task.fit(filled(recipe.overridden(FP32)), rows)
    return task, task.examples(rows, labelled=True)


def values_of(predictions: dict[str, list[Prediction]]) -> dict[str, list[Any]]:
    return {name: [prediction.value for prediction in each] for name, each in predictions.items()}


TEXTS = ["good film", "good movie", "bad film", "bad movie", "good story"] * 4


def test_classes() -> None:
    task, train = fitted(TextClassification(), text=TEXTS, label=["praise" if "good" in text else "blame" for text in TEXTS])
    new = Examples({"text": ["a good one", "bad", "unheard"]}, "new", range(3))
    found = values_of(task.baselines(train, new, None))
    assert found == {MAJORITY: ["praise"] * 3, BAG_OF_WORDS: ["praise", "blame", "praise"]}


def test_pairs_count_the_words_of_each_text_and_have_no_probe() -> None:
    first, second = [["good", "bad"][row % 2] for row in range(20)], [["good", "bad"][row // 2 % 2] for row in range(20)]
    task, train = fitted(TextClassification(), text=first, text_pair=second, label=second)
    found = values_of(task.baselines(train, train, lambda _: pytest.fail("probed")))
    assert found[BAG_OF_WORDS] == second
    assert set(found) == {MAJORITY, BAG_OF_WORDS}


def test_numbers_and_several_labels() -> None:
    numbers = [4.0 if "good" in text else 1.0 for text in TEXTS]
    task, train = fitted(TextClassification(regression=True), text=TEXTS, label=numbers)
    found = values_of(task.baselines(train, train, None))
    assert found[MEAN] == [pytest.approx(np.mean(numbers))] * len(TEXTS)
    assert np.corrcoef(found[BAG_OF_WORDS], numbers)[0, 1] > 0.99
    sets = [[name for name in ("good", "film") if name in text] for text in TEXTS]
    task, train = fitted(TextClassification(multi_label=True), text=TEXTS, label=sets)
    found = values_of(task.baselines(train, train, None))
    assert [set(names) for names in found[BAG_OF_WORDS]] == [set(names) for names in sets]
    assert found[MAJORITY] == [["good"]] * len(TEXTS), "two of five"


def test_a_baseline_without_a_score_is_not_compared() -> None:
    """The mean has no correlation with anything; the words have one, and a model that guesses does no better."""
    numbers = [4.0 if "good" in text else 1.0 for text in TEXTS]
    task, train = fitted(TextClassification(regression=True, metrics=(pearson,)), text=TEXTS, label=numbers)
    found = Baselines(task, "validation", train, task.baselines(train, train, None), {MEAN: 5, BAG_OF_WORDS: 5})
    guessed = [Prediction(float(row % 2)) for row in range(len(TEXTS))]
    (said,) = [part.what for part in found.compare(guessed).parts if isinstance(part, Finding)]
    assert f"these baselines: {BAG_OF_WORDS}" in said


def correlation(predictions: Any, references: Any) -> float:
    return statistics.correlation(predictions.tolist(), references.tolist())  # which raises where all are the same


def test_a_users_metric_may_fail_where_all_predictions_are_equal() -> None:
    """But not on others, of which some are wrong."""

    def always_fails(predictions: Any, references: Any) -> float:
        raise ValueError("not these")

    numbers = [4.0 if "good" in text else 1.0 for text in TEXTS]
    for metric in (correlation, always_fails):
        task, train = fitted(TextClassification(regression=True, metrics=(metric,)), text=TEXTS, label=numbers)
        with pytest.raises(UsageError, match="not these") if metric is always_fails else nullcontext():
            refuse_failing_metrics(task, train, train)
    classes = ["a"] * (len(TEXTS) - 1) + ["b"]
    task, train = fitted(TextClassification(metrics=(always_fails,)), text=["same words"] * len(TEXTS), label=classes)
    refuse_failing_metrics(task, train, train)  # no baseline tells the rows apart


def test_a_users_metric_that_fails_on_a_baseline_leaves_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    """As on the mean, which is one number for all rows; and such a metric is not called on draws, which may be as bad."""
    numbers = [4.0 if "good" in text else 1.0 for text in TEXTS]
    task, train = fitted(TextClassification(regression=True, metrics=(correlation,)), text=TEXTS, label=numbers)
    found = fit_baselines(task, train, train, "validation")
    assert found is not None
    assert set(found.predictions) == {BAG_OF_WORDS}
    assert f"the baseline {MEAN!r} is left out: the metric correlation fails: StatisticsError" in capsys.readouterr().err
    worse = [Prediction(float(row % 2)) for row in range(len(TEXTS))]
    (table, finding) = found.compare(worse).parts
    assert (finding.severity, f"worse than these baselines: {BAG_OF_WORDS}" in finding.what) == ("warning", True)
    assert [row[3] for row in table.rows] == [None, None]
    assert fit_baselines(task, train.select([0, 1]), train.select([0, 1]), "validation") is None


@pytest.mark.parametrize(
    ("error", "told"),
    [(0.0, []), (1.0, [("warning", f"worse than these baselines: {MEAN}", "try a higher --num-epochs, or another")])],
)
def test_where_lower_is_better_a_higher_error_is_worse(error: float, told: list[tuple[str, str, str]]) -> None:
    """An error of 1 can be beaten: there is advice."""
    numbers = [0.5 if "good" in text else 0.0 for text in TEXTS]
    task, train = fitted(TextClassification(regression=True, metrics=(mean_squared_error,)), text=TEXTS, label=numbers)
    found = Baselines(task, "validation", train, {MEAN: task.baselines(train, train, None)[MEAN]}, {MEAN: 20})
    report = found.compare([Prediction(number + error) for number in numbers])
    findings = [part for part in report.parts if isinstance(part, Finding)]
    assert len(findings) == len(told)
    for finding, (severity, what, hint) in zip(findings, told, strict=True):
        assert (finding.severity, what in finding.what, hint in (finding.hint or "")) == (severity, True, True), finding


def test_tags_and_choices() -> None:
    tokens = [["Ada", "met", "May"], ["May", "met", "May"], ["in", "May", "."]]
    tags = [["B-PER", "O", "O"], ["B-PER", "O", "B-PER"], ["O", "B-PER", "O"]]
    task, train = fitted(TokenClassification(), tokens=tokens, tags=tags)
    new = Examples({"tokens": [["May", "met", "Bob"]], "tags": [["O", "O", "B-PER"]]}, "new", [0])
    assert values_of(task.baselines(train, new, None)) == {MAJORITY: [["O"] * 3], EACH_WORD: [["B-PER", "O", "O"]]}
    task, train = fitted(MultipleChoice(), context=["a", "b", "c"], choices=[["x", "y"]] * 3, label=[1, 0, 1])
    assert values_of(task.baselines(train, train, None)) == {MAJORITY: [1, 1, 1]}


TOWNS = ("Rome", "Oslo", "Bonn", "Lima", "Cork")
STORY = "Ada was born in {} by a river . Later Bob moved to {} , a town"


def asked(*, unanswerable: bool) -> dict[str, list[Any]]:
    """Questions about two towns of a story; every third one without an answer, which no word of the story is about."""
    rows: dict[str, list[Any]] = {"question": [], "context": [], "answers": []}
    for number in range(30):
        born, moved = TOWNS[number % 5], TOWNS[(number + 1) % 5]
        context, answer = STORY.format(born, moved), (born, moved)[number % 2]
        question = ("Ada was born in what town ?", "Bob moved to what town ?")[number % 2]
        none = unanswerable and number % 3 == 0
        rows["question"].append("why ?" if none else question)
        rows["context"].append(context)
        start = context.rindex(answer) if number % 2 else context.index(answer)
        rows["answers"].append({"text": [] if none else [answer], "answer_start": [] if none else [start]})
    return rows


def test_answers() -> None:
    task, train = fitted(QuestionAnswering(), **asked(unanswerable=False))
    found = task.baselines(train, train, None)
    assert set(found) == {SLIDING_WINDOW}
    assert task.score(found[SLIDING_WINDOW], task.truth(train))["exact_match"] == 1.0
    task, train = fitted(QuestionAnswering(), **asked(unanswerable=True))
    found = task.baselines(train, train, None)
    assert list(found) == [NO_ANSWER, SLIDING_WINDOW]
    truth = task.truth(train)
    assert task.score(found[NO_ANSWER], truth)["best_f1"] == pytest.approx(1 / 3)
    assert task.score(found[SLIDING_WINDOW], truth)["best_f1"] == 1.0, "of nothing shared the odds of no answer are highest"


@pytest.mark.parametrize(
    ("question", "context", "length", "span"),
    [
        ("Who wrote Emma?", "Emma, wrote Jane Austen, is a novel.", 2, "Jane Austen"),
        ("who wrote it", "Ada wrote it", 9, "Ada wrote it"),
        ("\u8c01\u5199\u4e66", "\u5929\u6c14\u597d\uff0c\u5f20\u4e09\u5199\u4e66\u3002", 2, "\u5f20\u4e09"),
        ("unheard of", "the first of equal spans", 1, "first"),
    ],
)
def test_a_sliding_window(question: str, context: str, length: int, span: str) -> None:
    found = sliding_window(question, context, length)
    assert found is not None
    assert context[found.start : found.end] == span


def test_a_sliding_window_counts_rare_words_more_and_needs_words() -> None:
    context = "the x the y the z o o emma w"
    found = sliding_window("the emma", context, 1)
    assert found is not None
    assert context[found.start - 2 : found.end + 5] == "o o emma", "beside emma, not between two of the"
    assert sliding_window("who", " ... ", 2) is None
    assert usual_length(["one", "two words", "four whole words here"]) == 2
    assert usual_length([]) == 1


def test_a_model_that_answers_nothing_is_told_so(run_bertkit, model: Path, tmp_path: Path) -> None:
    rows = asked(unanswerable=True)
    lines = (dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    data = ("--train", "rows.jsonl", "--validation", "rows.jsonl", "--max-length", 48, "--precision", "fp32")
    ran = run_bertkit("finetune", "question-answering", *data, "-m", model, "--learning-rate", 0, "--max-steps", 1, "-o", "run")
    assert ran.code == 0, ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert set(run["baselines"]) == {NO_ANSWER, SLIDING_WINDOW}
    told = " ".join(ran.err.split())
    assert f"validation: the model is worse than these baselines: {SLIDING_WINDOW}; try a higher --max-steps, or an" in told
    checked = run_bertkit("check", "rows.jsonl", "--recipe", "question-answering")
    assert (checked.code, NO_ANSWER in checked.err, SLIDING_WINDOW in checked.err) == (0, True, True), checked.err


def test_vectors_are_the_mean_of_transformers_hidden_states(model: Path) -> None:
    task, examples = fitted(TextClassification(), text=["the good film", "bad", "a story of a film"], label=["a", "b", "a"])
    found = frozen_vectors(task, examples, pretrained=open_pretrained(str(model)), accelerator=start_accelerator("cpu"))
    tokenizer, theirs = transformers.AutoTokenizer.from_pretrained(model), transformers.AutoModel.from_pretrained(model).eval()
    for row, text in enumerate(examples.columns["text"]):
        with torch.no_grad():
            hidden = theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(found[row], hidden.mean(0).numpy(), rtol=1e-4, atol=1e-5)


def test_vectors_of_words_are_those_of_their_first_pieces(model: Path) -> None:
    tokens = [["the", "goodfilm", "."], ["a"], ["story", "of", "movie"] * 12]  # the last in several windows
    task, examples = fitted(TokenClassification(), tokens=tokens, tags=[["A", "B", "A"], ["B"], ["A"] * 36])
    found = frozen_vectors(task, examples, pretrained=open_pretrained(str(model)), accelerator=start_accelerator("cpu"))
    assert found.shape[0] == 40
    tokenizer, theirs = transformers.AutoTokenizer.from_pretrained(model), transformers.AutoModel.from_pretrained(model).eval()
    encoded = tokenizer(tokens[0], is_split_into_words=True, return_tensors="pt")
    firsts = [encoded.word_ids().index(word) for word in range(3)]
    with torch.no_grad():
        hidden = theirs(**encoded).last_hidden_state[0]
    np.testing.assert_allclose(found[:3], hidden[firsts].numpy(), rtol=1e-4, atol=1e-5)


def test_a_probe_of_tags(model: Path, monkeypatch) -> None:
    """A tag that depends on the word before: the frequencies of words cannot tell it, frozen vectors can."""
    tokens = [[("good", "bad")[row % 2], "film", "story"] for row in range(60)]
    tags = [["ADJ", ("X", "Y")[row % 2], "NOUN"] for row in range(60)]
    task, train = fitted(TokenClassification(), tokens=tokens, tags=tags)
    monkeypatch.setattr(module, "FEWEST_ROWS", 4)
    monkeypatch.setattr(module, "MOST_ROWS", 90)  # words, which 30 sentences have
    found = fit_baselines(
        task, train, train.select([0, 1, 2]), "validation", open_pretrained(str(model)), start_accelerator("cpu")
    )
    assert found is not None
    assert values_of(found.predictions)[LINEAR_PROBE] == tags[:3]
    assert found.fitted_to == {MAJORITY: 60, EACH_WORD: 60, LINEAR_PROBE: 30}
    assert (found.first_scores()[EACH_WORD] or 0) < 1
    intents = Examples({**train.columns, "intent": ["a", "b"] * 30}, "rows", range(60))
    task, train = fitted(TokenClassification(intent=True), **intents.columns)
    assert LINEAR_PROBE not in task.baselines(train, train, lambda _: pytest.fail("probed"))


def test_of_windows_the_vectors_are_averaged(model: Path) -> None:
    recipe = TextClassification(truncate="windows")
    task, examples = fitted(recipe, text=["good film " * 20, "bad"], label=["a", "b"])
    found = frozen_vectors(task, examples, pretrained=open_pretrained(str(model)), accelerator=start_accelerator("cpu"))
    assert found.shape[0] == 2
    assert np.isfinite(found).all()


def test_the_probe_learns_from_untrained_weights_and_few_rows_are_enough(model: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 12)
    monkeypatch.setattr(module, "MOST_COMPARED", 6)
    recipe = TextClassification(metrics=(accuracy,))
    task, train = fitted(recipe, text=TEXTS, label=["praise" if "good" in text else "blame" for text in TEXTS])
    found = fit_baselines(task, train, train, "validation", open_pretrained(str(model)), start_accelerator("cpu"))
    assert found is not None
    assert len(found.examples) == 6
    assert {len(each) for each in found.predictions.values()} == {6}
    assert set(found.fitted_to.values()) == {12}
    assert found.first_scores()[LINEAR_PROBE] == found.first_scores()[BAG_OF_WORDS] == 1.0


def test_a_large_models_probe_takes_fewer_rows(model: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_OPERATIONS", 1.0)
    monkeypatch.setattr(module, "FEWEST_ROWS", 12)
    task, train = fitted(
        TextClassification(metrics=(accuracy,)), text=TEXTS, label=["praise" if "good" in text else "blame" for text in TEXTS]
    )
    found = fit_baselines(task, train, train, "validation", open_pretrained(str(model)), start_accelerator("cpu"))
    assert found is not None
    assert len(found.examples) == 12
    assert found.fitted_to == {MAJORITY: 20, BAG_OF_WORDS: 20, LINEAR_PROBE: 12}
    assert "training rows" in found.report().parts[0].columns


def test_a_run_fits_them_once_it_is_trained(run_bertkit, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{text},{'praise' if 'good' in text else 'blame'}\n" for text in TEXTS)
    (tmp_path / "rows.csv").write_text("text,label\n" + rows, encoding="utf-8")
    done: list[str] = []
    for name in ("train", "fit_baselines"):
        own = getattr(training, name)

        def noted(*arguments: Any, own: Any = own, name: str = name, **more: Any) -> Any:
            found = own(*arguments, **more)
            done.append(name)
            return found

        monkeypatch.setattr(training, name, noted)
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--precision", "fp32")
    ran = run_bertkit("finetune", "text-classification", *data, "-m", model, "--max-steps", 1, "-o", "run")
    assert (ran.code, done) == (0, ["train", "fit_baselines"]), ran.err
    found = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["baselines"]
    assert set(found) == {MAJORITY, BAG_OF_WORDS, LINEAR_PROBE}


@pytest.mark.parametrize("learning_rate", [0.0, 3e-3])
def test_a_run_says_whether_it_beats_them(run_bertkit, model: Path, tmp_path: Path, learning_rate: float) -> None:
    rows = "".join(f"{text},{'praise' if 'good' in text else 'blame'}\n" for text in TEXTS * 4)
    (tmp_path / "rows.csv").write_text("text,label\n" + rows, encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--precision", "fp32", "--pooling", "mean")
    common = ("-m", model, "--num-epochs", 6, "--warmup-ratio", 0, "--learning-rate", learning_rate)
    ran = run_bertkit("finetune", "text-classification", *data, *common, "-o", "run")
    assert ran.code == 0, ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert set(run["baselines"]) == {MAJORITY, BAG_OF_WORDS, LINEAR_PROBE}
    assert run["baselines"][BAG_OF_WORDS] == 1.0
    told = " ".join(ran.err.split())
    assert ("worse than these baselines" in told) == (learning_rate == 0)
    assert ("not clearly better than these baselines: bag of words, linear probe" in told) == (learning_rate > 0)
    assert ("try a higher --num-epochs" in told) == (learning_rate == 0), "1.0 cannot be beaten"
    assert ("makes the same prediction for every row" in told) == (learning_rate == 0)
    assert "still improving" not in told, "1.0 cannot be improved, and without a learning rate nothing is"
    steps = run["best"]["step"], run["total_steps"]
    assert told.count(f"step {steps[1]}: validation/accuracy") == 1, "each evaluation is told"
    none = run_bertkit("finetune", "text-classification", *data, *common, "-o", "none", "--no-baselines")
    assert (none.code, BAG_OF_WORDS in none.err) == (0, False)
    assert json.loads((tmp_path / "none" / "run.json").read_text(encoding="utf-8"))["baselines"] is None


def test_check_shows_what_must_be_beaten(run_bertkit, model: Path, tmp_path: Path) -> None:
    rows = "".join(f"{text},{'praise' if 'good' in text else 'blame'}\n" for text in TEXTS * 4)
    (tmp_path / "rows.csv").write_text("text,label\n" + rows, encoding="utf-8")
    command = ("check", "rows.csv", "--text", "text", "--label", "label", "--json")
    for options, names in (
        (("-m", model, "--precision", "fp32"), (MAJORITY, BAG_OF_WORDS, LINEAR_PROBE)),
        ((), (MAJORITY, BAG_OF_WORDS)),
    ):
        ran = run_bertkit(*command, *options)
        assert ran.code == 0, ran.err
        found = json.loads(ran.out)
        assert ([*found["baselines"]], "measured" in found) == ([*names], bool(options))
        assert (found["baselines"][BAG_OF_WORDS], "baselines" in found.get("measured", ())) == (1.0, False)
        table = ran.err[ran.err.index("to beat") :]
        assert all(re.search(rf"{name} +│ +{score:.4f} ", table) for name, score in found["baselines"].items()), table
        assert (LINEAR_PROBE in table) == (LINEAR_PROBE in names)


def test_check_of_a_run_probes_the_model_that_it_began_with(
    run_bertkit, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own weights have learned from these rows."""
    rows = "".join(f"{text},{'praise' if 'good' in text else 'blame'}\n" for text in TEXTS * 4)
    (tmp_path / "rows.csv").write_text("text,label\n" + rows, encoding="utf-8")
    base = tmp_path / "base"
    shutil.copytree(model, base)
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--precision", "fp32", "--no-baselines")
    assert run_bertkit("finetune", "text-classification", *data, "-m", "base", "--max-steps", 1, "-o", "run").code == 0
    probed: list[Path] = []

    def noted(task: Task, *arguments: Any) -> Any:
        probed.extend(each.folder.resolve() for each in arguments if isinstance(each, Pretrained))
        return fit_baselines(task, *arguments)

    monkeypatch.setattr(training, "fit_baselines", noted)
    assert run_bertkit("check", "run").code == 0
    base.rename(tmp_path / "gone")
    ran = run_bertkit("check", "run")
    assert (ran.code, probed) == (0, [base, tmp_path / "run"]), ran.err
    assert (
        "using the run's own weights, which have already learned from these rows, because its base model does not open: "
        in ran.err
    )
    assert run_bertkit("check", "run", "-m", "base").code == 5
