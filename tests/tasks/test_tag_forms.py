"""Tagged data as other tools write it: a word a row, spans of spaCy and of tools of annotators; and what comes back of it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from file_contents import write

from bertkit.config import filled
from bertkit.errors import DataError, UsageError
from bertkit.readers import Examples
from bertkit.readers.formats import LABEL_STUDIO, read_blocks
from bertkit.tasks import Prediction, TokenClassification
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task
from bertkit.tasks.token_classification.faults import stray_tags_warning
from bertkit.tasks.token_classification.output import as_conllu, column_to_write

SENTENCES = [[("Ann", "B-WHO"), ("paid", "O")], [("the", "O"), ("man", "B-WHO"), (",", "O")], [("#", "O")]]
WORDS = [[word for word, _ in sentence] for sentence in SENTENCES]
TAGS = [[tag for _, tag in sentence] for sentence in SENTENCES]
TEXTS = ["Ann Lee paid.", "So the man", "nobody"]
Spans = list[list[list[Any]]]
SPANS: Spans = [[[0, 7, "WHO"]], [[7, 10, "WHO"]], []]
OF_TEXTS = [["B-WHO", "I-WHO", "O", "O"], ["O", "O", "B-WHO"], ["O"]]


def read(path: Path, labelled: bool = True, **options: Any) -> Any:
    recipe = filled(TokenClassification(**options))
    return recipe.standardize(recipe.read_file(path), labelled=labelled)


def tagged(path: Path, *rows: list[Any]) -> Path:
    lines = [json.dumps({"tokens": [f"w{at}" for at in range(len(tags))], "ner_tags": tags}) for tags in rows]
    return write(path, "\n".join(lines) + "\n")


@pytest.mark.parametrize("as_texts", [False, True])
def test_labels_name_tags_that_are_numbers(tmp_path: Path, as_texts: bool) -> None:
    rows: list[list[Any]] = [[1, 2, 0], [0, 1]]
    path = tagged(tmp_path / "x.jsonl", *([*map(str, row)] if as_texts else row for row in rows))
    assert read(path).columns["tags"] == [["1", "2", "0"], ["0", "1"]]
    assert read(path, labels=("O", "B-X", "I-X")).columns["tags"] == [["B-X", "I-X", "O"], ["O", "B-X"]]
    assert read(path, labels=("2", "1", "0")).columns["tags"] == [["1", "2", "0"], ["0", "1"]]  # which are names then
    with pytest.raises(DataError, match="the tag number is 2; expected 0 to 1") as error:
        read(path, labels=("O", "B-X"))
    assert "--labels" in str(error.value.hint)
    with pytest.raises(DataError, match="the tag number is -1; expected 0 to 1") as error:
        read(tagged(tmp_path / "y.jsonl", [-1, -1]), labels=("O", "B-X"))
    assert "a split without tags" in str(error.value.hint)


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (["1", "2", "0"], "the tags are numbers"),
        (["B-X", "-", "-", "-"], "'-' (f:1) is neither O nor"),
        (["X", "O", "_"], "'X' (f:1) is neither O nor"),
        (["B-X", "I-X", "O"], None),
        (["NN", "M", "HYPH", "1"], None),  # parts of speech, of which one could be a prefix, and one a number
    ],
)
def test_tags_that_are_scored_by_words_unasked(tags: list[str], said: str | None) -> None:
    warning = stray_tags_warning(Examples({"tags": [tags]}, "f", [1]))
    if said is None:
        assert warning is None
    else:
        assert warning is not None
        assert said in warning
        assert "words are scored, not chunks" in warning


# --- a word a row ----------------------------------------------------------------------------------------------------------


def table(header: str, first_only: bool, number: str = "Sentence: {}") -> str:
    """SENTENCES a word a row; header: of the columns sentence, word, part of speech, tag."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header.split(","))
    for at, sentence in enumerate(SENTENCES):
        for row, (word, tag) in enumerate(sentence):
            writer.writerow([number.format(at) if not row or not first_only else "", word, "NN", tag])
    return text.getvalue()


def test_words_without_their_sentences_are_no_rows_to_train_on_and_a_warning_to_predict(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "satz,Wort,tags\n" + "1,Bad,O\n" * 10)
    with pytest.raises(DataError, match="each row of column 'Wort' is a single word"):
        read(path, tokens="Wort")
    found = read(path, labelled=False, tokens="Wort")
    assert "each word is tagged by itself" in "".join(found.remarks.warnings)
    assert found.columns["tokens"] == [["Bad"]] * 10


@pytest.mark.parametrize("first_only", [True, False])
@pytest.mark.parametrize(
    ("header", "number"),
    [
        ("Sentence #,Word,POS,Tag", "Sentence: {}"),
        ("sentence_id,words,pos,labels", "{}"),
        ("SentenceNo,token,pos_tags,ner_tags", "s{}"),
    ],
)
def test_a_word_a_row(tmp_path: Path, header: str, number: str, first_only: bool) -> None:
    content = table(header, first_only, number)
    book = openpyxl.Workbook()
    for row in csv.reader(io.StringIO(content)):
        book.active.append([cell or None for cell in row])
    book.save(tmp_path / "x.xlsx")
    rows = [dict(zip(header.split(","), row, strict=True)) for row in csv.reader(io.StringIO(content))][1:]
    for path in (
        write(tmp_path / "x.csv", content),
        write(tmp_path / "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows)),
        tmp_path / "x.xlsx",
    ):
        examples = read(path)
        assert (examples.columns["tokens"], examples.columns["tags"]) == (WORDS, TAGS)
        begins = [1, 3, 6] if path.suffix == ".jsonl" else [2, 4, 7]
        assert [examples.where(row) for row in range(3)] == [f"{path}:{line}" for line in begins]
        assert read(path, labelled=False).columns["tokens"] == WORDS
        assert read(path, tags=header.split(",")[2]).columns["tags"] == [["NN"] * len(words) for words in WORDS]


def test_sentences_are_held_out_whole(tmp_path: Path) -> None:
    rows = "".join(f"{at},word{at % 3},O\n,thing,B-X\n,end,O\n" for at in range(40))
    recipe = TokenClassification(train=str(write(tmp_path / "x.csv", f"sentence_id,words,labels\n{rows}")), validation="25%")
    parts = read_splits(recipe.resolved()).rows
    sentences = [words for part in parts.values() for words in part.columns["words"]]
    assert {name: len(part) > 3 for name, part in parts.items()} == {"train": True, "validation": True}
    assert (len(sentences), {len(words) for words in sentences}) == (40, {3})


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("sentence_id,words,labels\n1,a,O\n1,,O\n2,b,B-X\n", ":3"),  # no word
        ("sentence_id,words,labels\n1,a,O\n2,b,B-X\n2,c,\n", ":3"),  # no tag, in the sentence that begins here
        ("words,labels\n" + "a,O\nb,B-X\n" * 9, ""),  # no column tells sentences apart
    ],
)
def test_faults_of_words_are_named(tmp_path: Path, content: str, place: str) -> None:
    path = write(tmp_path / "x.csv", content)
    with pytest.raises(DataError) as error:
        read(path)
    assert error.value.where == f"{path}{place}"
    assert place or "sentence_id" in str(error.value.hint)


def test_a_column_of_sentences_is_no_number_of_them(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "sentence,words,tags\nSo it is,So it is,O O B-X\nSo it is,So it is,O O B-X\n")
    assert read(path).columns["tokens"] == [["So", "it", "is"]] * 2


def test_a_word_that_holds_a_space_undoes_no_sentences(tmp_path: Path) -> None:
    sentence = [f"word{at}" for at in range(9)] + ["10 000"]
    rows = "".join(f"{at},{word},O\n" for at in range(3) for word in sentence)
    examples = read(write(tmp_path / "x.csv", f"sentence_id,word,tag\n{rows}"))
    assert (examples.columns["tokens"], examples.columns["tags"]) == ([sentence] * 3, [["O"] * 10] * 3)


def test_a_column_of_a_table_may_be_called_as_one_of_conllu(tmp_path: Path) -> None:
    table = write(tmp_path / "x.csv", "tokens,upos,tags\na b,X Y,O O\n")
    rows = write(tmp_path / "x.jsonl", '{"tokens": ["a", "b"], "upos": ["X", "Y"], "2": ["V", "W"]}\n')
    assert [read(path, tags="upos").columns["tags"] for path in (table, rows)] == [[["X", "Y"]]] * 2
    assert read(rows, tags="2").columns["tags"] == [["V", "W"]]


# --- spans -----------------------------------------------------------------------------------------------------------------


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def marked(text: str, spans: list[list[Any]]) -> list[dict[str, Any]]:
    """Spans as the values of Label Studio."""
    return [{"start": start, "end": end, "text": text[start:end], "labels": [label]} for start, end, label in spans]


def label_studio(given: Spans = SPANS, name: str = "text", **annotation: Any) -> list[dict[str, Any]]:
    tasks = []
    for number, (text, spans) in enumerate(zip(TEXTS, given, strict=True)):
        result = [{"id": "x", "type": "labels", "to_name": "text", "value": value} for value in marked(text, spans)]
        result += [{"type": "relation", "from_id": "x", "to_id": "x"}, {"type": "choices", "value": {"choices": ["news"]}}]
        annotations = [{"id": 1, "result": result, **annotation}]
        tasks.append({"id": number, "annotations": annotations, "data": {name: text}, "meta": {}})
    return tasks


def spacy(given: Spans) -> list[Any]:
    return [[text, {"entities": spans}] for text, spans in zip(TEXTS, given, strict=True)]


def objects(given: Spans, key: str, span: Callable[[list[Any]], Any] = list) -> list[dict[str, Any]]:
    return [
        {"id": 1, "text": text, key: [*map(span, spans)], "relations": []} for text, spans in zip(TEXTS, given, strict=True)
    ]


@pytest.mark.parametrize("write_cell", [str, json.dumps])
def test_spans_in_the_cells_of_a_table(tmp_path: Path, write_cell: Callable[[Any], str]) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([["text", "entities"], *([text, write_cell(spans)] for text, spans in zip(TEXTS, SPANS, strict=True))])
    assert read(write(tmp_path / "x.csv", text.getvalue())).columns["tags"] == OF_TEXTS


def offsets(span: list[Any]) -> dict[str, Any]:
    return {"id": 1, "start_offset": span[0], "end_offset": span[1], "label": span[2]}


def marks(span: list[Any]) -> dict[str, Any]:
    return dict(zip(("start", "end", "label"), span, strict=True))


FORMS: dict[str, Callable[[Spans], str]] = {
    "spacy.json": lambda given: json.dumps(spacy(given)),
    "spacy-indented.json": lambda given: json.dumps(spacy(given), indent=1),
    "spacy.jsonl": lambda given: lines(spacy(given)).rstrip("\n"),
    "doccano.jsonl": lambda given: lines(objects(given, "label")),
    "doccano-labels.jsonl": lambda given: lines(objects(given, "labels")),
    "doccano-new.jsonl": lambda given: lines(objects(given, "entities", offsets)),
    "prodigy.jsonl": lambda given: lines([row | {"answer": "accept"} for row in objects(given, "spans", marks)]),
    "label-studio.json": lambda given: json.dumps(label_studio(given)),
    "label-studio-indented.json": lambda given: json.dumps(label_studio(given, name="letter"), indent=2),
    "label-studio-min.json": lambda given: json.dumps(
        [{"text": t, "id": 1, "label": marked(t, spans), "annotator": 1} for t, spans in zip(TEXTS, given, strict=True)]
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_spans_become_tags(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, FORMS[name](SPANS))
    examples = read(path)
    assert (examples.columns["text"], examples.columns["tags"]) == (TEXTS, OF_TEXTS)
    recipe = TokenClassification(train=str(path), validation=str(path), scheme="iobes").resolved()
    assert Task.fit(recipe, read_splits(recipe).rows["train"], None).labels == ("O", "B-WHO", "E-WHO", "S-WHO")
    assert read(path, labelled=False).columns["text"] == TEXTS


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    ("span", "said"),
    [
        ([4, 99, "WHO"], "lies outside"),
        ([6, 9, "WHAT"], "overlap"),
        ([5, 5, "WHO"], "has no character"),
        ([2, 3, "WHO"], "no word"),
    ],
)
def test_spans_that_do_not_fit_are_named(tmp_path: Path, name: str, span: list[Any], said: str) -> None:
    content = FORMS[name]([SPANS[0], [[7, 10, "WHO"], span], []])
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as error:
        read(path)
    assert said in error.value.what
    assert str(span[1]) in error.value.what
    indented: dict[str, Any] = {"spacy-indented.json": 14, "label-studio-indented.json": 42}
    assert error.value.where == f"{path}:{2 if name.endswith('.jsonl') else indented.get(name, '1[1]')}"


def test_label_studio_leaves_empty_lists_out(tmp_path: Path) -> None:
    rows = [{"text": TEXTS[0], "label": marked(TEXTS[0], SPANS[0])}, {"text": TEXTS[2]}]
    examples = read(write(tmp_path / "x.json", json.dumps(rows)))
    assert examples.columns["tags"] == [OF_TEXTS[0], ["O"]]
    assert examples.remarks.notes == ("1 row without label, read as texts that have none",)


def test_a_span_that_cuts_a_word_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", json.dumps([["the woman", {"entities": [[6, 9, "WHO"]]}]]))
    examples = read(path)
    assert examples.columns["tokens"] == [["the", "wo", "man"]]
    assert f"[6, 9, 'WHO'] ({path}:1)" in examples.remarks.warnings[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": "An"}, "'An'"),  # another text than stands there
        ({"labels": ["WHO", "WHAT"]}, "WHAT"),
        ({"start": "/div[1]/text()[1]"}, "/div[1]"),
    ],
)
def test_faults_of_label_studio_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    tasks = label_studio()
    tasks[0]["annotations"][0]["result"][0]["value"] |= change
    path = write(tmp_path / "x.json", json.dumps(tasks, indent=1))
    with pytest.raises(DataError) as error:
        read(path)
    assert (error.value.where, said in error.value.what) == (f"{path}:2", True)


def test_an_empty_text_of_label_studio_stays_empty_and_other_lists_are_named(tmp_path: Path) -> None:
    tasks = label_studio()
    tasks[1]["data"] = {"file": "a17.txt", "text": ""}
    path = write(tmp_path / "x.json", json.dumps(tasks, indent=1))
    (rows,) = read_blocks(path, (LABEL_STUDIO,))
    assert rows.columns["text"][1] == ""
    for other in ({"id": 1, "meta": {"data": {}}, "annotations": []}, {"data": {}, "parts": {"annotations": []}}):
        path = write(tmp_path / "other.json", json.dumps([other]))
        with pytest.raises(DataError):
            list(read_blocks(path, (LABEL_STUDIO,)))


def test_skipped_tasks_and_second_annotations_are_counted(tmp_path: Path) -> None:
    tasks, others = label_studio(), label_studio([[], [], []], ground_truth=True)
    tasks[0]["annotations"] += others[0]["annotations"]
    tasks[1]["annotations"][0]["was_cancelled"] = True
    examples = read(write(tmp_path / "x.json", json.dumps(tasks)))
    assert (examples.columns["text"], examples.columns["tags"]) == ([TEXTS[0], TEXTS[2]], [["O"] * 4, ["O"]])
    assert ["1 task" in note for note in examples.remarks.notes] == [True, True]
    alone = write(tmp_path / "z.json", json.dumps(tasks[1:2] * 3))
    with pytest.raises(DataError) as error:
        read(alone)
    assert (error.value.what, error.value.where) == ("annotators skipped all 3 tasks", str(alone))
    tasks[0]["annotations"] = []
    path = write(tmp_path / "y.json", json.dumps(tasks))
    assert read(path, labelled=False).columns["text"] == [TEXTS[0], TEXTS[2]]
    with pytest.raises(DataError) as error:
        read(path)
    assert error.value.where == f"{path}:1[0]"


def test_check_knows_an_export(tmp_path: Path, run_bertkit) -> None:
    write(tmp_path / "x.json", json.dumps(label_studio()))
    ran = run_bertkit("check", "x.json", "--json")
    assert json.loads(ran.out)["labels"]["train"] == {"O": 5, "B-WHO": 2, "I-WHO": 1}


# --- what comes back -------------------------------------------------------------------------------------------------------

HOW = "--max-length 24 --precision fp32 --device cpu --max-steps 2 --no-baselines".split()
CONLLU = """\
# newdoc id = a
# text = Let's go
1-2\tLet's\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tLet\tlet\tVERB\tVB\t_\t0\troot\t0:root\t_
2\t's\twe\tPRON\tPRP\tCase=Acc\t1\tobj\t1:obj\tGloss=a b
3\tgo\tgo\tVERB\tVB\t_\t1\txcomp\t1:xcomp\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t1:conj\t_

# sent_id = 2
1\tso\tso\tADV\tRB\t_\t0\troot\t0:root\t_

"""


def train(run_bertkit, model: Path, name: str, *options: str) -> None:
    files = ("--train", name, "--validation", name, "-m", model, "-o", "run")
    ran = run_bertkit("finetune", "token-classification", *files, *HOW, *options)
    assert ran.code == 0, ran.err


@pytest.mark.e2e
@pytest.mark.parametrize(("column", "at"), [("upos", 3), ("xpos", 4)])
def test_conllu_comes_back_with_all_its_lines(run_bertkit, tiny_model_dir: Path, tmp_path: Path, column: str, at: int) -> None:
    write(tmp_path / "x.conllu", CONLLU)
    train(run_bertkit, tiny_model_dir, "x.conllu", "--column", column)
    blank = "\n".join(
        "\t".join("_" if place == at and fields[0].isdecimal() else field for place, field in enumerate(fields))
        for fields in (line.split("\t") for line in CONLLU.split("\n"))
    )
    write(tmp_path / "new.conllu", blank)  # nothing is tagged yet
    for file in ("new.conllu", "x.conllu"):
        said = [json.loads(line)["tags"] for line in run_bertkit("predict", "run", file).out.splitlines()]
        assert run_bertkit("predict", "run", file, "--output", "out.conllu", "--overwrite").code == 0
        written = (tmp_path / "out.conllu").read_text(encoding="utf-8")
        tags = iter([tag for sentence in said for tag in sentence])
        expected = [line.split("\t") for line in CONLLU.split("\n")]
        for fields in expected:
            if fields[0].isdecimal():
                fields[at] = next(tags)
        assert written == "\n".join(map("\t".join, expected))
    assert run_bertkit("predict", "run", "-", "--output", "out.conllu", "--overwrite", stdin=b"Let us go\n").code == 0
    rows = [line.split("\t") for line in (tmp_path / "out.conllu").read_text(encoding="utf-8").splitlines()]
    assert [row[:2] for row in rows] == [["1", "Let"], ["2", "us"], ["3", "go"], [""]]
    assert rows[0][2:at] + rows[0][at + 1 :] == ["_"] * 7
    assert rows[0][at] != "_"


@pytest.mark.e2e
def test_tags_from_elsewhere_name_their_column_of_conllu(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "x.conll", "Let B-X\ngo O\n\n" * 6)
    write(tmp_path / "new.conllu", CONLLU)
    train(run_bertkit, tiny_model_dir, "x.conll")
    ran = run_bertkit("predict", "run", "new.conllu", "--output", "out.conllu")
    assert (ran.code, "do not come from a column of CoNLL-U" in ran.err, "--column" in ran.err) == (2, True, True)
    assert not (tmp_path / "out.conllu").exists()
    assert run_bertkit("predict", "run", "new.conllu", "--output", "out.conllu", "--column", "misc").code == 0
    first = (tmp_path / "out.conllu").read_text(encoding="utf-8").split("\n")[3].split("\t")
    assert first[:9] == CONLLU.split("\n")[3].split("\t")[:9]
    assert first[9] in ("O", "B-X")


@pytest.mark.parametrize("asked", ["form", "id", "1", "2", "11", "nothing"])
def test_a_column_that_holds_no_tags(asked: str) -> None:
    assert [column_to_write("5", "upos"), column_to_write(None, "xpos"), column_to_write("MISC", None)] == [
        "xpos",
        "xpos",
        "misc",
    ]
    with pytest.raises(UsageError):
        column_to_write(asked, "upos")


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_real_treebank_comes_back_as_it_was(data_dir: Path, split: str) -> None:
    path = data_dir / "UD_English-EWT" / f"en_ewt-ud-{split}.conllu.gz"
    gold = read(path).columns["tags"]
    written = as_conllu([Prediction(tags) for tags in gold], read(path, labelled=False), "upos")
    assert written == gzip.decompress(path.read_bytes()).decode()


CHINESE = "\u6211\u5728\u94f6\u884c\u5de5\u4f5c"  # I work in a bank


@pytest.mark.e2e
def test_characters_come_back_without_spaces(run_bertkit, tiny_chinese_dir: Path, tmp_path: Path) -> None:
    write(
        tmp_path / "x.conll",
        "".join(f"{at} {'B-X' if at == CHINESE[2] else 'O'}\n" for at in CHINESE) + "\n2\tO\n".replace("\t", " "),
    )
    train(run_bertkit, tiny_chinese_dir, "x.conll")
    text = f"2019{CHINESE}\u3002"
    write(tmp_path / "new.conll", "".join(f"{at}\n" for at in text) + "\n" + f"{CHINESE[:2]}\nNew\nYork\n\uff0c\nok\n!\n")
    first, second = (json.loads(line) for line in run_bertkit("predict", "run", "new.conll").out.splitlines())
    assert (first["text"], second["text"]) == (text, f"{CHINESE[:2]}New York\uff0cok !")
    for row in (first, second):
        assert [row["text"][start:end] for start, end in row["offsets"]] == row["tokens"]
    # Its words are characters, and so are those of plain text.
    (row,) = (json.loads(line) for line in run_bertkit("predict", "run", stdin=text.encode()).out.splitlines())
    assert (row["text"], row["tokens"]) == (text, ["2019", *text[4:]])


@pytest.mark.e2e
def test_a_tagger_of_chinese_words_cuts_text_into_words(
    run_bertkit, tiny_chinese_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [CHINESE[0], CHINESE[1], CHINESE[2:4], CHINESE[4:]]
    write(tmp_path / "x.conll", "".join(f"{word} {'NN' if len(word) > 1 else 'X'}\n" for word in words) + "\n")
    train(run_bertkit, tiny_chinese_dir, "x.conll")
    (row,) = (json.loads(line) for line in run_bertkit("predict", "run", stdin=CHINESE.encode()).out.splitlines())
    assert (row["text"], row["tokens"]) == (CHINESE, words)
    assert "finds with jieba" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    (basic,) = run_bertkit("predict", "run", "--words", "basic", stdin=CHINESE.encode()).out.splitlines()
    assert json.loads(basic)["tokens"] == [*CHINESE]
    monkeypatch.setitem(sys.modules, "jieba", None)  # as if it were not installed
    ran = run_bertkit("predict", "run", stdin=CHINESE.encode())
    assert (ran.code != 0, ran.out) == (True, "")
    assert all(said in ran.err for said in ("jieba", "pip install", "--words basic"))
    assert run_bertkit("predict", "run", "x.conll").code == 0, "of words it is not needed"
