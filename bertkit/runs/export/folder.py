"""Export a model as a folder that runs without torch: a checked ONNX graph, and code that predicts with it."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from os.path import abspath
from pathlib import Path
from typing import Any

import bertkit
from bertkit import manifest, progress
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.files import UNFINISHED, disk_errors, remove_folder
from bertkit.files.output_folder import Kind, OutputFolder
from bertkit.model.config import BLOCK_KEY
from bertkit.model.devices import OneProcess
from bertkit.model.directory import files_beside_weights
from bertkit.model.heads import BertForTokenClassification
from bertkit.readers import Examples, join_blocks
from bertkit.readers.formats import read_file
from bertkit.runs.export.graph import SHAPES, Graph, largest_difference, quantize, require_packages, write_graph
from bertkit.runs.export.padded import Padded
from bertkit.runs.export.quantized import TEXTS_COMPARED, Verdict, compare_language_models, compare_tasks
from bertkit.runs.inference.language_model import MASKED_TEXTS, LanguageModelPredictor, is_language_model
from bertkit.runs.inference.predictor import Predictor
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.remarks import report_remarks
from bertkit.runs.run_file import read_run_file
from bertkit.runs.target import Opened, open_target
from bertkit.tasks.saved import refuse_code
from bertkit.tasks.token_classification.tags import transitions
from bertkit.tasks.token_classification.task import TokenClassificationTask
from bertkit.text.tokenizer import TOKENIZER_FILES

FILL_MASK = "fill-mask"
_GRAPH, _QUANTIZED, _SCRIPT, _PATHS, _CARD = (
    "onnx/model.onnx",
    "onnx/model_quantized.onnx",
    "predict.py",
    "paths.json",
    "README.md",
)
_FILES = ("onnx", "config.json", _SCRIPT, _PATHS, _CARD, *TOKENIZER_FILES)
EXPORT = Kind(
    "exported model",
    lambda folder: (folder / _CARD).is_file() if (folder / _GRAPH).is_file() else None,
    re.compile("|".join(map(re.escape, _FILES))),
)
_ON_CPU = {"device": "cpu", "precision": "fp32"}


@dataclass(frozen=True)
class ComparedRows:
    """The rows to compare a quantized graph on: texts without labels, and rows with labels, if there are any."""

    texts: Examples
    dev: Examples | None = None


def export(
    name: str, output_dir: Path, *, int8: bool = False, texts: str | None = None, force: bool = False, overwrite: bool = False
) -> None:
    """Write a model's graph, tokenizer, configuration, card and predict.py, all or nothing.

    int8: also a quantized graph. texts: a file of rows to compare it on; default: the run's own training and dev rows. force:
    write it even if it does not pass. Raises MachineError without the packages, ModelError for a head without a graph, and for
    a graph whose outputs differ from the model's.
    """
    require_packages()
    was_killed = any(output_dir.glob(f"{UNFINISHED}*"))  # what it had moved into place is useless
    output = OutputFolder.prepare(output_dir, EXPORT, resume=was_killed, overwrite=overwrite, reads=[name, texts])
    predictor, rows = _open(name, int8=int8, texts=texts)
    Padded(predictor.model)  # refuses a head without a graph
    with output.open(), tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=output_dir) as aside, disk_errors(output_dir):
        if output.resumes:
            _remove_parts(output_dir)
        place = Path(aside)
        (place / "onnx").mkdir()
        write_graph(predictor.model, place / _GRAPH)
        graph = Graph(place / _GRAPH, predictor.model)
        difference = largest_difference(graph)
        progress.note(f"float32: the logits differ from the model's by at most {difference:.1e} over {len(SHAPES)} shapes")
        verdict = None
        if int8:
            assert rows is not None
            quantize(place / _GRAPH, place / _QUANTIZED)
            verdict = _compare(predictor, (graph, Graph(place / _QUANTIZED, predictor.model)), rows)
            _judge(verdict, force)
        for file, text in _texts(predictor, name, difference, verdict).items():
            (place / file).write_text(text, encoding="utf-8", newline="\n")
        manifest.raise_if_damaged()
        for path in sorted(place.iterdir(), key=lambda path: (path.name == _CARD, path.name != "onnx")):
            # first the graph, which marks the folder as an export, and last the card, which marks it as complete
            shutil.move(path, output_dir / path.name)
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in sorted((output_dir / "onnx").iterdir()))
    progress.note(f"wrote {output_dir}: {sizes}")


def _remove_parts(folder: Path) -> None:
    """Delete an export that has no card; the graph last, as it marks the folder as an export."""
    for path in folder.iterdir():
        if EXPORT.parts.fullmatch(path.name) and path.name != "onnx":
            path.unlink()
    remove_folder(folder / "onnx")


# --- the model and the rows ------------------------------------------------------------------------------------------


def _open(name: str, *, int8: bool, texts: str | None) -> tuple[Predictor, ComparedRows | None]:
    """The model in float32 on a CPU; and, with int8, the rows to compare on."""
    if is_language_model(name):
        if int8 and texts is None:
            raise UsageError("--int8 of a pre-trained model needs texts to compare on", hint="name a file: --texts FILE")
        given = read_file(texts, MASKED_TEXTS) if int8 and texts else None
        model = LanguageModelPredictor.open(name, "cpu", "fp32")
        if given is None:
            return model, None
        model.standard(given).texts("text", may_be_empty=True)  # refuses anything else
        return model, ComparedRows(_spread(given))
    if int8 and texts is None and read_run_file(Path(name)) is None:
        raise UsageError("--int8 needs texts to compare on, and only a run has its own", hint="name a file: --texts FILE")
    target = open_target(name, None, _ON_CPU, to_predict=not int8 or texts is not None)
    predictor = TaskPredictor(target, OneProcess.on("cpu"))
    return predictor, _rows(target, texts) if int8 else None


def _rows(target: Opened, texts: str | None) -> ComparedRows:
    """The rows of a file, or a run's own training rows; and a run's dev rows, if they can be read."""
    if texts is None:
        given = _read(target, target.task.recipe.train_split, labelled=False)
    else:
        recipe = target.for_file(texts).task.recipe
        given = target.task.examples(join_blocks(recipe.read_blocks(texts, labelled=False)), labelled=False)
        report_remarks(given.remarks)
    dev = None
    if target.run:
        try:
            own = target if texts is None else open_target(str(target.pretrained.folder), None, _ON_CPU)
            dev = _read(own, own.task.recipe.resolved().first_eval_split, labelled=True)
        except (DataError, UsageError) as error:
            progress.warn(f"the validation scores are not compared: {error}")
    return ComparedRows(_spread(given), dev)


def _read(target: Opened, split: str, *, labelled: bool) -> Examples:
    target = target.resolved()
    refuse_code(target.task.recipe)
    return target.task.examples(target.read([split])[split], labelled=labelled)


def _spread(examples: Examples) -> Examples:
    """At most TEXTS_COMPARED rows, evenly spread."""
    count, most = len(examples), TEXTS_COMPARED
    return examples if count <= most else examples.select([number * count // most for number in range(most)])


# --- the quantized graph ---------------------------------------------------------------------------------------------


def _compare(predictor: Predictor, graphs: tuple[Graph, Graph], rows: ComparedRows) -> Verdict:
    if isinstance(predictor, LanguageModelPredictor):
        return compare_language_models(predictor, graphs, rows.texts.columns["text"])
    assert isinstance(predictor, TaskPredictor)
    dev = None if rows.dev is None else predictor.encode(rows.dev)[0]
    return compare_tasks(predictor, graphs, predictor.encode(rows.texts)[0], dev)


def _judge(verdict: Verdict, force: bool) -> None:
    """Print how int8 compares. Raises ModelError if it does not pass, unless it is forced."""
    for remark in verdict.remarks:
        progress.note(remark)
    for warning in verdict.warnings:
        progress.warn(warning)
    if verdict.faults and not force:
        hint = "export without --int8, or add --force to write it anyway; the card then says so"
        raise ModelError(f"int8 is not accurate enough: {'; '.join(verdict.faults)}; nothing was written", hint=hint)
    for fault in verdict.faults:
        progress.warn(f"int8 was written because of --force, although {fault}")


# --- what lies beside the graph --------------------------------------------------------------------------------------


def _texts(predictor: Predictor, name: str, difference: float, verdict: Verdict | None) -> dict[str, str]:
    """The files beside the graph: contents by file name."""
    config, head = predictor.pretrained.config, predictor.model
    if predictor.task is not None:
        config, architecture = predictor.task.configure(config), predictor.task.architecture(config)
    else:
        block = {"format": 1, "family": FILL_MASK, "max_length": predictor.max_length}
        config, architecture = replace(config, extra={**config.extra, BLOCK_KEY: block}), type(head).__name__
    files = files_beside_weights(config, predictor.pretrained.tokenizer, architecture)
    if paths := _paths(predictor):
        files[_PATHS] = json.dumps(paths) + "\n"
    files[_SCRIPT] = Path(__file__).with_name("onnx_predict.py").read_text(encoding="utf-8")  # as it is
    files[_CARD] = card(name, config.extra[BLOCK_KEY]["family"], difference, verdict)
    return files


def _paths(predictor: Predictor) -> dict[str, Any]:
    """The data for finding the best tags: a CRF's scores of starts, transitions and ends, and which of them are legal."""
    found: dict[str, Any] = {}
    task, head = predictor.task, predictor.model
    if isinstance(head, BertForTokenClassification) and "crf" in head.parts:
        found["crf"] = [scores.tolist() for scores in head.head["crf"].scores()]  # type: ignore[operator]
    if isinstance(task, TokenClassificationTask) and task.recipe.constrained and task.scheme is not None:
        found["legal"] = [legal.tolist() for legal in transitions(task.labels, task.scheme)]
    return found


_TEMPLATE = """---
library_name: onnx
pipeline_tag: {family}
tags:
- bertkit
---

# {name}, as ONNX

Exported by bertkit {version}. `onnx/model.onnx` computes in float32; its logits were compared with those of the model in
{shapes} batches of different shapes, and differ by at most {difference:.1e}.

{quantized}```bash
python -m pip install onnxruntime numpy tokenizers
python predict.py rows.jsonl > predictions.jsonl
```

The first lines of `predict.py` describe the rows that it reads, and what it does not support.
"""
_INT8 = """`onnx/model_quantized.onnx` has 8-bit weights (`predict.py --int8`){forced}. Compared with the model in float32:

{rows}
"""


def card(name: str, family: str, difference: float, verdict: Verdict | None) -> str:
    """README.md: what was exported, and what the checks found."""
    quantized = ""
    if verdict is not None:
        forced = f". It was forced: {'; '.join(verdict.faults)}" if verdict.faults else ""
        lines = [*verdict.remarks, *verdict.warnings]
        quantized = _INT8.format(forced=forced, rows="\n".join(f"- {line}" for line in lines)) + "\n"
    return _TEMPLATE.format(
        family=family,
        name=Path(abspath(name)).name,
        version=bertkit.__version__,
        shapes=len(SHAPES),
        difference=difference,
        quantized=quantized,
    )
