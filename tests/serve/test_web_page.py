"""The page at /, in a real browser: what it shows is what the API answers, for hostile texts, by keyboard, in every size."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from browser import faults_of, open_browser, open_page
from playwright.sync_api import Browser, Page, expect
from serving import Gate, Serving, listening, serving, with_mask

import bertkit

pytestmark = pytest.mark.e2e
LABELS = ("blame", "none", "praise")
TAGS = ("O", "B-X", "I-X", "B-Y")
SIZES = {360: 740, 1280: 900}
ASKED: dict[str, dict[str, Any]] = {  # the API's inputs, and so the names of the boxes
    "labels": {"text": "the good movie"},
    "number": {"text": "we", "text_pair": "no"},
    "choices": {"text": "we like", "choices": ["the movie", "  no", "it"]},
    "tags": {"text": "the good movie of a river"},
    "answers": {"question": "what is it", "context": "we like the movie\nof a river"},
    "fills": {"text": "the [MASK] movie"},
}
HOSTILE = """'"><img src=x onerror="hit=1"><svg onload="hit=1">$(touch hit)`touch hit`';touch hit;'\\ {{7*7}} &lt;b&gt; %00"""
ELEMENTS = """
    a bdi button code details div form h2 h3 input label li mark noscript ol option output p pre section select small span
    summary textarea
"""
REFUSED = "Failed to load resource"  # what chromium itself says of an answer that is an error


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def folders(make_model_dir: Callable[..., Path]) -> dict[str, Path]:
    """A model of each family, with weights that decide one way here and another there."""

    def make(architecture: str, **config: Any) -> Path:
        return make_model_dir(architecture, **{"seed": 4, "initializer_range": 0.5, **config})

    return {
        "labels": make("BertForSequenceClassification", labels=LABELS),
        "number": make("BertForSequenceClassification", num_labels=1, problem_type="regression"),
        "choices": make("BertForMultipleChoice"),
        "tags": make("BertForTokenClassification", labels=TAGS, seed=3),
        "answers": make("BertForQuestionAnswering"),
        "fills": make("BertForMaskedLM"),
        HOSTILE: make("BertForSequenceClassification", labels=(HOSTILE, f"{HOSTILE} 2", *map(str, range(10)))),
    }


@pytest.fixture(scope="module")
def served(folders: dict[str, Path]) -> Iterator[Serving]:
    with serving(folders) as found:
        yield found


@pytest.fixture(scope="module")
def url(served: Serving) -> Iterator[str]:
    with listening(served.app) as found:
        yield found


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with open_page(browser, url) as found:
        yield found


def choose(page: Page, model: str) -> None:
    page.locator("#choose select").select_option(model)


def send(page: Page, model: str, row: Mapping[str, Any] | None = None) -> None:
    """Ask a model about a row, and wait for the answer."""
    expect(page.locator("#ask")).to_be_visible()
    if page.locator("#choose select").input_value() != model:
        choose(page, model)
    for name, text in (row or ASKED[model]).items():
        page.locator(f"#fields [name={name}]").fill(text if isinstance(text, str) else "\n\n".join(text))
    page.locator("#send").click()
    expect(page.locator("#answer > :not(.empty)").first).to_be_visible()


def answer_of(url: str, model: str, inputs: Any, **parameters: Any) -> Any:
    response = httpx2.post(f"{url}/models/{model}", json={"inputs": inputs, "parameters": parameters})
    assert response.status_code == 200, response.text
    return response.json()


def bars(page: Page, place: str = "#answer") -> list[tuple[str, str]]:
    """The names and numbers of all bars."""
    items = page.locator(f"{place} .bars li").all()
    return [(item.locator("bdi").text_content() or "", item.locator(".number").text_content() or "") for item in items]


def share(score: float) -> str:
    return "> 99.9%" if 0.999 < score < 1 else "< 0.1%" if 0 < score < 0.001 else f"{100 * score:.1f}%"


def marks(page: Page, place: str = "#answer") -> tuple[str, list[tuple[int, int, str]]]:
    """The text, and in it the marks: where each begins and ends in code points, and what it is called."""
    parts = page.locator(f"{place} .text").evaluate(
        "text => [...text.childNodes].map(each => each.nodeType === Node.TEXT_NODE ? [each.data, null]"
        " : [each.firstChild.data, each.querySelector('small')?.textContent ?? ''])"
    )
    text, found = "", []
    for part, name in parts:
        found += [] if name is None else [(len(text), len(text) + len(part), name)]
        text += part
    return text, found


# --- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["labels", "choices"])
def test_probabilities(page: Page, url: str, model: str) -> None:
    send(page, model)
    (expected,) = answer_of(url, model, ASKED[model])
    assert bars(page) == [(each["label"], share(each["score"])) for each in expected]
    widths = page.locator("#answer .bar").evaluate_all(
        "async bars => { await Promise.all(document.getAnimations().map(each => each.finished));"
        " return bars.map(bar => parseFloat(getComputedStyle(bar, '::before').width) / bar.clientWidth) }"
    )
    assert widths == pytest.approx([each["score"] for each in expected], abs=0.01)
    expect(page.locator("#why")).to_be_visible(visible=model == "labels")


def test_a_number(page: Page, url: str) -> None:
    send(page, "number")
    ((expected,),) = answer_of(url, "number", ASKED["number"])
    assert float(page.locator("#answer .value").inner_text()) == pytest.approx(expected["score"], rel=1e-3)
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#why .bars li")).to_have_count(2)
    assert {word for word, _ in bars(page, "#why")} == {"we", "no"}
    expect(page.get_by_label("What contributes to")).to_be_hidden()


EMOJI = (
    "\U0001f600\U0001f469\u200d\U0001f4bb open the\n\U0001f1eb\U0001f1f7 new ticket, e\u0301a bad book \U00020000 broken "
    "\U0001f600 the good movie"
)


def test_entities_behind_emoji(page: Page, url: str) -> None:
    """Offsets count code points, of which an emoji is one or several; JavaScript counts it twice or more."""
    send(page, "tags", {"text": EMOJI})
    expected = answer_of(url, "tags", EMOJI)
    assert len(expected) > 2
    assert marks(page) == (EMOJI, [(each["start"], each["end"], each["entity_group"]) for each in expected])
    assert [name for name, _ in bars(page)] == [f"{each['word']} ({each['entity_group']})" for each in expected]
    hues = page.locator("#answer mark").evaluate_all(
        "marks => marks.map(mark => [mark.lastChild.textContent, mark.style.cssText])"
    )
    assert len({hue for _, hue in hues}) == len({name for name, _ in hues}) == 2


def test_words_and_the_tag_of_each(page: Page, url: str) -> None:
    choose(page, "tags")
    page.get_by_label("Split words").check()
    words = "the can't go\U0001f600od movie, of a river".split()
    send(page, "tags", {"text": "  ".join(words)})
    tags = answer_of(url, "tags", {"tokens": words}, aggregation_strategy="none", ignore_labels=[])
    assert [each["word"] for each in tags] == words
    text, found = marks(page)
    assert text == " ".join(words)
    expected = [(each["word"], each["entity"]) for each in tags if each["entity"] != "O"]
    assert [(text[start:end], name) for start, end, name in found] == expected
    assert expected


def test_an_answer_in_its_context(page: Page, url: str) -> None:
    context = f"\U0001f600\U0001f600 {ASKED['answers']['context']}"
    seen = set()
    for question in ("what is it", "who", "when was the river", "a book"):
        send(page, "answers", {"question": question, "context": context})
        expected = answer_of(url, "answers", {"question": question, "context": context}, top_k=3)
        expect(page.locator("#answer .bars li").first).to_contain_text(share(expected[0]["score"]))
        assert marks(page) == (context, [(expected[0]["start"], expected[0]["end"], "")])
        assert bars(page) == [(each["answer"], share(each["score"])) for each in expected]
        seen.add(expected[0]["start"])
    assert len(seen) > 1
    assert seen != {0}


def test_no_answer_in_the_context(page: Page) -> None:
    none = '[{"answer": "", "score": 0.75, "start": 0, "end": 0}, {"answer": "we", "score": 0.25, "start": 0, "end": 2}]'
    page.route("**/models/answers", lambda route: route.fulfill(body=none, content_type="application/json"))
    send(page, "answers")
    expect(page.locator("#answer")).to_contain_text("The context has no answer.")
    assert marks(page)[1] == []
    assert bars(page) == [("no answer", "75.0%"), ("we", "25.0%")]


@pytest.mark.parametrize("text", ["The [MASK] movie\U0001f600", "A [MASK] book and [MASK] a [MASK]"])
def test_masks_are_filled(page: Page, url: str, text: str) -> None:
    send(page, "fills", {"text": text})
    found = answer_of(url, "fills", text)
    gaps = found if text.count("[MASK]") > 1 else [found]
    assert bars(page) == [(each["token_str"], share(each["score"])) for gap in gaps for each in gap]
    filled, places = marks(page)
    assert [filled[start:end] for start, end, _ in places] == [gap[0]["token_str"].removeprefix("##") for gap in gaps]
    if len(gaps) == 1:
        assert filled == found[0]["sequence"]


def test_a_mask_goes_by_the_models_name_for_it(browser: Browser, folders: dict[str, Path], tmp_path: Path) -> None:
    model = with_mask("<gap>", folders["fills"], tmp_path / "fills")
    with serving({"fills": model}) as own, listening(own.app) as url, open_page(browser, url) as page:
        expect(page.locator("#fields code")).to_have_text("<gap>")
        page.get_by_role("button", name="Try an example").click()
        expect(page.locator("#answer > :not(.empty)").first).to_be_visible()
        text = page.locator("[name=text]").input_value()
        assert (text.count("<gap>"), "[MASK]" in text) == (2, False)
        assert len(marks(page)[1]) == 2
        assert faults_of(page) == []


def test_several_labels_are_said(browser: Browser, make_model_dir: Callable[..., Path]) -> None:
    several = {"labels": LABELS, "problem_type": "multi_label_classification"}
    model = make_model_dir("BertForSequenceClassification", seed=4, initializer_range=0.5, **several)
    with serving({"sets": model}) as own, listening(own.app) as url, open_page(browser, url) as page:
        expect(page.locator("#facts")).to_contain_text("with several labels")


def test_why_for_any_class(page: Page, folders: dict[str, Path]) -> None:
    text, pair = "the good movie \U0001f600 good", "the river"
    send(page, "labels", {"text": text, "text_pair": pair})
    predicted = bars(page)[0][0]
    chosen = page.get_by_label("What contributes to")
    expect(chosen).to_have_value(predicted)
    assert chosen.locator("option").all_text_contents() == [*LABELS]
    predictor = bertkit.load(folders["labels"], device="cpu", precision="fp32")
    for label in LABELS:
        chosen.select_option(label)
        page.get_by_role("button", name="Explain").click()
        expect(page.locator("#why .legend bdi")).to_have_text(label)
        ((_, words),) = predictor.explain([{"text": text, "text_pair": pair}], label)
        shown, found = marks(page, "#why")
        assert shown == f"{text}\n{pair}"
        assert [shown[start:end] for start, end, _ in found] == [word for word, _ in words]
        kinds = page.locator("#why .text mark").evaluate_all("marks => marks.map(mark => mark.className)")
        assert kinds == ["against" if weight < 0 else "for" for _, weight in words]
        strongest = sorted(words, key=lambda each: -abs(each[1]))[:8]
        assert [(name, float(number.replace("\u2212", "-"))) for name, number in bars(page, "#why")] == [
            (word, pytest.approx(weight, rel=0.06)) for word, weight in strongest
        ]


# --- requests ----------------------------------------------------------------------------------------------------------


def run_code(page: Page, folder: Path, **environment: str) -> Any:
    """What the lines of curl and of Python both give; they do nothing else."""
    shell, python = page.locator("#code pre").all_text_contents()
    assert "\u202e" not in shell + python
    found = []
    for command, read in ((["bash", "-c", f"{shell} -sS"], json.loads), ([sys.executable, "-c", python], ast.literal_eval)):
        done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, check=True)
        found.append(read(done.stdout.decode()))
    assert found[0] == found[1]
    assert [*folder.iterdir()] == []
    return found[0]


@pytest.mark.parametrize("model", [*ASKED, HOSTILE])
def test_the_lines_of_a_request_run_as_they_stand(page: Page, url: str, model: str, tmp_path: Path) -> None:
    row = ASKED.get(model, {"text": f"{HOSTILE}\n\u202e\U0001f600\x7f"})
    send(page, model, row)
    asked = {"inputs": row, "parameters": {"top_k": 3} if model == "answers" else {}}
    expected = httpx2.post(f"{url}/models/{quote(model, safe='')}", json=asked).json()
    assert run_code(page, tmp_path) == expected
    if page.locator("#why").is_visible():
        label = model if model == HOSTILE else "praise" if model == "labels" else None
        if label:
            page.get_by_label("What contributes to").select_option(label)
        page.get_by_role("button", name="Explain").click()
        expect(page.locator("#why .text")).to_be_visible()
        expected = httpx2.post(f"{url}/explain", json={"inputs": row, "label": label, "model": model}).json()
        assert run_code(page, tmp_path) == expected


def test_errors_stand_as_the_server_says_them(browser: Browser, url: str) -> None:
    with open_page(browser, url, errors=(REFUSED,)) as page:
        send(page, "labels")
        choose(page, "fills")
        box, problem = page.locator("[name=text]"), page.locator("#problem")
        expect(box).to_have_value("the good movie")  # it stays where the next model has such a box
        box.press("Enter")
        expect(problem).to_have_text("no [MASK] in the text, or none in its first 64 tokens")
        expect(problem).to_have_role("alert")
        assert page.locator("#answer").inner_text() == ""
        assert faults_of(page) == []
        box.fill("a [MASK]")
        box.press("Enter")
        expect(page.locator("#answer mark")).to_be_visible()
        expect(problem).to_be_empty()
        page.route("**/models/*", lambda route: route.abort())
        box.press("Enter")
        expect(problem).to_have_text("The server cannot be reached.")
        page.route("**/models/*", lambda route: route.fulfill(status=502, body="<b>no JSON</b>"))
        box.press("Enter")
        expect(problem).to_have_text("502 Bad Gateway")
        choose(page, "labels")
        expect(problem).to_be_empty()
        expect(page.locator("#answer")).to_contain_text("try the example")


def test_while_it_computes(browser: Browser, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"labels": folders["labels"]}) as own:
        gate = Gate(own.models["labels"], monkeypatch)
        with listening(own.app) as url, open_page(browser, url) as page:
            page.locator("[name=text]").fill("the movie")
            page.locator("[name=text]").press("Enter")
            button = page.locator("#send")
            expect(button).to_have_text("Computing\u2026")
            assert gate.reached.wait(60)
            page.keyboard.press("Enter")
            button.click(force=True)
            assert faults_of(page) == []
            gate.opened.set()
            expect(button).to_have_text("Label")
            expect(page.locator("#answer .bars li")).to_have_count(3)
            expect(page.locator("#choose")).to_be_hidden()
        assert gate.sizes == [1], "one request was sent several times"


def test_a_token_is_asked_for_and_kept_nowhere(browser: Browser, folders: dict[str, Path], tmp_path: Path) -> None:
    token = "secr\u00e9t"
    with (
        serving({"labels": folders["labels"]}, token=token) as own,
        listening(own.app) as url,
        open_page(browser, url, errors=(REFUSED,)) as page,
    ):
        expect(page.locator("#access input")).to_be_focused()
        expect(page.locator("#ask")).to_be_hidden()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#problem")).to_contain_text("the token is missing or wrong")
        assert faults_of(page) == []
        page.locator("#access input").fill(token)
        page.keyboard.press("Enter")
        expect(page.locator("[name=text]")).to_be_focused()
        expect(page.locator("#access input")).to_be_hidden()
        expect(page.locator("#problem")).to_be_empty()
        page.keyboard.type("the movie")
        page.keyboard.press("Enter")
        expect(page.locator("#answer .bars li")).to_have_count(3)
        assert token not in page.content()
        assert [each["label"] for each in run_code(page, tmp_path, BERTKIT_TOKEN=token)[0]] == [name for name, _ in bars(page)]
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        page.reload()
        expect(page.locator("#access input")).to_have_value("")


# --- everybody's page --------------------------------------------------------------------------------------------------


def test_what_the_server_sends(url: str) -> None:
    for path, kind in (("/", "text/html"), ("/style.css", "text/css"), ("/script.js", "text/javascript")):
        response = httpx2.get(url + path)
        assert response.headers["content-type"] == f"{kind}; charset=utf-8"
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        assert set(policy.values()) == {"'self'", "'none'", "data:"}
        assert not re.search(r"https?:|//[a-z]|@import|url\(|innerHTML|insertAdjacent|eval\(| on[a-z]+=| style=", response.text)


@pytest.mark.parametrize("model", [*ASKED, HOSTILE])
def test_hostile_texts_are_inert(page: Page, model: str) -> None:
    texts = {"text": f"[MASK] {HOSTILE}", "text_pair": HOSTILE, "context": HOSTILE, "question": "<img src=x onerror=hit=1>"}
    names = ASKED.get(model, texts.keys() - {"context", "question"})
    row = {name: [f"{HOSTILE} {i}" for i in "ab"] if name == "choices" else texts[name] for name in names}
    send(page, model, row)
    if page.locator("#why").is_visible():
        page.get_by_role("button", name="Explain").click()
        expect(page.locator("#why .text")).to_have_text(row["text"] + ("\n" + row["text_pair"] if "text_pair" in row else ""))
    names = page.locator("main *").evaluate_all("all => [...new Set(all.map(each => each.localName))]")
    assert {*names} <= {*ELEMENTS.split()}
    assert page.evaluate("[window.hit, document.title]") == [None, "bertkit"]
    shown = marks(page)[0] if model == "tags" else "".join(page.locator("output").all_text_contents())
    assert HOSTILE in shown
    expect(page.locator("#facts bdi")).to_have_text(model)


def stops(page: Page, key: str, last: str) -> list[str]:
    """Press a key until the focus is on the element with this selector; where it was, each time with a frame around it."""
    found = []
    while not found or found[-1] != last:
        page.keyboard.press(key)
        name, width, style = page.locator("*:focus").evaluate(
            "each => [each.id ? `#${each.id}` : each.name || each.textContent.slice(0, 8).trim(),"
            " getComputedStyle(each).outlineWidth, getComputedStyle(each).outlineStyle]"
        )
        assert (width, style) == ("3px", "solid"), name
        assert len(found) < 20, found
        found.append(name)
    return found


def test_by_keyboard_alone(page: Page) -> None:
    press = page.keyboard.press
    expect(page.locator("#ask")).to_be_visible()
    assert stops(page, "Tab", "labelsnu") == ["labelsnu"]
    page.keyboard.type("choices")
    assert stops(page, "Tab", "choices") == ["For prog", "text", "question", "choices"]
    page.keyboard.type("the movie")
    press("Enter")  # the next choice
    page.keyboard.type("no")
    stops(page, "Shift+Tab", "text")
    page.keyboard.type("we like")
    press("Shift+Enter")
    press("Control+Enter")
    expect(page.locator("#answer .bars li")).to_have_count(2)
    expect(page.locator("[name=text]")).to_have_value("we like\n")
    stops(page, "Shift+Tab", "labelsnu")
    page.keyboard.type("labels")
    stops(page, "Tab", "text")
    press("Enter")
    expect(page.locator("#answer .bars li")).to_have_count(3)
    expect(page.locator("[name=text]")).to_be_focused()
    assert stops(page, "Tab", "blamenon") == ["text_pair", "#send", "#example", "blamenon"]
    page.keyboard.type("none")
    assert stops(page, "Tab", "Explain") == ["Explain"]
    press("Enter")
    expect(page.locator("#why .legend bdi")).to_have_text("none")
    assert stops(page, "Tab", "curl") == ["curl"]
    press("Enter")
    expect(page.locator("#code pre").first).to_be_visible()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    assert stops(page, "Tab", "Copy") == ["Copy"]
    press("Space")
    expect(page.locator("#code button").first).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#code pre").first.text_content()
    stops(page, "Shift+Tab", "#example")
    press("Enter")
    expect(page.locator("[name=text]")).to_have_value(re.compile("lamp"))


SLOW = {(360, "dark"), (1280, "light")}


@pytest.mark.parametrize(
    ("width", "scheme"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each in SLOW)) for each in itertools.product(SIZES, ("light", "dark"))],
)
def test_every_family_in_every_size(browser: Browser, url: str, width: int, scheme: Any, tmp_path: Path) -> None:
    """Nothing is wider than the window, and axe-core finds nothing serious, before and after an example and its explanation."""
    folder = Path(os.environ.get("BERTKIT_SCREENSHOTS", tmp_path))
    folder.mkdir(exist_ok=True)
    grounds = set()
    with open_page(browser, url, viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme) as page:
        for model in (*ASKED, HOSTILE):
            choose(page, model)
            assert faults_of(page) == []
            page.locator("#example").click()
            expect(page.locator("#answer > :not(.empty)").first).to_be_visible()
            if page.locator("#why").is_visible():
                page.get_by_role("button", name="Explain").click()
                expect(page.locator("#why .text")).to_be_visible()
            while (closed := page.locator("details:not([open]) > summary").first).is_visible():
                closed.click()
            assert faults_of(page) == []
            assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
            over = page.locator("main *:visible").evaluate_all(
                "all => all.filter(each => each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML)"
            )
            assert over == []
            page.evaluate("scrollTo(0, 0)")
            image = page.screenshot(
                path=folder / f"{model if model in ASKED else 'hostile'}-{width}-{scheme}.png", full_page=True
            )
            assert int.from_bytes(image[16:20], "big") == width
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.locator("[name=text]").fill("x" * 500)
        page.locator("#send").click()
        expect(page.locator("#answer .bars").first).to_be_visible()
        page.get_by_role("button", name="Explain").click()
        expect(page.locator("#why .text")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == width
    (ground,) = grounds
    assert (int(re.findall(r"\d+", ground)[0]) > 128) == (scheme == "light")


def test_less_motion(browser: Browser, url: str) -> None:
    for reduced in ("reduce", "no-preference"):
        with open_page(browser, url, reduced_motion=reduced) as page:  # type: ignore[arg-type]
            send(page, "labels")
            seconds = page.locator(".bar").first.evaluate("bar => getComputedStyle(bar, '::before').transitionDuration")
            assert (seconds == "0s") == (reduced == "reduce")
