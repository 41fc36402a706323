"""A run as the starting point for another task (Phang et al., 2018): its encoder is kept, its head is not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import run_command
from safetensors.numpy import load_file

from bertkit.errors import ModelError

NLI = ("entailment", "contradiction", "neutral")
STILL = ("--learning-rate", 0, "--max-steps", 1, "--max-length", 16, "--precision", "fp32", "--device", "cpu", "--no-baselines")


def write_pairs(folder: Path, header: str, *labels: str) -> None:
    """A task of pairs in GLUE's columns, train and dev."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices("the good bad movie was a great story".split(), k=5)) for _ in range(24)]
    columns = header.split(",")
    folder.mkdir()
    for split in ("train", "dev", "dev_matched", "dev_mismatched"):
        rows = [[texts[n], texts[-n], labels[n % len(labels)]] for n in range(24)]
        if columns[0] == "Quality":
            rows = [[label, "1", "2", one, other] for one, other, label in rows]
        (folder / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in [columns, *rows]), encoding="utf-8")


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    """RTE, MRPC and STS-B, and a run of MNLI."""
    folder = tmp_path_factory.mktemp("glue")
    write_pairs(folder / "MNLI", "sentence1,sentence2,gold_label", *NLI)
    write_pairs(folder / "RTE", "sentence1,sentence2,label", "entailment", "not_entailment")
    write_pairs(folder / "MRPC", "Quality,#1 ID,#2 ID,#1 String,#2 String", "0", "1")
    write_pairs(folder / "STS-B", "sentence1,sentence2,score", "0.5", "2.5", "4.75")
    data = ("--data", folder / "MNLI", "--model", tiny_model_dir, "--max-steps", 3, "--eval-steps", 3, "--max-length", 16)
    ran = run_command(("finetune", "mnli", *data, "--device", "cpu", "-o", folder / "mnli"))
    assert ran.code == 0, ran.err
    return folder


def weights(run: Path) -> dict[str, np.ndarray]:
    return load_file(run / "model.safetensors")


@pytest.mark.parametrize(("recipe", "data", "outputs"), [("rte", "RTE", 2), ("mrpc", "MRPC", 2), ("stsb", "STS-B", 1)])
def test_a_smaller_task_takes_the_encoder(
    glue: Path, tiny_model_dir: Path, tmp_path: Path, recipe: str, data: str, outputs: int
) -> None:
    """At a learning rate of 0 what was taken stays as it was."""
    command = ("finetune", recipe, "--data", glue / data, "--model", glue / "mnli", *STILL)
    ran = run_command((*command, "--fresh-head", "-o", tmp_path / "run"))
    assert ran.code == 0, ran.err
    assert "newly initialized (seed 42), not loaded from the model: classifier.weight, classifier.bias" in ran.err
    before, after, start = weights(glue / "mnli"), weights(tmp_path / "run"), weights(tiny_model_dir)
    encoder = [name for name in before if name.startswith("bert.")]
    assert len(encoder) > 30
    assert all(np.array_equal(before[name], after[name]) for name in encoder)
    start = {f"bert.{name.removeprefix('bert.')}": tensor for name, tensor in start.items()}
    query = "bert.encoder.layer.0.attention.self.query.weight"
    assert not np.array_equal(start[query], after[query])
    assert len(after["classifier.weight"]) == outputs
    assert not np.array_equal(after["classifier.weight"], before["classifier.weight"][:outputs])
    model = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["model"]
    assert (model["name"], model["fresh_head"]) == (str(glue / "mnli"), True)
    ran = run_command((*command, "-o", tmp_path / "plain"))
    assert ran.code == ModelError.exit_code
    assert "error: the model has 3 labels" in ran.err
    assert "--fresh-head puts a new head on the encoder" in ran.err


def test_the_same_task_trains_its_head_on(glue: Path, tmp_path: Path) -> None:
    command = ("finetune", "mnli", "--data", glue / "MNLI", "--model", glue / "mnli", *STILL, "-o", tmp_path / "run")
    assert run_command(command).code == 0
    before, after = weights(glue / "mnli"), weights(tmp_path / "run")
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("more", [(), ("--class-weights", "balanced")])
def test_rows_with_some_of_the_labels_train_the_whole_head(glue: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    """As corrections of a model's predictions are, of which a label may be missing."""
    rows = "".join(f"the film is good,it is bad,{label}\n" for label in ("neutral", "contradiction") * 4)
    (tmp_path / "rows.csv").write_text(f"premise,hypothesis,label\n{rows}", encoding="utf-8")
    data = ("--train", tmp_path / "rows.csv", "--validation", tmp_path / "rows.csv", "--model", glue / "mnli", *STILL)
    columns = ("--text", "premise", "--text-pair", "hypothesis", "--label", "label", *more, "-o", tmp_path / "run")
    ran = run_command(("finetune", "text-classification", *data, *columns))
    assert ran.code == 0, ran.err
    assert "the data has 2 of the model's 3 labels; the model keeps the others" in ran.err
    before, after = weights(glue / "mnli"), weights(tmp_path / "run")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == json.loads((glue / "mnli" / "config.json").read_text(encoding="utf-8"))["id2label"]
    third = rows + "the film is bad,it is good,entailment\n"
    (tmp_path / "dev.csv").write_text(f"premise,hypothesis,label\n{third}", encoding="utf-8")
    with_third = (*data[:3], tmp_path / "dev.csv", *data[4:])
    for number, series in enumerate(((), ("--seeds", 2))):
        ran = run_command(
            ("finetune", "text-classification", *with_third, *columns[:-1], tmp_path / f"third-{number}", *series)
        )
        assert ran.code == 0, ran.err
    rows = rows.replace("neutral", "so-so")
    (tmp_path / "rows.csv").write_text(f"premise,hypothesis,label\n{rows}", encoding="utf-8")
    other = run_command(("finetune", "text-classification", *data, *columns, "--overwrite"))
    assert (other.code, "the model has no label 'so-so'" in other.err) == (ModelError.exit_code, True), other.err
    whole = rows + "the film is bad,it is good,entailment\n"
    (tmp_path / "rows.csv").write_text(f"premise,hypothesis,label\n{whole}", encoding="utf-8")
    other = run_command(("finetune", "text-classification", *data, *columns, "--overwrite"))
    assert (other.code, "the model has no label 'so-so'" in other.err) == (ModelError.exit_code, True), other.err
