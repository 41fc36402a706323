"""The cases of test_golden.py: small data and models, the same everywhere, and the commands to run on them.

Nothing here imports bertkit, so the cases survive any change to its modules. Random numbers come from numpy's RandomState,
whose stream will never change.
"""

from __future__ import annotations

import functools
import json
import shutil
import string
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GOOD, BAD, PLAIN = (
    words.split()
    for words in (
        "good great fine lovely quick",
        "bad poor late broken slow",
        "the a movie book lamp desk order it is was and of for we you they see buy read send",
    )
)
PERSONS, PLACES = "grace alan ada barbara".split(), "paris london rome cairo".split()
OTHERS = "who where what did lives in by to from yes no one two three not play".split()
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = [
    *SPECIAL,
    *string.punctuation,
    *string.digits,
    *string.ascii_lowercase,
    *(f"##{character}" for character in string.digits + string.ascii_lowercase),
    *dict.fromkeys(word for word in [*GOOD, *BAD, *PLAIN, *PERSONS, *PLACES, *OTHERS] if len(word) > 1),
]
CONFIG = {
    "model_type": "bert",
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pad_token_id": 0,
}

# --- the world -------------------------------------------------------------------------------------------------------------


def write_model(folder: Path, architecture: str, *, seed: int, head: dict[str, tuple[int, ...]] = {}, **config: Any) -> None:  # noqa: B006
    """A model folder of random weights under Hugging Face's names; head: the shapes of the tensors besides the encoder's."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    rng = np.random.RandomState(seed)
    values = {**CONFIG, "architectures": [architecture], **config}
    hidden, wide = values["hidden_size"], values["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (values["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (values["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        **{f"embeddings.LayerNorm.{part}": (hidden,) for part in ("weight", "bias")},
    }
    linear = {"attention.self.query": (hidden, hidden), "attention.self.key": (hidden, hidden)}
    linear |= {"attention.self.value": (hidden, hidden), "attention.output.dense": (hidden, hidden)}
    linear |= {"intermediate.dense": (wide, hidden), "output.dense": (hidden, wide)}
    for layer in range(values["num_hidden_layers"]):
        for name, shape in linear.items():
            shapes |= {f"encoder.layer.{layer}.{name}.weight": shape, f"encoder.layer.{layer}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"encoder.layer.{layer}.{name}.{part}": (hidden,) for part in ("weight", "bias")}
    shapes |= {"pooler.dense.weight": (hidden, hidden), "pooler.dense.bias": (hidden,)}
    prefix = "" if architecture == "BertModel" else "bert."
    tensors = {}
    for name, shape in ({prefix + name: shape for name, shape in shapes.items()} | head).items():
        spread = 0.02 if "embeddings" in name else 0.2 if len(shape) == 2 else 0.05
        tensor = rng.standard_normal(shape) * spread + name.endswith("LayerNorm.weight")
        # So that a few steps learn something: words of a kind are alike, and [CLS] sees the mean of all words.
        if name.endswith("word_embeddings.weight"):
            tensor += rng.standard_normal(shape) * 0.05
            for words in (GOOD, BAD, PERSONS, PLACES, ["[CLS]", "[SEP]"]):
                tensor[[VOCABULARY.index(word) for word in words]] += 0.5 * rng.standard_normal(hidden)
        elif name.endswith(("self.value.weight", "attention.output.dense.weight", "pooler.dense.weight")):
            tensor += 0.6 * np.eye(hidden)
        tensors[name] = tensor.astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY), encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_world(folder: Path) -> None:
    """Every file that the commands read, in a folder."""
    rng = np.random.RandomState(7)

    def pick(words: list[str]) -> str:
        return words[rng.randint(len(words))]

    def phrase(words: list[str], length: int) -> str:
        return " ".join(pick(words) if at % 3 else pick(PLAIN) for at in range(length))

    def write(name: str, content: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")

    def jsonl(rows: list[dict[str, Any]]) -> str:
        return "".join(json.dumps(row) + "\n" for row in rows)

    write_model(folder / "model", "BertModel", seed=1)
    head: dict[str, tuple[int, ...]] = {"classifier.weight": (2, 16), "classifier.bias": (2,)}
    write_model(folder / "plain-model", "BertForSequenceClassification", seed=2, head=head)  # its labels have no names

    for split, count in (("train", 40), ("dev", 14)):
        rows, long_rows = [], []
        for _ in range(count):
            kind = "good good bad so-so".split()[rng.randint(4)]
            text = phrase({"good": GOOD, "bad": BAD, "so-so": PLAIN}[kind], 4 + rng.randint(9))
            score = {"good": 1, "bad": -1, "so-so": 0}[kind] + rng.randint(10) / 10
            tags = "|".join(tag for tag in ("book", "lamp", "order") if tag in text.split())
            pair = phrase(GOOD if rng.randint(2) else BAD, 3 + rng.randint(4))
            rows.append(f"{text},{pair},{kind},{score:.1f},{tags}")
            long_rows.append(f"{phrase(PLAIN, 20 + rng.randint(30))} {text},{kind}")
        write(f"{split}.csv", "text,pair,kind,score,tags\n" + "\n".join(rows) + "\n")
        write("thrice.csv", "text,pair,kind,score,tags\n" + "\n".join(rows * 3) + "\n")  # of dev: enough to tune thresholds on
        write(f"{split}-long.csv", "text,kind\n" + "\n".join(long_rows) + "\n")

    for split, count in (("train", 24), ("dev", 8)):
        quiz, squad, lines, joint = ["story,ask,end0,end1,end2,right"], [], [], []
        for number in range(count):
            person, place, other = pick(PERSONS), pick(PLACES), pick(PLACES)
            ends = [place, other, pick(GOOD) if number % 3 else ""]
            quiz.append(
                f"{person} lives in {place},where did {person} play,{','.join(ends)},{0 if place == other else number % 2}"
            )
            context = f"{phrase(PLAIN, rng.randint(30))} {person} lives in {place} . {phrase(GOOD, 6)}".strip()
            answers = [{"text": place, "answer_start": context.index(place)}] if number % 4 else []
            question = f"where did {person} play" if answers else f"who did {person} send"
            about = {"id": f"{split}-{number}", "question": question, "answers": answers, "is_impossible": not answers}
            squad.append({"context": context, "qas": [about]})
            words = f"{pick(PLAIN)} {person} {pick(PLAIN)} {'to' if number % 2 else 'from'} {place} {pick(GOOD)} .".split()
            tags = ["O", "B-PER", "O", "O", "B-LOC", "O", "O"]
            if number % 3 == 0:
                words[2:2], tags[2:2] = [pick(PERSONS)], ["I-PER"]
            lines.append("".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)))
            joint.append({"tokens": words, "tags": tags, "intent": "send" if number % 2 else "fetch"})
        write(f"quiz-{split}.csv", "\n".join(quiz) + "\n")
        write(f"squad-{split}.json", json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": squad}]}))
        write(f"names-{split}.conll", "\n".join(lines))
        write(f"joint-{split}.jsonl", jsonl(joint))

    for split, wnli, cola in (("train", 24, 24), ("dev", 10, 10), ("test", 146, 1063)):
        has_label = split != "test"
        pairs = [(number, phrase(GOOD, 5), phrase(BAD, 4), rng.randint(2)) for number in range(wnli)]
        table = ["index\tsentence1\tsentence2" + "\tlabel" * has_label]
        table += [f"{number}\t{one}\t{two}" + f"\t{label}" * has_label for number, one, two, label in pairs]
        write(f"glue/WNLI/{split}.tsv", "\n".join(table) + "\n")
        labels = [rng.randint(2) for _ in range(cola)]
        if has_label:
            cola_rows = [f"gj04\t{label}\t\t{phrase(GOOD if label else BAD, 6)}" for label in labels]
        else:
            cola_rows = ["index\tsentence", *(f"{at}\t{phrase(GOOD if label else BAD, 6)}" for at, label in enumerate(labels))]
        write(f"glue/CoLA/{split}.tsv", "\n".join(cola_rows) + "\n")

    documents = []
    for _ in range(60):
        person, mood = pick(PERSONS), GOOD if rng.randint(2) else BAD
        documents.append("\n".join(f"{person} {phrase(mood, 3 + rng.randint(5))} ." for _ in range(3 + rng.randint(5))))
    write("texts/one.txt", "\n\n".join(documents[:40]) + "\n")
    write("texts/two.txt", "\n\n".join(documents[40:]) + "\n")

    write("new.txt", "the movie was great and lovely\nit is a broken lamp\n\ngrace was not good\n")
    write("new.csv", "text,pair\nwe read a good book,they read it\nyou see the slow desk,\n")
    write("letters.txt", "grace lives in paris .\nthey send alan ada to rome, to see it\n")
    write("masked.txt", "the [MASK] was good .\ngrace lives in [MASK] [MASK]\n")
    write("page.txt", "we see the desk . barbara lives in cairo and it was a great order . ada lives in rome .")
    write("one-class.csv", "text,kind\n" + "good book,good\n" * 3)
    write("contradiction.csv", "text,kind\ngood book,good\ngood book,bad\n,bad\nthe lamp,bad\nthe \ufffd desk,good\n")
    write("unknown.csv", "text,kind\ngood book,good\nbad book,awful\n")
    write("ragged.csv", "text,kind\ngood book,good\nbad book,bad,more\n")
    write("options.yaml", "learning_rate: 1.0e-3\nseed: 3\n")
    write("my_task.py", MY_TASK)


def place_older_runs(folder: Path) -> None:
    """The runs of tests/golden/runs in a folder, with their paths there and the tokenizer that they share."""
    shutil.copytree(Path(__file__).resolve().parent / "golden" / "runs", folder, dirs_exist_ok=True)
    for path in [*folder.rglob("run.json"), *folder.rglob("seeds.json")]:
        path.write_text(path.read_text(encoding="utf-8").replace("@FOLDER@", str(folder)), encoding="utf-8")
    for holder in {path.parent for name in ("run.json", "manifest.json", "meta.json") for path in folder.rglob(name)}:
        for path in (folder / "tokenizer").iterdir():
            if not (holder / path.name).exists():
                shutil.copy(path, holder)


@functools.cache
def world() -> dict[str, bytes]:
    """The content of the files of `write_world`, by their names."""
    with tempfile.TemporaryDirectory() as folder:
        write_world(Path(folder))
        return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def prepare(name: str, folder: Path) -> None:
    """What the commands of a case find in the folder in which they run."""
    if name.startswith("older-"):
        place_older_runs(folder)
        return
    for file, content in world().items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)


# A recipe of one's own. While a file `stop` is there its metric asks the run to stop, as Ctrl-C does.
MY_TASK = '''"""Mine: is it good?"""

import csv
import os
import signal
from pathlib import Path

from bertkit.tasks import TextClassification, TrainConfig, accuracy


def rows(split):
    with open({"train": "train.csv", "validation": "dev.csv"}[split], encoding="utf-8") as file:
        return list(csv.DictReader(file))


def share_of_good(predictions, references):
    if Path("stop").exists() and Path("run/run.json").exists():  # it has begun to train
        os.kill(os.getpid(), signal.SIGINT)
    return float((predictions == 1).mean())


recipe = TextClassification(
    dataset=rows, text="text", label="kind", labels=("bad", "good", "so-so"), metrics=(accuracy, share_of_good),
    training=TrainConfig(batch_size=8, max_length=24, num_epochs=3, learning_rate=5e-3, dropout=0.1),
)
'''

# --- the cases -------------------------------------------------------------------------------------------------------------

# A large epsilon, for with a small one Adam makes whole steps of gradients near 0, which are noise that differs between CPUs.
STEPS = "--max-steps 24 --logging-steps 4 --learning-rate 1e-2 --adam-epsilon 1e-3 --batch-size 8 --device cpu --precision fp32"
HOW = f"--no-baselines -m model --max-length 24 {STEPS}"
ROWS = "--train train.csv --validation dev.csv --text text"
CLASSES = f"finetune text-classification {ROWS} --label kind {HOW}"
LONG = f"finetune text-classification --train train-long.csv --validation dev-long.csv --label kind {HOW} --learning-rate 5e-3"
QUIZ = (
    f"--train quiz-train.csv --validation quiz-dev.csv --text story --choices end0,end1,end2 --label right {HOW} --max-steps 12"
)
SQUAD = "--train squad-train.json --validation squad-dev.json --doc-stride 8 --n-best-size 3 --max-steps 12"
TAGGER = f"finetune token-classification {HOW} --adam-epsilon 1e-4 --eval-steps 12"
NAMES = f"{TAGGER} --train names-train.conll --validation names-dev.conll"
JOINT = f"{TAGGER} --train joint-train.jsonl --validation joint-dev.jsonl --intent --max-steps 48"
LOOK = "--output scored --errors 3 --intervals --json"
PRETRAIN = f"pretrain corpus --max-length 32 {STEPS}"
CORPUS = "corpus build texts --tokenizer model --validation 20% --num-processes 1 -o corpus"
FOREIGN = "plain-model --recipe wnli --data glue/WNLI --max-length 24 --precision fp32 --device cpu"

# A command as one would type it, `< FILE` for its standard input, or something that is done between two commands.
Step = str | Callable[[], Any]

CASES: dict[str, list[Step]] = {
    # text classification
    "classes": [
        f"{CLASSES} -o run",
        f"eval run {LOOK}",
        "eval run --test dev.csv --split test --json",
        "predict run new.csv",
        "predict run < new.txt",
        "predict run new.txt --format text",
        "predict run new.csv --output said.jsonl",
        "predict run new.csv --output said.csv",
        "predict run new.csv --output said.tsv",
        f"{CLASSES} -o run",
        f"{CLASSES} -o run --overwrite --max-steps 2",
        f"finetune text-classification {ROWS} --label kind {HOW} -o trial --dry-run",
    ],
    "pairs": [
        f"{CLASSES} --text-pair pair --metric macro_f1,accuracy -o run",
        f"eval run {LOOK}",
        "predict run new.csv",
    ],
    "regression": [
        f"finetune text-classification {ROWS} --text-pair pair --label score --regression {HOW} -o run",
        f"eval run {LOOK}",
        "predict run new.csv --output said.tsv",
    ],
    "multi-label": [
        f"finetune text-classification {ROWS} --validation thrice.csv --label tags --multi-label {HOW} -o run",
        f"eval run {LOOK}",
        "predict run new.csv",
        "predict run new.csv --output said.csv",
    ],
    "class-weights": [
        f"{CLASSES} --class-weights balanced --label-smoothing 0.1 -o balanced",
        f"{CLASSES} --class-weights 1,2,0.5 --dropout 0.1 -o typed",
        "compare balanced typed --json --resamples 200",
        "eval balanced --json",
    ],
    "windows": [
        f"{LONG} --truncate windows -o run",
        f"eval run {LOOK}",
        "predict run dev-long.csv",
    ],
    "truncation": [f"{LONG} --truncate {part} -o {part}" for part in ("head", "tail", "head+tail")],
    **{
        f"pooling-{pooling}": [
            f"{CLASSES} --pooling {pooling} -o run",
            "eval run --json",
            "predict run new.txt",
        ]
        for pooling in ("cls", "mean", "max", "cls-last4", "cls-mix")
    },
    "frozen-layers": [
        f"{CLASSES} --freeze embeddings --layerwise-lr-decay 0.8 --reinit-layers 1 --schedule cosine -o run",
        f"{CLASSES} --preset stable --dropout 0.1 --micro-batch-tokens 40 -o stable",
        f"{CLASSES} --no-adam-bias-correction --weight-decay 0.1 --freeze 2 -o frozen",
        f"{CLASSES} --early-stopping-patience 1 --eval-steps 2 -o patient",
    ],
    "held-out": [
        f"finetune text-classification --train train.csv --validation 25% --text text --label kind {HOW} -o share",
        f"finetune text-classification --train train.csv --validation 2/3 --text text --label kind {HOW} -o fold",
        f"finetune text-classification --train train.csv --text text --label kind --max-train-samples 20 {HOW} -o fewer",
        "eval share --json",
    ],
    "foreign-model": [
        f"eval {FOREIGN} {LOOK}",
        "predict plain-model new.txt --max-length 24 --precision fp32 --device cpu",
        f"predict {FOREIGN} --split validation --output said.jsonl",
        f"finetune wnli --data glue/WNLI -m plain-model --max-length 24 {STEPS} -o run",
        f"finetune text-classification {ROWS} --label kind -m plain-model --max-length 24 {STEPS} -o other",
        f"finetune text-classification {ROWS} --label kind -m plain-model --max-length 24 {STEPS} --fresh-head -o fresh",
    ],
    "seeds": [
        f"{CLASSES} --seeds 2 -o runs",
        f"{CLASSES} --seeds 2 --pooling mean -o mean",
        f"{CLASSES} --seeds 2 -o runs",
        "compare runs mean --json --resamples 200",
    ],
    "glue": [
        f"finetune glue --data glue --tasks cola,wnli {HOW} -o runs",
        "submission runs -o leaderboard",
        "submission runs -o leaderboard",
        "predict runs/wnli --split test --output wnli.tsv",
    ],
    "config": [
        f"{CLASSES} --config options.yaml -o run",
        "finetune --config run/run.json -o again",
        "finetune --config run/run.json --seed 5 -o other",
        "compare run again other --json --resamples 200",
    ],
    "own-recipe": [
        "finetune ./my_task.py --no-baselines -m model --device cpu --precision fp32 --logging-steps 2 -o whole",
        "predict whole new.txt",
        lambda: Path("stop").touch(),
        "finetune ./my_task.py --no-baselines -m model --device cpu --precision fp32 --logging-steps 2 -o run",
        lambda: Path("stop").unlink(),
        "finetune ./my_task.py --no-baselines -m model --device cpu --precision fp32 --logging-steps 2 -o run --seed 1",
        "finetune ./my_task.py --no-baselines -m model --device cpu --precision fp32 --logging-steps 2 -o run --resume never",
        "finetune ./my_task.py --no-baselines -m model --device cpu --precision fp32 --logging-steps 2 -o run",
    ],
    # the other families
    "choices": [
        f"finetune multiple-choice --question ask {QUIZ} -o run",
        f"eval run {LOOK}",
        "predict run quiz-dev.csv",
        "predict run quiz-dev.csv --output said.csv",
        f"finetune multiple-choice --pooling mean {QUIZ} -o mean",
    ],
    "answers": [
        f"finetune question-answering {HOW} {SQUAD} -o run",
        f"eval run {LOOK}",
        "predict run squad-dev.json",
        "predict run page.txt --question 'where did ada play'",
        "predict run page.txt --question 'where did ada play' --output said.csv",
        f"finetune question-answering {HOW} {SQUAD} --null-threshold 0 --max-answer-length 2 -o typed",
    ],
    "tags": [
        f"{NAMES} -o run",
        f"eval run {LOOK}",
        "predict run letters.txt",
        "predict run letters.txt --output said.conll",
        "predict run letters.txt --output said.jsonl",
        "predict run < letters.txt --format text",
        f"{NAMES} --scheme iobes --constrained -o legal",
        "predict legal names-dev.conll --format conll",
    ],
    "tags-bilstm": [
        f"{NAMES} --head bilstm --max-steps 48 -o run",
        "eval run --json",
        "predict run letters.txt",
    ],
    "tags-crf": [
        f"{NAMES} --head crf -o run",
        "eval run --json",
        f"{NAMES} --head crf --constrained -o legal",
        f"eval legal {LOOK}",
        "predict legal letters.txt",
    ],
    "intents": [
        f"{JOINT} -o run",
        f"eval run {LOOK}",
        "predict run letters.txt",
        "predict run letters.txt --format text",
        f"{JOINT} --intent-column intent --head crf --max-steps 24 -o crf",
    ],
    # from text to a BERT
    "tokenizer": [
        "tokenizer train texts --vocab-size 160 -o tokenizer",
        "tokenizer train texts/one.txt --vocab-size 5000 --cased -o cased",
    ],
    "pretraining": [
        CORPUS,
        f"{PRETRAIN} --num-hidden-layers 2 --hidden-size 16 --num-attention-heads 2 -o run",
        "eval run --json",
        "eval run --corpus corpus --max-length 16 --json",
        "predict run masked.txt --top-k 2 --precision fp32",
        "predict run masked.txt --format text --top-k 2 --precision fp32",
        f"finetune text-classification {ROWS} --label kind -m run --max-length 24 {STEPS} -o fine",
        f"{PRETRAIN} --config run/run.json --config-name run --seed 2 -o again",
    ],
    "pretraining-objectives": [
        CORPUS,
        f"{PRETRAIN} -m model --objective mlm -o mlm",
        f"{PRETRAIN} -m model --objective mlm+nsp --masking whole-word -o words",
        f"{PRETRAIN} -m model --objective ltr -o ltr",
        "eval ltr --json",
        f"{PRETRAIN} -m model --phases 16:60%,32:40% --eval-steps 5 -o phases",
    ],
    "corpus": [
        CORPUS,
        "corpus build texts/one.txt --tokenizer model --sentences lines --min-tokens 30 --num-processes 1 -o one",
        "corpus build texts/two.txt --tokenizer model --sentences lines --min-tokens 30 --num-processes 1 -o two",
        "corpus merge one two -o both",
        "check corpus --max-length 32 --examples 2",
        "check corpus --max-length 32 --examples 2 --masking whole-word",
    ],
    # what is looked at
    "check": [
        "check train.csv --text text --label kind --json",
        "check train.csv --text text --label kind -m model --examples 2 --max-length 24 --device cpu --precision fp32",
        "check contradiction.csv --json",
        "check names-train.conll --json",
        "check squad-train.json --json",
        "check helpdesk --json",
    ],
    "recipes": ["recipes", "recipes mrpc", "recipes mrpc --copy mine", "recipes no-such", "recipes --copy mine"],
    "embedded-data": [
        f"finetune {recipe} -m model --max-length 48 --max-train-samples 40 {STEPS} --max-steps 2 -o {recipe}"
        for recipe in ("helpdesk", "helpdesk_pairs", "helpdesk_mentions", "helpdesk_replies")
    ],
    "bad-inputs": [
        "",
        "no-such-command",
        "finetune",
        f"finetune mrcp {HOW} -o run",
        f"finetune text-classification {ROWS} --label kind {HOW}",
        f"{CLASSES} --learning-rat 1e-3 -o run",
        f"{CLASSES} --learning-rate x -o run",
        f"{CLASSES} --learning-rate -1 -o run",
        f"{CLASSES} --scheme iob2 -o run",
        f"{CLASSES} --max-length 65 -o run",
        f"{CLASSES} --pooling median -o run",
        f"{CLASSES} --validation 0% -o run",
        f"{CLASSES} --config none.yaml -o run",
        f"{CLASSES} -m no-such-folder/model -o run",
        f"{CLASSES} -o new.txt",
        f"{CLASSES} -o glue",
        f"finetune text-classification --train none.csv --label kind {HOW} -o run",
        f"finetune text-classification {ROWS} --label sort {HOW} -o run",
        f"finetune text-classification {ROWS} --label text --regression {HOW} -o run",
        f"finetune text-classification --train train.csv --validation unknown.csv --label kind {HOW} -o run",
        f"finetune text-classification --train ragged.csv --validation dev.csv --label kind {HOW} -o run",
        f"finetune text-classification --train one-class.csv --validation one-class.csv --label kind {HOW} -o run",
        f"finetune multiple-choice --train train.csv {HOW} -o run",
        f"finetune question-answering --train train.csv {HOW} -o run",
        f"finetune token-classification --train train.csv {HOW} -o run",
        "eval none",
        "eval model",
        "eval plain-model --recipe no-such",
        "eval plain-model --recipe mnli --data glue/WNLI --max-length 24",
        "predict model new.txt --top-k 0",
        "predict plain-model none.txt --max-length 24",
        "predict plain-model new.txt --output said.docx",
        "predict plain-model new.csv --output new.csv",
        "compare plain-model",
        "compare plain-model plain-model",
        "submission plain-model -o leaderboard",
        "pretrain model -o run",
        "corpus build none --tokenizer model -o corpus",
        "tokenizer train texts --vocab-size 3 -o tokenizer",
        "check none.csv",
    ],
}

# Runs that 5011bc2 left, in the folders that place_older_runs makes: they must serve with the code of today.
AGAIN = "--max-steps 4 -o again"
OLDER_STEPS = STEPS.replace("--max-steps 24 ", "--max-length 24 ")
OLDER_ROWS = (
    f"finetune text-classification --train data/train.csv --validation data/dev.csv --text text --label kind {OLDER_STEPS}"
)
OLDER_UNFINISHED = f"{OLDER_ROWS} -m model --micro-batch-tokens 40 --num-epochs 3"
CASES |= {
    "older-classes": [
        "predict classes data/dev.csv",
        f"eval classes {LOOK}",
        f"finetune --config classes/run.json {AGAIN}",
        "compare classes again --json --resamples 200",
    ],
    "older-tags": [
        "predict tags data/joint-dev.jsonl",
        "eval tags --json",
        f"finetune --config tags/run.json {AGAIN}",
    ],
    "older-answers": [
        "predict answers data/text.txt --question 'where did ada play'",
        "eval answers --json",
        f"finetune --config answers/run.json {AGAIN}",
    ],
    "older-choices": [
        "predict choices data/quiz-dev.csv",
        "eval choices --json",
        f"finetune --config choices/run.json {AGAIN}",
    ],
    "older-glue": [
        "eval wnli --json",
        "submission wnli -o leaderboard",
        f"finetune --config wnli/run.json {AGAIN}",
        "compare wnli again --json --resamples 200",
    ],
    "older-seeds": [
        "eval seeds/seed-2 --json",
        "compare seeds seeds/seed-1 --json --resamples 200",
        f"{OLDER_ROWS} -m model --max-steps 12 --seeds 3 -o seeds",
    ],
    "older-pretraining": [
        "eval pretrained --json",
        "check corpus --objective ltr --max-length 24 --examples 1",
        f"{OLDER_ROWS} -m pretrained --max-steps 4 -o fine",
        "pretrain corpus --config pretrained/run.json -m model -o again",
    ],
    "older-unfinished": [f"{OLDER_UNFINISHED} -o whole", f"{OLDER_UNFINISHED} --seed 1 -o unfinished"],
}

COMMANDS = (
    "",
    "finetune",
    "eval",
    "predict",
    "pretrain",
    "recipes",
    "check",
    "compare",
    "report",
    "submission",
    "export",
    "serve",
    "tune",
    "push",
    "tokenizer train",
)
COMMANDS += ("corpus build", "corpus merge")
CASES["help"] = [*(f"{command} --help".strip() for command in COMMANDS), "--version"]
