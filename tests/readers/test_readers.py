"""Tables, JSON and plain text: unchanged values, the line of every row, the place of every error; and column roles."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import string
from functools import partial

import pytest
from file_contents import parsed, refused, write
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import UsageError, UserError
from bertkit.readers import Examples, content, is_blank
from bertkit.readers.columns import guess_column, require_column
from bertkit.readers.content import BLOCK, extension, plain_name
from bertkit.readers.formats import parse_lines, read_file
from bertkit.readers.parsers.delimited import parse_delimited
from bertkit.readers.parsers.jsonl import parse_jsonl
from bertkit.readers.parsers.prodigy import parse_prodigy

table, jsonl = partial(parsed, parse_delimited), partial(parsed, parse_jsonl)
# What other tools take for a missing value, a line end or a quote.
ODD = ["NA", "null", "None", "nan", "", " ", '"', "'", '""', " a ", "1e5", "#"]
ODD += ["\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\ufeff"]
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n\0"), max_size=12) | st.sampled_from(ODD)
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12) | st.sampled_from(
    [*ODD, "\n", "\r\n", '"\n', ","]
)
ENDS = st.sampled_from(["\n", "\r\n"])


# --- tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "options", "columns", "lines"),
    [
        (
            "a.csv",
            't,n\n"a\nb, ""c""",1\n\nNA,null\n"",\r\n',
            {},
            {"t": ['a\nb, "c"', "NA", ""], "n": ["1", "null", ""]},
            [2, 5, 6],
        ),
        ("a.tsv", 't\tn\n" open\t1\na "b"\t0\n', {}, {"t": ['" open', 'a "b"'], "n": ["1", "0"]}, [2, 3]),
        ("a.csv", "\ufefft,n\r\né ,1\r\n", {}, {"t": ["é "], "n": ["1"]}, [2]),
        ("a.tsv", "\ufefft\tn\r\né \t1\r\n", {}, {"t": ["é "], "n": ["1"]}, [2]),
        ("a.tsv", "ham\thi\n\nspam\tbuy\n", {"columns": ("n", "t")}, {"n": ["ham", "spam"], "t": ["hi", "buy"]}, [1, 3]),
        ("a.tsv", "n\tt\nham\thi\n", {"columns": ("n", "t")}, {"n": ["ham"], "t": ["hi"]}, [2]),  # a header after all
        ("a.csv", 't;n\n"a;b";1\n', {"separator": ";"}, {"t": ["a;b"], "n": ["1"]}, [2]),
        ("a.csv", "t\tn\na\t1\n", {"separator": "\\t"}, {"t": ["a"], "n": ["1"]}, [2]),
        ("a.csv", "t; or not\na\n", {"separator": ","}, {"t; or not": ["a"]}, [2]),
        ("a.csv", ",t\n0,a\n", {}, {"Unnamed: 0": ["0"], "t": ["a"]}, [2]),  # the row numbers that pandas writes
        ("a.csv", ",t,s,s\n0,a,1,2\n", {}, {"Unnamed: 0": ["0"], "t": ["a"], "s (1)": ["1"], "s (2)": ["2"]}, [2]),
        ("a.csv", "t,s,s (1),s\na,1,2,3\n", {}, {"t": ["a"], "s (2)": ["1"], "s (1)": ["2"], "s (3)": ["3"]}, [2]),
        # The line by which Excel names its separator.
        ("a.csv", "sep=;\r\nt;n\r\na, b;1\r\n", {}, {"t": ["a, b"], "n": ["1"]}, [3]),
        ("a.csv", "sep=;\r\nt;n\r\na, b;1\r\n", {"separator": ";"}, {"t": ["a, b"], "n": ["1"]}, [3]),
        ("a.tsv", "sep=\t\nt\tn\na\t1\n", {}, {"t": ["a"], "n": ["1"]}, [3]),
        ("a.tsv", "sep=\nb\n", {}, {"sep=": ["b"]}, [2]),
        # An empty line is a row of one column alone.
        ("a.csv", "t\n\na\n\n\n", {}, {"t": ["", "a"]}, [2, 3]),
        ("a.csv", "\nt\na\n", {}, {"t": ["a"]}, [3]),
        ("a.tsv", "t\na\n\nb\n\n", {}, {"t": ["a", "", "b"]}, [2, 3, 4]),
        ("a.tsv", "\nt\na\n", {}, {"t": ["a"]}, [3]),
        ("a.tsv", "\nt\tn\na\t1\n", {}, {"t": ["a"], "n": ["1"]}, [3]),
        ("a.csv", 't\na\n""\n', {}, {"t": ["a", ""]}, [2, 3]),
        ("a.csv", "t,n\n1,2\n\n3,4\n", {}, {"t": ["1", "3"], "n": ["2", "4"]}, [2, 4]),
        # Empty columns at the end, as spreadsheets write them.
        ("a.csv", "t;n;;\n1;;;\n3;4;;\n5;6\n", {}, {"t": ["1", "3", "5"], "n": ["", "4", "6"]}, [2, 3, 4]),
        ("a.csv", "t,n, \na,1, \n", {}, {"t": ["a"], "n": ["1"]}, [2]),
        ("a.csv", "t;n;\n1;2;\n", {"separator": ";", "columns": ("t", "n")}, {"t": ["1"], "n": ["2"]}, [2]),
        ("a.csv", "1;2;\n3;4;\n", {"separator": ";", "columns": ("t", "n")}, {"t": ["1", "3"], "n": ["2", "4"]}, [1, 2]),
    ],
)
def test_table(name, text, options, columns, lines):
    examples = table(text.encode(), name, **options)
    assert (examples.columns, [*examples.lines]) == (columns, lines)
    assert examples.where(0) == f"{name}:{lines[0]}"


def test_columns_with_one_name_are_told():
    examples = table(b"t,s,s\na,1,2\n", "a.csv")
    assert examples.remarks.notes == ("the header names column 's' 2 times: read as s (1), s (2) (a.csv:1)",)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_empty_lines_of_one_column_are_rows_between_others_in_any_block(name):
    empty = b"\n" * (BLOCK + 9)
    examples = table(empty + b"t\n" + empty + b"a\n\nb\n" + empty, name)
    assert (len(examples), [*examples.lines][::BLOCK]) == (BLOCK + 12, [BLOCK + 11, 2 * BLOCK + 11])
    assert examples.columns["t"][-4:] == ["", "a", "", "b"]
    examples = table(empty + b"a\n\nb\n" + empty, name, columns=("t",))
    assert (examples.columns["t"], [*examples.lines]) == (["a", "", "b"], [BLOCK + 10, BLOCK + 11, BLOCK + 12])


def test_long_fields_are_read_and_the_csv_limit_is_left_alone():
    before = csv.field_size_limit()
    document = "word " * 100_000
    assert table(f"text,label\n{document},1\n", "a.csv").columns["text"] == [document]
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "content", "line", "hint"),
    [
        ("a.csv", "", None, None),
        ("a.csv", "\n\n", None, None),
        ("a.tsv", "\n\n", None, None),
        ("a.csv", "text,label\n", None, "--columns label,text"),
        ("a.csv", "text,label\na,1\nb,2,3\n", 3, "quotes"),
        ("a.csv", "text,label,\na,1,\nb,2,3\n", 3, "name each column in the header; else put text that contains ',' in quotes"),
        ("a.csv", "text,label,\na,1,\nb,2,3,4\n", 3, "quotes"),
        ("a.csv", 'text,label\n"a\nb",1\nb\n', 4, "missing"),
        ("a.tsv", "text\tlabel\na\t1\nb\tc\t1\n", 3, "\\t"),
        ("a.tsv", "text\tlabel\na\t1\nb;1\n", 3, "--separator ';'"),
        ("a.tsv", "text\tlabel\na\t1\nb;1;2\n", 3, "if ';' separates its fields, there are 3: name as many columns"),
        ("a.tsv", 'label\ttext\n1\t"one,\ntwo, three"\n', 3, "name the file .csv"),  # a comma is no separator of this
        (
            "a.csv",
            "text,text\na,1\n",
            1,
            "--columns text,label; else give each column its own name",
        ),
        ("a.csv", "A title\ntext,label\na,1\n", 2, "if the first line is a title above the header, remove it; else put text"),
        ("a.csv", "A title,,\ntext,label,id\na,1,2\n", 1, "title above the header"),
        ("a.tsv", "A title\n\ntext\tlabel\na\t1\n", 3, "title above the header"),
        ("a.csv", "5,5,great film\n4,5,good\n", 1, "--columns A,B,... with 3 names"),
        ("a.csv", "text,\na,1\n", 1, "--columns text,label"),
        ("a.tsv", "gj04\t1\t\tA sentence.\n", 1, "--columns A,B,... with 4 names"),
        ("a.csv", "text;label\na,1\nb,1\n", 1, "--separator ';'"),
        ("a.tsv", "text,label\na,1\n", 1, "--separator ','"),
        ("a.csv", 'text,label\na,1\nb,"open\nc,1\nd,1\n', 3, '""'),
        ("a.csv", 'text,label\n"fine\nfield","opens\nc,1\n', 3, '""'),
        ("a.csv", 'text,label\n"open,1\nb,1\n"good",1\n', 2, '""'),
        ("a.csv", 'text,label\na,1\n"say "hi" now",1\n', 3, '""'),
        ("a.csv", 'text,label\n"a"" b,1\n', 2, '""'),
        ("a.csv", "text,label\na\rb,1\n", 2, "quotes"),
        ("a.csv", "sep=;\ntext;label\na\rb;1\n", 3, "quotes"),
        ("a.csv", 'sep=;\ntext;label\na;1\n"b"c;1\n', 4, '""'),
    ],
)
def test_broken_table_is_refused_by_line(name, content, line, hint):
    error = refused(table, content, name)
    assert error.where == (f"{name}:{line}" if line else name)
    assert (hint in error.hint) if hint else error.hint is None


@pytest.mark.parametrize(
    "options", [{"separator": wrong} for wrong in ("", "::", '"', "\n")] + [{"columns": ("text", "text")}], ids=str
)
def test_options_of_a_table_that_cannot_be(options):
    refused(table, "a;b\n1;2\n", "a.csv", kind=UsageError, **options)


def test_rows_of_other_widths_are_refused_or_kept_as_none():
    text = "id\ttext\tlabel\n0\ta\t1\n1\tone line of\nb\t0\n2\tc\t1\n"
    examples = table(text, "a.tsv", keep_broken=True)
    assert examples.columns == {"id": ["0", None, None, "2"], "text": ["a", None, None, "c"], "label": ["1", None, None, "1"]}
    assert examples.where(1) == refused(table, text, "a.tsv").where == "a.tsv:3"
    assert examples.remarks.warnings == (refused(table, text, "a.tsv").line,), "the first one, with what to do about it"
    assert refused(table, "a\tb\n", "a.tsv", columns=("x", "y", "z")).where == "a.tsv:1"


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(ANY, ANY, ANY), min_size=1, max_size=8), end=ENDS)
def test_what_the_csv_module_writes_comes_back(rows, end):
    lines, out = [], io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b", "c"])
    for row in rows:
        lines.append(out.getvalue().count("\n") + 1)
        writer.writerow(row)
    examples = table(out.getvalue(), "x.csv")
    assert list(zip(*examples.columns.values(), strict=True)) == rows
    assert list(examples.lines) == lines


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=8), end=ENDS)
def test_tsv_comes_back(rows, end):
    examples = table(end.join("\t".join(row) for row in [("a", "b"), *rows]) + end, "x.tsv")
    assert list(zip(*examples.columns.values(), strict=True)) == rows
    assert list(examples.lines) == list(range(2, len(rows) + 2))


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(PLAIN, min_size=1, max_size=8), end=ENDS, last=st.booleans())
def test_lines_come_back(texts, end, last):
    examples = parsed(parse_lines, end.join(texts) + (end if last or texts[-1] == "" else ""), "x")
    assert examples.columns == {"text": texts}
    assert list(examples.lines) == list(range(1, len(texts) + 1))


@settings(max_examples=150, deadline=None)
@given(content=st.text(alphabet='ab",;\n\r ', max_size=30))
def test_csv_is_read_as_the_csv_module_reads_it_or_refused_by_a_line_it_has(content):
    content = "x,y\n" + content
    try:
        examples = table(content, "f.csv")
    except UserError as error:
        line = re.fullmatch(r"f\.csv(?::(\d+))?", error.where)
        assert line
        assert line[1] is None or 1 <= int(line[1]) <= content.count("\n") + 1
    else:
        rows = [row for row in csv.reader(io.StringIO(content, newline="\n"), strict=True) if row]
        assert [list(row) for row in zip(*examples.columns.values(), strict=True)] == rows[1:]


# --- bytes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "line", "what", "hint"),
    [
        ("text,label\nok,1\ncafé noir,1\n".encode("latin-1"), 3, ("0xe9", "byte 4", "Windows-1252"), "--encoding windows-1252"),
        ("text,label\n\u2018hi\u2019,1\n".encode("cp1252"), 2, ("0x91", "byte 1", "Windows-1252"), "--encoding windows-1252"),
        ("text,label\n这个宾馆比较陈旧,1\n".encode("gbk"), 2, ("GB18030",), "--encoding gb18030"),
        ("text,label\nhi,1\n".encode("utf-16"), 1, ("UTF-16", "0xff 0xfe"), "--encoding utf-16"),
        ("text,label\nhi,1\n".encode("utf-32"), 1, ("UTF-32", "0xff 0xfe"), "--encoding utf-32"),
        ("text,label\nhi,1\n".encode("utf-16-le"), 1, ("UTF-16LE",), "--encoding utf-16le"),
        ("text,label\nhi,1\n".encode("utf-16-be"), 1, ("UTF-16BE",), "--encoding utf-16be"),
        (b"text,label\nab\0c,1\n", 2, ("NUL", "byte 3"), "undamaged"),
        (b"\xef\xbb\xbfa\xff,1\n", 1, ("0xff", "byte 5"), "--encoding"),
        ("text,label\nété,1\n".encode() + b"bad \xe9,1\n", 3, ("0xe9", "byte 5"), "correct this line"),
        ("text,label\nhi 这".encode()[:-1], 2, ("byte 4", "0xe8"), "cut off"),
    ],
)
def test_bytes_that_are_not_utf8_text(tmp_path, data, line, what, hint):
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.txt"):
        path = write(tmp_path / name, data)
        error = refused(read_file, path)
        assert all(part in error.what for part in what), error.what
        assert error.where == f"{path}:{line}"
        assert hint in error.hint


def test_extensions_below_the_compression():
    names = {"A.CSV.gz": ".csv", "a.csv.XZ": ".csv", "a.xz": "", "a.tsv": ".tsv", "d.gz/a": ""}
    assert {name: extension(name) for name in names} == names
    assert [plain_name(name) for name in ("A.CSV.gz", "seq.in.Xz", "label")] == ["A.CSV", "seq.in", "label"]


# --- JSON ----------------------------------------------------------------------------------------------------------


def test_jsonl_keeps_types_and_gives_none_for_a_missing_key():
    rows = [{"text": "NA", "label": 1}, {"text": "", "score": 0.5}, {"label": None, "tags": ["a"], "on": True}]
    examples = jsonl(json.dumps(rows[0]) + "\r\n\r\n" + json.dumps(rows[1]) + "\n" + json.dumps(rows[2]))
    assert examples.columns == {
        "text": ["NA", "", None],
        "label": [1, None, None],
        "score": [None, 0.5, None],
        "tags": [None, None, ["a"]],
        "on": [None, None, True],
    }
    assert type(examples.columns["on"][2]) is bool
    assert list(examples.lines) == [1, 3, 4]
    assert jsonl('{"a": "\\ud83d\\ude00"}').columns == {"a": ["\U0001f600"]}  # a whole surrogate pair


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | PLAIN | ANY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters, max_size=3), inner, max_size=3),
    max_leaves=4,
)
OBJECT = st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=2), JSON, min_size=1, max_size=3)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(OBJECT, min_size=1, max_size=4), indent=st.sampled_from([None, 1]), ascii=st.booleans())
def test_a_list_of_objects_reads_as_the_same_objects_a_line_each(rows, indent, ascii):
    texts = [json.dumps(row, indent=indent, ensure_ascii=ascii) for row in rows]
    examples = jsonl("[\n" + ",\n".join(texts) + "\n]\n")
    by_line = jsonl("\n".join(json.dumps(row, ensure_ascii=ascii) for row in rows))
    names = list(examples.columns)
    assert examples.columns == by_line.columns == {name: [row.get(name) for row in rows] for name in names}
    assert set(names) == {name for row in rows for name in row}
    assert list(by_line.lines) == list(range(1, len(rows) + 1))
    assert list(examples.lines) == [2 + sum(text.count("\n") + 1 for text in texts[:row]) for row in range(len(rows))]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", None),
        ("[]", None),
        ('{"a": 1}\n{"a": 2}\n{"a": "tex', 3),
        ('{"a": 1}\n\n{"a": 1,\n{"a": 2}\n', 3),
        ('{"a": 1}\n{"a" 1}\n', 2),
        ('{"a": 1}\n[1]\n', 2),
        ('{"a": 1}\n7\n', 2),
        ('[{"a": 1},\n {"a": 2},\n {"a": }]', 3),
        ('[{"a": 1},\n {"a": 2}\n', 2),
        ('[{"a": 1},\n {"a": 2}\n {"a": 2}]', 3),
        ('[{"a": 1},\n\n ["b"]]', 3),
        ('[{"a": 1}]\nmore', 2),
        ('[{"a": 1},]', 1),
        ('{"a": "\\ud83d"}\n', 1),
        ('{"a": 1}\n{"a": {"\\uD83D": []}}\n', 2),
        ('[{"a": 1},\n{"a": "\\uDE00"}]', 2),
        ("[" * 100_000, 1),
    ],
)
def test_broken_json_is_refused_by_line(content, line):
    assert refused(jsonl, content).where == (f"f:{line}" if line else "f")


# --- columns -------------------------------------------------------------------------------------------------------


def test_tasks_that_are_skipped_are_counted_over_all_blocks(monkeypatch):
    monkeypatch.setattr(content, "BLOCK", 512)
    tasks = [{"text": f"{i}", "answer": "accept" if i % 4 else "reject", "_input_hash": i} for i in range(600)]
    rows = parsed(parse_prodigy, "".join(f"{json.dumps(task)}\n" for task in tasks))
    assert (len(rows), rows.remarks.notes) == (450, ("skipped 150 tasks that annotators rejected or ignored",))


def test_tasks_without_spans_have_no_entities_however_long_their_run(monkeypatch):
    monkeypatch.setattr(content, "BLOCK", 512)
    spans = {"spans": [{"start": 0, "end": 1, "label": "N"}]}
    tasks = [{"text": f"{i}", "answer": "accept", "_input_hash": i} | (spans if i % 500 == 1 else {}) for i in range(600)]
    lines = [f"{json.dumps(task)}\n" for task in tasks]
    found = parsed(parse_prodigy, "".join(lines)).columns["entities"]
    assert found == [spans["spans"] if i % 500 == 1 else [] for i in range(600)]
    assert "entities" not in parsed(partial(parse_prodigy, labelled=False), "".join(lines[2:90])).columns
    others = "".join(f"{json.dumps(task | {'sentiment': 'good'})}\n" for task in tasks[2:90])
    assert set(parsed(parse_prodigy, others).columns) == {"text", "sentiment"}, "nothing says that it is about spans"


def test_select_keeps_places_and_label_names():
    examples = Examples(columns={"a": [1, 2, 3]}, source="f", lines=[2, 4, 7], label_names={"a": ("x", "y")})
    chosen = examples.select([2, 0])
    assert (chosen.columns, chosen.where(0), chosen.label_names) == ({"a": [3, 1]}, "f:7", {"a": ("x", "y")})


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["sentence", "label"], ("sentence", None, "label")),
        (["Premise", "Hypothesis", "Label"], ("Premise", "Hypothesis", "Label")),
        (["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], ("question1", "question2", "is_duplicate")),
        (["Text", "Sentence 2", "gold_label"], ("Text", "Sentence 2", "gold_label")),
        (["title", "body", "team"], (None, None, "team")),
        (["text", "label", "category"], ("text", None, None)),
        (["a", "b"], (None, None, None)),
    ],
)
def test_columns_are_guessed_where_there_is_no_doubt(names, found):
    assert tuple(guess_column(names, role) for role in ("text", "text_pair", "label")) == found


@pytest.mark.parametrize(
    ("names", "name", "hint"),
    [
        ("text label", "lable", "did you mean label? rename it, or set it with --x label"),
        ("text label", "Text", "did you mean text?"),
        ("text label", "zzz", "--x NAME"),
        ("ham|Go until jurong point", "zzz", "--columns label,text"),
        ("good|1", "zzz", "--columns text,label"),
        ("a\nb|c", "zzz", "the first row looks like data"),
        ("neutral|\u4ed6\u8bf4\uff0c\u5988\u5988\u3002", "zzz", "--columns label,text"),
        ("q (1)|q (2)|q (10)", "q", "name one, such as --x 'q (1)', or give each column its own name"),
        ("q (1)|text", "q", "--x NAME"),
        ("T000|Where is it?|card", "zzz", "header, name its columns: --columns A,B,... with 3 names"),  # the first may be an id
        ("x|Fine, then|y|z", "zzz", "--columns A,B,... with 4 names"),
    ],
)
def test_missing_column(names, name, hint):
    columns = {column: ["a"] for column in names.split("|" if "|" in names else None)}
    error = refused(require_column, Examples(columns=columns, source="f.csv", lines=[2]), name, option="--x")
    assert (repr(name) in error.what, error.where) == (True, "f.csv")
    assert hint in error.hint
    assert require_column(Examples(columns=columns, source="f.csv", lines=[2]), [*columns][1], option="--x") == [*columns][1]


def test_a_name_that_occurs_twice_has_no_single_column():
    examples = table("q,label,q\na,1,b\n", "a.csv")
    error = refused(require_column, examples, "q", option="--x")
    assert error.what == "no column 'q', but several of this name: q (1) is column 1, q (2) is column 3"


@pytest.mark.parametrize(
    ("value", "may_be_empty", "may_be_number", "text"),
    [
        ("a ", False, False, "a "),
        (" ", True, False, " "),
        (7, False, True, "7"),
        (0.5, True, True, "0.5"),
        (None, True, False, None),
        (7, True, False, None),
        (True, True, True, None),
        (float("nan"), True, True, None),
        (["a"], True, True, None),
        (" \n", False, False, None),
    ],
)
def test_value_as_text(value, may_be_empty, may_be_number, text):
    examples = Examples({"t": ["a", value]}, "f.csv", [2, 5])
    read = partial(examples.texts, "t", may_be_empty=may_be_empty, may_be_number=may_be_number)
    if text is not None:
        assert read() == ["a", text]
    else:
        assert refused(read).where == "f.csv:5"


# --- real files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("GLUE/MRPC/train.tsv.gz", 3668),
        ("GLUE/MRPC/test.tsv.gz", 1725),
        ("GLUE/STS-B/train.tsv.gz", 5749),
        ("GLUE/RTE/train.tsv.gz", 2490),
        ("OCNLI/dev.json.gz", 3000),
        ("LingNLI/val.jsonl.gz", 2425),
        ("SNIPS/train/seq.in.gz", 13084),
    ],
)
def test_public_files_have_their_official_number_of_rows(data_dir, name, rows):
    examples = read_file(data_dir / name)
    assert len(examples) == rows
    assert {len(values) for values in examples.columns.values()} == {rows}
    assert not next(iter(examples.columns)).startswith("\ufeff")


def test_sms_spam_has_no_header(data_dir):
    labels = read_file(data_dir / "SMSSpam/SMSSpamCollection.gz", columns=("label", "text")).columns["label"]
    assert {label: labels.count(label) for label in set(labels)} == {"ham": 4827, "spam": 747}
    header_lost = read_file(data_dir / "SMSSpam/SMSSpamCollection.gz")
    assert "--columns label,text" in refused(require_column, header_lost, "label", option="--label").hint


def test_sst2_line_by_line(data_dir):
    found = read_file(data_dir / "GLUE/SST-2/train.tsv.gz")
    with gzip.open(data_dir / "GLUE/SST-2/train.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")[1:-1]
    assert len(found) == 67349
    assert [*map("\t".join, zip(found.columns["sentence"], found.columns["label"], strict=True))] == lines
    assert [*found.lines] == [*range(2, 67351)]


def test_a_text_that_nobody_sees_is_blank():
    blank = ["", " \t\n", "\u200b\u200b", "\ufeff", "\u00a0\u2003", "\x00\u2060", "\u00ad"]
    assert [is_blank(text) for text in blank] == [True] * len(blank)
    assert not any(map(is_blank, ["a", "\u200ba", "\u738b", ".", "\u00a0!", "\U0001f600"]))
    rows = Examples({"text": ["a", "\u200b"]}, "my.csv", [2, 3])
    assert refused(rows.texts, "text", may_be_empty=False).where == "my.csv:3"
