"""Tagged sentences in columns and in files side by side: every token and tag, every sentence by its line."""

from __future__ import annotations

import gzip
import lzma
import re
from collections import Counter
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from file_contents import content_of, parsed, read_conll, refused, write
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import UsageError
from bertkit.readers import Examples
from bertkit.readers.formats import PARALLEL, read_file
from bertkit.readers.parsers.conll import CONLLU_LINES, looks_like_conll, parse_conll

conll = partial(parsed, parse_conll)


def read_parallel(folder: Path, **options: Any) -> Examples:
    return read_file(folder, (PARALLEL,), **options)


CONLLU = """\
# sent_id = 1
# text = Let's go
1-2\tLet's\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tLet\tlet\tVERB\tVB\t_\t0\troot\t0:root\t_
2\t's\twe\tPRON\tPRP\tCase=Acc\t1\tobj\t1:obj\t_
3\tgo\tgo\tVERB\tVB\t_\t1\txcomp\t1:xcomp\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t1:conj\t_

# sent_id = 2
1\t#\t#\tSYM\tNN\t_\t0\troot\t0:root\t_

"""


# --- CoNLL columns -----------------------------------------------------------------------------------------------------


def test_columns_sentences_and_documents():
    text = (
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"
        " \t\n-DOCSTART- O\nBRUSSELS NNP B-NP B-LOC\n-DOCSTART- -X- O O\n"
    )
    examples = conll(text)
    assert examples.columns == {
        "tokens": [["EU", "rejects"], ["Peter"], ["BRUSSELS"]],
        "tags": [["B-ORG", "O"], ["B-PER"], ["B-LOC"]],
    }
    assert [examples.where(row) for row in range(3)] == ["f:3", "f:7", "f:10"]
    for column in (2, "2"):
        assert conll(text, column=column).columns["tags"] == [["NNP", "VBZ"], ["NNP"], ["NNP"]]


SPACES = ["\u00a0", "\u3000", "\u2028", "\u2029", "\u0085", "\x1c", "\x1e", "\ufeff", "\u3000\u3000"]


@pytest.mark.parametrize(
    ("text", "options", "tokens", "tags"),
    [
        # A tab if the first token's line has one, else runs of spaces.
        ("-DOCSTART- O\n\na b\tO\n \tO\nc\tO \n", {}, ["a b", " ", "c"], "OOO"),
        ("a   NN  O  \nb\tc VB O\n", {}, ["a", "b\tc"], "OO"),
        ("a,O\nb,X\n", {"separator": ","}, ["a", "b"], "OX"),
        ("a b\tO\n", {"separator": "\\t"}, ["a b"], "O"),
        ("a\tb  O\n", {"separator": " "}, ["a\tb"], "O"),
        ("\ufeffa O\r\nb X\r\n", {}, ["a", "b"], "OX"),
        # White space beyond ASCII is a token.
        ("".join(f"{token} O\n" for token in ["a", *SPACES]), {}, ["a", *SPACES], "O" * 10),
        ("".join(f"{token}\tO\n" for token in ["a", *SPACES]), {}, ["a", *SPACES], "O" * 10),
        # One column is text to predict.
        ("a\n\u3000\nb\n", {}, ["a", "\u3000", "b"], None),
        ("a\nb\n", {"column": 4}, ["a", "b"], None),
    ],
)
def test_separators_and_white_space(text, options, tokens, tags):
    assert conll(text.encode(), **options).columns == {"tokens": [tokens], **({"tags": [[*tags]]} if tags else {})}


@pytest.mark.parametrize(
    ("text", "tokens", "begins"),
    [
        # Comments of CoNLL-U, CoNLL-2012 and MultiCoNER, in files of two columns and more
        ("# text = Ann lives\n# newdoc\nAnn B-X\nlives O\n\n# sent_id = 2\n# O\n1 O\n", ["Ann lives", "# 1"], [3, 7]),
        ("# text = Ann\nAnn\tB-X\n\n#\tO\n# a remark of one's own\tO\n", ["Ann", "# | # a remark of one's own"], [2, 4]),
        ("# a remark of one's own\nAnn\tB-X\n", ["Ann"], [2]),
        ("# id 1-2f domain=train\nAnn _ _ B-X\n\n# id = 3\nBob _ _ O\n", ["Ann", "Bob"], [2, 5]),
        ("# sent_0\nAnn B-X\n\n# 7\nBob O\n", ["Ann", "Bob"], [2, 5]),  # of as many columns, but without a tag
        ("#begin document (a/b); part 000\nAnn X O\n\n#end document\n", ["Ann"], [2]),
        # A word with its tag: first of all, within a sentence, and with more columns
        ("# O\nAnn B-X\n\n#metoo O\n# O\n", ["# Ann", "#metoo #"], [1, 4]),
        ("# NN O\n#MeToo NN O\n\n# SYM O\n", ["# #MeToo", "#"], [1, 4]),
        ("# words\n#\nAnn\n", ["# Ann"], [2]),
    ],
)
def test_comments_are_told_from_words(text: str, tokens: list[str], begins: list[int]) -> None:
    examples = conll(text)
    between = " | " if "\t" in text else " "
    assert [between.join(sentence) for sentence in examples.columns["tokens"]] == tokens
    assert list(examples.lines) == begins


@pytest.mark.parametrize("header", ["word pos", "Token\tNER", "words chunk ner"])
def test_a_line_that_names_the_columns_is_no_word(header: str) -> None:
    between = "\t" if "\t" in header else " "
    rows = [between.join([word, *["X"] * (len(header.split()) - 2), tag]) for word, tag in (("Ann", "B-X"), ("paid", "O"))]
    for blank in ([""], []):
        content = content_of("\n".join(["", header, *rows, *blank, header, *rows]) + "\n", "f")  # as `cat` joins two files
        assert looks_like_conll(content)
        examples = conll(content.text())
        assert (examples.columns["tokens"], examples.columns["tags"]) == ([["Ann", "paid"]] * 2, [["B-X", "O"]] * 2)
        assert [*examples.lines] == [3, 6 + len(blank)]
        assert examples.remarks.notes == (f"f: {header!r} names the columns, and is no token",)


def test_a_word_that_could_name_a_column_is_one() -> None:
    assert conll("Word B-X\nof O\n").columns["tokens"] == [["Word", "of"]]


def test_a_column_that_numbers_the_tokens_holds_no_words() -> None:
    """As GermEval 2014 has it: number, token, outer and nested tag, each sentence under a comment of two fields."""
    text = "#\thttp://x [2009]\n1\tDer\tO\tO\n2\tFC\tB-ORG\tO\n3\tBern\tI-ORG\tB-LOC\n\n#\thttp://y [2010]\n1\t2\tO\tO\n"
    for tags, column in (("O O B-LOC", None), ("O B-ORG I-ORG", 3)):
        examples = conll(text, column=column)
        assert examples.columns == {"tokens": [["Der", "FC", "Bern"], ["2"]], "tags": [tags.split(), ["O"]]}
        assert (examples.lines, examples.remarks.notes) == ([2, 7], ("f: column 1 numbers the tokens; column 2 holds them",))
    short = conll("# s\n1\tHallo\tO\tO\n2\tBern\tB-LOC\tB-LOC\n\n1\tFC\tO\tO\n2\tBern\tO\tO\n")
    assert short.columns["tokens"] == [["Hallo", "Bern"], ["FC", "Bern"]]
    numbered = "1 Der O\n2 FC B-X\n3 Bern I-X\n"
    joined = conll(f"token form tag\n{numbered}token  form tag\n{numbered}")  # a second header, written otherwise
    assert joined.columns["tokens"] == [["Der", "FC", "Bern"]] * 2
    assert looks_like_conll(content_of(text.replace("B-LOC", "O")))  # chunk tags in any column tell
    assert refused(conll, text.replace("3\tBern", "3\t")).where == "f:4"


@pytest.mark.parametrize("text", ["1 O\n2 O\n3 B-X\n", "1 CD O\n2 CD O\n\n3 CD B-X\n", "1 CD O\n2 CD B-X\n"])
def test_words_that_are_numbers_are_words(text: str) -> None:
    assert list(chain(*conll(text).columns["tokens"])) == [line[0] for line in text.split("\n") if line]


@pytest.mark.parametrize("line", ["#metoo", "# without a tag here"])
def test_within_a_sentence_a_number_sign_begins_no_comment(line: str) -> None:
    assert refused(conll, f"Ann B-X\n{line}\n").where == "f:2"


def test_a_hashtag_without_its_tag_is_no_comment() -> None:
    assert refused(conll, "Ann B-X\n\n#metoo\n").where == "f:3"


def test_a_sentence_without_any_tag_may_be_there_to_be_predicted() -> None:
    first, second = (part + "\n\n" for part in CONLLU.strip().split("\n\n"))
    untagged = re.sub("VERB|PRON", "_", first)
    assert conll(untagged + second, "f.conllu").columns["tags"] == [None, ["SYM"]]


TOKEN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n\0 \x0b\x0c"), min_size=1, max_size=5)
TAG = st.sampled_from(["O", "B-PER", "I-PER", "NN"])


@settings(max_examples=50, deadline=None)
@given(
    sentences=st.lists(st.lists(st.tuples(TOKEN.filter(lambda token: token != "-DOCSTART-"), TAG), min_size=1), min_size=1),
    separator=st.sampled_from([" ", "\t"]),
    middle=st.sampled_from([(), ("x",), ("x", "y")]),
    end=st.sampled_from(["\n", "\r\n"]),
    gap=st.integers(1, 3),
    last=st.booleans(),
)
def test_what_is_written_comes_back(sentences, separator, middle, end, gap, last):
    text, begins = "", []
    for sentence in sentences:
        text += end * gap if text else ""
        begins.append(text.count("\n") + 1)
        text += "".join(separator.join((token, *middle, tag)) + end for token, tag in sentence)
    text = text if last else text.removesuffix(end)
    examples = conll(text)
    assert examples.columns["tokens"] == [[token for token, _ in sentence] for sentence in sentences]
    assert examples.columns["tags"] == [[tag for _, tag in sentence] for sentence in sentences]
    assert list(examples.lines) == begins


@pytest.mark.parametrize(
    ("text", "options", "line", "hint"),
    [
        ("", {}, None, None),
        ("\n \n", {}, None, None),
        ("-DOCSTART- O\n\n", {}, None, None),
        ("a O\nb\nc O\n", {}, 2, "is the tag missing"),
        ("\n\na NN O\n\nb c NN O\n", {}, 5, "hold a space"),
        ("a\tO\nb O\n", {}, 2, "tabs"),
        ("a O\nb\tO\n", {}, 2, "expected spaces"),
        ("a\tO\n\tO\n", {}, 2, None),
        ("a O\n  O\n", {}, 2, None),
        ("a\tO\nb\t\n", {}, 2, "with O outside"),
        ("a\tO\n", {"separator": ","}, 1, "tabs"),
        ("a b\n", {"separator": "\t"}, 1, "spaces"),
    ],
)
def test_broken_columns_are_refused_by_line(text, options, line, hint):
    error = refused(conll, text, **options)
    assert error.where == (f"f:{line}" if line else "f")
    assert (hint in error.hint) if hint else error.hint is None


@pytest.mark.parametrize("column", [0, 4, "5", "upos", "-1", ""])
def test_a_column_that_is_not_there(column):
    error = refused(conll, "\na NN O\n", column=column, kind=UsageError)
    assert (error.where, repr(column) in error.what, "1 to 3" in error.what) == ("f:2", True, True)


def test_an_empty_separator():
    refused(conll, "a O\n", separator="", kind=UsageError)


# --- CoNLL-U -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "tags"),
    [
        (None, [["VERB", "PRON", "VERB"], ["SYM"]]),
        ("upos", [["VERB", "PRON", "VERB"], ["SYM"]]),
        ("XPOS", [["VB", "PRP", "VB"], ["NN"]]),
        (8, [["root", "obj", "xcomp"], ["root"]]),
        ("feats", [["_", "Case=Acc", "_"], ["_"]]),
    ],
)
def test_conllu(column, tags):
    for source in ("f.conllu", "f.conllu.gz", "stdin"):
        for text in (CONLLU, CONLLU.partition("\n")[2].partition("\n")[2]):  # with comments, and from the range line on
            examples = conll(text, source, column=column)
            lines = examples.columns.pop(CONLLU_LINES)
            assert examples.columns == {"tokens": [["Let", "'s", "go"], ["#"]], "tags": tags}
            assert "\n".join(chain.from_iterable([*sentence, ""] for sentence in lines)) + "\n" == text, "nothing is lost"
            assert list(examples.lines) == ([4, 10] if text == CONLLU else [2, 8])


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("PRON", "_", 5),
        ("PRON", "", 5),
        ("\tPRON", "", 5),
        ("2\t's", "x\t's", 5),
        ("\t's", "\t", 5),
        ("2\t's\twe", "2 's we", 5),
    ],
)
def test_broken_conllu_is_refused_by_line(old, new, line):
    assert refused(conll, CONLLU.replace(old, new, 1), "f.conllu").where == f"f.conllu:{line}"


def test_unknown_column_and_spaces_in_conllu():
    error = refused(conll, CONLLU, column="upso", kind=UsageError)
    assert "id, form, lemma, upos" in error.what
    assert "upos" in error.hint
    refused(conll, CONLLU, column=11, kind=UsageError)
    assert "tabs" in refused(conll, CONLLU.replace("\t", " "), "f.conllu").hint


# --- is it CoNLL? ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_conll"),
    [
        (CONLLU, True),
        ("# text = EU says\nEU B-ORG\nsays O\n", True),
        ("The DET\ncat NOUN\n\nI PRON\nran VERB\n", False),  # as well two short lines of text: too little to tell
        ("The film is good .\n\nThe book was bad .\n", False),
        ("I live in USA\n\nHe works at IBM\n", False),
        ("EU NNP B-ORG\nsays VBZ O\n", True),
        ("\u5434 B-NAME\n\u91cd M-NAME\n\u9633 E-NAME\n", True),
        ("a n\nb v\n\n" * 5, True),
        ("", False),
        ("\n\n", False),
        ("a\nb\n\nc\n", False),
        ("good movie\n\nbad movie\n", False),
        ("good movie\nbad movie\ngreat movie\n" * 50, False),
        ("Hello there\n\nGood bye\n", False),
        ("I am\nO so\n", False),
        ("One sentence of text.\nAnother.\n\nA third one.\n", False),
        ("label\ttext\nham\thello there\n", False),
        ("label\ttext\n" + "ham\thello\n" * 20, False),
        ("text,label\na b,1\nc d,0\n", False),
        ("a\tO\n\tO\n\nb\tO\n", False),
    ],
)
def test_columns_are_told_from_text(text, is_conll):
    assert looks_like_conll(content_of(text)) is is_conll


def test_columns_are_told_from_text_in_every_real_file(data_dir):
    tagged = {"CoNLL2003", "ResumeNER", "UD_English-EWT", "WeiboNER"}
    found = Counter()
    for path in sorted(path for path in data_dir.rglob("*") if path.is_file()):
        with {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)(path, "rb") as file:
            text = file.read(2**16).decode("utf-8", "ignore")
        folder = path.relative_to(data_dir).parts[0]
        assert looks_like_conll(content_of(text)) is (folder in tagged), path
        found[folder in tagged] += 1
    assert found[True] == 12
    assert found[False] > 60


# --- files side by side ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "seq.in", "i want  \u00a0 pizza\n to fly \nhome\n")
    write(tmp_path / "seq.out.gz", gzip.compress(b"O O O  B-food\r\nO B-what\r\nO\r\n"))
    write(tmp_path / "label.xz", lzma.compress(b"order\natis_flight#atis_airfare\n0\n"))
    return tmp_path


def test_files_side_by_side(folder):
    examples = read_parallel(folder)
    assert examples.columns == {
        "tokens": [["i", "want", "\u00a0", "pizza"], ["to", "fly"], ["home"]],
        "tags": [["O", "O", "O", "B-food"], ["O", "B-what"], ["O"]],
        "label": ["order", "atis_flight#atis_airfare", "0"],
    }
    assert examples.where(2) == f"{folder}/seq.in:3"
    (folder / "label.xz").unlink()
    assert set(read_parallel(folder, max_file_size=1e-6).columns) == {"tokens", "tags"}
    error = refused(read_parallel, folder, max_file_size=1e-8)
    assert (error.where, "unpacks to more than" in error.what) == (f"{folder}/seq.out.gz", True)


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("seq.in", "a b c d\nto fly far\nhome\n", "seq.out.gz:2"),
        ("seq.in", "a b c d\nto\nhome\n", "seq.out.gz:2"),
        ("seq.in", "a b c d\nto fly\n", "seq.out.gz:3"),
        ("seq.in", "a b c d\nto fly\nhome\nhome\n\n", "seq.in:4"),
        ("label", "x\ny\n", "seq.in:3"),
        ("label", "x\ny\nz\nz\n", "label:4"),
        ("seq.in", "a b c d\n\nhome\n", "seq.in:2"),
        ("seq.out", "O O O O\nO O\n\n", "seq.out:3"),
        ("seq.in", "", "seq.in"),
    ],
)
def test_broken_files_side_by_side_are_refused_by_line(folder, name, text, where):
    for path in folder.glob(f"{name}*"):
        path.unlink()
    write(folder / name, text)
    assert refused(read_parallel, folder).where == f"{folder}/{where}"


def test_files_that_are_missing_or_double(folder):
    write(folder / "seq.out", "O\n")
    error = refused(read_parallel, folder)
    assert (error.where, "seq.out and seq.out.gz" in error.what) == (str(folder), True)
    (folder / "seq.out").unlink()
    (folder / "seq.out.gz").unlink()
    error = refused(read_parallel, folder)
    assert (error.where, "seq.out" in error.what) == (str(folder), True)
    assert refused(read_parallel, folder / "train").where == str(folder / "train")


# --- real files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "sentences", "tokens", "tags"),
    [
        ("CoNLL2003/valid.txt.gz", {}, 3250, 51362, 9),
        ("CoNLL2003/test.txt.gz", {"column": 2}, 3453, 46435, 44),
        ("UD_English-EWT/en_ewt-ud-dev.conllu.gz", {"column": "xpos"}, 2001, 25147, 49),
        ("UD_English-EWT/en_ewt-ud-test.conllu.gz", {}, 2077, 25094, 17),
        ("WeiboNER/weiboNER_2nd_conll.train.gz", {}, 1350, 73778, 17),
        ("WeiboNER/weiboNER_2nd_conll.dev", {}, 270, 14509, None),
        ("ResumeNER/dev.char.bmes", {}, 463, 13890, 26),
        ("ResumeNER/test.char.bmes", {}, 477, 15100, 24),
    ],
)
def test_public_files_have_their_official_counts(data_dir, name, options, sentences, tokens, tags):
    examples = read_conll(data_dir / name, **options)
    assert len(examples) == len(examples.columns["tags"]) == sentences
    assert sum(map(len, examples.columns["tokens"])) == tokens
    assert [*map(len, examples.columns["tokens"])] == [*map(len, examples.columns["tags"])]
    found = {tag for sentence in examples.columns["tags"] for tag in sentence}
    assert tags in (None, len(found)), found
    opened = gzip.open if name.endswith(".gz") else open
    with opened(data_dir / name, "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")
    for row in (0, sentences // 2, sentences - 1):
        at = examples.lines[row] - 1
        first = lines[at].split("\t" if "\t" in lines[at] else " ")
        assert examples.columns["tokens"][row][0] == first["UD_" in name]
        assert at == 0 or not lines[at - 1] or lines[at - 1].startswith("#") or "-" in lines[at - 1].split("\t")[0]


@pytest.mark.parametrize(
    ("name", "rows", "tokens", "tags", "labels"),
    [
        ("ATIS/train", 4478, 50497, 120, 21),
        ("ATIS/valid", 500, 5703, None, None),
        ("ATIS/test", 893, 9164, None, None),
        ("SNIPS/valid", 700, 6384, None, 7),
        ("SNIPS/test", 700, 6354, None, 7),
    ],
)
def test_atis_and_snips_have_their_usual_counts(data_dir, name, rows, tokens, tags, labels):
    examples = read_parallel(data_dir / name)
    assert {len(values) for values in (examples, *examples.columns.values())} == {rows}
    found = {tag for sentence in examples.columns["tags"] for tag in sentence}
    assert tags in (None, len(found))
    assert labels in (None, len(set(examples.columns["label"])))
    assert [*map(len, examples.columns["tokens"])] == [*map(len, examples.columns["tags"])]
    assert sum(map(len, examples.columns["tokens"])) == tokens
